"""The static memory plan: an offset in one arena for every activation.

Buffers whose lifetimes overlap get disjoint ranges. Placement is best fit in order of decreasing size (Pisarchyk and
Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, "greedy by size"), tried against two more
orders; the smallest arena wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from glowtrain.loops import Buffer, Written
from glowtrain.program.analysis.write_coverage import covered
from glowtrain.program.program import Instruction, Plan, Program

__all__ = ["ALIGNMENT", "Plan", "PlanMemory", "plan"]

ALIGNMENT = 64

Interval = tuple[int, int]


@dataclass(frozen=True)
class PlanMemory:
    """The pass: an offset for every activation."""

    def run(self, program: Program) -> Plan:
        """The planned program."""
        return plan(program)


def plan(program: Program) -> Plan:
    """Place every activation."""
    intervals = _intervals(program.instructions)
    orders: list[Callable[[Buffer], tuple[int, ...]]] = [
        lambda b: (-b.type.nbytes, intervals[b][0]),
        lambda b: (intervals[b][0], -b.type.nbytes),
        lambda b: (intervals[b][0] - intervals[b][1], -b.type.nbytes),
        lambda b: (-b.type.nbytes * (1 + intervals[b][1] - intervals[b][0]), intervals[b][0]),
    ]
    attempts = [_place(sorted(intervals, key=order), intervals) for order in orders]
    offsets, arena = min(attempts, key=lambda attempt: attempt[1])
    return Plan(program, offsets, arena, _peak(intervals))


def _intervals(instructions: Sequence[Instruction]) -> dict[Buffer, Interval]:
    """Live ranges over a numbering in which the instructions of a repeat follow one another.

    What a repeat shares with the outside, or carries from one trip to the next, lives through all of it.
    """
    intervals: dict[Buffer, Interval] = {}
    outside = _counts(instructions)
    _number(instructions, 0, intervals, outside)
    return intervals


def _counts(instructions: Iterable[Instruction]) -> dict[Buffer, int]:
    counts: dict[Buffer, int] = {}
    for instruction in instructions:
        for buffer in instruction.operands:
            counts[buffer] = counts.get(buffer, 0) + 1
    return counts


def _number(
    instructions: Sequence[Instruction], position: int, intervals: dict[Buffer, Interval], outside: dict[Buffer, int]
) -> int:
    for instruction in instructions:
        begin = position
        if not instruction.is_leaf:
            inner = _counts(instruction.children)
            position = _number(instruction.children, position, intervals, inner)
            local = {b for b in inner if outside.get(b, 0) == 1 and not _carries(instruction.children, b)}
            spanning: Iterable[Buffer] = (b for b in instruction.operands if b not in local)
        else:
            position += 1
            spanning = instruction.operands
        for buffer in spanning:
            if buffer.kind == "activation":
                first, last = intervals.get(buffer, (begin, begin))
                intervals[buffer] = (min(first, begin), max(last, position - 1))
    return position


def _carries(body: Sequence[Instruction], buffer: Buffer, before: Sequence[Written] = ()) -> bool:
    """Whether a trip may read of the buffer what this trip has not written, so that contents are carried over.

    It does not if stores of the trip, together with those in ``before``, write the whole buffer before any read.
    """
    stores = list(before)
    for instruction in body:
        if buffer in instruction.reads:
            if covered(buffer, stores).all():
                return False
            if instruction.is_leaf or _carries(instruction.children, buffer, stores):
                return True
        stores += instruction.stores()
    return False


def _place(order: Sequence[Buffer], intervals: dict[Buffer, Interval]) -> tuple[dict[Buffer, int], int]:
    """Best fit: each buffer goes into the smallest gap between those placed that are alive at the same time."""
    offsets: dict[Buffer, int] = {}
    arena = 0
    for buffer in order:
        size = _rounded(buffer.type.nbytes)
        first, last = intervals[buffer]
        taken = sorted(
            (offsets[other], offsets[other] + _rounded(other.type.nbytes))
            for other in offsets
            if intervals[other][0] <= last and first <= intervals[other][1]
        )
        offsets[buffer] = _best_gap(taken, size)
        arena = max(arena, offsets[buffer] + size)
    return offsets, arena


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, stop)
    return end if best is None else best[1]


def _rounded(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def _peak(intervals: dict[Buffer, Interval]) -> int:
    changes: dict[int, int] = {}
    for buffer, (first, last) in intervals.items():
        changes[first] = changes.get(first, 0) + buffer.type.nbytes
        changes[last + 1] = changes.get(last + 1, 0) - buffer.type.nbytes
    total = peak = 0
    for position in sorted(changes):
        total += changes[position]
        peak = max(peak, total)
    return peak
