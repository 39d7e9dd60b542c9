"""Training on all examples at once: the loss and its gradient as a function of one vector of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from glowtrain.errors import InputError
from glowtrain.grad.training import LOSS
from glowtrain.optim.lbfgs import LBFGS, Minimization
from glowtrain.trainer.feed import Data, comes_in_batches
from glowtrain.trainer.graphs import GRADIENT
from glowtrain.types import Array

if TYPE_CHECKING:
    from glowtrain.trainer.steps import Steps


class FullBatchLoss:
    """The loss of some arrays as a function of what a trainer trains, which lies in one vector, f64[n]: parameters of
    16 and 32 bits are rounded to their types."""

    def __init__(self, trainer: Steps, arrays: Mapping[str, Array]) -> None:
        self.trainer = trainer
        self.arrays = arrays
        self.whole = {name: trainer.state.read(name) for name in trainer.graphs.parameters}
        bounds = trainer.graphs.chosen
        self.parts = {
            name: ... if (box := bounds[name]) is None else tuple(slice(each.start, each.stop) for each in box)
            for name in self.whole
        }

    @property
    def vector(self) -> Array:
        """What is trained, as it is."""
        parts = (self.whole[name][part] for name, part in self.parts.items())
        return np.concatenate([part.astype(np.float64).ravel() for part in parts])

    def write(self, vector: Array) -> None:
        """Set what is trained."""
        start = 0
        for name, part in self.parts.items():
            target = self.whole[name]
            shape = target[part].shape
            stop = start + int(np.prod(shape))
            target[part] = vector[start:stop].reshape(shape)
            self.trainer.state.write(name, target)
            start = stop

    def __call__(self, vector: Array) -> tuple[float, Array]:
        """The loss and its gradient at a vector."""
        self.write(vector)
        outputs = self.trainer.objective(self.arrays)
        gradients = [np.asarray(outputs[GRADIENT + name], np.float64).ravel() for name in self.parts]
        return float(outputs[LOSS]), np.concatenate(gradients)


def minimize(trainer: Steps, examples: Data, *, iterations: int, history: int, tolerance: float) -> Minimization:
    """L-BFGS over all examples; see :meth:`~glowtrain.trainer.trainer.Trainer.fit_lbfgs`."""
    _check(trainer, examples, iterations, history, tolerance)
    arrays = trainer.signature.named(examples)
    trainer.signature.check_all(arrays, len(next(iter(arrays.values()))))
    trainer.count_labels(arrays)
    objective = FullBatchLoss(trainer, trainer.signature.checked(arrays))
    method = LBFGS(objective, objective.vector, iterations=iterations, history=history, tolerance=tolerance)
    try:
        return method.run()
    finally:
        objective.write(method.point.x)


def _check(trainer: Steps, examples: Data, iterations: object, history: object, tolerance: object) -> None:
    for name, value, least in (("iterations", iterations, 0), ("history", history, 1)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise InputError(f"fit_lbfgs: {name} must be a whole number of at least {least}, not {value!r}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise InputError(f"fit_lbfgs: tolerance must be a number that is not negative, not {tolerance!r}")
    if comes_in_batches(examples):
        raise InputError("fit_lbfgs takes all examples at once, as arrays, and no batches that come one by one")
    if trainer.graphs.optimize.is_rough:
        raise InputError("fit_lbfgs: constraints and L1 have corners, where L-BFGS does not get on: leave them out")
