"""Element types that are only stored, as LLVM code: 4- to 8-bit floats to f32 and back, small integers to i32 and back.

In registers and in memory a lane is a byte with the element's bits at its low end. Results are those of ml_dtypes:
rounding to nearest, ties to even; what is too large becomes infinite, NaN or (in formats with neither) the largest
number. The formats are those of Micikevicius et al., "FP8 formats for deep learning" (2022), their fnuz variants
(Noune et al., 2022), and OCP Microscaling (2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, number
from glowtrain.types import DTYPES, SMALL_INTEGERS

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


def widened(f: LlvmFunction, value: LlvmValue, dtype: str) -> LlvmValue:
    """i8 lanes of codes as f32 lanes (floats) or i32 lanes (integers)."""
    if dtype in INTEGERS:
        bits, signed = INTEGERS[dtype]
        spare = 8 - bits
        top = f.op("shl", value, spare)
        return f.convert("sext" if signed else "zext", f.op("ashr" if signed else "lshr", top, spare), "i32")
    code = f.convert("zext", value, "i32")
    format_ = FORMATS[dtype]
    bits_ = _power_bits(f, code) if format_ is None else _float_bits(f, code, format_)
    return f.convert("bitcast", bits_, "float")


def _power_bits(f: LlvmFunction, code: LlvmValue) -> LlvmValue:
    """2 ** (code - 127); 255 is NaN."""
    bits = f.select(f.compare("eq", code, 0), 0x400000, f.op("shl", code, 23))
    return f.select(f.compare("eq", code, 255), _INFINITY | 0x400000, bits)


def _float_bits(f: LlvmFunction, code: LlvmValue, format_: SmallFormat) -> LlvmValue:
    """Fields moved into place; the product with a power of two mends the exponent and normalises denormals."""
    size = f.op("and", code, format_.sign - 1)
    placed = f.op("shl", size, 23 - format_.fraction)
    scaled = f.op(
        "fmul", f.convert("bitcast", placed, "float"), number(2.0 ** (127 - format_.bias), code.type.of("float"))
    )
    bits = f.convert("bitcast", scaled, "i32")
    sign = _sign(f, f.op("and", code, format_.sign), format_, up=True)
    if format_.unsigned_zero:
        nan = f.compare("eq", code, 0x80)
        return f.select(nan, -0x400000, f.op("or", bits, sign))
    if format_.nan is None:
        return f.op("or", bits, sign)
    nan = f.compare("ugt", size, format_.nan - 1 if format_.nan == format_.beyond else format_.beyond)
    bits = f.select(f.compare("ugt", size, format_.largest), _INFINITY, bits)
    return f.op("or", f.select(nan, _INFINITY | 0x400000, bits), sign)


def _sign(f: LlvmFunction, bit: LlvmValue, format_: SmallFormat, *, up: bool) -> LlvmValue:
    """The sign bit carried between its place in a code and bit 31."""
    return f.op("shl" if up else "lshr", bit, 32 - format_.sign.bit_length())


def narrowed(f: LlvmFunction, value: LlvmValue, dtype: str) -> LlvmValue:
    """f32 lanes (floats) or i32 lanes (integers) as i8 lanes of codes; integers wrap."""
    if dtype in INTEGERS:
        return f.op("and", f.convert("trunc", value, "i8"), (1 << INTEGERS[dtype][0]) - 1)
    bits = f.convert("bitcast", value, "i32")
    format_ = FORMATS[dtype]
    code = _power_code(f, bits) if format_ is None else _float_code(f, bits, format_)
    return f.convert("trunc", code, "i8")


def _power_code(f: LlvmFunction, bits: LlvmValue) -> LlvmValue:
    """The exponent after rounding; 255 for all that is not positive, NaN or too large.

    The least number, 2**-127, is a denormal of f32; what lies between it and the next is rounded up, as in ml_dtypes.
    """
    rounded = f.op("lshr", f.op("add", bits, 0x400000), 23)
    least = f.convert("zext", f.compare("ugt", bits, 0x400000), "i32")
    code = f.select(f.compare("ult", bits, 0x800000), least, rounded)
    outside = f.compare("uge", f.op("sub", bits, 1), _INFINITY - 1)
    return f.select(outside, 255, code)


def _float_code(f: LlvmFunction, bits: LlvmValue, format_: SmallFormat) -> LlvmValue:
    """Rounding in the f32's fraction; denormals by an addition that puts their unit at the end of the fraction."""
    shift = 23 - format_.fraction
    size = f.op("and", bits, 0x7FFFFFFF)
    odd = f.op("and", f.op("lshr", size, shift), 1)
    bias = (format_.bias - 127) * (1 << 23) + (1 << (shift - 1)) - 1
    normal = f.op("lshr", f.op("add", f.op("add", size, bias), odd), shift)
    exponent = 24 - format_.bias - format_.fraction
    moved = f.op("fadd", f.convert("bitcast", size, "float"), number(2.0**exponent, bits.type.of("float")))
    denormal = f.op("sub", f.convert("bitcast", moved, "i32"), (127 + exponent) << 23)
    is_denormal = f.compare("ult", size, (128 - format_.bias) << 23)
    code = f.select(is_denormal, denormal, normal)
    code = f.select(f.compare("ugt", code, format_.largest), format_.beyond, code)
    sign = _sign(f, f.op("and", bits, -0x80000000), format_, up=False)
    return _signed_code(f, code, sign, f.compare("ugt", size, _INFINITY), format_)


def _signed_code(
    f: LlvmFunction, code: LlvmValue, sign: LlvmValue, is_nan: LlvmValue, format_: SmallFormat
) -> LlvmValue:
    if format_.nan is None:  # a NaN becomes a zero of the other sign
        return f.select(is_nan, f.op("xor", sign, format_.sign), f.op("or", code, sign))
    if format_.unsigned_zero:
        signed = f.select(f.compare("eq", code, 0), 0, f.op("or", code, sign))
        return f.select(is_nan, format_.nan, signed)
    return f.op("or", f.select(is_nan, format_.nan, code), sign)
