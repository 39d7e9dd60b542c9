"""What all optimizers share: hyperparameters as inputs, counters and slots as variables, clipping, decay, accumulation.

Per update: average the accumulated gradients, clip by value, clip by global norm, add weight decay, then the
optimizer's own rule. Everything is elementwise graph code apart from the sum in the global norm and Muon's products.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np

from glowtrain.errors import InputError
from glowtrain.grad.training import MICRO, STEP, Updates
from glowtrain.graph import Input, Value, Variable, constant
from glowtrain.names import matches
from glowtrain.ops.elementwise.arithmetic import Sqrt
from glowtrain.ops.elementwise.extrema import Clip, Min
from glowtrain.ops.elementwise.logic import Cast, Equal, Where
from glowtrain.ops.reduce.reduction import ReduceSumSquare, accumulator, as_dtype
from glowtrain.ops.tensor.move import Expand
from glowtrain.optim.schedules import SCHEDULE, Schedule
from glowtrain.presentation.messages import check_keywords
from glowtrain.types import DType, TensorType, f32, f64, i64

HYPER = "hyper."
"""Prefix of the names of the inputs that carry hyperparameters."""
ACCUMULATED = "accumulated"
"""The slot that adds up a parameter's gradients over micro-batches."""

Slots = dict[str, Value]
Overrides = Callable[[Variable], Mapping[str, float]]
"""From a parameter to hyperparameters in place of the optimizer's; ``lr_factor`` multiplies the rate."""


def no_overrides(parameter: Variable) -> Mapping[str, float]:
    """A parameter with the optimizer's hyperparameters."""
    return {}


def vectors(parameter: Variable) -> bool:
    """For ``no_decay``: biases and the scales of normalizations, that is, everything of rank 0 or 1."""
    return parameter.rank <= 1


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base of all optimizers.

    ``lr``: learning rate; ``schedule``: a factor on it over the updates. ``no_decay``: which parameters weight decay
    leaves alone, patterns of names (``"*.bias"``) or a function such as :func:`vectors`. ``clip_value``: gradients are
    clipped to [-c, c]; ``clip_norm``: then scaled down so that the norm of all together is at most c. ``accumulate``:
    gradients of this many steps are averaged for one update. Every number but ``accumulate`` is a hyperparameter that
    can be changed between steps; what is absent (``None``, momentum 0) cannot be turned on later.

    Parameters in f64 are updated in f64, all others in f32: parameters in f16 and bf16 are rounded to their type after
    each update, their slots stay in f32. Hyperparameters are f64 where a parameter is, else f32.
    """

    lr: float = 1e-3
    _: KW_ONLY
    schedule: Schedule | None = None
    weight_decay: float = 0.0
    no_decay: tuple[str, ...] | Callable[[Variable], bool] = ()
    clip_value: float | None = None
    clip_norm: float | None = None
    accumulate: int = field(default=1, metadata={"fixed": True})

    given: ClassVar[frozenset[str]] = frozenset()
    """Which settings were given when the optimizer was made; the others are defaults. (Each optimizer has its own.)"""
    scalars: ClassVar[tuple[str, ...]] = ()
    """Slots that are one number for each parameter; all others have the parameter's shape."""
    decoupled: ClassVar[bool] = False
    """Weight decay acts on the parameter and not through the gradient."""

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        check_keywords(cls.__name__, settings, {item.name for item in fields(cls) if item.init})
        optimizer = super().__new__(cls)
        by_place = [item.name for item in fields(cls) if not item.kw_only]
        object.__setattr__(optimizer, "given", frozenset(by_place[: len(args)]) | settings.keys())
        return optimizer

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type in ("float", float) and not self._is_number(value):
                raise InputError(f"{self.name}: {item.name} must be a number, not {value!r}")
        for name, value in self.hyper().items():
            self.check(name, value)
        if self.accumulate < 1 or self.accumulate != int(self.accumulate):
            raise InputError(f"{self.name}: accumulate must be a positive integer, not {self.accumulate!r}")

    @property
    def name(self) -> str:
        """The class's name in lower case; slots are called ``<parameter>.<name>.<slot>``."""
        return type(self).__name__.lower()

    def hyper(self) -> dict[str, float]:
        """The hyperparameters and their values at the start."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if not item.metadata.get("fixed")}
        numbers = {name: float(value) for name, value in own.items() if self._is_number(value) and self.uses(name)}
        return {**numbers, **(self.schedule.hyper() if self.schedule else {})}

    def chosen(self) -> dict[str, float]:
        """Those hyperparameters that were given, a schedule's among them."""
        return {name: value for name, value in self.hyper().items() if name in self.given or name.startswith(SCHEDULE)}

    def check(self, name: str, value: float) -> None:
        """Raise :class:`InputError` for a value that a hyperparameter cannot have."""
        if not math.isfinite(value) or value < 0:
            raise InputError(f"{self.name}: {name} must be a number that is not negative, not {value}")
        if name.startswith("clip") and value == 0:
            raise InputError(f"{self.name}: {name} must be positive; use None for no clipping")
        if name in ("beta1", "beta2", "alpha", "rho") and value >= 1:
            raise InputError(f"{self.name}: {name} must be below 1, not {value}")

    def uses(self, name: str) -> bool:
        """Whether a number takes part in the step at all."""
        return True

    def slots(self) -> dict[str, float]:
        """The state kept for each parameter, by name, with what it is filled with at the start."""
        return {}

    def slots_of(self, parameter: Variable) -> dict[str, float]:
        """The same for one parameter, where not all have the same."""
        return self.slots()

    def shared(self, hyper: Mapping[str, Value], t: Value) -> dict[str, Value]:
        """Scalars that all parameters' rules need beside the hyperparameters; ``t`` counts updates from 0."""
        return {}

    @abstractmethod
    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        """The new parameter and slots. ``h``: hyperparameters and shared scalars, with ``lr`` scheduled."""

    def __call__(self, gradients: Mapping[Variable, Value]) -> Updates:
        """Updates of the parameters and of the optimizer's variables."""
        return self.updates(gradients)

    def updates(
        self,
        gradients: Mapping[Variable, Value],
        group: str = "",
        counts: Value | None = None,
        overrides: Overrides = no_overrides,
    ) -> Updates:
        """The same for one of several groups of parameters, in whose inputs' and variables' names ``group`` stands, or
        with hyperparameters that are a parameter's own.

        ``counts``, f[parameters], says how often each parameter has been updated so far, in place of a count for all:
        whoever gives it also counts on, and has slots of the parameters' own types, as PyTorch does.
        """
        return _Step(self, widest(gradients), group, counts, overrides).updates(gradients)

    def decays(self, parameter: Variable) -> bool:
        """Whether weight decay acts on a parameter."""
        if callable(self.no_decay):
            return not self.no_decay(parameter)
        return not matches(parameter.name, self.no_decay)

    def _is_number(self, value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)


