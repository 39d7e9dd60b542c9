"""Loop nests as WGSL: statements, and reductions in their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from glowtrain.backends.cpu.loop_nest.reduction import identity
from glowtrain.backends.cpu.order.analysis import Free
from glowtrain.backends.webgpu.expressions import WgslExpressions
from glowtrain.backends.webgpu.literals import literal
from glowtrain.backends.webgpu.memory import KernelMemory
from glowtrain.backends.webgpu.scalar import WgslValue, apply, computed_in, spelled
from glowtrain.backends.webgpu.sums import SumLoops, loops_of_nest
from glowtrain.loops import (
    Accumulate,
    Apply,
    Buffer,
    For,
    Index,
    Let,
    Reduce,
    Statement,
    Store,
    statements,
)
from glowtrain.types import f32


class NestWriter(WgslExpressions):
    """Writes the statements of one invocation. ``sums``: the loops of reductions that are decided already; those of
    others follow from ``lane``, the loop around them that vectors would run along."""

    def __init__(
        self,
        memory: KernelMemory,
        written: Iterable[Buffer],
        indices: Mapping[Index, str],
        free: Free,
        sums: Mapping[Reduce, SumLoops],
    ) -> None:
        super().__init__(memory, written, indices, free)
        self.sums = sums
        self.lane: Index | None = None

    # ---- statements

    def statements(self, body: Sequence[Statement]) -> None:
        """All of a body, in order."""
        for statement in body:
            match statement:
                case For():
                    self._loop(statement)
                case Let(ref=ref, value=value):
                    self.set(ref, self.value(value))
                case Store():
                    self._store(statement)
                case Accumulate():
                    self._accumulate(statement)

    def _loop(self, loop: For) -> None:
        if any(index.extent == 0 for index in loop.indices):
            return
        inside = [expr for each in statements(loop.body) if not isinstance(each, For) for expr in each.operands]
        self.hoist(inside, loop.indices)
        self.forget()
        with self.loops(loop.indices):
            self.statements(loop.body)
        self.forget()

    def _store(self, store: Store) -> None:
        value = self._stored(store)
        offset = self.offset(store.index, store.buffer)
        self._put(store.buffer, offset, value)

    def _stored(self, statement: Store | Accumulate) -> WgslValue:
        value = self.value(statement.value)
        return value if value.type == "bool" else self.as_type(value, computed_in(statement.buffer.dtype))

    def _put(self, buffer: Buffer, offset: str, value: WgslValue) -> None:
        for line in self.memory.store(buffer, offset, value):
            self.line(line)
        self.forget()

    def _accumulate(self, statement: Accumulate) -> None:
        value, buffer = self._stored(statement), statement.buffer
        checks = self.inside(statement.index, buffer)
        offset = self.offset(statement.index, buffer)
        with self.block(f"if ({' && '.join(checks)})" if checks else "", {}):
            before = self.memory.load(buffer, offset)
            before = self.let(before.text, before.type)
            text = combined(statement.op, before.text, value.text, value.type, buffer)
            self._put(buffer, offset, self.let(text, value.type))

    # ---- reductions

    def reduce(self, reduction: Reduce) -> WgslValue:
        if any(index.extent == 0 for index in reduction.indices):
            return self._identity(reduction, computed_in(reduction.dtype))
        order = self.sums.get(reduction) or loops_of_nest(reduction, self.lane, self.free)
        self.hoist([reduction.body], reduction.indices)
        stated = bool(reduction.partials) or self.lane is None or self.lane not in self.free.of(reduction)
        outer, self.lane = self.lane, order.loops[-1] if stated and order.loops else self.lane
        try:
            return self._chain(reduction, order) if order.chain else self._partials(reduction, order)
        finally:
            self.lane = outer

    def _chain(self, reduction: Reduce, order: SumLoops) -> WgslValue:
        name, type_ = self.name("sum"), computed_in(reduction.dtype)
        self.line(f"var {name}: {spelled(type_)} = {self._identity(reduction, type_).text};")
        with self._elements(reduction, order.loops):
            self.line(f"{name} = {self._added(reduction, name, type_)};")
        return WgslValue(name, type_)

    def _elements(self, reduction: Reduce, indices: Sequence[Index]) -> AbstractContextManager[None]:
        """The loops of a reduction; indices of one element are 0."""
        for index in reduction.indices:
            if index not in indices:
                self.set(index, WgslValue("0", "i32"))
        return self.loops(indices)

    def _partials(self, reduction: Reduce, order: SumLoops) -> WgslValue:
        name, type_, count = self.name("sums"), computed_in(reduction.dtype), order.partials
        start = self._identity(reduction, type_).text
        self.line(f"var {name}: array<{spelled(type_)}, {count}>;")
        at = self.name("p")
        self.line(f"for (var {at} = 0; {at} < {count}; {at}++) {{ {name}[{at}] = {start}; }}")
        with self._elements(reduction, order.loops):
            number = self._number(order.along)
            element = f"{name}[{number} % {count}]"
            self.line(f"{element} = {self._added(reduction, element, type_, stated=bool(reduction.partials))};")
        half, at = self.name("h"), self.name("p")
        halves = f"for (var {half} = {count // 2}; {half} > 0; {half} = {half} / 2)"
        with self.block(halves, {}), self.block(f"for (var {at} = 0; {at} < {half}; {at}++)", {}):
            text = combined(reduction.op, f"{name}[{at}]", f"{name}[{at} + {half}]", type_, reduction)
            self.line(f"{name}[{at}] = {text};")
        return WgslValue(f"{name}[0]", type_)

    def _number(self, along: Sequence[Index]) -> str:
        """The number of an element, counted through loops."""
        text = self.value(along[0]).text
        for index in along[1:]:
            text = f"({text} * {index.extent} + {self.value(index).text})"
        return text

    def _added(self, reduction: Reduce, before: str, type_: str, *, stated: bool = False) -> str:
        """A partial result with one element more. Products in f32 of a sum whose order the program states are added by
        multiply-adds that are rounded once."""
        match reduction.body:
            case Apply(function="mul", arguments=(a, b), dtype=dtype) if (
                stated and reduction.op == "add" and dtype == f32
            ):
                return f"f32_fma({self.value(a).text}, {self.value(b).text}, {before})"
        element = self.value(reduction.body)
        element = element if element.type == "bool" else self.as_type(element, type_)
        return combined(reduction.op, before, element.text, type_, reduction)

    def _identity(self, reduction: Reduce, type_: str) -> WgslValue:
        start = identity(reduction.op, reduction.dtype)
        return WgslValue(literal(start, reduction.dtype, type_), type_)


def combined(op: str, a: str, b: str, type_: str, of: Reduce | Buffer) -> str:
    """Two elements combined by the operation of a reduction or an accumulation."""
    return apply(op, (a, b), of.dtype, type_)
