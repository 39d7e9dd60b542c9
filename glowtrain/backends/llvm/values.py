"""Typed values: the text of an operand, ``%v7`` or a constant, with its LLVM type.

Types are made once each, so that two are the same if they are one object: what an instruction is written for can be
compared with what its operands are at no cost.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


@dataclass(frozen=True, eq=False)
class LlvmType:
    """``width`` lanes of ``scalar``, for width 1 the scalar itself. Made by :func:`vector`."""

    scalar: str
    width: int

    @cached_property
    def text(self) -> str:
        return self.scalar if self.width == 1 else f"<{self.width} x {self.scalar}>"

    def __str__(self) -> str:
        return self.text

    @cached_property
    def floats(self) -> bool:
        """Whether the lanes are floating-point numbers."""
        return self.scalar in _FLOAT_BITS

    @cached_property
    def bits(self) -> int:
        """Bits of a lane of floats or integers."""
        return _FLOAT_BITS[self.scalar] if self.floats else int(self.scalar[1:])

    @cached_property
    def size(self) -> int:
        """Bytes of a lane in memory."""
        return -(-self.bits // 8)

    @cached_property
    def suffix(self) -> str:
        """The suffix of intrinsics on this type, e.g. ``v8f32``."""
        code = f"{'f' if self.floats else 'i'}{self.bits}"
        return f"v{self.width}{code}" if self.width > 1 else code

    @cached_property
    def masks(self) -> LlvmType:
        """The type of a comparison."""
        return vector("i1", self.width)

    @cached_property
    def one(self) -> LlvmType:
        """One lane."""
        return vector(self.scalar)

    def of(self, scalar: str) -> LlvmType:
        """As many lanes of another scalar."""
        return vector(scalar, self.width)


_FLOAT_BITS = {"half": 16, "float": 32, "double": 64}


_TYPES: dict[tuple[str, int], LlvmType] = {}


def vector(scalar: str, width: int = 1) -> LlvmType:
    """The LLVM type of ``width`` lanes of ``scalar`` (the scalar type itself for width 1); always the same object."""
    made = _TYPES.get((scalar, width))
    return _TYPES.setdefault((scalar, width), LlvmType(scalar, width)) if made is None else made


class LlvmValue(NamedTuple):
    """An operand. In a text it stands as the operand without its type."""

    text: str
    type: LlvmType

    def __str__(self) -> str:
        return self.text

    @property
    def width(self) -> int:
        return self.type.width

    @property
    def typed(self) -> str:
        """As an argument of a call: ``float %v7``."""
        return f"{self.type.text} {self.text}"

    @property
    def is_constant(self) -> bool:
        return self.text[0] != "%"


Number = LlvmValue | int
"""An index or a count: a value of the function, or a number that is known while it is written."""

POINTER, I64, I32, I8, I1 = (vector(scalar) for scalar in ("ptr", "i64", "i32", "i8", "i1"))


def pointer(name: str) -> LlvmValue:
    """A parameter or other named pointer, e.g. ``%table``."""
    return LlvmValue(name, POINTER)


NULL = pointer("null")


def in_all_lanes(text: str, type_: LlvmType) -> LlvmValue:
    """The constant whose lanes all are the scalar constant ``text``, e.g. ``splat (float 0x3FF0000000000000)``."""
    return LlvmValue(text if type_.width == 1 else f"splat ({type_.scalar} {text})", type_)


def integer(value: int, type_: LlvmType) -> LlvmValue:
    """An integer in all lanes, taken modulo 2 ** bits as a signed number."""
    half = 1 << (type_.bits - 1)
    return in_all_lanes(str((value + half) % (2 * half) - half), type_)


def number(value: float, type_: LlvmType) -> LlvmValue:
    """A float in all lanes, rounded to the type."""
    return in_all_lanes(float_constant(value, type_.scalar), type_)


def zero(type_: LlvmType) -> LlvmValue:
    """0 in all lanes."""
    return LlvmValue("zeroinitializer" if type_.width > 1 else "0.0" if type_.floats else "0", type_)


def poison(type_: LlvmType) -> LlvmValue:
    """No particular value: what a vector is before its lanes are inserted."""
    return LlvmValue("poison", type_)


def first_lanes(width: int, count: int) -> LlvmValue:
    """The constant mask of the first ``count`` lanes."""
    return mask_of([lane < count for lane in range(width)])


def mask_of(lanes: Sequence[bool]) -> LlvmValue:
    """A constant mask."""
    text = "<" + ", ".join(f"i1 {'true' if lane else 'false'}" for lane in lanes) + ">"
    return LlvmValue(text, vector("i1", len(lanes)))


def float_constant(value: float, scalar: str = "float") -> str:
    """A float, double or half literal, exact (LLVM spells floats as the hexadecimal bits of a double)."""
    if scalar == "float":
        value = (
            struct.unpack("<f", struct.pack("<f", value))[0]
            if abs(value) <= 3.4028235677973366e38 or value != value
            else value
        )
    if scalar == "half":
        return f"0xH{struct.pack('>e', value).hex().upper()}"
    return f"0x{struct.pack('>d', value).hex().upper()}"
