"""AVX2 and AVX-512: vectors of f32 rounded into one vector of bytes.

LLVM would clamp each vector from both sides and narrow it by itself. A pack narrows two vectors into one and
saturates: from 32 bits to 16, where the zero point is added, and from 16 to 8. Only numbers too large for i32 must be
clamped before: conversion turns them into the smallest i32 (and NaN too, which so becomes the lower bound).
"""

from __future__ import annotations

from collections.abc import Mapping

from glowtrain.backends.llvm.formats import NativeConversion, Vectors
from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.text import Text, splat_constant, vector

_INSTRUCTIONS: Mapping[int, tuple[str, str]] = {
    256: ("avx2", "llvm.x86.avx2.{}"),
    512: ("avx512f", "llvm.x86.avx512.{}.512"),
}
"""By the bits of a vector: the family that has the packs, and LLVM's names of them."""
_PACKS: Mapping[str, tuple[str, str, int, int]] = {"u8": ("packuswb", "u", 0, 255), "i8": ("packsswb", "s", -128, 127)}
"""The last pack, the prefix of min and max, and the bounds that it saturates to."""
_LARGEST_ZERO = 255
"""What was cut off at 16 bits is outside of a byte still after a zero point of this size is added."""
_ENOUGH = 2.0**30
"""Fits i32, and packs cut it off."""


def packs(dtype: str, width: int, zero: int, target: Target) -> bool:
    """Whether a target packs so many lanes of f32, two or four vectors, into bytes of this type."""
    family, _ = _INSTRUCTIONS.get(target.vector_bits, ("", ""))
    lanes = target.width("f32")
    return (
        dtype in _PACKS and width in (4 * lanes, 2 * lanes) and abs(zero) <= _LARGEST_ZERO and family in target.families
    )


def packed(
    m: Vectors, value: Text, native: NativeConversion, dtype: str, *, zero: int, bounds: tuple[int, int]
) -> Text:
    """round(value) + zero, cut off at the bounds (inclusive): as many bytes as lanes of f32, of two or four vectors."""
    pack, sign, least, greatest = _PACKS[dtype]
    lanes = native.lanes
    whole = native.in_pieces(m, value, native.rounding, _not_too_large)
    vectors = [m.part("i32", whole, at, lanes) for at in range(0, m.width, lanes)]
    halves = [_pack(m, "packssdw", lanes, 32, *vectors[at : at + 2]) for at in range(0, len(vectors), 2)]
    if zero:
        shift = splat_constant(str(zero), "i16", 2 * lanes)
        halves = [_call(m, "sadd.sat", 2 * lanes, 16, half, shift) for half in halves]
    result = _in_order(m, lanes, _pack(m, pack, 2 * lanes, 16, halves[0], halves[-1]))
    low, high = bounds
    for cut, bound, saturated in (("max", low, low == least), ("min", high, high == greatest)):
        if not saturated:
            result = _call(m, f"{sign}{cut}", m.width, 8, result, splat_constant(str(bound), "i8", m.width))
    return result


def _not_too_large(m: Vectors, value: Text) -> Text:
    enough = m.number(_ENOUGH)
    return m.select(m.op("fcmp ogt", "float", value, enough), "float", enough, value)


def _pack(m: Vectors, name: str, lanes: int, bits: int, a: Text, b: Text) -> Text:
    """Two vectors of integers as one of half the bits."""
    _, spelled = _INSTRUCTIONS[lanes * bits]
    kind, narrow = vector(f"i{bits}", lanes), vector(f"i{bits // 2}", 2 * lanes)
    return m.f.value(f"call {narrow} @{spelled.format(name)}({kind} {a}, {kind} {b})")


def _call(m: Vectors, name: str, lanes: int, bits: int, a: Text, b: Text) -> Text:
    """LLVM's operation of two vectors of integers."""
    kind = vector(f"i{bits}", lanes)
    return m.f.value(f"call {kind} @llvm.{name}.v{lanes}i{bits}({kind} {a}, {kind} {b})")


def _in_order(m: Vectors, lanes: int, packed_: Text) -> Text:
    """Packs work within 128 bits: of each vector come the four bytes of its first 128 bits, then of the second, ..."""
    vectors, pieces = range(m.width // lanes), range(lanes // 4)
    order = (16 * piece + 4 * v + byte for v in vectors for piece in pieces for byte in range(4))
    places, kind = ", ".join(f"i32 {place}" for place in order), vector("i8", 4 * lanes)
    return m.f.value(f"shufflevector {kind} {packed_}, {kind} poison, <{m.width} x i32> <{places}>")
