"""Find the buffers of bf16 that hold no small numbers but 0: no product of two of their elements is denormal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from glowtrain.loops import Accumulate, Apply, Buffer, Cast, Const, Expr, Let, Load, Store, rewrite, statements
from glowtrain.loops.equal_nodes import EqualNodes
from glowtrain.memory.precision import LEAST_FACTOR
from glowtrain.program.program import Instruction, Program
from glowtrain.types import bf16


def flushed_buffers(program: Program) -> frozenset[Buffer]:
    """Activations in bf16 in which nothing is stored but what :mod:`glowtrain.lower.factors` rounds, or elements of
    others of them: they are 0, at least :data:`LEAST_FACTOR` in magnitude, or no numbers."""
    stored: dict[Buffer, list[Expr | None]] = {}
    for leaf in program.leaves:
        for buffer, value in _stores(leaf):
            stored.setdefault(buffer, []).append(value)
    found = frozenset(stored)
    while (left := frozenset(b for b in found if all(_is_flushed(value, found) for value in stored[b]))) != found:
        found = left
    return found


def _stores(leaf: Instruction) -> Iterator[tuple[Buffer, Expr | None]]:
    """What an instruction stores in activations of bf16; ``None`` where nothing is known of it."""
    written = [buffer for buffer in leaf.writes if buffer.dtype == bf16 and buffer.kind == "activation"]
    if leaf.kernel is None:
        yield from ((buffer, None) for buffer in written)
    elif written:
        body = list(statements(leaf.kernel.body))
        lets: Mapping[Expr, Expr] = {statement.ref: statement.value for statement in body if isinstance(statement, Let)}
        for statement in body:
            if isinstance(statement, Store) and statement.buffer in written:
                yield statement.buffer, rewrite(_resolved(statement.value, lets), EqualNodes(frozenset()).of)
            elif isinstance(statement, Accumulate):
                yield statement.buffer, None


def _resolved(value: Expr, lets: Mapping[Expr, Expr]) -> Expr:
    while value in lets:
        value = lets[value]
    return value


def _is_flushed(value: Expr | None, found: frozenset[Buffer]) -> bool:
    match value:
        case Load(buffer=buffer, fill=None | 0):
            return buffer in found
        case Cast(value=Apply(function="select", arguments=(Apply() as small, Const(value=0), factor))):
            return _is_small(small, factor)
    return False


def _is_small(condition: Apply, factor: Expr) -> bool:
    """Whether a condition holds for all magnitudes of a factor below :data:`LEAST_FACTOR`."""
    match condition:
        case Apply(function="lt", arguments=(Apply(function="abs", arguments=(value,)), Const(value=least))):
            return value is factor and least >= LEAST_FACTOR
    return False
