"""Losses of numbers, and of distributions, that are to be near their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Graph, Value
from glowtrain.losses.base import Loss, OutputLoss, Task, first_wrong
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.elementwise.transcendental import Log
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.types import Array, TensorType


@dataclass(frozen=True)
class MSE(OutputLoss):
    """(prediction - target)²"""

    def each(self, prediction: Value, target: Value) -> Value:
        difference = prediction - target
        return difference * difference


@dataclass(frozen=True)
class L1(OutputLoss):
    """|prediction - target|"""

    def each(self, prediction: Value, target: Value) -> Value:
        result: Value = Abs()(prediction - target)
        return result


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

    def each(self, prediction: Value, target: Value) -> Value:
        difference = prediction - target
        size = Abs()(difference)
        near, far = 0.5 * difference * difference, self.delta * (size - 0.5 * self.delta)
        result: Value = Where()(size <= self.delta, near, far)
        return result


@dataclass(frozen=True)
class KL(OutputLoss):
    """The sum over classes of target (log target - prediction), where that is 0 for a target of 0.

    The output holds log-probabilities on the last axis, the target probabilities. Source: Kullback and Leibler, On
    Information and Sufficiency (1951), as torch.nn.KLDivLoss with reduction="batchmean", over all axes but the last.
    """

    task: ClassVar[Task | None] = None

    def each(self, prediction: Value, target: Value) -> Value:
        some = target > 0.0
        terms = Where()(some, target * (Log()(Where()(some, target, 1.0)) - prediction), 0.0)
        result: Value = ReduceSum(axes=(-1,), keepdims=False)(terms)
        return result

    def target_type(self, prediction: TensorType) -> TensorType:
        if not prediction.rank:
            raise InputError(f"KL: an output of type {prediction} has no axis of classes")
        return prediction

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        target = np.asarray(arrays[self.target])
        wrong = ~((target >= 0) & (target <= 1))
        if wrong.any():
            place, value = first_wrong(target, wrong)
            raise InputError(f"{self.target!r} must be probabilities for kl, but is {value} at {place}")


def mse(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Mean squared error."""
    return MSE(target, output, reduction)


def l1(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Mean absolute error."""
    return L1(target, output, reduction)


def huber(target: str = "target", output: str | None = None, *, delta: float = 1.0, reduction: str = "mean") -> Loss:
    """Squared near 0, linear beyond ``delta``. See :class:`Huber`."""
    return Huber(target, output, reduction, delta)


def kl(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """The divergence of the target's probabilities from the output's, which are log-probabilities. See :class:`KL`."""
    return KL(target, output, reduction)
