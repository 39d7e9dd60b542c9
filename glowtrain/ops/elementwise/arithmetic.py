"""Arithmetic on broadcast operands, and rounding.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Named, Sample, Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, Load, call, cast, select
from glowtrain.loops.functions import fused_multiply_add
from glowtrain.ops.core.family import Elementwise, Grads, broadcastable
from glowtrain.ops.elementwise.cast import convert
from glowtrain.ops.elementwise.logic import NUMERIC, Cast, Equal, Where
from glowtrain.types import Array, TensorType, dtype_of, f32, f64, i64

SIGNED = frozenset({"float", "int"})
STEPS = "it is piecewise constant: its derivative is 0 wherever there is one"


class Binary(Elementwise):
    """Two numbers of one type in, one out."""

    arity: ClassVar[int] = 2
    kinds: ClassVar[frozenset[str]] = NUMERIC


@operator
@dataclass(frozen=True)
class Add(Binary):
    """x + y; integers wrap."""

    quantized: ClassVar[Quantized] = "rescales"

    def reference(self, x: Array, y: Array) -> Array:
        return np.add(x, y)

    def vjp(self, g: Value, y: Value, a: Value, b: Value) -> Grads:
        return g, g

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return x + y


@operator
@dataclass(frozen=True)
class Sub(Binary):
    """x - y; integers wrap."""

    def reference(self, x: Array, y: Array) -> Array:
        return np.subtract(x, y)

    def vjp(self, g: Value, y: Value, a: Value, b: Value) -> Grads:
        return g, -g

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return x - y


@operator
@dataclass(frozen=True)
class Mul(Binary):
    """x · y; integers wrap."""

    quantized: ClassVar[Quantized] = "rescales"

    def reference(self, x: Array, y: Array) -> Array:
        return np.multiply(x, y)

    def vjp(self, g: Value, y: Value, a: Value, b: Value) -> Grads:
        return g * b, g * a

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return x * y


@operator
@dataclass(frozen=True)
class Div(Binary):
    """x / y; of integers, the quotient cut off towards 0."""

    def reference(self, x: Array, y: Array) -> Array:
        if x.dtype.kind not in "iu":
            return np.divide(x, y)
        quotient, remainder = np.divmod(x, y)
        inexact = (remainder != 0) & ((x < 0) != (y < 0))
        result: Array = np.add(quotient, inexact).astype(x.dtype)
        return result

    def vjp(self, g: Value, y: Value, a: Value, b: Value) -> Grads:
        first = g / b
        return first, -(first * y)

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return x / y

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Divisors away from 0; integers of both signs in some cases."""
        shape = draw.shape()
        other = broadcastable(draw, shape)
        if draw.integer(0, 3) == 0:
            divisors = draw.integers(other, 1, 4) * draw.choice((1, -1))
            return Sample(cls(), (draw.integers(shape, -9, 9), divisors))
        return Sample(cls(), (draw.floats(shape), draw.floats(other, 0.3, 2.0) * draw.choice((1.0, -1.0))))


def integer_power(x: Array, exponent: Array) -> Array:
    """x to integer exponents, in integers; a negative exponent gives 1 / x^-exponent cut off towards 0."""
    power = np.power(x, np.maximum(exponent, 0))
    small = np.where(np.abs(x) == 1, np.where(exponent % 2 == 0, 1, x), 0)
    return np.where(exponent < 0, small, power).astype(x.dtype)


