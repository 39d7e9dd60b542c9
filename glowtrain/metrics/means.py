"""Metrics that are sums over examples: graph code, compiled into the function that computes the loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Value
from glowtrain.losses.classification import ClassLoss
from glowtrain.metrics.base import LABELS, NUMBERS, Compared, MeanMetric
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.logic import Cast, Equal, Where
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.indexing.selection import positions
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import f32

COUNTED = "counted_labels"
"""The mean that is the share of labels that count, where some are ignored."""


@dataclass(frozen=True)
class Accuracy(MeanMetric):
    """The share of right answers, as the loss measures it."""

    name = "accuracy"
    better = "max"
    parts = ("accuracy",)

    def means(self, compared: Compared) -> dict[str, Value]:
        if self.name not in compared.attached.metrics:
            raise InputError(f"metrics: {type(compared.loss).__name__} measures no accuracy")
        return {self.name: compared.attached.metrics[self.name]}


class LabelMetric(MeanMetric):
    """A mean over the labels of classes, without those that the loss ignores."""

    tasks = LABELS

    @abstractmethod
    def each(self, loss: ClassLoss, scores: Value, labels: Value) -> Value:
        """A number for each label [n], of scores [n, classes]."""

    def means(self, compared: Compared) -> dict[str, Value]:
        loss = compared.loss
        assert isinstance(loss, ClassLoss), loss
        scores, labels = loss.rows(compared.prediction), reshape(compared.target, (compared.target.type.size,))
        if loss.ignore_index is None:
            return {self.parts[0]: compared.mean(self.each(loss, scores, labels))}
        ignored = Equal()(labels, loss.ignore_index)
        each = Where()(ignored, 0.0, self.each(loss, scores, Where()(ignored, 0, labels)))
        return {self.parts[0]: compared.mean(each), COUNTED: compared.mean(Cast(to=f32)(~ignored))}

    def finish(self, means: Mapping[str, float]) -> float:
        counted = means.get(COUNTED, 1.0)
        return means[self.parts[0]] / counted if counted else float("nan")


@dataclass(frozen=True)
class TopK(LabelMetric):
    """The share of labels that are among the ``k`` classes of the highest scores; of equal scores the higher classes
    come first, as in scikit-learn."""

    k: int = 5
    better = "max"

    def __post_init__(self) -> None:
        k: object = self.k
        if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
            raise InputError(f"TopK: k must be a whole number of at least 1, not {self.k!r}")

    @property
    def name(self) -> str:
        return f"top_{self.k}"

    @property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.name, COUNTED

    def each(self, loss: ClassLoss, scores: Value, labels: Value) -> Value:
        count, classes = scores.shape
        if self.k >= classes:
            raise InputError(f"metrics: {self.name!r} is of more than {self.k} classes; the output has {classes}")
        label = reshape(labels, (count, 1))
        score = GatherElements(axis=1)(scores, label)
        before = (scores > score) | (Equal()(scores, score) & (positions(classes) > label))
        right: Value = Cast(to=f32)(ReduceSum(axes=(1,), keepdims=False)(Cast(to=f32)(before)) < float(self.k))
        return right


@dataclass(frozen=True)
class Perplexity(LabelMetric):
    """exp(mean of -log probability[label])"""

    name = "perplexity"
    better = "min"
    parts = ("cross_entropy", COUNTED)

    def each(self, loss: ClassLoss, scores: Value, labels: Value) -> Value:
        result = loss.operator(reduction="none")(scores, labels)
        each: Value = result[0] if isinstance(result, tuple) else result
        return each

    def finish(self, means: Mapping[str, float]) -> float:
        return float(np.exp(super().finish(means)))


class ErrorMetric(MeanMetric):
    """A mean of what outputs differ from their targets by, over all elements."""

    tasks = NUMBERS
    better = "min"


@dataclass(frozen=True)
class MeanAbsoluteError(ErrorMetric):
    """mean(|output - target|)"""

    name = "mae"
    parts = ("mae",)

    def means(self, compared: Compared) -> dict[str, Value]:
        return {"mae": compared.mean(Abs()(compared.prediction - compared.target))}


@dataclass(frozen=True)
class MeanSquaredError(ErrorMetric):
    """mean((output - target)²)"""

    name = "mse"
    parts = ("mse",)

    def means(self, compared: Compared) -> dict[str, Value]:
        difference = compared.prediction - compared.target
        return {"mse": compared.mean(difference * difference)}


@dataclass(frozen=True)
class RootMeanSquaredError(MeanSquaredError):
    """sqrt(mean((output - target)²)), of all elements together."""

    name = "rmse"

    def finish(self, means: Mapping[str, float]) -> float:
        return float(np.sqrt(means["mse"]))
