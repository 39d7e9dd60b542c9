"""Reorder instructions for a lower peak of live memory, in programs in which results were dropped.

What is alive at the peak was another one when the instructions were ordered first. So, as long as that lowers the peak,
what reads something large for the last time moves ahead of it, and what makes something that is read only later moves
behind it. A kernel that updates a variable moves ahead of others that read the variable, too: these read a copy. So the
gradient of weights, which is one kernel with their update and the last to need the layer's input, may come before
the gradient of that input, which needs the weights as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from glowtrain.loops import Buffer, For, Load, Store, indices_of
from glowtrain.names import Names
from glowtrain.program.passes.partial_sums import homes_of_sums
from glowtrain.program.passes.reuse import pairs
from glowtrain.program.passes.schedule import lifetimes
from glowtrain.program.program import Instruction, Kernel
from glowtrain.types import Array

LEAST_PART = 64
"""The peak over the bytes for which something is moved."""
LARGEST_COPY = 4
"""What a move frees over the bytes of the copies of variables that it takes, at least."""
MOST_ALONG = 6
"""Instructions at most that move together, because each needs the one before."""
MOST_MOVES = 60
"""Moves at most in one program."""


@dataclass(frozen=True)
class Reordering:
    """Moves instructions of one program, in which ``names`` are taken."""

    names: Names
    _reuses: dict[Instruction, tuple[tuple[Buffer, Buffer], ...]] = field(default_factory=dict)

    def run(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """The instructions in an order with a lower peak, or as they are."""
        order = list(instructions)
        alive = self._alive(order)
        for _ in range(MOST_MOVES):
            moved = [(found, self._alive(found)) for found in self._moves(order, alive)]
            best = min(moved, key=lambda one: (*_height(one[1]), int(one[1].sum())), default=None)
            if best is None or _height(best[1]) >= _height(alive):
                break
            order, alive = best
        return order

    def _alive(self, order: Sequence[Instruction]) -> Array:
        """Bytes of activations alive during each instruction, where results take the places of operands."""
        lives = lifetimes(order)
        changes = np.zeros(len(order) + 1, np.int64)
        for buffer, (first, last) in lives.items():
            changes[first] += buffer.type.nbytes
            changes[last + 1] -= buffer.type.nbytes
        alive: Array = np.cumsum(changes)[:-1]
        begins, ends = ({life[end] for life in lives.values()} for end in (0, 1))
        for position in begins & ends:
            for result, operand in self._pairs(order[position]):
                if lives[result][0] == position and lives[operand][1] == position:
                    alive[position] -= operand.type.nbytes
        for buffer, (first, last) in lives.items():
            if first == last and buffer in homes_of_sums(order[first]):
                alive[first] -= buffer.type.nbytes
        return alive

    def _pairs(self, instruction: Instruction) -> tuple[tuple[Buffer, Buffer], ...]:
        """Results of an instruction with operands whose places they can take."""
        if instruction not in self._reuses:
            self._reuses[instruction] = tuple(pairs(instruction, set(instruction.activations)))
        return self._reuses[instruction]

    def _moves(self, order: list[Instruction], alive: Array) -> Iterator[list[Instruction]]:
        """Orders in which one instruction, with what it needs, is on the other side of the peak."""
        if not order:
            return
        at, peak = int(alive.argmax()), int(alive.max())
        lives = lifetimes(order)
        large = {b: life for b, life in lives.items() if b.type.nbytes * LEAST_PART >= peak}
        ends: dict[int, int] = {}
        for buffer, (first, last) in large.items():
            if first <= at < last:
                ends[last] = ends.get(last, 0) + buffer.type.nbytes
        for position, freed in ends.items():
            for before in {at, _earliest(order, position, at, alive > peak - freed)}:
                moved = self._ahead(order, position, before, freed // LARGEST_COPY)
                if moved is not None:
                    yield moved
        for position in {at, *(first for first, last in large.values() if first <= at <= last)}:
            moved = _behind(order, position, at)
            if moved is not None:
                yield moved

    def _ahead(self, order: list[Instruction], position: int, before: int, most: int) -> list[Instruction] | None:
        """An instruction, with what it needs, before another one; copies of variables have ``most`` bytes."""
        group, stay = _Group([order[position]]), list[Instruction]()
        for other in reversed(order[before:position]):
            over = group.overwrites(other)
            if over is None and len(group.members) < MOST_ALONG and other.written.isdisjoint(group.copies):
                group.add(other)
                continue
            if over is None:
                return None
            fresh = {buffer: group.copies.get(buffer) or self._copy_of(buffer) for buffer in over}
            group.copies.update(fresh)
            stay.append(other.with_buffers(fresh))
        if not stay or sum(b.type.nbytes for b in group.copies) > most:
            return None
        copied = [_copying(variable, copy) for variable, copy in group.copies.items()]
        return [*order[:before], *copied, *reversed(group.members), *reversed(stay), *order[position + 1 :]]

    def _copy_of(self, variable: Buffer) -> Buffer:
        name = self.names.fresh(f"{variable.name}.before")
        return replace(variable, name=name, kind="activation", initial=None)


@dataclass
class _Group:
    """Instructions that move together, the last one first, and copies of variables that these update."""

    members: list[Instruction]
    copies: dict[Buffer, Buffer] = field(default_factory=dict)

    def add(self, instruction: Instruction) -> None:
        """Let an instruction move along."""
        self.members.append(instruction)

    def overwrites(self, other: Instruction) -> set[Buffer] | None:
        """The variables that the group updates and an earlier instruction reads; ``None`` where this one has to stay
        before the group for another reason."""
        over = set[Buffer]()
        for member in self.members:
            if not member.touched.isdisjoint(other.written):
                return None
            over |= member.written & set(other.reads)
        return over if all(buffer.kind == "variable" for buffer in over) else None


def _height(alive: Array) -> tuple[int, int]:
    """The most bytes that are alive, and at how many instructions."""
    peak = int(alive.max(initial=0))
    return peak, int((alive == peak).sum())


def _earliest(order: Sequence[Instruction], position: int, at: int, crowded: Array) -> int:
    """The first of the instructions up to the peak that are ``crowded``, and before which an instruction could run."""
    reads = set(order[position].reads)
    while at > 0 and crowded[at - 1] and order[at - 1].written.isdisjoint(reads):
        at -= 1
    return at


def _behind(order: list[Instruction], position: int, at: int) -> list[Instruction] | None:
    """An instruction as late as it can be; ``None`` where that is not behind another one."""
    moved, after = order[position], position + 1
    while after < len(order) and not _ordered(moved, order[after]):
        after += 1
    return [*order[:position], *order[position + 1 : after], moved, *order[after:]] if after > at + 1 else None


def _ordered(first: Instruction, second: Instruction) -> bool:
    """Whether two instructions must run in this order."""
    return not (first.written.isdisjoint(second.touched) and first.touched.isdisjoint(second.written))


def _copying(variable: Buffer, copy: Buffer) -> Kernel:
    """The kernel that copies a variable."""
    indices = indices_of(variable.shape)
    return Kernel(copy.name, (For(indices, (Store(copy, indices, Load(variable, indices)),)),))
