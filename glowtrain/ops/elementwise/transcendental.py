"""Exponential, logarithm, error function, trigonometric and hyperbolic functions.

Derivatives: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), ch. 4 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.graph import Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, call
from glowtrain.ops.core.family import Elementwise, Grads
from glowtrain.ops.elementwise.arithmetic import Sqrt
from glowtrain.types import Array


class Transcendental(Elementwise):
    """A function that the loop language has under the operator's lower-case name."""

    numpy: ClassVar[Callable[[Array], Array]]

    def reference(self, x: Array) -> Array:
        return type(self).numpy(x)

    def scalar(self, x: Expr) -> Expr:
        return call(self.onnx.lower(), x)


def erf(x: Array) -> Array:
    """The error function of each element, in the element type of ``x``."""
    values = map(math.erf, x.astype(np.float64).ravel().tolist())
    return np.fromiter(values, np.float64, x.size).reshape(x.shape).astype(x.dtype)


@operator
@dataclass(frozen=True)
class Exp(Transcendental):
    """e to the power of x"""

    numpy: ClassVar[Callable[[Array], Array]] = np.exp

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * y,)


@operator
@dataclass(frozen=True)
class Log(Transcendental):
    """The natural logarithm; -infinity at 0, NaN below."""

    numpy: ClassVar[Callable[[Array], Array]] = np.log
    domain_range: ClassVar[tuple[float, float]] = (0.1, 3.0)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g / x,)


@operator
@dataclass(frozen=True)
class Erf(Transcendental):
    """2/√π times the integral of exp(-t²) from 0 to x."""

    numpy: ClassVar[Callable[[Array], Array]] = staticmethod(erf)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * Exp()(-(x * x)) * (2 / math.sqrt(math.pi)),)


@operator
@dataclass(frozen=True)
class Sin(Transcendental):
    """The sine of x in radians."""

    numpy: ClassVar[Callable[[Array], Array]] = np.sin
    domain_range: ClassVar[tuple[float, float]] = (-6.0, 6.0)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * Cos()(x),)


@operator
@dataclass(frozen=True)
class Cos(Transcendental):
    """The cosine of x in radians."""

    numpy: ClassVar[Callable[[Array], Array]] = np.cos
    domain_range: ClassVar[tuple[float, float]] = (-6.0, 6.0)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (-(g * Sin()(x)),)


@operator
@dataclass(frozen=True)
class Tan(Transcendental):
    """The tangent of x in radians."""

    numpy: ClassVar[Callable[[Array], Array]] = np.tan
    domain_range: ClassVar[tuple[float, float]] = (-1.2, 1.2)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * (y * y + 1.0),)


@operator
@dataclass(frozen=True)
class Asin(Transcendental):
    """The angle in [-π/2, π/2] whose sine is x; NaN outside [-1, 1]."""

    numpy: ClassVar[Callable[[Array], Array]] = np.arcsin
    domain_range: ClassVar[tuple[float, float]] = (-0.9, 0.9)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g / Sqrt()(1.0 - x * x),)


@operator
@dataclass(frozen=True)
class Acos(Transcendental):
    """The angle in [0, π] whose cosine is x; NaN outside [-1, 1]."""

    numpy: ClassVar[Callable[[Array], Array]] = np.arccos
    domain_range: ClassVar[tuple[float, float]] = (-0.9, 0.9)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (-(g / Sqrt()(1.0 - x * x)),)


@operator
@dataclass(frozen=True)
class Atan(Transcendental):
    """The angle in (-π/2, π/2) whose tangent is x."""

    numpy: ClassVar[Callable[[Array], Array]] = np.arctan

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g / (x * x + 1.0),)


@operator
@dataclass(frozen=True)
class Sinh(Transcendental):
    """(exp(x) - exp(-x)) / 2"""

    numpy: ClassVar[Callable[[Array], Array]] = np.sinh

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * Cosh()(x),)


@operator
@dataclass(frozen=True)
class Cosh(Transcendental):
    """(exp(x) + exp(-x)) / 2"""

    numpy: ClassVar[Callable[[Array], Array]] = np.cosh

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * Sinh()(x),)


@operator
@dataclass(frozen=True)
class Tanh(Transcendental):
    """sinh(x) / cosh(x)"""

    quantized: ClassVar[Quantized] = "rescales"
    numpy: ClassVar[Callable[[Array], Array]] = np.tanh

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * (1.0 - y * y),)


@operator
@dataclass(frozen=True)
class Asinh(Transcendental):
    """The number whose hyperbolic sine is x."""

    numpy: ClassVar[Callable[[Array], Array]] = np.arcsinh

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g / Sqrt()(x * x + 1.0),)


@operator
@dataclass(frozen=True)
class Acosh(Transcendental):
    """The number ≥ 0 whose hyperbolic cosine is x; NaN below 1."""

    numpy: ClassVar[Callable[[Array], Array]] = np.arccosh
    domain_range: ClassVar[tuple[float, float]] = (1.1, 4.0)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g / Sqrt()(x * x - 1.0),)


@operator
@dataclass(frozen=True)
class Atanh(Transcendental):
    """The number whose hyperbolic tangent is x; NaN outside [-1, 1]."""

    numpy: ClassVar[Callable[[Array], Array]] = np.arctanh
    domain_range: ClassVar[tuple[float, float]] = (-0.9, 0.9)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g / (1.0 - x * x),)
