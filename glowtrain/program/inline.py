"""Forward inlining: where a buffer is only an expression of its subscripts, its readers compute the expression
themselves.

Moves (transpose, reshape, slice, broadcast, padding as filled loads) are always inlined, also into the operands of
contractions as long as addresses stay affine: that makes them views. They go first, so that what contractions read
through them is known when arithmetic is inlined, which is done only where nothing dear is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.loops import (
    Accumulate,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Load,
    Reduce,
    Statement,
    Store,
    children,
    expressions,
    needs_check,
    rewrite_body,
    walk,
)
from glowtrain.program.accesses import (
    Definition,
    contraction_operands,
    definition,
    has_reduce,
    is_cheap,
    is_linear,
    is_move,
)
from glowtrain.program.program import Instruction, Kernel, Repeat

LARGEST = 96
"""An expression of more nodes is not inlined any further."""


def inline(instructions: Sequence[Instruction], kept: frozenset[Buffer] = frozenset()) -> tuple[Instruction, ...]:
    """Inline producers into their readers; kernels that nobody needs any more are dropped.

    ``kept``: buffers read from outside these instructions.
    """
    known: list[Instruction] = []
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            outside = frozenset(b for other in instructions if other is not instruction for b in other.reads) | kept
            known.append(Repeat(instruction.name, instruction.index, inline(instruction.body, outside)))
        else:
            known.append(Kernel(instruction.name, rewrite_body(instruction.body, fold_constants)))
    return _without_dead(_Inlining(known).run(), kept)


def fold_constants(expr: Expr) -> Expr | None:
    """A load from a constant buffer whose elements are all equal is that number."""
    if (
        isinstance(expr, Load)
        and expr.buffer.kind == "constant"
        and expr.fill is None
        and expr.buffer.initial is not None
    ):
        initial = expr.buffer.initial
        if initial.size and (initial.size == 1 or bool(np.all(initial == initial.flat[0]))):
            return Const(
                initial.flat[0].item() if initial.dtype.kind in "biuf" else float(initial.flat[0]), expr.buffer.dtype
            )
    return None


@dataclass
class _Use:
    """One load of a buffer: how often it runs, and whether a contraction reads it directly."""

    load: Load
    trips: int
    operand: bool


class _Inlining:
    """The instructions so far, and who reads and writes each buffer (positions)."""

    def __init__(self, known: list[Instruction]) -> None:
        self.known = known
        self.readers: dict[Buffer, set[int]] = {}
        self.writers: dict[Buffer, set[int]] = {}
        for position, instruction in enumerate(known):
            for buffer in instruction.reads:
                self.readers.setdefault(buffer, set()).add(position)
            for buffer in instruction.writes:
                self.writers.setdefault(buffer, set()).add(position)

    def run(self) -> list[Instruction]:
        """Moves first, then arithmetic, each from the first instruction to the last."""
        for moves in (True, False):
            for position in range(len(self.known)):
                self._inline(position, moves)
        return self.known

    def _inline(self, position: int, moves: bool) -> None:
        producer = self.known[position]
        found = definition(producer) if isinstance(producer, Kernel) else None
        if found is None or is_move(found.value) != moves or has_reduce(found.value):
            return
        (buffer,) = producer.writes
        if buffer.kind != "activation" or buffer in producer.reads or self.writers[buffer] != {position}:
            return
        readers = sorted(self.readers.get(buffer, ()))
        safe = [reader for reader in readers if self._unchanged(producer, position, reader)]
        uses = {reader: list(_uses(self.known[reader], buffer)) for reader in safe}
        for reader in _chosen(buffer, found, uses, all_readers=len(safe) == len(readers)):
            self.known[reader] = _inlined(self.known[reader], buffer, found)
            self.readers[buffer].discard(reader)
            for source in producer.reads:
                self.readers[source].add(reader)

    def _unchanged(self, producer: Instruction, position: int, reader: int) -> bool:
        """Whether what the producer read is still there when (and while) the reader runs."""
        return not any(
            position < writer <= reader for buffer in producer.reads for writer in self.writers.get(buffer, ())
        )


def _chosen(buffer: Buffer, found: Definition, uses: dict[int, list[_Use]], all_readers: bool) -> list[int]:
    """The readers into which the definition goes."""
    if is_move(found.value):
        return [i for i, at in uses.items() if all(_movable(use, buffer, found) for use in at)]
    every = [use for at in uses.values() for use in at]
    if any(use.operand or needs_check(use.load) for use in every) or _is_large(found.value):
        return []
    trips = sum(use.trips for use in every)
    # A thin expression reads at most one tensor of the buffer's size: its readers read that one instead.
    source = sum(b.type.size for b in {node.buffer for node in _loads(found.value)})
    thin = is_cheap(found.value) and source * 4 <= buffer.type.size * 5
    if (all_readers and trips <= buffer.type.size) or (thin and trips <= 4 * buffer.type.size):
        return list(uses)
    return []


def _is_large(expr: Expr) -> bool:
    """Whether an expression is long enough to be worth a buffer: chains of any length stay within bounds that way."""
    return sum(1 for _ in walk(expr)) > LARGEST


def _movable(use: _Use, buffer: Buffer, found: Definition) -> bool:
    if needs_check(use.load):
        return False
    if isinstance(found.value, Const):
        return not use.operand
    new = found.at(use.load.index)
    if use.operand:
        return isinstance(new, Load) and is_linear(new)
    return is_linear(new) or not is_linear(use.load) if isinstance(new, Load) else True


def _inlined(instruction: Instruction, buffer: Buffer, found: Definition) -> Instruction:
    if isinstance(instruction, Repeat):
        return Repeat(instruction.name, instruction.index, tuple(_inlined(i, buffer, found) for i in instruction.body))

    def change(expr: Expr) -> Expr | None:
        return found.at(expr.index) if isinstance(expr, Load) and expr.buffer is buffer else None

    return Kernel(instruction.name, rewrite_body(instruction.body, change))


def _loads(expr: Expr) -> list[Load]:
    return [node for node in walk(expr) if isinstance(node, Load)]


def _uses(instruction: Instruction, buffer: Buffer, trips: int = 1) -> list[_Use]:
    if isinstance(instruction, Repeat):
        times = trips * instruction.index.extent
        return [use for inner in instruction.body for use in _uses(inner, buffer, times)]
    found: list[_Use] = []
    _statement_uses(instruction.body, buffer, trips, found)
    return found


def _statement_uses(body: Sequence[Statement], buffer: Buffer, trips: int, found: list[_Use]) -> None:
    for statement in body:
        if isinstance(statement, For):
            inner = trips * math.prod(index.extent for index in statement.indices)
            _statement_uses(statement.body, buffer, inner, found)
        else:
            context = _Context(buffer, found)
            for expr in expressions(statement):
                context.visit(expr, trips, operand=False, root=isinstance(statement, (Store, Accumulate)))


@dataclass
class _Context:
    buffer: Buffer
    found: list[_Use]
    seen: set[Expr] = field(default_factory=set)

    def visit(self, expr: Expr, trips: int, operand: bool, root: bool = False) -> None:
        if expr in self.seen:
            return
        self.seen.add(expr)
        if isinstance(expr, Load) and expr.buffer is self.buffer:
            self.found.append(_Use(expr, trips, operand))
        if isinstance(expr, Reduce):
            trips *= math.prod(index.extent for index in expr.indices)
            operand = contraction_operands(expr) is not None
            product = expr.body
            for child in children(product) if operand else (product,):
                self.visit(child, trips, operand)
            return
        for child in children(expr):
            self.visit(child, trips, operand and isinstance(expr, Cast))


def _without_dead(instructions: Sequence[Instruction], kept: frozenset[Buffer]) -> tuple[Instruction, ...]:
    """Drop kernels whose results are activations that nobody reads."""
    alive: list[Instruction] = []
    needed = set(kept)
    for instruction in reversed(instructions):
        if any(b.kind != "activation" or b in needed for b in instruction.writes):
            alive.append(instruction)
            needed.update(instruction.reads)
    return tuple(reversed(alive))
