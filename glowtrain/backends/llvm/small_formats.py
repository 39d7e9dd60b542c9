"""Element types that are only stored, as LLVM code: 4- to 8-bit floats to f32 and back, small integers to i32 and back.

In registers and in memory a lane is a byte with the element's bits at its low end. Results are those of ml_dtypes:
rounding to nearest, ties to even; what is too large becomes infinite, NaN or (in formats with neither) the largest
number. The formats are those of Micikevicius et al., "FP8 formats for deep learning" (2022), their fnuz variants
(Noune et al., 2022), and OCP Microscaling (2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glowtrain.types import DTYPES, SMALL_INTEGERS

if TYPE_CHECKING:
    from glowtrain.backends.llvm.formats import Vectors
    from glowtrain.backends.llvm.text import Text

_INFINITY = 0x7F800000


@dataclass(frozen=True)
class SmallFormat:
    """A float format: fraction bits, exponent bias, the code of its largest number, the code of NaN and its sign bit.

    ``beyond`` is the code for what is too large: infinity, NaN or the largest number. In ``unsigned_zero`` formats
    (fnuz) the code of -0 stands for NaN.
    """

    fraction: int
    bias: int
    largest: int
    beyond: int
    sign: int = 0x80
    nan: int | None = None
    unsigned_zero: bool = False


FORMATS: Mapping[str, SmallFormat | None] = {
    "f8e4m3fn": SmallFormat(3, 7, 0x7E, 0x7F, nan=0x7F),
    "f8e4m3fnuz": SmallFormat(3, 8, 0x7F, 0x80, nan=0x80, unsigned_zero=True),
    "f8e5m2": SmallFormat(2, 15, 0x7B, 0x7C, nan=0x7E),
    "f8e5m2fnuz": SmallFormat(2, 16, 0x7F, 0x80, nan=0x80, unsigned_zero=True),
    "f8e8m0": None,
    "f6e2m3": SmallFormat(3, 1, 0x1F, 0x1F, sign=0x20),
    "f6e3m2": SmallFormat(2, 3, 0x1F, 0x1F, sign=0x20),
    "f4e2m1": SmallFormat(1, 1, 0x07, 0x07, sign=0x08),
}
"""Float formats by element type; f8e8m0 is an exponent alone."""

INTEGERS: Mapping[str, tuple[int, bool]] = {
    dtype.name: (4 if dtype.name.endswith("4") else 2, low < 0) for dtype, (low, _) in SMALL_INTEGERS.items()
}
"""Bits of the small integers, and whether they are signed."""

STORED = (*FORMATS, *INTEGERS)
"""All element types that are only stored."""


def code_of(value: float | int | bool, dtype: str) -> int:
    """The byte that holds a number."""
    wide = np.int32 if dtype in INTEGERS else np.float32
    return int(np.array([value]).astype(wide).astype(DTYPES[dtype].numpy).view(np.uint8)[0])


def widened(m: Vectors, value: Text, dtype: str) -> Text:
    """i8 lanes of codes as f32 lanes (floats) or i32 lanes (integers)."""
    if dtype in INTEGERS:
        bits, signed = INTEGERS[dtype]
        spare = 8 - bits
        top = m.op("shl", "i8", value, spare)
        return m.convert(
            "sext" if signed else "zext", m.op("ashr" if signed else "lshr", "i8", top, spare), "i8", "i32"
        )
    code = m.convert("zext", value, "i8", "i32")
    format_ = FORMATS[dtype]
    bits_ = _power_bits(m, code) if format_ is None else _float_bits(m, code, format_)
    return m.convert("bitcast", bits_, "i32", "float")


def _power_bits(m: Vectors, code: Text) -> Text:
    """2 ** (code - 127); 255 is NaN."""
    bits = m.select(m.op("icmp eq", "i32", code, 0), "i32", 0x400000, m.op("shl", "i32", code, 23))
    return m.select(m.op("icmp eq", "i32", code, 255), "i32", _INFINITY | 0x400000, bits)


def _float_bits(m: Vectors, code: Text, format_: SmallFormat) -> Text:
    """Fields moved into place; the product with a power of two mends the exponent and normalises denormals."""
    size = m.op("and", "i32", code, format_.sign - 1)
    placed = m.op("shl", "i32", size, 23 - format_.fraction)
    scaled = m.op("fmul", "float", m.convert("bitcast", placed, "i32", "float"), m.number(2.0 ** (127 - format_.bias)))
    bits = m.convert("bitcast", scaled, "float", "i32")
    sign = _sign(m, m.op("and", "i32", code, format_.sign), format_, up=True)
    if format_.unsigned_zero:
        nan = m.op("icmp eq", "i32", code, 0x80)
        return m.select(nan, "i32", -0x400000, m.op("or", "i32", bits, sign))
    if format_.nan is None:
        return m.op("or", "i32", bits, sign)
    nan = m.op("icmp ugt", "i32", size, format_.nan - 1 if format_.nan == format_.beyond else format_.beyond)
    bits = m.select(m.op("icmp ugt", "i32", size, format_.largest), "i32", _INFINITY, bits)
    return m.op("or", "i32", m.select(nan, "i32", _INFINITY | 0x400000, bits), sign)


def _sign(m: Vectors, bit: Text, format_: SmallFormat, *, up: bool) -> Text:
    """The sign bit carried between its place in a code and bit 31."""
    return m.op("shl" if up else "lshr", "i32", bit, 32 - format_.sign.bit_length())


def narrowed(m: Vectors, value: Text, dtype: str) -> Text:
    """f32 lanes (floats) or i32 lanes (integers) as i8 lanes of codes; integers wrap."""
    if dtype in INTEGERS:
        return m.op("and", "i8", m.convert("trunc", value, "i32", "i8"), (1 << INTEGERS[dtype][0]) - 1)
    bits = m.convert("bitcast", value, "float", "i32")
    format_ = FORMATS[dtype]
    code = _power_code(m, bits) if format_ is None else _float_code(m, bits, format_)
    return m.convert("trunc", code, "i32", "i8")


def _power_code(m: Vectors, bits: Text) -> Text:
    """The exponent after rounding; 255 for all that is not positive, NaN or too large.

    The least number, 2**-127, is a denormal of f32; what lies between it and the next is rounded up, as in ml_dtypes.
    """
    rounded = m.op("lshr", "i32", m.op("add", "i32", bits, 0x400000), 23)
    least = m.convert("zext", m.op("icmp ugt", "i32", bits, 0x400000), "i1", "i32")
    code = m.select(m.op("icmp ult", "i32", bits, 0x800000), "i32", least, rounded)
    outside = m.op("icmp uge", "i32", m.op("sub", "i32", bits, 1), _INFINITY - 1)
    return m.select(outside, "i32", 255, code)


def _float_code(m: Vectors, bits: Text, format_: SmallFormat) -> Text:
    """Rounding in the f32's fraction; denormals by an addition that puts their unit at the end of the fraction."""
    shift = 23 - format_.fraction
    size = m.op("and", "i32", bits, 0x7FFFFFFF)
    odd = m.op("and", "i32", m.op("lshr", "i32", size, shift), 1)
    bias = (format_.bias - 127) * (1 << 23) + (1 << (shift - 1)) - 1
    normal = m.op("lshr", "i32", m.op("add", "i32", m.op("add", "i32", size, bias), odd), shift)
    exponent = 24 - format_.bias - format_.fraction
    moved = m.op("fadd", "float", m.convert("bitcast", size, "i32", "float"), m.number(2.0**exponent))
    denormal = m.op("sub", "i32", m.convert("bitcast", moved, "float", "i32"), (127 + exponent) << 23)
    is_denormal = m.op("icmp ult", "i32", size, (128 - format_.bias) << 23)
    code = m.select(is_denormal, "i32", denormal, normal)
    code = m.select(m.op("icmp ugt", "i32", code, format_.largest), "i32", format_.beyond, code)
    sign = _sign(m, m.op("and", "i32", bits, -0x80000000), format_, up=False)
    return _signed_code(m, code, sign, m.op("icmp ugt", "i32", size, _INFINITY), format_)


def _signed_code(m: Vectors, code: Text, sign: Text, is_nan: Text, format_: SmallFormat) -> Text:
    if format_.nan is None:  # a NaN becomes a zero of the other sign
        return m.select(is_nan, "i32", m.op("xor", "i32", sign, format_.sign), m.op("or", "i32", code, sign))
    if format_.unsigned_zero:
        signed = m.select(m.op("icmp eq", "i32", code, 0), "i32", 0, m.op("or", "i32", code, sign))
        return m.select(is_nan, "i32", format_.nan, signed)
    return m.op("or", "i32", m.select(is_nan, "i32", format_.nan, code), sign)
