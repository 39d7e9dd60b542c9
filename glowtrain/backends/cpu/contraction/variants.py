"""The kernels that a candidate needs: tiles of other sizes, or with other products at the borders of padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.candidate import Candidate
from glowtrain.backends.cpu.contraction.describe import Problem
from glowtrain.backends.cpu.contraction.levels import levels_of


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
    if vec in moved or len(moved) - len(outputs) > 1 or clipped(problem, clip) == vec:
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


def many_borders(x: Candidate, kinds: Sequence[str], kept: dict[tuple[int, int], int]) -> bool:
    """Whether static clips would need too many kernels; ``kept`` holds their number by loop and size."""
    count = 1
    for loop, size in x.tile:
        if _bordered(x, kinds, loop):
            if (loop, size) not in kept:
                places = _patterns(x, kinds, loop)
                tiles = balanced(x.problem.loops[loop].extent, size)
                kept[loop, size] = len({places[start : start + n] for start, n in tiles})
            count *= kept[loop, size]
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
