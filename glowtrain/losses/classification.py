"""Losses of scores of classes, and of yes and no."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Graph, Input, Value, Variable, constant
from glowtrain.losses.base import Answers, Loss, OutputLoss, Task, checked_weights, first_wrong, output_name
from glowtrain.ops.elementwise.activation import Softplus
from glowtrain.ops.elementwise.extrema import Max
from glowtrain.ops.elementwise.logic import Cast, Equal, Greater, Where
from glowtrain.ops.elementwise.transcendental import Exp
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.objective.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from glowtrain.ops.reduce.reduction import ReduceMean, ReduceSum
from glowtrain.ops.reduce.softmax import LogSoftmax
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.presentation.messages import plural
from glowtrain.types import Array, DType, TensorType, f32, i64

Weights = Sequence[float] | Array
BALANCED = "balanced"
ClassWeights = Weights | Literal["balanced"]
"""What labels of each class count; balanced: n / (classes * labels of the class), counted in what is trained on."""

LEAST_WRONG = 1e-8
"""Below it 1 - p is no number whose power has a gradient."""


@dataclass(frozen=True)
class BCEWithLogits(OutputLoss):
    """-target log σ(x) - (1 - target) log(1 - σ(x)) = softplus(x) - target x, for logits x; targets in [0, 1].

    ``pos_weight`` multiplies the first term: one number, or one for each element of the last axis.
    """

    pos_weight: float | Weights | None = field(default=None, repr=False)

    task: ClassVar[Task | None] = "binary"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pos_weight is None:
            return
        single = np.ndim(self.pos_weight) == 0
        numbers = checked_weights("pos_weight", [self.pos_weight] if single else self.pos_weight)
        object.__setattr__(self, "pos_weight", numbers[0] if single else numbers)

    def each(self, prediction: Value, target: Value) -> Value:
        more = None if self.pos_weight is None else np.array(self.pos_weight, prediction.dtype.numpy) - 1
        result: Value
        if more is None:
            result = Softplus()(prediction) - target * prediction
        else:
            result = (1.0 - target) * prediction + (1.0 + more * target) * Softplus()(-prediction)
        return result

    def compared(self, model: Graph) -> tuple[Value, Input]:
        prediction, target = super().compared(model)
        last = prediction.shape[-1] if prediction.rank else 1
        if isinstance(self.pos_weight, tuple) and len(self.pos_weight) != last:
            raise InputError(
                f"pos_weight has {plural(len(self.pos_weight), 'number')}, but the last axis of output "
                f"{output_name(model, self.output)!r} of {model.name} has {last}"
            )
        return prediction, target

    def answers(self, prediction: Value, target: Value) -> Answers:
        return Answers(Equal()(Greater()(prediction, 0.0), Greater()(target, 0.5)))

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
    """A loss over classes. Labels are i64, of the output's shape without the axis of the classes.

    ``class_weight``: what a label of each class counts; a mean divides by what all labels count together.
    """

    axis: int = -1
    ignore_index: int | None = None
    class_weight: ClassWeights | None = field(default=None, repr=False)

    operator: ClassVar[Any]
    task: ClassVar[Task | None] = "classification"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.class_weight, str) and self.class_weight != BALANCED:
            raise InputError(f"class_weight must be {BALANCED!r} or a number for each class, not {self.class_weight!r}")
        if self.class_weight is not None and not self._is_balanced:
            object.__setattr__(self, "class_weight", checked_weights("class_weight", self.class_weight))

    @property
    def over_examples(self) -> str | None:
        """A mean over what labels count is none over examples."""
        counted = self.ignore_index is not None or self.class_weight is not None
        return None if counted and self.reduction == "mean" else self.reduction

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

    def each(self, prediction: Value, target: Value) -> Value:
        return reshape(self.apply("none", prediction, target), target.shape)

    def counts(self, prediction: Value, target: Value) -> Value | None:
        labels, operator = reshape(target, (target.type.size,)), self.operator(ignore_index=self.ignore_index)
        counts = operator.counts(self.rows(prediction), labels, self.weights(prediction))
        return None if counts is None else reshape(counts, target.shape)

    def value(self, prediction: Value, target: Value) -> Value:
        return self.apply(self.reduction, prediction, target)

    def apply(self, reduction: str, prediction: Value, target: Value) -> Value:
        """The operator's loss: of each label, or reduced by the operator."""
        operator = self.operator(reduction=reduction, ignore_index=self.ignore_index)
        labels, weights = reshape(target, (target.type.size,)), self.weights(prediction)
        result = operator(self.rows(prediction), labels, *([] if weights is None else [weights]))
        loss: Value = result[0] if isinstance(result, tuple) else result
        return loss

    @property
    def _is_balanced(self) -> bool:
        return isinstance(self.class_weight, str)

    def by_classes(self, weights: Any) -> Loss:
        if self.class_weight is not None:
            raise InputError(f"class_weight is given twice: the loss has {self.class_weight} already")
        return replace(self, class_weight=weights)

    @property
    def balanced(self) -> Mapping[str, Callable[[Graph, Mapping[str, Array]], Array]]:
        return {self._weights_name: self._count} if self._is_balanced else {}

    @property
    def _weights_name(self) -> str:
        return f"{self.target}.class_weight"

    def _count(self, model: Graph, arrays: Mapping[str, Array]) -> Array:
        """Weights of classes by their labels, as scikit-learn's compute_class_weight; 1 for a class without any."""
        self.check(model, arrays)
        prediction, labels = model.output_types[output_name(model, self.output)], np.asarray(arrays[self.target])
        counted = labels.ravel() if self.ignore_index is None else labels[labels != self.ignore_index]
        counts = np.bincount(counted, minlength=prediction.shape[self.class_axis(prediction)])
        if not counts.any():
            raise InputError(f"class_weight={BALANCED!r}: {self.target!r} has no labels that count")
        weights = counts.sum() / np.count_nonzero(counts) / np.maximum(counts, 1)
        return np.asarray(np.where(counts, weights, 1.0))

    def weights(self, prediction: Value) -> Value | None:
        """``class_weight`` in the type of the prediction; balanced ones are a variable, which training fills."""
        if self._is_balanced:
            return _unknown_weights(
                self._weights_name, prediction.shape[self.class_axis(prediction.type)], prediction.dtype
            )
        return None if self.class_weight is None else constant(np.array(self.class_weight, prediction.dtype.numpy))

    def compared(self, model: Graph) -> tuple[Value, Input]:
        prediction, target = super().compared(model)
        classes = prediction.shape[self.class_axis(prediction.type)]
        if self.class_weight is not None and not self._is_balanced and len(self.class_weight) != classes:
            raise InputError(
                f"class_weight has {plural(len(self.class_weight), 'number')}, but output "
                f"{output_name(model, self.output)!r} of {model.name} has {classes} classes"
            )
        return prediction, target

    def answers(self, prediction: Value, target: Value) -> Answers:
        best = ArgMax(axis=self.class_axis(prediction.type), keepdims=False)(prediction)
        ignored = self.ignore_index
        return Answers(Equal()(best, target), None if ignored is None else Cast(to=f32)(~Equal()(target, ignored)))

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
            raise InputError(
                f"{self.target!r} must be integers (i64), one class per sample, not {labels.dtype}; "
                "numbers are learnt by a loss such as mse"
            )
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


