"""Save activations for the backward part in bf16."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from glowtrain.loops import Accumulate, Buffer, statements
from glowtrain.memory.residuals import Residuals
from glowtrain.names import Names
from glowtrain.program.passes.loop_fusion.fuse_pair import Sums
from glowtrain.program.passes.residuals.decisions import decisive
from glowtrain.program.passes.residuals.forward_part import forward_part
from glowtrain.program.passes.residuals.storing import SUFFIX, Storing, reading, rounding
from glowtrain.program.program import Instruction, Program, Repeat, leaves_of
from glowtrain.types import bf16, f32

LEAST_PART = 512
"""The bytes of all saved activations over those of the smallest result that is stored in bf16: of smaller ones, as the
statistics of rows, little is gained."""
EXACT_FILLS = (None, 0, math.inf, -math.inf)
"""What may stand for elements outside of a result: numbers that bf16 has."""


@dataclass(frozen=True)
class Narrowed:
    """A program, and the buffers in bf16 in it by those in f32 that live no longer than the forward part reads them."""

    program: Program
    narrow: Mapping[Buffer, Buffer]


def narrow_saved(program: Program, residuals: Residuals, sums: Sums | None) -> Narrowed:
    """The program with what is saved for its backward part in bf16; sums keep the order that ``sums`` says."""
    names = Names(buffer.name for buffer in program.buffers)
    narrowing = _Narrowing(forward_part(program, residuals.forward), names, sums)
    instructions = narrowing.all(program.instructions, _shared(program))
    return Narrowed(replace(program, instructions=tuple(instructions)), narrowing.narrow)


def _shared(program: Program) -> set[Buffer]:
    """What a loop over parts of a batch shares with the rest of a program: it holds something from trip to trip."""
    loops = [loop for loop in program.instructions if isinstance(loop, Repeat) and loop.parts]
    inside = [set(loop.operands) for loop in loops]
    outside = [set(i.operands) for i in program.instructions if i not in loops]
    return {
        b for n, own in enumerate(inside) for other in (*outside, *inside[:n], *inside[n + 1 :]) for b in own & other
    }


class _Narrowing:
    """What was stored in bf16 so far, by the buffers in f32."""

    def __init__(self, forward: frozenset[Instruction], names: Names, sums: Sums | None) -> None:
        self.forward, self.names, self.sums = forward, names, sums
        self.narrow: dict[Buffer, Buffer] = {}

    def all(self, instructions: Sequence[Instruction], shared: set[Buffer]) -> list[Instruction]:
        """Instructions, and those in bodies of loops over parts, with what is saved in bf16."""
        inside = [self._inside(instruction, shared) for instruction in instructions]
        return _SavedActivations(inside, shared, self).stored()

    def _inside(self, instruction: Instruction, shared: set[Buffer]) -> Instruction:
        if not isinstance(instruction, Repeat) or not instruction.parts:
            return instruction
        narrowed = instruction.with_children(self.all(instruction.body, shared))
        if instruction in self.forward:
            self.forward |= {narrowed}
        return narrowed


class _SavedActivations:
    """Results of a list of instructions that are saved for the backward part of it."""

    def __init__(self, instructions: Sequence[Instruction], shared: set[Buffer], among: _Narrowing) -> None:
        self.instructions, self.among = list(instructions), among
        self.forward = [instruction in among.forward for instruction in instructions]
        self.touches: dict[Buffer, list[int]] = {}
        for position, instruction in enumerate(instructions):
            for buffer in instruction.operands:
                self.touches.setdefault(buffer, []).append(position)
        backward = [i for i, leads in zip(instructions, self.forward, strict=True) if not leads]
        self.exact = decisive(backward) | shared | _read_otherwise(backward)

    def stored(self) -> list[Instruction]:
        """The instructions with what is saved in bf16."""
        saved = [buffer for buffer in self.touches if self._is_saved(buffer)]
        least = sum(buffer.type.nbytes for buffer in saved) / LEAST_PART
        narrow: dict[Buffer, Buffer] = {}
        behind: dict[int, list[Instruction]] = {}
        for buffer in saved:
            if buffer.type.nbytes >= least:
                narrow[buffer] = self._store(buffer, behind)
        self.among.narrow.update(narrow)
        result: list[Instruction] = []
        for position, (instruction, leads) in enumerate(zip(self.instructions, self.forward, strict=True)):
            result += [instruction if leads else reading(instruction, narrow), *behind.get(position, ())]
        return result

    def _is_saved(self, buffer: Buffer) -> bool:
        """Whether a result of the forward part in f32 is kept through an instruction that does not touch it, for the
        backward part."""
        if buffer.kind != "activation" or buffer.dtype != f32 or buffer in self.exact:
            return False
        touches = self.touches[buffer]
        behind = [position for position in touches if not self.forward[position]]
        if not behind or any(buffer in self.instructions[position].written for position in behind):
            return False
        last = max((position for position in touches if self.forward[position]), default=None)
        if last is None or last > behind[0]:
            return False
        uses = [last, *behind]
        return any(after - before > 1 for before, after in pairwise(uses))

    def _store(self, buffer: Buffer, behind: dict[int, list[Instruction]]) -> Buffer:
        """Have a buffer stored in bf16 by the kernels that write it, or by one of its own behind the forward part."""
        name = self.among.names.fresh(buffer.name + SUFFIX)
        narrow = replace(buffer, name=name, type=replace(buffer.type, dtype=bf16))
        touching = [position for position in self.touches[buffer] if self.forward[position]]
        writing = [position for position in touching if buffer in self.instructions[position].written]
        unread = not any(buffer in self.instructions[position].reads for position in touching)
        storing = Storing(buffer, narrow, unread, self.among.sums)
        stored = [storing.narrowed_in(self.instructions[position]) for position in writing]
        if any(instruction is None for instruction in stored):
            behind.setdefault(touching[-1], []).append(rounding(buffer, narrow))
            return narrow
        for position, instruction in zip(writing, stored, strict=True):
            assert instruction is not None
            self.instructions[position] = instruction
        return narrow


def _read_otherwise(instructions: Sequence[Instruction]) -> set[Buffer]:
    """The buffers that somebody reads by something else than loads, or with a value in place of what is outside that
    bf16 lacks."""
    found: set[Buffer] = set()
    for leaf in leaves_of(instructions):
        kernel = leaf.kernel
        if kernel is None:
            found.update(leaf.operands)
            continue
        found.update(s.buffer for s in statements(kernel.body) if isinstance(s, Accumulate))
        found.update(load.buffer for load in kernel.survey.loads if load.fill not in EXACT_FILLS)
    return found
