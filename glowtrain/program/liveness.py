"""Which activations are alive together: a dataflow analysis of its own, against which memory plans are checked.

An activation is alive at a place where some write may have happened and some read may follow. A write that covers the
whole buffer ends the need for what was there before; the body of a repeat runs into itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glowtrain.loops import Buffer
from glowtrain.program.coverage import overwrites
from glowtrain.program.program import Instruction, Kernel, Program

Buffers = frozenset[Buffer]


def live_sets(program: Program) -> list[tuple[Kernel, Buffers]]:
    """For every kernel, nested ones too, in order: the activations that need their own memory while it runs."""
    analysis = _Liveness()
    analysis.backward(program.instructions, frozenset())
    analysis.forward(program.instructions, frozenset())
    return [(kernel, analysis.during(kernel)) for kernel in program.kernels]


@dataclass
class _Liveness:
    """May be read later (before and after each kernel), may have been written earlier."""

    needed: dict[Kernel, tuple[Buffers, Buffers]] = field(default_factory=dict)
    written: dict[Kernel, Buffers] = field(default_factory=dict)

    def during(self, kernel: Kernel) -> Buffers:
        before, after = self.needed[kernel]
        written = self.written[kernel]
        through = (before & written) | (after & (written | frozenset(kernel.writes)))
        return frozenset(b for b in through | frozenset(kernel.operands) if b.kind == "activation")

    def backward(self, instructions: Sequence[Instruction], after: Buffers) -> Buffers:
        for instruction in reversed(instructions):
            if isinstance(instruction, Kernel):
                before = (after - overwrites(instruction)) | frozenset(instruction.reads)
                self.needed[instruction] = before, after
                after = before
            else:
                again = self.backward(instruction.body, after)
                after = self.backward(instruction.body, after | again) | after
        return after

    def forward(self, instructions: Sequence[Instruction], before: Buffers) -> Buffers:
        for instruction in instructions:
            if isinstance(instruction, Kernel):
                self.written[instruction] = before
                before |= frozenset(instruction.writes)
            else:
                before = self.forward(instruction.body, before | frozenset(instruction.writes))
        return before
