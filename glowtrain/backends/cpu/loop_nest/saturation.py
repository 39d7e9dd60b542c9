"""Rounding to integers that saturates, which QuantizeLinear ends in, in fewer instructions than its parts:

    s = round(value) + zero
    cast(select(s > low, min(s, high), low))

The bounds are integers, so it is the same to cut off first and to round while converting, to nearest with ties to even;
zero is added to the integer. NaN gives the lower bound in both. The bounds are numbers of the type, so what is left
fits, and LLVM may pack lanes as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glowtrain.backends.cpu.loop_nest.byte_packs import packed, packs
from glowtrain.backends.llvm import small_formats
from glowtrain.backends.llvm.formats import REGISTER, cast, native_conversion
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, number
from glowtrain.backends.target import Target
from glowtrain.loops import Apply, Cast, Const, Expr
from glowtrain.types import SMALL_INTEGERS, DType, f32

LARGEST = 1 << 16
"""Bounds and zero points up to here, and their differences, are exact in f32 (and :data:`_SHIFT` rounds them right)."""
_SHIFT = 1.5 * 2**23
"""Adding this to a number of magnitude below 2 ** 22 leaves the nearest integer in its low bits."""
_SHIFT_BITS = 0x4B400000


@dataclass(frozen=True)
class Saturation:
    """What to round and how; bounds are of the result, ``zero`` included."""

    value: Expr
    zero: int
    low: int
    high: int

    def emit(self, f: LlvmFunction, value: LlvmValue, dtype: str, target: Target) -> LlvmValue:
        """Lanes of f32 as lanes of an integer type."""
        native = native_conversion(value.width, target)
        if native is not None and packs(dtype, value.width, self.zero, target):
            return packed(f, value, native, dtype, zero=self.zero, bounds=(self.low, self.high))
        if native is not None:
            whole = native.in_pieces(f, value, native.rounding, self.inside)
        else:
            shifted = f.op("fadd", self.inside(f, value), number(_SHIFT, value.type))
            whole = f.op("sub", f.convert("bitcast", shifted, "i32"), _SHIFT_BITS)
        if self.zero:
            whole = f.op("add", whole, self.zero)
        if dtype in small_formats.STORED:
            return cast(f, whole, "i32", dtype, target)
        return f.convert("trunc nsw" if self.low < 0 else "trunc nuw", whole, REGISTER[dtype])

    def inside(self, f: LlvmFunction, value: LlvmValue) -> LlvmValue:
        """A number cut off where the rounded one would be; NaN, which is not greater than the lower bound, there."""
        low, high = (number(float(bound - self.zero), value.type) for bound in (self.low, self.high))
        above = f.select(f.compare("ogt", value, low), value, low)
        return f.select(f.compare("olt", above, high), above, high)


def saturation(expr: Cast) -> Saturation | None:
    """What a conversion of f32 to an integer type of at most 16 bits does, if it rounds and saturates so, to bounds
    that are in order and within the type (others wrap).
    """
    match expr.value:
        case Apply(
            function="select",
            arguments=(
                Apply(function="gt", arguments=(number, Const(value=low))),
                Apply(function="min", arguments=(same, Const(value=high))),
                Const(value=least),
            ),
        ) if number is same and low == least and number.dtype == f32:
            return _saturation(number, low, high) if _fits(low, high, expr.dtype) else None
    return None


def _fits(low: float, high: float, dtype: DType) -> bool:
    """Whether bounds are in order and are numbers of an integer type of at most 16 bits: no result is cut then."""
    if dtype in SMALL_INTEGERS:
        least, greatest = SMALL_INTEGERS[dtype]
    elif dtype.is_integer and dtype.size <= 2:
        known = np.iinfo(dtype.numpy)
        least, greatest = int(known.min), int(known.max)
    else:
        return False
    return least <= low <= high <= greatest


def _saturation(number: Expr, low: float, high: float) -> Saturation | None:
    parts, bounds = _parts(number), [whole for whole in map(_whole, (low, high)) if whole is not None]
    return Saturation(*parts, *bounds) if parts is not None and len(bounds) == 2 else None


def _parts(number: Expr) -> tuple[Expr, int] | None:
    """What is rounded, and the integer that is added."""
    zero: int | None = 0
    if isinstance(number, Apply) and number.function == "add":
        number, shift = number.arguments
        zero = _whole(_constant(shift))
    if zero is None or not isinstance(number, Apply) or number.function != "round":
        return None
    return number.arguments[0], zero


def _constant(expr: Expr) -> float:
    """The number that an expression is; NaN if it is none."""
    inner = expr.value if isinstance(expr, Cast) else expr
    return float(inner.value) if isinstance(inner, Const) else math.nan


def _whole(value: float) -> int | None:
    """A number as an integer of magnitude up to :data:`LARGEST`."""
    return int(value) if abs(value) <= LARGEST and float(value).is_integer() else None
