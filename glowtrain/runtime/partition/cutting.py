"""Where stages begin: dynamic programming over a graph's blocks.

Stage k is a range of blocks on device k, or nothing. The slowest stage is made as fast as it can be; then, among the
ways that come within :data:`NEARLY` of that, the one that passes the fewest bytes between stages is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.types import Array

NEARLY = 1.05
"""Times the slowest stage's least time that it may take where that saves bytes."""

Range = tuple[int, int]
"""The blocks from the first to before the second; none where they are equal."""


@dataclass(frozen=True)
class ChosenCuts:
    """A range of blocks for each device, and the largest of the numbers that were to be small."""

    ranges: tuple[Range, ...]
    largest: float


def least_largest(costs: Sequence[Array], *, every: bool) -> ChosenCuts | None:
    """The ranges whose largest cost is least; ``None`` where all have an infinite one.

    ``costs``: for each device, entry i, j is that of the blocks from i to before j. ``every`` device has blocks;
    otherwise some may have none, which costs nothing.
    """
    return _chosen(costs, np.maximum, every=every)


def least_sum(costs: Sequence[Array], *, every: bool) -> ChosenCuts | None:
    """The ranges whose costs have the least sum; otherwise as :func:`least_largest`."""
    return _chosen(costs, np.add, every=every)


def balanced(times: Sequence[Array], bytes_in: Array, *, every: bool) -> ChosenCuts | None:
    """The ranges whose slowest takes the least time, or nearly, with the fewest bytes ``bytes_in`` from others."""
    fastest = least_largest(times, every=every)
    if fastest is None:
        return None
    bytes_ = [np.where(time <= fastest.largest * NEARLY, bytes_in, np.inf) for time in times]
    fewest = least_sum(bytes_, every=every)
    assert fewest is not None
    slowest = max(time[at] for time, at in zip(times, fewest.ranges, strict=True) if at[0] < at[1])
    return ChosenCuts(fewest.ranges, float(slowest))


def _chosen(costs: Sequence[Array], join: Callable[..., Array], *, every: bool) -> ChosenCuts | None:
    """``best[j]``: the least cost of the blocks before j on the devices so far."""
    count = len(costs[0]) - 1
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    starts: list[Array] = []
    for cost in costs:
        own = np.where(np.tri(count + 1, dtype=bool), np.inf, cost)
        joined = join(best[:, None], own)
        if not every:
            np.fill_diagonal(joined, best)
        starts.append(count - joined[::-1].argmin(axis=0))  # of equal ones that which leaves more to earlier devices
        best = joined.min(axis=0)
    if not np.isfinite(best[count]):
        return None
    ranges: list[Range] = []
    end = count
    for start in reversed(starts):
        ranges.append((int(start[end]), end))
        end = int(start[end])
    return ChosenCuts(tuple(reversed(ranges)), float(best[count]))
