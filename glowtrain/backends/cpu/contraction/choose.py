"""Choosing how a contraction runs: vector axis, register tile, packing, blocking, order of loops.

The choice is analytic; nothing is timed. The scheme is the layered one of Goto and van de Geijn ("Anatomy of
High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008), with the layers that a shape does not need left out.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, prod
from typing import NamedTuple

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.candidate import Candidate, VectorAxis, is_prepacked, live_partials, views_fit
from glowtrain.backends.cpu.contraction.cost import (
    Average,
    compute,
    compute_cycles,
    inner_reduction,
    packing,
    stream,
    total,
    traffic,
)
from glowtrain.backends.cpu.contraction.describe import Problem
from glowtrain.backends.cpu.contraction.levels import Level, classify, clipped, levels_of, many_borders, shares, written
from glowtrain.backends.cpu.contraction.matrices.block import MatrixBlock
from glowtrain.backends.cpu.contraction.rates import Machine
from glowtrain.backends.cpu.order.contraction import CHAIN


@dataclass(frozen=True)
class OperandView:
    """How vectors of an operand lie.

    ``lane`` elements of ``dtype`` apart within a vector, ``step`` between consecutive vectors, ``strides`` along each
    loop; ``padded``: whole vectors can be read where only some lanes count.
    """

    strides: tuple[int, ...]
    lane: int
    step: int
    dtype: str
    padded: bool = False


@dataclass(frozen=True)
class ContractionPlan:
    """The arrangement of one problem. ``vec`` is the loop along the lanes, a reduction if ``dots``; ``copies`` are the
    vectors of partial sums that a tile keeps for each vector of results, in each of ``passes``; ``cost`` is in cycles,
    ``packing`` the part of it for each operand that levels pack. ``prepacked``: B is packed when code is generated.
    ``pages``: those of B that parts of the sum go through one after another, as it comes from memory. ``block``: the
    matrices of a tile where the sums are taken in registers that hold matrices.
    """

    problem: Problem
    machine: Machine
    vec: int
    dots: bool
    vectors: int
    tile: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...]
    reductions: tuple[int, ...]
    levels: tuple[Level, ...]
    copies: int
    passes: int
    cost: float
    packing: dict[str, float]
    prepacked: bool
    pages: int
    block: MatrixBlock | None = None

    def describe(self) -> str:
        """One line: roles, register tile and layers."""
        name = self.problem.name
        points = "x".join(f"{size}{name(loop)}" for loop, size in self.tile) or "1"
        form = "dot along" if self.dots else f"{self.vectors} vectors of"
        words = f" by {self.problem.dot.group}" if self.problem.dot else ""
        words = f" by {self.block.step} in matrices of {self.block.rows} rows" if self.block else words
        layers = " > ".join(f"{level.kind} {name(level.loop)}/{level.size}" for level in self.levels)
        reduced = ",".join(name(loop) for loop in self.reductions)
        lanes = f"{points} by {form} {name(self.vec)}x{self.machine.width}"
        return f"{lanes}; sum {reduced}{words}; {layers}; clips {self.kinds}"


def views(problem: Problem, vec: int, width: int) -> tuple[OperandView, OperandView, OperandView]:
    """How C, A and B lie when nothing is packed."""
    columns = zip(*((loop.c, loop.a, loop.b) for loop in problem.loops), strict=True)
    types = map(problem.type_of, "cab")
    c, a, b = (OperandView(x, x[vec], x[vec] * width, dtype) for x, dtype in zip(columns, types, strict=True))
    return c, a, b


def choose(problem: Problem, machine: Machine) -> ContractionPlan:
    """The cheapest plan by the cost model, or a like one with less code that costs about the same. Ties go to the first
    candidate, so the choice is deterministic."""
    fine = [
        _Fine(total(y, found.step, found.mean, memory=True), y, found.kinds, found.mean)
        for found in _cheapest(problem, machine)
        for y in _refined(found.x, found.kinds, traffic(found.x, found.mean) <= found.step)
    ]
    best = min(fine, key=lambda entry: entry.weight)
    like = [entry for entry in fine if entry is not best and entry.replaces(best)]
    sizes = {entry: written(entry.x, entry.kinds) for entry in (*like, best)} if like else {}
    less = [entry for entry in like if sizes[entry] <= rates.MUCH_LESS_CODE * sizes[best]]
    chosen = min(less, key=lambda entry: (sizes[entry], entry.weight), default=best)
    return arranged(chosen.x, chosen.kinds, chosen.cost)


class _Fine(NamedTuple):
    """A candidate with all that it costs, how each clip is kept, and what a step touches."""

    cost: float
    x: Candidate
    kinds: tuple[str, ...]
    mean: Average

    @property
    def weight(self) -> float:
        """What candidates are compared by."""
        return self.cost * (rates.SCATTERED if _scatters(self.x) else 1)

    def replaces(self, best: _Fine) -> bool:
        """Whether this one is as fast as the best one, although it may cost a little more: its tiles have about as many
        sums, along the same loops. Where arrangements differ by more, so do they in what the model does not know."""
        x, y = self.x, best.x
        alike = x.axis is y.axis and x.vectors >= y.vectors and _arrangement(x) == _arrangement(y)
        sums = self.mean.products >= rates.ABOUT_AS_MANY * best.mean.products
        return alike and sums and self.weight <= rates.ABOUT_THE_SAME * best.weight


def _arrangement(x: Candidate) -> tuple[list[int], bool, bool, bool]:
    """A candidate but for the sizes: the loops of its tiles, what is packed, whether the sum is taken in parts."""
    return [loop for loop, _ in x.tile], x.pack_a, x.pack_b, bool(x.chunks)


def _cheapest(problem: Problem, machine: Machine) -> list[_Priced]:
    """The candidates that are cheapest with everything in caches; the first of equals."""
    priced = sorted(_priced(problem, machine), key=lambda entry: entry.least)
    found, best, borders = list[tuple[float, _Priced]](), list[float](), dict[tuple[int, int], int]()
    for entry in priced:
        if len(best) == rates.REFINED and entry.least > best[-1]:
            break
        if not many_borders(entry.x, entry.kinds, borders):
            cost = total(entry.x, entry.step, entry.mean, memory=False)
            found.append((cost, entry))
            insort(best, cost)
            del best[rates.REFINED :]
    found.sort(key=lambda pair: (pair[0], pair[1].number))
    return [entry for _, entry in found[: rates.REFINED]]


class _Priced(NamedTuple):
    """A candidate, its number among them, how each clip is kept, what a step takes, and all steps alone: the candidate
    costs no less."""

    x: Candidate
    number: int
    kinds: tuple[str, ...]
    step: float
    mean: Average
    least: float


def _priced(problem: Problem, machine: Machine) -> Iterator[_Priced]:
    kinds = dict[tuple[bool, int, tuple[int, ...]], tuple[str, ...]]()
    for number, x in enumerate(_candidates(problem, machine)):
        if views_fit(x):
            key = (x.problem.swapped, x.vec, tuple([loop for loop, _ in x.tile]))
            if key not in kinds:
                kinds[key] = classify(x.problem, x.vec, key[2])
            step, mean = compute(x, kinds[key])
            yield _Priced(x, number, kinds[key], step, mean, compute_cycles(x, step, mean))


def _scatters(x: Candidate) -> bool:
    """Whether a tile takes all of what lies farthest apart in C, as images do, and other loops than that of the lanes
    stand around it: threads cannot share out images then, as other kernels do."""
    far = max(x.problem.outputs, key=x.problem.strides("c").__getitem__, default=-1)
    tile = dict(x.tile)
    return far in tile and tile[far] == x.problem.loops[far].extent and bool(set(x.problem.outputs) - {x.vec, *tile})


def _candidates(problem: Problem, machine: Machine) -> Iterator[Candidate]:
    for arranged in (problem,) if problem.dot else (problem, problem.swap()):
        for vec, packs in panel_loops(arranged) if problem.dot else _axes(arranged, machine):
            axis = VectorAxis(arranged, machine, vec)
            most = _most_vectors(arranged, machine, vec)
            for vectors in [1] if axis.dots else shares(ceil(arranged.loops[vec].extent / machine.width), most):
                for tile in _tiles(arranged, machine, vec, vectors):
                    yield Candidate(axis, vectors, tile, pack_b=packs)
                    if arranged.widens("a") and _packs_a(arranged, vec):
                        yield Candidate(axis, vectors, tile, pack_a=True, pack_b=packs)


def _most_vectors(problem: Problem, machine: Machine, vec: int) -> int:
    """Vectors of a row of a tile; its sums and those of blocks share the registers."""
    if problem.blocks is None:
        return rates.MOST_VECTORS
    row = problem.loops[vec].extent * problem.size
    shared = row <= rates.WIDE_ROW_OF_BLOCKS or row % rates.LINE
    fit = rates.WIDE_ROW_OF_BLOCKS if shared else rates.ROW_OF_BLOCKS
    return min(rates.MOST_VECTORS, machine.registers // 2, ceil(fit / (machine.width * problem.size)))


def panel_loops(problem: Problem) -> Iterator[tuple[int, bool]]:
    """The loop along the lanes of words, B packed."""
    for i, loop in enumerate(problem.loops):
        if loop.c == 1 and loop.b and (problem.across or not loop.a):
            yield i, True


def _axes(problem: Problem, machine: Machine) -> Iterator[tuple[int, bool]]:
    """Loops that may run along the lanes, with packing of B if they need it; only the best classes of contiguity."""
    order = problem.order
    if order is not None and order.lanes:
        yield order.along, False
        return
    ranked: dict[int, list[tuple[int, bool]]] = {}
    for i, loop in enumerate(problem.loops):
        if loop.reduces and order is not None:
            continue
        if loop.reduces:
            near = (abs(loop.a) == 1 and abs(loop.b) == 1) or not problem.outputs
            ranked.setdefault(0 if near else 3, []).append((i, False))
            continue
        if (loop.b == 0 and loop.a != 0) or (problem.keep_lanes and len(loop.parts) > 1):
            continue
        prepacked = is_prepacked(problem, machine, i)
        near = prepacked or (loop.a in (-1, 0, 1) and loop.b in (-1, 0, 1))
        packs = not near and _packable(problem, i, machine)
        found = ranked.setdefault((not near and not packs) + (loop.c != 1), [])
        found.append((i, packs))
        if problem.widens("b") and _packable(problem, i, machine):
            found.append((i, not packs))
    ranks = sorted(ranked)
    for rank in ranks[: 2 if ranks and ranks[0] < 3 else None]:
        if rank < 3 or rank == ranks[0]:
            yield from ranked[rank]


def _packs_a(problem: Problem, vec: int) -> bool:
    """Whether A may be copied: it is the same in all lanes, and all of its elements exist."""
    return not problem.loops[vec].a and not problem.drops("a")


def _packable(problem: Problem, vec: int, machine: Machine) -> bool:
    """Whether B may be copied: the vector loop moves it alone, and all of its elements exist. Floats that are prepacked
    need no copy."""
    if is_prepacked(problem, machine, vec) and not problem.widens("b"):
        return False
    moves = problem.loops[vec].a == 0 and problem.loops[vec].b != 0 and not problem.holds_integers
    return moves and machine.width > 1 and not problem.drops("b")


def _tiles(problem: Problem, machine: Machine, vec: int, vectors: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Register tiles over no, one or two output loops; loops that move A come first (they are walked slower).

    Larger tiles use what they load more often, so only the largest few are worth pricing (words that are put together
    are used by smaller ones, if they stay in registers); two loops only where one is short enough to be taken whole.
    """
    loops = [i for i in problem.outputs if i != vec]
    loops.sort(key=lambda i: (problem.loops[i].a == 0, abs(problem.loops[i].a) or abs(problem.loops[i].b)))
    dots = problem.loops[vec].reduces
    partials = 1 if problem.order is None else live_partials(problem.order, machine)
    limit = max(1, (machine.registers - 2) // (vectors * partials))
    yield ()
    for i in loops:
        yield from (((i, size),) for size in _largest(problem, i, limit))
    for i, j in combinations(loops, 2):
        whole = problem.loops[i].extent
        for first in shares(whole, rates.MOST_POINTS) if dots else [whole]:
            if 1 < first <= limit // 2:
                yield from (((i, first), (j, second)) for second in _largest(problem, j, limit // first)[:2])


def _largest(problem: Problem, loop: int, limit: int) -> list[int]:
    sizes = shares(problem.loops[loop].extent, limit)
    return [size for size in (sizes if problem.across else sizes[-rates.LARGEST_SIZES :]) if size > 1]


def _refined(x: Candidate, kinds: Sequence[str], enough: bool) -> Iterator[Candidate]:
    """A candidate with operands packed or not and the sum taken at once or in parts that suit a cache.

    ``enough``: the caches deliver as fast as is computed already.
    """
    if x.dots or enough or x.problem.holds_integers or x.problem.dot or x.problem.blocks is not None:
        yield x
        return
    far = {operand: x.stride(operand, inner_reduction(x, operand)) * x.problem.size >= rates.LINE for operand in "ab"}
    a_too = (far["a"] or x.problem.widens("a")) and _packs_a(x.problem, x.vec)
    b_too = x.pack_b or (far["b"] and _packable(x.problem, x.vec, x.machine))
    for pack_a in (False, True) if a_too else (False,):
        for pack_b in {x.pack_b, b_too}:
            y = replace(x, pack_a=pack_a, pack_b=pack_b)
            yield y
            for steps in _part_sizes(y) if _continues(y.problem) else ():
                chunks = _chunks(y, kinds, steps)
                if chunks:
                    yield replace(y, chunks=chunks)


def _continues(problem: Problem) -> bool:
    """Whether a sum may go on from what C holds of it: one chain may, and its order is that of the whole one."""
    return not problem.source.whole and problem.order == CHAIN and problem.blocks is None


def _part_sizes(x: Candidate) -> Iterator[int]:
    """Steps after which a tile's columns fill the first-level cache, or all that is read the second-level one; where B
    comes from memory, steps over as many pages as prefetchers follow."""
    mean = compute(x, ())[1]
    a, b = stream(x, "a", mean.a), stream(x, "b", mean.b)
    l1, first = x.machine.l1, 0.0
    if b.lines:
        first = min(rates.PART_OF_B_IN_L1 * l1 * b.share / b.lines, rates.PART_IN_L1 * l1 / (a.lines + b.lines))
    every = range(len(x.problem.loops))
    second = x.steps * (x.machine.l2 // 2) // (x.footprint("a", every) + x.footprint("b", every))
    most = rates.LARGEST_PART * x.steps
    yield from (int(steps) for steps in (first, 2 * first, second) if rates.LEAST_PART <= steps < most)
    if x.axis.from_memory and most > rates.FOLLOWED:
        yield rates.FOLLOWED


def _chunks(x: Candidate, kinds: Sequence[str], steps: int) -> tuple[tuple[int, int], ...]:
    """(loop, size) of the outer reduction loops that leave about ``steps`` inside."""
    problem, inner, result = x.problem, x.steps, []
    fixed = {clipped(problem, clip) for clip, kind in enumerate(kinds) if kind == "static"}
    for i in problem.reductions:
        extent = problem.loops[i].extent
        inner //= extent
        size = max(1, steps // inner)
        if i in fixed:
            break
        if size < extent:
            result.append((i, ceil(extent / ceil(extent / size))))
        if inner <= steps:
            break
    return tuple(result)


def arranged(x: Candidate, kinds: tuple[str, ...], cost: float) -> ContractionPlan:
    """The plan of a candidate."""
    order = x.problem.reductions
    last = x.vec if x.dots else x.problem.innermost_sum
    if last is not None:
        order = (*(i for i in order if i != last), last)
    levels = tuple(levels_of(x))
    chosen = x.problem, x.machine, x.vec, x.dots, x.vectors, x.tile
    sums = x.copies, x.partials // x.copies
    pages = _pages(x) if x.chunks and not x.pack_b and x.axis.from_memory else 0
    return ContractionPlan(*chosen, kinds, order, levels, *sums, cost, packing(x), x.prepacked, pages)


def _pages(x: Candidate) -> int:
    """Rows of B, each on a page of its own."""
    return prod(x.problem.loops[i].extent for i in x.problem.reductions if x.stride("b", i))
