"""Walks over the loop language: rewriting expressions, and listing what statements evaluate, read and write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from glowtrain.loops.language import (
    Accumulate,
    Apply,
    Buffer,
    Cast,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Statement,
    Store,
    cast,
)
from glowtrain.loops.views import viewed


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Rebuild bottom up. ``change`` sees each node with its children already rebuilt and may return a replacement.

    ``memo`` maps expressions to their rebuilt form; pass one dictionary to keep sharing over several calls.
    """
    memo = {} if memo is None else memo
    known = memo.get(expr)
    if known is not None:
        return known
    if not expr.children:
        replacement = change(expr)
        memo[expr] = rebuilt = expr if replacement is None else replacement
        return rebuilt
    stack = [expr]
    while stack:
        node = stack[-1]
        if node in memo:
            stack.pop()
            continue
        old = node.children
        missing = []
        for child in old:
            if child not in memo:
                if child.children:
                    missing.append(child)
                else:  # most nodes are leaves
                    replacement = change(child)
                    memo[child] = child if replacement is None else replacement
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        rebuilt = node
        if old:
            new = tuple([memo[child] for child in old])
            rebuilt = node if new == old else _with_children(node, new)
        replacement = change(rebuilt)
        memo[node] = rebuilt if replacement is None else replacement
    return memo[expr]


def _with_children(expr: Expr, new: tuple[Expr, ...]) -> Expr:
    match expr:
        case Load(buffer=buffer, fill=fill):
            return Load(buffer, new, fill)
        case Apply(function=function, dtype=dtype):
            return Apply(function, new, dtype)
        case Cast(dtype=dtype):
            return cast(new[0], dtype)
        case Reduce(op=op, indices=indices, partials=partials):
            return Reduce(op, indices, new[0], partials)
    return expr


def substitute(expr: Expr, mapping: dict[Any, Expr]) -> Expr:
    """Replace indices and refs."""
    return rewrite(expr, mapping.get, dict(mapping))


def rewrite_body(
    body: Sequence[Statement], change: Callable[[Expr], Expr | None], *, indices: bool = True
) -> tuple[Statement, ...]:
    """The same statements with every expression rewritten (see :func:`rewrite`); sharing is kept. Without ``indices``
    those of loops stay, most of what there is, and ``change`` does not see them."""
    return (_Rewriting if indices else _WithinLoops)(change).body(tuple(body))


def with_buffers(body: Sequence[Statement], new: Mapping[Buffer, Buffer]) -> tuple[Statement, ...]:
    """The same statements on other buffers: those that ``new`` gives for theirs. One of another shape and as many
    elements holds the same ones in row-major order, and all subscripts are :func:`~glowtrain.loops.views.viewed` in it;
    for one of another size they are subscripts of it already."""

    return _OnOthers(new).body(tuple(body))


