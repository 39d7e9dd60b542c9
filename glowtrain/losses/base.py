"""What a loss is: the inputs that hold its targets, a scalar value, and metrics beside it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from glowtrain.errors import DifferentiationError, InputError
from glowtrain.graph import Graph, Input, Value
from glowtrain.graph.rewriting import rebuild
from glowtrain.ops.elementwise.logic import Cast, Where
from glowtrain.ops.reduce.reduction import ReduceMean, ReduceSum, accumulator, as_dtype
from glowtrain.ops.tensor.move import Expand, reshape
from glowtrain.presentation.messages import kind_of
from glowtrain.types import Array, TensorType, f32

LossFunction = Callable[[Mapping[str, Value], Mapping[str, Value]], Value]
Task = Literal["regression", "classification", "binary"]
"""What outputs and targets are: numbers; scores of classes and a label; logits, and yes or no for each."""


@dataclass(frozen=True)
class Attached:
    """A loss on one graph: the inputs it adds, its value, and metrics (scalars) by name."""

    targets: tuple[Input, ...]
    value: Value
    metrics: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Elements:
    """A loss on one graph before it is reduced: the inputs it adds, the loss of each element, metrics by name.

    ``counts``, of the shape of ``each``, says what each element counts in a mean, by which ``each`` is multiplied
    already; None where all count 1. ``answers``: what accuracy is the share of, where there is one.
    """

    targets: tuple[Input, ...]
    each: Value
    counts: Value | None = None
    metrics: dict[str, Value] = field(default_factory=dict)
    answers: Answers | None = None


@dataclass(frozen=True)
class Answers:
    """Whether each answer of a model is ``right``, and which of them count, as f32; None where all do."""

    right: Value
    counted: Value | None = None

    def accuracy(self, weight: Value | None = None) -> Value:
        """The share of answers that are right, in f32, by a ``weight`` for each example: 0 where all weights are."""
        if weight is None and self.counted is None:
            return share(self.right)
        right, counts = Cast(to=f32)(self.right), self.counted
        if weight is not None:
            beside = beside_examples(Cast(to=f32)(weight), right)
            counts = Expand(shape=right.shape)(beside) if counts is None else counts * beside
        assert counts is not None
        together = total(counts)
        return total(right * counts) / (together if weight is None else Where()(together > 0.0, together, 1.0))


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

    def weighted(self, weight: str) -> Loss:
        """The loss with a weight for each example, from an input of that name. Raises :class:`InputError`."""
        raise InputError(f"{self.describe()} cannot be weighted: nothing says what the losses of its examples are")

    def by_classes(self, weights: Any) -> Loss:
        """The loss with weights of classes. Raises :class:`InputError` for a loss of something else."""
        raise InputError(f"class_weight is of labels of classes, and {self.describe()} has none")

    @property
    def balanced(self) -> Mapping[str, Callable[[Graph, Mapping[str, Array]], Array]]:
        """Functions of a model and of data that count what variables of the loss hold, by the names of these."""
        return {}

    @property
    def mass_target(self) -> str | None:
        """The target whose sum a batch counts in means over several: weights of examples. None where it counts as many
        as there are."""
        return None

    def mass(self, arrays: Mapping[str, Array], batches: int) -> list[float] | None:
        """What each of so many batches, one behind the other in arrays, counts in means over several, where that is not
        the number of its examples."""
        if self.mass_target is None:
            return None
        weights = np.asarray(arrays[self.mass_target], np.float64)
        sums: list[float] = weights.reshape(batches, -1).sum(1).tolist()
        return sums

    def __add__(self, other: Loss) -> Loss:
        if not isinstance(other, Loss):
            return NotImplemented
        return LossSum((*self.terms, *other.terms))

    def __radd__(self, other: int) -> Loss:
        return self if other == 0 else NotImplemented  # sum() begins with 0

    def __mul__(self, factor: float) -> Loss:
        if isinstance(factor, bool) or not isinstance(factor, (int, float, np.integer, np.floating)):
            return NotImplemented
        if not np.isfinite(factor):
            raise InputError(f"a loss can be multiplied by a finite number, not by {factor}")
        return LossSum(tuple((float(factor) * own, loss) for own, loss in self.terms))

    __rmul__ = __mul__

    @property
    def terms(self) -> tuple[tuple[float, Loss], ...]:
        """The losses whose sum it is, each with its factor."""
        return ((1.0, self),)


@dataclass(frozen=True)
class LossSum(Loss):
    """A sum of losses with factors: ``first + 0.5 * second``. Losses whose targets have one name share that input.

    A metric of several targets is called ``<target>_<metric>``.
    """

    parts: tuple[tuple[float, Loss], ...]

    @property
    def terms(self) -> tuple[tuple[float, Loss], ...]:
        return self.parts

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, loss in self.parts for name in loss.targets))

    @property
    def over_examples(self) -> str | None:
        (first, *others) = {loss.over_examples for _, loss in self.parts}
        return None if others else first

    def attach(self, model: Graph) -> Attached:
        inputs: dict[str, Input] = {}
        parts = [_over(inputs, loss.attach(model)) for _, loss in self.parts]
        terms = [part.value * factor for part, (factor, _) in zip(parts, self.parts, strict=True)]
        return Attached(tuple(inputs.values()), sum(terms[1:], terms[0]), _metrics_of(parts))

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        for _, loss in self.parts:
            loss.check(model, arrays)

    def describe(self) -> str:
        return " + ".join(f"{factor} * {loss.describe()}" for factor, loss in self.parts)

    def weighted(self, weight: str) -> Loss:
        return LossSum(tuple((factor, loss.weighted(weight)) for factor, loss in self.parts))

    def by_classes(self, weights: Any) -> Loss:
        of_classes = [loss for _, loss in self.parts if getattr(loss, "task", None) == "classification"]
        if len(of_classes) != 1:
            raise InputError(f"class_weight: {len(of_classes)} losses of the sum have classes: give it to one of them")
        return LossSum(
            tuple((factor, loss.by_classes(weights) if loss is of_classes[0] else loss) for factor, loss in self.parts)
        )

    @property
    def balanced(self) -> Mapping[str, Callable[[Graph, Mapping[str, Array]], Array]]:
        return {name: count for _, loss in self.parts for name, count in loss.balanced.items()}

    @property
    def mass_target(self) -> str | None:
        (first, *others) = {loss.mass_target for _, loss in self.parts}
        return None if others else first


def _over(inputs: dict[str, Input], part: Attached) -> Attached:
    """A loss over ``inputs`` of the same names, to which its others are added. Raises :class:`InputError`."""
    for target in part.targets:
        first = inputs.setdefault(target.name, target)
        if first.type != target.type:
            raise InputError(
                f"one loss takes the target {target.name!r} as {first.type}, another as {target.type}: "
                "give them different names"
            )
    shared: dict[Value, Value] = {each: inputs[each.name] for each in part.targets if inputs[each.name] is not each}
    value, *metrics = rebuild([part.value, *part.metrics.values()], shared)
    return Attached(part.targets, value, dict(zip(part.metrics, metrics, strict=True)))


def _metrics_of(parts: list[Attached]) -> dict[str, Value]:
    """The metrics of losses by name, before which the target stands where several have one; of a target the first."""
    measured = [(name, part.targets[0].name, value) for part in parts for name, value in part.metrics.items()]
    distinct = Counter(name for name, _ in {(name, target) for name, target, _ in measured})
    metrics: dict[str, Value] = {}
    for name, target, value in measured:
        metrics.setdefault(name if distinct[name] == 1 else f"{target}_{name}", value)
    return metrics


class ElementLoss(Loss):
    """A loss that is the mean or the sum of the losses of elements. Subclasses are dataclasses with these fields."""

    reduction: str

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise InputError(f'{type(self).__name__}: reduction must be "mean" or "sum", not {self.reduction!r}')

    @property
    def over_examples(self) -> str | None:
        return self.reduction

    @abstractmethod
    def elements(self, model: Graph) -> Elements:
        """The losses of the elements of a model's outputs. Raises :class:`InputError`."""

    def attach(self, model: Graph) -> Attached:
        elements = self.elements(model)
        return Attached(elements.targets, self.reduced(elements.each, elements.counts), elements.metrics)

    def reduced(self, each: Value, counts: Value | None = None) -> Value:
        """Sum of the elements, or their mean, which is that over what they count."""
        if self.reduction == "mean" and counts is None:
            mean: Value = ReduceMean(axes=None, keepdims=False)(each)
            return mean
        return total(each) if counts is None or self.reduction == "sum" else total(each) / total(counts)

    def float_output(self, model: Graph, name: str | None) -> Value:
        """A model's output as losses take it, 16-bit floats widened. Raises :class:`InputError` for other types."""
        prediction = output_of(model, name)
        if not prediction.dtype.is_float:
            raise InputError(
                f"{type(self).__name__}: output {prediction.name!r} is {prediction.type}, which is not a float type"
            )
        return as_dtype(prediction, accumulator(prediction.dtype))

    def new_input(self, model: Graph, name: str, type_: TensorType) -> Input:
        """An input of the loss. Raises :class:`InputError` for a name that the model has."""
        if name in {value.name for value in model.inputs}:
            raise InputError(
                f"{type(self).__name__}: {model.name} has an input {name!r} already; name the target otherwise"
            )
        return Input(type_, name)

    def weighted(self, weight: str) -> Loss:
        return Weighted(self, weight)

    def describe(self) -> str:
        """Fields that are not part of ``repr`` are told where they are not at their defaults, so that checkpoints from
        before there were such fields stay valid."""
        later = [item for item in dataclasses.fields(self) if not item.repr]  # type: ignore[arg-type]
        values = {item.name: getattr(self, item.name) for item in later if getattr(self, item.name) != item.default}
        return f"{self}, {values}" if values else str(self)


