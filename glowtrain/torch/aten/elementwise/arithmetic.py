"""Sums, products, quotients and their rests, powers, signs and shifts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise import arithmetic, logic
from glowtrain.ops.elementwise.extrema import Min
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import bf16, boolean, f16, f32, f64


@aten("add.Tensor", "add.Scalar")
def add(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    return call.cast(x) + _scaled(call, y, alpha)


@aten("sub.Tensor", "sub.Scalar")
def sub(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    return call.cast(x) - _scaled(call, y, alpha)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    return call.cast(y) - _scaled(call, x, alpha)


def _scaled(call: AtenCall, y: Any, alpha: Any) -> Value:
    return call.cast(y) if alpha == 1 else call.cast(y) * call.cast(alpha)


@aten("mul.Tensor", "mul.Scalar")
def mul(call: AtenCall, x: Any, y: Any) -> Any:
    x, y = _factors(call, x, y)
    return call.cast(x * y)


def _factors(call: AtenCall, x: Any, y: Any) -> tuple[Value, Value]:
    """Operands in the type of the result, but narrow floats and a second one that is a number or scalar in f32: ATen
    does not round that one."""
    if call.dtype in (f16, bf16) and not (isinstance(y, Value) and y.rank):
        return _wide(call, x), _wide(call, y)
    return call.cast(x), call.cast(y)


@aten("div.Tensor", "div.Scalar")
def div(call: AtenCall, x: Any, y: Any) -> Any:
    x, y = _factors(call, x, y)
    return call.cast(x / y)


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(call: AtenCall, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return floor_divide(call, x, y)
    if rounding_mode is None or not call.dtype.is_float:
        return div(call, x, y)
    return call.cast(_trunc(_wide(call, x) / _wide(call, y)))


@aten("floor_divide.default", "floor_divide.Scalar")
def floor_divide(call: AtenCall, x: Any, y: Any) -> Any:
    """Of floats by their exact rest, as Python divides: 1.0 // 0.1 is 9, though the quotient rounds to 10."""
    if not call.dtype.is_float:
        x, y = call.cast(x), call.cast(y)
        return (x - arithmetic.Mod()(x, y)) / y
    x, y = _wide(call, x), _wide(call, y)
    rest, beyond = _rest(x, y)
    whole = arithmetic.Round()((x - rest) / y)
    floored = logic.Where()(beyond, whole - 1, whole)
    return call.cast(logic.Where()(logic.Equal()(y, 0), arithmetic.Floor()(x / y), floored))


def _wide(call: AtenCall, value: Any) -> Value:
    """An operand in the type that ATen computes with; numbers and scalars are not rounded to a narrower one."""
    tensor = call.cast(value) if isinstance(value, Value) and value.rank else value
    return as_type(tensor, f64 if call.dtype is f64 else f32)


def _operand(call: AtenCall, value: Any) -> Value:
    """The same, of whole numbers too."""
    return _wide(call, value) if call.dtype.is_float else call.cast(value)


def _rest(x: Value, y: Value) -> tuple[Value, Value]:
    """The exact rest of floats, with the sign of x, and whether y has the other one."""
    rest = arithmetic.Mod(fmod=True)(x, y)
    return rest, ((rest < 0) & (y > 0)) | ((rest > 0) & (y < 0))


@aten("trunc.default", "fix.default")
def trunc(call: AtenCall, x: Value) -> Any:
    return _trunc(x)


def _trunc(x: Value) -> Value:
    result: Value = logic.Where()(x < 0, arithmetic.Ceil()(x), arithmetic.Floor()(x))
    return result


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(call: AtenCall, x: Any, y: Any) -> Any:
    if not call.dtype.is_float:
        return arithmetic.Mod()(call.cast(x), call.cast(y))
    rest, beyond = _rest(_wide(call, call.cast(x)), y := _wide(call, call.cast(y)))
    return call.cast(logic.Where()(beyond, rest + y, rest))


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(call: AtenCall, x: Any, y: Any) -> Any:
    return arithmetic.Mod(fmod=True)(call.cast(x), call.cast(y))


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(call: AtenCall, x: Any, exponent: Any) -> Any:
    """Small whole exponents are products, and halves square roots: exact, and cheaper."""
    base = call.cast(x)
    if isinstance(exponent, (int, float)):
        if exponent < 0 and not call.dtype.is_float:
            raise ModelError(f"whole numbers have no power {exponent}: convert them to floats")
        if exponent in (1, 2, 3):
            return base if exponent == 1 else base * base if exponent == 2 else base * base * base
        if exponent in (0.5, -0.5) and call.dtype.is_float:
            root = arithmetic.Sqrt()(base)
            return root if exponent > 0 else arithmetic.Reciprocal()(root)
    return arithmetic.Pow()(base, call.cast(exponent))


