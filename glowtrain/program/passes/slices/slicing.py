"""Groups of kernels in slices: a repeat over an axis of what lies between them, of which only a slice is there.

Attention has scores and probabilities of every token for every other one; a loss over a large vocabulary has a score of
each word for every token. Kernels that make them and those that read them are independent along heads, or along rows,
so they run head by head: what lies between them is as large as one slice, and often still in a cache when it is read.

No sum is cut, and none changes its order (:attr:`glowtrain.stages.Facts.sums` says whether a kernel's slice has the
same), so results are the same to the bit.

Source: Rabe and Staats, Self-attention Does Not Need O(n^2) Memory (2021), and Dao, Fu, Ermon, Rudra and Re,
FlashAttention (NeurIPS 2022), for the memory; both carry sums over from block to block, which this does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glowtrain.loops import Accumulate, Buffer, Index, Store, address, statements
from glowtrain.memo import memoized
from glowtrain.names import Names
from glowtrain.program.analysis.kernel_facts import contractions
from glowtrain.program.analysis.time_estimate import estimate
from glowtrain.program.passes.loop_fusion.fuse_pair import Sums, fused_name
from glowtrain.program.passes.reuse import live_in_place, reuse
from glowtrain.program.passes.schedule import lifetimes
from glowtrain.program.passes.slices.cutting import Slices, cut_kernel
from glowtrain.program.passes.slices.groups import Growing, SliceGroup
from glowtrain.program.program import Instruction, Kernel, Program, Repeat
from glowtrain.stages import Rates

SUFFIX = ".slice"
"""Ends the names of buffers that hold a slice."""
REPEATED = ".slices"
"""Ends the names of repeats over slices."""

MOST_TRIPS = 4096
"""Slices of an axis at most."""
LINE = 64
"""Bytes that caches fetch together."""
WORK = 20_000.0
"""Nanoseconds that a kernel takes for a slice at least."""
CALL = 3_000.0
"""Nanoseconds that calling a kernel takes, with threads to wake."""
PACKING = 12
"""Products that are summed in the time in which an operand's element is packed."""
HIGH = 0.25
"""The part of the largest peak that is alive where groups are cut at least."""


@dataclass(frozen=True)
class Grain:
    """How small slices may be: they save more than ``worth`` bytes for each nanosecond that they take; ``fine``: also
    such as leave a kernel little to do for threads, or take parts of cache lines."""

    worth: float
    fine: bool = False


CHEAP = Grain(30.0)
"""Slices that take next to no time."""


@dataclass(frozen=True)
class SliceCut:
    """A group in slices of ``size`` elements, which ``saves`` so many bytes while it runs, and takes ``time`` more
    nanoseconds."""

    group: SliceGroup
    size: int
    saves: int
    time: float

    @property
    def share(self) -> float:
        """The part of a buffer that is there in a slice."""
        return self.size / self.group.extent


@dataclass(frozen=True)
class Sliced:
    """Instructions of which ``cuts`` are in slices, for the position of each given one that of what runs it now, and
    the nanoseconds that this takes in addition."""

    instructions: list[Instruction]
    cuts: tuple[SliceCut, ...]
    new_positions: tuple[int, ...]

    @property
    def time(self) -> float:
        return sum(cut.time for cut in self.cuts)

    def live(self) -> list[int]:
        """Bytes alive at each of the given instructions, where results take the places of operands."""
        live = live_in_place(self.instructions)
        return [live[position] for position in self.new_positions]

    def cut_at(self, position: int) -> SliceCut | None:
        """The group in slices of which an instruction is."""
        return next((cut for cut in self.cuts if position in cut.group.members), None)


