"""The program: the low-level IR. Instructions over typed buffers, in the order in which they run.

instruction ::= Kernel(statements)                    loop nests (see glowtrain.loops)
              | Repeat(index, instructions)            the instructions once for every value of the index, in order
              | Call(function, inputs, outputs)        a native function that an operator brings along
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Self

from glowtrain.loops import (
    Accumulate,
    Buffer,
    Const,
    Expr,
    FlatStatement,
    Index,
    Let,
    Load,
    Reduce,
    Statement,
    Store,
    Written,
    evaluations,
    indices_of,
    rewrite_body,
    stores_of,
    with_buffers,
)
from glowtrain.memo import memoized
from glowtrain.native import NativeFunction

Change = Callable[[Expr], Expr | None]
"""The replacement of an expression; ``None`` leaves it as it is."""


@dataclass(frozen=True)
class Survey:
    """What a body evaluates: loads and reductions in order, and the number of expressions
    (shared ones count once for each statement).
    """

    loads: tuple[Load, ...]
    reductions: tuple[Reduce, ...]
    size: int

    @staticmethod
    def of(flat: Sequence[FlatStatement]) -> Survey:
        if len(flat) == 1:  # as in most kernels, as operators are lowered
            return Survey(flat[0].loads, flat[0].reductions, len(flat[0].nodes))
        loads: list[Load] = []
        reductions: list[Reduce] = []
        size = 0
        for statement in flat:
            loads += statement.loads
            reductions += statement.reductions
            size += len(statement.nodes)
        return Survey(tuple(loads), tuple(reductions), size)


class Instruction:
    """One step of a program, with all that passes and analyses ask of any kind of instruction.

    A kind is a class that says which buffers it ``reads`` and ``writes``, what it becomes ``_on`` others, and where
    else it differs from these defaults; the verifier, the text, the evaluator and each backend have a handler for it.
    """

    name: str

    @property
    def kind(self) -> str:
        """Its name in text and messages."""
        return type(self).__name__.lower()

    @cached_property
    def reads(self) -> list[Buffer]:
        """The buffers that are read, each once, in order."""
        raise NotImplementedError

    @cached_property
    def writes(self) -> list[Buffer]:
        """The buffers that are written, each once, in order."""
        raise NotImplementedError

    def _on(self, new: Mapping[Buffer, Buffer]) -> Self:
        """The same instruction on other buffers: those that ``new`` gives for its own."""
        raise NotImplementedError

    def stores(self, around: tuple[Index, ...] = ()) -> Iterator[Written]:
        """The stores that are certain, each with the indices that are bound around it."""
        raise NotImplementedError

    # ---- instructions inside

    @property
    def children(self) -> tuple[Instruction, ...]:
        """The instructions inside, which run in order for all values of ``indices``."""
        return ()

    @property
    def indices(self) -> tuple[Index, ...]:
        """The indices that are bound for the children."""
        return ()

    @property
    def is_leaf(self) -> bool:
        """Whether it runs as one piece, with no instructions inside."""
        return True

    @property
    def trips(self) -> int:
        """How often the children run each time."""
        return math.prod(index.extent for index in self.indices)

    def with_children(self, children: Sequence[Instruction]) -> Self:
        """The same instruction with other instructions inside."""
        assert not children, f"{self.name} has no instructions inside"
        return self

    # ---- what it consists of

    def faults(self) -> Iterator[str]:
        """What is wrong with it, whatever surrounds it."""
        return iter(())

    @property
    def native(self) -> NativeFunction | None:
        """The native function that it calls, if it is a call."""
        return None

    @property
    def kernel(self) -> Kernel | None:
        """Itself, if it consists of loop nests that can be rewritten, fused and inlined."""
        return None

    @property
    def nests(self) -> tuple[Statement, ...]:
        """Its own statements; those of the children are not among them."""
        return ()

    @cached_property
    def survey(self) -> Survey:
        """What its own statements evaluate."""
        return Survey.of(evaluations(self.nests))

    def rewritten(self, change: Change) -> Self:
        """The same with every expression rewritten, those of the children too, but for indices of loops; sharing within
        a kernel is kept."""
        return self.with_children([child.rewritten(change) for child in self.children])

    # ---- buffers

    @cached_property
    def opaque(self) -> frozenset[Buffer]:
        """Buffers of which it may read every element without a load that says so."""
        return frozenset[Buffer]().union(*(child.opaque for child in self.children))

    @property
    def row_major(self) -> frozenset[Buffer]:
        """Buffers that it takes in row-major layout only."""
        return frozenset[Buffer]().union(*(child.row_major for child in self.children))

    def with_buffers(self, new: Mapping[Buffer, Buffer]) -> Self:
        """The same on other buffers; itself where it touches none of those that ``new`` replaces."""
        if new.keys().isdisjoint(self.touched):
            return self
        return self._instead(tuple([(buffer, new[buffer]) for buffer in self.operands if buffer in new]))

    @memoized
    def _instead(self, new: tuple[tuple[Buffer, Buffer], ...]) -> Self:
        return self._on(dict(new))

    @cached_property
    def operands(self) -> list[Buffer]:
        """All buffers, those written first, each once."""
        return list(dict.fromkeys((*self.writes, *self.reads)))

    @cached_property
    def activations(self) -> list[Buffer]:
        """The activations among these."""
        return [buffer for buffer in self.operands if buffer.kind == "activation"]

    @cached_property
    def touched(self) -> frozenset[Buffer]:
        """All buffers, as a set."""
        return frozenset(self.operands)

    @cached_property
    def written(self) -> frozenset[Buffer]:
        """The buffers that are written, as a set."""
        return frozenset(self.writes)


@dataclass(frozen=True, eq=False)
class Kernel(Instruction):
    """Loop nests that run as one piece; ``name`` says which operators it came from."""

    name: str
    body: tuple[Statement, ...]

    @property
    def kernel(self) -> Kernel:
        return self

    @property
    def nests(self) -> tuple[Statement, ...]:
        return self.body

    @cached_property
    def flat(self) -> tuple[Let | Store | Accumulate, ...]:
        """The statements that evaluate expressions, nested ones too."""
        return tuple(evaluations(self.body))

    @cached_property
    def survey(self) -> Survey:
        return Survey.of(self.flat)

    @cached_property
    def reads(self) -> list[Buffer]:
        loaded = [load.buffer for load in self.survey.loads]
        return list(dict.fromkeys(loaded + [s.buffer for s in self.flat if isinstance(s, Accumulate)]))

    @cached_property
    def writes(self) -> list[Buffer]:
        return list(dict.fromkeys([s.buffer for s in self.flat if not isinstance(s, Let)]))

    @cached_property
    def opaque(self) -> frozenset[Buffer]:
        return frozenset([s.buffer for s in self.flat if isinstance(s, Accumulate)])

    def stores(self, around: tuple[Index, ...] = ()) -> Iterator[Written]:
        return stores_of(self.body, around)

    def rewritten(self, change: Change) -> Self:
        body = rewrite_body(self.body, change, indices=False)
        return self if body is self.body else type(self)(self.name, body)

    def _on(self, new: Mapping[Buffer, Buffer]) -> Self:
        return type(self)(self.name, with_buffers(self.body, new))


@dataclass(frozen=True, eq=False)
class Repeat(Instruction):
    """``body`` for index = 0 .. extent-1, in order (the steps of a Scan).

    With ``parts`` trips are few, of much work each, such as parts of a batch: passes treat the body as a program of its
    own, and nothing is prepared for all trips at once.
    """

    name: str
    index: Index
    body: tuple[Instruction, ...]
    parts: bool = False

    @property
    def children(self) -> tuple[Instruction, ...]:
        return self.body

    @property
    def indices(self) -> tuple[Index, ...]:
        return (self.index,)

    @property
    def is_leaf(self) -> bool:
        return False

    def with_children(self, children: Sequence[Instruction]) -> Self:
        return replace(self, body=tuple(children))

    @cached_property
    def reads(self) -> list[Buffer]:
        return list(dict.fromkeys(buffer for instruction in self.body for buffer in instruction.reads))

    @cached_property
    def writes(self) -> list[Buffer]:
        return list(dict.fromkeys(buffer for instruction in self.body for buffer in instruction.writes))

    def stores(self, around: tuple[Index, ...] = ()) -> Iterator[Written]:
        for instruction in self.body:
            yield from instruction.stores((*around, self.index))

    def _on(self, new: Mapping[Buffer, Buffer]) -> Self:
        return self.with_children([instruction.with_buffers(new) for instruction in self.body])


@dataclass(frozen=True, eq=False)
class Call(Instruction):
    """A native function of ``inputs`` that writes all of ``outputs``; passes see no more of it than that."""

    name: str
    function: NativeFunction
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]

    @property
    def native(self) -> NativeFunction:
        return self.function

    @cached_property
    def reads(self) -> list[Buffer]:
        return list(dict.fromkeys(self.inputs))

    @cached_property
    def writes(self) -> list[Buffer]:
        return list(dict.fromkeys(self.outputs))

    @cached_property
    def opaque(self) -> frozenset[Buffer]:
        return frozenset(self.inputs)

    @property
    def row_major(self) -> frozenset[Buffer]:
        return self.touched

    def stores(self, around: tuple[Index, ...] = ()) -> Iterator[Written]:
        for buffer in self.writes:
            at = indices_of(buffer.shape)
            yield Store(buffer, at, Const(0, buffer.dtype)), (*around, *at)

    def faults(self) -> Iterator[str]:
        for buffer in self.outputs:
            if buffer in self.inputs or self.outputs.count(buffer) > 1:
                yield f"{describe(buffer)} is a result, and another operand or result too"

    def _on(self, new: Mapping[Buffer, Buffer]) -> Self:
        inputs, outputs = (tuple(new.get(b, b) for b in buffers) for buffers in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs)


@dataclass(frozen=True, eq=False)
class Program:
    """Instructions and the buffers that others see.

    ``updates`` lists the variables that the instructions write; ``preferences`` the memory layouts that operators
    asked for. Inputs and outputs are by the graph's names.
    """

    name: str
    inputs: dict[str, Buffer]
    outputs: dict[str, Buffer]
    variables: dict[str, Buffer]
    instructions: tuple[Instruction, ...]
    updates: tuple[str, ...] = ()
    constants: tuple[Buffer, ...] = field(default=())
    preferences: tuple[tuple[Buffer, tuple[int, ...]], ...] = field(default=())

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Every buffer that is used or seen from outside, each once."""
        operands = chain.from_iterable(instruction.operands for instruction in self.instructions)
        first = (*self.inputs.values(), *self.variables.values(), *self.constants)
        return tuple(dict.fromkeys(chain(first, operands, self.outputs.values())))

    def trimmed(self) -> Program:
        """The program without constants that nothing touches."""
        touched = frozenset[Buffer]().union(*(instruction.touched for instruction in self.instructions))
        return replace(self, constants=tuple(buffer for buffer in self.constants if buffer in touched))

    @property
    def kernels(self) -> Iterator[Kernel]:
        """All kernels, those inside of repeats too, in order."""
        return (leaf.kernel for leaf in self.leaves if leaf.kernel is not None)

    @property
    def leaves(self) -> Iterator[Instruction]:
        """All instructions with none inside, those inside of repeats too, in order."""
        return leaves_of(self.instructions)

    def with_buffers(self, new: Mapping[Buffer, Buffer]) -> Program:
        """The same program on other buffers: those that ``new`` gives for its own."""

        def replaced(buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
            return {name: new.get(buffer, buffer) for name, buffer in buffers.items()}

        return replace(
            self,
            inputs=replaced(self.inputs),
            outputs=replaced(self.outputs),
            variables=replaced(self.variables),
            instructions=tuple(instruction.with_buffers(new) for instruction in self.instructions),
            constants=tuple(new.get(buffer, buffer) for buffer in self.constants),
            preferences=tuple((new.get(buffer, buffer), layout) for buffer, layout in self.preferences),
        )

    def __str__(self) -> str:
        from glowtrain.program.text import to_text  # noqa: PLC0415  (the text form is written in terms of programs)

        return to_text(self)


ALIGNMENT = 64
"""Bytes at multiples of which activations lie, unless a backend says otherwise."""


@dataclass(frozen=True)
class Plan:
    """A program with its activations placed. ``arena`` and ``peak`` are bytes; ``peak`` is the largest sum of live
    buffers; offsets are multiples of ``alignment``.
    """

    program: Program
    offsets: dict[Buffer, int]
    arena: int
    peak: int
    alignment: int = ALIGNMENT

    @property
    def overhead(self) -> float:
        """Arena over peak: 1.0 is perfect."""
        return self.arena / self.peak if self.peak else 1.0


def leaves_of(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """All instructions with none inside, nested ones too, in order."""
    for instruction in instructions:
        if instruction.is_leaf:
            yield instruction
        yield from leaves_of(instruction.children)


def describe(buffer: Buffer) -> str:
    """Kind, name and type."""
    return f"{buffer.kind} {buffer.name} ({buffer.type})"
