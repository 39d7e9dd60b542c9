"""The static memory plan: an offset in one arena for every activation.

Buffers whose lifetimes overlap get disjoint ranges. Placement is best fit in order of decreasing size (Pisarchyk and
Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, "greedy by size"), tried against two more
orders; the smallest arena wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.loops import Buffer, Written
from glowtrain.program.analysis.write_coverage import covered
from glowtrain.program.program import ALIGNMENT, Instruction, Plan, Program

__all__ = ["ALIGNMENT", "Plan", "PlanMemory", "plan"]

Interval = tuple[int, int]


@dataclass(frozen=True)
class PlanMemory:
    """The pass: an offset for every activation, at a multiple of ``alignment`` bytes."""

    alignment: int = ALIGNMENT

    def run(self, program: Program) -> Plan:
        """The planned program."""
        return plan(program, self.alignment)


def plan(program: Program, alignment: int = ALIGNMENT) -> Plan:
    """Place every activation."""
    intervals = _intervals(program.instructions)
    orders: list[Callable[[Buffer], tuple[int, ...]]] = [
        lambda b: (-b.type.nbytes, intervals[b][0]),
        lambda b: (intervals[b][0], -b.type.nbytes),
        lambda b: (intervals[b][0] - intervals[b][1], -b.type.nbytes),
        lambda b: (-b.type.nbytes * (1 + intervals[b][1] - intervals[b][0]), intervals[b][0]),
    ]
    sizes = {buffer: -(-max(buffer.type.nbytes, 1) // alignment) for buffer in intervals}
    smallest = _peak(intervals, sizes)
    best: Arena | None = None
    for order in orders:
        found = _place(sorted(intervals, key=order), intervals, sizes)
        best = found if best is None or found.lines < best.lines else best
        if best.lines == smallest:
            break
    assert best is not None
    offsets = {buffer: line * alignment for buffer, line in best.offsets.items()}
    peak = _peak(intervals, {b: b.type.nbytes for b in intervals})
    return Plan(program, offsets, best.lines * alignment, peak, alignment)


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


@dataclass
class Arena:
    """Offsets, and the size of the arena, in lines of as many bytes as places are multiples of."""

    offsets: dict[Buffer, int]
    lines: int = 0


class _Placed:
    """The buffers placed so far, by offset: columns of begin, end, first and last instruction that touches each."""

    def __init__(self, most: int) -> None:
        self._columns = np.empty((4, most), np.int64)
        self._count = 0

    def gap(self, size: int, first: int, last: int) -> int:
        """The smallest gap of ``size`` lines between those that are alive at the same time, or the end of all."""
        begin, end, since, until = self._columns[:, : self._count]
        alive = (since <= last) & (until >= first)
        ends = np.maximum.accumulate(end[alive])
        if not ends.size:
            return 0
        before = np.concatenate(([0], ends[:-1]))
        gaps = begin[alive] - before
        gaps[gaps < size] = _NO_GAP
        best = int(gaps.argmin())
        return int(ends[-1] if gaps[best] == _NO_GAP else before[best])

    def add(self, offset: int, size: int, first: int, last: int) -> None:
        columns, count = self._columns, self._count
        at = int(columns[0, :count].searchsorted(offset))
        columns[:, at + 1 : count + 1] = columns[:, at:count]
        columns[:, at] = offset, offset + size, first, last
        self._count = count + 1


_NO_GAP = np.iinfo(np.int64).max


def _place(order: Sequence[Buffer], intervals: dict[Buffer, Interval], sizes: dict[Buffer, int]) -> Arena:
    """Best fit: each buffer goes into the smallest gap between those placed that are alive at the same time."""
    result, placed = Arena({}), _Placed(len(order))
    for buffer in order:
        size, (first, last) = sizes[buffer], intervals[buffer]
        offset = placed.gap(size, first, last)
        placed.add(offset, size, first, last)
        result.offsets[buffer] = offset
        result.lines = max(result.lines, offset + size)
    return result


def _peak(intervals: dict[Buffer, Interval], sizes: dict[Buffer, int]) -> int:
    """The largest sum of the sizes of what is alive at the same time."""
    changes: dict[int, int] = {}
    for buffer, (first, last) in intervals.items():
        changes[first] = changes.get(first, 0) + sizes[buffer]
        changes[last + 1] = changes.get(last + 1, 0) - sizes[buffer]
    total = peak = 0
    for position in sorted(changes):
        total += changes[position]
        peak = max(peak, total)
    return peak
