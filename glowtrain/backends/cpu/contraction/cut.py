"""Which levels of a contraction's nest are its task loops.

The levels stand as they were chosen; a range only bounds the trips of some of them, wherever they are. So a task has
its tile of C through all parts of the sum, and what is packed outside of a task loop is packed again for each range.
Where the sum is taken in chunks, so that one of an operand stays in the first-level cache from tile to tile, each range
brings all of them there again.
"""

from __future__ import annotations

from math import prod

from glowtrain.backends.cpu.contraction.choose import ContractionPlan, balanced
from glowtrain.backends.cpu.contraction.levels import Level
from glowtrain.backends.cpu.contraction.rates import NEW_PAGE, NEXT_LINES, THIRD_LEVEL
from glowtrain.backends.cpu.tasks import WANTED, Work
from glowtrain.deferred import dataclass

ENOUGH = 8
"""Tasks from which on no loop is cut that stands inside of packing that is more than that part of the whole:"""
AGAIN = 0.02
"""so much of a contraction's cycles."""
_PACKS = ("pack_a", "pack_b")
_LANES = ("vectors", "columns")
"""Levels whose size is in vectors."""


@dataclass(frozen=True)
class Cut:
    """The task loops: how many tasks one trip has, by the depth of the level; and what there is to do.

    ``columns``: the depth of a level, and its trips, of which every range goes through all: tasks that follow each
    other are those of one trip of the task loop inside of it.
    """

    each: dict[int, int]
    work: Work
    columns: tuple[int, int] | None = None


def cut(plan: ContractionPlan, copied: float = 0.0) -> Cut:
    """The task loops of a plan. ``copied``: cycles for what the function copies before its first level."""
    depths = _depths(plan)
    if _rows_first(plan, depths):
        return _by_rows(plan, depths, copied)
    each, tasks = dict[int, int](), 1
    for depth in reversed(depths):
        each[depth] = tasks
        tasks = _tasks(plan, depth, tasks)
    shared = copied + _packed_again(plan, depths) + _streamed_again(plan, depths)
    work = Work(tasks, max(plan.cost + copied - shared, 0.0) / tasks, shared, _together(plan, each))
    return Cut(each, work)


def _rows_first(plan: ContractionPlan, depths: list[int]) -> bool:
    """Whether threads had better share rows of C, although columns are the outer loop: where all of B, which each
    would read then, is less than all of A, or is in each core's cache since the last trip of a loop around. Rows are
    what other kernels share, too, so that A and C stay with one core."""
    if len(depths) != 2 or any(level.kind in (*_PACKS, "chunk") for level in plan.levels[: depths[-1]]):
        return False
    outer, inner = (plan.problem.loops[plan.levels[depth].loop] for depth in depths)
    if outer.a or not outer.b or inner.b or not inner.a:
        return False
    b = _bytes(plan, "b")
    return b < _bytes(plan, "a") or (plan.problem.resident("b") and b <= plan.machine.l2)


def _by_rows(plan: ContractionPlan, depths: list[int], copied: float) -> Cut:
    """Tasks of which neighbours are columns of the same rows."""
    columns, rows = (_trips(plan, plan.levels[depth]) for depth in depths)
    tasks = rows * columns
    return Cut({depths[1]: 1}, Work(tasks, plan.cost / tasks, copied), (depths[0], columns))


def _depths(plan: ContractionPlan) -> list[int]:
    """Outermost first: levels of independent trips until there are tasks enough; of a tiled loop in blocks always its
    tiles. Blocks of single rows have as many tasks each, whatever their size, so their rows are none."""
    found, tasks = list[int](), 1
    for depth, level in enumerate(plan.levels):
        if tasks >= WANTED or (tasks >= ENOUGH and _packs_much(plan, level, tasks)):
            break
        if level.kind == "block" and level.loop in dict(plan.tile):
            return [*found, depth, _tile_of(plan, level.loop)]
        if _in_block(plan, depth):
            continue
        if level.kind not in (*_PACKS, "chunk") and _trips(plan, level) > 1 and not _in_columns(plan, depth):
            found.append(depth)
            tasks *= _trips(plan, level)
    return found


