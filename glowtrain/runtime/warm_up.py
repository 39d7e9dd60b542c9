"""The first runs of a placement: at every size of a batch, so that nothing is left to be done when requests come.

It is also tried whether an example's answer depends on the examples beside it, on where in a batch it is, or on how
many there are: requests that share a batch must not see each other. It is a trial, on random numbers: what shows with
others alone is not found.
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
    """An example's answer depends on its batch."""


LARGE = 16
"""What the numbers of examples are about that may make a difference to one beside them; its own are about 1."""
TOLERANCE = 1e-2
"""What half of an answer's elements may differ by from those of the same example elsewhere, as a part of the largest:
a batch of another size may take sums in another order, and then an integer may be rounded to the next."""


def warm_up(placement: NetworkPlacement, model: ServedModel) -> None:
    """Run every function of a placement that updates nothing.

    Raises :class:`DependentRowsError` where rows depend on each other, :class:`DeviceError` for what goes wrong.
    """
    generator = np.random.default_rng(7)
    example: dict[str, Array] = {}
    answer: dict[str, Array] = {}
    for size, graph in model.graphs.items():
        if graph.updates:
            continue
        inputs = example_inputs(graph, generator)
        if size is None:
            _run(placement.executors[size], inputs)
            continue
        example = example or {name: array[0] for name, array in inputs.items()}
        _put(example, inputs, 0, -1)
        outputs = _run(placement.executors[size], inputs)
        for row, scale in ((0, LARGE), (-1, -LARGE)) if size > 1 else ():
            others = example_inputs(graph, generator, scale)
            _put(example, others, row)
            _compare_company(model.signature.name, row, outputs, _run(placement.executors[size], others))
        answer = answer or {name: array[0] for name, array in outputs.items()}
        _compare_batches(model.signature.name, answer, outputs)


def example_inputs(graph: Graph, generator: np.random.Generator, scale: int = 0) -> dict[str, Array]:
    """Inputs that a graph takes, indices in range among them. Other numbers are small, or all about ``scale``."""
    allowed = {use.input.name: use.allowed for use in graph.index_uses if use.rearranged}
    moved = {use.input.name for use in graph.index_uses if not use.rearranged}
    found = {}
    for value in graph.inputs:
        numbers = np.zeros(value.shape) if value.name in moved else None
        if numbers is None:
            numbers = _numbers(value.shape, value.dtype.numpy, allowed.get(value.name), generator, scale)
        found[value.name] = np.asarray(numbers, value.dtype.numpy, order="C")
    return found


def _numbers(
    shape: tuple[int, ...], dtype: np.dtype, allowed: IndexRange | None, generator: np.random.Generator, scale: int
) -> Array:
    if allowed is not None:
        low, high = np.max(allowed.low), np.min(allowed.high)
        return generator.integers(int(low), int(high) + 1, shape)
    if dtype.kind in "iu" and scale:
        return generator.integers(1, 2 * LARGE, shape)
    if dtype.kind in "iub":
        return generator.integers(0, 2, shape)
    numbers = generator.normal(size=shape)
    return np.abs(numbers) * scale if scale else numbers


def _put(example: Mapping[str, Array], inputs: Mapping[str, Array], *rows: int) -> None:
    """Have an example in some rows of inputs."""
    for name, array in inputs.items():
        for row in rows:
            array[row] = example[name]


def _compare_company(name: str, row: int, outputs: Mapping[str, Array], others: Mapping[str, Array]) -> None:
    """A row's answers are the same in other company. Both ends are tried: one of them could be the largest of all."""
    for output, array in outputs.items():
        if array[row].tobytes() != others[output][row].tobytes():
            raise _dependent(name, output, "the examples beside it")


def _compare_batches(name: str, answer: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    """The same example has much the same answers in the first and last row, and in a batch of another size."""
    for output, array in outputs.items():
        if not _close(array[0], array[-1]):
            raise _dependent(name, output, "where in its batch it is")
        if not _close(array[0], answer[output]):
            raise _dependent(name, output, "how many there are in its batch")


def _close(one: Array, other: Array) -> bool:
    """Whether half of the elements are the same but for rounding, of those that are finite."""
    whole = one.dtype.kind in "iub"
    one, other = (np.ravel(each).astype(np.float64) for each in (one, other))
    finite = np.isfinite(one) & np.isfinite(other)
    if not finite.any():
        return True
    one, other = one[finite], other[finite]
    limit = TOLERANCE * max(np.abs(one).max(), np.abs(other).max()) + whole
    return bool(np.median(np.abs(one - other)) <= limit)


def _dependent(name: str, output: str, what: str) -> DependentRowsError:
    return DependentRowsError(
        f"network {name}: output {output!r} of an example depends on {what}, so requests cannot share batches; add it "
        "with max_batch=1, or bind its batch and leave max_batch out"
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
