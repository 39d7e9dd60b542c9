"""The first runs of a placement: at every size of a batch, so that nothing is left to be done when requests come.

It is also tried whether an example's answer depends on the examples beside it, as :mod:`glowtrain.trainer.predict`
does: requests that share a batch must not see each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.runtime.models import ServedModel
from glowtrain.runtime.placement.executor import Executor
from glowtrain.runtime.placement.replica import NetworkPlacement
from glowtrain.types import Array


class DependentRowsError(InputError):
    """An example's answer depends on the others in its batch."""


def warm_up(placement: NetworkPlacement, model: ServedModel) -> None:
    """Run every function of a placement that updates nothing.

    Raises :class:`DependentRowsError` where rows depend on each other, :class:`DeviceError` for what goes wrong.
    """
    generator = np.random.default_rng(7)
    for size, graph in model.graphs.items():
        if graph.updates:
            continue
        inputs = example_inputs(graph, generator)
        outputs = _run(placement.executors[size], inputs)
        if size is not None and size > 1:
            for row in (0, -1):
                others = example_inputs(graph, generator)
                for name, array in inputs.items():
                    others[name][row] = array[row]
                _compare(model.signature.name, row, outputs, _run(placement.executors[size], others))


def example_inputs(graph: Graph, generator: np.random.Generator) -> dict[str, Array]:
    """Inputs that a graph takes, indices in range among them."""
    allowed = {use.input.name: use.allowed for use in graph.index_uses if use.rearranged}
    moved = {use.input.name for use in graph.index_uses if not use.rearranged}
    found = {}
    for value in graph.inputs:
        numbers = np.zeros(value.shape) if value.name in moved else None
        if numbers is None:
            numbers = _numbers(value.shape, value.dtype.numpy, allowed.get(value.name), generator)
        found[value.name] = np.asarray(numbers, value.dtype.numpy, order="C")
    return found


def _numbers(
    shape: tuple[int, ...], dtype: np.dtype, allowed: IndexRange | None, generator: np.random.Generator
) -> Array:
    if allowed is not None:
        low, high = np.max(allowed.low), np.min(allowed.high)
        return generator.integers(int(low), int(high) + 1, shape)
    if dtype.kind in "iub":
        return generator.integers(0, 2, shape)
    return generator.normal(size=shape)


def _compare(name: str, row: int, outputs: Mapping[str, Array], others: Mapping[str, Array]) -> None:
    """A row's answers are the same in other company. Both ends are tried: one of them could be the largest of all."""
    for output, array in outputs.items():
        if array[row].tobytes() != others[output][row].tobytes():
            raise DependentRowsError(
                f"network {name}: output {output!r} of an example depends on the examples beside it, so requests "
                "cannot share batches; add it with max_batch=1, or bind its batch and leave max_batch out"
            )


def _run(executor: Executor, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """One run, waited for."""
    ended, found = Event(), []

    def done(outputs: dict[str, Array] | None, error: Exception | None) -> None:
        found.append((outputs, error))
        ended.set()

    executor.start(inputs, 0, done)
    ended.wait()
    outputs, error = found[0]
    if error is not None:
        raise error
    return outputs or {}
