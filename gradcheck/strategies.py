"""Hypothesis strategies: samples of an operator, random programs.

The only module of gradcheck that imports hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from glowtrain.errors import check_extra

check_extra("glowtrain.gradcheck.strategies", "hypothesis", "hypothesis", "gradcheck")

from hypothesis import HealthCheck, Phase, find, settings  # noqa: E402  what is missing is said first
from hypothesis import strategies as st  # noqa: E402  the same
from hypothesis.errors import NoSuchExample  # noqa: E402  the same

from glowtrain.gradcheck.draw import LONGEST, grown, map_into  # noqa: E402  the same
from glowtrain.gradcheck.programs.case import Case  # noqa: E402  the same
from glowtrain.gradcheck.programs.programs import draw_case  # noqa: E402  the same
from glowtrain.graph import Operator, Sample  # noqa: E402  the same
from glowtrain.types import Array, Shape  # noqa: E402  the same

LISTED = 12
"""Elements up to which hypothesis chooses each by itself; larger arrays come from one drawn seed."""

Drawn = TypeVar("Drawn")


class HypothesisDraw:
    """Choices made by hypothesis: it shrinks towards first options, small shapes and ascending plain values."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], tails: bool = False) -> None:
        self.draw = draw
        self.tails = tails
        self.calls = 0

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def choice(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def boolean(self) -> bool:
        return bool(self.draw(st.booleans()))

    def shape(self, min_rank: int = 0, max_rank: int = 4, min_extent: int = 1, max_extent: int = 5) -> Shape:
        extents = st.integers(min_extent, max_extent)
        shape = self.draw(st.lists(extents, min_size=min_rank, max_size=max_rank))
        if self.tails and shape and max_extent > 2 and self.integer(0, 2) == 2:
            shape = grown(shape, self.integer(0, len(shape) - 1), self.integer(9, LONGEST))
        return tuple(shape)

    def floats(self, shape: Shape, low: float = -2.0, high: float = 2.0, avoid: tuple[float, ...] = ()) -> Array:
        count = math.prod(shape)
        phase = 0.3 + 0.4 * math.modf(self.calls * 0.6180339887)[0]  # no two calls give equal values
        self.calls += 1
        digits = 3 + len(str(count))
        slots = (self._order(count) + phase) / max(count, 1)
        return np.round(map_into(slots, low, high, avoid), digits).reshape(shape)

    def _order(self, count: int) -> Array:
        if count <= LISTED:
            return np.array(self.draw(st.permutations(range(count))), np.float64)
        seed = self.integer(0, 1 << 16)
        return np.random.default_rng(seed).permutation(count) if seed else np.arange(count)

    def integers(self, shape: Shape, low: int, high: int) -> Array:
        count = math.prod(shape)
        if count > LISTED:
            return np.random.default_rng(self.integer(0, 1 << 16)).integers(low, high + 1, shape, np.int64)
        values = st.lists(st.integers(low, high), min_size=count, max_size=count)
        return np.array(self.draw(values), np.int64).reshape(shape)

    def booleans(self, shape: Shape) -> Array:
        return self.integers(shape, 0, 1).astype(np.bool_)


@st.composite
def samples(draw: st.DrawFn, operator: type[Operator], tails: bool = False) -> Sample:
    """Uses of an operator from its own domain."""
    return operator.sample(HypothesisDraw(draw, tails))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Random training steps (see :mod:`glowtrain.gradcheck.programs.programs`)."""
    return draw_case(HypothesisDraw(draw))


def smallest(strategy: st.SearchStrategy[Drawn], fails: Callable[[Drawn], bool], tries: int = 200) -> Drawn | None:
    """A small example for which ``fails`` holds, as hypothesis shrinks it; ``None`` if there is none in ``tries``."""
    options = settings(
        max_examples=tries,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    try:
        return find(strategy, fails, settings=options)
    except NoSuchExample:
        return None
