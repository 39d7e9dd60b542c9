"""The static memory plan: an offset in one arena for every activation.

Buffers whose lifetimes overlap get disjoint ranges: :mod:`glowtrain.program.memory.packing` chooses them, in lines of
as many bytes as offsets are multiples of; :mod:`glowtrain.program.memory.affinity` moves those for which there is room,
so that threads write where they wrote before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from glowtrain.loops import Buffer, Written
from glowtrain.memo import memoized
from glowtrain.program.analysis.write_coverage import covers
from glowtrain.program.memory.affinity import move_for_affinity
from glowtrain.program.memory.packing import best_fit, pack, peak, plainly_exceeds
from glowtrain.program.memory.packing_search import Item
from glowtrain.program.program import ALIGNMENT, Instruction, Plan, Program

__all__ = ["ALIGNMENT", "Plan", "PlanMemory", "lifetimes", "plan"]

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
    return _planned(program, alignment)


def smallest(programs: Sequence[Program], alignment: int = ALIGNMENT) -> Program:
    """The program with the smallest arena, the first of several.

    A search for offsets is made for those alone that might be it: not where best fit reaches the largest sum of what is
    alive, nor for what is plainly larger than another one.
    """
    every = [_items(lifetimes(program.instructions), alignment) for program in programs]
    quick = [best_fit(items, peak(items)) for items in every]
    least = min(((found.height, at) for at, found in enumerate(quick) if found.height == found.bound), default=None)
    for at, (program, items, found) in enumerate(zip(programs, every, quick, strict=True)):
        if found.height == found.bound:
            continue
        if least is None or not plainly_exceeds(items, least[0] - (at > least[1])):
            height = plan(program, alignment).arena // alignment
            least = (height, at) if least is None else min(least, (height, at))
    assert least is not None
    return programs[least[1]]


@memoized
def _planned(program: Program, alignment: int) -> Plan:
    """The same. Who asks what several programs need takes one of them, which is planned then."""
    intervals = lifetimes(program.instructions)
    items = _items(intervals, alignment)
    packing = pack(items)
    placed = move_for_affinity(items, packing.offsets, packing.height)
    offsets = {buffer: line * alignment for buffer, line in zip(intervals, placed, strict=True)}
    in_bytes = [Item(first, last, buffer.type.nbytes) for buffer, (first, last) in intervals.items()]
    return Plan(program, offsets, packing.height * alignment, peak(in_bytes), alignment)


def _items(intervals: Mapping[Buffer, Interval], alignment: int) -> list[Item]:
    """The activations, in lines."""
    return [Item(first, last, lines(buffer, alignment)) for buffer, (first, last) in intervals.items()]


def lines(buffer: Buffer, alignment: int) -> int:
    """The lines of ``alignment`` bytes that a buffer takes: at least one, so that each has a place of its own."""
    return -(-max(buffer.type.nbytes, 1) // alignment)


def lifetimes(instructions: Sequence[Instruction]) -> dict[Buffer, Interval]:
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
            if covers(buffer, stores):
                return False
            if instruction.is_leaf or _carries(instruction.children, buffer, stores):
                return True
        stores += instruction.stores()
    return False
