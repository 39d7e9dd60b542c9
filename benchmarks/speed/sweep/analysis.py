"""What the points of a sweep say: cliffs between neighbours, and how straight a line is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

CLIFF = 1.5
"""Neighbours whose times per multiply-add differ by more than this are a cliff."""


@dataclass(frozen=True)
class Point:
    """One size: seconds of a training step and of compiling it, and the multiply-adds of its contractions."""

    value: int
    step: float
    compiled: float
    work: int

    @property
    def each(self) -> float:
        """Nanoseconds per multiply-add."""
        return 1e9 * self.step / self.work


@dataclass(frozen=True)
class Cliff:
    """Between two neighbouring sizes; above 1, the larger size takes longer per multiply-add."""

    before: int
    after: int
    ratio: float


def cliffs(points: Sequence[Point], bound: float = CLIFF) -> list[Cliff]:
    """Neighbours, by size, whose times per multiply-add differ by a factor above ``bound``."""
    ordered = sorted(points, key=lambda point: point.value)
    found = (Cliff(one.value, other.value, other.each / one.each) for one, other in pairwise(ordered))
    return [cliff for cliff in found if max(cliff.ratio, 1 / cliff.ratio) > bound]


@dataclass(frozen=True)
class Line:
    """y = ``slope`` x + ``start`` by least squares. ``residual``: root mean square of the rest, over the mean."""

    slope: float
    start: float
    residual: float

    def __str__(self) -> str:
        return f"{self.slope:.3f} s a layer, residual {100 * self.residual:.0f} %"


def line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """The line through points, of which there must be two."""
    slope, start = np.polyfit(xs, ys, 1)
    left = np.asarray(ys) - (slope * np.asarray(xs) + start)
    return Line(float(slope), float(start), float(np.sqrt(np.square(left).mean()) / np.mean(ys)))
