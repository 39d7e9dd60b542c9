"""Losses: what a model's output is compared with, and how, as graph code.

A loss declares the inputs that hold its targets, gives a scalar value and metrics beside it (accuracy), and checks
targets before a step runs. Every loss is the mean over the batch unless ``reduction="sum"``. Outputs in f16 and bf16
are compared in f32: the loss and float targets are f32 then, in which sums over a batch neither overflow nor lose
terms.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import BindingError, DifferentiationError, InputError
from glowtrain.graph import Graph, Input, Value
from glowtrain.ops.elementwise.activation import Softplus
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.logic import Cast, Equal, Greater, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.objective.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from glowtrain.ops.reduce.reduction import ReduceMean, ReduceSum, accumulator, as_dtype
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.types import Array, Spec, TensorType, f32, i64

__all__ = [
    "L1",
    "MSE",
    "NAMED",
    "NLL",
    "Attached",
    "BCEWithLogits",
    "ClassLoss",
    "Custom",
    "Huber",
    "Loss",
    "LossFunction",
    "ModelOutput",
    "OutputLoss",
    "SoftmaxCrossEntropy",
    "as_loss",
    "bce_with_logits",
    "custom",
    "huber",
    "l1",
    "mse",
    "nll",
    "output_of",
    "scalar",
    "softmax_cross_entropy",
]

LossFunction = Callable[[Mapping[str, Value], Mapping[str, Value]], Value]


@dataclass(frozen=True)
class Attached:
    """A loss on one graph: the inputs it adds, its value, and metrics (scalars) by name."""

    targets: tuple[Input, ...]
    value: Value
    metrics: dict[str, Value] = field(default_factory=dict)


class Loss(ABC):
    """Base of all losses."""

    @property
    @abstractmethod
    def targets(self) -> tuple[str, ...]:
        """Names of the inputs that the loss adds to the model's."""

    @abstractmethod
    def attach(self, model: Graph) -> Attached:
        """The loss of a model's outputs. Raises :class:`InputError` for an output that is not there."""

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        """Raise :class:`InputError` for targets that no correct data can have, such as labels out of range."""
        del model, arrays

    def describe(self) -> str:
        """A line that is equal for equal losses, for checkpoints."""
        return str(self)


@dataclass(frozen=True)
class OutputLoss(Loss):
    """A loss that compares one output of the model with one target input."""

    target: str = "target"
    output: str | None = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise InputError(f'{type(self).__name__}: reduction must be "mean" or "sum", not {self.reduction!r}')

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    def attach(self, model: Graph) -> Attached:
        prediction = output_of(model, self.output)
        if not prediction.dtype.is_float:
            raise InputError(
                f"{type(self).__name__}: output {prediction.name!r} is {prediction.type}, which is not a float type"
            )
        if self.target in {value.name for value in model.inputs}:
            raise InputError(
                f"{type(self).__name__}: {model.name} has an input {self.target!r} already; name the target otherwise"
            )
        prediction = as_dtype(prediction, accumulator(prediction.dtype))
        target = Input(self.target_type(prediction.type), self.target)
        return Attached((target,), self.value(prediction, target), self.metrics(prediction, target))

    def target_type(self, prediction: TensorType) -> TensorType:
        """The target's type: that of the prediction (16-bit floats were widened)."""
        return prediction

    @abstractmethod
    def value(self, prediction: Value, target: Value) -> Value:
        """The loss, a scalar."""

    def metrics(self, prediction: Value, target: Value) -> dict[str, Value]:
        """Scalars to report beside the loss."""
        return {}

    def reduced(self, each: Value) -> Value:
        """Mean or sum of the elements."""
        operator = ReduceMean if self.reduction == "mean" else ReduceSum
        result: Value = operator(axes=None, keepdims=False)(each)
        return result


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


@dataclass(frozen=True)
class BCEWithLogits(OutputLoss):
    """-target log σ(x) - (1 - target) log(1 - σ(x)) = softplus(x) - target x, for logits x; targets in [0, 1]."""

    def value(self, prediction: Value, target: Value) -> Value:
        return self.reduced(Softplus()(prediction) - target * prediction)

    def metrics(self, prediction: Value, target: Value) -> dict[str, Value]:
        return {"accuracy": _share(Equal()(Greater()(prediction, 0.0), Greater()(target, 0.5)))}

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        target = np.asarray(arrays[self.target])
        if target.dtype.kind not in "biuf" and target.dtype.name != "bfloat16":
            raise InputError(f"{self.target!r} must be numbers in [0, 1], not {target.dtype}")
        wrong = ~((target >= 0) & (target <= 1))
        if wrong.any():
            place, value = _first(target, wrong)
            raise InputError(f"{self.target!r} must be in [0, 1] for bce_with_logits, but is {value} at {place}")


@dataclass(frozen=True)
class ClassLoss(OutputLoss):
    """A loss over classes. Labels are i64, of the output's shape without the axis of the classes."""

    axis: int = -1
    ignore_index: int | None = None

    operator: ClassVar[Any]

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
            return {"accuracy": _share(right)}
        counted = Cast(to=f32)(~Equal()(target, self.ignore_index))
        total = ReduceSum(axes=None, keepdims=False)
        return {"accuracy": total(Cast(to=f32)(right) * counted) / total(counted)}

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        prediction = output_of(model, self.output).type
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
            place, value = _first(labels, wrong)
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