@dataclass(frozen=True)
class Weighted(Loss):
    """A loss with a weight for each example: the sum of weights times losses, for a mean divided by that of weights.

    Elements that count more than others in the loss itself, or nothing, as ignored labels do, multiply their weights.
    The loss is 0 where all weights are.
    """

    loss: ElementLoss
    weight: str = "weight"

    @property
    def targets(self) -> tuple[str, ...]:
        return (*self.loss.targets, self.weight)

    @property
    def over_examples(self) -> str | None:
        return "sum" if self.loss.reduction == "sum" else None

    def attach(self, model: Graph) -> Attached:
        elements = self.loss.elements(model)
        each = elements.each
        if self.weight in self.loss.targets or not each.rank:
            raise InputError(f"{self.loss.describe()} cannot have the weight of each example in {self.weight!r}")
        weight = self.loss.new_input(model, self.weight, each.type.with_shape(each.shape[:1]))
        beside = beside_examples(weight, each)
        value = total(each * beside)
        if self.loss.reduction == "mean":
            counts = total(Expand(shape=each.shape)(beside) if elements.counts is None else beside * elements.counts)
            value = value / Where()(counts > 0.0, counts, 1.0)
        answers = elements.answers
        metrics = elements.metrics if answers is None else {"accuracy": answers.accuracy(weight)}
        return Attached((*elements.targets, weight), value, metrics)

    def by_classes(self, weights: Any) -> Loss:
        loss = self.loss.by_classes(weights)
        assert isinstance(loss, ElementLoss), loss
        return dataclasses.replace(self, loss=loss)

    @property
    def balanced(self) -> Mapping[str, Callable[[Graph, Mapping[str, Array]], Array]]:
        return self.loss.balanced

    @property
    def mass_target(self) -> str | None:
        return None if self.loss.reduction == "sum" else self.weight

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        self.loss.check(model, arrays)
        weights = np.asarray(arrays[self.weight])
        wrong = ~((weights >= 0) & (weights < np.inf))
        if wrong.any():
            place, value = first_wrong(weights, wrong)
            raise InputError(f"weights must be finite and not negative, but {self.weight!r} is {value} at {place}")

    def describe(self) -> str:
        return f"Weighted({self.loss.describe()}, {self.weight!r})"