class _Rewriting:
    """Statements with every expression rewritten."""

    def __init__(self, change: Callable[[Expr], Expr | None]) -> None:
        self.change = change
        self.memo: dict[Expr, Expr] = {}

    def body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        new = tuple([self.statement(statement) for statement in body])
        return body if new == body else new

    def statement(self, statement: Statement) -> Statement:
        """The same object where nothing in it changes."""
        match statement:
            case For(indices, body, serial):
                inner = self.body(body)
                return statement if inner is body else For(indices, inner, serial)
            case Let(ref, value):
                new = self.expr(value)
                return statement if new is value else Let(ref, new)
            case Store(buffer, index, value):
                (target, places), new = self.target(buffer, self.subscripts(index)), self.expr(value)
                same = target is buffer and places is index and new is value
                return statement if same else Store(target, places, new)
            case Accumulate(op, buffer, index, value):
                (target, places), new = self.target(buffer, self.subscripts(index)), self.expr(value)
                same = target is buffer and places is index and new is value
                return statement if same else Accumulate(op, target, places, new)

    def subscripts(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        new = tuple([rewrite(subscript, self.change, self.memo) for subscript in index])
        return index if new == index else new

    def expr(self, expr: Expr) -> Expr:
        return rewrite(expr, self.change, self.memo)

    def target(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """Where an element is written, and the subscripts there."""
        return buffer, index


class _WithinLoops(_Rewriting):
    """Statements with everything rewritten but the indices of their loops."""

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, For):
            self.memo.update(zip(statement.indices, statement.indices, strict=True))
        return super().statement(statement)


class _OnOthers(_Rewriting):
    """Statements on other buffers. Nothing but loads changes, so what has none of these stays as it is, and nothing
    below a load is looked at whose subscripts are indices and numbers, as most are."""

    def __init__(self, buffers: Mapping[Buffer, Buffer]) -> None:
        super().__init__(self._load)
        self.buffers = buffers

    def statement(self, statement: Statement) -> Statement:
        if not isinstance(statement, For):
            loads = [load for load in statement.loads if load.buffer in self.buffers]
            if not loads and (isinstance(statement, Let) or statement.buffer not in self.buffers):
                return statement
            for load in loads:
                if load not in self.memo and _are_leaves(load.index):
                    self.memo[load] = self._load(load) or load
        return super().statement(statement)

    def subscripts(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return index if _are_leaves(index) else super().subscripts(index)

    def target(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        return _elsewhere(buffer, index, self.buffers) if buffer in self.buffers else (buffer, index)

    def _load(self, expr: Expr) -> Expr | None:
        if not isinstance(expr, Load) or expr.buffer not in self.buffers:
            return None
        return Load(*_elsewhere(expr.buffer, expr.index, self.buffers), expr.fill)


def _are_leaves(index: tuple[Expr, ...]) -> bool:
    """Whether subscripts are indices, names and numbers."""
    return not any(map(_CHILDREN, index))


_CHILDREN = attrgetter("children")


def _elsewhere(
    buffer: Buffer, index: tuple[Expr, ...], new: Mapping[Buffer, Buffer]
) -> tuple[Buffer, tuple[Expr, ...]]:
    """The buffer in the place of one, and the subscripts there."""
    other = new[buffer]
    as_it_is = other.shape == buffer.shape or other.type.size != buffer.type.size
    found = index if as_it_is else viewed(index, buffer.shape, other.shape)
    assert found is not None, f"{other.name} is no view of {buffer.name}"
    return other, found


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """All statements, nested ones after the loop they stand in."""
    for statement in body:
        yield statement
        if isinstance(statement, For):
            yield from statements(statement.body)


def evaluations(body: Sequence[Statement]) -> list[Let | Store | Accumulate]:
    """The statements that evaluate expressions, nested ones too, in order."""
    found: list[Let | Store | Accumulate] = []
    for statement in body:
        if isinstance(statement, For):
            found += evaluations(statement.body)
        else:
            found.append(statement)
    return found


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates (subscripts included; a For has none)."""
    return () if isinstance(statement, For) else statement.operands


def loads(body: Sequence[Statement]) -> Iterator[Load]:
    """Every load in a body."""
    for statement in evaluations(body):
        yield from statement.loads


Written = tuple[Store, tuple[Index, ...]]
"""A store, and the indices of the loops around it."""


def stores_of(body: Sequence[Statement], around: tuple[Index, ...] = ()) -> Iterator[Written]:
    """Every store with the indices of the loops around it."""
    for statement in body:
        if isinstance(statement, For):
            yield from stores_of(statement.body, (*around, *statement.indices))
        elif isinstance(statement, Store):
            yield statement, around


def reads(body: Sequence[Statement]) -> list[Buffer]:
    """Buffers that a body reads, each once, in order."""
    accumulated = (s.buffer for s in statements(body) if isinstance(s, Accumulate))
    return list(dict.fromkeys(itertools.chain((load.buffer for load in loads(body)), accumulated)))


def writes(body: Sequence[Statement]) -> list[Buffer]:
    """Buffers that a body writes, each once, in order."""
    return list(dict.fromkeys(s.buffer for s in statements(body) if isinstance(s, (Store, Accumulate))))