@dataclass(frozen=True)
class ModelOutput(Loss):
    """A scalar output of the model is the loss; all data go to the model's own inputs."""

    output: str

    @property
    def targets(self) -> tuple[str, ...]:
        return ()

    def attach(self, model: Graph) -> Attached:
        if self.output not in model.outputs:
            nearest = difflib.get_close_matches(self.output, NAMED, 1)
            losses = f"the nearest is {nearest[0]!r}" if nearest else f"there are: {', '.join(NAMED)}"
            outputs = ", ".join(map(repr, model.outputs)) or "none"
            raise InputError(
                f"there is no loss {self.output!r} ({losses}), and {model.name} has no output {self.output!r}; "
                f"it has {outputs}"
            )
        return Attached((), scalar(output_of(model, self.output), f"output {self.output!r}"))


@dataclass(frozen=True)
class Custom(Loss):
    """A Python function of the model's outputs and of all inputs, by name; ``extra`` declares the inputs it adds."""

    function: LossFunction
    extra: Mapping[str, Spec | TensorType]

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.extra)

    def attach(self, model: Graph) -> Attached:
        targets = tuple(Input(_bound(spec, name, model), name) for name, spec in self.extra.items())
        inputs = {value.name: value for value in (*model.inputs, *targets)}
        value = self.function(model.outputs, inputs)
        if not isinstance(value, Value):
            raise DifferentiationError(f"the loss function {self.name} must give a Value, not {type(value).__name__}")
        return Attached(targets, scalar(value, f"the loss function {self.name}"))

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def describe(self) -> str:
        return f"Custom({self.name}, {dict(self.extra)})"


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


def mse(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Mean squared error."""
    return MSE(target, output, reduction)


def l1(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Mean absolute error."""
    return L1(target, output, reduction)


def huber(target: str = "target", output: str | None = None, *, delta: float = 1.0, reduction: str = "mean") -> Loss:
    """Squared near 0, linear beyond ``delta``. See :class:`Huber`."""
    return Huber(target, output, reduction, delta)


def bce_with_logits(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """Binary cross entropy of logits and float targets in [0, 1]."""
    return BCEWithLogits(target, output, reduction)


def custom(function: LossFunction, **extra: Spec | TensorType) -> Loss:
    """Any function ``(outputs, inputs) -> Value`` as a loss; inputs that the model lacks are declared by keyword.

    ``custom(lambda out, inp: mean((out["y"] - inp["t"]) ** 2), t=gt.f32["batch", 1])``
    """
    return Custom(function, extra)


NAMED: dict[str, Callable[..., Loss]] = {
    "softmax_cross_entropy": softmax_cross_entropy,
    "nll": nll,
    "mse": mse,
    "l1": l1,
    "huber": huber,
    "bce_with_logits": bce_with_logits,
}
"""The losses by name."""


def by_name(name: str, output: str | None = None) -> Loss:
    """The loss of that name in :data:`NAMED`, on an ``output`` of the model, else the model's scalar output."""
    return NAMED[name](output=output) if name in NAMED else ModelOutput(name)


def as_loss(loss: str | Loss | LossFunction) -> Loss:
    """A loss from what a trainer takes: a loss, its name, the name of a scalar output of the model, or a function."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        return by_name(loss)
    if callable(loss):
        _refuse_maker(loss)
        return Custom(loss, {})
    raise InputError(f"loss must be one of gt.losses, the name of one or of an output, or a function, not {loss!r}")


def _refuse_maker(function: Any) -> None:
    """Raise :class:`InputError` for what makes a loss in place of one."""
    if function in NAMED.values() or (isinstance(function, type) and issubclass(function, Loss)):
        name = function.__name__
        raise InputError(f"{name} makes a loss and is not one itself: call it, as in gt.losses.{name}()")


def output_of(model: Graph, name: str | None) -> Value:
    """A model's output by name; without one, its only or first. Raises :class:`InputError`."""
    name = next(iter(model.outputs), None) if name is None else name
    if name is None or name not in model.outputs:
        raise InputError(f"{model.name} has no output {name!r}; it has {', '.join(map(repr, model.outputs)) or 'none'}")
    if name in model.trimmed:
        raise InputError(
            f"{model.name}: the size of output {name!r} is found at run time, so a loss cannot compare it with "
            "targets; reduce it inside of the model"
        )
    return model.outputs[name]


def scalar(value: Value, what: str) -> Value:
    """The value, as a scalar where it has one element. Raises :class:`DifferentiationError` where it has more."""
    if value.type.size != 1:
        raise DifferentiationError(
            f"{what} must be a scalar to be a loss, its type is {value.type}; take its mean, for example"
        )
    return reshape(value, ())


def _share(right: Value) -> Value:
    result: Value = ReduceMean(axes=None, keepdims=False)(Cast(to=f32)(right))
    return result


def _first(array: Array, wrong: Array) -> tuple[list[int], Any]:
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return list(place), array[place]


def _bound(spec: Spec | TensorType, name: str, model: Graph) -> TensorType:
    if isinstance(spec, TensorType):
        return spec
    try:
        return spec.bind(model.dims)
    except KeyError as error:
        known = ", ".join(model.dims) or "none"
        advice = "declare the input with fixed extents, or load the model with that dimension symbolic"
        raise BindingError(
            f"loss input {name!r}: {model.name} has no dimension {error} (it has: {known}); {advice}"
        ) from None


def __dir__() -> list[str]:
    return __all__
