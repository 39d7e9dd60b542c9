"""Losses of numbers that are to be near their targets."""

from __future__ import annotations

from dataclasses import dataclass

from glowtrain.errors import InputError
from glowtrain.graph import Value
from glowtrain.losses.base import Loss, OutputLoss
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.logic import Where


@dataclass(frozen=True)
class MSE(OutputLoss):
    """(prediction - target)²"""

    def value(self, prediction: Value, target: Value) -> Value:
        difference = prediction - target
        return self.reduced(difference * difference)


@dataclass(frozen=True)
class L1(OutputLoss):
    """|prediction - target|"""

    def value(self, prediction: Value, target: Value) -> Value:
        return self.reduced(Abs()(prediction - target))


@dataclass(frozen=True)
class Huber(OutputLoss):
    """d²/2 where |d| ≤ delta, else delta (|d| - delta/2), with d = prediction - target.

    Source: Huber, Robust Estimation of a Location Parameter (1964), as torch.nn.HuberLoss.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.delta > 0:
            raise InputError(f"Huber: delta must be positive, not {self.delta}")

    def value(self, prediction: Value, target: Value) -> Value:
        difference = prediction - target
        size = Abs()(difference)
        near, far = 0.5 * difference * difference, self.delta * (size - 0.5 * self.delta)
        return self.reduced(Where()(size <= self.delta, near, far))


def mse(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Mean squared error."""
    return MSE(target, output, reduction)


def l1(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Mean absolute error."""
    return L1(target, output, reduction)


def huber(target: str = "target", output: str | None = None, *, delta: float = 1.0, reduction: str = "mean") -> Loss:
    """Squared near 0, linear beyond ``delta``. See :class:`Huber`."""
    return Huber(target, output, reduction, delta)