@lru_cache(maxsize=64)
def _unknown_weights(name: str, classes: int, dtype: DType) -> Variable:
    """The variable of balanced weights, the same one for all parts of a loss; NaN before labels are counted."""
    return Variable(name, np.full(classes, np.nan, dtype.numpy), trainable=False)


@dataclass(frozen=True)
class SoftmaxCrossEntropy(ClassLoss):
    """-log softmax(scores)[label]

    ``label_smoothing`` mixes that share of the mean over all classes in, of -log softmax(scores)[class] times the
    class's weight. Source: Szegedy et al., Rethinking the Inception Architecture (2015), section 7, as
    torch.nn.CrossEntropyLoss.
    """

    target: str = "labels"
    label_smoothing: float = field(default=0.0, repr=False)
    operator: ClassVar[Any] = SoftmaxCrossEntropyLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"label_smoothing must be from 0 to 1, not {self.label_smoothing}")

    def each(self, prediction: Value, target: Value) -> Value:
        exact = super().each(prediction, target)
        if not self.label_smoothing:
            return exact
        return (1.0 - self.label_smoothing) * exact + self.label_smoothing * self.uniform(prediction, target)

    def uniform(self, prediction: Value, target: Value) -> Value:
        """The cross entropy of each sample with the uniform distribution, classes by their weights."""
        log_prob, weights = LogSoftmax(axis=1)(self.rows(prediction)), self.weights(prediction)
        weighted = log_prob if weights is None else log_prob * weights
        each = reshape(-ReduceMean(axes=(1,), keepdims=False)(weighted), target.shape)
        return each if self.ignore_index is None else Where()(Equal()(target, self.ignore_index), 0.0, each)

    def value(self, prediction: Value, target: Value) -> Value:
        if not self.label_smoothing:
            return super().value(prediction, target)
        return self.reduced(self.each(prediction, target), self.counts(prediction, target))


