"""Expressions of the loop language as LLVM values, scalar or along vector lanes.

Everything that is the same for all lanes stays scalar until an operation needs it on lanes. What does not depend on a
loop is computed before it (see :meth:`LlvmExpressions.hoist`); the rest is remembered by scope, so shared
sub-expressions are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from glowtrain.backends.cpu.loop_nest.loads import Loads
from glowtrain.backends.cpu.loop_nest.saturation import saturation
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue
from glowtrain.backends.target import Target
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
    Let,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    address,
    affine,
)
from glowtrain.loops.affine import Atom, Quotient, Remainder


class LlvmExpressions(Loads):
    """Writes expressions into a function."""

    def __init__(
        self, f: LlvmFunction, target: Target, pointers: dict[Buffer, LlvmValue], written: Iterable[Buffer]
    ) -> None:
        super().__init__(f, target, pointers, written)
        self._volatiles: dict[Expr, bool] = {}

    def emit(self, expr: Expr) -> LlvmValue:
        """The value of an expression."""
        if isinstance(expr, Index):
            return self._wide(self.trip(expr))
        cached = self.scopes.get(expr)
        if cached is not None:
            return cached
        value = self._emit(expr)
        if not self._volatile(expr):
            self.scopes.set(expr, value)
        return value

    def full(self, expr: Expr) -> LlvmValue:
        """The value on all lanes."""
        return self.lanes(self.emit(expr))

    def _volatile(self, expr: Expr) -> bool:
        """Whether the value may change between statements: it reads what the kernel writes."""
        cached = self._volatiles.get(expr)
        if cached is None:
            written = isinstance(expr, Load) and expr.buffer in self.written
            cached = written or any(self._volatile(child) for child in expr.children)
            self._volatiles[expr] = cached
        return cached

    def _emit(self, expr: Expr) -> LlvmValue:
        match expr:
            case Const(value=value, dtype=dtype):
                return scalar.constant(value, dtype.name, 1)
            case Apply():
                return self._apply(expr)
            case Cast():
                return self._cast(expr)
            case Load():
                return self.load(expr)
            case Reduce():
                return self.reduce([expr])[0]
        raise AssertionError(f"{expr} is used outside of its scope in {self.f.name}")

    def trip(self, index: Index) -> LlvmValue:
        cached = self.scopes.get(index)
        if cached is not None:
            return cached
        if index is self.context.index:
            return self.scopes.set(index, self._lane_index())
        if index.extent != 1:
            raise AssertionError(f"{index} is used outside of its scope in {self.f.name}")
        return self.scopes.set(index, self.f.index(0))

    def _wide(self, trip: LlvmValue) -> LlvmValue:
        """A trip as the i64 that it is in the loop language."""
        type_ = trip.type.of("i64")
        if trip.type is type_:
            return trip
        return LlvmValue(trip.text, type_) if trip.is_constant else self._value(f"zext {trip.typed} to {type_}", type_)

    def _apply(self, expr: Apply) -> LlvmValue:
        if expr.function == "bitcast":
            return self._bitcast(expr)
        values = [self.emit(argument) for argument in expr.arguments]
        width = max(value.width for value in values)
        key = ("apply", expr.function, expr.arguments[-1].dtype.name, *(value.text for value in values), width)
        cached = self.scopes.get(key)
        if cached is None:
            operands = [value if width == 1 else self.lanes(value) for value in values]
            dtype = expr.arguments[-1].dtype.name
            cached = self.scopes.set(key, scalar.apply(self.f, expr.function, operands, dtype, self.target))
        return cached

    def _cast(self, expr: Cast) -> LlvmValue:
        dtype, found = expr.dtype.name, saturation(expr)
        if found is not None:
            return found.emit(self.f, self.emit(found.value), dtype, self.target)
        value, source_type = self.emit(expr.value), expr.value.dtype.name
        key = ("cast", source_type, dtype, value.text)
        cached = self.scopes.get(key)
        if cached is None:
            cached = self.scopes.set(key, scalar.cast(self.f, value, source_type, dtype, self.target))
        return cached

    def _bitcast(self, expr: Apply) -> LlvmValue:
        (value,) = expr.arguments
        return scalar.bitcast(self.f, self.emit(value), value.dtype.name, expr.dtype.name, self.target)

    def _lane_index(self) -> LlvmValue:
        """The index that runs along the lanes, on lanes."""
        width = self.context.width
        numbers = ", ".join(self.f.index(lane).typed for lane in range(width))
        start = self.f.splat(self.start(), width)
        return self._op("add", start, LlvmValue(f"<{numbers}>", start.type))

    def reduce(self, group: Sequence[Reduce]) -> list[LlvmValue]:
        """The values of reductions over boxes of equal extents, in one pass over them."""
        raise NotImplementedError

    def hoist(self, body: Sequence[Statement]) -> None:
        """Compute what the statements need and what depends on nothing that is still unbound.

        Called when a loop has been opened: what it yields is used in every trip of the loops inside.
        """
        seen: set[Expr] = set()
        for statement in reached(body):
            self._hoist(statement.value, seen)
            if isinstance(statement, (Store, Accumulate)):
                self._hoist_subscripts(statement.index, address(statement.index, statement.buffer.strides), seen)

    def _hoist(self, expr: Expr, seen: set[Expr]) -> None:
        if isinstance(expr, (Const, Index, Ref)) or expr in seen or self.scopes.get(expr) is not None:
            return
        seen.add(expr)
        if self.bound(self.free.of(expr)) and not self._volatile(expr):
            self.emit(expr)
            return
        if isinstance(expr, Reduce) and not all(index.extent for index in expr.indices):
            return
        if isinstance(expr, Load):
            self._hoist_subscripts(expr.index, self.offset_of(expr), seen)
            return
        for child in expr.children:
            self._hoist(child, seen)

    def _hoist_subscripts(self, subscripts: Sequence[Expr], offset: Affine, seen: set[Expr]) -> None:
        """Compute those atoms of subscripts that data decides, and sum the part of their address whose atoms have
        their values; the rest is added inside."""
        for subscript in subscripts:
            for atom in _computed_atoms(affine(subscript)):
                self._hoist(atom, seen)
        available = tuple((atom, c) for atom, c in offset.terms if self._is_available(atom))
        if available and len(available) < len(offset.terms):
            self.scalar_sum(Affine(offset.constant, available))

    def _is_available(self, atom: Atom) -> bool:
        """Whether an atom has its value already, the same on all lanes, whatever the kernel writes."""
        if isinstance(atom, (Quotient, Remainder)):
            return all(self._is_available(inner) for inner, _ in atom.dividend.terms)
        return self._uniform(self.free.of(atom)) and not self._volatile(atom)


def _computed_atoms(offset: Affine) -> Iterator[Expr]:
    """The atoms of an affine expression that are no quotients and remainders, also of those in their dividends."""
    for atom, _ in offset.terms:
        if isinstance(atom, (Quotient, Remainder)):
            yield from _computed_atoms(atom.dividend)
        else:
            yield atom


def reached(body: Sequence[Statement]) -> Iterator[Let | Store | Accumulate]:
    """All statements but those in loops without trips, whose loads may be out of bounds."""
    for statement in body:
        if not isinstance(statement, For):
            yield statement
        elif all(index.extent for index in statement.indices):
            yield from reached(statement.body)
