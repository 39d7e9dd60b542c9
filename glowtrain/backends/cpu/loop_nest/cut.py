"""Choose which loops of a nest are its task loops, and estimate the work of a task."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

from glowtrain.backends.cpu.loop_nest.expressions import reached
from glowtrain.backends.cpu.order.analysis import Free, accesses, reductions
from glowtrain.backends.cpu.tasks import WANTED
from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Apply,
    Buffer,
    Expr,
    For,
    Index,
    Load,
    Reduce,
    Statement,
    Store,
    affine,
    expressions,
    loads,
    statements,
)
from glowtrain.loops.functions import Cost
from glowtrain.types import i64

CYCLES = {Cost.CHEAP: 1.0, Cost.STEP: 2.0, Cost.EXPENSIVE: 16.0}
"""Of scalar functions on a vector, beside others; expensive ones take from 9 (exp, log) to 60 (pow)."""
SHORT = 16
"""Elements of a reduction that may be summed again for each range."""


@dataclass(frozen=True)
class NestCut:
    """The task loops: how many tasks one trip has, by index; and how many there are."""

    each: dict[Index, int]
    tasks: int = 1


NOTHING = NestCut({})
"""One task."""


def cut(levels: Sequence[tuple[Index, int]], loop: For, bound: Set[Expr], free: Free) -> NestCut:
    """The task loops among the ``levels`` of a nest, outermost first, each with the number of its trips.

    Levels end where there are tasks enough, and where a reduction is computed that all trips inside use: each range
    would compute it. ``bound``: what has its value outside of the nest.
    """
    found, tasks, known = list[tuple[Index, int]](), 1, set(bound)
    for index, trips in levels:
        if loop.serial or tasks >= WANTED or _reduces(loop.body, known, free):
            break
        if trips > 1 and _separate(index, loop.body):
            found.append((index, trips))
            tasks *= trips
        known.add(index)
    each, inside = dict[Index, int](), 1
    for index, trips in reversed(found):
        each[index], inside = inside, inside * trips
    return NestCut(each, tasks)


def _reduces(body: Sequence[Statement], known: Set[Expr], free: Free) -> bool:
    """Whether a long reduction can be computed when ``known`` has its values."""
    found = reductions(list(reached(body)))
    return any(free.of(r) <= known for r in found if math.prod(index.extent for index in r.indices) > SHORT)


def _separate(index: Index, body: Sequence[Statement]) -> bool:
    """Whether trips of a parallel loop touch different elements: where they accumulate, a subscript must tell the trip,
    and no other statement may touch the sums.
    """
    every = list(statements(body))
    targets = [statement for statement in every if isinstance(statement, Accumulate)]
    touched = [load.buffer for load in loads(body)]
    touched += [statement.buffer for statement in every if isinstance(statement, (Store, Accumulate))]
    return all(touched.count(target.buffer) == 1 and _tells(index, target) for target in targets)


def _tells(index: Index, target: Accumulate) -> bool:
    return any([atom for atom, _ in affine(subscript).terms] == [index] for subscript in target.index)


def moved(body: Sequence[Statement]) -> int:
    """Bytes that statements read and write, those of an element once."""
    found = dict[Buffer, int]()
    for access in accesses(body):
        touched = min(access.trips * access.buffer.dtype.size, access.buffer.type.nbytes)
        found[access.buffer] = max(touched, found.get(access.buffer, 0))
    return sum(found.values())


def operations(body: Sequence[Statement], width: int) -> float:
    """Loads, stores and scalar functions (a transcendental one counts several) of statements, at every point, in
    vectors of ``width`` elements; those of loops that run in order, one by one."""
    return _operations(body, set(), width) / width


def _operations(body: Sequence[Statement], seen: set[Expr], width: int) -> float:
    total = 0.0
    for statement in body:
        if isinstance(statement, For):
            points = math.prod(index.extent for index in statement.indices) * (width if statement.serial else 1)
            total += points * _operations(statement.body, seen, 1 if statement.serial else width)
        else:
            total += isinstance(statement, (Store, Accumulate))
            total += sum(_evaluated(expr, seen) for expr in expressions(statement))
    return total


def _evaluated(expr: Expr, seen: set[Expr]) -> float:
    """The operations of an expression whose parts in ``seen`` have their values already."""
    if expr in seen:
        return 0.0
    seen.add(expr)
    trips = math.prod(index.extent for index in expr.indices) if isinstance(expr, Reduce) else 1
    return _own(expr) + trips * sum(_evaluated(child, seen) for child in expr.children)


def _own(expr: Expr) -> float:
    """Arithmetic in i64 is not counted: it is that of subscripts, of which most is done outside of the loops."""
    if isinstance(expr, Apply) and expr.dtype != i64:
        return CYCLES[FUNCTIONS[expr.function].cost]
    return float(isinstance(expr, Load))
