"""AVX-512: vectors of f32 rounded into one vector of bytes.

LLVM would clamp and narrow each vector by itself (``vpmovdb``). A pack narrows two vectors into one and saturates: from
32 bits to 16, where the zero point is added, and from 16 to 8. Only numbers too large for i32 must be clamped before:
conversion turns them into the smallest i32 (and NaN too, which so becomes the lower bound).
"""

from __future__ import annotations

from collections.abc import Mapping

from glowtrain.backends.cpu.conversion import NativeConversion, Vectors
from glowtrain.backends.cpu.emit import Text, splat_constant
from glowtrain.backends.cpu.target import Target

_WIDTHS = (64, 32)
"""Lanes of f32 that are packed together: four vectors, or two."""
_LARGEST_ZERO = 255
"""What was cut off at 16 bits is outside of a byte still after a zero point of this size is added."""
_ENOUGH = 2.0**30
"""Fits i32, and packs cut it off."""
_PACKS: Mapping[str, tuple[str, str, int, int]] = {"u8": ("packuswb", "u", 0, 255), "i8": ("packsswb", "s", -128, 127)}
"""The last pack, the prefix of min and max, and the bounds that it saturates to."""


def packs(dtype: str, width: int, zero: int, target: Target) -> bool:
    """Whether a target packs so many lanes of f32 into bytes of this type."""
    return dtype in _PACKS and width in _WIDTHS and abs(zero) <= _LARGEST_ZERO and "avx512f" in target.families


def packed(
    m: Vectors, value: Text, native: NativeConversion, dtype: str, *, zero: int, bounds: tuple[int, int]
) -> Text:
    """round(value) + zero, cut off at the bounds (inclusive): as many bytes as lanes of f32, 32 or 64."""
    pack, sign, least, greatest = _PACKS[dtype]
    whole = native.in_pieces(m, value, native.rounding, _not_too_large)
    vectors = [m.part("i32", whole, at, 16) for at in range(0, m.width, 16)]
    halves = [_pack(m, "packssdw", 16, "i32", *vectors[at : at + 2]) for at in range(0, len(vectors), 2)]
    if zero:
        shift = splat_constant(str(zero), "i16", 32)
        halves = [_call(m, "llvm.sadd.sat.v32i16", "<32 x i16>", half, shift) for half in halves]
    result = _in_order(m, _pack(m, pack, 32, "i16", halves[0], halves[-1]))
    low, high = bounds
    for cut, bound, saturated in (("max", low, low == least), ("min", high, high == greatest)):
        if not saturated:
            limit = splat_constant(str(bound), "i8", m.width)
            result = _call(m, f"llvm.{sign}{cut}.v{m.width}i8", f"<{m.width} x i8>", result, limit)
    return result


def _not_too_large(m: Vectors, value: Text) -> Text:
    enough = m.number(_ENOUGH)
    return m.select(m.op("fcmp ogt", "float", value, enough), "float", enough, value)


def _pack(m: Vectors, name: str, lanes: int, scalar: str, a: Text, b: Text) -> Text:
    kind, narrow = f"<{lanes} x {scalar}>", f"<{2 * lanes} x i{int(scalar[1:]) // 2}>"
    return m.f.value(f"call {narrow} @llvm.x86.avx512.{name}.512({kind} {a}, {kind} {b})")


def _call(m: Vectors, name: str, kind: str, a: Text, b: Text) -> Text:
    return m.f.value(f"call {kind} @{name}({kind} {a}, {kind} {b})")


def _in_order(m: Vectors, packed_: Text) -> Text:
    """Packs work within 128 bits: of each vector come the four bytes of its first 128 bits, then of the second, ..."""
    vectors = range(m.width // 16)
    order = (16 * quarter + 4 * v + byte for v in vectors for quarter in range(4) for byte in range(4))
    places = ", ".join(f"i32 {place}" for place in order)
    return m.f.value(f"shufflevector <64 x i8> {packed_}, <64 x i8> poison, <{m.width} x i32> <{places}>")
