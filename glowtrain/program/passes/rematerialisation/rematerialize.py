"""Rematerialisation: results that would be kept for long are dropped and computed again shortly before they are read.

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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from glowtrain.errors import MemoryBudgetError
from glowtrain.loops import Buffer
from glowtrain.memory.budget import UNSAID, Budget, check_variables
from glowtrain.names import Names
from glowtrain.program.analysis.time_estimate import total
from glowtrain.program.memory.plan import plan
from glowtrain.program.passes.bodies import bodies, with_bodies
from glowtrain.program.passes.loop_fusion.fuse_pair import LIMITS, Limits
from glowtrain.program.passes.rematerialisation.neighbours import fuse_neighbours
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX, Recomputation
from glowtrain.program.passes.rematerialisation.reorder import Reordering
from glowtrain.program.passes.rematerialisation.timeline import Drop, Hole, Holes, Timeline
from glowtrain.program.passes.reuse import reuse, reused
from glowtrain.program.passes.schedule import peak_bytes
from glowtrain.program.program import ALIGNMENT, Instruction, Kernel, Program
from glowtrain.stages import PLAIN_RATES, Explain, Rates

NEAR = 1 << 16
"""Bytes of a buffer below which it is kept where no limit is given: what fits the nearest caches costs little time
there, and little memory."""
STEP = 15 / 16
"""By what the peak falls between two programs that are tried for a limit."""
LEAST_PART = 512
"""The peak over the bytes of the smallest buffer that is dropped: with many smaller ones little is gained."""


@dataclass(frozen=True)
class Rematerialize:
    """The pass: what is dropped follows from the budget, and from rates at which time is estimated; activations will
    lie at multiples of ``alignment`` bytes, and fused kernels stay within ``limits``."""

    budget: Budget = UNSAID
    rates: Rates = PLAIN_RATES
    alignment: int = ALIGNMENT
    limits: Limits = LIMITS
    explain: Explain | None = None

    def run(self, program: Program) -> Program:
        """The same program with less alive at the same time.

        Raises :class:`MemoryBudgetError` for a limit that cannot be kept.
        """
        if self.budget.limited:
            return self._within_limit(program)
        return with_bodies(program, self._free) if bodies(program) else self._free(program)

    def _free(self, program: Program) -> Program:
        """The program in which least is alive for as much more time as may be spent.

        Choices that look good at one peak can be bad for those that follow, the more so the more there are. So what is
        found without asking is better now and then than what is found for more time: then it is taken.
        """
        found = [self._spending(program, budget) for budget in dict.fromkeys((UNSAID, self.budget))]
        result, dropping = min(found, key=lambda each: self._arena(each[0])) if len(found) > 1 else found[0]
        self._tell(dropping)
        return result

    def _spending(self, program: Program, budget: Budget) -> tuple[Program, _Dropping]:
        allowed = budget.slower * total(program.instructions, self.rates)
        dropping = _Dropping(program, self, allowed, NEAR if budget.modest else 0)
        dropping.until(0)
        return dropping.result(), dropping

    def _within_limit(self, program: Program) -> Program:
        """The first of :meth:`_candidates` that needs no more than the limit, as the planner places it."""
        variables = sum(buffer.type.nbytes for buffer in program.variables.values())
        least = self._arena(program)
        limit = self.budget.limit(variables + least)
        check_variables(program.name, variables, limit)
        if variables + least <= limit:
            return program
        for candidate, dropping in self._candidates(program):
            arena = self._arena(candidate)
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
        dropping = _Dropping(program if body is None else body.program, self, math.inf, 0)
        more = True
        while more and dropping.timeline.peak:
            more = dropping.until(int(STEP * dropping.timeline.peak))
            result = dropping.result()
            yield (result if body is None else body.within(program, result)), dropping

    def _arena(self, program: Program) -> int:
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
        self._begin(program)

    def _begin(self, program: Program) -> None:
        """Begin a round."""
        self.program, self.timeline = program, Timeline(program.instructions, self.how.limits)
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
            best = self._best_of(self.timeline.drops(position, least), position)
            if best is None:
                self.plain = self.plain or (self.timeline.copy(), self.left)
                best = self._best_of(self.timeline.absorptions(position, least), position)
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

    def _best_of(self, drops: Iterable[Drop], position: int) -> Drop | None:
        """What frees most bytes where most are alive, for the time that it takes."""
        timeline, peak = self.timeline, self.timeline.peak
        best, most = None, 0.0
        for drop in drops:
            rate = drop.frees(position) / (self._time(drop) + 1.0)
            if rate > most and self._net(drop) <= self.left and timeline.raises_to(drop) < peak:
                best, most = drop, rate
        return best

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
        order = Reordering(self._names()).run(self._copied(self.timeline))
        less = peak_bytes(reuse(order)) < self.begun
        return replace(self.program, instructions=tuple(order)) if less else self.program

    def _peak(self, timeline: Timeline) -> int:
        """The bytes that are alive at most once copies are kernels."""
        return peak_bytes(reuse(self._copied(timeline)))

    def _copied(self, timeline: Timeline) -> Sequence[Instruction]:
        if not timeline.holes:
            return self.program.instructions
        key = timeline.key
        if key not in self._copies:
            copied = list(_with_holes(timeline, self._names()))
            self._copies[key] = fuse_neighbours(copied, self.how.limits, timeline.peak)
        return self._copies[key]

    def _names(self) -> Names:
        return Names(buffer.name for buffer in self.program.buffers)


def _with_holes(timeline: Timeline, names: Names) -> Iterator[Instruction]:
    due: dict[int, list[Hole]] = defaultdict(list)
    for holes in timeline.holes.values():
        for hole in holes:
            due[hole.end].append(hole)
    present: dict[Buffer, Buffer] = {}
    for position, instruction in enumerate(timeline.instructions):
        for hole in _sources_first(due[position], timeline):
            yield from _made_again(hole, present, names)
        yield instruction.with_buffers(present)


def _sources_first(holes: list[Hole], timeline: Timeline) -> Iterator[Hole]:
    """Holes that end at the same instruction, in an order in which what they are made of is there: that of the kernels
    that made them first, but for results of one kernel, of which one may be loaded for another, never both ways."""
    waiting = {hole.buffer: hole for hole in sorted(holes, key=lambda hole: timeline.maker(hole.buffer))}
    while waiting:
        ready = next(b for b, hole in waiting.items() if waiting.keys().isdisjoint(hole.recomputation.sources))
        yield waiting.pop(ready)


def _made_again(hole: Hole, present: dict[Buffer, Buffer], names: Names) -> list[Kernel]:
    """The copies that fill a buffer again, which is another one from here on."""
    buffers = (hole.buffer, *hole.recomputation.scratch)
    fresh = {buffer: replace(buffer, name=names.fresh(buffer.name + SUFFIX)) for buffer in buffers}
    made = hole.recomputation.copy({**present, **fresh})
    present[hole.buffer] = fresh[hole.buffer]
    return made


def _too_little(name: str, limit: int, variables: int, arena: int) -> MemoryBudgetError:
    """That a limit cannot be kept, what could, and what would help."""
    return MemoryBudgetError(
        f"{name}: {limit:,} bytes of memory are too few: the least that was found is {variables + arena:,}, "
        f"{variables:,} for variables and {arena:,} for activations; smaller batches, frozen layers (trainable=) or "
        "bf16 would help"
    )
