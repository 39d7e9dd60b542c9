"""Print statements and expressions of programs; the grammar stands in :mod:`glowtrain.program.text`.

A number alone has no element type: it takes that of the operands beside it, or of the buffer that it is stored to,
or i64. Where that is not its type, the type is printed behind it, as in ``0.5:f32``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Affine,
    Apply,
    Cast,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    expressions,
    walk,
)
from glowtrain.loops.affine import Atom, Quotient, Remainder
from glowtrain.names import Names
from glowtrain.program.interpret.vectorize import VectorFacts
from glowtrain.types import DType, boolean, i64

LINE = 118
"""A loop with one statement stands on one line if it is no longer than this."""

MESSAGE = 160
"""Expressions in messages are cut after this many characters."""

UNARY = 7
"""How strongly a sign binds."""
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "all", "or": "any"}
NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
RESERVED = frozenset({"do", "false", "for", "inf", "let", "nan", "serial", "true", "with"})
"""Words that are no names where they stand alone."""

_ACCUMULATE = {"add": "+=", "mul": "*="}
_PLAIN = re.compile(NAME, re.ASCII)


def quoted(name: str) -> str:
    """A name as it stands in text: in quotation marks unless it is a plain one."""
    if _PLAIN.fullmatch(name) and name not in RESERVED:
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def number_text(value: bool | int | float, dtype: DType) -> str:
    """The shortest text that reads back as the number in its element type."""
    if dtype == boolean:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_float:
        sign = "-" if math.isnan(value) and math.copysign(1, value) < 0 else ""
        return sign + str(dtype.numpy.type(value)).removesuffix(".0")
    return str(value)


def read_number(text: str, dtype: DType) -> bool | int | float:
    """What :func:`number_text` wrote. Raises ``ValueError`` for text that is no number of the type."""
    if dtype == boolean:
        if text not in ("true", "false"):
            raise ValueError(f"{text} is no bool; write true or false")
        return text == "true"
    if text in ("true", "false") or (dtype.is_integer and not re.fullmatch(r"-?\d+", text)):
        raise ValueError(f"{text} is no {dtype}")
    return int(text) if dtype.is_integer or (dtype.is_stored and re.fullmatch(r"-?\d+", text)) else float(text)


def indented(lines: Iterable[str]) -> Iterator[str]:
    """One step further to the right."""
    return (f"  {line}" for line in lines)


def expression_text(expr: Expr, bound: Iterable[Index] = ()) -> str:
    """One expression, for messages; ``bound`` are the indices of the loops around it, outermost first."""
    scope = PrintScope().opened(bound)
    parts = list(scope.named([expr]))
    return shortened("; ".join([scope.text(expr), *parts]))


def statement_text(statement: Statement, bound: Iterable[Index] = ()) -> str:
    """A statement on one line, for messages: a loop by its head, another one without the parts it shares."""
    scope = PrintScope().opened(bound)
    if isinstance(statement, For):
        return scope.head(statement, scope.opened(statement.indices))
    return shortened(list(scope.simple(statement))[-1])


def shortened(text: str) -> str:
    return text if len(text) <= MESSAGE else f"{text[: MESSAGE - 4]} ..."


def _loads(exprs: Iterable[Expr]) -> set[Load]:
    return {node for expr in exprs for node in walk(expr) if isinstance(node, Load)}


def _exprs(affine: Affine) -> Iterator[Expr]:
    """The expressions that an affine one is made of."""
    for atom, _ in affine.terms:
        if isinstance(atom, (Quotient, Remainder)):
            yield from _exprs(atom.dividend)
        else:
            yield atom


@dataclass
class PrintScope:
    """Names of the indices, refs and shared parts that are visible at one point."""

    names: Names = field(default_factory=Names)
    bindings: dict[Expr, str] = field(default_factory=dict)
    facts: VectorFacts = field(default_factory=VectorFacts)

    def opened(self, exprs: Iterable[Index | Ref]) -> PrintScope:
        inner = PrintScope(self.names.copy(), dict(self.bindings), self.facts)
        for expr in exprs:
            inner.name(expr, expr.name)
        return inner

    def name(self, expr: Expr, hint: str) -> str:
        self.bindings[expr] = quoted(self.names.fresh(hint))
        return self.bindings[expr]

    # ---- statements

    def body(self, body: Sequence[Statement]) -> Iterator[str]:
        scope = self.opened(())
        for statement in body:
            if isinstance(statement, For):
                yield from scope.loop(statement)
            else:
                yield from scope.simple(statement)

    def loop(self, loop: For) -> Iterator[str]:
        inner = self.opened(loop.indices)
        head = self.head(loop, inner)
        lines = list(inner.body(loop.body))
        if len(lines) == 1 and len(head) + 1 + len(lines[0]) <= LINE:
            yield f"{head} {lines[0]}"
            return
        yield head
        yield from indented(lines)

    def head(self, loop: For, inner: PrintScope) -> str:
        serial = "serial " if loop.serial else ""
        return f"for {serial}{inner.box(loop.indices)}:" if loop.indices else f"do {serial}".rstrip() + ":"

    def box(self, indices: Sequence[Index]) -> str:
        return ", ".join(f"{self.bindings[index]}<{index.extent}" for index in indices)

    def simple(self, statement: Statement) -> Iterator[str]:
        """A statement that is no loop, after the parts it shares."""
        if isinstance(statement, Let):
            self.name(statement.ref, statement.ref.name)
        scope = self.opened(())
        yield from (f"with {part}" for part in scope.named(expressions(statement)))
        yield scope.line(statement)

    def line(self, statement: Statement) -> str:
        match statement:
            case Let(ref=ref, value=value):
                return f"let {self.bindings[ref]} = {self.text(value)}"
            case Store(buffer=buffer, index=index, value=value):
                return f"{quoted(buffer.name)}[{self.subscripts(index)}] = {self.text(value, 0, buffer.dtype)}"
            case Accumulate(op=op, buffer=buffer, index=index, value=value):
                sign = _ACCUMULATE.get(op, f"{op}=")
                return f"{quoted(buffer.name)}[{self.subscripts(index)}] {sign} {self.text(value, 0, buffer.dtype)}"
        raise TypeError(f"{statement!r} is a loop")

    def named(self, exprs: Sequence[Expr]) -> Iterator[str]:
        """``NAME = part`` for the parts that these expressions use more than once, inner parts first."""
        for part in _shared(exprs, self):
            text = self.text(part)
            yield f"{self.name(part, 's')} = {text}"

    # ---- expressions

    def subscripts(self, index: Sequence[Expr]) -> str:
        return ", ".join(self.text(i) for i in index)

    def text(self, expr: Expr, level: int = 0, expected: DType | None = None) -> str:
        """The expression, in parentheses where it binds less than ``level``.

        ``expected`` is the type that a number without one has here (``None``: i64).
        """
        if expr in self.bindings:
            return self.bindings[expr]
        affine = self.resolved(expr)
        if affine is not None:
            return self._affine(affine, level) if affine.terms else _constant(affine.constant, i64, expected)
        match expr:
            case Const(value=value, dtype=dtype):
                return _constant(value, dtype, expected)
            case Index(name=name) | Ref(name=name):
                return f"{name}?"  # not bound here: the verifier's business
            case Load(buffer=buffer, index=index, fill=fill):
                tail = "" if fill is None else f"; fill {number_text(fill, buffer.dtype)}"
                return f"{quoted(buffer.name)}[{self.subscripts(index)}{tail}]"
            case Cast(value=value, dtype=dtype):
                return f"{dtype}({self.text(value)})"
            case Reduce():
                return self._reduce(expr, expected)
            case Apply(function="bitcast", arguments=(value,), dtype=dtype):
                return f"bits.{dtype}({self.text(value)})"
            case Apply():
                return self._apply(expr, level, expected)
        raise TypeError(f"{expr!r} is not an expression")

    def resolved(self, expr: Expr) -> Affine | None:
        """The affine expression as which integer arithmetic is printed; ``None`` for what is printed as it is, as where
        an element is read that makes no difference."""
        if not isinstance(expr, Apply) or expr.dtype != i64:
            return None
        affine = self.facts.affine(expr)
        alone = affine == Affine(0, ((expr, 1),))
        return None if alone or not _loads([expr]) <= _loads(_exprs(affine)) else affine

    def bare(self, expr: Expr) -> bool:
        """Whether an expression consists of numbers alone, so that its text does not say its element type."""
        if expr in self.bindings:
            return False
        affine = self.resolved(expr)
        if affine is not None:
            return not affine.terms
        match expr:
            case Const(dtype=dtype):
                return dtype != boolean
            case Reduce(body=body):
                return self.bare(body)
            case Apply(function=function, arguments=arguments) if function != "bitcast":
                predicate = function in FUNCTIONS and FUNCTIONS[function].predicate
                return not predicate and all(map(self.bare, arguments[function == "select" :]))
        return False

    def _apply(self, expr: Apply, level: int, expected: DType | None) -> str:
        function, arguments = expr.function, expr.arguments
        record = FUNCTIONS.get(function)
        if record is not None and record.predicate:
            expected = None
        if record is not None and record.infix and len(arguments) == 2:
            own = record.level
            left, right = self._operands(arguments, (own + record.predicate, own + 1), expected)
            text = f"{left} {record.infix} {right}"
            return f"({text})" if own < level else text
        if function == "neg" and len(arguments) == 1:
            argument = self.text(arguments[0], UNARY, expected)
            text = f"-({argument})" if isinstance(arguments[0], Const) else f"-{argument}"
            return f"({text})" if level > 6 else text
        condition = [self.text(arguments[0])] if function == "select" else []
        typed = arguments[len(condition) :]
        return f"{function}({', '.join([*condition, *self._operands(typed, [0] * len(typed), expected)])})"

    def _operands(self, arguments: Sequence[Expr], levels: Sequence[int], expected: DType | None) -> list[str]:
        """Operands of one type: the first that says its type says it for all; else the first number does."""
        common = next((argument.dtype for argument in arguments if not self.bare(argument)), expected)
        texts = []
        for argument, level in zip(arguments, levels, strict=True):
            texts.append(self.text(argument, level, common))
            common = common or argument.dtype
        return texts

    def _reduce(self, reduce: Reduce, expected: DType | None) -> str:
        inner = self.opened(reduce.indices)
        box = inner.box(reduce.indices) + (f" by {reduce.partials}" if reduce.partials else "")
        parts = [f"with {part}; " for part in inner.named([reduce.body])]
        body = inner.text(reduce.body, 0, expected)
        return f"{REDUCTIONS.get(reduce.op, reduce.op)}({box}: {''.join(parts)}{body})"

    def _affine(self, affine: Affine, level: int) -> str:
        """An affine expression: the terms, then the constant."""
        text, count = "", len(affine.terms) + bool(affine.constant)
        for atom, factor in affine.terms:
            size = abs(factor)
            factored = size != 1 or factor < 0 or (count == 1 and level > 6)
            name = self._atom(atom, 6 if factored else 5)
            term = name if size == 1 else f"{size}*{name}"
            text += f" {'-' if factor < 0 else '+'} {term}" if text else f"{'-' if factor < 0 else ''}{term}"
        if affine.constant or not text:
            text += f" {'-' if affine.constant < 0 else '+'} {abs(affine.constant)}" if text else str(affine.constant)
        simple = count == 1 and not (affine.terms and affine.terms[0][1] < 0)
        loose = (level > 5 and not simple) or (level > 6 and bool(affine.terms) and affine.terms[0][1] != 1)
        return f"({text})" if loose else text

    def _atom(self, atom: Atom, level: int) -> str:
        if isinstance(atom, (Quotient, Remainder)):
            sign = "//" if isinstance(atom, Quotient) else "%"
            text = f"{self._affine(atom.dividend, 7)} {sign} {atom.divisor}"
            return f"({text})" if level > 5 else text
        return self.text(atom, level + 1)


def _constant(value: bool | int | float, dtype: DType, expected: DType | None) -> str:
    text = number_text(value, dtype)
    return text if dtype in (expected or i64, boolean) else f"{text}:{dtype}"


def _shared(exprs: Sequence[Expr], scope: PrintScope) -> list[Expr]:
    """Parts that are printed more than once and need no index of a reduction among ``exprs``, inner parts first."""
    order: list[Expr] = []
    uses: dict[Expr, int] = {}
    free: dict[Expr, frozenset[Expr]] = {}
    inside: set[Expr] = set()
    stack = [(expr, False) for expr in reversed(exprs)]
    while stack:
        expr, done = stack.pop()
        bound = expr.indices if isinstance(expr, Reduce) else ()
        if done:
            order.append(expr)
            free[expr] = frozenset[Expr]().union(*(free[child] for child in _printed(expr, scope))).difference(bound)
            continue
        uses[expr] = uses.get(expr, 0) + 1
        if uses[expr] > 1:
            continue
        if expr in scope.bindings or isinstance(expr, Index):
            free[expr] = frozenset({expr})
            continue
        inside.update(bound)
        stack.append((expr, True))
        stack.extend((child, False) for child in reversed(_printed(expr, scope)))
    return [e for e in order if uses[e] > 1 and _worth_a_name(e, scope) and free[e].isdisjoint(inside)]


def _printed(expr: Expr, scope: PrintScope) -> Sequence[Expr]:
    """The sub-expressions whose texts stand in the expression's own, in order."""
    affine = scope.resolved(expr)
    return expr.children if affine is None else list(_atoms(affine))


def _atoms(affine: Affine) -> Iterator[Expr]:
    for atom, _ in affine.terms:
        if isinstance(atom, (Quotient, Remainder)):
            yield from _atoms(atom.dividend)
        else:
            yield atom


def _worth_a_name(expr: Expr, scope: PrintScope) -> bool:
    """No leaf, and no index arithmetic that an affine expression resolves."""
    return isinstance(expr, (Apply, Cast, Reduce)) and scope.resolved(expr) is None


__all__ = ["PrintScope", "expression_text", "indented", "number_text", "quoted", "read_number", "statement_text"]
