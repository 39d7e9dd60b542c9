"""AVX2 and AVX-512: vectors of f32 rounded into one vector of bytes.

LLVM would clamp each vector from both sides and narrow it by itself. A pack narrows two vectors into one and
saturates: from 32 bits to 16, where the zero point is added, and from 16 to 8. Only numbers too large for i32 must be
clamped before: conversion turns them into the smallest i32 (and NaN too, which so becomes the lower bound).
"""

from __future__ import annotations

from collections.abc import Mapping

from glowtrain.backends.llvm.formats import NativeConversion
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, in_all_lanes, number, vector
from glowtrain.backends.target import Target

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
    f: LlvmFunction, value: LlvmValue, native: NativeConversion, dtype: str, *, zero: int, bounds: tuple[int, int]
) -> LlvmValue:
    """round(value) + zero, cut off at the bounds (inclusive): as many bytes as lanes of f32, of two or four vectors."""
    pack, sign, least, greatest = _PACKS[dtype]
    lanes = native.lanes
    whole = native.in_pieces(f, value, native.rounding, _not_too_large)
    vectors = [f.part(whole, at, lanes) for at in range(0, value.width, lanes)]
    halves = [_pack(f, "packssdw", *vectors[at : at + 2]) for at in range(0, len(vectors), 2)]
    if zero:
        halves = [f.intrinsic("sadd.sat", half, in_all_lanes(str(zero), half.type)) for half in halves]
    result = _in_order(f, value.width, lanes, _pack(f, pack, halves[0], halves[-1]))
    low, high = bounds
    for cut, bound, saturated in (("max", low, low == least), ("min", high, high == greatest)):
        if not saturated:
            result = f.intrinsic(f"{sign}{cut}", result, in_all_lanes(str(bound), result.type))
    return result


def _not_too_large(f: LlvmFunction, value: LlvmValue) -> LlvmValue:
    enough = number(_ENOUGH, value.type)
    return f.select(f.compare("ogt", value, enough), enough, value)


def _pack(f: LlvmFunction, name: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """Two vectors of integers as one of half the bits."""
    lanes, bits = a.width, a.type.bits
    _, spelled = _INSTRUCTIONS[lanes * bits]
    return f.call(spelled.format(name), vector(f"i{bits // 2}", 2 * lanes), a, b)


def _in_order(f: LlvmFunction, width: int, lanes: int, packed_: LlvmValue) -> LlvmValue:
    """Packs work within 128 bits: of each vector come the four bytes of its first 128 bits, then of the second, ..."""
    vectors, pieces = range(width // lanes), range(lanes // 4)
    order = (16 * piece + 4 * v + byte for v in vectors for piece in pieces for byte in range(4))
    return f.shuffle(packed_, None, order)