def _in_block(plan: ContractionPlan, depth: int) -> bool:
    """Whether a level goes through a block of its loop."""
    level = plan.levels[depth]
    return any((outer.kind, outer.loop) == ("block", level.loop) for outer in plan.levels[:depth])


def _packs_much(plan: ContractionPlan, level: Level, trips: int) -> bool:
    """Whether one trip of what stands around a level packs much."""
    return level.kind in _PACKS and plan.packing[level.kind[-1]] / trips > AGAIN * plan.cost


def _in_columns(plan: ContractionPlan, depth: int) -> bool:
    """Whether a level takes vectors of a block of columns, of which the last one may have fewer."""
    return plan.levels[depth].kind == "vectors" and any(level.kind == "columns" for level in plan.levels[:depth])


def _tile_of(plan: ContractionPlan, loop: int) -> int:
    return next(depth for depth, level in enumerate(plan.levels) if (level.kind, level.loop) == ("tile", loop))


def _trips(plan: ContractionPlan, level: Level) -> int:
    """Trips of a level that is not inside of a block of its loop."""
    extent = plan.problem.loops[level.loop].extent
    if level.kind == "each":
        return extent
    if level.kind in _LANES:
        extent = -(-extent // plan.machine.width)
    return len(balanced(extent, level.size))


def _tasks(plan: ContractionPlan, depth: int, inside: int) -> int:
    """Tasks of a level: the last block may have fewer than the others, which have ``inside``."""
    level = plan.levels[depth]
    blocks = [other for other in plan.levels[:depth] if (other.kind, other.loop) == ("block", level.loop)]
    if level.kind == "tile" and blocks:
        return len(balanced(blocks[0].size, level.size))
    if level.kind != "block" or level.loop not in dict(plan.tile):
        return inside * _trips(plan, level)
    full, rest = divmod(plan.problem.loops[level.loop].extent, level.size)
    return full * inside + (len(balanced(rest, plan.levels[_tile_of(plan, level.loop)].size)) if rest else 0)


def _packed_again(plan: ContractionPlan, depths: list[int]) -> float:
    """Cycles of packing that a range does whole: of what stands outside of the innermost task loop."""
    again = 0.0
    for at, level in enumerate(plan.levels):
        if level.kind in _PACKS and depths and at < depths[-1]:
            trips = prod(_trips(plan, plan.levels[depth]) for depth in depths if depth < at)
            operand = level.kind[-1]
            again += max(plan.packing[operand], _bytes(plan, operand) / THIRD_LEVEL) / trips
    return again


def _bytes(plan: ContractionPlan, operand: str) -> int:
    """Those of an operand, which come from another core or from memory."""
    moves = (loop.extent for loop in plan.problem.loops if getattr(loop, operand))
    return prod(moves) * plan.problem.size


def _together(plan: ContractionPlan, each: dict[int, int]) -> int:
    """Tasks of one trip of the task loop that packing stands in, 1 where it stands in none or inside of all."""
    packs = [depth for depth, level in enumerate(plan.levels) if level.kind in _PACKS and depth < max(each, default=0)]
    around = [depth for depth in each if packs and depth < packs[-1]]
    return each[max(around)] if around else 1


def _streamed_again(plan: ContractionPlan, depths: list[int]) -> float:
    """Cycles for the chunks that tiles next to each other share, and for the pages that they go through, where chunks
    stand outside of the task loops."""
    chunked = any(level.kind == "chunk" for level in plan.levels[: depths[-1]]) if depths else False
    if not chunked:
        return 0.0
    inner, pages = plan.levels[depths[-1]].loop, plan.pages * NEW_PAGE
    part = {plan.levels[depth].loop: _points(plan, plan.levels[depth]) for depth in depths[:-1]}
    elements = 0
    for operand in ("a", "b"):
        moves = [at for at, loop in enumerate(plan.problem.loops) if getattr(loop, operand)]
        if inner not in moves:
            elements += prod(part.get(at, plan.problem.loops[at].extent) for at in moves)
    return elements * plan.problem.size / NEXT_LINES + pages


def _points(plan: ContractionPlan, level: Level) -> int:
    """Points of one trip of a level along its loop."""
    extent = plan.problem.loops[level.loop].extent
    size = 1 if level.kind == "each" else level.size * (plan.machine.width if level.kind in _LANES else 1)
    return min(extent, size)
