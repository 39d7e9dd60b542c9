"""Sources of choices for :meth:`Operator.sample` and for random programs.

:class:`ChoiceDraw` needs nothing but NumPy; ``glowtrain.gradcheck.strategies.HypothesisDraw`` lets hypothesis choose,
so that failures shrink. Both make floats in the same way: one value from each of equal slots of the allowed range, in
some order. So values are distinct by a known margin, and no two calls give the same values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from glowtrain.types import Array, Shape

MARGIN = 0.05
"""Distance that values keep from the places to avoid."""

RANK = 5
"""Rank up to which shapes grow that may have any."""
LONGEST = 37
LARGEST = 700
"""Extent up to which one axis may grow, and elements of a shape grown so."""


class ChoiceDraw:
    """Choices from a seeded generator.

    With ``tails``, one axis of a shape is now and then much longer than asked for: longer than vectors, and no multiple
    of their width; and a shape of up to four axes may have five.
    """

    def __init__(self, *seed: int | str, tails: bool = False) -> None:
        words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in seed]
        self.random = np.random.default_rng(words)
        self.tails = tails
        self.calls = 0

    def integer(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def choice(self, options: Any) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def boolean(self) -> bool:
        return bool(self.random.integers(2))

    def shape(self, min_rank: int = 0, max_rank: int = 4, min_extent: int = 1, max_extent: int = 5) -> Shape:
        if self.tails and max_rank == RANK - 1 and self.integer(0, 3) == 0:
            max_rank, max_extent = RANK, max(min_extent, min(max_extent, 3))
        shape = [self.integer(min_extent, max_extent) for _ in range(self.integer(min_rank, max_rank))]
        if self.tails and shape and max_extent > 2 and self.integer(0, 2) == 0:
            shape = grown(shape, self.integer(0, len(shape) - 1), self.integer(9, LONGEST))
        return tuple(shape)

    def floats(self, shape: Shape, low: float = -2.0, high: float = 2.0, avoid: tuple[float, ...] = ()) -> Array:
        self.calls += 1
        count = math.prod(shape)
        slots = (self.random.permutation(count) + self.random.uniform(0.3, 0.7, count)) / max(count, 1)
        return map_into(slots, low, high, avoid).reshape(shape)

    def integers(self, shape: Shape, low: int, high: int) -> Array:
        return self.random.integers(low, high + 1, shape, np.int64)

    def booleans(self, shape: Shape) -> Array:
        return self.random.integers(0, 2, shape).astype(np.bool_)


SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e12, -1e12, 1e-40, -5e-310, np.inf, -np.inf, np.nan)
"""Values at which functions differ from their neighbours: signed zeros, units, large, denormal in f32 and in f64."""


class EdgeDraw(ChoiceDraw):
    """Choices at the edges of a domain: extents 0 and 1, rank 5, and, with ``special``, :data:`SPECIAL` values.

    Only shapes that may be of any extent get an empty axis, and only some of an array's values are replaced. Gradients
    are not defined at all of these places; results are. With ``finite`` all special values are.
    """

    def __init__(self, *seed: int | str, special: bool = False, finite: bool = False) -> None:
        super().__init__(*seed)
        self.special = special
        self.values = SPECIAL[:-3] if finite else SPECIAL

    def shape(self, min_rank: int = 0, max_rank: int = 4, min_extent: int = 1, max_extent: int = 5) -> Shape:
        highest = RANK if max_rank >= RANK - 1 else max_rank
        shape = list(super().shape(min_rank, highest, min_extent, max_extent if highest < RANK else min(max_extent, 3)))
        if shape and min_extent <= 1:
            shape[self.integer(0, len(shape) - 1)] = self.choice((0, 1, 1) if not self.special else (1, max_extent))
        return tuple(shape)

    def floats(self, shape: Shape, low: float = -2.0, high: float = 2.0, avoid: tuple[float, ...] = ()) -> Array:
        array = super().floats(shape, low, high, avoid)
        if self.special and array.size:
            flat = array.reshape(-1)
            for _ in range(self.integer(1, 3)):
                flat[self.integer(0, flat.size - 1)] = self.choice(self.values)
        return array


def grown(shape: Sequence[int], axis: int, extent: int) -> list[int]:
    """A shape with one axis at ``extent``; unchanged where that would make it large."""
    longer = [*shape[:axis], max(extent, shape[axis]), *shape[axis + 1 :]]
    return longer if math.prod(longer) <= LARGEST else list(shape)


def map_into(slots: Array, low: float, high: float, avoid: Sequence[float] = ()) -> Array:
    """Numbers in (0, 1) carried to [low, high] without the neighbourhoods of ``avoid``, in their order."""
    pieces = allowed(low, high, avoid)
    lengths = np.array([end - start for start, end in pieces])
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    position = np.asarray(slots, np.float64) * before[-1]
    piece = np.minimum(np.searchsorted(before, position, side="right") - 1, len(pieces) - 1)
    starts = np.array([start for start, _ in pieces])
    return np.asarray(starts[piece] + (position - before[piece]))


def allowed(low: float, high: float, avoid: Sequence[float]) -> list[tuple[float, float]]:
    """[low, high] without what is nearer than :data:`MARGIN` to a place to avoid, as intervals."""
    pieces, start = [], low
    for point in sorted(avoid):
        if point - MARGIN > start:
            pieces.append((start, min(point - MARGIN, high)))
        start = max(start, point + MARGIN)
    if start < high or not pieces:
        pieces.append((start, max(start, high)))
    return [piece for piece in pieces if piece[0] <= high]
