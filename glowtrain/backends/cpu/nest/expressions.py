"""Expressions of the loop language as LLVM values, scalar or along vector lanes.

Everything that is the same for all lanes stays scalar until an operation needs it on lanes. What does not depend on a
loop is computed before it (see :meth:`Expressions.hoist`); the rest is remembered by scope, so shared sub-expressions
are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from glowtrain.backends.cpu import scalar
from glowtrain.backends.cpu.emit import Function, Text, vector
from glowtrain.backends.cpu.nest.analysis import Free
from glowtrain.backends.cpu.nest.scope import Lanes, Scopes
from glowtrain.backends.cpu.target import Target
from glowtrain.loops import (
    Accumulate,
    Affine,
    Apply,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Index,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    address,
    affine,
    expressions,
    within,
)
from glowtrain.loops.affine import Atom, Quotient, Remainder

_UNBOUND = 1 << 30


@dataclass(frozen=True)
class Context:
    """How code is being written: which index runs along the lanes, how many there are, which of them exist."""

    index: Index | None = None
    width: int = 1
    mask: Text | None = None


class Expressions:
    """Writes expressions into a function. ``pointers`` gives each buffer's base address."""

    def __init__(self, f: Function, target: Target, pointers: dict[Buffer, Text], written: Iterable[Buffer]) -> None:
        self.f = f
        self.target = target
        self.pointers = pointers
        self.written = frozenset(written)
        self.free = Free()
        self.scopes: Scopes[Lanes] = Scopes()
        self.levels: dict[Expr, int] = {}
        self.context = Context()
        self._forms: dict[Load, Affine] = {}
        self._volatiles: dict[Expr, bool] = {}

    @contextmanager
    def along(self, context: Context) -> Iterator[None]:
        """Write the body in another context."""
        before, self.context = self.context, context
        with self.scopes.inner():
            yield
        self.context = before

    def bind(self, name: Expr, value: Lanes) -> None:
        """Give an index or ref its value; what is bound later depends on what was bound before."""
        self.levels[name] = len(self.levels)
        self.scopes.set(name, value)

    def bound(self, names: Iterable[Expr]) -> bool:
        """Whether all these indices and refs have values here."""
        return all(name is self.context.index or self.scopes.get(name) is not None for name in names)

    def _uniform(self, names: Iterable[Expr]) -> bool:
        """Whether all these have values here, the same on all lanes."""
        found = [self.scopes.get(name) for name in names]
        return all(value is not None and value.width == 1 for value in found)

    def lanes(self, value: Lanes, dtype: str) -> Text:
        """The text of a value on all lanes of the context."""
        if value.width == self.context.width:
            return value.text
        if not value.text.startswith("%"):
            return _splat_constant(value.text, scalar.register_type(dtype, 1), self.context.width)
        key = ("splat", value.text, self.context.width)
        known = self.scopes.get(key)
        if known is None:
            text = scalar.splat(self.f, value.text, dtype, self.context.width)
            known = self.scopes.set(key, Lanes(text, self.context.width))
        return known.text

    def emit(self, expr: Expr) -> Lanes:
        """The value of an expression."""
        known = self.scopes.get(expr)
        if known is not None:
            return known
        value = self._emit(expr)
        if not self._volatile(expr):
            self.scopes.set(expr, value)
        return value

    def full(self, expr: Expr) -> Text:
        """The value on all lanes."""
        return self.lanes(self.emit(expr), expr.dtype.name)

    def _volatile(self, expr: Expr) -> bool:
        """Whether the value may change between statements: it reads what the kernel writes."""
        known = self._volatiles.get(expr)
        if known is None:
            written = isinstance(expr, Load) and expr.buffer in self.written
            known = written or any(self._volatile(child) for child in expr.children)
            self._volatiles[expr] = known
        return known

    def _emit(self, expr: Expr) -> Lanes:
        match expr:
            case Const(value=value, dtype=dtype):
                return Lanes(scalar.constant(value, dtype.name, 1))
            case Apply():
                return self._apply(expr)
            case Cast(value=value, dtype=dtype):
                inner = self.emit(value)
                text = scalar.cast(self.f, inner.text, value.dtype.name, dtype.name, inner.width, self.target)
                return Lanes(text, inner.width)
            case Load():
                return self.load(expr)
            case Reduce():
                return self.reduce([expr])[0]
            case Index() if expr is self.context.index:
                return self._lane_index()
            case Index(extent=1):
                return Lanes("0")
        raise AssertionError(f"{expr} is used outside of its scope in {self.f.name}")

    def _apply(self, expr: Apply) -> Lanes:
        if expr.function == "bitcast":
            return self._bitcast(expr)
        values = [self.emit(argument) for argument in expr.arguments]
        width = max(value.width for value in values)
        key = ("apply", expr.function, expr.arguments[-1].dtype.name, *(value.text for value in values), width)
        known = self.scopes.get(key)
        if known is None:
            types = [argument.dtype.name for argument in expr.arguments]
            texts = [v.text if width == 1 else self.lanes(v, t) for v, t in zip(values, types, strict=True)]
            text = scalar.apply(self.f, expr.function, texts, types[-1], width, self.target)
            known = self.scopes.set(key, Lanes(text, width))
        return known

    def _bitcast(self, expr: Apply) -> Lanes:
        (value,) = expr.arguments
        inner = self.emit(value)
        text = scalar.bitcast(self.f, inner.text, value.dtype.name, expr.dtype.name, inner.width, self.target)
        return Lanes(text, inner.width)

    def _lane_index(self) -> Lanes:
        """The index that runs along the lanes, on lanes."""
        width = self.context.width
        numbers = ", ".join(f"i64 {lane}" for lane in range(width))
        start = scalar.splat(self.f, self.start(), "i64", width)
        return Lanes(self._value(f"add <{width} x i64> {start}, <{numbers}>"), width)

    def reduce(self, group: Sequence[Reduce]) -> list[Lanes]:
        """The values of reductions over boxes of equal extents, in one pass over them."""
        raise NotImplementedError

    def hoist(self, body: Sequence[Statement]) -> None:
        """Compute what the statements need and what depends on nothing that is still unbound.

        Called when a loop has been opened: what it yields is used in every trip of the loops inside.
        """
        seen: set[Expr] = set()
        for statement in reached(body):
            for expr in expressions(statement):
                self._hoist(expr, seen)
            if isinstance(statement, (Store, Accumulate)):
                self._hoist_address(address(statement.index, statement.buffer.strides))

    def _hoist(self, expr: Expr, seen: set[Expr]) -> None:
        if isinstance(expr, (Const, Index, Ref)) or expr in seen or self.scopes.get(expr) is not None:
            return
        seen.add(expr)
        if self.bound(self.free.of(expr)) and not self._volatile(expr):
            self.emit(expr)
            return
        if isinstance(expr, Reduce) and not all(index.extent for index in expr.indices):
            return
        for child in expr.children:
            self._hoist(child, seen)
        if isinstance(expr, Load):
            self._hoist_address(self.form(expr))

    def _hoist_address(self, form: Affine) -> None:
        """Sum the part of an address whose atoms are known; the rest is added inside."""
        known = tuple((atom, c) for atom, c in form.terms if self._settled(atom))
        if known and len(known) < len(form.terms):
            self.scalar_sum(Affine(form.constant, known))

    def _settled(self, atom: Atom) -> bool:
        """Whether an atom has its value already, the same on all lanes, whatever the kernel writes."""
        if isinstance(atom, (Quotient, Remainder)):
            return all(self._settled(inner) for inner, _ in atom.dividend.terms)
        return self._uniform(self.free.of(atom)) and not self._volatile(atom)

    # Addresses and memory

    def form(self, load: Load) -> Affine:
        """The affine address of a load."""
        if load not in self._forms:
            self._forms[load] = address(load.index, load.buffer.strides)
        return self._forms[load]

    def scalar_sum(self, form: Affine, skip: Index | None = None) -> Text:
        """An affine form as an i64 value, summed in the order in which its atoms were bound, so that prefixes are
        shared.
        """
        terms = sorted(((atom, c) for atom, c in form.terms if atom is not skip), key=lambda term: self._level(term[0]))
        total = str(form.constant)
        for atom, coefficient in terms:
            total = self.sum(total, self._times(self._atom(atom), coefficient))
        return total

    def _level(self, atom: Atom) -> int:
        return max((self.levels.get(name, _UNBOUND) for name in self.free.of_atom(atom)), default=-1)

    def _atom(self, atom: Atom) -> Text:
        if isinstance(atom, Quotient):
            return self._divided("div", atom)
        if isinstance(atom, Remainder):
            return self._divided("mod", atom)
        value = self.emit(atom)
        assert value.width == 1, f"{atom} varies along the lanes"
        return value.text

    def _divided(self, function: str, atom: Quotient | Remainder) -> Text:
        dividend = self.scalar_sum(atom.dividend)
        if _is_number(dividend):
            return str(int(dividend) // atom.divisor if function == "div" else int(dividend) % atom.divisor)
        low, _ = atom.dividend.range()
        operation = {("div", True): "udiv", ("mod", True): "urem"}.get((function, low >= 0))
        if operation is None:
            return self._remember(function, dividend, str(atom.divisor))
        return self._value(f"{operation} i64 {dividend}, {atom.divisor}")

    def _remember(self, function: str, a: Text, b: Text) -> Text:
        key = ("i64", function, a, b)
        known = self.scopes.get(key)
        if known is None:
            known = self.scopes.set(key, Lanes(scalar.apply(self.f, function, [a, b], "i64", 1, self.target)))
        return known.text

    def sum(self, a: Text, b: Text) -> Text:
        """The sum of two i64 values."""
        if _is_number(a) and _is_number(b):
            return str(int(a) + int(b))
        if a == "0" or b == "0":
            return b if a == "0" else a
        return self._value(f"add i64 {a}, {b}")

    def _times(self, a: Text, factor: int) -> Text:
        if _is_number(a):
            return str(int(a) * factor)
        return a if factor == 1 else self._value(f"mul i64 {a}, {factor}")

    def _value(self, text: str) -> Text:
        """An instruction without side effects, once per scope."""
        known = self.scopes.get(text)
        return known.text if known is not None else self.scopes.set(text, Lanes(self.f.value(text))).text

    def pointer(self, buffer: Buffer, offset: Text) -> Text:
        """The address of an element."""
        base = self.pointers[buffer]
        if offset == "0":
            return base
        return self._value(f"getelementptr inbounds {_memory_scalar(buffer)}, ptr {base}, i64 {offset}")

    def load(self, load: Load) -> Lanes:
        """Read an element, or one for every lane."""
        buffer = load.buffer
        if buffer.type.size == 0:
            return Lanes(scalar.constant(load.fill or 0, buffer.dtype.name, 1))
        guards = self._guards(load)
        form = self.form(load)
        step = self.step(form)
        varying = any(guard.width > 1 for guard in guards)
        if step == 0 and not varying:
            return self._load_scalar(load, form, guards)
        if step == 1:
            return self._load_contiguous(load, form, guards)
        return self._gather(load, guards)

    def step(self, form: Affine) -> int | None:
        """Elements between the addresses of neighbouring lanes; ``None`` where that is not one number."""
        index = self.context.index
        if index is None:
            return 0
        varying = [(atom, c) for atom, c in form.terms if self._varies(atom)]
        if not varying:
            return 0
        return varying[0][1] if len(varying) == 1 and varying[0][0] is index else None

    def _varies(self, atom: Atom) -> bool:
        """Whether an atom differs between lanes: through the lane index, or a name bound to lanes."""
        for name in self.free.of_atom(atom):
            bound = self.scopes.get(name)
            if name is self.context.index or (bound is not None and bound.width > 1):
                return True
        return False

    def _guards(self, load: Load) -> list[Lanes]:
        """Conditions under which a filled load reads its buffer."""
        if load.fill is None:
            return []
        pairs = [(affine(i), i, extent) for i, extent in zip(load.index, load.buffer.shape, strict=True)]
        return [self.inside(i, extent) for form, i, extent in pairs if not within(form, extent)]

    def inside(self, subscript: Expr, extent: int) -> Lanes:
        """Whether a subscript is in [0, extent)."""
        value = self.position(subscript)
        key = ("inside", value.text, value.width, extent)
        known = self.scopes.get(key)
        if known is None:
            type_ = vector("i64", value.width)
            bound = _splat_constant(str(extent), "i64", value.width)
            known = Lanes(self.f.value(f"icmp ult {type_} {value.text}, {bound}"), value.width)
            self.scopes.set(key, known)
        return known

    def position(self, subscript: Expr) -> Lanes:
        """A subscript's value, through its affine form where that is simpler."""
        return self.affine_value(affine(subscript))

    def affine_value(self, form: Affine) -> Lanes:
        """An affine form on lanes, or scalar where all lanes agree."""
        varying = [(a, c) for a, c in form.terms if self._varies(a)]
        uniform = Affine(form.constant, tuple(term for term in form.terms if term not in varying))
        total = Lanes(self.scalar_sum(uniform))
        for atom, coefficient in varying:
            part = self._lane_atom(atom)
            type_ = vector("i64", part.width)
            if coefficient != 1:
                factor = _splat_constant(str(coefficient), "i64", part.width)
                part = Lanes(self._value(f"mul {type_} {part.text}, {factor}"), part.width)
            total = Lanes(self._value(f"add {type_} {self.lanes(total, 'i64')}, {part.text}"), part.width)
        return total

    def _lane_atom(self, atom: Atom) -> Lanes:
        if not isinstance(atom, (Quotient, Remainder)):
            value = self.emit(atom)
            return Lanes(self.lanes(value, "i64"), self.context.width)
        dividend = self.affine_value(atom.dividend)
        function = "div" if isinstance(atom, Quotient) else "mod"
        type_, divisor = vector("i64", dividend.width), _splat_constant(str(atom.divisor), "i64", dividend.width)
        if atom.dividend.range()[0] >= 0:
            operation = "udiv" if function == "div" else "urem"
            return Lanes(self._value(f"{operation} {type_} {dividend.text}, {divisor}"), dividend.width)
        text = scalar.apply(self.f, function, [dividend.text, divisor], "i64", dividend.width, self.target)
        return Lanes(text, dividend.width)

    def _load_scalar(self, load: Load, form: Affine, guards: Sequence[Lanes]) -> Lanes:
        dtype = load.buffer.dtype.name
        offset = self.scalar_sum(form)
        if not guards:
            return Lanes(scalar.load(self.f, self.pointer(load.buffer, offset), dtype, 1, self.target))
        condition = self._all(guards, 1)
        safe = self._value(f"select i1 {condition}, i64 {offset}, i64 0")
        value = scalar.load(self.f, self.pointer(load.buffer, safe), dtype, 1, self.target)
        return Lanes(self._or_fill(condition, value, load, 1))

    def _load_contiguous(self, load: Load, form: Affine, guards: Sequence[Lanes]) -> Lanes:
        dtype, width = load.buffer.dtype.name, self.context.width
        assert self.context.index is not None
        first = Affine(form.constant, tuple(t for t in form.terms if t[0] is not self.context.index))
        start = self.sum(self.scalar_sum(first), self.start())
        condition = self._all(guards, width)
        mask = self._and(condition, self.context.mask, width)
        value = scalar.load(self.f, self.pointer(load.buffer, start), dtype, width, self.target, mask)
        return Lanes(value if condition is None else self._or_fill(condition, value, load, width), width)

    def start(self) -> Text:
        """The lane index at lane 0."""
        start = self.scopes.get(("start", self.context.index))
        assert start is not None
        return start.text

    def _gather(self, load: Load, guards: Sequence[Lanes]) -> Lanes:
        """One load per lane: lanes outside of the mask or the guards read element 0."""
        dtype, width = load.buffer.dtype.name, self.context.width
        offsets = self.lanes(self.affine_value(self.form(load)), "i64")
        condition = self._all(guards, width)
        mask = self._and(condition, self.context.mask, width)
        if mask is not None:
            zero = f"<{width} x i64> zeroinitializer"
            offsets = self.f.value(f"select <{width} x i1> {mask}, <{width} x i64> {offsets}, {zero}")
        type_ = scalar.register_type(dtype, width)
        result = "poison"
        for lane in range(width):
            offset = self.f.value(f"extractelement <{width} x i64> {offsets}, i64 {lane}")
            one = scalar.load(self.f, self.pointer(load.buffer, offset), dtype, 1, self.target)
            result = self.f.value(f"insertelement {type_} {result}, {scalar.register_type(dtype, 1)} {one}, i64 {lane}")
        return Lanes(result if condition is None else self._or_fill(condition, result, load, width), width)

    def _all(self, guards: Sequence[Lanes], width: int) -> Text | None:
        """The conjunction of guards on ``width`` lanes, or ``None`` if there are none."""
        condition: Text | None = None
        for guard in guards:
            text = guard.text if guard.width == width else scalar.splat(self.f, guard.text, "bool", width)
            condition = self._and(condition, text, width)
        return condition

    def _and(self, a: Text | None, b: Text | None, width: int) -> Text | None:
        if a is None or b is None:
            return b if a is None else a
        return self._value(f"and {vector('i1', width)} {a}, {b}")

    def _or_fill(self, condition: Text | None, value: Text, load: Load, width: int) -> Text:
        dtype = load.buffer.dtype.name
        type_ = scalar.register_type(dtype, width)
        fill = scalar.constant(load.fill if load.fill is not None else 0, dtype, width)
        return self.f.value(f"select {vector('i1', width)} {condition}, {type_} {value}, {type_} {fill}")


def reached(body: Sequence[Statement]) -> Iterator[Statement]:
    """All statements but those in loops without trips, whose loads may be out of bounds."""
    for statement in body:
        if not isinstance(statement, For):
            yield statement
        elif all(index.extent for index in statement.indices):
            yield from reached(statement.body)


def _is_number(text: Text) -> bool:
    return not text.startswith("%")


def _splat_constant(text: Text, type_: str, width: int) -> Text:
    return text if width == 1 else f"splat ({type_} {text})"


def _memory_scalar(buffer: Buffer) -> str:
    return {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[buffer.dtype.size]
