"""Adjacent loops whose accesses run on without a gap become one: a contiguous tensor of any rank is a single long
loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from glowtrain.backends.cpu.order.analysis import Free, accesses, slope
from glowtrain.loops import (
    Accumulate,
    Expr,
    For,
    Index,
    Load,
    Statement,
    expressions,
    rewrite_body,
    statements,
)


def collapse(loop: For, free: Free) -> For:
    """The same nest with as few loops as possible. Reductions inside stay as they are."""
    if any(isinstance(statement, Accumulate) for statement in loop.body):
        return loop
    while True:
        pair = _mergeable(loop, free)
        if pair is None:
            return loop
        loop = _merged(loop, *pair)


def _mergeable(loop: For, free: Free) -> tuple[Index, Index] | None:
    """An outer and an inner index such that every access steps over from the inner loop's end to the outer's next
    trip.
    """
    candidates = [index for index in loop.indices if index.extent > 1 and not _used_as_value(index, loop.body)]
    offsets = [access.offset for access in accesses(loop.body)]
    for outer, inner in permutations(candidates, 2):
        steps = ((slope(offset, outer, free), slope(offset, inner, free)) for offset in offsets)
        if all(a is not None and b is not None and a == b * inner.extent for a, b in steps):
            return outer, inner
    return None


def _merged(loop: For, outer: Index, inner: Index) -> For:
    both = Index(outer.extent * inner.extent, outer.name)
    parts: dict[Expr, Expr] = {outer: both // inner.extent, inner: both % inner.extent}
    indices = tuple(both if index is outer else index for index in loop.indices if index is not inner)
    return For(indices, rewrite_body(loop.body, parts.get))


def _used_as_value(index: Index, body: Sequence[Statement]) -> bool:
    """Whether an index occurs outside of plain subscripts: as a number, or where bounds are checked."""
    seen: set[Expr] = set()

    def occurs(expr: Expr) -> bool:
        if expr is index:
            return True
        if expr in seen:
            return False
        seen.add(expr)
        if isinstance(expr, Load) and expr.fill is None:
            return False
        return any(occurs(child) for child in expr.children)

    values = (expressions(s)[-1] for s in statements(body) if not isinstance(s, For))
    return any(occurs(value) for value in values)