@operator
@dataclass(frozen=True)
class Pow(Elementwise):
    """x to the power of y, in the element type of x; y may have another one.

    Gradient conventions (PyTorch's): where y = 0 the gradient for x is 0, and where x = 0 ≤ y the gradient for y is 0.
    """

    arity: ClassVar[int] = 2
    kinds: ClassVar[frozenset[str]] = NUMERIC

    def check_operands(self, *inputs: TensorType) -> None:
        super().check_operands(*(type_.with_dtype(inputs[0].dtype) for type_ in inputs))
        if inputs[1].dtype.kind not in self.kinds:
            raise self.fail(f"the exponent must be a number, not {inputs[1].dtype}", *inputs)

    def reference(self, x: Array, y: Array) -> Array:
        if x.dtype.kind in "iu" and y.dtype.kind in "iu":
            return integer_power(x, y)
        if x.dtype.kind in "iu":
            return convert(np.power(x.astype(np.float64), y), dtype_of(x.dtype))
        result: Array = np.power(x, y.astype(x.dtype))
        return result

    def vjp(self, g: Value, y: Value, x: Value, exponent: Value) -> Grads:
        if isinstance(exponent, Constant) and exponent.array.size == 1 and exponent.rank <= x.rank:
            return _constant_power_gradient(g, x, exponent.array.item()), None
        k = Cast(x.dtype)(exponent)
        for_x = g * k * Pow()(Where()(Equal()(k, 0.0), 1.0, x), k - 1.0)
        if not exponent.dtype.is_float:
            return for_x, None
        base = Where()(Equal()(x, 0.0) & (k >= 0.0), 1.0, x)
        return for_x, Cast(exponent.dtype)(g * y * _log(base))

    def scalar(self, x: Expr, y: Expr) -> Expr:
        if x.dtype.is_float:
            return _product(x, y) or call("pow", x, cast(y, x.dtype))
        wide = f64 if y.dtype.is_float else i64
        return cast(call("pow", cast(x, wide), cast(y, wide)), x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Positive bases with any exponent, or any base with integer exponents."""
        shape = draw.shape()
        other = broadcastable(draw, shape)
        if draw.boolean():
            return Sample(cls(), (draw.floats(shape, 0.2, 2.0), draw.floats(other)))
        base = draw.floats(shape, avoid=(0.0,)) if draw.boolean() else draw.integers(shape, -3, 3)
        return Sample(cls(), (base, draw.integers(other, 0, 4)))


def _product(x: Expr, y: Expr) -> Expr | None:
    """x² and x³ of floats, where the exponent is known to be 2 or 3: rounded once, as a power is, and much faster. Two
    products of f32 are exact in f64, but for the last rounding; f64 has nothing wider for x³."""
    constant = y.buffer.constant_array if isinstance(y, Load) else None
    exponent = constant.item() if constant is not None and constant.size == 1 else None
    if exponent == 2:
        return x * x
    if exponent == 3 and x.dtype != f64:
        wide = cast(x, f64)
        return cast(wide * wide * wide, x.dtype)
    return None


def _constant_power_gradient(g: Value, x: Value, k: float) -> Value | None:
    """g · k · x^(k-1); the exponents that occur most need no power."""
    if k == 0:
        return None
    if k == 1:
        return g
    return g * (x * 2.0 if k == 2 else x ** float(k - 1) * float(k))


def _log(x: Value) -> Value:
    """log(x) for a base whose exponent is trained."""
    result: Value = Named("Log")()(x)
    return result


@operator
@dataclass(frozen=True)
class Mod(Binary):
    """Remainder of x / y: with the sign of y (``fmod`` false: x - ⌊x/y⌋·y), or of x (true: x - trunc(x/y)·y)."""

    fmod: bool = False

    def reference(self, x: Array, y: Array) -> Array:
        return np.fmod(x, y) if self.fmod else np.mod(x, y)

    def vjp(self, g: Value, y: Value, a: Value, b: Value) -> Grads:
        return g, -(g * Round()((a - y) / b))

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return call("fmod" if self.fmod else "mod", x, y)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """The quotient stays away from integers, where the remainder jumps."""
        shape, op = draw.shape(), cls(draw.boolean())
        sign = draw.choice((1, -1))
        if draw.integer(0, 3) == 0:
            return Sample(op, (draw.integers(shape, -9, 9), draw.integers(broadcastable(draw, shape), 1, 4) * sign))
        divisor = draw.floats(broadcastable(draw, shape), 0.5, 2.0) * sign
        quotient = draw.floats(shape, -2.8, 2.8, avoid=(-2.0, -1.0, 0.0, 1.0, 2.0))
        return Sample(op, (quotient * divisor, divisor))


@operator
@dataclass(frozen=True)
class Neg(Elementwise):
    """-x"""

    kinds: ClassVar[frozenset[str]] = SIGNED

    def reference(self, x: Array) -> Array:
        return np.negative(x)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (-g,)

    def scalar(self, x: Expr) -> Expr:
        return -x


@operator
@dataclass(frozen=True)
class Abs(Elementwise):
    """|x|; the gradient at 0 is 0."""

    kinds: ClassVar[frozenset[str]] = NUMERIC
    kinks: ClassVar[tuple[float, ...]] = (0.0,)

    def reference(self, x: Array) -> Array:
        return np.abs(x)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * Sign()(x),)

    def scalar(self, x: Expr) -> Expr:
        return x if x.dtype.kind == "uint" else call("abs", x)


@operator
@dataclass(frozen=True)
class Sign(Elementwise):
    """-1, 0 or 1; NaN stays."""

    kinds: ClassVar[frozenset[str]] = NUMERIC
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def reference(self, x: Array) -> Array:
        return np.sign(x)

    def scalar(self, x: Expr) -> Expr:
        return select(x > 0, 1, x) if x.dtype.kind == "uint" else call("sign", x)


@operator
@dataclass(frozen=True)
class Sqrt(Elementwise):
    """The square root; NaN below 0."""

    domain_range: ClassVar[tuple[float, float]] = (0.1, 4.0)

    def reference(self, x: Array) -> Array:
        return np.sqrt(x)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * 0.5 / y,)

    def scalar(self, x: Expr) -> Expr:
        return call("sqrt", x)


@operator
@dataclass(frozen=True)
class Reciprocal(Elementwise):
    """1 / x"""

    domain_range: ClassVar[tuple[float, float]] = (0.3, 3.0)

    def reference(self, x: Array) -> Array:
        return np.divide(np.ones((), x.dtype), x)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (-(g * y * y),)

    def scalar(self, x: Expr) -> Expr:
        return call("reciprocal", x)


class Rounding(Elementwise):
    """A float to one of its two neighbouring integers, still as a float."""

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS
    numpy: ClassVar[Callable[[Array], Array]]

    def reference(self, x: Array) -> Array:
        return type(self).numpy(x)

    def scalar(self, x: Expr) -> Expr:
        return call(self.onnx.lower(), x)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Multiples of a half, so that ties occur, and others."""
        shape = draw.shape()
        return Sample(cls(), (draw.integers(shape, -7, 7) * 0.5 if draw.boolean() else draw.floats(shape, -4.0, 4.0),))


@operator
@dataclass(frozen=True)
class Floor(Rounding):
    """The largest integer not above x."""

    numpy: ClassVar[Callable[[Array], Array]] = np.floor


@operator
@dataclass(frozen=True)
class Ceil(Rounding):
    """The smallest integer not below x."""

    numpy: ClassVar[Callable[[Array], Array]] = np.ceil


@operator
@dataclass(frozen=True)
class Round(Rounding):
    """The nearest integer; halves go to the even one."""

    numpy: ClassVar[Callable[[Array], Array]] = np.rint


class Variadic(Elementwise):
    """Any positive number of operands of one type."""

    arity: ClassVar[int] = -1


def pairwise(combine: Callable[[Expr, Expr], Expr], operands: Sequence[Expr]) -> Expr:
    """All operands combined, from left to right; many of them in halves, so that no expression is deep."""
    if len(operands) <= _LONGEST_CHAIN:
        return functools.reduce(combine, operands)
    middle = len(operands) // 2
    return combine(pairwise(combine, operands[:middle]), pairwise(combine, operands[middle:]))


_LONGEST_CHAIN = 32


@operator
@dataclass(frozen=True)
class FusedMultiplyAdd(Elementwise):
    """x · y + z; in f32 it is rounded once, on every processor."""

    domain: ClassVar[str] = "glowtrain"
    arity: ClassVar[int] = 3

    def reference(self, x: Array, y: Array, z: Array) -> Array:
        return fused_multiply_add(x, y, z) if x.dtype == np.float32 else np.asarray(x * y + z)

    def vjp(self, g: Value, y: Value, *inputs: Value) -> Grads:
        a, b, _ = inputs
        return g * b, g * a, g

    def decompose(self, x: Value, y: Value, z: Value) -> Value:
        return x * y + z

    def scalar(self, x: Expr, y: Expr, z: Expr) -> Expr:
        return multiply_add(x, y, z)


def multiply_add(x: Expr, y: Expr, z: Expr) -> Expr:
    """x · y + z; in f32 rounded once, on every processor."""
    return call("fma", x, y, z) if x.dtype == f32 else x * y + z


@operator
@dataclass(frozen=True)
class Sum(Variadic):
    """The sum of the operands."""

    def reference(self, *inputs: Array) -> Array:
        return functools.reduce(np.add, inputs)

    def vjp(self, g: Value, y: Value, *inputs: Value) -> Grads:
        return (g,) * len(inputs)

    def scalar(self, *inputs: Expr) -> Expr:
        return pairwise(lambda a, b: a + b, inputs)


@operator
@dataclass(frozen=True)
class Mean(Variadic):
    """The mean of the operands."""

    def reference(self, *inputs: Array) -> Array:
        total = functools.reduce(np.add, inputs)
        result: Array = np.divide(total, np.asarray(len(inputs), total.dtype))
        return result

    def vjp(self, g: Value, y: Value, *inputs: Value) -> Grads:
        return (g / float(len(inputs)),) * len(inputs)

    def scalar(self, *inputs: Expr) -> Expr:
        return pairwise(lambda a, b: a + b, inputs) / len(inputs)
