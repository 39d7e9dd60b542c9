"""Loads: an element for all lanes, neighbours, or one from anywhere for every lane; outside of a buffer its fill."""

from __future__ import annotations

from collections.abc import Sequence

from glowtrain.backends.cpu.loop_nest.addresses import Addresses
from glowtrain.backends.cpu.loop_nest.scope import Lanes
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.text import Text, splat_constant, vector
from glowtrain.loops import Affine, Expr, Load, affine, within


class Loads(Addresses):
    """Writes loads into a function."""

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
            bound = splat_constant(str(extent), "i64", value.width)
            known = Lanes(self.f.value(f"icmp ult {type_} {value.text}, {bound}"), value.width)
            self.scopes.set(key, known)
        return known

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
        start = self.sum(self.scalar_sum(form, self.context.index), self.start())
        if guards and _agree(guards) and (self.context.mask is not None or load.buffer.type.size >= width):
            return self._load_all_or_none(load, start, guards)
        condition = self._all(guards, width)
        mask = self._and(condition, self.context.mask, width)
        value = scalar.load(self.f, self.pointer(load.buffer, start), dtype, width, self.target, mask)
        return Lanes(value if condition is None else self._or_fill(condition, value, load, width), width)

    def _load_all_or_none(self, load: Load, start: Text, guards: Sequence[Lanes]) -> Lanes:
        """Neighbours that are all inside or all outside; outside, the first elements are read for nothing.

        The lanes that exist are neighbours in the buffer, so it has as many elements. Their mask stands alone: LLVM 22
        reads the whole upper half of lanes where a condition that all share is joined with a mask of the lower half.
        """
        dtype, width = load.buffer.dtype.name, self.context.width
        condition = self._all(guards, 1)
        safe = self._value(f"select i1 {condition}, i64 {start}, i64 0")
        value = scalar.load(self.f, self.pointer(load.buffer, safe), dtype, width, self.target, self.context.mask)
        return Lanes(self._or_fill(condition, value, load, width, uniform=True), width)

    def _gather(self, load: Load, guards: Sequence[Lanes]) -> Lanes:
        """One load per lane: lanes outside of the mask or the guards read element 0."""
        dtype, width = load.buffer.dtype.name, self.context.width
        condition = self._all(guards, width)
        mask = self._and(condition, self.context.mask, width)
        type_, result = scalar.register_type(dtype, width), "poison"
        for lane, pointer in enumerate(self.lane_pointers(load.buffer, self.form(load), width, mask)):
            one = scalar.load(self.f, pointer, dtype, 1, self.target)
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

    def _or_fill(self, condition: Text | None, value: Text, load: Load, width: int, *, uniform: bool = False) -> Text:
        """The value where the condition holds, which ``uniform`` is one for all lanes; elsewhere the fill."""
        dtype = load.buffer.dtype.name
        type_ = scalar.register_type(dtype, width)
        fill = scalar.constant(load.fill if load.fill is not None else 0, dtype, width)
        condition = f"{vector('i1', 1 if uniform else width)} {condition}"
        return self.f.value(f"select {condition}, {type_} {value}, {type_} {fill}")


def _agree(guards: Sequence[Lanes]) -> bool:
    """Whether each condition is the same on all lanes."""
    return all(guard.width == 1 for guard in guards)
