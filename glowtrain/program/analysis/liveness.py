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
from glowtrain.program.analysis.write_coverage import covered, overwrites, stores_of
from glowtrain.program.program import Instruction, Kernel, Program, Repeat
from glowtrain.types import Array

Buffers = frozenset[Buffer]


def live_sets(program: Program) -> list[tuple[Kernel, Buffers]]:
    """For every kernel, nested ones too, in order: the activations that need their own memory while it runs."""
    analysis = _Liveness(tuple(program.kernels))
    analysis.backward(program.instructions, frozenset())
    analysis.forward(program.instructions, frozenset())
    return [(kernel, analysis.during(kernel)) for kernel in analysis.kernels]


@dataclass
class _Liveness:
    """May be read later (before and after each kernel), may have been written earlier."""

    kernels: tuple[Kernel, ...]
    needed: dict[Kernel, tuple[Buffers, Buffers]] = field(default_factory=dict)
    written: dict[Kernel, Buffers] = field(default_factory=dict)
    unread: dict[Buffer, Array] = field(default_factory=dict)
    """Elements of buffers that no kernel reads: nothing needs to write them."""

    def during(self, kernel: Kernel) -> Buffers:
        before, after = self.needed[kernel]
        written = self.written[kernel]
        through = (before & written) | (after & (written | frozenset(kernel.writes)))
        return frozenset(b for b in through | frozenset(kernel.operands) if b.kind == "activation")

    def backward(self, instructions: Sequence[Instruction], after: Buffers) -> Buffers:
        covers: dict[Buffer, Array] = {}
        for instruction in reversed(instructions):
            if isinstance(instruction, Kernel):
                ended = overwrites(instruction) | self._completed(instruction, covers)
                before = (after - ended) | frozenset(instruction.reads)
                self.needed[instruction] = before, after
                after = before
            else:
                again = self.backward(instruction.body, after)
                again = self.backward(instruction.body, after | again)
                if instruction.index.extent:
                    after = (after | again) - self._swept(instruction, covers)
        return after

    def forward(self, instructions: Sequence[Instruction], before: Buffers) -> Buffers:
        for instruction in instructions:
            if isinstance(instruction, Kernel):
                self.written[instruction] = before
                before |= frozenset(instruction.writes)
            else:
                before = self.forward(instruction.body, before | frozenset(instruction.writes))
        return before

    def _completed(self, kernel: Kernel, covers: dict[Buffer, Array]) -> Buffers:
        """The activations of which a kernel writes what later kernels do not, before any reads them.

        ``covers`` holds the elements of each that later kernels write first, or that nothing reads, and is brought up
        to this kernel.
        """
        for buffer in kernel.reads:
            covers.pop(buffer, None)
        written = [b for b in kernel.writes if b.kind == "activation" and b not in kernel.reads]
        for buffer in written:
            covers[buffer] = self._covered(buffer, covers) | covered(buffer, stores_of(kernel.body))
        return frozenset(buffer for buffer in written if covers[buffer].all())

    def _swept(self, repeat: Repeat, covers: dict[Buffer, Array]) -> Buffers:
        """The same of a repeat: what its trips, and what follows it, write whole before any of it is read."""
        activations = [buffer for buffer in repeat.operands if buffer.kind == "activation"]
        for buffer in activations:
            found = Exposure.of(repeat, buffer)
            covers[buffer] = (found.written | self._covered(buffer, covers)) & ~found.read
        return frozenset(buffer for buffer in activations if covers[buffer].all())

    def _covered(self, buffer: Buffer, covers: dict[Buffer, Array]) -> Array:
        if buffer not in covers and buffer not in self.unread:
            found = (reads(kernel, buffer, {}) for kernel in self.kernels if buffer in kernel.touched)
            self.unread[buffer] = ~functools.reduce(np.logical_or, found)
        return covers[buffer] if buffer in covers else self.unread[buffer]
