"""Reuse buffers in place: an elementwise kernel writes its result into an operand that nobody reads afterwards.

The planner gives disjoint places to buffers that one instruction touches, so a gradient that passes through an
activation function would be there twice for a moment, which is often the moment of the peak. So would rows of which a
softmax makes others.

What is made of sums of products takes the place of what its kernel reads beside their factors, too, but only where that
lowers the peak: sums that are not written anywhere on the way cannot be taken in parts. So do sums that update a
parameter.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from glowtrain.loops import Accumulate, Buffer, Expr, For, Let, Load, Store, evaluations, statements
from glowtrain.loops.views import viewed
from glowtrain.memo import memoized
from glowtrain.program.analysis.kernel_facts import box, contractions, covers
from glowtrain.program.passes.bodies import with_bodies
from glowtrain.program.passes.partial_sums import homes_of_sums, without_results
from glowtrain.program.passes.rows_in_place import same_element, takes_rows
from glowtrain.program.passes.schedule import lifetimes, live_bytes, peak_bytes
from glowtrain.program.program import Instruction, Kernel, Program


@dataclass(frozen=True)
class ReuseOperands:
    """The pass: results in place of operands."""

    def run(self, program: Program) -> Program:
        """The same program with fewer buffers."""
        return reused(program)


@memoized
def reused(program: Program) -> Program:
    """The program with results in place of operands, also in bodies of loops over parts of a batch."""
    return _reused(with_bodies(program, _reused))


def _reused(program: Program) -> Program:
    return replace(program, instructions=tuple(reuse_at_peaks(program.instructions)))


def reuse_at_peaks(instructions: Sequence[Instruction]) -> list[Instruction]:
    """:func:`reuse`, with sums of products only where more would be alive without than the smallest peak."""
    least, plain = _in_place(instructions), _in_place(instructions, frozenset())
    peak = peak_bytes(least)
    crowded = frozenset(at for at, alive in enumerate(live_bytes(plain)) if alive > peak)
    if not crowded:
        return _moved(plain)
    some = _in_place(instructions, crowded)
    return _moved(some if peak_bytes(some) <= peak else least)


def live_in_place(instructions: Sequence[Instruction]) -> Sequence[int]:
    """Bytes of activations alive during each instruction after :func:`reuse`."""
    return _live_in_place(*instructions) if instructions else ()


@memoized
def _live_in_place(*instructions: Instruction) -> tuple[int, ...]:
    """The same; kept with the first instruction, as passes ask again while they look for something better."""
    return tuple(live_bytes(_in_place(instructions)))


def reuse(
    instructions: Sequence[Instruction], sums: Container[int] | None = None, among: Container[Buffer] | None = None
) -> list[Instruction]:
    """The instructions, some of whose results lie where operands of theirs lay; of those with sums of products, some
    at the positions ``sums`` (everywhere if none are given); of all activations, or of those ``among`` them that
    nothing else touches."""
    return _moved(_in_place(instructions, sums, among))


@dataclass(frozen=True)
class _Moved:
    """An instruction that works on other buffers: those that ``targets`` gives for its own.

    It is rewritten for these only where somebody needs it; most callers want the bytes that are live. One of whose
    targets has another shape is rewritten at once, so that all see its elements by the subscripts there.
    """

    original: Instruction
    targets: Mapping[Buffer, Buffer]

    @staticmethod
    def of(instruction: Instruction, targets: Mapping[Buffer, Buffer]) -> _Moved:
        """An instruction where buffers have targets, as far as they do."""
        own = {buffer: targets[buffer] for buffer in instruction.operands if buffer in targets}
        if all(buffer.shape == target.shape for buffer, target in own.items()):
            return _Moved(instruction, own)
        return _Moved(instruction.with_buffers(own), {})

    def with_buffers(self, new: Mapping[Buffer, Buffer]) -> _Moved:
        """The same on other buffers than these."""
        return self if new.keys().isdisjoint(self.activations) else _Moved(self.instruction.with_buffers(new), {})

    def without_homes(self, unread: set[Buffer]) -> _Moved:
        """A contraction without those results that it has for partial sums alone."""
        homes = unread.intersection(homes_of_sums(self.original)) if unread else set[Buffer]()
        kernel = self.original.kernel
        return _Moved(without_results(kernel, homes), self.targets) if homes and kernel is not None else self

    @property
    def instruction(self) -> Instruction:
        return self.original.with_buffers(self.targets)

    @property
    def activations(self) -> list[Buffer]:
        return [self.targets.get(buffer, buffer) for buffer in self.original.activations]


def _moved(instructions: Sequence[_Moved]) -> list[Instruction]:
    return [each.instruction for each in instructions]


def _in_place(
    instructions: Sequence[Instruction], sums: Container[int] | None = None, among: Container[Buffer] | None = None
) -> list[_Moved]:
    """What :func:`reuse` makes of the instructions, not written yet."""
    lives = {buffer: life for buffer, life in lifetimes(instructions).items() if among is None or buffer in among}
    first = {buffer: begin for buffer, (begin, _) in lives.items()}
    last = {buffer: end for buffer, (_, end) in lives.items()}
    targets: dict[Buffer, Buffer] = {}
    moved: list[_Moved] = []
    for position, instruction in enumerate(instructions):
        own = _Moved.of(instruction, targets)
        if sums is None or position in sums:
            own = own.without_homes({b for b in own.original.writes if lives.get(b) == (position, position)})
        for result, operand in _pairs(own, position, first, last, sums is None or position in sums):
            if result.shape == operand.shape or _has_views(result, operand, instructions[position:]):
                targets[result] = operand
                last[operand] = last[result]
            elif _has_views(
                operand, result, (each.instruction for each in (*moved, own) if operand in each.activations)
            ):
                flat = replace(operand, type=result.type, layout=result.layout)
                moved = [before.with_buffers({operand: flat}) for before in moved]
                own = own.with_buffers({operand: flat})
                targets = {result: flat, **{b: flat if other is operand else other for b, other in targets.items()}}
                last[flat] = last[result]
        moved.append(_Moved(own.original, {b: targets[b] for b in own.original.operands if b in targets}))
    return moved


def _pairs(
    own: _Moved, position: int, first: Mapping[Buffer, int], last: Mapping[Buffer, int], sums: bool
) -> Iterator[tuple[Buffer, Buffer]]:
    """Results that the instruction at a position is the first to write, each with a place that ends there."""
    if not any(first.get(buffer) == position and buffer not in own.targets for buffer in own.original.writes):
        return
    ending = {b for b in own.original.activations if last.get(own.targets.get(b, b)) == position}
    for result, operand in pairs(own.original, ending, sums):
        if first.get(result) == position:
            yield result, own.targets.get(operand, operand)


def pairs(instruction: Instruction, ending: set[Buffer], sums: bool = True) -> Iterator[tuple[Buffer, Buffer]]:
    """Results of an elementwise kernel, each with an operand among ``ending`` whose place it can take; with ``sums``
    also those of the epilogue of a contraction, where factors keep their places."""
    kernel = instruction.kernel
    loop = box(kernel) if kernel is not None and ending else None
    if kernel is None or loop is None:
        return
    free = [buffer for buffer in kernel.reads if buffer in ending and buffer not in kernel.written]
    factors = _factors(kernel) if free else frozenset[Buffer]()
    if factors and not sums:
        return
    free = [buffer for buffer in free if buffer not in factors]
    for result in kernel.writes:
        taken = next((buffer for buffer in free if _takes(loop, result, buffer)), None)
        if taken is not None:
            free.remove(taken)
            yield result, taken


@memoized
def _factors(kernel: Kernel) -> frozenset[Buffer]:
    """What contractions of a kernel multiply."""
    return frozenset(load.buffer for _, *both in contractions(kernel.body) for load in both)


@memoized
def _takes(loop: For, result: Buffer, operand: Buffer) -> bool:
    """Whether each element of a result may overwrite the operand's: it is the only one read there, and before."""
    if result.kind != "activation" or not _has_room(operand, result):
        return False
    if any(isinstance(inner, For) for inner in loop.body):
        return takes_rows(loop, result, operand)
    if not all(isinstance(inner, (Let, Store)) for inner in loop.body) or any(_loads(loop, result)):
        return False
    stores = [inner for inner in loop.body if isinstance(inner, Store) and inner.buffer is result]
    if len(stores) != 1 or not covers(stores[0], loop.indices):
        return False
    return all(same_element(load, stores[0]) for load in _loads(loop, operand)) and not any(
        load.buffer is operand for load in _after(loop, stores[0])
    )


