"""The layers of the nest around a kernel: in which order loops run, in which blocks, where operands are packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.candidate import Candidate
from glowtrain.backends.cpu.contraction.cost import inner_reduction
from glowtrain.deferred import dataclass


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
    fit = x.rows_kept // max(1, x.footprint("a", [*x.problem.reductions, loop], {loop: 1}))
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
