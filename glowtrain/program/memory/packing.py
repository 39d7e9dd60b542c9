"""Intervals packed into a strip: offsets, so that what is alive at the same time does not overlap.

The problem is dynamic storage allocation with known lifetimes, strip packing in which items may move along one axis
only. Best fit in four orders (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020,
"greedy by size") reaches the lower bound, the largest sum of what is alive together, on most programs. Where it does
not, a search tries to fit everything into the bound, and then into heights halfway between what is known to be too
low and the best packing so far.

Nothing here looks at a clock: the search is bounded by a count of steps, so that a program gets the same offsets on
every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from glowtrain.program.memory.packing_search import Item, OutOfSteps, StepBudget, search

STEPS = 4_000
"""What a compilation may spend: seconds where nothing better turns up; a few hundred are enough for most programs."""

_NO_GAP = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Packed:
    """An offset for each item, the end of the highest one, and a height below which no packing exists."""

    offsets: tuple[int, ...]
    height: int
    bound: int


def pack(items: Sequence[Item], steps: int = STEPS, enough: int | None = None) -> Packed:
    """The lowest packing found: best fit's if it reaches the bound, else what a search of ``steps`` improves it to.

    ``enough`` is a height that would do, such as a memory's size: where nothing is found at the bound, it is what is
    tried next. ``height == bound`` says that the packing is optimal. Sizes are positive, and no lifetime is empty.
    """
    bound = peak(items)
    best = best_fit(items, bound)
    return best if best.height == bound else _improve(items, best, StepBudget(steps), enough)


def peak(items: Sequence[Item]) -> int:
    """The largest sum of the sizes of what is alive at the same time."""
    changes: dict[int, int] = {}
    for item in items:
        changes[item.first] = changes.get(item.first, 0) + item.size
        changes[item.last + 1] = changes.get(item.last + 1, 0) - item.size
    total = most = 0
    for time in sorted(changes):
        total += changes[time]
        most = max(most, total)
    return most


LARGE, FEW_STEPS = 8, 200
"""How many of the largest items are looked at first to see whether all fit somewhere, and for how long."""


def plainly_exceeds(items: Sequence[Item], capacity: int) -> bool:
    """Whether no packing within a capacity exists, and that is seen at once: by the largest sum of what is alive, or
    by the largest items, which alone do not fit."""
    if peak(items) > capacity:
        return True
    largest = sorted(items, key=lambda item: item.size, reverse=True)[:LARGE]
    try:
        return search(largest, capacity, StepBudget(FEW_STEPS)) is None
    except OutOfSteps:
        return False


# ---- best fit


_ORDERS: tuple[Callable[[Item], tuple[int, ...]], ...] = (
    lambda item: (-item.size, item.first),
    lambda item: (item.first, -item.size),
    lambda item: (item.first - item.last, -item.size),
    lambda item: (-item.size * (1 + item.last - item.first), item.first),
)


def best_fit(items: Sequence[Item], bound: int) -> Packed:
    """The lowest of best fit's packings in four orders; the first that reaches ``bound`` ends the trials."""
    best: Packed | None = None
    for key in _ORDERS:
        order = sorted(range(len(items)), key=lambda i: key(items[i]))
        best = _best_fit_in_order(items, order, bound, _NO_GAP if best is None else best.height) or best
        assert best is not None
        if best.height == bound:
            break
    assert best is not None
    return best


def _best_fit_in_order(items: Sequence[Item], order: Sequence[int], bound: int, below: int) -> Packed | None:
    """Each item goes into the smallest gap between those placed that are alive at the same time; ``None`` once one ends
    no lower than ``below``."""
    offsets, placed = [0] * len(items), _Placed(len(order))
    for i in order:
        offsets[i] = placed.gap(items[i])
        if offsets[i] + items[i].size >= below:
            return None
        placed.add(offsets[i], items[i])
    return _packing(items, offsets, bound)


class _Placed:
    """The items placed so far, by offset: columns of begin, end, first and last time of each."""

    def __init__(self, most: int) -> None:
        self._columns = np.empty((4, most), np.int64)
        self._count = 0

    def gap(self, item: Item) -> int:
        """The begin of the smallest gap that takes the item between those that are alive with it, or the end of all."""
        begin, end, first, last = self._columns[:, : self._count]
        alive = (first <= item.last) & (last >= item.first)
        ends = np.maximum.accumulate(end[alive])
        if not ends.size:
            return 0
        before = np.concatenate(([0], ends[:-1]))
        gaps = begin[alive] - before
        gaps[gaps < item.size] = _NO_GAP
        best = int(gaps.argmin())
        return int(ends[-1] if gaps[best] == _NO_GAP else before[best])

    def add(self, offset: int, item: Item) -> None:
        columns, count = self._columns, self._count
        at = int(columns[0, :count].searchsorted(offset))
        columns[:, at + 1 : count + 1] = columns[:, at:count]
        columns[:, at] = offset, offset + item.size, item.first, item.last
        self._count = count + 1


# ---- improvement by search


def _improve(items: Sequence[Item], best: Packed, steps: StepBudget, enough: int | None) -> Packed:
    """The best packing after searches at the bound, at what is enough, then at heights halfway to the best so far.

    Heights are sums of sizes, so only multiples of the sizes' greatest common divisor are tried. Every search gets
    half of the steps that are left.
    """
    unit = gcd(*(item.size for item in items))
    scaled = [Item(item.first, item.last, item.size // unit) for item in items]
    bound = lowest = capacity = best.bound // unit
    while lowest * unit < best.height and steps.left:
        trial = StepBudget(-(-steps.left // 2))
        steps.left -= trial.left
        try:
            offsets = search(scaled, capacity, trial)
            bound = bound if offsets else capacity + 1
        except OutOfSteps:
            offsets = None
        steps.left += trial.left
        if offsets is None:
            lowest = capacity + 1
        else:
            best = _packing(items, [offset * unit for offset in offsets], best.bound)
        wanted, enough = enough, None
        capacity = (lowest + best.height // unit - 1) // 2
        if wanted is not None and lowest * unit <= wanted < best.height:
            capacity = wanted // unit
    return replace(best, bound=bound * unit)


def _packing(items: Sequence[Item], offsets: Sequence[int], bound: int) -> Packed:
    height = max((offset + item.size for offset, item in zip(offsets, items, strict=True)), default=0)
    return Packed(tuple(offsets), height, bound)
