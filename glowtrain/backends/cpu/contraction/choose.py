"""Choosing how a contraction runs: vector axis, register tile, packing, blocking, order of loops. Analytic; nothing is timed.

The scheme is the layered one of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3),
2008), with the layers that a shape does not need left out; the costs are cycles counted from what one step of the
innermost loop issues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, prod

from glowtrain.backends.cpu.contraction.describe import Problem


@dataclass(frozen=True)
class Machine:
    """What choosing needs to know of a processor: ``width`` lanes of the element type, vector registers, caches in bytes."""

    width: int
    registers: int
    fused: bool
    l1: int
    l2: int


@dataclass(frozen=True)
class View:
    """How vectors of an operand lie: elements between lanes and between consecutive vectors; strides of the other loops.

    ``padded``: whole vectors can be read where only some lanes count.
    """

    strides: tuple[int, ...]
    lane: int
    step: int
    padded: bool = False


@dataclass(frozen=True)
class Level:
    """One layer of the nest around the kernel, outermost first.

    ``each``: every index of a loop; ``block``: a loop in blocks of ``size``; ``chunk``: a reduction in parts of ``size``, C
    holding the partial sums; ``pack``: copy what the layers inside read of B; ``tile``: ``size`` points of a loop for each
    call of the kernel; ``vectors``: ``size`` vectors of the vector loop for each call.
    """

    kind: str
    loop: int
    size: int = 1


@dataclass(frozen=True)
class Plan:
    """The arrangement of one problem. ``vec`` is the loop along the lanes: an output loop, or a reduction if ``dots``."""

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
    packs: bool
    cost: float

    def describe(self) -> str:
        """One line: roles, register tile and layers."""
        name = self.problem.name
        points = "x".join(f"{size}{name(loop)}" for loop, size in self.tile) or "1"
        form = "dot along" if self.dots else f"{self.vectors} vectors of"
        layers = " > ".join(f"{level.kind} {name(level.loop)}/{level.size}" for level in self.levels)
        reduced = ",".join(name(loop) for loop in self.reductions)
        return f"{points} by {form} {name(self.vec)}x{self.machine.width}; sum {reduced}; {layers}; clips {self.kinds}"


@dataclass(frozen=True)
class _Candidate:
    problem: Problem
    machine: Machine
    vec: int
    dots: bool
    packs: bool
    vectors: int
    tile: tuple[tuple[int, int], ...]


def views(problem: Problem, vec: int, width: int) -> tuple[View, View, View]:
    """How C, A and B lie when nothing is packed."""
    result = []
    for strides in zip(*((loop.c, loop.a, loop.b) for loop in problem.loops), strict=True):
        result.append(View(strides, strides[vec], strides[vec] * width))
    return result[0], result[1], result[2]


def classify(problem: Problem, vec: int, tiled: Sequence[int]) -> tuple[str, ...]:
    """How each clip is kept.

    ``range``: it bounds a reduction loop by numbers known when the kernel is called; ``static``: it is the same for each call,
    but differs between the points of a tile, so that products are left out when the kernel is written; ``guard``: tested
    for each product.
    """
    kinds = [_kind(problem, clip, vec, tiled) for clip in range(len(problem.bounds))]
    fixed = {clipped(problem, clip) for clip, kind in enumerate(kinds) if kind == "static"}
    return tuple("guard" if kind == "range" and clipped(problem, k) in fixed else kind for k, kind in enumerate(kinds))


def _kind(problem: Problem, clip: int, vec: int, tiled: Sequence[int]) -> str:
    moved = [i for i, loop in enumerate(problem.loops) if loop.clips[clip]]
    outputs = [i for i in moved if not problem.loops[i].reduces]
    if vec in moved or len(moved) - len(outputs) > 1 or clipped(problem, clip) == vec:
        return "guard"
    if not any(i in tiled for i in outputs):
        return "range"
    return "static" if len(outputs) == 1 else "guard"


def clipped(problem: Problem, clip: int) -> int:
    """The reduction loop that a clip bounds (the first one if it depends on output loops only)."""
    return next((i for i in problem.reductions if problem.loops[i].clips[clip]), reduction_order(problem)[0])


def reduction_order(problem: Problem) -> tuple[int, ...]:
    """Reduction loops, outermost first: the farther an index moves the operands, the farther out."""
    return tuple(sorted(problem.reductions, key=lambda i: -abs(problem.loops[i].a) - abs(problem.loops[i].b)))


def pattern(problem: Problem, kinds: Sequence[str], loop: int, index: int) -> tuple[tuple[int, int, int], ...]:
    """The (reduction loop, low, high) that the static clips leave of each reduction at one index of a tiled loop."""
    result = []
    for clip in problem.clips_on(loop):
        if kinds[clip] == "static":
            reduction = clipped(problem, clip)
            bound, factor = problem.bounds[clip], problem.loops[reduction].clips[clip]
            start = bound.offset + problem.loops[loop].clips[clip] * index
            inside = [r for r in range(problem.loops[reduction].extent) if 0 <= start + factor * r < bound.extent]
            low, high = (inside[0], inside[-1] + 1) if inside else (0, 0)
            if (low, high) != (0, problem.loops[reduction].extent):
                result.append((reduction, low, high))
    return tuple(result)


def balanced(extent: int, size: int) -> list[tuple[int, int]]:
    """(start, size) of the fewest tiles of at most ``size``, as equal as possible, larger ones first."""
    count = ceil(extent / size)
    small, larger = divmod(extent, count)
    sizes = [small + 1] * larger + [small] * (count - larger)
    starts = [sum(sizes[:i]) for i in range(count)]
    return list(zip(starts, sizes, strict=True))


def choose(problem: Problem, machine: Machine) -> Plan:
    """The cheapest plan by the cost model; ties go to the first candidate, so the choice is deterministic."""
    costed = [(_cost(candidate), candidate) for candidate in _candidates(problem, machine)]
    cost, best = min(costed, key=lambda pair: pair[0])
    return _complete(best, cost)


def _candidates(problem: Problem, machine: Machine) -> Iterator[_Candidate]:
    for arranged in (problem, problem.swap()):
        for vec, packs in _axes(arranged, machine):
            dots = arranged.loops[vec].reduces
            for vectors in [1] if dots else _shares(ceil(arranged.loops[vec].extent / machine.width), 12):
                for tile in _tiles(arranged, machine, vec, vectors):
                    yield _Candidate(arranged, machine, vec, dots, packs, vectors, tile)


def _axes(problem: Problem, machine: Machine) -> Iterator[tuple[int, bool]]:
    """Loops that may run along the lanes, with packing of B or not; only the best class of contiguity there is."""
    ranked: dict[int, list[tuple[int, bool]]] = {}
    for i, loop in enumerate(problem.loops):
        if loop.reduces:
            near = abs(loop.a) == 1 and abs(loop.b) == 1 or not problem.outputs
            ranked.setdefault(0 if near else 3, []).append((i, False))
            continue
        if (loop.b == 0 and loop.a != 0) or (problem.keep_lanes and len(loop.parts) > 1):
            continue
        near = loop.a in (-1, 0, 1) and loop.b in (-1, 0, 1)
        ranked.setdefault((not near) + (loop.c != 1), []).append((i, False))
        if loop.a == 0 and machine.width > 1 and not any(problem.bounds[k] for k in problem.clips_on(i)):
            ranked.setdefault(int(loop.c != 1), []).append((i, True))
    ranks = sorted(ranked)
    for rank in ranks[: 2 if ranks and ranks[0] < 3 else None]:
        if rank < 3 or rank == ranks[0]:
            yield from ranked[rank]


def _shares(extent: int, limit: int) -> list[int]:
    """The sizes up to ``limit`` that differ in how many tiles they cut ``extent`` into."""
    sizes = {ceil(extent / ceil(extent / size)) for size in range(1, min(extent, limit) + 1)}
    return sorted(sizes)


def _tiles(problem: Problem, machine: Machine, vec: int, vectors: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Register tiles over no, one or two output loops; loops that move A come first (they are walked slower)."""
    loops = [i for i in problem.outputs if i != vec]
    loops.sort(key=lambda i: (problem.loops[i].a == 0, abs(problem.loops[i].a) or abs(problem.loops[i].b)))
    limit = max(1, (machine.registers - 2) // vectors)
    yield ()
    sizes = {i: [size for size in _shares(problem.loops[i].extent, limit) if size > 1] for i in loops}
    for i in loops:
        yield from (((i, size),) for size in sizes[i])
    for i, j in combinations(loops, 2):
        for first in sizes[i]:
            if first * 2 <= limit and (problem.loops[vec].reduces or first == problem.loops[i].extent):
                yield from (((i, first), (j, second)) for second in sizes[j] if first * second <= limit)


def _cost(x: _Candidate) -> float:
    """Cycles for everything; infinite if the registers do not suffice or the borders need too many kernels."""
    problem, machine, width = x.problem, x.machine, x.machine.width
    loops = problem.loops
    counts = {loop: ceil(loops[loop].extent / size) for loop, size in x.tile}
    groups = 1 if x.dots else ceil(ceil(loops[x.vec].extent / width) / x.vectors)
    vectors = 1.0 if x.dots else ceil(loops[x.vec].extent / width) / groups
    kinds = classify(problem, x.vec, [loop for loop, _ in x.tile])
    most = x.vectors * prod(size for _, size in x.tile)
    copies = partial_sums(machine, most, x.dots)
    if not _fits(x, most * copies) or _borders(x, kinds):
        return float("inf")
    a = prod(loops[i].extent / counts[i] for i in counts if loops[i].a) * (vectors if loops[x.vec].a and not x.dots else 1)
    b = prod(loops[i].extent / counts[i] for i in counts if loops[i].b) * (vectors if loops[x.vec].b and not x.dots else 1)
    products = vectors * prod(loops[i].extent / counts[i] for i in counts)
    steps = prod(loops[i].extent for i in problem.reductions)
    steps = ceil(loops[x.vec].extent / width) * steps // loops[x.vec].extent if x.dots else steps
    loads = a * _price(loops[x.vec].a, width) + b * (1 if x.packs else _price(loops[x.vec].b, width) * _far(x))
    step = max(products / 2, loads / 2, (products + a + b + 1) / 6, 4 / copies, *_beyond(x, b))
    if "guard" in kinds:
        step += products * 1.5 + loads
    ends = 15 + products * (4 if problem.source.accumulate else 2.5)
    ends += products * 2.5 * width if not x.dots and loops[x.vec].c != 1 and width > 1 else 0
    ends += products * 12 if x.dots else 0
    tiles = prod(loops[i].extent for i in problem.outputs if i not in counts and i != x.vec) * prod(counts.values()) * groups
    return tiles * (steps * step + ends) + (_packing(x) if x.packs else 0)


def partial_sums(machine: Machine, products: int, dots: bool) -> int:
    """Sums kept for each output, so that about eight independent ones hide the latency of the multiply-add."""
    copies = 1
    while products * copies * 2 <= 8 and products * copies * 4 < machine.registers and (dots or products < 4):
        copies *= 2
    return copies


def _fits(x: _Candidate, sums: int) -> bool:
    """Accumulators, the B vectors of one step if used more than once, and one A value at a time."""
    rows = prod(size for loop, size in x.tile if x.problem.loops[loop].a)
    columns = prod(size for loop, size in x.tile if x.problem.loops[loop].b) * x.vectors
    return sums == 1 or sums + (columns if rows > 1 else 1) + 1 <= x.machine.registers - 1


def _borders(x: _Candidate, kinds: Sequence[str]) -> bool:
    for loop, size in x.tile:
        if any(kinds[clip] == "static" for clip in x.problem.clips_on(loop)):
            tiles = balanced(x.problem.loops[loop].extent, size)
            kernels = {tuple(pattern(x.problem, kinds, loop, start + i) for i in range(n)) for start, n in tiles}
            if len(kernels) > 5:
                return True
    return False


def _price(lane: int, width: int) -> float:
    if lane in (0, 1) or width == 1:
        return 1
    return 2 if lane == -1 else 2 * width


def _far(x: _Candidate) -> float:
    """Loads of B that change page or cache set at each step cost more."""
    inner = x.problem.loops[reduction_order(x.problem)[-1]]
    bytes_ = abs(inner.b) * x.problem.size
    return 1.6 if not x.dots and inner.extent >= 64 and (bytes_ >= 4096 or (bytes_ >= 1024 and bytes_ % 1024 == 0)) else 1


def _beyond(x: _Candidate, b: float) -> list[float]:
    """Cycles for one step's B vectors if the columns of a tile do not stay in the first-level cache."""
    panel = prod(x.problem.loops[i].extent for i in x.problem.reductions) * x.vectors * x.machine.width * x.problem.size
    return [b * x.machine.width * x.problem.size / 32] if panel > x.machine.l1 and not x.dots else []


def _packing(x: _Candidate) -> float:
    loops = x.problem.loops
    elements = prod(loop.extent for loop in loops if loop.b)
    near = loops[x.vec].b == 1 or any(abs(loop.b) == 1 for loop in loops if loop.reduces)
    return elements * (0.35 if loops[x.vec].b == 1 else 0.6 if near else 2.5) + 200


def _complete(x: _Candidate, cost: float) -> Plan:
    kinds = classify(x.problem, x.vec, [loop for loop, _ in x.tile])
    order = reduction_order(x.problem)
    if x.dots:
        order = (*(i for i in order if i != x.vec), x.vec)
    copies = partial_sums(x.machine, x.vectors * prod(size for _, size in x.tile), x.dots)
    levels = tuple(_levels(x))
    return Plan(x.problem, x.machine, x.vec, x.dots, x.vectors, x.tile, kinds, order, levels, copies, x.packs, cost)


def _levels(x: _Candidate) -> Iterator[Level]:
    """The layers: batches, chunk of the reduction, packing, then rows and vectors so that what is reused stays in cache."""
    problem, tiled = x.problem, [loop for loop, _ in x.tile]
    loops = problem.loops
    free = sorted((i for i in problem.outputs if i not in tiled and i != x.vec), key=lambda i: -abs(loops[i].c))
    yield from (Level("each", i) for i in free if loops[i].a and loops[i].b)
    chunk = _chunk(x)
    if chunk:
        yield chunk
    if x.packs:
        yield Level("pack", x.vec)
    rows = [i for i in free if not loops[i].b]
    inside = _inside(x, rows, chunk)
    yield from (Level("each", i) for i in rows if i not in inside)
    yield from _row_block(x, chunk)
    yield from (Level("each", i) for i in free if loops[i].b and not loops[i].a)
    if not x.dots:
        yield Level("vectors", x.vec, x.vectors)
    yield from (Level("each", i) for i in rows if i in inside)
    yield from (Level("tile", loop, size) for loop, size in x.tile)


def _extents(x: _Candidate, chunk: Level | None) -> dict[int, int]:
    extents = {i: loop.extent for i, loop in enumerate(x.problem.loops)}
    if chunk:
        extents[chunk.loop] = chunk.size
    return extents


def _bytes(x: _Candidate, operand: str, extents: dict[int, int], loops: Sequence[int]) -> int:
    strides = [(abs(getattr(x.problem.loops[i], operand)), extents[i]) for i in loops]
    count = prod(extent for stride, extent in strides if stride)
    return min(count, 1 + sum(stride * (extent - 1) for stride, extent in strides)) * x.problem.size


def _inside(x: _Candidate, rows: Sequence[int], chunk: Level | None) -> list[int]:
    """The untiled row loops that run inside the vector loop: as many as leave what they read of A in the cache."""
    extents, inside = _extents(x, chunk), []
    read = [*x.problem.reductions, *(loop for loop, _ in x.tile)]
    for row in reversed(rows):
        if _bytes(x, "a", extents, [*read, *inside, row]) > x.machine.l2 // 2:
            break
        inside.append(row)
    return inside


def _row_block(x: _Candidate, chunk: Level | None) -> Iterator[Level]:
    """Blocks of a long tiled row loop, if its A would not stay in the cache while B is walked."""
    rows = [(loop, size) for loop, size in x.tile if x.problem.loops[loop].a and not x.problem.loops[loop].b]
    if not rows or x.dots or x.problem.loops[x.vec].extent <= x.vectors * x.machine.width:
        return
    loop, size = rows[0]
    extents = _extents(x, chunk)
    each = _bytes(x, "a", {**extents, loop: 1}, [*x.problem.reductions, loop])
    fit = max(1, x.machine.l2 // 2 // max(1, each)) // size * size
    if size <= fit < extents[loop] and not any(x.problem.loops[loop].clips):
        yield Level("block", loop, fit)


def _chunk(x: _Candidate) -> Level | None:
    """The part of a long reduction after which C is stored and picked up again."""
    problem, machine = x.problem, x.machine
    free = [i for i in reduction_order(problem) if not any(problem.loops[i].clips) and problem.loops[i].extent > 1]
    if not free or x.dots or not problem.outputs:
        return None
    loops = problem.loops
    total = prod(loops[i].extent for i in problem.reductions)
    outputs = prod(loops[i].extent for i in problem.outputs) * problem.size
    every = list(range(len(loops)))
    extents = _extents(x, None)
    loop = free[0]
    around = total // loops[loop].extent
    a, b = _bytes(x, "a", extents, every), _bytes(x, "b", extents, every)
    if outputs <= machine.l2 // 2 and a + b > machine.l2 and total * problem.size * 2 > a + b / 64:
        steps = max(1, loops[loop].extent * (machine.l2 // 2) // (a + b))
        if steps * around >= 64 and steps * 3 <= loops[loop].extent * 2:
            return _evenly(loop, loops[loop].extent, steps)
    lanes = x.vectors * machine.width * problem.size
    limit = max(192, 2 * machine.l1 // lanes)
    if total > 1.5 * limit and limit >= around and a > machine.l2 // 2:
        return _evenly(loop, loops[loop].extent, limit // around)
    return None


def _evenly(loop: int, extent: int, size: int) -> Level:
    return Level("chunk", loop, ceil(extent / ceil(extent / size)))
