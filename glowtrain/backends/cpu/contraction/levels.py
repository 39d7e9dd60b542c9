"""The layers of the nest around a kernel: in which order loops run, in which blocks, where operands are packed; and how
many kernels that makes, of tiles that are not alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.candidate import Candidate
from glowtrain.backends.cpu.contraction.cost import inner_reduction
from glowtrain.backends.cpu.contraction.describe import Problem


@dataclass(frozen=True)
class Level:
    """One layer of the nest around the kernel, outermost first.

    ``each``: every index of a loop; ``block``: a loop in blocks of ``size``, its tiles or indices further in;
    ``columns``: the vector loop in blocks of ``size`` vectors; ``chunk``: a reduction in parts of ``size``, C holding
    the partial sums; ``pack_a``, ``pack_b``: copy what the layers inside read of an operand; ``tile``: ``size`` points
    of a loop for each call of the kernel; ``vectors``: ``size`` vectors of the vector loop.
    """

    kind: str
    loop: int
    size: int = 1


def levels_of(x: Candidate) -> Iterator[Level]:
    """The layers: batches, parts of the sum, then rows and vectors so that what is used again stays in a cache."""
    loops, tiled = x.problem.loops, [loop for loop, _ in x.tile]
    free = sorted((i for i in x.problem.outputs if i not in tiled and i != x.vec), key=lambda i: -abs(loops[i].c))
    yield from (Level("each", i) for i in free if loops[i].a and loops[i].b)
    yield from (Level("chunk", i, size) for i, size in x.chunks)
    rows = [i for i in free if not loops[i].b]
    inside, block = _inside(x, rows), list(_row_block(x))
    band = list(_band(x, rows, inside))
    inside = [*(level.loop for level in band), *inside]
    outside = [Level("each", i) for i in rows if i not in inside] + band + block
    packs = x.pack_b and not x.problem.dot
    whole = packs and bool(outside) and not _by_panels(x, outside)
    if whole:
        yield from _column_blocks(x)
        yield Level("pack_b", x.vec)
    yield from outside
    if x.pack_a:
        yield Level("pack_a", inner_reduction(x, "a"))
    yield from (Level("each", i) for i in free if loops[i].b and not loops[i].a)
    if not x.dots:
        yield Level("vectors", x.vec, x.vectors)
    if packs and not whole:
        yield Level("pack_b", x.vec)
    yield from (Level("each", i) for i in rows if i in inside)
    yield from (Level("tile", loop, size) for loop, size in x.tile)


def _by_panels(x: Candidate, outside: Sequence[Level]) -> bool:
    """Whether B is made floats of bytes panel by panel, once more in each of a few blocks of rows: all of it would be
    four times as much, and leave the cache before it is read."""
    return x.unpacks and all(level.kind == "block" for level in outside)


def _inside(x: Candidate, rows: Sequence[int]) -> list[int]:
    """The untiled row loops that run inside the vector loop: as many as leave what they read of A in the cache.

    None if all of B fits the first-level cache: then the results are written in one sweep.
    """
    columns = [i for i in x.problem.outputs if x.stride("b", i)]
    copied = x.pack_b and x.problem.dot is None
    if x.footprint("b", [*columns, *x.problem.reductions]) <= x.machine.l1 // 2 and not copied:
        return []
    inside: list[int] = []
    read = [*x.problem.reductions, *(loop for loop, _ in x.tile)]
    for row in reversed(rows):
        if x.footprint("a", [*read, *inside, row]) > x.machine.l2 // 2:
            break
        inside.append(row)
    return inside


def _band(x: Candidate, rows: Sequence[int], inside: Sequence[int]) -> Iterator[Level]:
    """Blocks of the innermost row loop that does not run inside the vector loop: B, where it is more than the second
    level holds, comes once for each of them instead of for each row.
    """
    read = [*x.problem.reductions, *(loop for loop, _ in x.tile), *inside]
    columns = [i for i in x.problem.outputs if x.stride("b", i)]
    outer = [row for row in rows if row not in inside]
    near = x.footprint("b", [*columns, *x.problem.reductions]) <= rates.ONE_IN_L2 * x.machine.l2
    if not outer or near or x.dots or x.problem.loops[x.vec].extent <= x.vectors * x.machine.width:
        return
    row = outer[-1]
    sizes = shares(x.extents[row], x.extents[row] - 1)
    fit = [size for size in sizes if x.footprint("a", [*read, row], {row: size}) <= x.machine.l2 // 2]
    if fit and fit[-1] > 1:
        yield Level("block", row, fit[-1])


def _column_blocks(x: Candidate) -> Iterator[Level]:
    """Blocks of columns, where B is packed for many rows and all of it would be far larger than caches."""
    vectors = ceil(x.problem.loops[x.vec].extent / x.machine.width)
    columns = [i for i in x.problem.outputs if x.stride("b", i) and not x.stride("a", i) and i != x.vec]
    each = prod(x.extents[i] for i in (*columns, *x.problem.reductions) if x.stride("b", i))
    most = max(rates.PACKED_AT_ONCE // (each * x.machine.width * x.problem.size), x.vectors)
    if most < vectors:
        blocks = ceil(vectors / most)
        yield Level("columns", x.vec, ceil(ceil(vectors / blocks) / x.vectors) * x.vectors)


def _in_few_sets(x: Candidate, row: int) -> bool:
    """Whether results do not fit the second level, and their rows lie whole pages apart: those of a tile of columns are
    in few sets, and push each other, and A, out of it. B does fit, as it comes once more for each block."""
    pages = x.stride("c", row) * x.problem.bytes_of("c") % rates.PAGE == 0
    b = x.footprint("b", [*x.problem.reductions, x.vec])
    return pages and b <= x.machine.l2 < x.problem.result_bytes


def _row_block(x: Candidate) -> Iterator[Level]:
    """Blocks of a long tiled row loop, if its A or its results would not stay in the cache while B is walked."""
    rows = [(loop, size) for loop, size in x.tile if x.stride("a", loop) and not x.stride("b", loop)]
    lanes = x.problem.loops[x.vec].extent
    if not rows or x.dots or lanes <= x.vectors * x.machine.width:
        return
    loop, size = rows[0]
    fit = x.max_row_bytes // max(1, x.footprint("a", [*x.problem.reductions, loop], {loop: 1}))
    if x.footprint("b", [*x.problem.reductions, x.vec]) <= x.machine.l2 // 4:
        fit = min(fit, max(4 * size, x.machine.l2 // 4 // (lanes * x.problem.bytes_of("c"))))
    if x.problem.dot and _in_few_sets(x, loop):
        fit = min(fit, rates.ROWS_IN_FEW_SETS)
    blocks = ceil(x.extents[loop] / (rates.BLOCK_SLACK * max(fit, size)))
    if blocks > 1 and not any(x.problem.loops[loop].clips):
        yield Level("block", loop, ceil(x.extents[loop] / (blocks * size)) * size)


def shares(extent: int, limit: int) -> list[int]:
    """The sizes up to ``limit`` that differ in how many tiles they cut ``extent`` into."""
    sizes = {ceil(extent / ceil(extent / size)) for size in range(1, min(extent, limit) + 1)}
    return sorted(sizes)


# -- the kernels that a candidate needs: tiles of other sizes, or with other products at the borders of padding


def classify(problem: Problem, vec: int, tiled: Sequence[int]) -> tuple[str, ...]:
    """How each clip is kept.

    ``range``: it bounds a reduction loop by numbers known when the kernel is called; ``static``: it is the same for
    each call, but differs between the points of a tile, so that products are left out when the kernel is written;
    ``guard``: tested for each product.
    """
    kinds = [_kind(problem, clip, vec, tiled) for clip in range(len(problem.bounds))]
    fixed = {clipped(problem, clip) for clip, kind in enumerate(kinds) if kind == "static"}
    return tuple("guard" if kind == "range" and clipped(problem, k) in fixed else kind for k, kind in enumerate(kinds))


def _kind(problem: Problem, clip: int, vec: int, tiled: Sequence[int]) -> str:
    moved = [i for i, loop in enumerate(problem.loops) if loop.clips[clip]]
    outputs = [i for i in moved if not problem.loops[i].reduces]
    if vec in moved or len(moved) - len(outputs) > 1 or clipped(problem, clip) in (vec, problem.grouped):
        return "guard"
    if not any(i in tiled for i in outputs):
        return "range"
    return "static" if len(outputs) == 1 else "guard"


def clipped(problem: Problem, clip: int) -> int:
    """The reduction loop that a clip bounds (the first one if it depends on output loops only)."""
    return next((i for i in problem.reductions if problem.loops[i].clips[clip]), problem.reductions[0])


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
    starts = accumulate(sizes, initial=0)
    return list(zip(starts, sizes, strict=False))


def many_borders(x: Candidate, kinds: Sequence[str], borders: dict[tuple[int, int], int]) -> bool:
    """Whether static clips would need too many kernels; ``borders`` holds their number by loop and size."""
    count = 1
    for loop, size in x.tile:
        if _bordered(x, kinds, loop):
            if (loop, size) not in borders:
                places = _patterns(x, kinds, loop)
                tiles = balanced(x.problem.loops[loop].extent, size)
                borders[loop, size] = len({places[start : start + n] for start, n in tiles})
            count *= borders[loop, size]
    return count > (rates.MOST_BORDERS_COMPACT if x.machine.compact else rates.MOST_BORDERS)


def _bordered(x: Candidate, kinds: Sequence[str], loop: int) -> bool:
    """Whether points along a loop have different products."""
    return any(kinds[clip] == "static" for clip in x.problem.clips_on(loop))


def _patterns(x: Candidate, kinds: Sequence[str], loop: int) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """What static clips leave of the reductions at each index of a loop."""
    return tuple(pattern(x.problem, kinds, loop, at) for at in range(x.problem.loops[loop].extent))


def written(x: Candidate, kinds: Sequence[str]) -> int:
    """How much code a candidate is: the sums of all kernels that it needs, in vectors."""
    blocks = {level.loop: level.size for level in levels_of(x) if level.kind in ("block", "columns")}
    points = prod([_points(x, kinds, loop, size, blocks.get(loop)) for loop, size in x.tile])
    # where the sum is taken in parts, the last one is finished or is shorter
    parts = prod([2 if x.problem.keep_lanes or x.problem.loops[i].extent % size else 1 for i, size in x.chunks])
    return points * (1 if x.dots else _vectors(x, blocks.get(x.vec))) * x.copies * parts


def _points(x: Candidate, kinds: Sequence[str], loop: int, size: int, block: int | None) -> int:
    """Points of all tiles along a loop that are not alike."""
    tiles = [tile for extent in _blocks(x.problem.loops[loop].extent, block) for tile in balanced(extent, size)]
    if not _bordered(x, kinds, loop):
        return sum({n for _, n in tiles})
    places = _patterns(x, kinds, loop)
    return sum(map(len, {places[start : start + n] for start, n in tiles}))


def _vectors(x: Candidate, block: int | None) -> int:
    """Vectors of all groups of them that are not alike."""
    width, extent = x.machine.width, x.problem.loops[x.vec].extent
    groups = {
        (size, min(size * width, lanes - start * width))
        for lanes in _blocks(extent, None if block is None else block * width)
        for start, size in balanced(ceil(lanes / width), x.vectors)
    }
    return sum(size for size, _ in groups)


def _blocks(extent: int, size: int | None) -> list[int]:
    """The extents of the blocks that a loop is cut into, if it is: of whole ones, and of the last."""
    if size is None or size >= extent:
        return [extent]
    return [size, extent % size] if extent % size else [size]
