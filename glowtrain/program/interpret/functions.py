"""The scalar functions of the loop language on NumPy arrays.

f16 and bf16 are computed in f32 and rounded after each operation. Integer division truncates; division by zero gives
0 and shifts by more than the size give 0 (-1 for negative numbers shifted right): every input has a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from glowtrain.errors import ProgramError
from glowtrain.ops.elementwise.arithmetic import fused_multiply_add
from glowtrain.types import Array, DType, boolean, dtype_of, f32, wide_of

UFUNCS: Mapping[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}
"""How the operations of a Reduce and an Accumulate combine two elements; "max" and "min" propagate NaN."""


def apply(function: str, arguments: list[Array]) -> Array:
    """A function of :data:`glowtrain.loops.FUNCTIONS` on arrays of one element type (that broadcast)."""
    if function == "select":
        return np.where(arguments[0], arguments[1], arguments[2])
    dtype = arguments[0].dtype
    if function in _COMPARISONS:
        return np.asarray(_COMPARISONS[function](*arguments))
    if dtype.kind in "iub":
        return np.asarray(_INTEGER[function](*arguments)).astype(dtype, copy=False)
    if function == "fma":
        return fused_multiply_add(*arguments)
    if dtype == np.float32 or dtype == np.float64:
        return np.asarray(_FLOAT[function](*arguments)).astype(dtype, copy=False)
    wide = [argument.astype(np.float32) for argument in arguments]
    return np.asarray(_FLOAT[function](*wide)).astype(dtype)


def has(function: str, dtype: DType) -> bool:
    """Whether :func:`apply` takes the function for operands of this element type."""
    if function in ("select", "bitcast") or dtype.is_stored:
        return function in ("select", "bitcast")
    if function in _COMPARISONS:
        return True
    if function == "fma":
        return dtype == f32
    return function in (_FLOAT if dtype.is_float else _INTEGER)


def reinterpret(array: Array, dtype: DType) -> Array:
    """The same bits as another element type; a byte is true as a bool unless it is 0."""
    return array != 0 if dtype == boolean else np.ascontiguousarray(array).view(dtype.numpy).reshape(array.shape)


def convert(array: Array, dtype: DType) -> Array:
    """NumPy's ``astype``; f16 and bf16 go to integers by way of f32, stored types everywhere by f32 or i32."""
    if array.dtype == dtype.numpy:
        return array
    for stored in (dtype_of(array.dtype), dtype):
        if stored.is_stored:
            array = array.astype(wide_of(stored).numpy)
    if array.dtype.kind not in "fiub" or array.dtype == np.float16:
        array = array.astype(np.float32)
    if dtype.name == "bf16" and array.dtype.kind in "iub":
        array = array.astype(np.float32)
    return array.astype(dtype.numpy)


def number(value: bool | int | float, dtype: DType) -> Array:
    """A constant of an element type, as a 0-d array; integers wrap."""
    if dtype.is_float:
        return np.asarray(float(value)).astype(dtype.numpy)
    if dtype == boolean:
        return np.asarray(bool(value))
    return np.asarray(int(value) & (1 << 64) - 1, np.uint64).astype(dtype.numpy)


def identity(op: str, dtype: DType) -> Array:
    """What combining no elements at all gives."""
    if op in ("add", "or"):
        return number(0, dtype)
    if op in ("mul", "and"):
        return number(1, dtype)
    if dtype.is_float:
        return number(-math.inf if op == "max" else math.inf, dtype)
    if dtype == boolean:
        return number(op == "min", dtype)
    limits = np.iinfo(dtype.numpy)
    return number(int(limits.min if op == "max" else limits.max), dtype)


def combine(op: str, array: Array, axes: tuple[int, ...]) -> Array:
    """Reduce over axes in the array's own element type. Raises :class:`ProgramError` for an unknown operation."""
    if op not in UFUNCS:
        raise ProgramError(f"a reduction by {op!r} does not exist; use one of {', '.join(UFUNCS)}")
    reduced: Array
    if array.dtype.name == "bfloat16":
        reduced = np.asarray(UFUNCS[op].reduce(array.astype(f32.numpy), axis=axes)).astype(array.dtype)
    elif op in ("and", "or"):
        reduced = np.asarray(UFUNCS[op].reduce(array, axis=axes))
    else:
        reduced = np.asarray(UFUNCS[op].reduce(array, axis=axes, dtype=array.dtype))
    return reduced


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(np.isnan(x), x, np.where(x >= 0, 1 / (1 + small), small / (1 + small)))


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype(np.float64))).astype(np.float64)


def _divide(a: Array, b: Array) -> Array:
    rounds_up = (np.fmod(a, b) != 0) & ((a < 0) != (b < 0))
    return np.where(b == 0, 0, np.floor_divide(a, b) + rounds_up)


def _power(base: Array, exponent: Array) -> Array:
    """By repeated squaring, wrapping; a negative exponent gives the true power cut to an integer."""
    base, exponent = np.broadcast_arrays(base, exponent)
    negative = exponent < 0
    left = np.where(negative, exponent & 1, exponent)
    result, factor = np.ones_like(base), base.copy()
    while left.any():
        result = np.where(left & 1 != 0, result * factor, result)
        factor, left = factor * factor, left >> 1
    return np.where(negative & (np.abs(base) != 1), 0, result)


def _multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the 64-bit product of two u32."""
    return a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(32)


_COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "isnan": lambda x: np.isnan(x) if x.dtype.kind not in "iub" else np.zeros(x.shape, np.bool_),
    "isinf": lambda x: np.isinf(x) if x.dtype.kind not in "iub" else np.zeros(x.shape, np.bool_),
}

_FLOAT: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "mod": np.remainder,
    "fmod": np.fmod,
    "pow": np.power,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "softplus": lambda x: np.logaddexp(x, np.zeros_like(x)),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
}

_INTEGER: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "mod": np.remainder,
    "fmod": np.fmod,
    "pow": _power,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "mulhi_u32": _multiply_high,
}
