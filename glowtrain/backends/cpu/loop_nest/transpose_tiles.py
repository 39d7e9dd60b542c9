"""Transpose in registers what a loop nest reads along another loop than the one along which it writes.

The two loops are cut into square tiles of as many trips as a vector has lanes; a tile's rows are loaded whole and
transposed, which takes a few shuffles for each vector; a load for each lane took several cycles an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from glowtrain.backends.cpu.loop_nest.reduction import Reducing
from glowtrain.backends.cpu.order.analysis import Free, accesses, reductions, slope
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.values import LlvmValue
from glowtrain.loops import Accumulate, Affine, For, Index, Load, Statement, Store, address, loads, writes

MOST = 2
"""Loads that are transposed at once: each of them fills half of the registers."""
SIZES = (4, 8)
"""Bytes of the elements that are transposed."""


@dataclass(frozen=True)
class TransposeTiles:
    """The index along the lanes, the one along which ``loads`` find neighbours, and these loads."""

    lane: Index
    across: Index
    loads: tuple[Load, ...]

    def rows(self, e: Reducing, first: LlvmValue) -> dict[Load, list[LlvmValue]]:
        """The vectors of each load, for trips of the other index from ``first`` on, one after another."""
        return {load: self._transposed_rows(e, load, first) for load in self.loads}

    def copies(self, body: Sequence[Statement]) -> list[tuple[Store, Load]] | None:
        """What each statement stores, if all of them store what is read along the other index, as it is."""
        copied = [(s, s.value) for s in body if isinstance(s, Store) and isinstance(s.value, Load)]
        turned = [(store, load) for store, load in copied if load in self.loads and store.buffer.dtype == load.dtype]
        return turned if len(turned) == len(body) else None

    def corner(self, e: Reducing, offset: Affine, first: LlvmValue) -> LlvmValue:
        """The offset of the first element of a tile, from trip ``first`` of the other index on."""
        along = e.times(e.start(), offset.coefficient(self.lane))
        across = e.times(first, offset.coefficient(self.across))
        return e.sum(e.scalar_sum(offset, self.lane, self.across), e.sum(along, across))

    def _transposed_rows(self, e: Reducing, load: Load, first: LlvmValue) -> list[LlvmValue]:
        offset, width, dtype = e.offset_of(load), e.context.width, load.buffer.dtype.name
        step, corner = offset.coefficient(self.lane), self.corner(e, offset, first)
        pointers = (e.pointer(load.buffer, e.sum(corner, e.f.index(row * step))) for row in range(width))
        rows = [scalar.load(e.f, pointer, dtype, width, e.target) for pointer in pointers]
        return Lanes(e.f, rows[0].type).transpose(rows)


def transpose_tiles(loop: For, width: int, free: Free) -> TransposeTiles | None:
    """How to write a flat nest in tiles: every store goes along the lanes, and so does every load but some that
    would find neighbours along another index. ``None`` where none would, or all go along some loop.
    """
    long = [index for index in loop.indices if index.extent >= width]
    if width == 1 or len(long) < 2 or not _plain(loop.body) or any(_lies_along(i, loop, free) for i in long):
        return None
    stores = [address(s.index, s.buffer.strides) for s in loop.body if isinstance(s, Store)]
    every = list(dict.fromkeys(loads(loop.body)))
    for lane, across in permutations(long, 2):
        if all(slope(offset, lane, free) == 1 for offset in stores):
            apart = tuple([load for load in every if _slope(load, lane, free) not in (0, 1)])
            if len(apart) <= MOST and all(_turns(load, lane, across, loop.body, free) for load in apart):
                return TransposeTiles(lane, across, apart)
    return None


def _plain(body: Sequence[Statement]) -> bool:
    """Whether a body consists of names and stores, and sums up nothing."""
    return not any(isinstance(s, (For, Accumulate)) for s in body) and not any(True for _ in reductions(body))


def _lies_along(index: Index, loop: For, free: Free) -> bool:
    """Whether everything that is accessed lies side by side along an index."""
    return all(slope(access.offset, index, free) in (0, 1) for access in accesses(loop.body))


def _slope(load: Load, index: Index, free: Free) -> int | None:
    return slope(address(load.index, load.buffer.strides), index, free)


def _turns(load: Load, lane: Index, across: Index, body: Sequence[Statement], free: Free) -> bool:
    """Whether rows of a load can be loaded whole and transposed."""
    offset = address(load.index, load.buffer.strides)
    certain = load.fill is None and load.buffer not in writes(body) and load.buffer.dtype.size in SIZES
    return certain and offset.linear_in({lane, across}) and slope(offset, across, free) == 1
