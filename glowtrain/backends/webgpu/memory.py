"""Where a kernel's buffers lie on the device: in three memories, by offsets that each dispatch is given.

``work`` holds the arena, inputs and outputs; ``variables`` those of a state; ``constants`` what never changes. All are
arrays of u32. Elements of less than 32 bits are parts of a word: a kernel that writes some does it by atomic
operations, as its invocations share words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glowtrain.backends.webgpu.scalar import PAIRS, WgslValue, bits, computed_in, of_bits
from glowtrain.loops import Buffer

MEMORIES = ("work", "variables", "constants")
"""In the order of their bindings."""
WORD = 4


def memory_of(buffer: Buffer) -> str:
    """Which memory holds a buffer."""
    return {"variable": "variables", "constant": "constants"}.get(buffer.kind, "work")


@dataclass(frozen=True)
class KernelMemory:
    """The buffers of a kernel: ``bases`` names the word at which each begins, ``atomic`` the memories in which words
    are shared by elements that are written."""

    bases: Mapping[Buffer, str]
    atomic: frozenset[str]

    @classmethod
    def of(cls, operands: Sequence[Buffer], writes: Sequence[Buffer]) -> KernelMemory:
        """Those of a kernel with these operands. Raises :class:`CodegenError` for a type that WGSL cannot hold."""
        for buffer in operands:
            computed_in(buffer.dtype)
        parts = (buffer for buffer in writes if buffer.dtype.size < WORD)
        return cls({buffer: f"base{k}" for k, buffer in enumerate(operands)}, frozenset(map(memory_of, parts)))

    def declarations(self) -> list[str]:
        """The bindings of the three memories."""
        return [
            f"@group(0) @binding({at}) var<storage, {'read' if name == 'constants' else 'read_write'}> {name}: "
            f"array<{'atomic<u32>' if name in self.atomic else 'u32'}>;"
            for at, name in enumerate(MEMORIES)
        ]

    def load(self, buffer: Buffer, offset: str) -> WgslValue:
        """The element at an offset, a u32."""
        type_ = computed_in(buffer.dtype)
        if type_ in PAIRS:
            return WgslValue(
                f"vec2<u32>({self._word(buffer, f'2u * {offset}')}, {self._word(buffer, f'2u * {offset} + 1u')})", type_
            )
        if buffer.dtype.size == WORD:
            return WgslValue(of_bits(self._word(buffer, offset), buffer.dtype), type_)
        word, shift, mask = _part(buffer, offset)
        return WgslValue(of_bits(f"(({self._word(buffer, word)} >> {shift}) & {mask}u)", buffer.dtype), type_)

    def store(self, buffer: Buffer, offset: str, value: WgslValue) -> list[str]:
        """The lines that write an element."""
        if value.type in PAIRS:
            low, high = f"2u * {offset}", f"2u * {offset} + 1u"
            return [self._write(buffer, low, f"{value.text}.x"), self._write(buffer, high, f"{value.text}.y")]
        if buffer.dtype.size == WORD:
            return [self._write(buffer, offset, bits(value, buffer.dtype))]
        word, shift, mask = _part(buffer, offset)
        target = f"&{self._element(buffer, word)}"
        return [
            f"atomicAnd({target}, ~({mask}u << {shift}));",
            f"atomicOr({target}, ({bits(value, buffer.dtype)}) << {shift});",
        ]

    def _element(self, buffer: Buffer, word: str) -> str:
        return f"{memory_of(buffer)}[{self.bases[buffer]} + {word}]"

    def _word(self, buffer: Buffer, word: str) -> str:
        element = self._element(buffer, word)
        return f"atomicLoad(&{element})" if memory_of(buffer) in self.atomic else element

    def _write(self, buffer: Buffer, word: str, text: str) -> str:
        element = self._element(buffer, word)
        atomic = memory_of(buffer) in self.atomic
        return f"atomicStore(&{element}, {text});" if atomic else f"{element} = {text};"


def _part(buffer: Buffer, offset: str) -> tuple[str, str, int]:
    """The word of an element of less than 32 bits, how far up it lies in it, and the mask of its bits."""
    size = buffer.dtype.size
    each = WORD // size
    power = each.bit_length() - 1
    return f"({offset} >> {power}u)", f"(({offset} & {each - 1}u) * {8 * size}u)", (1 << 8 * size) - 1
