"""Which activations are alive together: a dataflow analysis of its own, against which memory plans are checked.

An activation is alive at a place where some write may have happened and some read may follow. Writes that together
cover the whole buffer, with no read between them, end the need for what was there before; the body of a repeat runs
into itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.loops import Buffer
from glowtrain.program.analysis.exposed_reads import Exposure, reads
from glowtrain.program.analysis.write_coverage import covered, overwrites
from glowtrain.program.program import Instruction, Program
from glowtrain.types import Array

Buffers = frozenset[Buffer]


def live_sets(program: Program) -> list[tuple[Instruction, Buffers]]:
    """For every instruction that runs as one piece, nested ones too, in order: the activations that need their own
    memory while it runs."""
    analysis = _Liveness(tuple(program.leaves))
    analysis.backward(program.instructions, frozenset())
    analysis.forward(program.instructions, frozenset())
    return [(leaf, analysis.during(leaf)) for leaf in analysis.leaves]


@dataclass
class _Liveness:
    """May be read later (before and after each leaf), may have been written earlier."""

    leaves: tuple[Instruction, ...]
    needed: dict[Instruction, tuple[Buffers, Buffers]] = field(default_factory=dict)
    written: dict[Instruction, Buffers] = field(default_factory=dict)
    unread: dict[Buffer, Array] = field(default_factory=dict)
    """Elements of buffers that nothing reads: nothing needs to write them."""

    def during(self, leaf: Instruction) -> Buffers:
        before, after = self.needed[leaf]
        written = self.written[leaf]
        through = (before & written) | (after & (written | leaf.written))
        return frozenset(b for b in through | leaf.touched if b.kind == "activation")

    def backward(self, instructions: Sequence[Instruction], after: Buffers) -> Buffers:
        covers: dict[Buffer, Array] = {}
        for instruction in reversed(instructions):
            if instruction.is_leaf:
                ended = overwrites(instruction) | self._completed(instruction, covers)
                before = (after - ended) | frozenset(instruction.reads)
                self.needed[instruction] = before, after
                after = before
            else:
                again = self.backward(instruction.children, after)
                again = self.backward(instruction.children, after | again)
                if instruction.trips:
                    after = (after | again) - self._swept(instruction, covers)
        return after

    def forward(self, instructions: Sequence[Instruction], before: Buffers) -> Buffers:
        for instruction in instructions:
            if instruction.is_leaf:
                self.written[instruction] = before
                before |= instruction.written
            else:
                before = self.forward(instruction.children, before | instruction.written)
        return before

    def _completed(self, leaf: Instruction, covers: dict[Buffer, Array]) -> Buffers:
        """The activations of which an instruction writes what later ones do not, before any reads them.

        ``covers`` holds the elements of each that later ones write first, or that nothing reads, and is brought up to
        this one.
        """
        for buffer in leaf.reads:
            covers.pop(buffer, None)
        written = [b for b in leaf.writes if b.kind == "activation" and b not in leaf.reads]
        for buffer in written:
            covers[buffer] = self._covered(buffer, covers) | covered(buffer, leaf.stores())
        return frozenset(buffer for buffer in written if covers[buffer].all())

    def _swept(self, repeat: Instruction, covers: dict[Buffer, Array]) -> Buffers:
        """The same of a repeat: what its trips, and what follows it, write whole before any of it is read."""
        activations = [buffer for buffer in repeat.operands if buffer.kind == "activation"]
        for buffer in activations:
            found = Exposure.of(repeat, buffer)
            covers[buffer] = (found.written | self._covered(buffer, covers)) & ~found.read
        return frozenset(buffer for buffer in activations if covers[buffer].all())

    def _covered(self, buffer: Buffer, covers: dict[Buffer, Array]) -> Array:
        if buffer not in covers and buffer not in self.unread:
            found = (reads(leaf, buffer, {}) for leaf in self.leaves if buffer in leaf.touched)
            self.unread[buffer] = ~functools.reduce(np.logical_or, found)
        return covers[buffer] if buffer in covers else self.unread[buffer]
