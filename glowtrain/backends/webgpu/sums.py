"""The order in which a kernel takes its sums: that of the cpu backend, which follows from the program (ADR 19)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from glowtrain.backends.cpu.contraction.describe import Problem, normalise
from glowtrain.backends.cpu.order.analysis import Free
from glowtrain.backends.cpu.order.nest import reduction_order
from glowtrain.backends.cpu.recognise import ContractionProduct, contraction_of
from glowtrain.loops import Index, Reduce


@dataclass(frozen=True)
class SumLoops:
    """The loops of a reduction. ``outer`` run around ``along``, whose elements, counted through all of them, go into
    partial result i mod ``partials``; these are combined half with half.
    """

    outer: tuple[Index, ...]
    along: tuple[Index, ...] = ()
    partials: int = 1

    @property
    def chain(self) -> bool:
        """Whether there is one result, to which each element is added."""
        return self.partials == 1

    @property
    def loops(self) -> tuple[Index, ...]:
        """All loops, outermost first."""
        return (*self.outer, *self.along)


def loops_of_nest(reduction: Reduce, lane: Index | None, free: Free) -> SumLoops:
    """Those of a reduction in a nest, where ``lane`` is the loop that vectors would run along."""
    order = reduction_order(reduction, lane, free)
    indices = tuple(reduction.indices[axis] for axis in order.axes)
    if order.partials == 1 or not indices:
        return SumLoops(indices)
    return SumLoops(indices[:-1], indices[-1:], order.partials)


def loops_of_contraction(product: ContractionProduct) -> Mapping[Reduce, SumLoops]:
    """Those of a contraction's sum, and of the sums of its blocks if it has some."""
    problem = normalise(contraction_of(product), keep_lanes=not product.plain)
    total = product.total
    if problem.order is None:
        return {}
    inner = tuple(i for i in problem.reductions if i != problem.blocks)
    loops = _loops(problem, product.indices, inner)
    if problem.blocks is None:
        return {total: loops}
    assert isinstance(total.body, Reduce)
    partials = problem.partial_blocks
    blocks = SumLoops((), total.indices, partials) if partials > 1 else SumLoops(total.indices)
    return {total: blocks, total.body: loops}


def _loops(problem: Problem, indices: tuple[Index, ...], loops: tuple[int, ...]) -> SumLoops:
    """The loops of a sum. Products of bf16 have a chain here, too, in place of groups."""
    order = problem.order
    if order is None or order.partials == 1 or order.group:
        return SumLoops(tuple(_parts(problem, indices, loops)))
    others = tuple(i for i in loops if i != order.along)
    along = tuple(_parts(problem, indices, (order.along,)))
    return SumLoops(tuple(_parts(problem, indices, others)), along, order.partials)


def _parts(problem: Problem, indices: tuple[Index, ...], loops: tuple[int, ...]) -> Iterator[Index]:
    """The program's loops that merged ones consist of, outermost first."""
    for loop in loops:
        yield from (indices[part] for part in problem.loops[loop].parts)
