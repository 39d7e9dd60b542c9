"""Attributes of operators are tested at other values than their defaults, and a report says which were not."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from glowtrain.errors import PluginError
from glowtrain.gradcheck import ChoiceDraw, check_registry
from glowtrain.graph import OPERATORS, Operator, Sample, Value, attribute, operator
from glowtrain.loops import Expr, call
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.transcendental import Cos, Sin
from glowtrain.types import Array, TensorType


class Mode(enum.Enum):
    SOFT = 1
    HARD = 2


@dataclass(frozen=True)
class Snake(Elementwise):
    """x + sin²(a x) / a"""

    domain = "domains"
    a: float = 1.0

    def reference(self, x: Array) -> Array:
        return (x + np.sin(self.a * x) ** 2 / self.a).astype(x.dtype)

    def vjp(self, g: Value, y: Value, x: Value) -> tuple[Any, ...]:
        return (g * (Sin()(x * self.a) * Cos()(x * self.a) * 2.0 + 1.0),)

    def scalar(self, x: Expr) -> Expr:
        wave = call("sin", x * self.a)
        return x + wave * wave / self.a


@dataclass(frozen=True)
class SnakeAtOne(Snake):
    """Native code that ignores the attribute, and is right for the default."""

    def scalar(self, x: Expr) -> Expr:
        wave = call("sin", x)
        return x + wave * wave


@dataclass(frozen=True)
class RuleAtOne(Snake):
    """A gradient rule that ignores the attribute, and is right for the default."""

    def vjp(self, g: Value, y: Value, x: Value) -> tuple[Any, ...]:
        return (g * (Sin()(x) * Cos()(x) * 2.0 + 1.0),)


@dataclass(frozen=True)
class Softcap(Elementwise):
    """cap · tanh(x / cap), in native code for the default cap only."""

    domain = "domains"
    cap: float = 30.0

    def reference(self, x: Array) -> Array:
        return (self.cap * np.tanh(x / self.cap)).astype(x.dtype)

    def vjp(self, g: Value, y: Value, x: Value) -> tuple[Any, ...]:
        z = y / self.cap
        return (g * (1.0 - z * z),)

    def scalar(self, x: Expr) -> Expr:
        return call("tanh", x / 30.0) * 30.0


@dataclass(frozen=True)
class SymmetricLog(Elementwise):
    """scale · sign(x) · log(1 + |x|), without its scale in native code."""

    domain = "domains"
    kinks = (0.0,)
    scale: float = 1.0

    def reference(self, x: Array) -> Array:
        return (self.scale * np.sign(x) * np.log1p(np.abs(x))).astype(x.dtype)

    def vjp(self, g: Value, y: Value, x: Value) -> tuple[Any, ...]:
        return (g * self.scale / (Abs()(x) + 1.0),)

    def scalar(self, x: Expr) -> Expr:
        return call("sign", x) * call("log1p", call("abs", x))


@dataclass(frozen=True)
class Everything(Elementwise):
    """A field of every kind; the function is the identity."""

    domain = "domains"
    required: float
    number: float = -2.0
    zero: float = 0.0
    count: int = 3
    flag: bool = True
    mode: Mode = Mode.SOFT
    way: Literal["up", "down"] = "down"
    word: str = "as it is"
    optional: float | None = None
    stated: float = attribute(0.5, low=0.0, high=1.0)
    whole: int = attribute(2, low=1, high=3)
    chosen: str = attribute("a", choices=("a", "b"))

    def reference(self, x: Array) -> Array:
        return x


@dataclass(frozen=True)
class Unknown(Elementwise):
    """A field of which nothing says what it may be."""

    domain = "domains"
    word: str

    def reference(self, x: Array) -> Array:
        return x


@dataclass(frozen=True)
class Threshold(Elementwise):
    """max(x, level): where the kink is depends on an attribute."""

    domain = "domains"
    level: float = attribute(0.5, low=-1.0, high=1.0)

    def nonsmooth(self) -> tuple[float, ...]:
        return (self.level,)

    def reference(self, x: Array) -> Array:
        return np.maximum(x, self.level)


@dataclass(frozen=True)
class Bare(Operator):
    """No family gives it a sample."""

    domain = "domains"

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0]

    def reference(self, x: Array) -> Array:
        return x


@dataclass(frozen=True)
class Switch(Elementwise):
    """An attribute with two values that only ``infer`` knows."""

    domain = "domains"
    mode: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        if self.mode not in (0, 1):
            raise self.fail("mode must be 0 or 1", *inputs)
        return super().infer(*inputs)

    def reference(self, x: Array) -> Array:
        return x


@pytest.fixture
def register() -> Iterator[Any]:
    """Registers operators for one test."""
    yield operator
    for key in [key for key in OPERATORS if key.startswith("domains.")]:
        del OPERATORS[key]


def failing(cls: type[Operator], examples: int = 5) -> set[str]:
    report = check_registry([cls.key()], examples, shrink=False)
    return {check.oracle for check in report.failures}


@pytest.mark.spread(1)
@pytest.mark.parametrize("wrong", [SnakeAtOne, Softcap, SymmetricLog])
def test_native_code_that_ignores_an_attribute_is_caught(wrong: type[Operator], register: Any) -> None:
    assert {"evaluator", "compiled"} <= failing(register(wrong))


@pytest.mark.exhaustive
def test_a_rule_that_ignores_an_attribute_is_caught(register: Any) -> None:
    assert {"jacobian", "complex step"} <= failing(register(RuleAtOne))


@pytest.mark.exhaustive
def test_a_right_operator_passes_at_all_values(register: Any) -> None:
    register(Snake)
    report = check_registry(["domains.Snake"], 20)
    assert report.passed
    (covered,) = report.covered
    assert len(covered.uses) == 5
    assert "default" not in report.summary()


def test_a_refused_attribute_comes_with_what_to_do(register: Any) -> None:
    register(Switch)
    report = check_registry(["domains.Switch"], 10, oracles=["types"], shrink=False)
    (failed,) = report.failures
    assert "mode must be 0 or 1; unless that is wrong, give mode a domain by glowtrain.attribute" in failed.detail


def drawn(cls: type[Operator], name: str) -> set[Any]:
    return {getattr(cls.draw_operator(ChoiceDraw(seed)), name) for seed in range(60)}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("required", {0.5, 0.75, 1.5, 2.0}),
        ("number", {-2.0, -1.0, -1.5, -3.0, -4.0}),
        ("zero", {0.0, 0.25, 0.5, 1.0}),
        ("count", {3, 2, 4, 6}),
        ("flag", {True, False}),
        ("mode", {Mode.SOFT, Mode.HARD}),
        ("way", {"up", "down"}),
        ("word", {"as it is"}),
        ("optional", {None}),
        ("stated", {0.0, 0.25, 0.5, 0.75, 1.0}),
        ("whole", {1, 2, 3}),
        ("chosen", {"a", "b"}),
    ],
)
def test_what_a_field_is_tested_at(name: str, values: set[Any]) -> None:
    assert drawn(Everything, name) == values


def test_given_attributes_are_not_drawn() -> None:
    assert all(Everything.draw_operator(ChoiceDraw(seed), count=7).count == 7 for seed in range(5))


def test_a_field_without_default_and_domain_is_told() -> None:
    with pytest.raises(PluginError, match="word has neither a default nor a domain"):
        Unknown.draw_operator(ChoiceDraw(0))


def test_an_operator_without_a_sample_is_told(register: Any) -> None:
    register(Bare)
    (failed,) = check_registry(["domains.Bare"], 1, oracles=["types"]).failures
    assert "domains.Bare cannot be tested: give the class Bare a sample" in failed.detail


@pytest.mark.parametrize("options", [{}, {"low": 1.0}, {"low": 2.0, "high": 1.0}, {"low": 0, "high": 1, "choices": ()}])
def test_a_domain_is_an_interval_or_choices(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="an attribute is tested"):
        attribute(1.0, **options)


def test_samples_keep_away_from_kinks_that_move() -> None:
    for seed in range(40):
        sample = Threshold.sample(ChoiceDraw(seed))
        assert isinstance(sample.operator, Threshold)
        assert sample.inputs[0] is not None
        assert np.all(np.abs(sample.inputs[0] - sample.operator.level) > 0.04)


def test_a_report_names_what_stayed_at_its_default(register: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    register(Snake)
    monkeypatch.setattr(Snake, "sample", classmethod(lambda cls, draw: Sample(cls(), (draw.floats(draw.shape()),))))
    report = check_registry(["domains.Snake"], 3, oracles=["types"])
    assert report.summary().splitlines()[-1] == "at its default only: domains.Snake.a"
    assert json.loads(report.to_json())["defaults_only"] == {"domains.Snake": ["a"]}