def widest(gradients: Mapping[Variable, Value]) -> DType:
    """The type of hyperparameters: f64 where a parameter is, else f32."""
    return f64 if any(parameter.dtype == f64 for parameter in gradients) else f32


class _Step:
    """One use of an optimizer in a graph: its inputs and counters."""

    def __init__(
        self, optimizer: Optimizer, dtype: DType, group: str, counts: Value | None, overrides: Overrides
    ) -> None:
        self.optimizer = optimizer
        self.overrides = overrides
        self.dtype = dtype
        self.inputs = {name: Input(dtype[()], HYPER + group + name) for name in optimizer.hyper()}
        self.own_types = counts is not None
        self.count = _counter(group + STEP) if counts is None else None
        self.accumulation = Accumulation(optimizer.accumulate, group) if optimizer.accumulate > 1 else None
        self.t: Value = Cast(to=dtype)(self.count if counts is None else counts)
        self.h = self.numbers({})

    def numbers(self, overrides: Mapping[str, float]) -> dict[str, Value]:
        """Hyperparameters, ``overrides`` in their place, with the schedule applied to ``lr``, and what comes of them:
        all of one type, scalars, or one for each parameter where ``t`` is."""
        constants = {name: constant(value, self.dtype) for name, value in overrides.items()}
        factor = constants.pop("lr_factor", None)
        h: dict[str, Value] = {**self.inputs, **constants}
        h.update(self.optimizer.shared(h, self.t))
        if self.optimizer.schedule is not None:
            h["lr"] = h["lr"] * self.optimizer.schedule.value(self.t, h)
        if factor is not None:
            h["lr"] = h["lr"] * factor
        return h

    def updates(self, gradients: Mapping[Variable, Value]) -> Updates:
        values: dict[Variable, Value] = {}
        present = {p: as_dtype(g, accumulator(p.dtype)) for p, g in gradients.items()}
        averaged = {p: self.averaged(p, g, values) for p, g in present.items()}
        for number, (parameter, gradient) in enumerate(self.clipped(averaged).items()):
            overrides = self.overrides(parameter)
            h = self.numbers(overrides) if overrides else self.h
            numbers = {name: value[number] if value.rank else value for name, value in h.items()}
            self.update(parameter, gradient, numbers, values)
        values.update(self.counters())
        return Updates(tuple(self.inputs.values()), values)

    def averaged(self, parameter: Variable, gradient: Value, values: dict[Variable, Value]) -> Value:
        """The gradient that an update is made of."""
        return gradient if self.accumulation is None else self.accumulation.averaged(parameter, gradient, values)

    def clipped(self, gradients: Mapping[Variable, Value]) -> dict[Variable, Value]:
        """Gradients as ``clip_value`` and ``clip_norm`` ask."""
        return clipped(gradients, self.h.get("clip_value"), self.h.get("clip_norm"), self.dtype)

    def update(
        self, parameter: Variable, gradient: Value, numbers: Mapping[str, Value], values: dict[Variable, Value]
    ) -> None:
        """Apply decay and the rule to one parameter."""
        optimizer, dtype = self.optimizer, gradient.dtype
        h = {name: as_dtype(value, dtype) for name, value in numbers.items()}
        p = as_dtype(parameter, dtype)
        if optimizer.decays(parameter):
            decayed = p * (1.0 - h["lr"] * h["weight_decay"]) if optimizer.decoupled else p
            gradient = gradient if optimizer.decoupled else gradient + h["weight_decay"] * p
        else:
            decayed = p
        kept = parameter.dtype if self.own_types else dtype
        slots = {}
        for name, fill in optimizer.slots_of(parameter).items():
            type_ = TensorType(dtype, ()) if name in optimizer.scalars else parameter.type.with_dtype(kept)
            slots[name] = _slot(parameter, f"{optimizer.name}.{name}", fill, type_)
        wide = {name: as_dtype(variable, dtype) for name, variable in slots.items()}
        new, new_slots = optimizer.rule(decayed, gradient, wide, h)
        self.keep(parameter, as_dtype(new, parameter.dtype), values)
        for name, variable in slots.items():
            self.keep(variable, as_dtype(new_slots[name], variable.dtype), values)

    def keep(self, variable: Variable, value: Value, values: dict[Variable, Value]) -> None:
        """Set an update that happens on the last micro-batch only."""
        values[variable] = value if self.accumulation is None else self.accumulation.at_last(variable, value)

    def counters(self) -> dict[Variable, Value]:
        if self.accumulation is None:
            return {} if self.count is None else {self.count: self.count + 1}
        micro = self.accumulation.counted()
        return micro if self.count is None else {self.count: self.count + Cast(to=i64)(self.accumulation.last), **micro}