def _loads(loop: For, buffer: Buffer) -> Iterator[Load]:
    return (load for inner in evaluations(loop.body) for load in inner.loads if load.buffer is buffer)


def _after(loop: For, store: Store) -> Iterator[Load]:
    """The loads that follow a store."""
    behind = loop.body[loop.body.index(store) + 1 :]
    return (load for inner in evaluations(behind) for load in inner.loads)


def _has_room(operand: Buffer, result: Buffer) -> bool:
    """Whether elements of a result lie in memory as those of an operand do, perhaps in another shape."""
    if operand.shape == result.shape:
        return (operand.dtype, operand.layout) == (result.dtype, result.layout)
    plain = all(buffer.layout == tuple(range(buffer.type.rank)) for buffer in (operand, result))
    return plain and operand.dtype == result.dtype and 0 < operand.type.size == result.type.size


def _has_views(buffer: Buffer, other: Buffer, instructions: Iterable[Instruction]) -> bool:
    """Whether whoever touches a buffer can do so in the shape of another one."""
    for instruction in instructions:
        if buffer in instruction.touched:
            if instruction.kernel is None:
                return False
            if any(
                viewed(index, buffer.shape, other.shape) is None for index in _subscripts(instruction.kernel, buffer)
            ):
                return False
    return True


def _subscripts(kernel: Kernel, buffer: Buffer) -> Iterator[tuple[Expr, ...]]:
    """The subscripts of everything that touches a buffer."""
    yield from (load.index for load in kernel.survey.loads if load.buffer is buffer)
    for each in statements(kernel.body):
        if isinstance(each, (Store, Accumulate)) and each.buffer is buffer:
            yield each.index
