"""Loads: an element for all lanes, neighbours, or one from anywhere for every lane; outside of a buffer its fill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glowtrain.backends.cpu.loop_nest.addresses import Addresses
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, poison
from glowtrain.backends.target import Target
from glowtrain.loops import Affine, Buffer, Expr, Load, affine, within


class Loads(Addresses):
    """Writes loads into a function. ``written``: the buffers that the kernel writes."""

    def __init__(
        self, f: LlvmFunction, target: Target, pointers: dict[Buffer, LlvmValue], written: Iterable[Buffer]
    ) -> None:
        super().__init__(f, target, pointers)
        self.written = frozenset(written)

    def load(self, load: Load) -> LlvmValue:
        """Read an element, or one for every lane."""
        buffer = load.buffer
        if buffer.type.size == 0:
            return scalar.constant(load.fill or 0, buffer.dtype.name, 1)
        guards = self._guards(load)
        offset = self.offset_of(load)
        step = self.step(offset)
        varying = any(guard.width > 1 for guard in guards)
        if step == 0 and not varying:
            return self._load_scalar(load, offset, guards)
        if step == 1:
            return self._load_contiguous(load, offset, guards)
        return self._gather(load, guards)

    def _guards(self, load: Load) -> list[LlvmValue]:
        """Conditions under which a filled load reads its buffer."""
        if load.fill is None:
            return []
        pairs = [(affine(i), i, extent) for i, extent in zip(load.index, load.buffer.shape, strict=True)]
        return [self.inside(i, extent) for offset, i, extent in pairs if not within(offset, extent)]

    def inside(self, subscript: Expr, extent: int) -> LlvmValue:
        """Whether a subscript is in [0, extent)."""
        value = self.position(subscript)
        key = ("inside", value.text, value.width, extent)
        cached = self.scopes.get(key)
        return cached if cached is not None else self.scopes.set(key, self.f.compare("ult", value, extent))

    def _load_scalar(self, load: Load, offset: Affine, guards: Sequence[LlvmValue]) -> LlvmValue:
        element, condition = self.scalar_sum(offset), self._all(guards, 1)
        if condition is None:
            return self._read(load.buffer, element, 1)
        return self._or_fill(condition, self._read(load.buffer, self._or_first(condition, element), 1), load)

    def _read(self, buffer: Buffer, offset: LlvmValue, width: int, mask: LlvmValue | None = None) -> LlvmValue:
        """Neighbours from an offset on; of what the kernel does not write, once per scope, whoever asks for them."""
        pointer = self.pointer(buffer, offset)
        key = ("read", pointer.text, width, mask)
        cached = None if buffer in self.written else self.scopes.get(key)
        if cached is None:
            cached = self.scopes.set(key, scalar.load(self.f, pointer, buffer.dtype.name, width, self.target, mask))
        return cached

    def _or_first(self, condition: LlvmValue, offset: LlvmValue) -> LlvmValue:
        """The offset, or 0 where the condition does not hold."""
        return self._value(f"select {condition.typed}, {offset.typed}, {offset.type} 0", offset.type)

    def _load_contiguous(self, load: Load, offset: Affine, guards: Sequence[LlvmValue]) -> LlvmValue:
        width = self.context.width
        assert self.context.index is not None
        start = self.sum(self.scalar_sum(offset, self.context.index), self.start())
        if guards and _agree(guards) and (self.context.mask is not None or load.buffer.type.size >= width):
            return self._load_all_or_none(load, start, guards)
        condition = self._all(guards, width)
        mask = self._and(condition, self.context.mask)
        value = self._read(load.buffer, start, width, mask)
        return value if condition is None else self._or_fill(condition, value, load)

    def _load_all_or_none(self, load: Load, start: LlvmValue, guards: Sequence[LlvmValue]) -> LlvmValue:
        """Neighbours that are all inside or all outside; outside, the first elements are read for nothing.

        The lanes that exist are neighbours in the buffer, so it has as many elements. Their mask stands alone: LLVM 22
        reads the whole upper half of lanes where a condition that all share is joined with a mask of the lower half.
        """
        condition = self._all(guards, 1)
        assert condition is not None
        safe = self._or_first(condition, start)
        value = self._read(load.buffer, safe, self.context.width, self.context.mask)
        return self._or_fill(condition, value, load)

    def _gather(self, load: Load, guards: Sequence[LlvmValue]) -> LlvmValue:
        """One load per lane: lanes outside of the mask or the guards read element 0."""
        dtype, width = load.buffer.dtype.name, self.context.width
        condition = self._all(guards, width)
        mask = self._and(condition, self.context.mask)
        result = poison(scalar.register_type(dtype, width))
        for lane, pointer in enumerate(self.lane_pointers(load.buffer, self.offset_of(load), width, mask)):
            result = self.f.insert(result, scalar.load(self.f, pointer, dtype, 1, self.target), lane)
        return result if condition is None else self._or_fill(condition, result, load)

    def _all(self, guards: Sequence[LlvmValue], width: int) -> LlvmValue | None:
        """The conjunction of guards on ``width`` lanes, or ``None`` if there are none."""
        condition: LlvmValue | None = None
        for guard in guards:
            condition = self._and(condition, guard if guard.width == width else self.f.splat(guard, width))
        return condition

    def _and(self, a: LlvmValue | None, b: LlvmValue | None) -> LlvmValue | None:
        if a is None or b is None:
            return b if a is None else a
        return self._op("and", a, b)

    def _or_fill(self, condition: LlvmValue, value: LlvmValue, load: Load) -> LlvmValue:
        """The value where the condition holds, which may be one for all lanes; elsewhere the fill."""
        fill = load.fill if load.fill is not None else 0
        constant = scalar.constant(fill, load.buffer.dtype.name, value.width)
        key = ("filled", condition.text, value.text, constant.text)
        cached = self.scopes.get(key)
        return cached if cached is not None else self.scopes.set(key, self.f.select(condition, value, constant))


def _agree(guards: Sequence[LlvmValue]) -> bool:
    """Whether each condition is the same on all lanes."""
    return all(guard.width == 1 for guard in guards)
