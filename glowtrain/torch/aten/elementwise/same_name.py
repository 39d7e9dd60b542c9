"""ATen's elementwise operators that are one operator of ours each, listed by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glowtrain.graph import Value
from glowtrain.ops.elementwise import activation, arithmetic, logic, transcendental
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.torch.aten.table import aten

UNARY: dict[str, Callable[[], Callable[[Value], Any]]] = {
    "abs": arithmetic.Abs,
    "acos": transcendental.Acos,
    "acosh": transcendental.Acosh,
    "asin": transcendental.Asin,
    "asinh": transcendental.Asinh,
    "atan": transcendental.Atan,
    "atanh": transcendental.Atanh,
    "ceil": arithmetic.Ceil,
    "cos": transcendental.Cos,
    "cosh": transcendental.Cosh,
    "erf": transcendental.Erf,
    "exp": transcendental.Exp,
    "floor": arithmetic.Floor,
    "log": transcendental.Log,
    "mish": activation.Mish,
    "neg": arithmetic.Neg,
    "reciprocal": arithmetic.Reciprocal,
    "relu": activation.Relu,
    "round": arithmetic.Round,
    "selu": activation.Selu,
    "sigmoid": activation.Sigmoid,
    "silu": activation.Swish,
    "sin": transcendental.Sin,
    "sinh": transcendental.Sinh,
    "sqrt": arithmetic.Sqrt,
    "tan": transcendental.Tan,
    "tanh": transcendental.Tanh,
}
"""Functions of one operand, each an operator of ours."""

BINARY: dict[str, Callable[[], Callable[[Value, Value], Any]]] = {
    "maximum": Max,
    "minimum": Min,
}

COMPARISONS: dict[str, Callable[[], Callable[[Value, Value], Any]]] = {
    "eq": logic.Equal,
    "ge": logic.GreaterOrEqual,
    "gt": logic.Greater,
    "le": logic.LessOrEqual,
    "lt": logic.Less,
}


def _enter_unary(name: str, operator: Callable[[], Callable[[Value], Any]]) -> None:
    aten(f"{name}.default")(lambda call, x: operator()(call.cast(x)))


def _enter_binary(name: str, operator: Callable[[], Callable[[Value, Value], Any]]) -> None:
    aten(f"{name}.default")(lambda call, x, y: operator()(call.cast(x), call.cast(y)))


def _enter_comparison(name: str, operator: Callable[[], Callable[[Value, Value], Any]]) -> None:
    aten(f"{name}.Tensor", f"{name}.Scalar")(lambda call, x, y: operator()(*call.promoted(x, y)))


for _name, _unary in UNARY.items():
    _enter_unary(_name, _unary)
for _name, _binary in BINARY.items():
    _enter_binary(_name, _binary)
for _name, _comparison in COMPARISONS.items():
    _enter_comparison(_name, _comparison)
