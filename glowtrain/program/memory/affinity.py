"""Move buffers within what a packing leaves free, so that threads write where they wrote before.

Threads share out most kernels along the outermost axis, so that one has the first half of a buffer and another one the
second. Where a buffer's first half lies where an earlier one's second half lay, each core has to fetch lines that the
other one has changed, which takes some three times as long as lines of its own. Buffers agree where their middles
meet; a small one within a half of a large one agrees with that for half of its lines.

Items are looked at in the order in which they come alive, each among the places that all the others leave it where
they lie by then; so no packing becomes higher.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from glowtrain.program.memory.packing_search import Item

Ints = NDArray[np.int64]

LEAST = 128
"""Lines from which on an item is moved; smaller ones are many, with few lines in all."""
RECENT = 32_000
"""So many lines of items that came alive since an item went are as many as caches hold of two cores: 2 MB."""
OTHER, GONE = 3, 1
"""What a line costs that the other core's cache has, and one that no core's cache has, over one in a core's own: on a
server processor, threads write the three kinds in 4, 2.5 and 1.3 ns."""


def move_for_affinity(items: Sequence[Item], offsets: Sequence[int], height: int) -> tuple[int, ...]:
    """Offsets up to the same height at which fewer lines have to come from another core."""
    strip, used = _Strip(items, offsets, height), _LastUse(height)
    for at in sorted(range(len(items)), key=lambda at: items[at].first):
        if items[at].size >= LEAST:
            strip.offsets[at] = _cheapest(strip, used, at)
        used.take(int(strip.offsets[at]), items[at].size, strip.clock(items[at].last))
    return tuple(strip.offsets.tolist())


def _cheapest(strip: _Strip, used: _LastUse, at: int) -> int:
    """The offset of an item at which its lines cost least: the one that it has, unless another one is better."""
    size = int(strip.sizes[at])
    low, high = strip.free(at)
    tried = np.concatenate((strip.offsets[at : at + 1], low, high, _within(used.turns(size), low, high)))
    return int(tried[used.costs(tried, size, strip.clock(int(strip.first[at]))).argmin()])


def _within(offsets: Ints, low: Ints, high: Ints) -> Ints:
    """Those in one of some ranges that stand in order, from ``low`` to ``high``."""
    ranges = low.searchsorted(offsets, side="right") - 1
    return offsets[(ranges >= 0) & (offsets <= high[ranges])]


class _Strip:
    """The items in columns, with their offsets so far."""

    def __init__(self, items: Sequence[Item], offsets: Sequence[int], height: int) -> None:
        columns = np.array([(item.first, item.last, item.size) for item in items], np.int64).reshape(-1, 3)
        self.first, self.last, self.sizes = np.ascontiguousarray(columns.T)
        self.offsets = np.array(offsets, np.int64)
        self.height = height
        order = self.first.argsort(kind="stable")
        self._times, self._made = self.first[order], np.append(0, np.cumsum(self.sizes[order]))

    def clock(self, time: int) -> int:
        """Lines of all items that have come alive by then: a clock that goes as fast as caches fill."""
        return int(self._made[self._times.searchsorted(time, side="right")])

    def free(self, at: int) -> tuple[Ints, Ints]:
        """The ranges of offsets that the others leave to an item: the lowest and the highest of each, in order."""
        alive = (self.first <= self.last[at]) & (self.last >= self.first[at])
        alive[at] = False
        begins, sizes = self.offsets[alive], self.sizes[alive]
        order = begins.argsort()
        begins = begins[order]
        low = np.append(0, np.maximum.accumulate(begins + sizes[order]))
        high = np.append(begins, self.height) - self.sizes[at]
        room = low <= high
        return low[room], high[room]


class _LastUse:
    """Runs of lines, by where they begin: in which half of an item they were last, 0 or 1, and until when."""

    def __init__(self, height: int) -> None:
        self._begins, self._uses = [0], [(-1, -RECENT)]
        self._height = height

    def take(self, offset: int, size: int, until: int) -> None:
        """An item comes to lie there, until a time."""
        middle = offset + size // 2
        self._set(offset, middle, (0, until))
        self._set(middle, offset + size, (1, until))

    def _set(self, begin: int, end: int, use: tuple[int, int]) -> None:
        if begin < end:
            low, behind = bisect_left(self._begins, begin), bisect_right(self._begins, end)
            cut = end < self._height and self._begins[behind - 1] < end
            rest = slice(low, behind if cut or end == self._height else behind - 1)
            runs = [(begin, use), *([(end, self._uses[behind - 1])] if cut else [])]
            self._begins[rest], self._uses[rest] = [at for at, _ in runs], [each for _, each in runs]

    def turns(self, size: int) -> Ints:
        """Offsets from which on lines of an item of that size begin to cost more or less."""
        begins = self._edges()[:-1]
        return np.concatenate((begins, begins - size // 2, begins - size))

    def _edges(self) -> Ints:
        return np.array([*self._begins, self._height], np.int64)

    def costs(self, offsets: Ints, size: int, now: int) -> NDArray[np.float64]:
        """What lines of an item of that size cost that comes alive now, at each of some offsets."""
        edges, uses = self._edges(), np.array(self._uses)
        gone, lengths = now - uses[:, 1] >= RECENT, np.diff(edges)
        middle, total = offsets + size // 2, np.zeros(len(offsets))
        for half, begin, end in ((0, offsets, middle), (1, middle, offsets + size)):
            each = np.where(gone, GONE, OTHER * (uses[:, 0] != half))
            sums = np.append(0, np.cumsum(lengths * each))
            total += np.interp(end, edges, sums) - np.interp(begin, edges, sums)
        return total
