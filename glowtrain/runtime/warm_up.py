"""The first runs of a placement: at every size of a batch, so that nothing is left to be done when requests come.

They also try whether requests that share a batch would see each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event

import numpy as np

from glowtrain.compiler.batch_dependence import batch_dependence, example_inputs
from glowtrain.errors import InputError
from glowtrain.runtime.models import ServedModel
from glowtrain.runtime.placement.executor import Executor
from glowtrain.runtime.placement.replica import NetworkPlacement
from glowtrain.types import Array


class DependentRowsError(InputError):
    """An example's answer depends on its batch."""


def warm_up(placement: NetworkPlacement, model: ServedModel) -> None:
    """Run every function of a placement that updates nothing.

    Raises :class:`DependentRowsError` where rows depend on each other, :class:`DeviceError` for what goes wrong.
    """
    graphs = {size: graph for size, graph in model.graphs.items() if not graph.updates}
    if (alone := graphs.pop(None, None)) is not None:
        _run(placement.executors[None], example_inputs(alone, np.random.default_rng(7)))
    batches = {size: graph for size, graph in graphs.items() if size is not None}
    if found := batch_dependence(batches, lambda size, inputs: _run(placement.executors[size], inputs)):
        raise DependentRowsError(
            f"network {model.signature.name}: {found}, so requests cannot share batches; add it with max_batch=1, or "
            "bind its batch and leave max_batch out"
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
