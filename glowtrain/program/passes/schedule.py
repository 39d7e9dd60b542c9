"""The order of instructions: list scheduling for a small peak of live memory.

Each step runs, among the instructions whose predecessors have run, the one that frees most and allocates least; where
several are equal, the one that came first. What only allocates is then put off until something needs it. The order
found is kept only if its peak is below the given one's, or as high with less alive on the whole: what is computed again
or takes another's place later on may lower one moment, and then the others count.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from glowtrain.loops import Buffer
from glowtrain.program.passes.bodies import with_bodies
from glowtrain.program.program import Instruction, Program


@dataclass(frozen=True)
class ScheduleLoops:
    """The pass: instructions in an order with a small peak."""

    def run(self, program: Program) -> Program:
        """The program in another order, or as it is."""
        return schedule(with_bodies(program, schedule))


def schedule(program: Program) -> Program:
    """The same program in an order with a peak of live bytes that is no larger."""
    order = _put_off(_list_schedule(program.instructions))
    better = _height(order) < _height(program.instructions)
    return replace(program, instructions=tuple(order)) if better else program


def _height(instructions: Sequence[Instruction]) -> tuple[int, int]:
    """The peak of live bytes, and the sum over all instructions."""
    live = live_bytes(instructions)
    return max(live, default=0), sum(live)


class Touching(Protocol):
    """An instruction, or what will become one."""

    @property
    def activations(self) -> Sequence[Buffer]:
        """Those that it touches."""


def lifetimes(instructions: Sequence[Touching]) -> dict[Buffer, tuple[int, int]]:
    """First and last instruction that touches each activation."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for position, instruction in enumerate(instructions):
        for buffer in instruction.activations:
            first.setdefault(buffer, position)
            last[buffer] = position
    return {buffer: (begin, last[buffer]) for buffer, begin in first.items()}


def live_bytes(instructions: Sequence[Touching]) -> list[int]:
    """Bytes of activations alive during each instruction."""
    live = [0] * (len(instructions) + 1)
    for buffer, (first, last) in lifetimes(instructions).items():
        live[first] += buffer.type.nbytes
        live[last + 1] -= buffer.type.nbytes
    total, result = 0, []
    for change in live[:-1]:
        total += change
        result.append(total)
    return result


def peak_bytes(instructions: Sequence[Touching]) -> int:
    """The largest sum of live activations."""
    return max(live_bytes(instructions), default=0)


def predecessors(instructions: Sequence[Instruction]) -> list[set[int]]:
    """For each instruction the earlier ones that it must follow (reads after writes, writes after reads and writes)."""
    writer: dict[Buffer, int] = {}
    readers: dict[Buffer, list[int]] = {}
    result: list[set[int]] = []
    for position, instruction in enumerate(instructions):
        before = {writer[buffer] for buffer in instruction.operands if buffer in writer}
        for buffer in instruction.writes:
            before.update(readers.get(buffer, ()))
        result.append(before - {position})
        for buffer in instruction.reads:
            readers.setdefault(buffer, []).append(position)
        for buffer in instruction.writes:
            writer[buffer] = position
            readers[buffer] = []
    return result


def _list_schedule(instructions: Sequence[Instruction]) -> list[Instruction]:
    before = predecessors(instructions)
    after: list[list[int]] = [[] for _ in instructions]
    for position, earlier in enumerate(before):
        for other in earlier:
            after[other].append(position)
    uses: dict[Buffer, int] = {}
    for instruction in instructions:
        for buffer in instruction.operands:
            uses[buffer] = uses.get(buffer, 0) + 1
    waiting = [len(earlier) for earlier in before]
    alive: set[Buffer] = set()
    order: list[Instruction] = []
    ready = [(position, position) for position, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    while ready:
        position = _cheapest(ready, instructions, alive, uses)
        instruction = instructions[position]
        order.append(instruction)
        for buffer in instruction.operands:
            uses[buffer] -= 1
            alive.add(buffer)
        for follower in after[position]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (follower, follower))
    return order


def _cheapest(
    ready: list[tuple[int, int]], instructions: Sequence[Instruction], alive: set[Buffer], uses: dict[Buffer, int]
) -> int:
    """Take the ready instruction with the smallest growth of live memory; the first that shrinks it, if any does."""
    growth = [(_growth(instructions[position], alive, uses), position) for _, position in ready]
    shrinking = min((position for change, position in growth if change < 0), default=None)
    chosen = shrinking if shrinking is not None else min(growth)[1]
    ready.remove((chosen, chosen))
    heapq.heapify(ready)
    return chosen


def _put_off(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The instructions, those that make more than they keep alive for longer just before what first needs them; no
    moment has more alive for that."""
    lives = lifetimes(instructions)
    followers: list[list[int]] = [[] for _ in instructions]
    for position, earlier in enumerate(predecessors(instructions)):
        for other in earlier:
            followers[other].append(position)
    goal = list(range(len(instructions)))
    for position in reversed(range(len(instructions))):
        later = min((goal[follower] for follower in followers[position]), default=position)
        if _makes_more(instructions[position], position, later, lives):
            goal[position] = later
    order = sorted(range(len(goal)), key=lambda position: (goal[position], position))
    return [instructions[position] for position in order]


def _makes_more(instruction: Instruction, position: int, later: int, lives: Mapping[Buffer, tuple[int, int]]) -> bool:
    """Whether results of an instruction are larger than those operands that would last till a later one for it."""
    change = 0
    for buffer in instruction.operands:
        if buffer.kind == "activation":
            first, last = lives[buffer]
            change += buffer.type.nbytes * ((first == position < last) - (first < position and last < later))
    return change > 0


def _growth(instruction: Instruction, alive: set[Buffer], uses: dict[Buffer, int]) -> int:
    change = 0
    for buffer in instruction.operands:
        if buffer.kind == "activation":
            change += 0 if buffer in alive else buffer.type.nbytes
            change -= buffer.type.nbytes if uses[buffer] == 1 else 0
    return change
