"""The text of programs and plans: printed here, read back by :mod:`glowtrain.program.parse`.

    program     ::= "program" NAME declaration* instruction*
    plan        ::= "plan" NAME ":" "arena" size "bytes" "," "peak" size "bytes" ("," "alignment" size "bytes")?
                    declaration* instruction*
    declaration ::= kind NAME ":" type ["as" NAME,*] ["layout" "[" axis,* "]"] ["at" OFFSET] ["=" contents]
                  | "updates" NAME,*                           the variables that the program writes
                  | "prefer" NAME "[" axis,* "]"               a layout that an operator asked for
    kind        ::= "input" | "output" | "variable" | "constant" | "activation"
    contents    ::= number | "[" number,* "]" | "@" NAME       the last is an array that is given beside the text
    instruction ::= "kernel" title ":" statement*
                  | "repeat" title index "<" extent ":" instruction*
                  | "call" title ":" FUNCTION "(" NAME,* [";" "word" integer] ")" "->" NAME,*
    title       ::= NAME ("+" NAME)*
    statement   ::= ("for" ["serial"] index "<" extent,* | "do" ["serial"]) ":" statement*
                  | "let" NAME "=" expr
                  | NAME "[" expr,* "]" ("=" | "+=" | "*=" | "max=" | "min=" | "and=" | "or=") expr
                  | "with" NAME "=" expr                       a part that the next statement uses more than once
    expr        ::= number [":" dtype] | "true" | "false" | NAME
                  | NAME "[" expr,* [";" "fill" number] "]"
                  | ("sum"|"prod"|"max"|"min"|"all"|"any")
                    "(" index "<" extent,* ["by" partials] ":" ("with" NAME "=" expr ";")* expr ")"
                  | dtype "(" expr ")" | "bits." dtype "(" expr ")" | FUNCTION "(" expr,* ")"
                  | "-" expr | expr INFIX expr | "(" expr ")"

An instruction, a "with" and a statement stand on a line of their own, what belongs to them on the following lines,
indented; a loop's only statement may stand on its line. A name with other characters than letters, digits, "_" and
"." is quoted, and so is one that is a word of the grammar. An input, output or variable is called as its buffer, or
what "as" says. Subscripts are printed in their affine form. A number takes its element type from its surroundings
(see :mod:`glowtrain.program.statement_text`). In a plan every activation has its offset in the arena. A line that
begins with ";" is a comment: a plan's say what follows from the rest, each instruction's operands among it.

The native functions of calls are given beside the text, by name.
Constants of up to 16 elements are written out; larger ones, and variables, are arrays by the buffer's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod

import numpy as np

from glowtrain.loops import Buffer
from glowtrain.names import Names
from glowtrain.native import NativeFunction
from glowtrain.program.passes.schedule import lifetimes
from glowtrain.program.program import ALIGNMENT, Call, Instruction, Kernel, Plan, Program, Repeat
from glowtrain.program.statement_text import PrintScope, indented, number_text, quoted, read_number
from glowtrain.types import Array, TensorType, boolean, elements_of

INLINE_ELEMENTS = 16
"""Constants of at most this many elements are written out."""


def to_text(program: Program) -> str:
    """The whole program, ended with a newline. ``parse`` reads it back, given :func:`arrays_of` the program."""
    lines = [*_declarations(program, {}), *_Printer(program).instructions(program.instructions)]
    return "\n".join([f"program {quoted(program.name)}", *lines]) + "\n"


def plan_text(plan: Plan) -> str:
    """A plan: arena and peak, the life of every activation, and the program with offsets and operand lists."""
    program = plan.program
    count = sum(1 for _ in program.kernels)
    aligned = "" if plan.alignment == ALIGNMENT else f", alignment {plan.alignment} bytes"
    lines = [
        f"plan {quoted(program.name)}: arena {plan.arena:,} bytes, peak {plan.peak:,} bytes{aligned}",
        f"; overhead {plan.overhead:.3f}, {len(plan.offsets)} activations, {count} kernels",
        *_lives(plan),
        *_declarations(program, plan.offsets),
        *_Printer(program, plan).instructions(program.instructions),
    ]
    return "\n".join(lines) + "\n"


def arrays_of(program: Program) -> dict[str, Array]:
    """The arrays that the text of ``program`` refers to by ``@name``."""
    return {b.name: elements_of(b.initial) for b in program.buffers if b.initial is not None and _inline(b) is None}


def functions_of(program: Program) -> dict[str, NativeFunction]:
    """The native functions that the text of ``program`` calls by name."""
    return {leaf.native.name: leaf.native for leaf in program.leaves if leaf.native is not None}


def contents(numbers: Sequence[str], type_: TensorType) -> Array:
    """The array that numbers written out make. Raises ``ValueError`` for another count, or for what is no element."""
    if len(numbers) != type_.size:
        raise ValueError(f"{len(numbers)} numbers for {type_}, which has {type_.size} elements")
    dtype = type_.dtype
    values = [read_number(number, dtype) for number in numbers]
    if dtype.is_integer:
        array = np.asarray([int(value) & (1 << 64) - 1 for value in values], np.uint64)
    else:
        array = np.asarray(values, np.bool_ if dtype == boolean else np.float64)
    return array.astype(dtype.numpy).reshape(type_.shape)


def _lives(plan: Plan) -> Iterator[str]:
    """A comment for each activation, by offset; lives are positions of instructions of the outermost level."""
    lives = lifetimes(plan.program.instructions)
    if plan.offsets:
        yield f"; {'offset':>12} {'bytes':>12}  {'life':<9} buffer"
    for buffer, offset in sorted(plan.offsets.items(), key=lambda i: (i[1], lives.get(i[0], (0, 0)), i[0].name)):
        first, last = lives.get(buffer, (0, 0))
        yield f"; {offset:>12,} {buffer.type.nbytes:>12,}  {f'{first}..{last}':<9} {buffer.name}: {buffer.type}"


def _declarations(program: Program, offsets: Mapping[Buffer, int]) -> Iterator[str]:
    listed = (*program.inputs.values(), *program.outputs.values(), *program.variables.values(), *program.constants)
    known = program.buffers
    for buffer in dict.fromkeys((*listed, *known)):
        yield f"  {buffer.kind:<10} {quoted(buffer.name)}: {buffer.type}{_notes(buffer, program, offsets)}"
    if program.updates:
        yield f"  updates {', '.join(map(quoted, program.updates))}"
    for buffer, layout in program.preferences:
        if buffer in known:
            yield f"  prefer {quoted(buffer.name)} [{','.join(map(str, layout))}]"


def _notes(buffer: Buffer, program: Program, offsets: Mapping[Buffer, int]) -> str:
    notes = ""
    called = {"input": program.inputs, "output": program.outputs, "variable": program.variables}.get(buffer.kind, {})
    names = [name for name, other in called.items() if other is buffer]
    if names and names != [buffer.name]:
        notes += f" as {', '.join(map(quoted, names))}"
    if buffer.layout != tuple(range(buffer.type.rank)):
        notes += f" layout [{','.join(map(str, buffer.layout))}]"
    if buffer in offsets:
        notes += f" at {offsets[buffer]}"
    if buffer.initial is not None:
        inline = _inline(buffer)
        notes += f" = @{quoted(buffer.name)}" if inline is None else f" = {inline}"
    return notes


def _inline(buffer: Buffer) -> str | None:
    """A constant's contents written out, if they are short and read back to the same bits."""
    array = buffer.constant_array
    if array is None or array.size > INLINE_ELEMENTS or not buffer.type.accepts(array):
        return None
    texts = [number_text(element.item(), buffer.dtype) for element in array.reshape(-1)]
    if contents(texts, buffer.type).tobytes() != array.tobytes():  # a NaN that is not the usual one
        return None
    return texts[0] if array.ndim == 0 else f"[{', '.join(texts)}]"