@aten("square.default")
def square(call: AtenCall, x: Value) -> Any:
    return x * x


@aten("rsqrt.default")
def rsqrt(call: AtenCall, x: Value) -> Any:
    return arithmetic.Reciprocal()(arithmetic.Sqrt()(call.cast(x)))


@aten("hypot.default")
def hypot(call: AtenCall, x: Value, y: Value) -> Any:
    """In f64, where squares neither overflow nor vanish; infinite also of an infinity and NaN."""
    x, y = (as_type(call.cast(each), f64) for each in (x, y))
    endless = logic.IsInf()(x) | logic.IsInf()(y)
    return call.cast(logic.Where()(endless, constant(math.inf, f64), arithmetic.Sqrt()(x * x + y * y)))


@aten("sign.default")
def sign(call: AtenCall, x: Value) -> Any:
    """That of NaN is 0."""
    found = arithmetic.Sign()(call.cast(x))
    return logic.Where()(logic.Equal()(x, x), found, constant(0, found.dtype)) if x.dtype.is_float else found


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(call: AtenCall, x: Value, y: Any) -> Any:
    size = arithmetic.Abs()(call.cast(x))
    return logic.Where()(is_negative(call.cast(y)), -size, size)


def is_negative(x: Value) -> Value:
    """Zeros have a sign, too: that of their reciprocal."""
    if not x.dtype.is_float:
        return x < 0
    zero = logic.Equal()(x, constant(0, x.dtype))
    result: Value = logic.Where()(zero, 1.0 / x, x) < 0
    return result


@aten("signbit.default")
def signbit(call: AtenCall, x: Value) -> Any:
    return is_negative(x) if x.dtype != boolean else constant(np.zeros(x.shape, np.bool_))


@aten("ldexp.Tensor")
def ldexp(call: AtenCall, x: Value, exponent: Value) -> Any:
    return call.cast(x) * arithmetic.Pow()(call.cast(2), call.cast(exponent))


@aten("round.decimals")
def round_decimals(call: AtenCall, x: Value, decimals: int) -> Any:
    scale = 10.0 ** abs(decimals)
    return arithmetic.Round()(x * scale) / scale if decimals > 0 else arithmetic.Round()(x / scale) * scale


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(call: AtenCall, start: Value, end: Value, weight: Any) -> Any:
    """From the nearer end, which a weight of 0 or 1 gives exactly."""
    factor, start, end = (_wide(call, each) for each in (weight, start, end))
    near, far = start + factor * (end - start), end - (1.0 - factor) * (end - start)
    if isinstance(weight, Value):
        return call.cast(logic.Where()(arithmetic.Abs()(factor) < 0.5, near, far))
    return call.cast(near if abs(weight) < 0.5 else far)


@aten("addcmul.default")
def addcmul(call: AtenCall, x: Value, first: Value, second: Value, value: Any = 1) -> Any:
    x, first, second, factor = (_operand(call, each) for each in (x, first, second, value))
    return call.cast(x + (first if value == 1 else first * factor) * second)


@aten("addcdiv.default")
def addcdiv(call: AtenCall, x: Value, first: Value, second: Value, value: Any = 1) -> Any:
    x, first, second, factor = (_operand(call, each) for each in (x, first, second, value))
    return call.cast(x + (first if value == 1 else first * factor) / second)


@aten("__lshift__.Scalar", "__lshift__.Tensor", "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar")
def left_shift(call: AtenCall, x: Value, bits: Any) -> Any:
    return call.cast(x) * arithmetic.Pow()(call.cast(2), call.cast(bits))


@aten("__rshift__.Scalar", "__rshift__.Tensor", "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar")
def right_shift(call: AtenCall, x: Value, bits: Any) -> Any:
    """Towards minus infinity, as shifts of numbers in two's complement are; by halves, whose powers of 2 the type
    holds. Shifts by negative numbers leave no bit, as PyTorch has them."""
    width, count = call.cast(8 * call.dtype.size), call.cast(bits)
    count = logic.Where()(count < 0, width, Min()(count, width))
    half = count / call.cast(2)
    for part in (half, count - half):
        x = floor_divide(call, x, arithmetic.Pow()(call.cast(2), part))
    return x
