"""The rematerialisation pass: drop results that would be live for long, and recompute them shortly before they are
read.

At the moment when most is alive, the buffer is dropped that frees most bytes for the time that making it again takes,
until the budget is met, or no more time may be spent. What is made again are whole buffers, by the statements that led
to them, so results are the same to the bit. Copies are fused with what follows them, and in the program that this makes
the search goes on, until it finds no more: there copies can be dropped themselves, and read later than what they copy.

Sources: Chen, Xu, Zhang and Guestrin, Training Deep Nets with Sublinear Memory Cost (2016); Jain et al., Checkmate:
Breaking the Memory Wall with Optimal Tensor Rematerialization (MLSys 2020); Kirisame et al., Dynamic Tensor
Rematerialization (ICLR 2021), whose choice of bytes by cost this one resembles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from glowtrain.errors import MemoryBudgetError
from glowtrain.memory.budget import UNSAID, Budget, check_variables
from glowtrain.names import Names
from glowtrain.program.analysis.time_estimate import total
from glowtrain.program.memory.plan import plan, smallest
from glowtrain.program.passes.bodies import bodies, with_bodies
from glowtrain.program.passes.loop_fusion.fuse_pair import LIMITS, Limits, Sums
from glowtrain.program.passes.rematerialisation.copies import with_copies
from glowtrain.program.passes.rematerialisation.duplicate import duplications
from glowtrain.program.passes.rematerialisation.holes import Drop, Gap, Hole, Holes
from glowtrain.program.passes.rematerialisation.neighbours import fuse_neighbours
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX, Recomputation
from glowtrain.program.passes.rematerialisation.reorder import Reordering
from glowtrain.program.passes.rematerialisation.timeline import Timeline
from glowtrain.program.passes.reuse import live_in_place, reused
from glowtrain.program.passes.schedule import peak_bytes
from glowtrain.program.passes.slices.slicing import CHEAP, Grain, Slicing
from glowtrain.program.program import ALIGNMENT, Instruction, Program
from glowtrain.stages import PLAIN_RATES, Explain, Rates

NEAR = 1 << 16
"""Bytes of a buffer below which it is kept where no limit is given: what fits the nearest caches costs little time
there, and little memory."""
STEP = 15 / 16
"""By what the peak falls between two programs that are tried for a limit."""
SMALLEST_SLICED = 64
"""The peak over the bytes of the smallest buffer that is cut in slices."""
LARGE_PART, MOST_TRIED = 16, 2
"""The peak over the bytes of the smallest buffer that is made twice, and how many are tried."""
DUPLICATE_SHARE = 0.6
"""The part of the time allowed that may go into that."""
PROMISING = 0.9
"""The part of the peak that is alive at least where groups can be cut, so that slices are tried."""
SMALL = Grain(0.25)
"""Slices where memory is to be small."""
FINE = Grain(0.25, fine=True), Grain(0.01, fine=True)
"""Slices that are tried, one grain after the other, where a limit cannot be kept without them."""
LEAST_PART = 512
"""The peak over the bytes of the smallest buffer that is dropped: with many smaller ones little is gained."""


@dataclass(frozen=True)
class Rematerialize:
    """The pass: what is dropped follows from the budget, and from rates at which time is estimated; activations will
    lie at multiples of ``alignment`` bytes, fused kernels stay within ``limits``, with ``slices`` kernels run in some
    where these say how sums are taken, of a ``grain``, or the one that the budget allows."""

    budget: Budget = UNSAID
    rates: Rates = PLAIN_RATES
    alignment: int = ALIGNMENT
    limits: Limits = LIMITS
    explain: Explain | None = None
    slices: bool = True
    grain: Grain | None = None

    def run(self, program: Program) -> Program:
        """The same program with less alive at the same time.

        Raises :class:`MemoryBudgetError` for a limit that cannot be kept.
        """
        if self.budget.limited:
            return self._within_limit(program)
        return with_bodies(program, self._free) if bodies(program) else self._free(program)

    def unsliced(self, program: Program) -> Program:
        """What :meth:`run` gives without a limit, before kernels are cut in slices."""
        return with_bodies(program, self._unsliced) if bodies(program) else self._unsliced(program)

    def _unsliced(self, program: Program) -> Program:
        _, dropping = self._best(program)
        return dropping.result()

    def _free(self, program: Program) -> Program:
        """The program in which least is alive for as much more time as may be spent.

        Choices that look good at one peak can be bad for those that follow, the more so the more there are. So what is
        found without asking is better now and then than what is found for more time: then it is taken. So is what is
        found without slices, and what is found in fine ones where any time may be spent.
        """
        result, dropping = self._best(program)
        self._tell(dropping)
        return result

    def _best(self, program: Program) -> tuple[Program, _Dropping]:
        plain = replace(self, slices=False)
        found = [plain._spending(program, budget) for budget in dict.fromkeys((UNSAID, self.budget))]
        found += self._cut(program, found[-1][0])
        if math.isinf(self.budget.slower):
            begin = self._duplicated(program, math.inf)
            found += [how._dropped(begin, math.inf) for how in self._finely()]
        return found[self.smallest([result for result, _ in found])]

    def _cut(self, program: Program, plain: Program) -> list[tuple[Program, _Dropping]]:
        """What is found with groups in slices, if ``plain``, found without, promises something."""
        if self._sums is None:
            return []
        allowed = self.budget.slower * total(program.instructions, self.rates)
        begin = program if self.budget.modest else self._duplicated(program, DUPLICATE_SHARE * allowed)
        if begin is program and not self._promise(plain):
            return []
        longer = total(begin.instructions, self.rates) - total(program.instructions, self.rates)
        return [self._dropped(begin, allowed - longer)]

    def _dropped(self, program: Program, allowed: float) -> tuple[Program, _Dropping]:
        """The program with groups in slices, and as much dropped as the time allows."""
        dropping = _Dropping(program, self, allowed, NEAR if self.budget.modest else 0)
        dropping.until(0)
        return dropping.sliced(), dropping

    def _promise(self, program: Program) -> bool:
        """Whether groups can run in slices where most is alive in a program of which nothing more is dropped, or nearly
        as much."""
        live = live_in_place(program.instructions)
        peak = max(live, default=0)
        cuts = self.slicing(peak, NEAR if self.budget.modest else 0).cuts(program.instructions)
        spans = (live[cut.group.first : cut.group.last + 1] for cut in cuts)
        return any(max(span) >= PROMISING * peak for span in spans)

    def _duplicated(self, program: Program, allowed: float) -> Program:
        """The program with the largest buffer at the peak made twice, if that lowers the peak in no more time."""
        if self._sums is None:
            return program
        instructions, names = program.instructions, Names(buffer.name for buffer in program.buffers)
        plain, slicing = peak_bytes(instructions), self.slicing(peak_bytes(instructions), 0)

        def peak(candidate: Program) -> tuple[int, float]:
            sliced = slicing.run(candidate.instructions, names.copy())
            return max(sliced.live()), total(sliced.instructions, self.rates) + sliced.time

        before, time = peak(program)
        for candidate in islice(duplications(program, plain // LARGE_PART, self.limits), MOST_TRIED):
            lower, longer = peak(candidate)
            if lower < before and longer - time <= allowed:
                return candidate
        return program

    @property
    def _sums(self) -> Sums | None:
        """Says in which order sums are taken, if kernels may run in slices."""
        return self.limits.sums if self.slices else None

    def slicing(self, peak: int, least: int) -> Slicing:
        """How groups of kernels are cut in a program of which so many bytes are alive at most."""
        allowed = CHEAP if self.budget.modest and not self.budget.limited else SMALL
        return Slicing(self._sums, self.rates, max(peak // SMALLEST_SLICED, least, 1), self.grain or allowed)

    def _spending(self, program: Program, budget: Budget) -> tuple[Program, _Dropping]:
        allowed = budget.slower * total(program.instructions, self.rates)
        dropping = _Dropping(program, self, allowed, NEAR if budget.modest else 0)
        dropping.until(0)
        return dropping.result(), dropping

    def _within_limit(self, program: Program) -> Program:
        """The first of :meth:`_candidates` that needs no more than the limit, as the planner places it."""
        variables = sum(buffer.type.nbytes for buffer in program.variables.values())
        least = self.arena(program)
        limit = self.budget.limit(variables + least)
        check_variables(program.name, variables, limit)
        if variables + least <= limit:
            return program
        for candidate, dropping in self._candidates(program):
            arena = self.arena(candidate)
            if variables + arena <= limit:
                self._tell(dropping)
                return candidate
            least = min(arena, least)
        raise _too_little(program.name, limit, variables, least)

    def _candidates(self, program: Program) -> Iterator[tuple[Program, _Dropping]]:
        """Programs that need less and less, each with its drops. They do not depend on the limit, so that a smaller one
        never leads to more memory.

        Where there is a loop over parts of a batch, nearly all is alive within it, and is dropped there.
        """
        body = next(iter(bodies(program)), None)
        for how, begin in self._beginnings(program if body is None else body.program):
            dropping, more = _Dropping(begin, how, math.inf, 0), True
            while more and dropping.timeline.peak:
                more = dropping.until(int(STEP * dropping.timeline.peak))
                result = dropping.sliced()
                yield (result if body is None else body.within(program, result)), dropping

    def _beginnings(self, program: Program) -> Iterator[tuple[Rematerialize, Program]]:
        """How buffers are dropped, and of which program, one after the other until one fits."""
        yield replace(self, slices=False), program
        if self._sums is not None:
            yield self, program
            duplicated = self._duplicated(program, math.inf)
            if duplicated is not program:
                yield self, duplicated
            yield from ((how, duplicated) for how in self._finely())

    def _finely(self) -> Iterator[Rematerialize]:
        """The same with finer and finer slices, if there can be any."""
        yield from (replace(self, grain=grain) for grain in FINE if self._sums is not None)

    def smallest(self, programs: Sequence[Program]) -> int:
        """Which of some programs has the smallest arena, the first of several."""
        if len(programs) == 1:
            return 0
        placed = [reused(program) for program in programs]
        return placed.index(smallest(placed, self.alignment))

    def arena(self, program: Program) -> int:
        """The bytes that activations take, as the planner places them."""
        return plan(reused(program), self.alignment).arena

    def _tell(self, dropping: _Dropping) -> None:
        if self.explain is not None:
            for hole in (*dropping.before, *dropping.holes()):
                nbytes, made = hole.buffer.type.nbytes, hole.recomputation
                self.explain(hole.buffer.name, f"{nbytes:,} bytes are not kept, {made.name} makes them again")


class _Dropping:
    """A program of which buffers are dropped, in so many nanoseconds, of ``least`` bytes each.

    It goes by rounds: in each, buffers are dropped of the program that the round before led to.
    """

    def __init__(self, program: Program, how: Rematerialize, allowed: float, least: int) -> None:
        self.how, self.rates, self.left, self.least = how, how.rates, allowed, least
        self.before: list[Hole] = []
        self._costs: dict[Recomputation, float] = {}
        self.slicing = how.slicing(peak_bytes(program.instructions), least)
        self._begin(program)

    def _begin(self, program: Program) -> None:
        """Begin a round."""
        self.program = program
        self.timeline = Timeline(
            program.instructions, self.how.limits, self.slicing.run(program.instructions, self._names())
        )
        self.begun = self.timeline.peak
        self._copies: dict[Holes, Sequence[Instruction]] = {}
        self._results: dict[Holes, Program] = {}
        self.best = self.timeline.copy(), self.left
        self.plain: tuple[Timeline, float] | None = None

    def until(self, goal: int) -> bool:
        """Drop buffers while more bytes than ``goal`` are alive somewhere; whether no more are."""
        while not self._drop(goal):
            program = self.result()
            if program is self.program:
                return False
            self.before += self.holes()
            self._begin(program)
        return True

    def _drop(self, goal: int) -> bool:
        """The same, in one round. The last drops are undone where they led to no smaller peak: some may be of use only
        once others follow, and not all instructions can compute what they read once there are copies beside them."""
        while self.timeline.peak > goal:
            position, least = int(self.timeline.live.argmax()), max(self.timeline.peak // LEAST_PART, self.least)
            best = self._best_drop(position, least)
            if best is None:
                self.plain = self.plain or (self.timeline.copy(), self.left)
                best = self._best_absorption(position, least)
            if best is None:
                self.timeline, self.left = self._lowest(self.plain or self.best, self.best, (self.timeline, self.left))
                return False
            peak = self.best[0].peak
            self.timeline.apply(best)
            self.left -= self._net(best)
            if self.timeline.peak < peak:
                self.best = self.timeline.copy(), self.left
        return True

    def _lowest(self, *states: tuple[Timeline, float]) -> tuple[Timeline, float]:
        """The first of the states with the lowest peak."""
        distinct: dict[Holes, tuple[Timeline, float]] = {}
        for state in states:
            distinct.setdefault(state[0].key, state)
        found = list(distinct.values())
        return min(found, key=lambda state: self._peak(state[0])) if len(found) > 1 else found[0]

    def _best_drop(self, position: int, least: int) -> Drop | None:
        """What frees most bytes where most are alive, for the time that it takes; the first of several."""
        gaps = enumerate(self.timeline.gaps(position, least))
        bounds = [(self._at_most(gap, position), -order, gap) for order, gap in gaps]
        best, found = None, (0.0, 1)
        for bound, order, gap in sorted(bounds, reverse=True):
            if bound <= 0 or bound < found[0]:
                break
            drop = self.timeline.drop(gap, position)
            rate = 0.0 if drop is None else self._rate(drop, position)
            if drop is not None and (rate, order) > found and self._can_be(drop):
                best, found = drop, (rate, order)
        return best

    def _at_most(self, gap: Gap, position: int) -> float:
        """A rate that no drop for a gap exceeds, which is found without looking at what its sources take: they free
        nothing here that they do not also keep."""
        if self.timeline.is_sliced:  # of a group in slices there is less of what is made again, too
            return math.inf
        nbytes, time = gap.buffer.type.nbytes, self._cost(self.timeline.beginning(gap, position))
        return 0.0 if time - nbytes / self.rates.memory > self.left else nbytes / (time + 1.0)

    def _best_absorption(self, position: int, least: int) -> Drop | None:
        """The same of what the instruction there makes again itself."""
        drops = [(self._rate(drop, position), drop) for drop in self.timeline.absorptions(position, least)]
        possible = [(rate, drop) for rate, drop in drops if rate > 0 and self._can_be(drop)]
        return max(possible, key=lambda each: each[0])[1] if possible else None

    def _rate(self, drop: Drop, position: int) -> float:
        """The bytes that are freed at an instruction in a nanosecond of making them again."""
        return drop.frees(position) / (self._time(drop) + 1.0)

    def _can_be(self, drop: Drop) -> bool:
        """Whether there is time for a drop, and it raises nothing to the peak."""
        return self._net(drop) <= self.left and self.timeline.raises_to(drop) < self.timeline.peak

    def _time(self, drop: Drop) -> float:
        return sum(self._cost(hole.recomputation) for hole in drop.holes)

    def _net(self, drop: Drop) -> float:
        """The time of a drop, with that of reading what was written long ago: what copies are made of is read so in
        place of what was dropped, if that was itself written long ago."""
        buffer, rest = drop.holes[0].buffer, self._time(drop)
        kept = sum(source.type.nbytes for source in self.timeline.distant(drop))
        saved = 0 if buffer.name.endswith(SUFFIX) else buffer.type.nbytes
        return max(rest + (kept - saved) / self.rates.memory, 0.0)

    def _cost(self, recomputation: Recomputation) -> float:
        if recomputation not in self._costs:
            self._costs[recomputation] = total(recomputation.kernels, self.rates)
        return self._costs[recomputation]

    def holes(self) -> list[Hole]:
        """Everything that was dropped in this round, in the order in which it is made again."""
        found = [hole for holes in self.timeline.holes.values() for hole in holes]
        return sorted(found, key=lambda hole: hole.end)

    def result(self) -> Program:
        """The program with copies of what makes again what was dropped, in an order that suits it; as it was before the
        round, if that is of no use."""
        key = self.timeline.key
        if key not in self._results:
            self._results[key] = self._result()
        return self._results[key]

    def _result(self) -> Program:
        copied = self._copied(self.timeline)
        order: Sequence[Instruction] = Reordering(self._names()).run(copied)
        peak = self._in_slices(order)
        if self.slicing.sums is not None and peak >= self.begun:
            order, peak = copied, self._in_slices(copied)
        return replace(self.program, instructions=tuple(order)) if peak < self.begun else self.program

    def sliced(self) -> Program:
        """The same with groups of kernels in slices."""
        program = self.result()
        return replace(program, instructions=tuple(self.slicing.run(program.instructions, self._names()).instructions))

    def _in_slices(self, instructions: Sequence[Instruction]) -> int:
        """The bytes that are alive at most with groups in slices."""
        return max(live_in_place(self.slicing.run(instructions, self._names()).instructions), default=0)

    def _peak(self, timeline: Timeline) -> int:
        """The bytes that are alive at most once copies are kernels."""
        return self._in_slices(self._copied(timeline))

    def _copied(self, timeline: Timeline) -> Sequence[Instruction]:
        if not timeline.holes:
            return self.program.instructions
        key = timeline.key
        if key not in self._copies:
            copied = list(with_copies(timeline, self._names()))
            self._copies[key] = fuse_neighbours(copied, self.how.limits, timeline.peak)
        return self._copies[key]

    def _names(self) -> Names:
        return Names(buffer.name for buffer in self.program.buffers)


def _too_little(name: str, limit: int, variables: int, arena: int) -> MemoryBudgetError:
    """That a limit cannot be kept, what could, and what would help."""
    return MemoryBudgetError(
        f"{name}: {limit:,} bytes of memory are too few: the least that was found is {variables + arena:,}, "
        f"{variables:,} for variables and {arena:,} for activations; smaller batches, frozen layers (trainable=) or "
        "bf16 would help"
    )
