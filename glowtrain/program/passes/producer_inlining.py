"""Producer inlining: where a buffer is only an expression of its subscripts, its readers compute the expression
themselves.

Moves (transpose, reshape, slice, broadcast, padding as filled loads) are always inlined, also into the operands of
contractions as long as addresses stay affine: that makes them views. They go first, so that what contractions read
through them is known when arithmetic is inlined, which is done only where nothing expensive is computed twice. Into
operands of contractions goes no arithmetic but making floats of a constant's bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glowtrain.loops import (
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    needs_check,
)
from glowtrain.program.analysis.kernel_facts import (
    Definition,
    definition,
    is_linear,
    is_move,
)
from glowtrain.program.passes.inlining_reader import InliningReader, LoadUse
from glowtrain.program.program import Instruction, Kernel, Program
from glowtrain.stages import Explain, Facts, Refused
from glowtrain.types import f32, f64, i8, u8

BYTES = (i8, u8)

READS_OF_A_WRITE = 2
"""What storing an element moves: memory comes into the cache before it is written."""


@dataclass(frozen=True)
class InlineProducers:
    """The pass. An expression of more than ``largest`` nodes is not inlined any further."""

    largest: int = Facts.max_inlined
    explain: Explain | None = None

    def run(self, program: Program) -> Program:
        """The same program in fewer kernels."""
        outputs = frozenset(program.outputs.values())
        return replace(program, instructions=inline(program.instructions, outputs, self)).trimmed()


PLAIN = InlineProducers()


def inline(
    instructions: Sequence[Instruction], live_out: frozenset[Buffer] = frozenset(), how: InlineProducers = PLAIN
) -> tuple[Instruction, ...]:
    """Inline producers into their readers; kernels that nobody needs any more are dropped.

    ``live_out``: buffers read from outside these instructions.
    """
    prepared: list[Instruction] = []
    for instruction in instructions:
        if instruction.children:
            outside = frozenset(b for other in instructions if other is not instruction for b in other.reads) | live_out
            prepared.append(instruction.with_children(inline(instruction.children, outside, how)))
        else:
            constants = any(buffer.kind == "constant" for buffer in instruction.reads)
            prepared.append(instruction.rewritten(fold_constants) if constants else instruction)
    return _without_dead(_Inlining(prepared, how).run(), live_out)


def fold_constants(expr: Expr) -> Expr | None:
    """A load from a constant buffer whose elements are all equal is that number."""
    constant = expr.buffer.constant_array if isinstance(expr, Load) and expr.fill is None else None
    if constant is not None and constant.size and (constant.size == 1 or bool(np.all(constant == constant.flat[0]))):
        return Const(constant.flat[0].item() if constant.dtype.kind in "biuf" else float(constant.flat[0]), expr.dtype)
    return None


class _Inlining:
    """The instructions so far, and who reads and writes each buffer (positions)."""

    def __init__(self, instructions: Sequence[Instruction], how: InlineProducers) -> None:
        self.instructions = [InliningReader(instruction) for instruction in instructions]
        self.how = how
        self.readers: dict[Buffer, set[int]] = {}
        self.writers: dict[Buffer, set[int]] = {}
        for position, instruction in enumerate(instructions):
            for buffer in instruction.reads:
                self.readers.setdefault(buffer, set()).add(position)
            for buffer in instruction.writes:
                self.writers.setdefault(buffer, set()).add(position)

    def run(self) -> list[Instruction]:
        """Moves first, then arithmetic, each from the first instruction to the last."""
        for moves in (True, False):
            for position in range(len(self.instructions)):
                self._inline(position, moves)
        return [reader.instruction for reader in self.instructions]

    def _inline(self, position: int, moves: bool) -> None:
        if moves and not self.instructions[position].may_move:
            return
        producer = self.instructions[position].instruction.kernel
        if producer is None or len(producer.writes) != 1:
            return
        (buffer,) = producer.writes
        if buffer.kind != "activation" or not self.readers.get(buffer) or producer.survey.reductions:
            return
        defined = definition(producer)
        if defined is None or is_move(defined.value) != moves:
            return
        if buffer in producer.reads or self.writers[buffer] != {position}:
            return
        if not moves and (refused := self._costs_more(producer, position, buffer, defined)):
            self._refuse(producer, refused)
            return
        readers, until = sorted(self.readers[buffer]), self._unchanged_until(producer, position)
        safe = [at for at in readers if position < at < until and buffer not in self.instructions[at].opaque]
        uses = {reader: self.instructions[reader].uses(buffer) for reader in safe}
        saves = functools.partial(self._saves_memory, producer, buffer, defined, safe)
        chosen = _chosen(buffer, defined, uses, len(safe) == len(readers), saves)
        if isinstance(chosen, Refused):
            self._refuse(producer, chosen)
            return
        for reader in chosen:
            self.instructions[reader].inline(buffer, defined, producer.reads)
            self.readers[buffer].discard(reader)
            for source in producer.reads:
                self.readers[source].add(reader)

    def _saves_memory(self, producer: Kernel, buffer: Buffer, defined: Definition, readers: Sequence[int]) -> bool:
        """Whether readers that compute the buffer's elements take little time for it and move no more of memory.

        Where all readers are elementwise, or the buffer can be computed behind a sum, fusion saves as much.
        """
        size, sources = buffer.type.size, sum(source.type.size for source in producer.reads)
        if sources * 4 > size * 5:  # more than one tensor of the buffer's size, which they would read instead
            if not any(map(self._reduces, readers)) or any(self._ends_a_sum(source, size) for source in producer.reads):
                return False
            further = [s.type.size for reader in readers for s in producer.reads if reader not in self.readers[s]]
            if sum(further) > sources + (READS_OF_A_WRITE + len(readers)) * size:
                return False
        return defined.is_cheap

    def _refuse(self, producer: Kernel, refused: Refused) -> None:
        if self.how.explain is not None:
            self.how.explain(producer.name, refused.why)

    def _costs_more(self, producer: Kernel, position: int, buffer: Buffer, defined: Definition) -> Refused | None:
        """Why arithmetic stays in a kernel of its own, whoever reads it."""
        if len(defined.nodes) > self.how.largest:  # worth a buffer: chains of any length stay within bounds that way
            return Refused("its expression is too long")
        if self._narrows_a_sum(producer, position, buffer):
            return Refused("it rounds sums, and belongs behind them")
        return None

    def _narrows_a_sum(self, producer: Kernel, position: int, buffer: Buffer) -> bool:
        """Whether the producer makes fewer bytes of the results of a reduction that nothing else reads: it belongs
        behind the sums, in their kernel, so that those are not stored."""
        return any(
            source.kind == "activation"
            and source.type.size == buffer.type.size
            and source.dtype.size > buffer.dtype.size
            and all(reader == position or not self._wanted(reader) for reader in self.readers[source])
            and all(self._reduces(writer) for writer in self.writers.get(source, ()))
            for source in producer.reads
        )

    def _ends_a_sum(self, source: Buffer, size: int) -> bool:
        """Whether ``size`` sums of one kernel have elementwise readers alone, which can be fused with it."""
        writers = self.writers.get(source, set())
        if source.kind != "activation" or source.type.size != size or len(writers) != 1:
            return False
        return all(map(self._reduces, writers)) and not any(map(self._reduces, self.readers[source]))

    def _wanted(self, position: int) -> bool:
        """Whether anybody reads what an instruction writes; after inlining its last reader may be gone."""
        return any(b.kind != "activation" or self.readers.get(b) for b in self.instructions[position].writes)

    def _reduces(self, position: int) -> bool:
        return bool(self.instructions[position].instruction.survey.reductions)

    def _unchanged_until(self, producer: Instruction, position: int) -> float:
        """The position behind the producer's where something that it read is overwritten. Readers between see what it
        wrote; in a repeat, one that runs before it sees what the trip before wrote."""
        writers = (writer for buffer in producer.reads for writer in self.writers.get(buffer, ()))
        return min((writer for writer in writers if writer > position), default=math.inf)


def _chosen(
    buffer: Buffer, defined: Definition, uses: dict[int, list[LoadUse]], all_readers: bool, saves: Callable[[], bool]
) -> list[int] | Refused:
    """The readers into which the definition goes."""
    if is_move(defined.value):
        return [i for i, at in uses.items() if all(_movable(use, defined) for use in at)]
    every = [use for at in uses.values() for use in at]
    if any(use.operand for use in every):
        weight = all_readers and all(use.operand and _reads_bytes(use.load, defined) for use in every)
        return list(uses) if weight else Refused("it is an operand of a contraction")
    trips = sum(use.trips for use in every)
    if any(needs_check(use.load) for use in every):  # a look-up: worth a check where it skips most of the table
        worth = all_readers and 2 * trips <= buffer.type.size
        return list(uses) if worth else Refused("it is read at subscripts that have to be checked")
    if (all_readers and trips <= buffer.type.size) or (trips <= 4 * buffer.type.size and saves()):
        return list(uses)
    return Refused("its readers would compute it more often than it does itself, or some need it as it is")


def _reads_bytes(load: Load, defined: Definition) -> bool:
    """Whether a float at a place is a byte of a constant there: contractions read those, of which more fit a cache."""
    new = defined.element(load)
    return (
        isinstance(new, Cast)
        and isinstance(new.value, Load)
        and new.value.buffer.kind == "constant"
        and new.value.dtype in BYTES
        and new.dtype in (f32, f64)
        and is_linear(new.value)
        and not needs_check(load)
    )


def _movable(use: LoadUse, defined: Definition) -> bool:
    if needs_check(use.load):
        return use.load.fill == 0 and defined.widens_elementwise
    if isinstance(defined.value, Const):
        return not use.operand
    new = defined.element(use.load)
    new = new.value if isinstance(new, Cast) else new
    if use.operand:
        return isinstance(new, Load) and is_linear(new)
    return is_linear(new) or not is_linear(use.load) if isinstance(new, Load) else True


def _without_dead(instructions: Sequence[Instruction], live_out: frozenset[Buffer]) -> tuple[Instruction, ...]:
    """Drop kernels whose results are activations that nobody reads.

    In a repeat an earlier instruction reads what a later one wrote in the trip before, so order does not count.
    """
    writers: dict[Buffer, list[Instruction]] = {}
    for instruction in instructions:
        for buffer in instruction.writes:
            writers.setdefault(buffer, []).append(instruction)
    waiting = [b for b in writers if b.kind != "activation" or b in live_out]
    needed, alive = set(waiting), set[Instruction]()
    while waiting:
        for instruction in writers.get(waiting.pop(), ()):
            if instruction not in alive:
                alive.add(instruction)
                waiting += [b for b in instruction.reads if b not in needed]
                needed.update(instruction.reads)
    return tuple(instruction for instruction in instructions if instruction in alive)
