"""What an optimizer does differently to parameters whose names match a pattern: numbers of their own, penalties on
their values, sets that they stay in; and exponential means of all of them.

    step ::= gradients + those of penalties -> the optimizer, with each group's numbers -> projections -> means
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from glowtrain.errors import InputError
from glowtrain.grad.training import STEP, Updates
from glowtrain.graph import Value, Variable
from glowtrain.names import matches
from glowtrain.ops.elementwise.arithmetic import Abs, Sign, Sqrt
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.ops.elementwise.logic import Cast, Greater, Where
from glowtrain.ops.reduce.reduction import ReduceSum, ReduceSumSquare, accumulator, as_dtype
from glowtrain.optim.optimizer import Optimizer
from glowtrain.presentation.messages import kind_of, listed, unknown

FACTOR = "lr_factor"
"""The entry of a group that multiplies the learning rate."""
AVERAGE = "ema"
"""What the mean of a parameter is called behind its name."""
LEAST_NORM = 1e-12
"""Added to norms that are divided by."""


class Rule:
    """What is done to parameters of some names."""


@dataclass(frozen=True)
class Penalty(Rule, ABC):
    """A term of the loss for each parameter. Raises :class:`InputError` for a strength that is none."""

    strength: float

    def __post_init__(self) -> None:
        _check_number(self, "strength", self.strength)

    @abstractmethod
    def value(self, parameter: Value) -> Value:
        """The term, a scalar."""

    @abstractmethod
    def gradient(self, parameter: Value) -> Value:
        """Its gradient."""


@dataclass(frozen=True)
class L1(Penalty):
    """strength * sum(|p|), whose gradient is 0 at 0."""

    def value(self, parameter: Value) -> Value:
        total: Value = ReduceSum(axes=None, keepdims=False)(Abs()(parameter))
        return self.strength * total

    def gradient(self, parameter: Value) -> Value:
        sign: Value = Sign()(parameter)
        return self.strength * sign


@dataclass(frozen=True)
class L2(Penalty):
    """strength * sum(p²), as in Keras; its gradient, 2 strength p, is that of a ``weight_decay`` of 2 strength."""

    def value(self, parameter: Value) -> Value:
        total: Value = ReduceSumSquare(axes=None, keepdims=False)(parameter)
        return self.strength * total

    def gradient(self, parameter: Value) -> Value:
        return (2.0 * self.strength) * parameter


class Constraint(Rule, ABC):
    """A set of values that parameters are projected to after each update."""

    @abstractmethod
    def project(self, parameter: Value) -> Value:
        """The nearest value of the set."""


@dataclass(frozen=True)
class NonNegative(Constraint):
    """max(p, 0)"""

    def project(self, parameter: Value) -> Value:
        result: Value = Max()(parameter, 0.0)
        return result


@dataclass(frozen=True)
class MaxNorm(Constraint):
    """A Euclidean norm of at most ``limit``: of the whole parameter, or along the axes ``over``.

    The weights of one unit of ``gt.nn.linear``, [inputs, outputs], are ``over=0``; those of PyTorch's layers and of
    convolutions, [outputs, ...], are ``over=(1, ...)``. Source: Srivastava et al., Dropout (JMLR 2014), section 5.1.
    """

    limit: float
    over: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_number(self, "limit", self.limit)
        if self.limit == 0:
            raise InputError("MaxNorm: limit must be positive")

    def project(self, parameter: Value) -> Value:
        axes = self.over if self.over is None or isinstance(self.over, tuple) else (self.over,)
        if axes is not None and not all(-parameter.rank <= axis < parameter.rank for axis in axes):
            raise InputError(f"MaxNorm: a parameter of type {parameter.type} has no axes {self.over}")
        norm = Sqrt()(ReduceSumSquare(axes=axes, keepdims=True)(parameter))
        result: Value = parameter * Min()(self.limit / (norm + LEAST_NORM), 1.0)
        return result


RULES: Mapping[str, type[Rule]] = {"l1": L1, "l2": L2, "max_norm": MaxNorm, "non_negative": NonNegative}
"""Penalties and constraints by the names that the command line has for them."""

Numbers = Mapping[str, float]
Groups = Mapping[str, Numbers]
Penalties = Mapping[str, Penalty | Sequence[Penalty]]
Constraints = Mapping[str, Constraint | Sequence[Constraint]]
Kind = TypeVar("Kind", Penalty, Constraint)


@dataclass(frozen=True)
class PerParameter:
    """An optimizer with what is special of some parameters. Raises :class:`InputError` for what cannot be.

    ``groups``: hyperparameters by patterns of names, in place of the optimizer's, which later steps cannot change;
    ``lr_factor`` multiplies the rate. Of several patterns that match, the last one that has a number counts.
    ``penalties`` add to gradients before these are clipped, ``constraints`` hold after the update, in their order.
    ``ema``: the decay of means of the parameters, by which these move after each update; the first ones move faster,
    by min(ema, (1 + t) / (10 + t)) after t updates, as TensorFlow's ExponentialMovingAverage.
    """

    optimizer: Optimizer
    groups: Groups
    penalties: Penalties
    constraints: Constraints
    ema: float | None = None

    def __post_init__(self) -> None:
        for what, patterns in (
            ("groups", self.groups), ("regularize", self.penalties), ("constraints", self.constraints)
        ):  # fmt: skip
            if not _is_by_patterns(patterns):
                raise InputError(f"{what} must be a dict by patterns of names, not {kind_of(patterns)}")
        for pattern, numbers in self.groups.items():
            self._check_group(pattern, numbers)
        for pattern in self.penalties:
            _check_rules("regularize", self.penalties[pattern], Penalty)
        for pattern in self.constraints:
            _check_rules("constraints", self.constraints[pattern], Constraint)
        if self.ema is not None and (not _is_number(self.ema) or not 0 <= self.ema < 1):
            raise InputError(f"ema must be a number from 0 to below 1, such as 0.999, not {self.ema!r}")

    @property
    def is_rough(self) -> bool:
        """Whether what is minimised has corners, or is minimised within bounds."""
        rules = [rule for each in self.penalties.values() for rule in ([each] if isinstance(each, Rule) else each)]
        return bool(self.constraints) or any(isinstance(rule, L1) for rule in rules)

    def check_names(self, names: Collection[str]) -> None:
        """Raise :class:`InputError` for a pattern that matches none of the parameters that are trained."""
        patterns = {"groups": self.groups, "regularize": self.penalties, "constraints": self.constraints}
        for what, pattern in ((what, each) for what, given in patterns.items() for each in given):
            if not any(matches(name, [pattern]) for name in names):
                raise InputError(f"{what}: nothing that is trained matches {pattern!r}; there are {listed(names)}")

    def __call__(self, gradients: Mapping[Variable, Value]) -> Updates:
        """Updates of the parameters, of the optimizer's variables and of the means."""
        penalized = {parameter: self._penalized(parameter, gradient) for parameter, gradient in gradients.items()}
        updates = self.optimizer.updates(penalized, overrides=self.numbers_of)
        values, count = dict(updates.values), next(each for each in updates.values if each.name == STEP)
        for parameter in gradients:
            values[parameter] = self._projected(parameter, values[parameter])
        if self.ema is not None:
            for parameter in gradients:
                mean = _mean_of(parameter)
                values[mean] = self._moved(mean, values[parameter], count, values[count])
        return Updates(updates.inputs, values)

    def numbers_of(self, parameter: Variable) -> Numbers:
        """The hyperparameters that are a parameter's own."""
        groups = (numbers for pattern, numbers in self.groups.items() if matches(parameter.name, [pattern]))
        return {name: value for numbers in groups for name, value in numbers.items()}

    def penalties_of(self, parameters: Collection[Variable]) -> Iterator[Value]:
        """The terms that penalties add to the loss."""
        for parameter in parameters:
            wide = as_dtype(parameter, accumulator(parameter.dtype))
            for penalty in _rules_of(self.penalties, parameter):
                yield penalty.value(wide)

    def _check_group(self, pattern: str, numbers: Numbers) -> None:
        if not isinstance(numbers, Mapping):
            raise InputError(f"groups: {pattern!r} must have a dict of numbers, not {kind_of(numbers)}")
        choices = [FACTOR, *(name for name in self.optimizer.hyper() if _of_one(name))]
        if "lr" in numbers:
            raise InputError(f"groups: {pattern!r}: {FACTOR} multiplies the learning rate of a group, which has no lr")
        if problem := unknown(numbers, choices, f"hyperparameter of {self.optimizer.name} for a group", "there are"):
            raise InputError(f"groups: {pattern!r}: there is {problem}")
        for name, value in numbers.items():
            if not _is_number(value):
                raise InputError(f"groups: {pattern!r}: {name} must be a number, not {kind_of(value)}")
            self.optimizer.check(name, float(value))

    def _penalized(self, parameter: Variable, gradient: Value) -> Value:
        wide = as_dtype(parameter, gradient.dtype)
        for penalty in _rules_of(self.penalties, parameter):
            gradient = gradient + penalty.gradient(wide)
        return gradient

    def _projected(self, parameter: Variable, value: Value) -> Value:
        rules = _rules_of(self.constraints, parameter)
        projected = as_dtype(value, accumulator(parameter.dtype))
        for rule in rules:
            projected = rule.project(projected)
        return as_dtype(projected, parameter.dtype) if rules else value

    def _moved(self, mean: Variable, value: Value, count: Variable, counted: Value) -> Value:
        """The mean after an update; as it is after a batch whose gradients are accumulated."""
        t = Cast(to=mean.dtype)(counted)
        decay = Min()((1.0 + t) / (10.0 + t), np.asarray(self.ema, mean.dtype.numpy))
        moved: Value = mean + (1.0 - decay) * (as_dtype(value, mean.dtype) - mean)
        return moved if self.optimizer.accumulate == 1 else Where()(Greater()(counted, count), moved, mean)


