"""Schedules: a factor on the learning rate, computed inside the step from the number of updates made so far.

    schedule ::= Constant | Step | Exponential | Cosine | Linear | Polynomial | OneCycle | Warmup
               | schedule "*" schedule | schedule ".then" schedule

``Warmup(500) * Cosine(10_000)`` multiplies; ``Warmup(500).then(Cosine(9_500))`` puts one after the other. Every number
in a schedule is a hyperparameter: it can be changed between steps. Lengths count optimizer updates, not epochs.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Value
from glowtrain.ops.elementwise.arithmetic import Floor, Pow
from glowtrain.ops.elementwise.extrema import Min
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.elementwise.transcendental import Cos
from glowtrain.presentation.messages import kind_of

SCHEDULE = "schedule."
"""Prefix of the names of a schedule's hyperparameters."""

Numbers = Mapping[str, Value]
Take = Callable[["Leaf"], Numbers]


class Schedule(ABC):
    """A factor on the learning rate as a function of the number of updates made so far (0 for the first)."""

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]:
        """The schedules without parts, in order."""

    @abstractmethod
    def evaluate(self, t: Value, take: Take) -> Value:
        """The factor, of ``t``'s type, after ``t`` updates; ``take`` gives each leaf's numbers, asked for in order."""

    @abstractmethod
    def then(self, other: Schedule) -> Schedule:
        """This schedule for its length, then ``other``, counting from 0.

        Raises :class:`InputError` for a schedule without a length.
        """

    def __mul__(self, other: Schedule) -> Schedule:
        return Product(self, other)

    def hyper(self) -> dict[str, float]:
        """Every number by its hyperparameter's name: ``schedule.cosine.steps``, or ``cosine2`` for a second one."""
        return {
            f"{name}.{field.name}": float(getattr(leaf, field.name))
            for name, leaf in self._named()
            for field in dataclasses.fields(leaf)
        }

    def value(self, t: Value, hyper: Numbers) -> Value:
        """The factor after ``t`` updates, from the values of all hyperparameters by name."""
        named = self._named()

        def take(leaf: Leaf) -> Numbers:
            name, _ = named.pop(0)
            return {field.name: hyper[f"{name}.{field.name}"] for field in dataclasses.fields(leaf)}

        return self.evaluate(t, take)

    def _named(self) -> list[tuple[str, Leaf]]:
        seen: Counter[str] = Counter()
        result = []
        for leaf in self.leaves():
            name = type(leaf).__name__.lower()
            seen[name] += 1
            result.append((f"{SCHEDULE}{name}" + (str(seen[name]) if seen[name] > 1 else ""), leaf))
        return result


@dataclass(frozen=True)
class Leaf(Schedule):
    """A schedule whose fields are numbers; one that ends has a field ``steps``.

    Raises :class:`InputError` for anything else.
    """

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        for value in (*args, *settings.values()):
            if isinstance(value, Schedule):
                one, other = cls.__name__, type(value).__name__
                raise InputError(f"{one} takes numbers, not a schedule: {one}(...).then({other}(...)), or one * other")
            if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
                raise InputError(f"{cls.__name__} takes numbers, not {kind_of(value)}")
        return super().__new__(cls)

    @abstractmethod
    def factor(self, t: Value, numbers: Numbers) -> Value:
        """The factor, of the type of ``t``, after ``t`` updates; ``numbers`` holds the fields as values."""

    def leaves(self) -> Iterator[Leaf]:
        yield self

    def evaluate(self, t: Value, take: Take) -> Value:
        return self.factor(t, take(self))

    def then(self, other: Schedule) -> Schedule:
        if not hasattr(self, "steps"):
            raise InputError(f"{self} has no length (steps=), so nothing can come after it")
        return Chain(self, other)


@dataclass(frozen=True)
class Product(Schedule):
    """Two schedules at once: the product of their factors."""

    first: Schedule
    second: Schedule

    def leaves(self) -> Iterator[Leaf]:
        yield from self.first.leaves()
        yield from self.second.leaves()

    def evaluate(self, t: Value, take: Take) -> Value:
        first = self.first.evaluate(t, take)
        return first * self.second.evaluate(t, take)

    def then(self, other: Schedule) -> Schedule:
        raise InputError(f"{self} has no one length, so nothing can come after it; multiply chains instead")


