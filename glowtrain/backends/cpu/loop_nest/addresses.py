"""Addresses: affine expressions as indices of pointer width, scalar or along vector lanes.

Terms are summed in the order in which their indices were bound, so what outer loops give is summed once, outside of
the inner ones. The loop language knows i64 alone: where pointers are narrower, what data decides is computed in i64
before it becomes an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from glowtrain.backends.cpu.loop_nest.scope import Context, Scopes
from glowtrain.backends.cpu.order.analysis import Free
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I64, POINTER, LlvmType, LlvmValue, Number, in_all_lanes, zero
from glowtrain.backends.target import Target
from glowtrain.loops import Affine, Buffer, Expr, Index, Load, address, affine
from glowtrain.loops.affine import Atom, Quotient, Remainder, expression

_UNBOUND = 1 << 30


class Addresses:
    """Writes addresses into a function. ``pointers`` gives each buffer's base address."""

    def __init__(self, f: LlvmFunction, target: Target, pointers: dict[Buffer, LlvmValue]) -> None:
        self.f = f
        self.target = target
        self.pointers = pointers
        self.free = Free()
        self.scopes: Scopes[LlvmValue] = Scopes()
        self.levels: dict[Expr, int] = {}
        self.context = Context()
        self._offsets: dict[Load, Affine] = {}

    @contextmanager
    def along(self, context: Context) -> Iterator[None]:
        """Write the body in another context."""
        before, self.context = self.context, context
        with self.scopes.inner():
            yield
        self.context = before

    def bind(self, name: Expr, value: LlvmValue) -> None:
        """Give an index or ref its value; what is bound later depends on what was bound before."""
        self.levels[name] = len(self.levels)
        self.scopes.set(name, value)

    @contextmanager
    def bindings(self) -> Iterator[None]:
        """What is bound inside is not bound behind it."""
        before = dict(self.levels)
        yield
        self.levels = before

    def bound(self, names: Iterable[Expr]) -> bool:
        """Whether all these indices and refs have values here."""
        return all(name is self.context.index or self.scopes.get(name) is not None for name in names)

    def _uniform(self, names: Iterable[Expr]) -> bool:
        """Whether all these have values here, the same on all lanes."""
        found = [self.scopes.get(name) for name in names]
        return all(value is not None and value.width == 1 for value in found)

    def lanes(self, value: LlvmValue) -> LlvmValue:
        """A value on all lanes of the context."""
        width = self.context.width
        if value.type.width == width:
            return value
        if value.is_constant:
            return self.f.splat(value, width)
        key = ("splat", value.text, width)
        cached = self.scopes.get(key)
        return cached if cached is not None else self.scopes.set(key, self.f.splat(value, width))

    def emit(self, expr: Expr) -> LlvmValue:
        """The value of an expression."""
        raise NotImplementedError

    def offset_of(self, load: Load) -> Affine:
        """The affine address of a load."""
        if load not in self._offsets:
            self._offsets[load] = address(load.index, load.buffer.strides)
        return self._offsets[load]

    def pointer(self, buffer: Buffer, offset: LlvmValue) -> LlvmValue:
        """The address of an element."""
        base = self.pointers[buffer]
        if offset.text == "0":
            return base
        element = f"i{8 * buffer.dtype.size}"
        return self._value(f"getelementptr inbounds {element}, ptr {base.text}, {offset.typed}", POINTER)

    def lane_pointers(
        self, buffer: Buffer, offset: Affine, count: int, mask: LlvmValue | None = None
    ) -> Iterator[LlvmValue]:
        """The addresses of an element for each of the first ``count`` lanes; where ``mask`` is false, of element 0."""
        step, lane = self.step(offset), self.context.index
        if step and mask is None:
            first = self.sum(self.scalar_sum(offset, lane), self.times(self.start(), step))
            yield from (self.pointer(buffer, self.sum(first, self.f.index(at * step))) for at in range(count))
            return
        offsets = self.lanes(self.affine_value(offset))
        if mask is not None:
            offsets = self.f.select(mask, offsets, zero(offsets.type))
        for at in range(count):
            yield self.pointer(buffer, self.f.extract(offsets, at))

    def step(self, offset: Affine) -> int | None:
        """Elements between the addresses of neighbouring lanes; ``None`` where that is not one number."""
        index = self.context.index
        if index is None:
            return 0
        varying = [(atom, c) for atom, c in offset.terms if self._varies(atom)]
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

    def start(self) -> LlvmValue:
        """The lane index at lane 0."""
        start = self.scopes.get(("start", self.context.index))
        assert start is not None
        return start

    def scalar_sum(self, offset: Affine, *skipped: Index | None) -> LlvmValue:
        """An affine expression as an index, without the terms of some indices, summed in the order in which its
        atoms were bound, so that prefixes are shared.
        """
        terms = sorted(
            ((atom, c) for atom, c in offset.terms if atom not in skipped), key=lambda term: self._level(term[0])
        )
        total = self.f.index(offset.constant)
        for atom, coefficient in terms:
            total = self.sum(total, self.times(self._atom(atom), coefficient))
        return total

    def _level(self, atom: Atom) -> int:
        return max((self.levels.get(name, _UNBOUND) for name in self.free.of_atom(atom)), default=-1)

    def _atom(self, atom: Atom) -> LlvmValue:
        if isinstance(atom, (Quotient, Remainder)):
            return self._divided(atom)
        value = self.index(atom)
        assert value.width == 1, f"{atom} varies along the lanes"
        return value

    def index(self, expr: Expr) -> LlvmValue:
        """The value of an expression as an index."""
        if isinstance(expr, Index):
            return self.trip(expr)
        return self._narrow(self.emit(expr))

    def trip(self, index: Index) -> LlvmValue:
        """The trip that a loop is at, or those of all lanes."""
        raise NotImplementedError

    def _narrow(self, value: LlvmValue) -> LlvmValue:
        """An i64 as an index."""
        type_ = value.type.of(self.f.index_type.scalar)
        return value if value.type is type_ else self._value(f"trunc {value.typed} to {type_}", type_)

    def _counted(self, offset: Affine) -> bool:
        """Whether an index holds an affine expression: i64 does, others what loops alone decide."""
        return self.f.index_type is I64 or offset.of_indices

    def _divided(self, atom: Quotient | Remainder) -> LlvmValue:
        if not self._counted(atom.dividend):
            return self.index(expression(Affine(0, ((atom, 1),))))
        function = "div" if isinstance(atom, Quotient) else "mod"
        dividend, divisor = self.scalar_sum(atom.dividend), atom.divisor
        if dividend.is_constant:
            value = int(dividend.text)
            return self.f.index(value // divisor if function == "div" else value % divisor)
        low, _ = atom.dividend.range()
        operation = {("div", True): "udiv", ("mod", True): "urem"}.get((function, low >= 0))
        if operation is None:
            return self._remember(function, dividend, self.f.index(divisor))
        return self._op(operation, dividend, divisor)

    def _remember(self, function: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        key = ("index", function, a.text, b.text)
        cached = self.scopes.get(key)
        if cached is None:
            cached = self.scopes.set(key, scalar.apply(self.f, function, [a, b], self.f.index_type.scalar, self.target))
        return cached

    def sum(self, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        """The sum of two indices."""
        if a.is_constant and b.is_constant:
            return self.f.index(int(a.text) + int(b.text))
        if a.text == "0" or b.text == "0":
            return b if a.text == "0" else a
        return self._op("add", a, b)

    def times(self, a: LlvmValue, factor: int) -> LlvmValue:
        """An index times a number."""
        if a.is_constant:
            return self.f.index(int(a.text) * factor)
        return a if factor == 1 else self._op("mul", a, factor)

    def _op(self, operation: str, a: LlvmValue, b: Number) -> LlvmValue:
        """An instruction of two operands of one type, once per scope."""
        other = in_all_lanes(str(b), a.type) if isinstance(b, int) else b
        if other.type is not a.type:
            raise self.f.mismatch(operation, a, other)
        return self._value(f"{operation} {a.type.text} {a.text}, {other.text}", a.type)

    def _value(self, text: str, type_: LlvmType) -> LlvmValue:
        """An instruction without side effects, once per scope."""
        cached = self.scopes.get(text)
        return cached if cached is not None else self.scopes.set(text, self.f.once(text, type_))

    def position(self, subscript: Expr) -> LlvmValue:
        """A subscript's value, through its affine expression where that is simpler."""
        offset = affine(subscript)
        return self.affine_value(offset) if self._counted(offset) else self.emit(subscript)

    def affine_value(self, offset: Affine) -> LlvmValue:
        """An affine expression on lanes, or scalar where all lanes agree."""
        varying = [(a, c) for a, c in offset.terms if self._varies(a)]
        total = self.scalar_sum(Affine(offset.constant, tuple(term for term in offset.terms if term not in varying)))
        for atom, coefficient in varying:
            part = self._lane_atom(atom)
            part = part if coefficient == 1 else self._op("mul", part, coefficient)
            total = self._op("add", self.lanes(total), part)
        return total

    def _lane_atom(self, atom: Atom) -> LlvmValue:
        if not isinstance(atom, (Quotient, Remainder)):
            return self.lanes(self.index(atom))
        if not self._counted(atom.dividend):
            return self.lanes(self.index(expression(Affine(0, ((atom, 1),)))))
        dividend = self.affine_value(atom.dividend)
        function = "div" if isinstance(atom, Quotient) else "mod"
        if atom.dividend.range()[0] >= 0:
            return self._op("udiv" if function == "div" else "urem", dividend, atom.divisor)
        divisor = in_all_lanes(str(atom.divisor), dividend.type)
        return scalar.apply(self.f, function, [dividend, divisor], self.f.index_type.scalar, self.target)
