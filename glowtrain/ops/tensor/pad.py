"""Tensors made larger: repeated (Tile), or with a margin around them (Pad).

Semantics: https://onnx.ai/onnx/operators/ at the newest opset; reflect, edge and wrap are those of ``numpy.pad``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator, static
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, Statement, Tensor, call, pointwise, select
from glowtrain.ops.core.family import Grads, Move, normalize_axes
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.tensor.move import Expand, Ints, Slice, pad, reshape, reverse, sum_axes
from glowtrain.types import Array, Shape, TensorType, i64

MODES = ("constant", "reflect", "edge", "wrap")


@operator
@dataclass(frozen=True)
class Tile(Move):
    """The operand ``repeats[i]`` times in a row along each axis i."""

    repeats: Ints = static(1)

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if len(self.repeats) != x.rank or any(count < 0 for count in self.repeats):
            raise self.fail(f"repeats must be {x.rank} counts, one per axis and none negative", x)
        return x.with_shape(tuple(extent * count for extent, count in zip(x.shape, self.repeats, strict=True)))

    def reference(self, x: Array) -> Array:
        return np.tile(x, self.repeats)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        parts = [part for pair in zip(self.repeats, x.shape, strict=True) for part in pair]
        return (sum_axes(reshape(g, tuple(parts)), range(0, 2 * x.rank, 2)),)

    def source(self, index: Sequence[Expr], shape: Shape) -> Sequence[Expr | int]:
        return [i if count == 1 else i % extent for i, extent, count in zip(index, shape, self.repeats, strict=True)]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(max_rank=3, max_extent=3))
        return Sample(cls(tuple(draw.integer(1, 3) for _ in x.shape)), (x,))


@operator
@dataclass(frozen=True)
class Pad(Operator):
    """``pads[i]`` elements before and ``pads[i + n]`` after axis ``axes[i]`` (default: all axes); negative ones crop.

    The margin is ``constant_value`` (an optional scalar operand, default 0), the mirror image about the edge element
    ("reflect"), the edge element ("edge"), or the other end ("wrap"). In these three modes cropping comes first, as in
    ONNX Runtime.
    """

    pads: Ints = static(1)
    axes: Ints | None = static(3, None)
    mode: Literal["constant", "reflect", "edge", "wrap"] = "constant"

    quantized: ClassVar[Quantized] = "passes"

    def margins(self, type_: TensorType) -> list[tuple[int, int]]:
        """Elements before and after every axis. Raises :class:`~glowtrain.errors.ShapeError`."""
        axes = range(type_.rank) if self.axes is None else normalize_axes(self, self.axes, type_)
        if len(self.pads) != 2 * len(axes):
            raise self.fail(f"pads must have {2 * len(axes)} entries, two per axis, not {len(self.pads)}", type_)
        margins = [(0, 0)] * type_.rank
        for position, axis in enumerate(axes):
            margins[axis] = (self.pads[position], self.pads[position + len(axes)])
        return margins

    def infer(self, *inputs: Any) -> TensorType:
        if not 1 <= len(inputs) <= 2 or inputs[0] is None:
            raise self.fail("takes data, and optionally constant_value", *inputs)
        x, value = (*inputs, None)[:2]
        if self.mode not in MODES:
            raise self.fail(f"mode must be one of {', '.join(MODES)}", *inputs)
        if value is not None and (value.dtype != x.dtype or value.size != 1):
            raise self.fail(f"constant_value must be one {x.dtype}", *inputs)
        shape = tuple(b + extent + e for extent, (b, e) in zip(x.shape, self.margins(x), strict=True))
        if min(shape, default=0) < 0:
            raise self.fail(f"cropping leaves a negative extent: {shape}", *inputs)
        self._check_source(x)
        result: TensorType = x.with_shape(shape)
        return result

    def _check_source(self, x: TensorType) -> None:
        if self.mode == "constant":
            return
        for axis, (before, after) in enumerate(self.margins(x)):
            if (before > 0 or after > 0) and x.shape[axis] + min(before, 0) + min(after, 0) < 1:
                raise self.fail(f'axis {axis} has no element left to pad from in mode "{self.mode}"', x)

    def positions(self, axis: int, shape: Shape) -> Array:
        """The operand's position for each position along a padded axis; in mode "constant" it may be outside."""
        before, after = self.margins(TensorType(i64, shape))[axis]
        indices = np.arange(before + shape[axis] + after)
        if self.mode == "constant":
            return indices - before
        crop, extent = min(before, 0), shape[axis] + min(before, 0) + min(after, 0)
        indices = indices - max(before, 0)
        if self.mode == "edge":
            return np.clip(indices, 0, max(extent - 1, 0)) - crop
        period = _period(self.mode, extent)
        indices = indices % period
        return (np.minimum(indices, period - indices) if self.mode == "reflect" else indices) - crop

    def reference(self, x: Array, value: Array | None = None) -> Array:
        fill = np.zeros((), x.dtype) if value is None else value.reshape(())
        for axis, extent in enumerate(x.shape):
            positions = self.positions(axis, x.shape)
            inside = (positions >= 0) & (positions < extent)
            if extent == 0:
                x = np.full((*x.shape[:axis], len(positions), *x.shape[axis + 1 :]), fill)
                continue
            taken = np.take(x, np.where(inside, positions, 0), axis)
            x = np.where(inside.reshape((-1,) + (1,) * (x.ndim - axis - 1)), taken, fill)
        return x

    def vjp(self, g: Value, y: Value, x: Value, *value: Value | None) -> Grads:
        if self.mode != "constant":
            for_x = functools.reduce(lambda part, axis: self._fold(part, axis, x.shape), range(x.rank), g)
            return for_x, *(None for _ in value)
        margins = self.margins(x.type)
        for_x = pad(g, [-before for before, _ in margins] + [-after for _, after in margins])
        return for_x, *(None if v is None else self._value_gradient(g, x, v) for v in value)

    def _value_gradient(self, g: Value, x: Value, value: Value) -> Value:
        """The sum of the cotangent over the margin."""
        inside = Pad(self.pads, self.axes)(Expand(x.shape)(constant(np.ones((1,) * x.rank, np.bool_))))
        return reshape(sum_axes(Where()(inside, 0.0, g), range(g.rank)), value.shape)

    def _fold(self, g: Value, axis: int, shape: Shape) -> Value:
        """The cotangent with the margins of one axis added to where they came from."""
        positions = [int(p) for p in self.positions(axis, shape)]
        if positions == list(range(shape[axis])):
            return g
        pieces = [_piece(g, axis, run, positions, shape[axis]) for run in runs(positions)]
        return functools.reduce(lambda a, b: a + b, pieces)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        x, value = (*inputs, None)[:2]
        margins = self.margins(x.type)
        if self.mode != "constant":
            sources = [(before, after, extent) for (before, after), extent in zip(margins, x.shape, strict=True)]
            return pointwise(outputs[0], lambda *i: x[[self._source(j, *s) for j, s in zip(i, sources, strict=True)]])

        fill = None if value is None else _number(value)

        def element(*index: Expr) -> Expr:
            positions = [i - before if before else i for i, (before, _) in zip(index, margins, strict=True)]
            loaded: Expr = x.load(positions, fill=0 if fill is None else fill)
            checks = [
                (position >= 0) & (position < extent)
                for position, extent, (before, after) in zip(positions, x.shape, margins, strict=True)
                if before > 0 or after > 0
            ]
            if value is None or fill is not None or not checks:
                return loaded
            return select(functools.reduce(lambda a, b: a & b, checks), loaded, value[(0,) * len(value.shape)])

        return pointwise(outputs[0], element)

    def _source(self, index: Expr, before: int, after: int, extent: int) -> Expr:
        """The position in the operand, in the modes that repeat its elements."""
        crop, left = min(before, 0), extent + min(before, 0) + min(after, 0)
        if before <= 0 and after <= 0:
            return index - crop if crop else index
        position = index - max(before, 0)
        if self.mode == "edge":
            position = call("min", call("max", position, 0), left - 1)
        else:
            period = _period(self.mode, left)
            position = (position + -(-max(before, 0) // period) * period) % period
            position = call("min", position, period - position) if self.mode == "reflect" else position
        return position - crop if crop else position

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Margins wider than the operand, crops, some axes only, with and without a value."""
        x = draw.floats(draw.shape(min_rank=1, max_rank=3))
        axes = tuple(axis for axis in range(x.ndim) if draw.boolean())
        lows = [-1 if x.shape[axis] > 2 else 0 for axis in axes]
        margins = [(draw.integer(low, 6), draw.integer(low, 6)) for low in lows]
        pads = tuple(before for before, _ in margins) + tuple(after for _, after in margins)
        everywhere = axes == tuple(range(x.ndim))
        named = tuple(axis - x.ndim if draw.boolean() else axis for axis in axes)
        op = cls(pads, None if everywhere else named, draw.choice(MODES))
        with_value = op.mode == "constant" and draw.boolean()
        return Sample(op, (x, draw.floats(draw.choice(((), (1,))))) if with_value else (x,))


def _number(value: Tensor) -> int | None:
    """A known integer: margins of it are what a load gives outside of its buffer, so a convolution can read them."""
    constant = value.buffer.constant_array
    if constant is None or constant.size != 1 or not value.dtype.is_integer:
        return None
    return int(constant.flat[0])


def _period(mode: str, extent: int) -> int:
    """Places after which the pattern of positions repeats."""
    return max(2 * (extent - 1) if mode == "reflect" else extent, 1)


def runs(positions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Maximal stretches (start, stop, step) of ``positions`` with a constant step of 1, -1 or 0."""
    found, start = [], 0
    while start < len(positions):
        stop = start + 1
        step = positions[stop] - positions[start] if stop < len(positions) else 1
        while stop < len(positions) and positions[stop] - positions[stop - 1] == step and abs(step) <= 1:
            stop += 1
        found.append((start, stop, step if stop - start > 1 else 1))
        start = stop
    return found


def _piece(g: Value, axis: int, run: tuple[int, int, int], positions: Sequence[int], extent: int) -> Value:
    """The part of a cotangent in one run, at the position in the operand that it came from."""
    start, stop, step = run
    part: Value = Slice((start,), (stop,), (axis,))(g)
    if step == 0:
        part = sum_axes(part, (axis,), keepdims=True)
    elif step == -1:
        part = reverse(part, (axis,))
    first = min(positions[start], positions[stop - 1])
    before, after = [0] * g.rank, [0] * g.rank
    before[axis], after[axis] = first, extent - first - part.shape[axis]
    return pad(part, (*before, *after))
