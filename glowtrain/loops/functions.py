"""The scalar functions of the loop language: one record says all there is to know about each.

The verifier, the text form and its parser, the evaluator, fusion and the backends read it; what only a backend knows,
the instructions, stands in a table of the backend, which a test compares with this one. Integer division truncates;
division by zero gives 0 and shifts by more than the size give 0 (-1 for negative numbers shifted right): every input
has a result. f16 and bf16 are computed in f32 and rounded after each operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from glowtrain.types import DTYPES, Array, DType, boolean, f32, i32, i64, u32, u64

Meaning = Callable[..., Any]

FLOATS = frozenset(dtype for dtype in DTYPES.values() if dtype.is_float)
INTEGERS = frozenset(dtype for dtype in DTYPES.values() if dtype.is_integer)
BOOL = frozenset({boolean})
NUMBERS = FLOATS | INTEGERS
ALL = frozenset(DTYPES.values())


class Cost(IntEnum):
    """What a function costs, about in vector operations."""

    CHEAP = 1
    STEP = 2
    """One instruction where the processor has it: roundings and fused multiply-add."""
    EXPENSIVE = 8


@dataclass(frozen=True)
class ScalarFunction:
    """A function of ``arity`` operands of one of ``types`` (of a select the last two: its first is bool).

    The result has their type; a ``predicate`` gives bool, and bitcast what its expression says. ``floats`` and
    ``integers`` are its meaning on NumPy arrays of float, and of integer and bool, elements. ``infix`` is how it is
    written between its operands, ``level`` how strongly that binds. ``operations`` is what it counts as where work is
    counted: a choice, a comparison or another view of the same bits is none, a multiply-add two.
    """

    name: str
    arity: int
    types: frozenset[DType]
    floats: Meaning | None = None
    integers: Meaning | None = None
    cost: Cost = Cost.EXPENSIVE
    predicate: bool = False
    infix: str = ""
    level: int = 0
    operations: int = 1

    def takes(self, dtype: DType) -> bool:
        """Whether it is defined for operands of this element type."""
        return dtype in self.types

    def on(self, arguments: list[Array]) -> Array:
        """The function of arrays (that broadcast) of one element type for which it is defined."""
        dtype = arguments[-1].dtype
        if self.name in ("select", "bitcast"):
            return np.where(*arguments) if self.name == "select" else arguments[0]
        if dtype.kind in "iub":
            assert self.integers is not None, self.name
            return self._result(self.integers(*arguments), dtype)
        assert self.floats is not None, self.name
        if dtype.itemsize < 4 and not self.predicate:
            arguments = [argument.astype(np.float32) for argument in arguments]
        return self._result(self.floats(*arguments), dtype)

    def _result(self, result: Any, dtype: np.dtype[Any]) -> Array:
        return np.asarray(result) if self.predicate else np.asarray(result).astype(dtype, copy=False)


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a · b + c of arrays in f32, rounded once.

    The product is exact in f64; the sum is rounded to odd there (Boldo and Melquiond, Emulation of FMA and correctly
    rounded sums, 2008), by its error (Knuth's TwoSum), so that rounding to f32 is that of the exact number.
    """
    with np.errstate(all="ignore"):
        product, addend = np.broadcast_arrays(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
        total = np.asarray(product + addend)
        rest = total - product
        error = (product - (total - rest)) + (addend - rest)
        bits = total.view(np.int64)
        inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
        odd = np.where(inexact, bits + np.where((error > 0) == (total > 0), 1, -1), bits)
        return odd.view(np.float64).astype(np.float32)


def truncated(x: Array, dtype: DType) -> Array:
    """Floats without their fractions as an integer type that is not stored, the same on every processor.

    They pass through i32, or through i64 if ``dtype`` is u32 or has 64 bits: what that does not hold, NaN included,
    becomes its least number, and the result is cut to the size of ``dtype``. u64 also holds numbers below 2**64, and is
    0 for larger ones. ONNX leaves these cases undefined; NumPy's ``astype`` gives what its processor gives.
    """
    wide = x.astype(np.float64)
    if dtype == u64:
        large = wide >= 2.0**63
        low = truncated(np.where(large, wide - 2.0**63, wide), i64).view(np.uint64)
        return np.where(large, low ^ np.uint64(1 << 63), low)
    via = i64 if dtype in (i64, u32) else i32
    bound = 2.0 ** (8 * via.size - 1)
    fits = (wide > -bound - 1) & (wide < bound)
    whole = np.where(fits, wide, 0).astype(via.numpy)
    return np.where(fits, whole, np.iinfo(via.numpy).min).astype(dtype.numpy)


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


def _arithmetic() -> list[ScalarFunction]:
    cheap, types = Cost.CHEAP, NUMBERS | BOOL
    return [
        ScalarFunction("add", 2, types, np.add, np.add, cheap, infix="+", level=5),
        ScalarFunction("sub", 2, NUMBERS, np.subtract, np.subtract, cheap, infix="-", level=5),
        ScalarFunction("mul", 2, types, np.multiply, np.multiply, cheap, infix="*", level=6),
        ScalarFunction("div", 2, NUMBERS, np.true_divide, _divide, infix="/", level=6),
        ScalarFunction("mod", 2, NUMBERS, np.remainder, np.remainder, infix="%", level=6),
        ScalarFunction("fmod", 2, NUMBERS, np.fmod, np.fmod),
        ScalarFunction("pow", 2, NUMBERS, np.power, _power),
        ScalarFunction("min", 2, types, np.minimum, np.minimum, cheap),
        ScalarFunction("max", 2, types, np.maximum, np.maximum, cheap),
        ScalarFunction("neg", 1, NUMBERS, np.negative, np.negative, cheap),
        ScalarFunction("abs", 1, NUMBERS, np.abs, np.abs, cheap),
        ScalarFunction("sign", 1, NUMBERS, np.sign, np.sign),
        ScalarFunction("fma", 3, frozenset({f32}), fused_multiply_add, cost=Cost.STEP, operations=2),
        ScalarFunction("select", 3, ALL, cost=cheap, operations=0),
        ScalarFunction("bitcast", 1, ALL, operations=0),
    ]


def _logic() -> list[ScalarFunction]:
    cheap, types = Cost.CHEAP, INTEGERS | BOOL
    compared = [
        ("eq", "==", np.equal), ("ne", "!=", np.not_equal), ("lt", "<", np.less), ("le", "<=", np.less_equal),
        ("gt", ">", np.greater), ("ge", ">=", np.greater_equal),
    ]  # fmt: skip
    return [
        *(
            ScalarFunction(name, 2, NUMBERS | BOOL, ufunc, ufunc, cheap, True, infix, 4, operations=0)
            for name, infix, ufunc in compared
        ),
        ScalarFunction("isnan", 1, FLOATS, np.isnan, predicate=True, operations=0),
        ScalarFunction("isinf", 1, FLOATS, np.isinf, predicate=True, operations=0),
        ScalarFunction("and", 2, types, integers=np.bitwise_and, cost=cheap, infix="&", level=3),
        ScalarFunction("or", 2, types, integers=np.bitwise_or, cost=cheap, infix="|", level=1),
        ScalarFunction("xor", 2, types, integers=np.bitwise_xor, infix="^", level=2),
        ScalarFunction("not", 1, types, integers=np.invert, cost=cheap),
        ScalarFunction("shift_left", 2, INTEGERS, integers=np.left_shift),
        ScalarFunction("shift_right", 2, INTEGERS, integers=np.right_shift),
        ScalarFunction("mulhi_u32", 2, frozenset({u32}), integers=_multiply_high),
    ]


def _of_one_float() -> list[ScalarFunction]:
    """Roundings, roots, exponentials, logarithms and the trigonometric and hyperbolic functions."""
    roundings: dict[str, Meaning] = {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}
    others: dict[str, Meaning] = {
        "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh, "sigmoid": _sigmoid,
        "erf": _erf, "softplus": lambda x: np.logaddexp(x, np.zeros_like(x)), "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x,
        "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
        "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    }  # fmt: skip
    return [
        *(ScalarFunction(name, 1, FLOATS, meaning, cost=Cost.STEP) for name, meaning in roundings.items()),
        *(ScalarFunction(name, 1, FLOATS, meaning) for name, meaning in others.items()),
    ]


FUNCTIONS: Mapping[str, ScalarFunction] = {
    function.name: function for function in (*_arithmetic(), *_logic(), *_of_one_float())
}
"""Every scalar function, by name."""

PREDICATES = frozenset(name for name, function in FUNCTIONS.items() if function.predicate)
COMPARISONS = frozenset(name for name in PREDICATES if FUNCTIONS[name].arity == 2)
INFIX: Mapping[str, ScalarFunction] = {f.infix: f for f in FUNCTIONS.values() if f.infix}
"""The functions that are written between their operands, by their sign."""