def average_name(parameter: str) -> str:
    """The name of the variable that is the mean of a parameter."""
    return f"{parameter}.{AVERAGE}"


def _mean_of(parameter: Variable) -> Variable:
    dtype = accumulator(parameter.dtype)
    return Variable(average_name(parameter.name), parameter.initial.astype(dtype.numpy), trainable=False)


def _of_one(name: str) -> bool:
    """Whether a hyperparameter is of one parameter, and not of all together."""
    return name != "lr" and not name.startswith(("clip", "schedule."))


def _rules_of(rules: Mapping[str, Kind | Sequence[Kind]], parameter: Variable) -> list[Kind]:
    """Those whose patterns match a parameter, in their order."""
    matching = (each for pattern, each in rules.items() if matches(parameter.name, [pattern]))
    return [rule for each in matching for rule in ([each] if isinstance(each, Rule) else each)]


def _check_rules(what: str, rules: object, kind: type[Rule]) -> None:
    several = [rules] if isinstance(rules, Rule) or not isinstance(rules, (list, tuple)) else rules
    if wrong := [each for each in several if not isinstance(each, kind)]:
        names = " or ".join(f"gt.optim.{each.__name__}(...)" for each in RULES.values() if issubclass(each, kind))
        raise InputError(f"{what} takes {names}, or a list of such, not {kind_of(wrong[0])}")


def _is_by_patterns(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(pattern, str) for pattern in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _check_number(rule: Rule, name: str, value: object) -> None:
    if not _is_number(value) or not 0 <= float(value) < float("inf"):  # type: ignore[arg-type]
        raise InputError(f"{type(rule).__name__}: {name} must be a number that is not negative, not {value!r}")
