"""The order in which the products of a contraction are summed: it follows from its loops alone, so that every target
computes the same bits, however wide its vectors are, however many registers and however large caches it has.

Nearly always each result is one chain of additions, reduction loops as :attr:`Problem.reductions` orders them: tiles,
blocks and parts of a sum that go on from what C holds do not show. Where no loop over results is contiguous in memory,
or where results are few, they have several partial sums: element i along one loop goes into partial sum i mod n, and
these are added half with half.

Products of bf16 are summed in groups of 32 along one loop, those of even and of odd elements each in a chain from 0;
the two chains are added, and that to the sum: ``c += even + odd``. Registers that hold matrices (Intel's TDPBF16PS)
know no other order, and everything else can follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glowtrain.backends.cpu.contraction.describe import Nested, Problem

LANE_BYTES = 64
"""Of the partial sums that lie in lanes: as many f32 as the widest vectors have, twice those of AVX2."""
FEW_RESULTS, FEW_PARTIALS = 16, 4
"""Contractions of at most so many results have so many partial sums: one chain would wait for each addition."""
SHORTEST_LANES = 16
"""Elements that a loop along the lanes has at least."""
GROUP, SHORTEST_GROUP = 32, 16
"""Products of bf16 in a group, and elements that its loop has at least."""
PACKED, SUMMED_UP = 12, 256
"""Times that packing an element takes as long as its product along the lanes of a sum, and products that adding up the
lanes takes; of f32."""


@dataclass(frozen=True)
class SumOrder:
    """``partials`` sums for each result, element i along the reduction ``along`` in number i mod ``partials``.

    ``lanes``: they lie in the lanes of vectors, as far as these go; otherwise results do. With a ``group`` they are
    added up after so many elements, and that is added to the result's own sum.
    """

    along: int = -1
    partials: int = 1
    lanes: bool = False
    group: int = 0


CHAIN = SumOrder()
"""One sum for each result."""


def sum_order(problem: Problem) -> SumOrder:
    """The order of a contraction of floats; in blocks, of each block."""
    if problem.blocks is not None:
        return CHAIN
    lane = _lane(problem)
    if lane is not None:
        return SumOrder(lane, LANE_BYTES // problem.size, lanes=True)
    grouped = _grouped(problem)
    if grouped is not None:
        return SumOrder(grouped, 2, group=GROUP)
    last = problem.reductions[-1]
    long = problem.loops[last].extent >= 2 * FEW_PARTIALS and not any(problem.loops[last].clips)
    return SumOrder(last, FEW_PARTIALS) if problem.points <= FEW_RESULTS and long else CHAIN


def _lane(problem: Problem) -> int | None:
    """The reduction to run along the lanes, if one should: the longest that is contiguous in both operands."""
    near = [i for i in problem.reductions if _near(problem.loops[i])]
    found = max(near or problem.reductions, key=lambda i: problem.loops[i].extent)
    if not any(True for _ in _results(problem)):
        return found
    short = not near or problem.loops[found].extent < SHORTEST_LANES
    if short or any(_contiguous(x) or _packed_ahead(problem, x) for x in _results(problem)):
        return None
    steps = prod(problem.loops[i].extent for i in problem.reductions)
    rows = max(min(loop.extent, problem.points // _moved(problem, loop)) for loop in _results(problem))
    return found if rows * (steps + SUMMED_UP) <= PACKED * steps else None


def _grouped(problem: Problem) -> int | None:
    """The reduction along which products of bf16 are summed in groups: the longest of which no product is left out, of
    equals the innermost. Few results gain nothing by it."""
    if {problem.type_of("a"), problem.type_of("b")} != {"bf16"} or problem.points <= FEW_RESULTS:
        return None
    whole = [i for i in problem.reductions if not any(problem.loops[i].clips)]
    longest = max(reversed(whole), key=lambda i: problem.loops[i].extent, default=None)
    return longest if longest is not None and problem.loops[longest].extent >= SHORTEST_GROUP else None


def _near(loop: Nested) -> bool:
    """Whether a reduction finds neighbours in both operands."""
    return abs(loop.a) == 1 and abs(loop.b) == 1


def _results(problem: Problem) -> Iterator[Nested]:
    """The loops over results that may run along the lanes."""
    loops = (problem.loops[i] for i in problem.outputs)
    return (loop for loop in loops if not (problem.keep_lanes and len(loop.parts) > 1))


def _contiguous(loop: Nested) -> bool:
    """Whether lanes of results need no packing: each operand has neighbours for them, or one element for all."""
    return abs(loop.a) <= 1 and abs(loop.b) <= 1


def _packed_ahead(problem: Problem, loop: Nested) -> bool:
    """Whether what lanes of results need is packed when code is generated."""
    moved = [x for x in "ab" if getattr(loop, x)]
    return len(moved) == 1 and not problem.bounds and problem.widens(moved[0]) and problem.is_constant(moved[0])


def _moved(problem: Problem, loop: Nested) -> int:
    """Results for which packing the operands that a loop moves makes a difference."""
    moving = (problem.loops[i] for i in problem.outputs)
    return prod(each.extent for each in moving if (each.a and loop.a) or (each.b and loop.b))
