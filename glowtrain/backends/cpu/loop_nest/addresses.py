"""Addresses: affine forms as i64 values, scalar or along vector lanes.

Terms are summed in the order in which their indices were bound, so what outer loops give is summed once, outside of
the inner ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from glowtrain.backends.cpu.loop_nest.analysis import Free
from glowtrain.backends.cpu.loop_nest.scope import Context, Lanes, Scopes
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.text import LlvmFunction, Text, splat_constant, vector
from glowtrain.loops import Affine, Buffer, Expr, Index, Load, address, affine
from glowtrain.loops.affine import Atom, Quotient, Remainder

_UNBOUND = 1 << 30


class Addresses:
    """Writes addresses into a function. ``pointers`` gives each buffer's base address."""

    def __init__(self, f: LlvmFunction, target: Target, pointers: dict[Buffer, Text]) -> None:
        self.f = f
        self.target = target
        self.pointers = pointers
        self.free = Free()
        self.scopes: Scopes[Lanes] = Scopes()
        self.levels: dict[Expr, int] = {}
        self.context = Context()
        self._forms: dict[Load, Affine] = {}

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
            return splat_constant(value.text, scalar.register_type(dtype, 1), self.context.width)
        key = ("splat", value.text, self.context.width)
        known = self.scopes.get(key)
        if known is None:
            text = scalar.splat(self.f, value.text, dtype, self.context.width)
            known = self.scopes.set(key, Lanes(text, self.context.width))
        return known.text

    def emit(self, expr: Expr) -> Lanes:
        """The value of an expression."""
        raise NotImplementedError

    def form(self, load: Load) -> Affine:
        """The affine address of a load."""
        if load not in self._forms:
            self._forms[load] = address(load.index, load.buffer.strides)
        return self._forms[load]

    def pointer(self, buffer: Buffer, offset: Text) -> Text:
        """The address of an element."""
        base = self.pointers[buffer]
        if offset == "0":
            return base
        return self._value(f"getelementptr inbounds {_memory_scalar(buffer)}, ptr {base}, i64 {offset}")

    def lane_pointers(self, buffer: Buffer, form: Affine, count: int, mask: Text | None = None) -> Iterator[Text]:
        """The addresses of an element for each of the first ``count`` lanes; where ``mask`` is false, of element 0."""
        step, lane, type_ = self.step(form), self.context.index, vector("i64", self.context.width)
        if step and mask is None:
            first = self.sum(self.scalar_sum(form, lane), self.times(self.start(), step))
            yield from (self.pointer(buffer, self.sum(first, str(at * step))) for at in range(count))
            return
        offsets = self.lanes(self.affine_value(form), "i64")
        if mask is not None:
            flags = vector("i1", self.context.width)
            offsets = self.f.value(f"select {flags} {mask}, {type_} {offsets}, {type_} zeroinitializer")
        for at in range(count):
            yield self.pointer(buffer, self.f.value(f"extractelement {type_} {offsets}, i64 {at}"))

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

    def start(self) -> Text:
        """The lane index at lane 0."""
        start = self.scopes.get(("start", self.context.index))
        assert start is not None
        return start.text

    def scalar_sum(self, form: Affine, *skipped: Index | None) -> Text:
        """An affine form as an i64 value, without the terms of some indices, summed in the order in which its atoms
        were bound, so that prefixes are shared.
        """
        terms = sorted(
            ((atom, c) for atom, c in form.terms if atom not in skipped), key=lambda term: self._level(term[0])
        )
        total = str(form.constant)
        for atom, coefficient in terms:
            total = self.sum(total, self.times(self._atom(atom), coefficient))
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

    def times(self, a: Text, factor: int) -> Text:
        """An i64 value times a number."""
        if _is_number(a):
            return str(int(a) * factor)
        return a if factor == 1 else self._value(f"mul i64 {a}, {factor}")

    def _value(self, text: str) -> Text:
        """An instruction without side effects, once per scope."""
        known = self.scopes.get(text)
        return known.text if known is not None else self.scopes.set(text, Lanes(self.f.value(text))).text

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
                factor = splat_constant(str(coefficient), "i64", part.width)
                part = Lanes(self._value(f"mul {type_} {part.text}, {factor}"), part.width)
            total = Lanes(self._value(f"add {type_} {self.lanes(total, 'i64')}, {part.text}"), part.width)
        return total

    def _lane_atom(self, atom: Atom) -> Lanes:
        if not isinstance(atom, (Quotient, Remainder)):
            value = self.emit(atom)
            return Lanes(self.lanes(value, "i64"), self.context.width)
        dividend = self.affine_value(atom.dividend)
        function = "div" if isinstance(atom, Quotient) else "mod"
        type_, divisor = vector("i64", dividend.width), splat_constant(str(atom.divisor), "i64", dividend.width)
        if atom.dividend.range()[0] >= 0:
            operation = "udiv" if function == "div" else "urem"
            return Lanes(self._value(f"{operation} {type_} {dividend.text}, {divisor}"), dividend.width)
        text = scalar.apply(self.f, function, [dividend.text, divisor], "i64", dividend.width, self.target)
        return Lanes(text, dividend.width)


def _is_number(text: Text) -> bool:
    return not text.startswith("%")


def _memory_scalar(buffer: Buffer) -> str:
    return {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[buffer.dtype.size]
