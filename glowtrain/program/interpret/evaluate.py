"""The evaluator: a program run in NumPy, so that lowering, fusion and the memory plan can be checked without LLVM.

Parallel loops are evaluated for all their points at once (statement after statement, which independent points allow),
serial loops point by point. Large boxes are cut along the loop that saves most. A reduction has the order that it
states (``Reduce.partials``), else NumPy's. With a plan, all activations share the planned arena.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod

import numpy as np

from glowtrain.errors import ProgramError
from glowtrain.loops import (
    Accumulate,
    Apply,
    Buffer,
    Expr,
    For,
    Index,
    Let,
    Reduce,
    Ref,
    Statement,
    Store,
    expressions,
    walk,
)
from glowtrain.program.interpret import functions
from glowtrain.program.interpret.storage import Memory
from glowtrain.program.interpret.vectorize import Evaluation, VectorFacts, VectorScope, strided
from glowtrain.program.program import Call, Instruction, Kernel, Plan, Program, Repeat
from glowtrain.types import Array

MAX_POINTS = 1 << 21
"""Boxes with more points than this are cut."""

Arrays = dict[str, Array]
Watch = Callable[[Instruction, Memory], None]


def evaluate(
    program: Program,
    inputs: Mapping[str, Array],
    state: Mapping[str, Array] | None = None,
    plan: Plan | None = None,
    watch: Watch | None = None,
) -> tuple[Arrays, Arrays]:
    """Outputs by name, and the variables by name after the call.

    ``state`` gives variables by name (their initial values where it has none). ``watch`` is called after each
    instruction of the outermost level, while its results are still in memory. Floating-point warnings are off. Raises
    :class:`InputError` for an input of another type, :class:`ProgramError` for an access outside of a buffer.
    """
    memory = Memory(program, inputs, state or {}, plan)
    run = _Run(memory)
    with np.errstate(all="ignore"):
        for instruction, finished in _last_uses(program):
            for buffer in instruction.operands:
                memory[buffer]
            run.instruction(instruction, VectorScope())
            if watch is not None:
                watch(instruction, memory)
            for buffer in finished:
                memory.poison(buffer)
    outputs = {name: memory.read(buffer) for name, buffer in program.outputs.items()}
    return outputs, {name: memory.read(buffer) for name, buffer in program.variables.items()}


def _last_uses(program: Program) -> Iterator[tuple[Instruction, list[Buffer]]]:
    """Each instruction of the outermost level, with the activations that it is the last to touch."""
    last = {buffer: i for i in program.instructions for buffer in i.operands if buffer.kind == "activation"}
    for instruction in program.instructions:
        yield instruction, [buffer for buffer in instruction.operands if last.get(buffer) is instruction]


@dataclass
class _Run:
    memory: Memory
    facts: VectorFacts = field(default_factory=VectorFacts)
    refs: dict[Ref, Array] = field(default_factory=dict)

    @singledispatchmethod
    def instruction(self, instruction: Instruction, scope: VectorScope) -> None:
        """Run an instruction; each kind has a method."""
        raise ProgramError(f"{instruction.kind} {instruction.name} cannot be evaluated")

    @instruction.register
    def _kernel(self, kernel: Kernel, scope: VectorScope) -> None:
        self.body(kernel.body, scope)

    @instruction.register
    def _repeat(self, repeat: Repeat, scope: VectorScope) -> None:
        for step in range(repeat.index.extent):
            for instruction in repeat.body:
                self.instruction(instruction, scope.at((repeat.index,), (step,)))

    @instruction.register
    def _call(self, call: Call, scope: VectorScope) -> None:
        results = [np.zeros(buffer.shape, buffer.dtype.numpy) for buffer in call.outputs]
        call.function([self.memory.read(buffer) for buffer in call.inputs], results)
        for buffer, array in zip(call.outputs, results, strict=True):
            self.memory[buffer][...] = array

    def body(self, body: Sequence[Statement], scope: VectorScope) -> None:
        for statement in body:
            match statement:
                case For(indices=indices):
                    self.loop(statement, scope, [(0, index.extent) for index in indices])
                case Let(ref=ref, value=value):
                    self.refs[ref] = np.array(
                        self._evaluation(scope).value(value)
                    )  # a copy: a later store must not show
                case Store():
                    self.store(statement, scope)
                case Accumulate():
                    self.accumulate(statement, scope)

    def loop(self, loop: For, scope: VectorScope, ranges: list[tuple[int, int]]) -> None:
        if any(low >= high for low, high in ranges):
            return
        if loop.serial:
            for point in itertools.product(*(range(low, high) for low, high in ranges)):
                self.body(loop.body, scope.at(loop.indices, point))
            return
        opened = scope.opened(loop.indices, ranges)
        axis = _axis_to_cut(loop, opened, self.facts)
        if axis is None:
            self.body(loop.body, opened)
            return
        for piece in _pieces(ranges[axis], points(loop.body, opened, self.facts)):
            self.loop(loop, scope, [*ranges[:axis], piece, *ranges[axis + 1 :]])

    def store(self, store: Store, scope: VectorScope) -> None:
        evaluation, array = self._evaluation(scope), self.memory[store.buffer]
        subscripts = [self.facts.affine(i) for i in store.index]
        ranges = [scope.range_of(subscript) for subscript in subscripts]
        for reach, extent in zip(ranges, array.shape, strict=True):
            if reach is not None and (reach[0] < 0 or reach[1] >= extent):
                raise _outside(store.buffer)
        if all(reach is not None for reach in ranges):
            view = strided(array, subscripts, [0] * array.ndim, scope, writeable=True)
            if view.shape == scope.shape:
                view[...] = evaluation.full(store.value)
                return
        index, inside = evaluation.subscripts(store.index, array.shape)
        if not inside.all():
            raise _outside(store.buffer)
        array[tuple(np.broadcast_to(_ranked(i, scope), scope.shape) for i in index)] = evaluation.full(store.value)

    def accumulate(self, statement: Accumulate, scope: VectorScope) -> None:
        """In the order of the loops; places outside of the buffer are dropped."""
        evaluation, array = self._evaluation(scope), self.memory[statement.buffer]
        index, inside = evaluation.subscripts(statement.index, array.shape)
        where = np.broadcast_to(_ranked(inside, scope), scope.shape)
        places = tuple(np.broadcast_to(_ranked(i, scope), scope.shape)[where] for i in index)
        values = evaluation.full(statement.value)[where]
        if statement.op not in functions.UFUNCS:
            raise ProgramError(f"{statement.buffer.name}: there is no accumulation by {statement.op!r}")
        functions.UFUNCS[statement.op].at(array, places, values)

    def _evaluation(self, scope: VectorScope) -> Evaluation:
        return Evaluation(self.memory, self.facts, self.refs, scope)


def _ranked(array: Array, scope: VectorScope) -> Array:
    return array.reshape(array.shape + (1,) * (len(scope.shape) - array.ndim))


def _outside(buffer: Buffer) -> ProgramError:
    return ProgramError(f"{buffer.kind} {buffer.name} ({buffer.type}) is written outside of its bounds")


def points(body: Sequence[Statement], scope: VectorScope, facts: VectorFacts) -> int:
    """About how many elements the largest array has that evaluating ``body`` makes."""
    largest = math.prod(scope.shape)
    for statement in body:
        if isinstance(statement, For):
            serial = statement.serial
            inner = (
                scope.at(statement.indices, [0] * len(statement.indices))
                if serial
                else scope.opened(statement.indices, [(0, index.extent) for index in statement.indices])
            )
            largest = max(largest, points(statement.body, inner, facts))
            continue
        nodes = (node for expr in expressions(statement) for node in walk(expr) if isinstance(node, Reduce))
        largest = max([largest, *(_box_size(part, scope, facts) for node in nodes for part in _factors(node))])
    return largest


def _factors(reduce: Reduce) -> tuple[Expr, ...]:
    """What is held in memory at once: the body, or the two factors of a contraction."""
    match reduce.body:
        case Apply(function="mul", arguments=(a, b)) if reduce.op == "add":
            return a, b
    return (reduce.body,)


def _box_size(expr: Expr, scope: VectorScope, facts: VectorFacts) -> int:
    return math.prod(scope.spans[i].width if i in scope.spans else i.extent for i in facts.free(expr))


def _axis_to_cut(loop: For, scope: VectorScope, facts: VectorFacts) -> int | None:
    """Which of the loop's indices to cut: the one that saves most, if the box is too large and any saves."""
    total = points(loop.body, scope, facts)
    if total <= MAX_POINTS:
        return None
    sizes = []
    for axis, index in enumerate(loop.indices):
        if scope.spans[index].width > 1:
            sizes.append((points(loop.body, _narrowed(scope, index), facts), axis))
    best = min(sizes, default=(total, 0))
    return best[1] if best[0] < total else None


def _narrowed(scope: VectorScope, index: Index) -> VectorScope:
    span = scope.spans[index]
    assert span.axis is not None
    shape = (*scope.shape[: span.axis], 1, *scope.shape[span.axis + 1 :])
    return VectorScope({**scope.spans, index: replace(span, high=span.low + 1)}, shape)


def _pieces(whole: tuple[int, int], total: int) -> Iterator[tuple[int, int]]:
    low, high = whole
    count = min(high - low, -(-total // MAX_POINTS))
    step = max(1, (high - low) // max(count, 2))
    for start in range(low, high, step):
        yield start, min(start + step, high)
