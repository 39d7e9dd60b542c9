"""Inline definitions into an instruction that reads them, and count how often each of its loads runs."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from glowtrain.loops import (
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Load,
    Reduce,
    Statement,
    Store,
    affine,
    expressions,
    needs_check,
    rewrite,
    select,
    substitute,
    walk,
    within,
)
from glowtrain.loops.equal_nodes import EqualNodes
from glowtrain.program.analysis.kernel_facts import Definition, contraction_operands, is_move
from glowtrain.program.program import Instruction


@dataclass
class LoadUse:
    """One load of a buffer: how often it runs, and whether a contraction reads it directly."""

    load: Load
    trips: int
    operand: bool


class InliningReader:
    """An instruction into which definitions go. They wait, so that many of them cost one rewriting."""

    def __init__(self, instruction: Instruction) -> None:
        self._instruction = instruction
        self._waiting: dict[Buffer, Definition] = {}
        self._hidden: set[Buffer] = set()
        self._uses: dict[Buffer, list[LoadUse]] | None = None

    @property
    def instruction(self) -> Instruction:
        """The instruction with everything inlined."""
        if self._waiting:
            self._instruction = _inlined(self._instruction, self._waiting)
            self._waiting, self._hidden, self._uses = {}, set(), None
        return self._instruction

    @property
    def may_move(self) -> bool:
        """Whether it may be a move: what waits makes none of an expression."""
        match self._instruction.nests:
            case (For(body=(Store(value=value),)),):
                return is_move(value)
        return False

    @property
    def writes(self) -> list[Buffer]:
        """The buffers that it writes, which inlining does not change."""
        return self._instruction.writes

    @property
    def opaque(self) -> frozenset[Buffer]:
        """The buffers that it reads otherwise than by loads, which inlining does not change either."""
        return self._instruction.opaque

    def inline(self, buffer: Buffer, defined: Definition, sources: Sequence[Buffer]) -> None:
        """Let ``defined`` stand for the loads of ``buffer``; it reads ``sources``."""
        self._waiting[buffer] = defined
        self._hidden.update(sources)

    def uses(self, buffer: Buffer) -> list[LoadUse]:
        """The loads of a buffer. What waits is inlined first if it has some, or stands in their subscripts."""
        if self._waiting and (
            buffer in self._hidden or any(self._changes(use.load) for use in self._all_uses().get(buffer, ()))
        ):
            self._instruction = self.instruction
        return self._all_uses().get(buffer, [])

    def _all_uses(self) -> dict[Buffer, list[LoadUse]]:
        if self._uses is None:
            self._uses = {}
            for use in _uses(self._instruction):
                self._uses.setdefault(use.load.buffer, []).append(use)
        return self._uses

    def _changes(self, load: Load) -> bool:
        inner = (node for subscript in load.index for node in walk(subscript))
        return any(isinstance(node, Load) and node.buffer in self._waiting for node in inner)


# ---- definitions in place of loads


def _inlined(instruction: Instruction, definitions: Mapping[Buffer, Definition]) -> Instruction:
    """The instruction with definitions in place of loads. Arithmetic that becomes equal through that is shared."""
    computed = any(not is_move(defined.value) for defined in definitions.values())
    shared = EqualNodes(frozenset(instruction.writes)) if computed else None

    def change(expr: Expr) -> Expr | None:
        defined = definitions.get(expr.buffer) if isinstance(expr, Load) else None
        if defined is None or not isinstance(expr, Load):
            return None if shared is None else shared.of(expr)
        return _at(defined, expr, shared)

    return instruction.rewritten(change)


def _at(defined: Definition, load: Load, shared: EqualNodes | None) -> Expr:
    """What a load gives: the definition there, or outside of the buffer the fill."""
    if needs_check(load) and not (load.fill == 0 and defined.widens_elementwise):
        checked = _checked(defined, load)
        return checked if shared is None else rewrite(checked, shared.of, shared.memo)
    if shared is None:
        return defined.element(load)
    places = dict(defined.indices_at(load.index))
    known = {index: rewrite(place, shared.of, shared.memo) for index, place in places.items()}
    return rewrite(defined.value, shared.of, known)


def _checked(defined: Definition, load: Load) -> Expr:
    """The definition at a place that may be outside of the buffer."""
    assert load.fill is not None
    pairs = zip(load.index, load.buffer.shape, strict=True)
    open_ = [(index, extent) for index, extent in pairs if not within(affine(index), extent)]
    inside = functools.reduce(operator.and_, (side for index, extent in open_ for side in (index >= 0, index < extent)))
    filled = rewrite(
        defined.value, lambda e: Load(e.buffer, e.index, 0) if isinstance(e, Load) and e.fill is None else None
    )
    return select(inside, substitute(filled, dict(defined.indices_at(load.index))), Const(load.fill, load.dtype))


# ---- the loads of an instruction


def _uses(instruction: Instruction, trips: int = 1) -> list[LoadUse]:
    """Every load of an instruction."""
    found: list[LoadUse] = []
    _statement_uses(instruction.nests, trips, found)
    for inner in instruction.children:
        found += _uses(inner, trips * instruction.trips)
    return found


def _statement_uses(body: Sequence[Statement], trips: int, found: list[LoadUse]) -> None:
    for statement in body:
        if isinstance(statement, For):
            _statement_uses(statement.body, trips * math.prod(index.extent for index in statement.indices), found)
        elif not statement.reductions:
            found += [LoadUse(load, trips, operand=False) for load in dict.fromkeys(statement.loads)]
        else:
            seen: set[Expr] = set()
            for expr in expressions(statement):
                found += _expression_uses(expr, trips, seen)


def _expression_uses(expr: Expr, trips: int, seen: set[Expr]) -> Iterator[LoadUse]:
    """The loads in an expression; in a reduction they run more often, and a contraction reads its operands."""
    stack = [(expr, trips, False)]
    while stack:
        node, times, operand = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            yield LoadUse(node, times, operand)
        if isinstance(node, Reduce):
            times *= math.prod(index.extent for index in node.indices)
            operand = contraction_operands(node) is not None
            below = node.body.children if operand else node.children
        else:
            operand = operand and isinstance(node, Cast)
            below = node.children
        stack += [(child, times, operand) for child in reversed(below)]