class Alive:
    """The bytes alive at each of some instructions, and when each activation is."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.live = live_in_place(instructions)
        lives = lifetimes(instructions)
        self._begins, self._ends = (np.array([life[end] for life in lives.values()], np.int64) for end in (0, 1))
        self._nbytes = np.array([buffer.type.nbytes for buffer in lives], np.int64)

    def at_least(self, part: float) -> list[bool]:
        """At which instructions at least this part of the peak is alive."""
        least = max(self.live) * part
        return [nbytes >= least for nbytes in self.live]

    def most(self, group: SliceGroup) -> int:
        """The most bytes alive while a group runs kernel by kernel."""
        return max(self.live[group.first : group.last + 1])

    def around(self, group: SliceGroup) -> int:
        """Bytes of what is alive while a group runs in slices, without the slices: all that is at some moment."""
        alive = (self._begins <= group.last) & (self._ends >= group.first)
        return int(self._nbytes[alive].sum()) - group.nbytes


class Slicing:
    """Which groups run in slices: those for which ``sums`` says that no sum changes its order, with more than
    ``least`` bytes between them, in slices of a ``grain``."""

    def __init__(self, sums: Sums | None, rates: Rates, least: int, grain: Grain = CHEAP) -> None:
        self.sums, self.rates, self.least, self.grain = sums, rates, least, grain

    def run(self, instructions: Sequence[Instruction], names: Names) -> Sliced:
        """Instructions with groups in slices where that saves bytes at moments when much is alive, for little time."""
        return _applied(instructions, self.cuts(instructions), names)

    def cuts(self, instructions: Sequence[Instruction]) -> list[SliceCut]:
        """Those groups, in order."""
        if self.sums is None or not instructions:
            return []
        alive = Alive(instructions)
        groups = Growing(instructions, self.least, alive.at_least(HIGH)).groups()
        cuts = [cut for cut in (self._cut(instructions, group, alive) for group in groups) if cut is not None]
        chosen = list[SliceCut]()
        for cut in sorted(cuts, key=self._gain, reverse=True):
            if all(cut.group.last < other.group.first or other.group.last < cut.group.first for other in chosen):
                chosen.append(cut)
        return sorted(chosen, key=lambda cut: cut.group.first)

    def _cut(self, instructions: Sequence[Instruction], group: SliceGroup, alive: Alive) -> SliceCut | None:
        """A group in those slices that save most bytes for their time."""
        before, whole = alive.most(group), alive.around(group)
        calls = len(group.members) * CALL
        possible = [  # whatever else they take
            trips
            for trips in trip_counts(group.extent)
            if before - whole - group.nbytes // trips > self.grain.worth * trips * calls
        ]
        if not possible:
            return None
        again = sum(_packed(instructions[at], index, self.rates) for at, index in group.members.items())
        cuts = list[SliceCut]()
        least = 1 if self.grain.fine else max(self._busy(instructions, group), self._run(instructions, group))
        for trips in (n for n in possible if least <= group.extent // n):
            size = group.extent // trips
            time = trips * calls + (trips - 1) * again
            cuts.append(SliceCut(group, size, before - whole - group.nbytes // trips, time))
        worth = [cut for cut in cuts if self._gain(cut) > 0]
        worth.sort(key=self._gain, reverse=True)
        return next((cut for cut in worth if self._keeps_sums(instructions, group, cut.size)), None)

    def _busy(self, instructions: Sequence[Instruction], group: SliceGroup) -> float:
        """Elements of a slice at least: each kernel has enough to do for one."""
        work = sum(estimate(instructions[at], self.rates) for at in group.members)
        return WORK * len(group.members) / max(work, 1.0) * group.extent

    def _run(self, instructions: Sequence[Instruction], group: SliceGroup) -> int:
        """Elements of a slice at least: whole cache lines of what lies side by side along the axis."""
        kernels = ((instructions[at].kernel, index) for at, index in group.members.items())
        every = (each for kernel, index in kernels if kernel is not None for each in _beside(kernel, index))
        return max((LINE // buffer.dtype.size for buffer in every if buffer.type.nbytes >= self.least), default=1)

    def _gain(self, cut: SliceCut) -> float:
        """The bytes that are saved, less those that the time is worth."""
        return cut.saves - self.grain.worth * cut.time

    def _keeps_sums(self, instructions: Sequence[Instruction], group: SliceGroup, size: int) -> bool:
        """Whether sums of all kernels have the same order in slices of this size."""
        assert self.sums is not None
        for at, index in group.members.items():
            kernel = instructions[at].kernel
            assert kernel is not None
            own = tuple((buffer, group.axes[buffer]) for buffer in kernel.operands if buffer in group.axes)
            if not _keeps_sums(kernel, index, group.extent, size, own, self.sums):
                return False
        return True


@memoized
def _keeps_sums(
    kernel: Kernel, index: Index, extent: int, size: int, axes: tuple[tuple[Buffer, int], ...], sums: Sums
) -> bool:
    """Whether sums of a kernel have the same order in slices of this size of these buffers."""
    slices = _slices(extent, size, dict(axes), Names(()))
    return sums(kernel) == sums(cut_kernel(kernel, index, slices))


def _beside(kernel: Kernel, index: Index) -> Iterator[Buffer]:
    """The buffers of which a loop goes from element to element."""
    stores = (each for each in statements(kernel.body) if isinstance(each, (Store, Accumulate)))
    for access in (*kernel.survey.loads, *stores):
        if address(access.index, access.buffer.strides).coefficient(index) == 1:
            yield access.buffer


def _packed(instruction: Instruction, index: Index, rates: Rates) -> float:
    """The nanoseconds in which operands of an instruction's contractions are read and packed that a loop does not
    move."""
    found = 0.0
    for total_, *both in contractions(instruction.nests):
        for load in both:
            form = address(load.index, load.buffer.strides)
            if not any(index is atom for atom, _ in form.terms) and total_.dtype.is_float:
                found += load.buffer.type.nbytes / rates.memory + load.buffer.type.size * PACKING / rates.multiply_adds
    return found


def slices_in(program: Program) -> Iterator[Repeat]:
    """The repeats over slices."""
    for instruction in program.instructions:
        if isinstance(instruction, Repeat) and instruction.name.endswith(REPEATED):
            yield instruction


@functools.lru_cache(maxsize=1024)
def trip_counts(extent: int) -> tuple[int, ...]:
    """Into how many equal slices an axis can be cut, two or more, the most first; an axis may have any length."""
    return tuple([trips for trips in range(min(extent, MOST_TRIPS), 1, -1) if extent % trips == 0])


def _applied(instructions: Sequence[Instruction], cuts: Sequence[SliceCut], names: Names) -> Sliced:
    """The instructions with these groups in slices."""
    result, new_positions = list[Instruction](), dict[int, int]()

    def plain(positions: Iterable[int]) -> None:
        for at in positions:
            new_positions[at] = len(result)
            result.append(instructions[at])

    begin = 0
    for cut in cuts:
        group = cut.group
        plain((*range(begin, group.first), *group.before))
        new_positions.update(dict.fromkeys(group.members, len(result)))
        result.append(in_slices(instructions, group, cut.size, names))
        plain(group.after)
        begin = group.last + 1
    plain(range(begin, len(instructions)))
    return Sliced(result, tuple(cuts), tuple(new_positions[at] for at in range(len(instructions))))


def in_slices(instructions: Sequence[Instruction], group: SliceGroup, size: int, names: Names) -> Repeat:
    """A group in slices of so many elements."""
    slices = _slices(group.extent, size, group.axes, names)
    body = [_cut(instructions[at], index, slices) for at, index in sorted(group.members.items(), key=lambda m: m[0])]
    return Repeat(_title(body), slices.trip, tuple(reuse(body, frozenset(), frozenset(slices.buffers.values()))))


def _title(body: Sequence[Kernel]) -> str:
    """What a repeat is called: by its kernels."""
    return functools.reduce(fused_name, (kernel.name for kernel in body)) + REPEATED


def _cut(instruction: Instruction, index: Index, slices: Slices) -> Kernel:
    assert instruction.kernel is not None
    return cut_kernel(instruction.kernel, index, slices)


def _slices(extent: int, size: int, axes: Mapping[Buffer, int], names: Names) -> Slices:
    own = {buffer: _slice(buffer, axis, size, names) for buffer, axis in axes.items()}
    return Slices(Index(extent // size, "slice"), size, axes, own)


def _slice(buffer: Buffer, axis: int, size: int, names: Names) -> Buffer:
    """A slice of a buffer."""
    shape = (*buffer.shape[:axis], size, *buffer.shape[axis + 1 :])
    return replace(buffer, name=names.fresh(buffer.name + SUFFIX), type=buffer.type.with_shape(shape))