@dataclass(frozen=True)
class Chain(Schedule):
    """One schedule for its ``steps``, then another."""

    first: Leaf
    second: Schedule

    def leaves(self) -> Iterator[Leaf]:
        yield self.first
        yield from self.second.leaves()

    def evaluate(self, t: Value, take: Take) -> Value:
        numbers = take(self.first)
        before, after = self.first.factor(t, numbers), self.second.evaluate(t - numbers["steps"], take)
        result: Value = Where()(t < numbers["steps"], before, after)
        return result

    def then(self, other: Schedule) -> Schedule:
        return Chain(self.first, self.second.then(other))


@dataclass(frozen=True)
class Constant(Leaf):
    """The same factor throughout."""

    level: float = 1.0

    def factor(self, t: Value, numbers: Numbers) -> Value:
        return numbers["level"]


@dataclass(frozen=True)
class Step(Leaf):
    """gamma ** floor(t / every): the rate is multiplied by ``gamma`` after each ``every`` updates.

    Source: torch.optim.lr_scheduler.StepLR.
    """

    every: float
    gamma: float = 0.1

    def factor(self, t: Value, numbers: Numbers) -> Value:
        result: Value = Pow()(numbers["gamma"], Floor()(t / numbers["every"]))
        return result


@dataclass(frozen=True)
class Exponential(Leaf):
    """gamma ** t (torch.optim.lr_scheduler.ExponentialLR, by updates)."""

    gamma: float

    def factor(self, t: Value, numbers: Numbers) -> Value:
        result: Value = Pow()(numbers["gamma"], t)
        return result


@dataclass(frozen=True)
class Cosine(Leaf):
    """From 1 to ``floor`` along half a cosine in ``steps`` updates, then ``floor``.

    Source: Loshchilov and Hutter, SGDR (ICLR 2017), eq. 5, without restarts.
    """

    steps: float
    floor: float = 0.0

    def factor(self, t: Value, numbers: Numbers) -> Value:
        done = Min()(t / numbers["steps"], 1.0)
        floor = numbers["floor"]
        result: Value = floor + (1.0 - floor) * (0.5 + 0.5 * Cos()(math.pi * done))
        return result


@dataclass(frozen=True)
class Linear(Leaf):
    """From 1 to ``floor`` along a line in ``steps`` updates, then ``floor`` (torch.optim.lr_scheduler.LinearLR)."""

    steps: float
    floor: float = 0.0

    def factor(self, t: Value, numbers: Numbers) -> Value:
        rest = 1.0 - Min()(t / numbers["steps"], 1.0)
        result: Value = numbers["floor"] + (1.0 - numbers["floor"]) * rest
        return result


@dataclass(frozen=True)
class Polynomial(Leaf):
    """(1 - t / steps) ** power for ``steps`` updates, then 0 (torch.optim.lr_scheduler.PolynomialLR)."""

    steps: float
    power: float = 2.0

    def factor(self, t: Value, numbers: Numbers) -> Value:
        result: Value = Pow()(1.0 - Min()(t / numbers["steps"], 1.0), numbers["power"])
        return result


@dataclass(frozen=True)
class OneCycle(Leaf):
    """From ``start`` up to 1 along half a cosine in the share ``rise`` of ``steps`` updates, down to ``floor`` in the
    rest, then ``floor``: the rate of the optimizer is the largest.

    Source: Smith and Topin, Super-Convergence (2017), as torch.optim.lr_scheduler.OneCycleLR, without the momentum.
    """

    steps: float
    rise: float = 0.3
    start: float = 0.04
    floor: float = 4e-6

    def factor(self, t: Value, numbers: Numbers) -> Value:
        top, last = numbers["rise"] * numbers["steps"] - 1.0, numbers["steps"] - 1.0
        up = 0.5 - 0.5 * Cos()(math.pi * (t / top))
        down = 0.5 + 0.5 * Cos()(math.pi * Min()((t - top) / (last - top), 1.0))
        least, share = Where()(t < top, numbers["start"], numbers["floor"]), Where()(t < top, up, down)
        result: Value = least + (1.0 - least) * share
        return result


@dataclass(frozen=True)
class Warmup(Leaf):
    """(t + 1) / steps for the first ``steps`` updates, then 1: the first update already moves.

    Source: Goyal et al., Accurate, Large Minibatch SGD (2017), section 2.2.
    """

    steps: float

    def factor(self, t: Value, numbers: Numbers) -> Value:
        result: Value = Min()((t + 1.0) / numbers["steps"], 1.0)
        return result