@dataclass(frozen=True)
class Focal(ClassLoss):
    """(1 - p)^gamma -log p for the probability p = softmax(scores)[label]: what is right already counts less.

    Source: Lin et al., Focal Loss for Dense Object Detection (2017), eq. 5, for any number of classes; its α are
    ``class_weight``, by which a mean divides here.
    """

    target: str = "labels"
    gamma: float = 2.0
    operator: ClassVar[Any] = SoftmaxCrossEntropyLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma < float("inf"):
            raise InputError(f"gamma must be a number that is not negative, not {self.gamma}")

    def each(self, prediction: Value, target: Value) -> Value:
        plain = replace(self, class_weight=None)
        cross_entropy = ClassLoss.each(plain, prediction, target)
        wrong = Max()(1.0 - Exp()(-cross_entropy), LEAST_WRONG)
        each: Value = cross_entropy * wrong**self.gamma
        return each if self.class_weight is None else each * self.counts(prediction, target)

    def value(self, prediction: Value, target: Value) -> Value:
        return self.reduced(self.each(prediction, target), self.counts(prediction, target))


@dataclass(frozen=True)
class NLL(ClassLoss):
    """-log-probability[label]"""

    target: str = "labels"
    operator: ClassVar[Any] = NegativeLogLikelihoodLoss


@dataclass(frozen=True)
class SoftTargetCrossEntropy(OutputLoss):
    """-Σ target log softmax(scores), over the classes on the last axis.

    Targets are probabilities of the classes: of several people's labels, of another model, or mixed by augmentation. A
    label stands for a probability of 1.
    """

    target: str = "labels"

    takes_labels: ClassVar[bool] = True
    task: ClassVar[Task | None] = None

    def each(self, prediction: Value, target: Value) -> Value:
        result: Value = -ReduceSum(axes=(-1,), keepdims=False)(target * LogSoftmax(axis=-1)(prediction))
        return result

    def target_type(self, prediction: TensorType) -> TensorType:
        if not prediction.rank:
            raise InputError(f"SoftTargetCrossEntropy: an output of type {prediction} has no axis of classes")
        return prediction

    def answers(self, prediction: Value, target: Value) -> Answers:
        best, likeliest = (ArgMax(axis=-1, keepdims=False)(value) for value in (prediction, target))
        return Answers(Equal()(best, likeliest))

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        target, classes = np.asarray(arrays[self.target]), model.output_types[output_name(model, self.output)].shape[-1]
        labels = target.dtype.kind in "iu"
        wrong = ~((target >= 0) & (target < classes if labels else target <= 1))
        if wrong.any():
            place, value = first_wrong(target, wrong)
            rule = f"classes from 0 to {classes - 1}" if labels else "probabilities"
            raise InputError(f"{self.target!r} must be {rule} for soft_target_cross_entropy, but is {value} at {place}")


def softmax_cross_entropy(
    labels: str = "labels",
    output: str | None = None,
    *,
    axis: int = -1,
    ignore_index: int | None = None,
    class_weight: ClassWeights | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Loss:
    """Cross entropy of unscaled scores, whose classes are on ``axis``, and i64 labels.

    ``class_weight``: what a label of each class counts, one number for each, of which a mean is the weighted mean;
    ``label_smoothing``: see :class:`SoftmaxCrossEntropy`.
    """
    return SoftmaxCrossEntropy(labels, output, reduction, axis, ignore_index, class_weight, label_smoothing)


def soft_target_cross_entropy(labels: str = "labels", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Cross entropy of unscaled scores and probabilities f32[batch, classes] of the classes, or labels i64[batch]. See
    :class:`SoftTargetCrossEntropy`."""
    return SoftTargetCrossEntropy(labels, output, reduction)


def focal(
    labels: str = "labels",
    output: str | None = None,
    *,
    gamma: float = 2.0,
    axis: int = -1,
    ignore_index: int | None = None,
    class_weight: ClassWeights | None = None,
    reduction: str = "mean",
) -> Loss:
    """Cross entropy in which labels that are right already count less. See :class:`Focal`."""
    return Focal(labels, output, reduction, axis, ignore_index, class_weight, gamma)


def nll(
    labels: str = "labels",
    output: str | None = None,
    *,
    axis: int = -1,
    ignore_index: int | None = None,
    class_weight: ClassWeights | None = None,
    reduction: str = "mean",
) -> Loss:
    """Negative log-likelihood: as :func:`softmax_cross_entropy`, for a model that gives log-probabilities."""
    return NLL(labels, output, reduction, axis, ignore_index, class_weight)


def bce_with_logits(
    target: str = "target",
    output: str | None = None,
    *,
    pos_weight: float | Weights | None = None,
    reduction: str = "mean",
) -> Loss:
    """Binary cross entropy of logits and float targets in [0, 1].

    ``pos_weight``: what a positive counts, as a number or one for each element of the last axis.
    """
    return BCEWithLogits(target, output, reduction, pos_weight)
