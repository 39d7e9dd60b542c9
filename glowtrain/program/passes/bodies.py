"""Bodies of loops over parts of a batch as programs of their own, for passes that know a list of instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from glowtrain.loops import Buffer
from glowtrain.program.program import Instruction, Program, Repeat

Change = Callable[[Program], Program]


def with_bodies(program: Program, change: Change) -> Program:
    """The program with the bodies of its top-level loops over parts changed, each as a program of its own.

    What a body shares with the rest of the program is a variable there: it may hold something before and after, so
    nobody drops it or writes something else in its place.
    """
    for body in bodies(program):
        program = body.within(program, change(body.program))
    return program


@dataclass(frozen=True)
class Body:
    """The body of a loop as a ``program``; ``shared``: its variables that stand for activations of the whole program,
    each with that."""

    loop: Repeat
    program: Program
    shared: Mapping[Buffer, Buffer]

    def within(self, whole: Program, changed: Program) -> Program:
        """The whole program, which has the loop, with another body in it."""
        loop = self.loop.with_children([child.with_buffers(self.shared) for child in changed.instructions])
        return replace(whole, instructions=tuple(loop if i is self.loop else i for i in whole.instructions))


def bodies(program: Program) -> list[Body]:
    """Those of the top-level loops over parts."""
    loops = [i for i in program.instructions if isinstance(i, Repeat) and i.parts]
    uses = Counter(buffer for instruction in program.instructions for buffer in instruction.operands) if loops else {}
    return [_body(loop, {b for b in loop.operands if b.kind == "activation" and uses[b] > 1}) for loop in loops]


def _body(loop: Repeat, shared: set[Buffer]) -> Body:
    own = {buffer: replace(buffer, kind="variable") for buffer in shared}
    instructions = tuple(child.with_buffers(own) for child in loop.body)
    variables = {buffer.name: buffer for buffer in _variables(instructions)}
    program = Program(f"{loop.name}.body", {}, {}, variables, instructions)
    return Body(loop, program, {variable: buffer for buffer, variable in own.items()})


def _variables(body: tuple[Instruction, ...]) -> Iterator[Buffer]:
    found = dict.fromkeys(buffer for instruction in body for buffer in instruction.operands)
    return (buffer for buffer in found if buffer.kind == "variable")
