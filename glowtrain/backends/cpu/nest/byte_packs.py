"""AVX-512: vectors of f32 rounded into one vector of bytes.

LLVM would cut off and narrow each vector for itself (``vpmovdb``). Packs make one of two, and saturate meanwhile: from
32 bits to 16, where a zero point is added, and from 16 to 8. Left to do before is to cut off what is too large for
i32, which the conversion would make the smallest (as it does NaN, which becomes the lower bound).
"""

from __future__ import annotations

from collections.abc import Mapping

from glowtrain.backends.cpu.conversion import NativeConversion, Vectors
from glowtrain.backends.cpu.emit import Text, splat_constant
from glowtrain.backends.cpu.target import Target

WIDTHS = (64, 32)
"""Lanes of f32 that are packed together: four vectors, or two."""
LARGEST_ZERO = 255
_ENOUGH = 2.0**30
_PACKS: Mapping[str, tuple[str, str, int, int]] = {"u8": ("packuswb", "u", 0, 255), "i8": ("packsswb", "s", -128, 127)}
"""The last pack, the prefix of min and max, and the bounds that it saturates to."""
_QUARTERS, _BYTES = range(4), range(4)


def packs(dtype: str, target: Target) -> bool:
    """Whether a target packs vectors to this type."""
    return dtype in _PACKS and target.vector_bits == 512 and "avx512f" in target.families


def packed(
    m: Vectors, value: Text, native: NativeConversion, dtype: str, *, zero: int, bounds: tuple[int, int]
) -> Text:
    """round(value) + zero, cut off at the bounds."""
    pack, sign, least, greatest = _PACKS[dtype]
    whole = native.in_pieces(m, value, native.rounding, _not_too_large)
    vectors = [m.part("i32", whole, at, 16) for at in range(0, m.width, 16)]
    halves = [_pack(m, "packssdw", 16, "i32", *vectors[at : at + 2]) for at in range(0, len(vectors), 2)]
    if zero:
        shift = splat_constant(str(zero), "i16", 32)
        halves = [_call(m, "llvm.sadd.sat.v32i16", "<32 x i16>", half, shift) for half in halves]
    result = _in_order(m, _pack(m, pack, 32, "i16", halves[0], halves[-1]))
    low, high = bounds
    for cut, bound, all_there in (("max", low, low == least), ("min", high, high == greatest)):
        if not all_there:
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
    """Packs work on quarters of vectors: four bytes of quarter 0 of each vector, then of quarter 1, ..."""
    vectors = range(m.width // 16)
    order = (16 * quarter + 4 * v + byte for v in vectors for quarter in _QUARTERS for byte in _BYTES)
    places = ", ".join(f"i32 {place}" for place in order)
    return m.f.value(f"shufflevector <64 x i8> {packed_}, <64 x i8> poison, <{m.width} x i32> <{places}>")
