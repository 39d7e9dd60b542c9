"""Losses of scores of classes, and of yes and no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Graph, Value
from glowtrain.losses.base import Loss, OutputLoss, first_wrong, output_name, share
from glowtrain.ops.elementwise.activation import Softplus
from glowtrain.ops.elementwise.logic import Cast, Equal, Greater
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.objective.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.types import Array, TensorType, f32, i64


@dataclass(frozen=True)
class BCEWithLogits(OutputLoss):
    """-target log σ(x) - (1 - target) log(1 - σ(x)) = softplus(x) - target x, for logits x; targets in [0, 1]."""

    def value(self, prediction: Value, target: Value) -> Value:
        return self.reduced(Softplus()(prediction) - target * prediction)

    def metrics(self, prediction: Value, target: Value) -> dict[str, Value]:
        return {"accuracy": share(Equal()(Greater()(prediction, 0.0), Greater()(target, 0.5)))}

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        target = np.asarray(arrays[self.target])
        if target.dtype.kind not in "biuf" and target.dtype.name != "bfloat16":
            raise InputError(f"{self.target!r} must be numbers in [0, 1], not {target.dtype}")
        wrong = ~((target >= 0) & (target <= 1))
        if wrong.any():
            place, value = first_wrong(target, wrong)
            raise InputError(f"{self.target!r} must be in [0, 1] for bce_with_logits, but is {value} at {place}")


@dataclass(frozen=True)
class ClassLoss(OutputLoss):
    """A loss over classes. Labels are i64, of the output's shape without the axis of the classes."""

    axis: int = -1
    ignore_index: int | None = None

    operator: ClassVar[Any]

    @property
    def over_examples(self) -> str | None:
        """A mean over those labels that count is none over examples."""
        return None if self.ignore_index is not None and self.reduction == "mean" else self.reduction

    def class_axis(self, prediction: TensorType) -> int:
        """The axis of the classes, counted from the front."""
        if prediction.rank < 1 or not -prediction.rank <= self.axis < prediction.rank:
            raise InputError(
                f"{type(self).__name__}: an output of type {prediction} has no axis {self.axis} for the classes"
            )
        return self.axis % prediction.rank

    def target_type(self, prediction: TensorType) -> TensorType:
        axis = self.class_axis(prediction)
        return TensorType(i64, prediction.shape[:axis] + prediction.shape[axis + 1 :])

    def rows(self, prediction: Value) -> Value:
        """The prediction as [samples, classes]."""
        axis = self.class_axis(prediction.type)
        if axis != prediction.rank - 1:
            others = [place for place in range(prediction.rank) if place != axis]
            prediction = Transpose(perm=(*others, axis))(prediction)
        classes = prediction.shape[-1]
        return reshape(prediction, (prediction.type.size // classes, classes))

    def value(self, prediction: Value, target: Value) -> Value:
        labels = reshape(target, (target.type.size,))
        result = self.operator(reduction=self.reduction, ignore_index=self.ignore_index)(self.rows(prediction), labels)
        loss: Value = result[0] if isinstance(result, tuple) else result
        return loss

    def metrics(self, prediction: Value, target: Value) -> dict[str, Value]:
        best = ArgMax(axis=self.class_axis(prediction.type), keepdims=False)(prediction)
        right = Equal()(best, target)
        if self.ignore_index is None:
            return {"accuracy": share(right)}
        counted = Cast(to=f32)(~Equal()(target, self.ignore_index))
        total = ReduceSum(axes=None, keepdims=False)
        return {"accuracy": total(Cast(to=f32)(right) * counted) / total(counted)}

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        prediction = model.output_types[output_name(model, self.output)]
        classes = prediction.shape[self.class_axis(prediction)]
        labels = np.asarray(arrays[self.target])
        axis = self.class_axis(prediction)
        if labels.ndim == prediction.rank and labels.shape[axis] == classes > 1:
            last = -1 if axis == prediction.rank - 1 else axis
            raise InputError(
                f"{self.target!r} must be the number of a class for each sample, but looks one-hot, "
                f"{labels.dtype}{list(labels.shape)}: use .argmax({last})"
            )
        if labels.dtype.kind not in "iu":
            raise InputError(f"{self.target!r} must be integers (i64), one class per sample, not {labels.dtype}")
        if labels.size and labels.min() >= 0 and labels.max() < classes:
            return
        wrong = (labels < 0) | (labels >= classes)
        if self.ignore_index is not None:
            wrong &= labels != self.ignore_index
        if wrong.any():
            place, value = first_wrong(labels, wrong)
            raise InputError(
                f"{self.target!r} must hold classes from 0 to {classes - 1} (the model's output has {classes}), "
                f"but label {value} is at {place}"
            )


@dataclass(frozen=True)
class SoftmaxCrossEntropy(ClassLoss):
    """-log softmax(scores)[label]"""

    target: str = "labels"
    operator: ClassVar[Any] = SoftmaxCrossEntropyLoss


@dataclass(frozen=True)
class NLL(ClassLoss):
    """-log-probability[label]"""

    target: str = "labels"
    operator: ClassVar[Any] = NegativeLogLikelihoodLoss


def softmax_cross_entropy(
    labels: str = "labels",
    output: str | None = None,
    *,
    axis: int = -1,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Loss:
    """Cross entropy of unscaled scores, whose classes are on ``axis``, and i64 labels."""
    return SoftmaxCrossEntropy(labels, output, reduction, axis, ignore_index)


def nll(
    labels: str = "labels",
    output: str | None = None,
    *,
    axis: int = -1,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Loss:
    """Negative log-likelihood: as :func:`softmax_cross_entropy`, for a model that gives log-probabilities."""
    return NLL(labels, output, reduction, axis, ignore_index)


def bce_with_logits(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Binary cross entropy of logits and float targets in [0, 1]."""
    return BCEWithLogits(target, output, reduction)
