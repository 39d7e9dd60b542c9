"""Flat statements: one Let, Store or Accumulate, scalar or along vector lanes."""

from __future__ import annotations

from collections.abc import Sequence

from glowtrain.backends.cpu.loop_nest.reduction import Reducing
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue
from glowtrain.backends.target import Target
from glowtrain.loops import Accumulate, Affine, Buffer, Expr, Index, Let, Statement, Store, address, affine, within


class StatementWriter:
    """Writes statements without loops into a function; ``e`` writes what they compute."""

    def __init__(self, f: LlvmFunction, target: Target, e: Reducing) -> None:
        self.f = f
        self.target = target
        self.e = e

    def statement(self, statement: Statement) -> None:
        """One Let, Store or Accumulate in the present context."""
        match statement:
            case Let(ref=ref, value=value):
                self.e.bind(ref, self.e.emit(value))
            case Store(buffer=buffer, index=index, value=value):
                self._store(buffer, index, value)
            case Accumulate():
                self._accumulate(statement)

    def _store(self, buffer: Buffer, index: Sequence[Expr], value: Expr) -> None:
        if buffer.type.size == 0:
            return
        offset = address(index, buffer.strides)
        lane = self.e.context.index
        if lane is None:
            first = self.e.scalar_sum(offset)
            element = self.e.emit(value)
            scalar.store(self.f, element, self.e.pointer(buffer, first), buffer.dtype.name, self.target)
            return
        lanes = self.e.full(value)
        if self.e.step(offset) == 1:
            pointer = self._contiguous(buffer, offset, lane)
            scalar.store(self.f, lanes, pointer, buffer.dtype.name, self.target, self.e.context.mask)
        else:
            self._scatter(buffer, offset, lanes)

    def _contiguous(self, buffer: Buffer, offset: Affine, lane: Index) -> LlvmValue:
        return self.e.pointer(buffer, self.e.sum(self.e.scalar_sum(offset, lane), self.e.start()))

    def _scatter(self, buffer: Buffer, offset: Affine, lanes: LlvmValue) -> None:
        """One store per lane that exists."""
        mask = self.e.context.mask
        count = lanes.width if mask is None else mask.text.count("true")
        for lane, pointer in enumerate(self.e.lane_pointers(buffer, offset, count)):
            scalar.store(self.f, self.f.extract(lanes, lane), pointer, buffer.dtype.name, self.target)

    def _accumulate(self, statement: Accumulate) -> None:
        """Read, combine, write; nothing where a subscript is outside."""
        buffer = statement.buffer
        value = self.e.full(statement.value)
        pairs = zip(statement.index, buffer.shape, strict=True)
        conditions = [self.e.inside(i, extent) for i, extent in pairs if not within(affine(i), extent)]
        if not conditions:
            self._combine(statement, value)
            return
        condition = conditions[0]
        for other in conditions[1:]:
            condition = self.f.op("and", condition, other)
        with self.f.when(condition), self.e.scopes.inner():
            self._combine(statement, value)

    def _combine(self, statement: Accumulate, value: LlvmValue) -> None:
        buffer, dtype = statement.buffer, statement.buffer.dtype.name
        offset, lane = address(statement.index, buffer.strides), self.e.context.index
        width, mask = self.e.context.width, self.e.context.mask
        if lane is None:
            pointer = self.e.pointer(buffer, self.e.scalar_sum(offset))
        else:
            pointer = self._contiguous(buffer, offset, lane)
        old = scalar.load(self.f, pointer, dtype, width, self.target, mask)
        new = scalar.apply(self.f, statement.op, [old, value], dtype, self.target)
        scalar.store(self.f, new, pointer, dtype, self.target, mask)
