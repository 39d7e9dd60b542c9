"""Count the bytes that are live at each instruction, while buffers are dropped and recomputed.

Positions are those of the given instructions. What is made again for an instruction is counted with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import compress, pairwise

import numpy as np

from glowtrain.loops import Buffer, Load, Ref
from glowtrain.program.passes.loop_fusion.fuse_pair import LIMITS, Limits
from glowtrain.program.passes.rematerialisation.holes import Change, Drop, Gap, Hole, Holes
from glowtrain.program.passes.rematerialisation.neighbours import in_one
from glowtrain.program.passes.rematerialisation.orders import keeps_orders
from glowtrain.program.passes.rematerialisation.recomputation import Recomputation, recomputation_kernel, stored_scalars
from glowtrain.program.passes.reuse import live_in_place
from glowtrain.program.passes.slices.cutting import loop_index
from glowtrain.program.passes.slices.slicing import SliceCut, Sliced
from glowtrain.program.program import Instruction, Kernel


class Timeline:
    """Instructions in order, who touches which buffer, the holes so far, and the bytes alive."""

    def __init__(
        self, instructions: Sequence[Instruction], limits: Limits = LIMITS, sliced: Sliced | None = None
    ) -> None:
        self.instructions, self.limits, self.sliced = instructions, limits, sliced
        self.live = np.array(live_in_place(instructions) if sliced is None else sliced.live(), np.int64)
        self.holes: dict[Buffer, tuple[Hole, ...]] = {}
        self.accesses: dict[Buffer, list[int]] = {}
        self.writers: dict[Buffer, list[int]] = {}
        for position, instruction in enumerate(instructions):
            for buffer in instruction.operands:
                self.accesses.setdefault(buffer, []).append(position)
            for buffer in instruction.writes:
                self.writers.setdefault(buffer, []).append(position)
        self._repeatable = {position for position in range(len(instructions)) if self._runs_twice(position)}
        self._recomputable = {buffer: at for at, buffer in enumerate(filter(self._can_recompute, self.accesses))}
        self._nbytes = np.array([buffer.type.nbytes for buffer in self._recomputable], np.int64)
        self._begins = np.array([self.accesses[buffer][0] for buffer in self._recomputable], np.int64)
        self._ends = np.array([self.accesses[buffer][-1] for buffer in self._recomputable], np.int64)
        self._scalars: dict[int, dict[Buffer, tuple[Ref, Load]]] = {}
        self._absorbed: dict[tuple[Recomputation, int], bool] = {}
        self._keeping: dict[Recomputation, bool] = {}
        self._siblings: dict[Buffer, dict[int, list[Buffer]]] = {}
        self._recomputations: dict[tuple[Buffer, frozenset[Buffer]], Recomputation] = {}
        self._alone: dict[Buffer, Recomputation] = {}  # of those with no siblings, as most are

    def copy(self) -> Timeline:
        """The same, to which drops can be applied that this one does not see; those that were found for one of both do
        not fit the other."""
        found = copy(self)
        found.live = self.live.copy()
        found.holes = dict(self.holes)
        found.accesses = dict(self.accesses)
        found._ends = self._ends.copy()
        return found

    @property
    def key(self) -> Holes:
        """Equal for timelines of the same instructions with the same holes."""
        holes = (hole for found in self.holes.values() for hole in found)
        return frozenset((hole.buffer, hole.begin, hole.end, hole.recomputation) for hole in holes)

    def _runs_twice(self, position: int) -> bool:
        kernel = self.instructions[position].kernel
        if kernel is None:
            return False
        read_back = kernel.written.intersection(kernel.reads)
        return all(own.kind == "activation" and self.accesses[own][0] == position for own in read_back)

    @property
    def is_sliced(self) -> bool:
        """Whether some instructions run in slices."""
        return self.sliced is not None and bool(self.sliced.cuts)

    @property
    def peak(self) -> int:
        """Bytes alive at most."""
        return int(self.live.max(initial=0))

    def drops(self, position: int, least: int) -> Iterator[Drop]:
        """The holes through an instruction that buffers of at least so many bytes could have."""
        found = (self.drop(gap, position) for gap in self.gaps(position, least))
        return (drop for drop in found if drop is not None)

    def gaps(self, position: int, least: int) -> Iterator[Gap]:
        """Where those holes would be, whether or not they can be."""
        alive = (self._begins <= position) & (position <= self._ends) & (self._nbytes >= least)
        for buffer in compress(self._recomputable, alive.tolist()):
            positions = self.accesses[buffer]
            after = bisect_left(positions, position)
            if after == 0 and positions[0] == position and self._need_not_store(buffer, position):
                after = 1
            elif positions[after : after + 1] == [position]:
                continue
            if 0 < after < len(positions) and self.hole(buffer, position) is None:
                yield Gap(buffer, positions[after - 1], positions[after])

    def beginning(self, gap: Gap, position: int) -> Recomputation:
        """The first of what such a drop would make again."""
        return self._alone.get(gap.buffer) or Demand(self, position).recomputation(gap.buffer, gap.end)

    def drop(self, gap: Gap, position: int) -> Drop | None:
        """A hole for a gap, with all that it takes, so that less is alive at an instruction; ``None`` if there can be
        none."""
        demand = Demand(self, position)
        return demand.drop() if demand.hole(gap.buffer, gap.begin, gap.end) else None

    def absorptions(self, position: int, least: int) -> Iterator[Drop]:
        """The holes up to an instruction, which makes again itself what it reads."""
        for buffer in self.instructions[position].reads:
            if buffer.kind == "activation" and buffer.type.nbytes >= least and self.recomputable(buffer):
                positions, demand = self.accesses[buffer], Demand(self, position)
                after = bisect_left(positions, position)
                if after > 0 and demand.absorb(buffer, positions[after - 1 :]):
                    yield demand.drop()

    def absorbs(self, position: int, recomputation: Recomputation) -> bool:
        """Whether an instruction can compute what it reads itself, in one kernel with what makes it again."""
        key = recomputation, position
        if key not in self._absorbed:
            reader = self.instructions[position]
            own = (
                recomputation.buffer in reader.written
                or len(recomputation.kernels) > 1
                or bool(recomputation.kernels[0].survey.reductions)
            )
            self._absorbed[key] = not own and in_one(recomputation.kernels[0], reader, self.limits) is not None
        return self._absorbed[key]

    def _need_not_store(self, buffer: Buffer, position: int) -> bool:
        """Whether the kernel that makes a buffer need not write it at all if it is dropped from there on: others of its
        results are stored."""
        stored = [b for b in self.instructions[position].writes if not self._dropped_at(b, position)]
        return buffer in stored and any(b is not buffer and b.dtype == buffer.dtype for b in stored)

    def _dropped_at(self, buffer: Buffer, position: int) -> bool:
        return any(hole.begin == position for hole in self.holes.get(buffer, ()))

    def recomputable(self, buffer: Buffer) -> bool:
        """Whether there are kernels that make a buffer, alone, and could run twice: what they read of what they write
        holds nothing of others. Several write a part each, before anybody reads it."""
        return buffer in self._recomputable

    def _can_recompute(self, buffer: Buffer) -> bool:
        writers = self.writers.get(buffer, [])
        if buffer.kind != "activation" or not writers or not self._repeatable.issuperset(writers):
            return False
        first = self.accesses[buffer][: len(writers)] == writers
        return len(writers) == 1 or (first and not any(buffer in self.instructions[at].reads for at in writers))

    def recomputation(self, buffer: Buffer, is_available: Callable[[Buffer], bool]) -> Recomputation:
        """How a buffer is made again where those results of its kernels are at hand that ``is_available`` says."""
        if buffer in self._alone:
            return self._alone[buffer]
        siblings = self._siblings_of(buffer)
        loaded = frozenset([other for others in siblings.values() for other in others if is_available(other)])
        key = buffer, loaded
        if key not in self._recomputations:
            kernels = tuple(
                self._recomputation_kernel(buffer, at, loaded.intersection(others)) for at, others in siblings.items()
            )
            self._recomputations[key] = Recomputation(buffer, kernels)
            if not any(siblings.values()):
                self._alone[buffer] = self._recomputations[key]
        return self._recomputations[key]

    def _siblings_of(self, buffer: Buffer) -> dict[int, list[Buffer]]:
        """For the position of each of its kernels, other results of that from which scalars can be loaded."""
        if buffer not in self._siblings:
            makers = self.writers[buffer]
            self._siblings[buffer] = {at: [b for b in self._scalars_at(at) if b is not buffer] for at in makers}
        return self._siblings[buffer]

    def _recomputation_kernel(self, buffer: Buffer, at: int, loaded: frozenset[Buffer]) -> Kernel:
        kernel = self.instructions[at].kernel
        assert kernel is not None
        return recomputation_kernel(
            kernel, buffer, {b: found for b, found in self._scalars_at(at).items() if b in loaded}
        )

    def keeps_sums(self, recomputation: Recomputation) -> bool:
        """Whether sums are taken in the same order where a buffer is made again."""
        if recomputation not in self._keeping:
            makers = [[self.instructions[at]] for at in self.writers[recomputation.buffer]]
            pairs = zip(makers, recomputation.kernels, strict=True)
            self._keeping[recomputation] = all(
                keeps_orders(self.limits.sums, maker, [kernel]) for maker, kernel in pairs
            )
        return self._keeping[recomputation]

    def _scalars_at(self, at: int) -> dict[Buffer, tuple[Ref, Load]]:
        """What :func:`stored_scalars` says of the kernel at a position."""
        if at not in self._scalars:
            kernel = self.instructions[at].kernel
            self._scalars[at] = {} if kernel is None else stored_scalars(kernel)
        return self._scalars[at]

    def maker(self, buffer: Buffer) -> int:
        """The position of what writes a buffer first."""
        return self.writers[buffer][0]

    def feeds_recomputation_only(self, buffer: Buffer) -> bool:
        """Whether a buffer is written for those alone that will make others again."""
        return len(self.accesses[buffer]) == 1

    def read_at(self, source: Buffer, buffer: Buffer) -> int:
        """The position of the first of the kernels that made a buffer of a source."""
        return next(at for at in self.writers[buffer] if source in self.instructions[at].touched)

    def last(self, buffer: Buffer) -> int:
        """The position of what touches a buffer last."""
        return self.accesses[buffer][-1]

    def unchanged(self, buffer: Buffer, since: int, position: int) -> bool:
        """Whether a buffer has the contents with which one instruction worked when another runs.

        What the first updated is not what it read; what it alone made may be read in place of making it.
        """
        writers = self.writers.get(buffer, [])
        own = buffer.kind == "activation" and writers == [since]
        return own or not any(since <= writer < position for writer in writers)

    def hole(self, buffer: Buffer, position: int) -> Hole | None:
        """The hole of a buffer through an instruction."""
        for hole in self.holes.get(buffer, ()):
            if hole.begin < position < hole.end:
                return hole
        return None

    def is_recomputed(self, buffer: Buffer, position: int) -> bool:
        """Whether a buffer is made again just before an instruction."""
        return any(hole.end == position for hole in self.holes.get(buffer, ()))

    def joined(self, recomputation: Recomputation, position: int) -> SliceCut | None:
        """The group in slices, if any, that an instruction is of and that what makes a buffer again can join."""
        cut = None if self.sliced is None else self.sliced.cut_at(position)
        if cut is None or len(recomputation.kernels) != 1:
            return None
        found = (
            loop_index(recomputation.kernels[0], recomputation.buffer, axis)
            for axis in range(recomputation.buffer.type.rank)
        )
        return cut if any(index is not None and index.extent == cut.group.extent for index in found) else None

    def raises_to(self, drop: Drop) -> int:
        """The most bytes alive where a drop makes them more."""
        raised = [change for change in drop.changes if change.nbytes > 0 and change.begin < change.end]
        if not raised:
            return 0
        low, high = min(change.begin for change in raised), max(change.end for change in raised)
        live = self.live[low:high].copy()
        for change in drop.changes:
            live[max(change.begin - low, 0) : max(change.end - low, 0)] += change.nbytes
        return int(live.max())

    def distant(self, drop: Drop) -> Iterator[Buffer]:
        """The activations that copies of a drop read and that nobody touched shortly before."""
        copied = {hole.buffer for hole in drop.holes}
        for hole in drop.holes:
            for source in hole.recomputation.sources:
                if source.kind == "activation" and source not in copied and not self._touched_before(source, hole.end):
                    yield source

    def _touched_before(self, buffer: Buffer, position: int) -> bool:
        """Whether one of the instructions up to a position touches a buffer, so few before it that it is in a cache."""
        positions = self.accesses[buffer]
        before = bisect_right(positions, position)
        return before > 0 and positions[before - 1] >= position - SHORTLY

    def apply(self, drop: Drop) -> None:
        """Make the holes of a drop."""
        for change in drop.changes:
            self.live[change.begin : change.end] += change.nbytes
        for hole, end in drop.filled:  # in new tuples: copies of the timeline have the others
            filled = replace(hole, end=end)
            self.holes[hole.buffer] = tuple([filled if each is hole else each for each in self.holes[hole.buffer]])
            self._touch(filled)
        for hole in drop.holes:
            self.holes[hole.buffer] = (*self.holes.get(hole.buffer, ()), hole)
            self._touch(hole)

    def _touch(self, hole: Hole) -> None:
        """Note that a buffer and its sources are touched where it is made again."""
        for buffer in (hole.buffer, *hole.recomputation.sources):
            positions = self.accesses[buffer]
            if hole.end not in positions:  # in a new list: copies of the timeline have the other one
                self.accesses[buffer] = sorted([*positions, hole.end])
                if buffer in self._recomputable:
                    self._ends[self._recomputable[buffer]] = self.accesses[buffer][-1]


SHORTLY = 3
"""Instructions through which what they do not touch stays in a cache."""
TINY = 1 << 12
"""Bytes of a buffer that is rather kept longer than made again for another one's sake."""
DEEPEST = 4
"""Buffers that are made again at most in one drop."""