@dataclass
class _Printer:
    program: Program
    plan: Plan | None = None

    def instructions(self, instructions: Sequence[Instruction]) -> Iterator[str]:
        scope = PrintScope(Names(buffer.name for buffer in self.program.buffers))
        for position, instruction in enumerate(instructions):
            yield from self._numbered(instruction, f"#{position}: ", scope)

    def _numbered(self, instruction: Instruction, number: str, scope: PrintScope) -> Iterator[str]:
        if self.plan is not None:
            yield f"; {number}{self._operands(instruction)}"
        yield from self._instruction(instruction, scope)

    @singledispatchmethod
    def _instruction(self, instruction: Instruction, scope: PrintScope) -> Iterator[str]:
        """The lines of an instruction; each kind has a method."""
        raise TypeError(f"{instruction.kind} {instruction.name} has no text")

    @_instruction.register
    def _kernel(self, kernel: Kernel, scope: PrintScope) -> Iterator[str]:
        yield f"kernel {_title(kernel)}:"
        yield from indented(scope.body(kernel.body))

    @_instruction.register
    def _repeat(self, repeat: Repeat, scope: PrintScope) -> Iterator[str]:
        inner = scope.opened([repeat.index])
        yield f"repeat {_title(repeat)} {inner.box([repeat.index])}{' parts' if repeat.parts else ''}:"
        for member in repeat.body:
            yield from indented(self._numbered(member, "", inner))

    @_instruction.register
    def _call(self, call: Call, scope: PrintScope) -> Iterator[str]:
        inputs, outputs = (", ".join(quoted(b.name) for b in buffers) for buffers in (call.inputs, call.outputs))
        word = "" if call.function.word is None else f"; word {call.function.word}"
        yield f"call {_title(call)}: {quoted(call.function.name)}({inputs}{word}) -> {outputs}"

    def _operands(self, instruction: Instruction) -> str:
        groups: dict[str, list[str]] = {"out": [], "inout": [], "in": []}
        reads, writes = set(instruction.reads), set(instruction.writes)
        for buffer in instruction.operands:
            mode = "in" if buffer not in writes else "inout" if buffer in reads else "out"
            groups[mode].append(self._place(buffer))
        return "  ".join(f"{mode} {', '.join(members)}" for mode, members in groups.items() if members)

    def _place(self, buffer: Buffer) -> str:
        offset = self.plan.offsets.get(buffer) if self.plan is not None else None
        return buffer.name if offset is None else f"{buffer.name}@{offset}"


def _title(instruction: Instruction) -> str:
    """An instruction's name: those of what was fused into it, joined by "+"."""
    return "+".join(quoted(name) for name in instruction.name.split("+"))


__all__ = ["arrays_of", "contents", "functions_of", "plan_text", "to_text"]
