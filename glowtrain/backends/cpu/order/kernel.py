"""The order in which a kernel takes its sums, as a value: passes that cut kernels in slices compare it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from glowtrain.backends.cpu.contraction.describe import normalise
from glowtrain.backends.cpu.contraction.pairs import padded
from glowtrain.backends.cpu.loop_nest.collapse import collapse
from glowtrain.backends.cpu.order.analysis import Free, reductions
from glowtrain.backends.cpu.order.nest import reduction_order, reference_lane
from glowtrain.backends.cpu.recognise import contraction_of, recognise
from glowtrain.loops import Expr, For, Index, Let, Reduce, Ref, Statement, statements
from glowtrain.memo import memoized
from glowtrain.program.program import Kernel


@memoized
def orders(kernel: Kernel) -> tuple[Hashable, ...]:
    """The order of each of a kernel's sums; equal for kernels whose sums of the same elements have the same bits."""
    product = recognise(kernel)
    if product is not None:
        return (normalise(padded(contraction_of(product)).contraction, keep_lanes=not product.plain).order_key,)
    lets: dict[Expr, Expr] = {s.ref: s.value for s in statements(kernel.body) if isinstance(s, Let)}
    return tuple(_of_nest(kernel.body, Free(lets=lets)))


def _of_nest(body: Sequence[Statement], free: Free) -> Iterator[Hashable]:
    """Those of the statements outside of loops, then of each loop."""
    yield from _of_sums([s for s in body if not isinstance(s, For)], None, free)
    for loop in (statement for statement in body if isinstance(statement, For)):
        if loop.serial or any(isinstance(statement, For) for statement in loop.body):
            yield from _of_nest(loop.body, free)
        else:
            flat = collapse(loop, free)
            yield from _of_sums(flat.body, reference_lane(flat, free), free)


def _of_sums(body: Sequence[Statement], lane: Index | None, free: Free) -> Iterator[Hashable]:
    """Those of reductions where ``lane`` runs along the lanes, and of those inside of them."""
    for reduction in reductions(body):
        order = reduction_order(reduction, lane, free)
        yield order, tuple(index.extent for index in reduction.indices), lane is None or lane not in free.of(reduction)
        yield from _of_sums([_value(reduction)], _last(reduction, lane, order.lanes, order.axes), free)


def _value(reduction: Reduce) -> Statement:
    return Let(Ref(reduction.body.dtype), reduction.body)


def _last(reduction: Reduce, lane: Index | None, lanes: bool, axes: Sequence[int]) -> Index | None:
    """What runs along the lanes inside of a reduction."""
    return reduction.indices[axes[-1]] if lanes and axes else lane