@dataclass
class Demand:
    """What it takes to make a buffer again, so that less is alive at ``position``."""

    timeline: Timeline
    position: int
    holes: list[Hole] = field(default_factory=list)
    filled: list[tuple[Hole, int]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    extended: set[Buffer] = field(default_factory=set)

    def drop(self) -> Drop:
        """All of it."""
        return Drop(tuple(self.holes), tuple(self.filled), tuple(self.changes))

    def hole(self, buffer: Buffer, begin: int, end: int) -> bool:
        """Drop a buffer between two instructions; False where it cannot be made again before the second."""
        if len(self.holes) == DEEPEST:
            return False
        recomputation = self.recomputation(buffer, end)
        if not self.timeline.keeps_sums(recomputation):
            return False
        self.holes.append(Hole(buffer, begin, end, recomputation))
        timeline = self.timeline
        unstored = begin == timeline.maker(buffer) == self.position
        self.changes.append(Change(begin + (not unstored), end, -buffer.type.nbytes))
        self._count_live(recomputation, end)
        return all(self._source(source, timeline.read_at(source, buffer), end) for source in recomputation.sources)

    def recomputation(self, buffer: Buffer, end: int) -> Recomputation:
        """How a buffer is made again before an instruction."""
        return self.timeline.recomputation(buffer, lambda other: self._is_available(other, buffer, end))

    def _count_live(self, recomputation: Recomputation, end: int) -> None:
        """Count what is alive where a buffer is made again: of one for a group in slices, as much as a slice has."""
        timeline, buffer, cut = self.timeline, recomputation.buffer, self.timeline.joined(recomputation, end)
        share = 1.0 if cut is None else cut.share
        self.changes += [Change(end, end + 1, int(scratch.type.nbytes * share)) for scratch in recomputation.scratch]
        if cut is None or timeline.last(buffer) > cut.group.last:
            return
        less, inside = int(buffer.type.nbytes * (share - 1)), timeline.last(buffer) >= end
        self.changes.append(Change(cut.group.first if inside else end, cut.group.last + 1 if inside else end + 1, less))

    def absorb(self, buffer: Buffer, positions: Sequence[int]) -> bool:
        """Let the instruction at the second of ``positions``, where a buffer is touched, compute its elements itself,
        and make it again for all others behind; False where that cannot be."""
        timeline, (begin, end, *_) = self.timeline, positions
        if timeline.is_recomputed(buffer, end) or any(hole.begin >= end for hole in timeline.holes.get(buffer, ())):
            return False
        recomputation = self.recomputation(buffer, end)
        if not timeline.absorbs(end, recomputation) or not self.hole(buffer, begin, end):
            return False
        self.changes.append(Change(end, end + 1, -buffer.type.nbytes))
        return all(self.hole(buffer, *pair) for pair in pairwise(positions[1:]))

    def _is_available(self, sibling: Buffer, buffer: Buffer, end: int) -> bool:
        """Whether another result of a kernel is there at the end of a hole, or may be kept till then; not if it is
        made there itself, perhaps from this one."""
        timeline = self.timeline
        if not timeline.recomputable(sibling) or timeline.hole(sibling, end) or timeline.is_recomputed(sibling, end):
            return False
        if any(hole.buffer is sibling for hole in self.holes):
            return False
        return timeline.feeds_recomputation_only(sibling) or timeline.last(sibling) >= min(self.position, end)

    def _source(self, source: Buffer, maker: int, end: int) -> bool:
        """Have what an instruction read once more before another; False where it was overwritten meanwhile."""
        timeline, nbytes = self.timeline, source.type.nbytes
        if not timeline.unchanged(source, maker, end):
            return False
        if source.kind != "activation" or self._is_provided(source):
            return True
        if (hole := timeline.hole(source, end)) is not None:
            self.filled.append((hole, end))
            self.changes.append(Change(end, hole.end, nbytes))
            for scratch in hole.recomputation.scratch:
                self.changes.append(Change(hole.end, hole.end + 1, -scratch.type.nbytes))
                self.changes.append(Change(end, end + 1, scratch.type.nbytes))
            others = hole.recomputation.sources
            return all(self._source(other, timeline.read_at(other, source), end) for other in others)
        last = timeline.last(source)
        if last >= end:
            return True
        if (
            last < self.position
            and nbytes > TINY
            and timeline.recomputable(source)
            and not timeline.feeds_recomputation_only(source)
        ):
            self.changes.append(Change(last + 1, end + 1, nbytes))
            return self.hole(source, last, end)
        self.extended.add(source)
        self.changes.append(Change(last + 1, end + 1, nbytes))
        return True

    def _is_provided(self, source: Buffer) -> bool:
        """Whether it was seen to already."""
        holes = (*self.holes[1:], *(hole for hole, _ in self.filled))
        return source in self.extended or any(hole.buffer is source for hole in holes)
