"""What a loss is: the inputs that hold its targets, a scalar value, and metrics beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glowtrain.errors import DifferentiationError, InputError
from glowtrain.graph import Graph, Input, Value
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.reduce.reduction import ReduceMean, ReduceSum, accumulator, as_dtype
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, TensorType, f32

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

    @property
    def over_examples(self) -> str | None:
        """``"mean"`` or ``"sum"`` where the loss of a batch is certainly that of the losses of its examples; ``None``
        where it may be anything."""
        return None

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

    @property
    def over_examples(self) -> str | None:
        return self.reduction

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


def output_of(model: Graph, name: str | None) -> Value:
    """A model's output by name; without one, its only or first. Raises :class:`InputError`."""
    return model.outputs[output_name(model, name)]


def output_name(model: Graph, name: str | None) -> str:
    """The name of a model's output, which is its only or first where no other is given. Raises :class:`InputError`."""
    names = model.output_types
    name = next(iter(names), None) if name is None else name
    if name is None or name not in names:
        raise InputError(f"{model.name} has no output {name!r}; it has {', '.join(map(repr, names)) or 'none'}")
    if name in model.trimmed:
        raise InputError(
            f"{model.name}: the size of output {name!r} is found at run time, so a loss cannot compare it with "
            "targets; reduce it inside of the model"
        )
    return name


def scalar(value: Value, what: str) -> Value:
    """The value, as a scalar where it has one element. Raises :class:`DifferentiationError` where it has more."""
    if value.type.size != 1:
        raise DifferentiationError(
            f"{what} must be a scalar to be a loss, its type is {value.type}; take its mean, for example"
        )
    return reshape(value, ())


def share(right: Value) -> Value:
    """The part of elements that are true, in f32."""
    result: Value = ReduceMean(axes=None, keepdims=False)(Cast(to=f32)(right))
    return result


def first_wrong(array: Array, wrong: Array) -> tuple[list[int], Any]:
    """The first index at which ``wrong`` is true, and the element there."""
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return list(place), array[place]
