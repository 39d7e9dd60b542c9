"""The order in which a nest's reductions are taken: it follows from the nest alone, so that every target computes the
same bits, however wide its vectors are and however many registers it has.

A reduction has a number of partial results, a power of two: element i along its last index goes into number i mod n,
its other indices are loops around that, and in the end the partial results are combined half with half. The loop of a
nest that vectors of :data:`REFERENCE_BITS` would run along decides how many there are: a reduction inside of it has
few, each lane its own; the others have as many as fill some vectors, whose lanes they are. Whether a target has vectors
of that size, or any, does not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glowtrain.backends.cpu.order.analysis import (
    Free,
    NestOperations,
    computed,
    expressions_of_value,
    loop_order,
    reduction_cost,
    reduction_step_cost,
    reductions,
    slope,
    vector_cost,
)
from glowtrain.backends.target import COMPUTE_BITS
from glowtrain.loops import (
    Accumulate,
    For,
    Index,
    Let,
    Reduce,
    Ref,
    Statement,
    address,
    affine,
    statements,
    within,
)
from glowtrain.types import DType

REFERENCE_BITS = 256
"""Of the vectors for which orders are chosen."""
LANE_PARTIALS, SHORT_PARTIALS = 32, 8
"""Partial results of a reduction along the lanes: of f32 four vectors on AVX2, two on AVX-512; and of one of fewer than
:data:`LONG` elements, for which combining so many would take longer."""
LONG = 32
UNROLLED = 16
"""Boxes of at most this many points are one chain of operations."""
PARTIALS = 4
"""Partial results of larger ones: independent, so that none waits for the latency of the one before."""


def partials_in_lanes(extents: Sequence[int]) -> int:
    """Those of a box of these extents, the innermost loop's last: element i along that goes into number i mod n."""
    return PARTIALS if math.prod(extents) > UNROLLED and extents[-1] >= 2 * PARTIALS else 1


@dataclass(frozen=True)
class ReductionOrder:
    """``axes``: the numbers of a reduction's indices with several elements, outermost first. ``partials``: element i
    along the last of them goes into that one of so many; ``lanes``: which may lie in the lanes of a vector.
    """

    axes: tuple[int, ...]
    partials: int
    lanes: bool = False


def reduction_order(reduction: Reduce, lane: Index | None, free: Free) -> ReductionOrder:
    """The order of a reduction inside of ``lane``, the loop that runs along the lanes, if any does."""
    indices = [index for index in reduction.indices if index.extent > 1]
    if reduction.partials:
        return _of(reduction, indices, reduction.partials, lanes=True)
    if lane is None or lane not in free.of(reduction):
        return _along_lanes(reduction, indices, free)
    if math.prod(index.extent for index in indices) > UNROLLED:
        indices = loop_order(indices, _body(reduction), free)
    return _of(reduction, indices, partials_in_lanes([index.extent for index in indices]))


def _along_lanes(reduction: Reduce, indices: list[Index], free: Free) -> ReductionOrder:
    if not indices:
        return ReductionOrder((), 1)
    width = _lanes([reduction.dtype])
    last = min(indices, key=lambda index: reduction_step_cost([reduction.body], index, width, free))
    others = loop_order([index for index in indices if index is not last], _body(reduction), free)
    partials = SHORT_PARTIALS if math.prod(index.extent for index in indices) < LONG else LANE_PARTIALS
    return _of(reduction, [*others, last], partials, lanes=True)


def _of(reduction: Reduce, indices: Sequence[Index], partials: int, *, lanes: bool = False) -> ReductionOrder:
    return ReductionOrder(tuple(reduction.indices.index(index) for index in indices), partials, lanes)


def _body(reduction: Reduce) -> list[Statement]:
    return [Let(Ref(reduction.body.dtype), reduction.body)]


def reference_lane(loop: For, free: Free) -> Index | None:
    """The loop of a flat nest that would run along the lanes, if it has reductions; ``None`` if they should."""
    if not any(True for _ in reductions(loop.body)):
        return None
    return best_lane(loop, min(_lanes(computed_types(loop.body)), REFERENCE_BITS // 16), free)


def computed_types(body: Sequence[Statement]) -> list[DType]:
    """The types of the floats that are computed with; all types if there is none."""
    dtypes = [e.dtype for s in statements(body) for top in expressions_of_value(s) for e in computed(top)]
    return [dtype for dtype in dtypes if dtype.is_float] or dtypes


def _lanes(dtypes: Sequence[DType]) -> int:
    """Lanes of a vector of the reference size when computing in these types."""
    return min((REFERENCE_BITS // COMPUTE_BITS[dtype.name] for dtype in dtypes), default=1)


def best_lane(loop: For, width: int, free: Free) -> Index | None:
    """The loop to run along so many lanes, or ``None`` if reductions (or nothing) should."""
    candidates = [index for index in loop.indices if index.extent > 1 and _may_run_along_lanes(index, loop, free)]
    if width == 1 or not candidates:
        return None
    work = NestOperations.of(loop.body)
    costs = {index: vector_cost(work, index, width, free) for index in candidates}
    best = min(candidates, key=costs.__getitem__)
    return best if costs[best] < reduction_cost(work, width, free) else None


def _may_run_along_lanes(index: Index, loop: For, free: Free) -> bool:
    targets = [statement for statement in loop.body if isinstance(statement, Accumulate)]
    last = [other for other in loop.indices if other.extent > 1][-1]
    return all(_accumulates_along(index, target, free, innermost=index is last) for target in targets)


def _accumulates_along(index: Index, target: Accumulate, free: Free, *, innermost: bool) -> bool:
    """Accumulation needs distinct elements on the lanes, all of them inside, and each element's order kept: the loop is
    the innermost one anyway, or an element's subscript tells the lane.
    """
    if slope(address(target.index, target.buffer.strides), index, free) != 1:
        return False
    pairs = [(affine(i), n) for i, n in zip(target.index, target.buffer.shape, strict=True) if index in free.of(i)]
    alone = len(pairs) == 1 and [atom for atom, _ in pairs[0][0].terms] == [index]
    return (innermost or alone) and all(within(form, extent) for form, extent in pairs)