@dataclass(frozen=True)
class OutputLoss(ElementLoss):
    """A loss that compares one output of the model with one target input."""

    target: str = "target"
    output: str | None = None
    reduction: str = "mean"

    takes_labels: ClassVar[bool] = False
    """Whether a label in place of a target [batch, classes] stands for the vector that is 1 at it, and else 0."""

    task: ClassVar[Task | None] = "regression"
    """What metrics take its output and target for; None where they are of different kinds."""

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    def compared(self, model: Graph) -> tuple[Value, Input]:
        """The output, and the target that it is compared with."""
        prediction = self.float_output(model, self.output)
        return prediction, self.new_input(model, self.target, self.target_type(prediction.type))

    def elements(self, model: Graph) -> Elements:
        both = self.compared(model)
        return Elements((both[1],), self.each(*both), self.counts(*both), self.metrics(*both), self.answers(*both))

    def attach(self, model: Graph) -> Attached:
        both = self.compared(model)
        return Attached((both[1],), self.value(*both), self.metrics(*both))

    def target_type(self, prediction: TensorType) -> TensorType:
        """The target's type: that of the prediction (16-bit floats were widened)."""
        return prediction

    def each(self, prediction: Value, target: Value) -> Value:
        """The loss of each element, or of each example. Raises :class:`InputError` where only :meth:`value` is
        defined."""
        raise InputError(f"{type(self).__name__} does not say what the loss of each element is: define each()")

    def counts(self, prediction: Value, target: Value) -> Value | None:
        """What each of them counts in a mean, by which :meth:`each` has multiplied it; None where all count 1."""
        return None

    def value(self, prediction: Value, target: Value) -> Value:
        """The loss, a scalar."""
        return self.reduced(self.each(prediction, target), self.counts(prediction, target))

    def answers(self, prediction: Value, target: Value) -> Answers | None:
        """What is right of the outputs, where that can be said."""
        return None

    def metrics(self, prediction: Value, target: Value) -> dict[str, Value]:
        """Scalars to report beside the loss."""
        answers = self.answers(prediction, target)
        return {} if answers is None else {"accuracy": answers.accuracy()}


def beside_examples(weight: Value, each: Value) -> Value:
    """A number for each example, [n], with as many axes as ``each`` [n, ...]."""
    return reshape(weight, (each.shape[0], *[1] * (each.rank - 1)))


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


def total(value: Value) -> Value:
    """The sum of all elements."""
    result: Value = ReduceSum(axes=None, keepdims=False)(value)
    return result


def share(right: Value) -> Value:
    """The part of elements that are true, in f32."""
    result: Value = ReduceMean(axes=None, keepdims=False)(Cast(to=f32)(right))
    return result


def checked_weights(what: str, weights: Any) -> tuple[float, ...]:
    """Weights as numbers. Raises :class:`InputError` for what are none, and for those that no weight can be."""
    try:
        numbers = tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be a sequence of numbers, not {kind_of(weights)}") from None
    wrong = [number for number in numbers if not 0 <= number < float("inf")]
    if wrong:
        raise InputError(f"{what} must be finite numbers that are not negative, not {wrong[0]}")
    return numbers


def first_wrong(array: Array, wrong: Array) -> tuple[list[int], Any]:
    """The first index at which ``wrong`` is true, and the element there."""
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return list(place), array[place]
