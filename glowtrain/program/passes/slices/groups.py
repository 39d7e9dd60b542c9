"""Find neighbouring kernels that can be computed slice by slice along an axis of what lies between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from glowtrain.loops import Buffer, Index
from glowtrain.program.analysis.kernel_facts import conflict
from glowtrain.program.passes.slices.cutting import loop_index
from glowtrain.program.program import Instruction

LONGEST = 24
"""Instructions from the first to the last of a group, at most."""
SMALLER = 4
"""The least bytes of a buffer that begins a group over those of others that are cut with it."""


@dataclass(frozen=True)
class SliceGroup:
    """The positions of kernels, with the loop of each that goes along the axis, which has ``extent`` elements; and the
    buffers that these kernels alone touch, with the number of that axis. ``before`` and ``after`` are the positions of
    instructions between them that run before or after all of them instead."""

    extent: int
    members: Mapping[int, Index]
    axes: Mapping[Buffer, int]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @cached_property
    def first(self) -> int:
        return min(self.members)

    @cached_property
    def last(self) -> int:
        return max(self.members)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the buffers between."""
        return sum(buffer.type.nbytes for buffer in self.axes)


@dataclass
class Growing:
    """Groups of some instructions, made larger buffer by buffer, of at least so many bytes; only around those where
    much is alive."""

    instructions: Sequence[Instruction]
    least: int
    high: Sequence[bool]
    accesses: dict[Buffer, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for position, instruction in enumerate(self.instructions):
            for buffer in instruction.operands:
                self.accesses.setdefault(buffer, []).append(position)

    def groups(self) -> Iterator[SliceGroup]:
        """For each large buffer and each of its axes, the group of those that touch it, and the largest with it."""
        seen = set[tuple[tuple[int, Index], ...]]()
        for buffer, places in self.accesses.items():
            if not self._is_between(buffer, self.least) or not any(self.high[places[0] : places[-1] + 1]):
                continue
            for axis, extent in enumerate(buffer.shape):
                for group in self._around(buffer, axis) if extent > 1 else ():
                    key = tuple(sorted(group.members.items(), key=lambda member: member[0]))
                    if key not in seen:
                        seen.add(key)
                        yield replace(group, axes={**group.axes, **dict(self._scratch(group))})

    def _scratch(self, group: SliceGroup) -> Iterator[tuple[Buffer, int]]:
        """What only one member of a group touches, with the axis along which that goes: the places of partial sums."""
        for at, index in group.members.items():
            for buffer in self.instructions[at].writes:
                if buffer.kind == "activation" and self.accesses[buffer] == [at]:
                    axes = range(buffer.type.rank)
                    yield from ((buffer, a) for a in axes if loop_index(self.instructions[at], buffer, a) is index)

    def _is_between(self, buffer: Buffer, least: int) -> bool:
        """Whether a buffer of at least so many bytes lies between kernels."""
        return buffer.kind == "activation" and buffer.type.nbytes >= least and len(self.accesses[buffer]) > 1

    def _around(self, buffer: Buffer, axis: int) -> Iterator[SliceGroup]:
        """The group of whoever touches a buffer, and the one of whoever touches others that these share."""
        group = self._with(SliceGroup(buffer.shape[axis], {}, {}), buffer, axis)
        if group is None:
            return
        yield group
        refused, least = {buffer}, self.least // SMALLER
        while True:
            touched = chain.from_iterable(self.instructions[at].operands for at in group.members)
            further = next((b for b in touched if b not in refused and self._is_between(b, least)), None)
            if further is None:
                break
            refused.add(further)
            group = self._wider(group, further)
        yield group

    def _wider(self, group: SliceGroup, buffer: Buffer) -> SliceGroup:
        """A group with one more buffer between its members, if it can be."""
        at, index = next((at, i) for at, i in group.members.items() if buffer in self.instructions[at].touched)
        for axis in range(buffer.type.rank):
            if loop_index(self.instructions[at], buffer, axis) is index:
                return self._with(group, buffer, axis) or group
        return group

    def _with(self, group: SliceGroup, buffer: Buffer, axis: int) -> SliceGroup | None:
        """A group with a buffer cut along an axis, and all who touch it."""
        members = dict(group.members)
        for at in self.accesses[buffer]:
            index = loop_index(self.instructions[at], buffer, axis)
            if index is None or index.extent != group.extent or members.setdefault(at, index) is not index:
                return None
        if self.accesses[buffer][0] != self._writer(buffer) or max(members) - min(members) > LONGEST:
            return None
        axes = {**group.axes, buffer: axis}
        apart = self._apart(members)
        if apart is None or not self._independent(members, axes):
            return None
        return SliceGroup(group.extent, members, axes, *apart)

    def _writer(self, buffer: Buffer) -> int:
        """The position of what writes a buffer first."""
        return next((at for at in self.accesses[buffer] if buffer in self.instructions[at].written), -1)

    def _independent(self, members: Mapping[int, Index], axes: Mapping[Buffer, int]) -> bool:
        """Whether no member reads or writes what others write for another slice."""
        shared = dict.fromkeys(chain.from_iterable(self.instructions[at].writes for at in members))
        return all(buffer in axes or self._has_axis(buffer, members) for buffer in shared)

    def _has_axis(self, buffer: Buffer, members: Mapping[int, Index]) -> bool:
        """Whether all members that touch a buffer do so along one of its axes, unless one alone writes it only."""
        touching = [at for at in members if buffer in self.instructions[at].touched]
        if len(touching) == 1 and buffer not in self.instructions[touching[0]].reads:
            return True
        return any(
            all(loop_index(self.instructions[at], buffer, axis) is members[at] for at in touching)
            for axis in range(buffer.type.rank)
        )

    def _apart(self, members: Mapping[int, Index]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """What of the instructions between members runs before all of them, and what after; ``None`` if one can do
        neither."""
        before, after = list[int](), list[int]()
        positions = sorted(members)
        for at in range(positions[0], positions[-1]):
            if at in members:
                continue
            if not self._conflicts(at, [*(m for m in positions if m < at), *after]):
                before.append(at)
            elif not self._conflicts(at, [m for m in positions if m > at]):
                after.append(at)
            else:
                return None
        return tuple(before), tuple(after)

    def _conflicts(self, at: int, others: Sequence[int]) -> bool:
        return any(conflict(self.instructions[at], self.instructions[other]) for other in others)
