"""Loop fusion: kernels that run over the same index box into one.

A producer and its elementwise readers become one loop in which the intermediate is a scalar: the epilogue of a
contraction, an optimizer's several states, a copy into a variable or an output (which thereby becomes an update in
place). Siblings that read the same data share the pass over it, e.g. the two sums of a batch normalisation's
gradient. Sums of rows go into the loop through the rows that reads them, so that a row is in the cache the second time.
What is left of shuffled axes becomes loops over the parts of their indices.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from glowtrain.loops import Buffer
from glowtrain.program.analysis.kernel_facts import conflict
from glowtrain.program.passes.loop_fusion.fuse_pair import LIMITS, OTHER_POINTS, Box, Limits, fuse_pair
from glowtrain.program.passes.loop_fusion.fuse_rows import RowLoop, fuse_rows
from glowtrain.program.passes.loop_fusion.quotients import split_quotients
from glowtrain.program.passes.partial_sums import without_stores
from glowtrain.program.program import Instruction, Kernel, Program
from glowtrain.stages import Explain, Refused


@dataclass(frozen=True)
class FuseLoops:
    """The pass, with limits of what one kernel may become."""

    limits: Limits = LIMITS
    explain: Explain | None = None

    def run(self, program: Program) -> Program:
        """The same program in fewer kernels."""
        outputs = frozenset(program.outputs.values())
        fused = fuse_loops(program.instructions, outputs, self)
        return replace(program, instructions=tuple(map(split_quotients, fused))).trimmed()


PLAIN = FuseLoops()

Rule = Callable[[Box, Instruction], "_Fused | Refused | None"]
"""A way to make one kernel of a loop over a box and a later instruction; ``None`` for one of another kind."""

OUT_OF_ORDER = Refused("what lies between them needs the first and is needed by the second")


@dataclass(frozen=True)
class _Fused:
    """One kernel in place of two, and what has to run ``before`` it of what lies between them, the last one first."""

    kernel: Kernel
    before: list[Instruction]


def fuse_loops(
    instructions: Sequence[Instruction], live_out: frozenset[Buffer] = frozenset(), how: FuseLoops = PLAIN
) -> tuple[Instruction, ...]:
    """Fuse kernels until nothing fits any more. ``live_out``: buffers that other
    instructions read."""
    prepared: list[Instruction] = []
    for instruction in instructions:
        if instruction.children:
            outside = frozenset(b for other in instructions if other is not instruction for b in other.reads) | live_out
            instruction = instruction.with_children(fuse_loops(instruction.children, outside, how))
        prepared.append(instruction)
    return tuple(_Fusion(prepared, live_out, how).run())


class _Fusion:
    """The instructions in order, with holes where two became one, and who reads and writes each buffer."""

    def __init__(self, instructions: Sequence[Instruction], live_out: frozenset[Buffer], how: FuseLoops) -> None:
        self.how = how
        self.order: list[Instruction | None] = list(instructions)
        self.live_out = live_out
        self.at = {instruction: position for position, instruction in enumerate(instructions)}
        self.readers: dict[Buffer, set[Instruction]] = {}
        self.writers: dict[Buffer, set[Instruction]] = {}
        self.boxes: dict[Instruction, Box | None] = {}
        for instruction in instructions:
            self._enter(instruction)

    def _enter(self, instruction: Instruction) -> None:
        for buffer in instruction.reads:
            self.readers.setdefault(buffer, set()).add(instruction)
        for buffer in instruction.writes:
            self.writers.setdefault(buffer, set()).add(instruction)

    def _leave(self, instruction: Instruction) -> None:
        for buffer in instruction.reads:
            self.readers[buffer].remove(instruction)
        for buffer in instruction.writes:
            self.writers[buffer].remove(instruction)

    def run(self) -> list[Instruction]:
        for instruction in list(self.at):
            self._trim(instruction)
        for rule in (self._pair, self._rows):
            self._exhaust(rule)
        return [instruction for instruction in self.order if instruction is not None]

    def _exhaust(self, rule: Rule) -> None:
        """Fuse by one rule until it finds nothing any more."""
        position = 0
        while position < len(self.order):
            first = self.order[position]
            if first is None or not self._absorb(first, rule):
                position += 1

    def _trim(self, instruction: Instruction) -> None:
        """Drop what a kernel of several results stores for nobody, such as the indices for MaxPool's backward."""
        box = self._box(instruction)
        if box is None or len(box.stores) < 2:
            return
        kernel = self._without_private(box.kernel)
        if kernel is instruction or not kernel.writes:
            return
        self._leave(instruction)
        self._enter(kernel)
        position = self.at[kernel] = self.at.pop(instruction)
        self.order[position] = kernel

    def _absorb(self, first: Instruction, rule: Rule) -> bool:
        """Fuse one later kernel into ``first``, if any fits."""
        a = self._box(first)
        if a is None:
            return False
        for second in self._followers(a):
            found = rule(a, second)
            if isinstance(found, _Fused):
                self._place(first, second, found)
                return True
            if found is not None and self.how.explain is not None:
                self.how.explain(f"{a.kernel.name} with {second.name}", found.why)
        return False

    def _pair(self, first: Box, second: Instruction) -> _Fused | Refused | None:
        """Two loops over equal boxes as one. Most that fit are far apart, so their order is asked first."""
        b = self._box(second)
        if b is None:
            return None
        if first.size != b.size:
            return OTHER_POINTS
        before = self._needed(first.kernel, second)
        if before is None:
            return OUT_OF_ORDER
        fused = fuse_pair(first, b, self.how.limits)
        return fused if isinstance(fused, Refused) else _Fused(fused, before)

    def _rows(self, first: Box, second: Instruction) -> _Fused | Refused | None:
        """Sums of rows and a loop through the rows as one. Few fit, so their order is asked last."""
        b = RowLoop.of(second) if first.reduces and first.kernel.written & set(second.reads) else None
        if b is None:
            return None
        fused = fuse_rows(first, b, self.how.limits)
        if isinstance(fused, Refused):
            return fused
        before = self._needed(first.kernel, second)
        return OUT_OF_ORDER if before is None else _Fused(fused, before)

    def _box(self, instruction: Instruction) -> Box | None:
        if instruction not in self.boxes:
            self.boxes[instruction] = Box.of(instruction)
        return self.boxes[instruction]

    def _followers(self, first: Box) -> list[Instruction]:
        """Later instructions that read what ``first`` writes, or much of what it reads."""
        position = self.at[first.kernel]
        shared = [*first.kernel.writes, *(b for b in first.kernel.reads if b.type.size >= first.size)]
        found = {r for buffer in shared for r in self.readers.get(buffer, ()) if self.at[r] > position}
        return sorted(found, key=self.at.__getitem__)

    def _place(self, first: Instruction, second: Instruction, found: _Fused) -> None:
        """Put a fused kernel in place of both, with what the later one needs moved before it."""
        self._leave(first)
        self._leave(second)
        fused = self._without_private(found.kernel)
        self._enter(fused)
        self._rearrange(self.at.pop(first), self.at.pop(second), found.before, fused)

    def _needed(self, first: Instruction, second: Instruction) -> list[Instruction] | None:
        """What lies between the two and must run before the second, last ones first; ``None`` where some of it must run
        after the first.

        The search goes to the earliest ones at once, as those are most likely to need the first.
        """
        low = self.at[first]
        waiting = [self.at[second]]
        found: dict[int, Instruction] = {}
        while waiting:
            high = heapq.heappop(waiting)
            instruction = self.order[high]
            assert instruction is not None
            for other in self._conflicting(instruction):
                position = self.at[other]
                if low < position < high and position not in found:
                    if conflict(first, other):
                        return None
                    found[position] = other
                    heapq.heappush(waiting, position)
        return [found[position] for position in sorted(found, reverse=True)]

    def _conflicting(self, instruction: Instruction) -> Iterable[Instruction]:
        """Instructions, earlier and later ones, whose order with this one counts."""
        for buffer in instruction.operands:
            yield from self.writers.get(buffer, ())
        for buffer in instruction.writes:
            yield from self.readers.get(buffer, ())

    def _rearrange(self, low: int, high: int, before: list[Instruction], fused: Kernel) -> None:
        """In the positions from ``low`` to ``high``: what must come before, the fused kernel, the rest, a hole."""
        if not before:
            self.order[low], self.order[high], self.at[fused] = fused, None, low
            return
        moved = set(before)
        rest = [i for i in self.order[low + 1 : high] if i is not None and i not in moved]
        placed: list[Instruction] = [*reversed(before), fused, *rest]
        self.order[low : high + 1] = [*placed, *[None] * (high + 1 - low - len(placed))]
        self.at.update(zip(placed, range(low, high), strict=False))

    def _without_private(self, kernel: Kernel) -> Kernel:
        """Drop stores to activations that nobody reads."""
        private = [buffer for buffer in kernel.writes if self._private(buffer)]
        if not private:
            return kernel
        read = {load.buffer for statement in kernel.flat for load in statement.loads}
        return without_stores(kernel, [buffer for buffer in private if buffer not in read])

    def _private(self, buffer: Buffer) -> bool:
        """Whether nothing but the kernel that writes it could want a buffer's contents."""
        return buffer.kind == "activation" and buffer not in self.live_out and not self.readers.get(buffer)
