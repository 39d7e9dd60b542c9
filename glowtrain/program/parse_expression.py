"""Parse expressions of a program's text, with the element types of numbers from what stands beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from glowtrain.loops import FUNCTIONS, Apply, Buffer, Cast, Const, Expr, Index, Load, Reduce
from glowtrain.loops.functions import INFIX, ScalarFunction
from glowtrain.program.lines import NAME, NUMBER, STRING, Line, Token, dtype_of, token_text, unquoted
from glowtrain.program.statement_text import REDUCTIONS, RESERVED, read_number
from glowtrain.types import DTYPES, DType, boolean, i64

Scope = Mapping[str, Expr]
"""The indices, refs and shared parts that are visible, by name."""

_SIGNS: Mapping[str, ScalarFunction] = {**INFIX, "//": FUNCTIONS["div"]}
_OPERATIONS = {word: op for op, word in REDUCTIONS.items()}


@dataclass(frozen=True)
class Untyped:
    """An expression of numbers alone: it is built for the element type that its surroundings give it."""

    build: Callable[[DType | None], Expr]


Parsed = Expr | Untyped


def typed(parsed: Parsed, dtype: DType | None = None) -> Expr:
    """The expression; numbers alone become elements of ``dtype`` (``None``: i64)."""
    return parsed.build(dtype) if isinstance(parsed, Untyped) else parsed


def undefined(line: Line, name: str, token: Token, scope: Scope, buffers: Mapping[str, Buffer]) -> None:
    """Refuse a name that is to be defined if it means something already."""
    if token.kind == NAME and name in RESERVED:
        line.fail(f"{name} is a word of the grammar; as a name it stands in double quotes", token)
    if name in scope or name in buffers:
        line.fail(f"{name} is {'a buffer' if name in buffers else 'defined already'}", token)


@dataclass
class Expressions:
    """Reads expressions from a line."""

    line: Line
    scope: Scope
    buffers: Mapping[str, Buffer]

    def read(self, level: int = 1) -> Parsed:
        """An expression that binds at least as strongly as ``level``."""
        left = self._signed()
        while (sign := _SIGNS.get(self.line.next.text)) is not None and sign.level >= level:
            token = self.line.next
            self.line.at += 1
            left = self._apply(sign, [left, self.read(sign.level + 1)], token)
        return left

    def subscripts(self, opening: str, closing: str) -> tuple[Expr, ...]:
        return tuple(typed(self.read(), i64) for _ in self.line.items(opening, closing))

    def _signed(self) -> Parsed:
        line, token = self.line, self.line.next
        if line.next_is("-", NUMBER) or line.next_is("-", "inf") or line.next_is("-", "nan") or line.next_is(NUMBER):
            return self._number()
        if line.accept("-"):
            return self._apply(FUNCTIONS["neg"], [self._signed()], token)
        return self._primary()

    def _primary(self) -> Parsed:
        line, token = self.line, self.line.next
        if line.accept("("):
            inner = self.read()
            line.expect(")")
            return inner
        if token.kind not in (NAME, STRING):
            line.fail(f"expected an expression, found {token_text(token)}")
        if line.next_is("true") or line.next_is("false"):
            return Const(line.number_text() == "true", boolean)
        if line.next_is("inf") or line.next_is("nan"):
            return self._number()
        line.at += 1
        if line.next_is("["):
            return self._load(token)
        if line.next_is("(") and token.kind == NAME:
            return self._called(token)
        name = unquoted(token)
        if name not in self.scope:
            hint = "; subscripts follow the name of a buffer in brackets" if name in self.buffers else ""
            line.fail(f"{name} is no index and no value that is defined here{hint}", token)
        return self.scope[name]

    def _number(self) -> Parsed:
        line, token = self.line, self.line.next
        text = line.number_text()

        def build(dtype: DType | None) -> Expr:
            try:
                return Const(read_number(text, dtype or i64), dtype or i64)
            except ValueError as error:
                line.fail(f"{error}" + ("" if dtype else "; write its type behind it, as in 0.5:f32"), token)

        return build(dtype_of(line)) if line.accept(":") else Untyped(build)

    def _load(self, token: Token) -> Load:
        line, name = self.line, unquoted(token)
        if name not in self.buffers:
            line.fail(f"there is no buffer {name}", token)
        buffer = self.buffers[name]
        line.expect("[")
        index: list[Expr] = []
        while not line.next_is("]") and not line.next_is(";"):
            if index:
                line.expect(",", "',', ';' or ']'")
            index.append(typed(self.read(), i64))
        fill = None
        if line.accept(";"):
            line.expect("fill")
            at = line.next
            try:
                fill = read_number(line.number_text(), buffer.dtype)
            except ValueError as error:
                line.fail(str(error), at)
        line.expect("]")
        return Load(buffer, tuple(index), fill)

    def _called(self, token: Token) -> Parsed:
        """What is written as a function: a conversion, a reduction or a function."""
        line, name = self.line, token.text
        if name in DTYPES:
            return Cast(self._only(), DTYPES[name])
        if name.startswith("bits.") and name.removeprefix("bits.") in DTYPES:
            return Apply("bitcast", (self._only(),), DTYPES[name.removeprefix("bits.")])
        if name in _OPERATIONS and self._is_box():
            return self._reduce(_OPERATIONS[name])
        if name not in FUNCTIONS or name == "bitcast":
            line.fail(f"there is no function {name}", token)
        return self._apply(FUNCTIONS[name], [self.read() for _ in line.items("(", ")")], token)

    def _only(self) -> Expr:
        self.line.expect("(")
        inner = typed(self.read())
        self.line.expect(")")
        return inner

    def _is_box(self) -> bool:
        """Whether indices with their extents follow, ended by a colon: ``max(i<3: ...)``, not ``max(i<3, j<4)``."""
        line, start = self.line, self.line.at
        line.at += 1
        while line.next_is(NAME, "<", NUMBER) or line.next_is(STRING, "<", NUMBER):
            line.at += 3
            line.accept(",")
        is_box = line.next_is(":") or line.next_is("by", NUMBER, ":")
        line.at = start
        return is_box

    def _reduce(self, op: str) -> Parsed:
        line = self.line
        line.expect("(")
        indices: list[Index] = []
        scope = dict(self.scope)
        while not line.next_is(":") and not line.next_is("by", NUMBER):
            if indices:
                line.expect(",")
            token = line.next
            name = line.name()
            line.expect("<")
            undefined(line, name, token, scope, self.buffers)
            scope[name] = index = Index(line.integer(), name)
            indices.append(index)
        partials = line.integer() if line.accept("by") else 0
        line.expect(":")
        inner = Expressions(line, scope, self.buffers)
        while line.accept("with"):
            token = line.next
            name = line.name()
            undefined(line, name, token, scope, self.buffers)
            line.expect("=")
            scope[name] = typed(inner.read())
            line.expect(";")
        body = inner.read()
        line.expect(")")
        if isinstance(body, Untyped):
            build = body.build
            return Untyped(lambda dtype: Reduce(op, tuple(indices), build(dtype), partials))
        return Reduce(op, tuple(indices), body, partials)

    def _apply(self, function: ScalarFunction, arguments: Sequence[Parsed], token: Token) -> Parsed:
        """A function of operands of one type: that of the first which has one, else the type that is wanted."""
        if len(arguments) != function.arity:
            self.line.fail(f"{function.name} takes {function.arity} operands, not {len(arguments)}", token)
        first = 1 if function.name == "select" else 0
        own = next((argument.dtype for argument in arguments[first:] if not isinstance(argument, Untyped)), None)

        def build(wanted: DType | None) -> Expr:
            operands = [typed(argument, boolean) for argument in arguments[:first]]
            operands += [typed(argument, own or wanted) for argument in arguments[first:]]
            return self._applied(function, operands, token)

        return Untyped(build) if own is None and not function.predicate else build(None)

    def _applied(self, function: ScalarFunction, operands: list[Expr], token: Token) -> Apply:
        typed_operands = operands[1:] if function.name == "select" else operands
        dtypes = list(dict.fromkeys(operand.dtype for operand in typed_operands))
        if function.name == "select" and operands[0].dtype != boolean:
            self.line.fail(f"the condition of a select is {operands[0].dtype}, not bool", token)
        if len(dtypes) > 1:
            types = " and ".join(map(str, dtypes))
            self.line.fail(f"{function.name} of {types}; its operands must have one type", token)
        return Apply(function.name, tuple(operands), boolean if function.predicate else dtypes[0])