class Accumulation:
    """Gradients averaged over ``count`` micro-batches, the last of which alone updates anything.

    ``prefix`` begins the name of the variable that counts micro-batches since the last update.
    """

    def __init__(self, count: int, prefix: str = "") -> None:
        self.count = count
        self.micro = _counter(prefix + MICRO)
        self.last: Value = Equal()(self.micro, count - 1)

    def averaged(self, parameter: Variable, gradient: Value, values: dict[Variable, Value]) -> Value:
        """The sum of the gradients so far, divided by the count of all; the sum goes to the variable
        ``<parameter>.accumulated``."""
        total = _slot(parameter, ACCUMULATED, 0.0, parameter.type.with_dtype(gradient.dtype))
        new = total + gradient
        values[total] = Where()(self.last, 0.0, new)
        return new * (1.0 / self.count)

    def drained(self, parameter: Variable, values: dict[Variable, Value]) -> Value:
        """The mean of the gradients so far, of which none are left: for an update before the last micro-batch."""
        total = _slot(parameter, ACCUMULATED, 0.0, parameter.type.with_dtype(accumulator(parameter.dtype)))
        values[total] = Expand(shape=total.shape)(constant(0.0, total.dtype))
        values[self.micro] = constant(0, i64)
        mean: Value = total / as_dtype(self.micro, total.dtype)
        return mean

    def at_last(self, variable: Variable, value: Value) -> Value:
        """An update that happens on the last micro-batch only."""
        result: Value = Where()(self.last, value, variable)
        return result

    def counted(self) -> dict[Variable, Value]:
        """The update of the count."""
        return {self.micro: Where()(self.last, 0, self.micro + 1)}


def clipped(
    gradients: Mapping[Variable, Value], value: Value | None, norm: Value | None, dtype: DType
) -> dict[Variable, Value]:
    """Gradients clipped by value, then by global norm, as PyTorch's clip_grad_value_ and clip_grad_norm_ do."""
    result = dict(gradients)
    if value is not None:
        for p, g in result.items():
            bound = as_dtype(value, g.dtype)
            result[p] = Clip()(g, -bound, bound)
    if norm is not None:
        scale = Min()(norm / (global_norm(list(result.values()), dtype) + 1e-6), 1.0)
        result = {p: g * as_dtype(scale, g.dtype) for p, g in result.items()}
    return result


def global_norm(gradients: list[Value], dtype: DType) -> Value:
    """dtype[]: the Euclidean norm of all gradients together."""
    total: Value | None = None
    for gradient in gradients:
        part = as_dtype(ReduceSumSquare(axes=None, keepdims=False)(gradient), dtype)
        total = part if total is None else total + part
    result: Value = Sqrt()(total)
    return result


def _slot(parameter: Variable, name: str, fill: float, type_: TensorType) -> Variable:
    """A variable of one number everywhere, which is in memory once."""
    array = np.broadcast_to(np.asarray(fill, type_.dtype.numpy), type_.shape)
    return Variable(f"{parameter.name}.{name}", array, trainable=False)


def _counter(name: str) -> Variable:
    return Variable(name, np.zeros((), np.int64), trainable=False)
