"""The text form of a program: a listing to read, the same for equal programs.

    program  ::= "program" NAME buffer* instruction*
    buffer   ::= kind NAME ":" type ["layout" "[" axis,* "]"] ["=" number] ["updated"]
    instruction ::= "kernel" NAME ":" statement*  |  "repeat" NAME index "<" extent ":" instruction*
    statement ::= "for" ["serial"] index "<" extent,* ":" statement*
               | "let" NAME "=" expr
               | NAME "[" expr,* "]" ("=" | "+=" | "*=" | "max=" | "min=" | "and=" | "or=") expr
               | "with" NAME "=" expr                       a part that the next statement uses more than once
    expr     ::= NAME "[" expr,* [";" "fill" number] "]"
               | ("sum"|"prod"|"max"|"min"|"all"|"any") "(" index "<" extent,* ":" expr ")"
               | dtype "(" expr ")" | FUNCTION "(" expr,* ")" | infix arithmetic

Subscripts are printed in their affine form. A sum may begin with "with" clauses, ended by semicolons. In the text of
a plan every kernel lists its operands with their places in the arena.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Affine,
    Apply,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Names,
    Reduce,
    Ref,
    Statement,
    Store,
    expressions,
    walk,
)
from glowtrain.loops.affine import Atom, Quotient, Remainder
from glowtrain.program.interpret.vectorize import Facts
from glowtrain.program.memory.plan import Plan
from glowtrain.program.passes.schedule import lifetimes
from glowtrain.program.program import Instruction, Kernel, Program
from glowtrain.types import DType, i64

LINE = 118
"""A loop with one statement stands on one line if it is no longer than this."""

MESSAGE = 160
"""Expressions in messages are cut after this many characters."""

_UNARY = 7
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "all", "or": "any"}
_ACCUMULATE = {"add": "+=", "mul": "*="}


def to_text(program: Program) -> str:
    """The whole program, ended with a newline."""
    return (
        "\n".join(
            [f"program {program.name}", *_declarations(program), *_Printer(program).instructions(program.instructions)]
        )
        + "\n"
    )


def plan_text(plan: Plan) -> str:
    """A plan: arena and peak, the place and the life of every activation, and the program with operand lists."""
    count = sum(1 for _ in plan.program.kernels)
    title = (
        f"plan {plan.program.name}: arena {plan.arena:,} bytes, peak {plan.peak:,} bytes, overhead {plan.overhead:.3f}"
    )
    table = _places(plan)
    printer = _Printer(plan.program, plan)
    listing = printer.instructions(plan.program.instructions)
    return (
        "\n".join(
            [
                title,
                f"  {len(plan.offsets)} activations, {count} kernels",
                *table,
                *_declarations(plan.program),
                *listing,
            ]
        )
        + "\n"
    )


def _places(plan: Plan) -> Iterator[str]:
    """One line for each activation, by offset; lives are positions of instructions of the outermost level."""
    lives = lifetimes(plan.program.instructions)
    if plan.offsets:
        yield f"  {'offset':>12} {'bytes':>12}  {'life':<9} buffer"
    for buffer, offset in sorted(plan.offsets.items(), key=lambda item: (item[1], lives.get(item[0], (0, 0)))):
        first, last = lives.get(buffer, (0, 0))
        yield f"  {offset:>12,} {buffer.type.nbytes:>12,}  {f'{first}..{last}':<9} {buffer.name}: {buffer.type}"


def _declarations(program: Program) -> Iterator[str]:
    for buffer in program.buffers:
        notes = (
            [f" layout [{','.join(map(str, buffer.layout))}]"]
            if buffer.layout != tuple(range(buffer.type.rank))
            else []
        )
        if buffer.kind == "constant" and buffer.initial is not None and buffer.initial.size == 1:
            notes.append(f" = {_number(buffer.initial.reshape(-1)[0].item(), buffer.dtype)}")
        if buffer.kind == "variable" and buffer in (program.variables.get(name) for name in program.updates):
            notes.append(" updated")
        yield f"  {buffer.kind:<10} {buffer.name}: {buffer.type}{''.join(notes)}"


@dataclass
class _Printer:
    program: Program
    plan: Plan | None = None

    def instructions(self, instructions: Sequence[Instruction]) -> Iterator[str]:
        scope = _Scope(Names({buffer.name: 1 for buffer in self.program.buffers}))
        for position, instruction in enumerate(instructions):
            number = f"#{position} " if self.plan is not None else ""
            yield from self._instruction(instruction, number, scope)

    def _instruction(self, instruction: Instruction, number: str, scope: _Scope) -> Iterator[str]:
        if isinstance(instruction, Kernel):
            yield f"{number}kernel {instruction.name}:"
            if self.plan is not None:
                yield f"  {self._operands(instruction)}"
            yield from indented(scope.body(instruction.body))
            return
        inner = scope.opened([instruction.index])
        yield f"{number}repeat {instruction.name} {inner.box([instruction.index])}:"
        for member in instruction.body:
            yield from indented(self._instruction(member, "", inner))

    def _operands(self, kernel: Kernel) -> str:
        groups: dict[str, list[str]] = {"@out": [], "@inout": [], "@in": []}
        reads, writes = set(kernel.reads), set(kernel.writes)
        for buffer in kernel.operands:
            mode = "@in" if buffer not in writes else "@inout" if buffer in reads else "@out"
            groups[mode].append(self._place(buffer))
        return "  ".join(f"{mode} {', '.join(members)}" for mode, members in groups.items() if members)

    def _place(self, buffer: Buffer) -> str:
        offset = self.plan.offsets.get(buffer) if self.plan is not None else None
        return buffer.name if offset is None else f"{buffer.name}@{offset}"


def indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def expression_text(expr: Expr, bound: Iterable[Index] = ()) -> str:
    """One expression, for messages; ``bound`` are the indices of the loops around it, outermost first."""
    scope = _Scope().opened(bound)
    parts = list(scope.parts([expr]))
    return shortened("; ".join([scope.text(expr), *parts]))


def statement_text(statement: Statement, bound: Iterable[Index] = ()) -> str:
    """A statement on one line, for messages: a loop by its head, another one without the parts it shares."""
    scope = _Scope().opened(bound)
    if isinstance(statement, For):
        return scope.head(statement, scope.opened(statement.indices))
    return shortened(list(scope.simple(statement))[-1])


def shortened(text: str) -> str:
    return text if len(text) <= MESSAGE else f"{text[: MESSAGE - 4]} ..."


@dataclass
class _Scope:
    """Names of the indices, refs and shared parts that are visible at one place."""

    names: Names = field(default_factory=Names)
    known: dict[Expr, str] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    shared: dict[Reduce | None, list[Expr]] = field(default_factory=dict)

    def opened(self, exprs: Iterable[Index | Ref]) -> _Scope:
        inner = _Scope(Names(dict(self.names.taken)), dict(self.known), self.facts, self.shared)
        for expr in exprs:
            inner.name(expr, expr.name)
        return inner

    def name(self, expr: Expr, hint: str) -> str:
        self.known[expr] = self.names.fresh(hint)
        return self.known[expr]

    def body(self, body: Sequence[Statement]) -> Iterator[str]:
        scope = self.opened(())
        for statement in body:
            if isinstance(statement, For):
                yield from scope.loop(statement)
            else:
                yield from scope.simple(statement)

    def loop(self, loop: For) -> Iterator[str]:
        inner = self.opened(loop.indices)
        head = self.head(loop, inner) if loop.indices else ("do serial:" if loop.serial else "do:")
        lines = list(inner.body(loop.body))
        if len(lines) == 1 and len(head) + 1 + len(lines[0]) <= LINE:
            yield f"{head} {lines[0]}"
            return
        yield head
        yield from indented(lines)

    def head(self, loop: For, inner: _Scope) -> str:
        return f"for {'serial ' if loop.serial else ''}{inner.box(loop.indices)}:"

    def box(self, indices: Sequence[Index]) -> str:
        return ", ".join(f"{self.known[index]}<{index.extent}" for index in indices)

    def simple(self, statement: Statement) -> Iterator[str]:
        """A statement that is no loop, after the parts it shares."""
        scope = self.opened(())
        yield from scope.parts(expressions(statement))
        yield scope.line(statement)
        if isinstance(statement, Let):
            self.name(statement.ref, statement.ref.name)

    def parts(self, exprs: Sequence[Expr]) -> Iterator[str]:
        """Name what ``exprs`` use more than once: parts of their reductions are named where those are printed."""
        self.shared = _shared(exprs, self.facts)
        yield from self.named(None)

    def named(self, owner: Reduce | None) -> Iterator[str]:
        for part in self.shared.get(owner, ()):
            text = self.text(part)
            yield f"with {self.name(part, 's')} = {text}"

    def line(self, statement: Statement) -> str:
        match statement:
            case Let(ref=ref, value=value):
                return f"let {self.opened([ref]).known[ref]} = {self.text(value)}"
            case Store(buffer=buffer, index=index, value=value):
                return f"{buffer.name}[{self.subscripts(index)}] = {self.text(value)}"
            case Accumulate(op=op, buffer=buffer, index=index, value=value):
                sign = _ACCUMULATE.get(op, f"{op}=")
                return f"{buffer.name}[{self.subscripts(index)}] {sign} {self.text(value)}"
        raise TypeError(f"{statement!r} is a loop")

    def subscripts(self, index: Sequence[Expr]) -> str:
        return ", ".join(self.text(i) for i in index)

    def text(self, expr: Expr, level: int = 0) -> str:
        """The expression, in parentheses where it binds less than ``level``."""
        if expr in self.known:
            return self.known[expr]
        if expr.dtype == i64 and not isinstance(expr, (Reduce, Load, Cast)):
            form = self.facts.form(expr)
            if form != Affine(0, ((expr, 1),)):
                return self.form(form, level)
        return self._plain(expr, level)

    def _plain(self, expr: Expr, level: int) -> str:
        match expr:
            case Const(value=value, dtype=dtype):
                return _number(value, dtype)
            case Index(name=name) | Ref(name=name):
                return f"{name}?"  # not bound here: the verifier's business
            case Load(buffer=buffer, index=index, fill=fill):
                tail = "" if fill is None else f"; fill {_number(fill, buffer.dtype)}"
                return f"{buffer.name}[{self.subscripts(index)}{tail}]"
            case Cast(value=value, dtype=dtype):
                return f"{dtype}({self.text(value)})"
            case Reduce():
                return self._reduce(expr)
            case Apply(function="bitcast", arguments=(value,), dtype=dtype):
                return f"bits.{dtype}({self.text(value)})"
            case Apply(function=function, arguments=arguments):
                return self._apply(function, arguments, level)
        raise TypeError(f"{expr!r} is not an expression")

    def _apply(self, function: str, arguments: Sequence[Expr], level: int) -> str:
        record = FUNCTIONS.get(function)
        if record is not None and record.infix and len(arguments) == 2:
            own = record.level
            left = self.text(arguments[0], own + record.predicate)
            text = f"{left} {record.infix} {self.text(arguments[1], own + 1)}"
            return f"({text})" if own < level else text
        if function == "neg":
            text = f"-{self.text(arguments[0], _UNARY)}"
            return f"({text})" if level > 6 else text
        return f"{function}({', '.join(self.text(argument) for argument in arguments)})"

    def _reduce(self, reduce: Reduce) -> str:
        inner = self.opened(reduce.indices)
        parts = [f"{part}; " for part in inner.named(reduce)]
        box, body = inner.box(reduce.indices), inner.text(reduce.body)
        box += f" by {reduce.partials}" if reduce.partials else ""
        return f"{_REDUCTIONS.get(reduce.op, reduce.op)}({box}: {''.join(parts)}{body})"

    def form(self, form: Affine, level: int) -> str:
        """An affine form: the terms, then the constant."""
        text = ""
        for atom, factor in form.terms:
            size = abs(factor)
            name = self._atom(atom, 6 if size != 1 or factor < 0 else 5)
            term = name if size == 1 else f"{size}*{name}"
            text += f" {'-' if factor < 0 else '+'} {term}" if text else f"{'-' if factor < 0 else ''}{term}"
        if form.constant or not text:
            text += f" {'-' if form.constant < 0 else '+'} {abs(form.constant)}" if text else str(form.constant)
        count = len(form.terms) + bool(form.constant)
        simple = count == 1 and not (form.terms and form.terms[0][1] < 0)
        loose = (level > 5 and not simple) or (level > 6 and bool(form.terms) and form.terms[0][1] != 1)
        return f"({text})" if loose else text

    def _atom(self, atom: Atom, level: int) -> str:
        if isinstance(atom, (Quotient, Remainder)):
            sign = "//" if isinstance(atom, Quotient) else "%"
            text = f"{self.form(atom.dividend, 7)} {sign} {atom.divisor}"
            return f"({text})" if level > 5 else text
        return self.known[atom] if atom in self.known else self._plain(atom, level + 1)


def _shared(exprs: Sequence[Expr], facts: Facts) -> dict[Reduce | None, list[Expr]]:
    """Parts used more than once, by the innermost Reduce whose index they need (``None``: none), inner parts first."""
    order, uses, owners = _visit(exprs)
    found: dict[Reduce | None, list[Expr]] = {}
    for expr in order:
        if uses[expr] > 1 and _worth_a_name(expr, facts):
            found.setdefault(_owner(expr, owners, facts), []).append(expr)
    return found


def _visit(exprs: Sequence[Expr]) -> tuple[list[Expr], dict[Expr, int], dict[Index, Reduce]]:
    """Expressions children first, how many places use each, and the Reduce that binds each index."""
    order: list[Expr] = []
    uses: dict[Expr, int] = {}
    owners: dict[Index, Reduce] = {}
    stack = [(expr, False) for expr in reversed(exprs)]
    while stack:
        expr, done = stack.pop()
        if done:
            order.append(expr)
            continue
        uses[expr] = uses.get(expr, 0) + 1
        if uses[expr] > 1:
            continue
        if isinstance(expr, Reduce):
            owners.update(dict.fromkeys(expr.indices, expr))
        stack.append((expr, True))
        stack.extend((child, False) for child in reversed(expr.children))
    return order, uses, owners


def _worth_a_name(expr: Expr, facts: Facts) -> bool:
    """No leaf, and no index arithmetic that the affine form resolves."""
    if isinstance(expr, (Const, Index, Ref, Load)):
        return False
    return expr.dtype != i64 or isinstance(expr, (Cast, Reduce)) or facts.form(expr) == Affine(0, ((expr, 1),))


def _owner(expr: Expr, owners: dict[Index, Reduce], facts: Facts) -> Reduce | None:
    """The innermost of the reductions whose indices occur."""
    needed = [owners[index] for index in sorted(facts.free(expr), key=lambda i: (i.name, i.extent)) if index in owners]
    innermost: Reduce | None = None
    for reduce in needed:
        if innermost is None or reduce in set(walk(innermost.body)):
            innermost = reduce
    return innermost


def _number(value: bool | int | float, dtype: DType) -> str:
    """The shortest text that reads back as the number in its element type."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float) or not dtype.is_float:
        return str(value)
    text = str(dtype.numpy.type(value))
    return text.removesuffix(".0")


__all__ = ["expression_text", "plan_text", "statement_text", "to_text"]
