"""Slice statements to what some of their results need: the stores of these, and the names that they use."""

from __future__ import annotations

from collections.abc import Collection

from glowtrain.loops import Accumulate, Buffer, Expr, For, Let, Statement, Store, evaluations


def leading_to(wanted: Collection[Buffer], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements that write the buffers ``wanted``, and the names that they need; the same tuple if all are."""
    kept: list[Statement] = []
    used: set[Expr] = set()
    for statement in reversed(body):
        part = _part(statement, wanted, used)
        if part is not None:
            kept.append(part)
            for each in evaluations(part.body) if isinstance(part, For) else (part,):
                used.update(each.nodes)
    needed = tuple(reversed(kept))
    return body if needed == body else needed


def _part(statement: Statement, wanted: Collection[Buffer], used: set[Expr]) -> Statement | None:
    """A statement, as far as it is needed: a name if it is among those ``used`` behind it."""
    match statement:
        case For(indices=indices, body=inner, serial=serial):
            body = leading_to(wanted, inner)
            if body is inner:
                return statement
            return For(indices, body, serial) if body else None
        case Let(ref=ref):
            return statement if ref in used else None
        case Store(buffer=buffer) | Accumulate(buffer=buffer):
            return statement if buffer in wanted else None
