"""Which levels of a contraction's nest are its task loops.

The levels stand as they were chosen; a range only bounds the trips of some of them, wherever they are. So a task has
its tile of C through all parts of the sum, and what is packed outside of a task loop is packed again for each range.
Where the sum is taken in chunks, so that one of an operand stays in the first-level cache from tile to tile, each range
brings all of them there again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from glowtrain.backends.cpu.contraction.choose import ContractionPlan
from glowtrain.backends.cpu.contraction.levels import Level, balanced
from glowtrain.backends.cpu.contraction.rates import NEW_PAGE, NEXT_LINES, THIRD_LEVEL
from glowtrain.backends.cpu.tasks import ELSEWHERE, WANTED, Work

ENOUGH = 8
"""Tasks from which on no loop is cut that stands inside of packing that is more than that part of the whole:"""
AGAIN = 0.02
"""so much of a contraction's cycles."""
LITTLE = 1 / 16
"""The part of a contraction's cycles that each range may pack again, where it has rows of its own then."""
_PACKS = ("pack_a", "pack_b")
_EACH = ("each", "tile", "vectors")
"""Levels of trips that are all alike."""
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
    by_rows = _rows(plan, depths)
    if by_rows is not None:
        return _by_rows(plan, *by_rows, copied)
    each, tasks = dict[int, int](), 1
    for depth in reversed(depths):
        each[depth] = tasks
        tasks = _tasks(plan, depth, tasks)
    shared = copied + _packed_again(plan, depths) + _streamed_again(plan, depths)
    work = Work(tasks, _own(plan, copied, shared) / tasks, shared, _together(plan, each))
    return Cut(each, work)


def _own(plan: ContractionPlan, copied: float, shared: float) -> float:
    """Cycles of all tasks, beside those that every range takes."""
    return max(plan.cost + copied - shared, sum(_touched(plan, each) for each in "abc") / ELSEWHERE)


def _touched(plan: ContractionPlan, operand: str) -> int:
    """Bytes of an operand: those of an element once, as windows of an image have most of theirs in common."""
    problem = plan.problem
    moving = [(step, loop.extent) for step, loop in zip(problem.strides(operand), problem.loops, strict=True) if step]
    reach = 1 + sum(step * (extent - 1) for step, extent in moving)
    return min(prod(extent for _, extent in moving), reach) * problem.bytes_of(operand)


def _rows(plan: ContractionPlan, depths: list[int]) -> tuple[int, int] | None:
    """The depths of columns and of the rows inside of them that threads had better share, although columns are the
    outer loop: where all of B, which each would read then, is less than all of A, or is in each core's cache since the
    last trip of a loop around. Rows are what other kernels share, too, so that A and C stay with one core."""
    if len(depths) == 2 and not any(level.kind in (*_PACKS, "chunk") for level in plan.levels[: depths[-1]]):
        outer, inner = (plan.problem.loops[plan.levels[depth].loop] for depth in depths)
        if not outer.a and outer.b and not inner.b and inner.a and _near(plan, "b"):
            return depths[0], depths[1]
    return _farthest(plan)


def _near(plan: ContractionPlan, operand: str) -> bool:
    """Whether each range may well read all of an operand."""
    size, other = (_bytes(plan, each) for each in (operand, "a" if operand == "b" else "b"))
    return size < other or (plan.problem.resident(operand) and size <= plan.machine.l2)


def _farthest(plan: ContractionPlan) -> tuple[int, int] | None:
    """The same where rows lie farthest apart in C, as those of images do, and what stands around them goes through
    columns of an image or some lanes of all, and packs little of B."""
    loop = max(plan.problem.outputs, key=plan.problem.strides("c").__getitem__, default=-1)
    rows = next((depth for depth, level in enumerate(plan.levels) if level.loop == loop and level.kind in _EACH), None)
    if rows is None or not all(plan.problem.strides(each)[loop] or _near(plan, each) for each in "ab"):
        return None
    around = [(depth, level) for depth, level in enumerate(plan.levels[:rows]) if level.kind != "pack_b"]
    columns = [depth for depth, level in around if _trips(plan, level) > 1]
    if not columns or any(level.kind not in _EACH or level.loop not in plan.problem.outputs for _, level in around):
        return None
    tasks = _trips(plan, plan.levels[rows]) * _trips(plan, plan.levels[columns[-1]])
    little = _packed_again(plan, [rows]) <= LITTLE * plan.cost
    return (columns[-1], rows) if tasks >= ENOUGH and little else None


def _by_rows(plan: ContractionPlan, around: int, inside: int, copied: float) -> Cut:
    """Tasks of which neighbours are columns of the same rows."""
    columns, rows = (_trips(plan, plan.levels[depth]) for depth in (around, inside))
    tasks, shared = rows * columns, copied + _packed_again(plan, [inside])
    return Cut({inside: 1}, Work(tasks, _own(plan, copied, shared) / tasks, shared), (around, columns))


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
