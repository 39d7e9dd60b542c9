"""The program: the low-level IR. Instructions over typed buffers, in the order in which they run.

instruction ::= Kernel(statements)                    loop nests (see glowtrain.loops)
              | Repeat(index, instructions)            the instructions once for every value of the index, in order
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from glowtrain.loops import (
    Accumulate,
    Buffer,
    Expr,
    Index,
    Load,
    Reduce,
    Statement,
    expressions,
    statements,
    walk,
    with_buffers,
    writes,
)


class Step:
    """What kernels and repeats have in common: the buffers they touch."""

    @cached_property
    def reads(self) -> list[Buffer]:
        """The buffers that are read, each once, in order."""
        raise NotImplementedError

    @cached_property
    def writes(self) -> list[Buffer]:
        """The buffers that are written, each once, in order."""
        raise NotImplementedError

    def with_buffers(self, new: Mapping[Buffer, Buffer]) -> Self:
        """The same on other buffers; itself where it touches none of those that ``new`` replaces."""
        return self if new.keys().isdisjoint(self.touched) else self._on(new)

    def _on(self, new: Mapping[Buffer, Buffer]) -> Self:
        raise NotImplementedError

    @cached_property
    def operands(self) -> list[Buffer]:
        """All buffers, those written first, each once."""
        return list(dict.fromkeys((*self.writes, *self.reads)))

    @cached_property
    def touched(self) -> frozenset[Buffer]:
        """All buffers, as a set."""
        return frozenset(self.operands)

    @cached_property
    def written(self) -> frozenset[Buffer]:
        """The buffers that are written, as a set."""
        return frozenset(self.writes)


@dataclass(frozen=True)
class Survey:
    """What a body evaluates, found in one walk: loads and reductions in order, and how many expressions there are
    (shared ones once for each statement).
    """

    loads: tuple[Load, ...]
    reductions: tuple[Reduce, ...]
    size: int

    @staticmethod
    def of(body: Sequence[Statement]) -> Survey:
        nodes: list[Expr] = []
        for statement in statements(body):
            for expr in expressions(statement):
                nodes += walk(expr)
        found = tuple([node for node in nodes if isinstance(node, Load)])
        return Survey(found, tuple([node for node in nodes if isinstance(node, Reduce)]), len(nodes))


@dataclass(frozen=True, eq=False)
class Kernel(Step):
    """Loop nests that run as one piece; ``name`` says which operators it came from."""

    name: str
    body: tuple[Statement, ...]

    @cached_property
    def survey(self) -> Survey:
        return Survey.of(self.body)

    @cached_property
    def reads(self) -> list[Buffer]:
        accumulated = (s.buffer for s in statements(self.body) if isinstance(s, Accumulate))
        return list(dict.fromkeys((*(load.buffer for load in self.survey.loads), *accumulated)))

    @cached_property
    def writes(self) -> list[Buffer]:
        return writes(self.body)

    def _on(self, new: Mapping[Buffer, Buffer]) -> Self:
        return replace(self, body=with_buffers(self.body, new))


@dataclass(frozen=True, eq=False)
class Repeat(Step):
    """``body`` for index = 0 .. extent-1, in order (the steps of a Scan)."""

    name: str
    index: Index
    body: tuple[Instruction, ...]

    @cached_property
    def reads(self) -> list[Buffer]:
        return list(dict.fromkeys(buffer for instruction in self.body for buffer in instruction.reads))

    @cached_property
    def writes(self) -> list[Buffer]:
        return list(dict.fromkeys(buffer for instruction in self.body for buffer in instruction.writes))

    def _on(self, new: Mapping[Buffer, Buffer]) -> Self:
        return replace(self, body=tuple(instruction.with_buffers(new) for instruction in self.body))


Instruction = Kernel | Repeat


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

    @property
    def buffers(self) -> list[Buffer]:
        """Every buffer that is used or seen from outside, each once."""
        seen = dict.fromkeys([*self.inputs.values(), *self.variables.values(), *self.constants])
        for instruction in self.instructions:
            seen.update(dict.fromkeys(instruction.operands))
        seen.update(dict.fromkeys(self.outputs.values()))
        return list(seen)

    def trimmed(self) -> Program:
        """The program without constants that nothing touches."""
        touched = frozenset[Buffer]().union(*(instruction.touched for instruction in self.instructions))
        return replace(self, constants=tuple(buffer for buffer in self.constants if buffer in touched))

    @property
    def kernels(self) -> Iterator[Kernel]:
        """All kernels, those inside of repeats too, in order."""
        return kernels_of(self.instructions)

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


@dataclass(frozen=True)
class Plan:
    """A program with its activations placed. ``arena`` and ``peak`` are bytes; ``peak`` is the largest sum of live
    buffers.
    """

    program: Program
    offsets: dict[Buffer, int]
    arena: int
    peak: int

    @property
    def overhead(self) -> float:
        """Arena over peak: 1.0 is perfect."""
        return self.arena / self.peak if self.peak else 1.0


def kernels_of(instructions: Sequence[Instruction]) -> Iterator[Kernel]:
    """All kernels among instructions, nested ones too."""
    for instruction in instructions:
        if isinstance(instruction, Kernel):
            yield instruction
        else:
            yield from kernels_of(instruction.body)


def describe(buffer: Buffer) -> str:
    """Kind, name and type."""
    return f"{buffer.kind} {buffer.name} ({buffer.type})"
