"""Which loop to run along vector lanes: a small cost model over the accesses of a nest.

Its numbers decide the order of sums, and with it bits, on every processor: they are part of what programs mean, and not
to be tuned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Affine,
    Apply,
    Buffer,
    Expr,
    FlatStatement,
    For,
    Index,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    address,
    expressions,
    walk,
)
from glowtrain.loops.affine import Atom, Quotient, Remainder
from glowtrain.loops.functions import Cost
from glowtrain.memo import memoized

GATHER = 1.5
"""Cost of one lane of a gather or scatter, in vector operations."""
HEAVY = 8.0
"""Cost of a transcendental function, in vector operations."""


@dataclass
class Free:
    """Free indices and refs of expressions, remembered; a ref brings those of its value along."""

    memo: dict[Expr, frozenset[Expr]] = field(default_factory=dict)
    lets: dict[Expr, Expr] = field(default_factory=dict)

    def of(self, expr: Expr) -> frozenset[Expr]:
        if expr not in self.memo:
            found: frozenset[Expr] = frozenset({expr})
            if expr in self.lets:
                found |= self.of(self.lets[expr])
            elif not isinstance(expr, (Index, Ref)):
                found = frozenset[Expr]().union(*(self.of(child) for child in expr.children))
                if isinstance(expr, Reduce):
                    found -= set(expr.indices)
            self.memo[expr] = found
        return self.memo[expr]

    def of_atom(self, atom: Atom) -> frozenset[Expr]:
        if isinstance(atom, (Quotient, Remainder)):
            return frozenset().union(*(self.of_atom(inner) for inner, _ in atom.dividend.terms))
        return self.of(atom)


def slope(offset: Affine, index: Index, free: Free) -> int | None:
    """Elements between the addresses of neighbouring lanes, or ``None`` if that is not constant."""
    coefficient = 0
    for atom, factor in offset.terms:
        if atom is index:
            coefficient = factor
        elif index in free.of_atom(atom):
            return None
    return coefficient


@dataclass(frozen=True)
class NestAccess:
    """A load or store: its address, how often it runs, and whether it writes."""

    buffer: Buffer
    offset: Affine
    trips: int
    inside: tuple[Index, ...]

    def times(self, trips: int) -> NestAccess:
        """The same in a loop of so many trips."""
        return NestAccess(self.buffer, self.offset, trips * self.trips, self.inside)


def accesses(body: Sequence[Statement], trips: int = 1) -> Iterator[NestAccess]:
    """Every access of flat statements, with the reduction indices that it stands in."""
    for statement in body:
        if isinstance(statement, For):
            inner = trips * math.prod(index.extent for index in statement.indices)
            yield from accesses(statement.body, inner)
            continue
        found = _accesses(statement)
        yield from found if trips == 1 else (each.times(trips) for each in found)


@memoized
def _accesses(statement: FlatStatement) -> tuple[NestAccess, ...]:
    """The accesses of a statement that runs once."""
    found: list[NestAccess] = []
    if isinstance(statement, (Store, Accumulate)):
        found.append(NestAccess(statement.buffer, address(statement.index, statement.buffer.strides), 1, ()))
    for expr in statement.operands:
        found += _expression_accesses(expr, 1, (), set())
    return tuple(found)


def _expression_accesses(expr: Expr, trips: int, inside: tuple[Index, ...], seen: set[Expr]) -> Iterator[NestAccess]:
    if expr in seen:
        return
    seen.add(expr)
    if isinstance(expr, Load):
        yield NestAccess(expr.buffer, address(expr.index, expr.buffer.strides), trips, inside)
    if isinstance(expr, Reduce):
        inside = (*inside, *expr.indices)
        trips *= math.prod(index.extent for index in expr.indices)
    for child in expr.children:
        yield from _expression_accesses(child, trips, inside, seen)


@dataclass(frozen=True)
class NestOperations:
    """What flat statements do: their accesses, the cost of their arithmetic, and the number of their reductions."""

    accesses: tuple[NestAccess, ...]
    arithmetic: float
    reductions: int

    @staticmethod
    def of(body: Sequence[Statement]) -> NestOperations:
        return NestOperations(tuple(accesses(body)), _arithmetic(body), sum(1 for _ in reductions(body)))


def vector_cost(work: NestOperations, index: Index, width: int, free: Free) -> float:
    """Vector operations if ``index`` runs along the lanes (it must be a loop around the whole body). Of lanes that the
    last vector has too many none is gathered or scattered."""
    lanes = math.ceil(index.extent / width) * width / index.extent
    total = 0.0
    for access in work.accesses:
        step = slope(access.offset, index, free)
        total += access.trips * (lanes / width if step in (0, 1) else GATHER)
    return total + work.arithmetic * lanes / width


def reduction_cost(work: NestOperations, width: int, free: Free) -> float:
    """Vector operations if reductions run along the lanes and everything else is scalar."""
    total = 0.0
    for access in work.accesses:
        best = access.trips * 1.0
        for index in access.inside:
            if index.extent == 0:
                continue
            lanes = math.ceil(index.extent / width) * width / index.extent
            step = slope(access.offset, index, free)
            each = (1 / width if step in (0, 1) else GATHER) * lanes
            best = min(best, access.trips * each)
        total += best
    return total + work.arithmetic / width + 6 * work.reductions


def _arithmetic(body: Iterable[Statement]) -> float:
    """Without that of subscripts: most of it is done outside of the loops, or for all lanes at once."""
    values = (expr for statement in body for expr in expressions_of_value(statement))
    nodes = {node for value in values for node in computed(value) if isinstance(node, Apply)}
    return sum(_price(node) for node in nodes)


def _price(node: Apply) -> float:
    """What a scalar function costs, in vector operations."""
    return 1.0 if FUNCTIONS[node.function].cost == Cost.CHEAP else HEAVY


def computed(expr: Expr) -> Iterator[Expr]:
    """The expression and what it is computed from, without the subscripts of loads."""
    seen: set[Expr] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(() if isinstance(node, Load) else node.children)


def expressions_of_value(statement: Statement) -> tuple[Expr, ...]:
    """What a statement computes, without its subscripts."""
    found = expressions(statement)
    return found[-1:] if isinstance(statement, (Store, Accumulate)) else found


def reductions(body: Sequence[Statement]) -> Iterator[Reduce]:
    """The outermost reductions in flat statements."""
    seen: set[Expr] = set()
    for statement in body:
        if not isinstance(statement, For) and statement.reductions:
            for expr in statement.operands:
                yield from _outermost(expr, seen)


def _outermost(expr: Expr, seen: set[Expr]) -> Iterator[Reduce]:
    if expr in seen:
        return
    seen.add(expr)
    if isinstance(expr, Reduce):
        yield expr
        return
    for child in expr.children:
        yield from _outermost(child, seen)


def loop_order(indices: Sequence[Index], body: Sequence[Statement], free: Free) -> list[Index]:
    """Outermost first: loops that stride furthest through memory on the outside."""
    offsets = [access.offset for access in accesses(body)]

    def stride(index: Index) -> int:
        steps = (slope(offset, index, free) for offset in offsets)
        return max((abs(step) if step is not None else 1 << 40 for step in steps), default=0)

    return sorted(indices, key=stride, reverse=True)


def reduction_step_cost(bodies: Sequence[Expr], index: Index, width: int, free: Free) -> float:
    """Vector operations for each element of a reduction if ``index`` runs along the lanes."""
    lanes = math.ceil(index.extent / width) * width / index.extent
    total = 0.0
    for body in bodies:
        for node in walk(body):
            if isinstance(node, Load):
                step = slope(address(node.index, node.buffer.strides), index, free)
                total += lanes * (1 / width if step in (0, 1) else GATHER)
    return total
