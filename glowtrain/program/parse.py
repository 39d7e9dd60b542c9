"""Parse programs and plans; the grammar stands in :mod:`glowtrain.program.text`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from glowtrain.errors import InputError, TextError
from glowtrain.loops import Accumulate, Buffer, Expr, For, Index, Let, Ref, Statement, Store
from glowtrain.native import NativeFunction
from glowtrain.program.lines import END, NAME, Line, is_comment, token_text, type_of
from glowtrain.program.parse_expression import Expressions, Scope, typed, undefined
from glowtrain.program.program import ALIGNMENT, Call, Instruction, Kernel, Plan, Program, Repeat
from glowtrain.program.text import contents
from glowtrain.types import Array, TensorType

KINDS = ("input", "output", "variable", "constant", "activation")


Functions = Mapping[str, NativeFunction]


def parse(text: str, arrays: Mapping[str, Array] | None = None, functions: Functions | None = None) -> Program:
    """Read a program, taking contents that are not written out from ``arrays`` (see :func:`text.arrays_of`), and what
    it calls from ``functions`` (see :func:`text.functions_of`).

    Raises :class:`TextError` naming line and column: text outside the grammar, unknown or repeated names, operands of
    different types, contents that are missing or of another type. What else has to hold is the verifier's business.
    """
    parser = _Parser(text, arrays or {}, functions or {})
    line = parser.line("program")
    line.expect("program")
    name = line.name()
    line.end()
    return parser.program(name)


def parse_plan(text: str, arrays: Mapping[str, Array] | None = None, functions: Functions | None = None) -> Plan:
    """Read a plan: a program, and the offset of every activation. Raises :class:`TextError` as :func:`parse` does."""
    parser = _Parser(text, arrays or {}, functions or {})
    line = parser.line("plan")
    line.expect("plan")
    name = line.name()
    line.expect(":")
    arena = line.size("arena")
    line.expect(",")
    peak = line.size("peak")
    alignment = line.size("alignment") if line.accept(",") else ALIGNMENT
    line.end()
    program = parser.program(name)
    return Plan(program, parser.offsets, arena, peak, alignment)


class _Parser:
    """Recursive descent: blocks by their indentation, lines by their tokens."""

    def __init__(self, text: str, arrays: Mapping[str, Array], functions: Functions) -> None:
        lines = (Line(number, line) for number, line in enumerate(text.split("\n"), 1) if not is_comment(line))
        self.lines = deque(line for line in lines if len(line.tokens) > 1)
        self.last = text.count("\n") + 1
        self.number = 1
        """The line that is read."""
        self.arrays = arrays
        self.functions = functions
        self.buffers: dict[str, Buffer] = {}
        self.listed: dict[str, dict[str, Buffer]] = {kind: {} for kind in KINDS}
        self.offsets: dict[Buffer, int] = {}
        self.updates: tuple[str, ...] = ()
        self.preferences: list[tuple[Buffer, tuple[int, ...]]] = []

    def line(self, what: str) -> Line:
        """The next line, which there must be."""
        if not self.lines:
            raise TextError(f"line {self.last}, column 1: expected {what!r}, found the end of the text")
        taken = self.lines.popleft()
        self.number = taken.number
        return taken

    def block(self, outer: Line) -> Iterator[Line]:
        """The lines below ``outer``: they are indented more, all equally."""
        first: int | None = None
        while self.lines and self.lines[0].indent > outer.indent:
            line = self.line("a line")
            first = line.indent if first is None else first
            if line.indent != first:
                line.fail(f"this line is indented by {line.indent}, the one before it in its block by {first}")
            yield line

    def program(self, name: str) -> Program:
        """What follows the first line."""
        try:
            return self._program(name)
        except RecursionError:
            raise TextError(f"line {self.number}, column 1: this is nested too deeply") from None

    def _program(self, name: str) -> Program:
        declared: dict[Buffer, Line] = {}
        while self.lines and self.lines[0].indent:
            self._declaration(self.line("a declaration"), declared)
        instructions = []
        while self.lines:
            instructions.append(self._instruction(self.line("an instruction"), {}))
        used = {buffer for instruction in instructions for buffer in instruction.operands}
        for buffer, line in declared.items():
            if buffer.kind == "activation" and buffer not in used:
                line.fail(f"activation {buffer.name} is in no instruction", line.tokens[0])
        inputs, outputs, variables, constants, _ = self.listed.values()
        return Program(
            name,
            inputs,
            outputs,
            variables,
            tuple(instructions),
            self.updates,
            tuple(constants.values()),
            tuple(self.preferences),
        )

    def _declaration(self, line: Line, declared: dict[Buffer, Line]) -> None:
        if line.accept("updates"):
            self.updates = (*self.updates, *line.names())
        elif line.accept("prefer"):
            buffer = self._buffer(line)
            self.preferences.append((buffer, line.integers()))
        else:
            declared[self._declared(line)] = line
        line.end()

    def _declared(self, line: Line) -> Buffer:
        kind = line.accept(NAME) or line.next
        if kind.text not in KINDS:
            line.fail(f"expected {', '.join(KINDS)}, updates or prefer, found {token_text(kind)}", kind)
        token = line.next
        name = line.name()
        if name in self.buffers:
            line.fail(f"there are two buffers {name}", token)
        line.expect(":")
        type_ = type_of(line)
        called = line.names() if line.accept("as") else [name]
        layout = line.integers() if line.accept("layout") else ()
        offset = line.integer() if line.accept("at") else None
        initial = self._contents(line, type_) if line.accept("=") else None
        buffer = Buffer(name, type_, kind.text, layout, initial)  # type: ignore[arg-type]  # one of KINDS
        self.buffers[name] = buffer
        for each in called:
            if each in self.listed[kind.text]:
                line.fail(f"there are two {kind.text}s {each}", token)
            self.listed[kind.text][each] = buffer
        if offset is not None:
            self.offsets[buffer] = offset
        return buffer

    def _contents(self, line: Line, type_: TensorType) -> Array:
        token = line.next
        if line.accept("@"):
            return self._array(line, type_)
        numbers = [line.number_text() for _ in line.items("[", "]")] if line.next_is("[") else [line.number_text()]
        try:
            return contents(numbers, type_)
        except ValueError as error:
            line.fail(str(error), token)

    def _array(self, line: Line, type_: TensorType) -> Array:
        token = line.next
        name = line.name()
        array = self.arrays.get(name)
        if array is None:
            line.fail(f"there is no array {name!r}; pass arrays={{{name!r}: ...}} (see arrays_of)", token)
        if not type_.accepts(array):
            line.fail(f"array {name!r} is {array.dtype}{list(array.shape)}, not {type_}", token)
        return array

    def _buffer(self, line: Line) -> Buffer:
        token = line.next
        name = line.name()
        if name not in self.buffers:
            line.fail(f"there is no buffer {name}", token)
        return self.buffers[name]

    def _instruction(self, line: Line, scope: Scope) -> Instruction:
        if line.accept("kernel"):
            title = line.title()
            line.expect(":")
            line.end()
            return Kernel(title, self._body(line, scope))
        if line.accept("repeat"):
            title = line.title()
            index, inner = self._index(line, scope)
            parts = line.accept("parts") is not None
            line.expect(":")
            line.end()
            body = tuple(self._instruction(member, inner) for member in self.block(line))
            return Repeat(title, index, body, parts)
        if line.accept("call"):
            return self._call(line)
        line.fail(f"expected kernel, repeat or call, found {token_text(line.next)}")

    def _call(self, line: Line) -> Call:
        title = line.title()
        line.expect(":")
        token = line.next
        name = line.name()
        function = self.functions.get(name)
        if function is None:
            line.fail(f"there is no function {name!r}; pass functions={{{name!r}: ...}} (see functions_of)", token)
        line.expect("(")
        inputs = [] if line.next_is(")") or line.next_is(";") else self._buffers(line)
        word = None
        if line.accept(";"):
            line.expect("word")
            word = -line.integer() if line.accept("-") else line.integer()
        line.expect(")")
        line.expect("->")
        outputs = self._buffers(line)
        line.end()
        try:
            return Call(title, replace(function, word=word), tuple(inputs), tuple(outputs))
        except InputError as error:
            line.fail(str(error), token)

    def _buffers(self, line: Line) -> list[Buffer]:
        buffers = [self._buffer(line)]
        while line.accept(","):
            buffers.append(self._buffer(line))
        return buffers

    # ---- statements

    def _body(self, outer: Line, scope: Scope) -> tuple[Statement, ...]:
        body: list[Statement] = []
        parts: dict[str, Expr] = {}
        for line in self.block(outer):
            token = line.next
            if line.accept("with"):
                self._part(line, {**scope, **parts}, parts)
                line.end()
                continue
            statement = self._statement(line, {**scope, **parts})
            if isinstance(statement, Let):
                scope = {**scope, statement.ref.name: statement.ref}
            body.append(statement)
            parts = {}
        if parts:
            line.fail("a part without a statement that uses it", token)
        return tuple(body)

    def _part(self, line: Line, scope: Scope, parts: dict[str, Expr]) -> None:
        """``NAME = expr``, added to ``parts``."""
        name = self._new(line, scope)
        line.expect("=")
        parts[name] = typed(Expressions(line, scope, self.buffers).read())

    def _statement(self, line: Line, scope: Scope) -> Statement:
        if line.accept("for"):
            return self._loop(line, scope, bool(line.next_is("serial") and line.accept("serial")), "for")
        if line.accept("do"):
            return self._loop(line, scope, bool(line.accept("serial")), "do")
        if line.accept("let"):
            name = self._new(line, scope)
            line.expect("=")
            value = typed(Expressions(line, scope, self.buffers).read())
            line.end()
            return Let(Ref(value.dtype, name), value)
        return self._stored(line, scope)

    def _loop(self, line: Line, scope: Scope, serial: bool, word: str) -> For:
        indices: list[Index] = []
        while word == "for":
            index, scope = self._index(line, scope)
            indices.append(index)
            if not line.accept(","):
                break
        line.expect(":")
        if line.next_is(END):
            return For(tuple(indices), self._body(line, scope), serial)
        return For(tuple(indices), (self._statement(line, scope),), serial)

    def _index(self, line: Line, scope: Scope) -> tuple[Index, Scope]:
        """``i<4``, and the scope with the index."""
        name = self._new(line, scope)
        line.expect("<")
        index = Index(line.integer(), name)
        return index, {**scope, name: index}

    def _new(self, line: Line, scope: Scope) -> str:
        """A name that means nothing here yet."""
        token = line.next
        name = line.name()
        undefined(line, name, token, scope, self.buffers)
        return name

    def _stored(self, line: Line, scope: Scope) -> Statement:
        buffer = self._buffer(line)
        expression = Expressions(line, scope, self.buffers)
        index = expression.subscripts("[", "]")
        sign = line.next
        line.at += 1
        if sign.text not in ("=", "+=", "*=", "max", "min", "and", "or"):
            line.fail(f"expected = or an accumulation such as +=, found {token_text(sign)}", sign)
        if sign.kind == NAME:
            line.expect("=")
        value = typed(expression.read(), buffer.dtype)
        line.end()
        if sign.text == "=":
            return Store(buffer, index, value)
        return Accumulate({"+=": "add", "*=": "mul"}.get(sign.text, sign.text), buffer, index, value)
