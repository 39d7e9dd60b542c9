"""Operators that rearrange, repeat, cut out and join: their lowering is index arithmetic, which vanishes where fused.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import ModelError, ShapeError
from glowtrain.graph import Draw, Named, Operand, Operator, Ragged, Sample, Value, constant, operator, static
from glowtrain.graph.operator import Quantized
from glowtrain.graph.specialise.ragged import ragged_of
from glowtrain.loops import Expr, For, Statement, Tensor, flatten, indices_of, unflatten
from glowtrain.ops.core.family import Grads, Move, broadcast_shapes, normalize_axes, normalize_axis
from glowtrain.types import Array, Shape, TensorType, i64

Ints = tuple[int, ...]
REDUCE_SUM, PAD, MIN, SPLIT = Named("ReduceSum"), Named("Pad"), Named("Min"), Named("Split")
LAST = (1 << 63) - 1
"""INT64_MAX: as a Slice's end, "up to the last element"."""


def sum_axes(x: Value, axes: Sequence[int], keepdims: bool = False) -> Value:
    """The sum over some axes."""
    if not axes:
        return x
    result: Value = REDUCE_SUM(axes=tuple(axes), keepdims=keepdims)(x)
    return result


def reshape(x: Value, shape: Shape) -> Value:
    """``x`` with exactly this shape; ``x`` itself where it has it."""
    if x.shape == tuple(shape):
        return x
    result: Value = Reshape(tuple(shape), allowzero=0 in shape)(x)
    return result


def pad(x: Value, pads: Sequence[int]) -> Value:
    """``x`` with zeros around it: ``pads`` are those before every axis, then those after (negative ones crop)."""
    if not any(pads):
        return x
    result: Value = PAD(pads=tuple(pads))(x)
    return result


class Reshaping(Move):
    """The same elements in the same row-major order, in another shape."""

    def shape_for(self, type_: TensorType) -> Shape:
        """The result's shape. Raises :class:`ShapeError`."""
        raise NotImplementedError

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0].with_shape(self.shape_for(inputs[0]))

    def reference(self, x: Array) -> Array:
        return x.reshape(self.shape_for(_shape_type(x.shape)))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (reshape(g, x.shape),)

    def source(self, index: Sequence[Expr], shape: Shape) -> Sequence[Expr | int]:
        return unflatten(flatten(index, self.shape_for(_shape_type(shape))), shape)

    def follow(self, result: Value, *operands: Operand) -> Ragged:
        """An axis stays one where the same number of elements stands before it, and it keeps its extent."""
        (data,) = ragged_of(operands)
        shape, before = data.value.shape, math.prod(data.value.shape[: data.axis])
        for axis, extent in enumerate(result.shape):
            if extent == shape[data.axis] and math.prod(result.shape[:axis]) == before:
                return replace(data, value=result, axis=axis)
        raise ModelError(f"{self.key()} joins an axis whose size is found at run time with others")


def _shape_type(shape: Shape) -> TensorType:
    """A type of the given shape, where only the shape matters."""
    return TensorType(i64, shape)


@operator
@dataclass(frozen=True)
class Reshape(Reshaping):
    """The same elements in another shape.

    Of ``shape``, one extent may be -1 (whatever is left); 0 keeps the operand's extent unless ``allowzero``.
    """

    shape: Ints = static(1)
    allowzero: bool = False

    def shape_for(self, type_: TensorType) -> Shape:
        extents = [self._extent(axis, type_) for axis in range(len(self.shape))]
        if extents.count(-1) > 1:
            raise self.fail("at most one extent can be -1", type_)
        if -1 in extents:
            rest = math.prod(extent for extent in extents if extent != -1)
            if rest == 0 or type_.size % rest:
                raise self.fail(f"{type_.size} elements do not divide by the other extents ({rest})", type_)
            extents[extents.index(-1)] = type_.size // rest
        if math.prod(extents) != type_.size:
            raise self.fail(f"{type_.size} elements do not fit {tuple(extents)} ({math.prod(extents)})", type_)
        return tuple(extents)

    def _extent(self, axis: int, type_: TensorType) -> int:
        extent = self.shape[axis]
        if extent < -1:
            raise self.fail(f"extent {extent} is negative; only -1 stands for the rest", type_)
        if extent or self.allowzero:
            return extent
        if axis >= type_.rank:
            raise self.fail(f"extent 0 on axis {axis} copies an axis that the operand does not have", type_)
        return type_.shape[axis]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(max_rank=3))
        kept = (0,) if x.ndim and draw.boolean() else ()
        shape = draw.choice((x.shape, (*kept, -1), (*kept, 1, -1), (*x.shape[: len(kept)], -1, 1), (x.size,)))
        return Sample(cls(tuple(shape), draw.boolean() and 0 not in shape), (x,))


@operator
@dataclass(frozen=True)
class Flatten(Reshaping):
    """A matrix: the axes before ``axis`` make the rows, the others the columns."""

    axis: int = 1

    def shape_for(self, type_: TensorType) -> Shape:
        if not -type_.rank <= self.axis <= type_.rank:
            raise self.fail(f"axis {self.axis} is outside [{-type_.rank}, {type_.rank}]", type_)
        axis = self.axis + type_.rank if self.axis < 0 else self.axis
        return math.prod(type_.shape[:axis]), math.prod(type_.shape[axis:])

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape())
        return Sample(cls(draw.integer(-x.ndim, x.ndim)), (x,))


@operator
@dataclass(frozen=True)
class Squeeze(Reshaping):
    """Axes of extent 1 removed: those named, or all."""

    axes: Ints | None = static(1, None)

    def shape_for(self, type_: TensorType) -> Shape:
        if self.axes is None:
            return tuple(extent for extent in type_.shape if extent != 1)
        axes = normalize_axes(self, self.axes, type_)
        wrong = [axis for axis in axes if type_.shape[axis] != 1]
        if wrong:
            raise self.fail(f"axis {wrong[0]} has extent {type_.shape[wrong[0]]}, not 1", type_)
        return tuple(extent for axis, extent in enumerate(type_.shape) if axis not in axes)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(max_rank=2)
        if draw.boolean():
            return Sample(cls(), (draw.floats((1, *shape, 1)),))
        return Sample(cls(draw.choice(((0,), (-1,), (0, -1), ()))), (draw.floats((1, *shape, 1)),))


@operator
@dataclass(frozen=True)
class Unsqueeze(Reshaping):
    """Axes of extent 1 inserted; ``axes`` count in the result."""

    axes: Ints = static(1)

    def shape_for(self, type_: TensorType) -> Shape:
        axes = normalize_axes(self, self.axes, type_, extra=len(self.axes))
        extents = iter(type_.shape)
        return tuple(1 if axis in axes else next(extents) for axis in range(type_.rank + len(axes)))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        axes = draw.choice(((0,), (-1,), (0, -1), (1, 0)))
        return Sample(cls(axes), (draw.floats(draw.shape(max_rank=2)),))


@operator
@dataclass(frozen=True)
class Transpose(Move):
    """Result axis i is operand axis ``perm[i]``; without ``perm`` the axes are reversed."""

    perm: Ints | None = None

    def order(self, rank: int) -> Ints:
        """The operand's axis for each axis of the result."""
        return tuple(reversed(range(rank))) if self.perm is None else self.perm

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        order = self.order(x.rank)
        if sorted(order) != list(range(x.rank)):
            raise self.fail(f"perm must be a permutation of 0 to {x.rank - 1}", x)
        return x.with_shape(tuple(x.shape[axis] for axis in order))

    def reference(self, x: Array) -> Array:
        return np.transpose(x, self.order(x.ndim))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        order = self.order(x.rank)
        return (Transpose(tuple(order.index(axis) for axis in range(x.rank)))(g),)

    def source(self, index: Sequence[Expr], shape: Shape) -> Sequence[Expr | int]:
        order = self.order(len(shape))
        return [index[order.index(axis)] for axis in range(len(shape))]

    def follow(self, result: Value, *operands: Operand) -> Ragged:
        (data,) = ragged_of(operands)
        return replace(data, value=result, axis=self.order(data.value.rank).index(data.axis))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape())
        perm = list(range(x.ndim))
        for axis in reversed(range(1, x.ndim)):
            other = draw.integer(0, axis)
            perm[axis], perm[other] = perm[other], perm[axis]
        return Sample(cls(tuple(perm) if draw.boolean() else None), (x,))


@operator
@dataclass(frozen=True)
class Expand(Move):
    """Broadcast to ``shape`` both ways: where ``shape`` has 1 (or no axis), the operand's extent stays."""

    shape: Ints = static(1)
    broadcasts: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        try:
            return x.with_shape(broadcast_shapes([x.shape, self.shape]))
        except ShapeError as error:
            raise self.fail(str(error), x) from None

    def reference(self, x: Array) -> Array:
        return np.broadcast_to(x, broadcast_shapes([x.shape, self.shape]))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        """The cotangent itself: ``broadcasts`` makes the reverse walk sum it to the operand's shape."""
        return (g,)

    def source(self, index: Sequence[Expr], shape: Shape) -> Sequence[Expr | int]:
        trailing = index[len(index) - len(shape) :]
        return [0 if extent == 1 else i for extent, i in zip(shape, trailing, strict=True)]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        operand = tuple(1 if draw.boolean() else extent for extent in shape[draw.integer(0, len(shape)) :])
        same = draw.boolean()
        target = tuple(1 if e == o and same else e for e, o in zip(shape, (0,) * 4 + operand, strict=False))
        return Sample(cls(shape if not same else target), (draw.floats(operand),))


@operator
@dataclass(frozen=True)
class Slice(Move):
    """``x[start:end:step]`` along ``axes`` (default: the first ones), as in Python: negative bounds count from the end,
    bounds beyond the tensor are clamped, a negative step walks backwards."""

    starts: Ints = static(1)
    ends: Ints = static(2)
    axes: Ints | None = static(3, None)
    steps: Ints | None = static(4, None)

    def ranges(self, type_: TensorType) -> list[range]:
        """The positions that are taken on every axis. Raises :class:`ShapeError`."""
        axes = tuple(range(len(self.starts))) if self.axes is None else self.axes
        steps = (1,) * len(axes) if self.steps is None else self.steps
        if not len(self.starts) == len(self.ends) == len(axes) == len(steps):
            raise self.fail("starts, ends, axes and steps must have one length", type_)
        if 0 in steps:
            raise self.fail("a step of 0 does not move", type_)
        taken = [range(extent) for extent in type_.shape]
        named = normalize_axes(self, axes, type_)
        for axis, start, end, step in zip(named, self.starts, self.ends, steps, strict=True):
            taken[axis] = range(*slice(start, end, step).indices(type_.shape[axis]))
        return taken

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0].with_shape(tuple(len(taken) for taken in self.ranges(inputs[0])))

    def reference(self, x: Array) -> Array:
        for axis, taken in enumerate(self.ranges(_shape_type(x.shape))):
            if taken != range(x.shape[axis]):
                x = np.take(x, np.asarray(taken, np.int64), axis)
        return x

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        """Put back where it was taken from: backward steps reversed, gaps between steps and margins filled with 0."""
        ranges = self.ranges(x.type)
        backward = [axis for axis, taken in enumerate(ranges) if len(taken) > 1 and taken.step < 0]
        g = dilate(reverse(g, backward), [abs(taken.step) if len(taken) > 1 else 1 for taken in ranges])
        begins = [min(taken, default=0) for taken in ranges]
        ends = [full - begin - extent for full, begin, extent in zip(x.shape, begins, g.shape, strict=True)]
        return (pad(g, (*begins, *ends)),)

    def source(self, index: Sequence[Expr], shape: Shape) -> Sequence[Expr | int]:
        ranges = self.ranges(_shape_type(shape))
        return [_position(i, taken) for i, taken in zip(index, ranges, strict=True)]

    def follow(self, result: Value, *operands: Operand) -> Ragged:
        (data,) = ragged_of(operands)
        rank, extent = data.value.rank, data.value.shape[data.axis]
        axes = [axis % rank for axis in (range(len(self.starts)) if self.axes is None else self.axes)]
        if data.axis not in axes:
            return replace(data, value=result)
        position = axes.index(data.axis)
        start, end, step = self.starts[position], self.ends[position], 1 if self.steps is None else self.steps[position]
        if start != 0 or step != 1 or end < 0:
            raise ModelError("Slice of an axis whose size is found at run time takes only the first elements")
        size = data.size if end == LAST else MIN()(data.size, constant(np.int64(min(end, extent))))
        return Ragged(result, data.axis, size)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(min_rank=1, max_rank=3))
        axes = tuple(axis for axis in range(x.ndim) if draw.boolean())
        bounds = [_sample_bounds(draw, x.shape[axis]) for axis in axes]
        starts, ends, steps = (tuple(b[i] for b in bounds) for i in range(3))
        named = tuple(axis - x.ndim if draw.boolean() else axis for axis in axes)
        full = axes == tuple(range(len(axes)))
        simple = all(step == 1 for step in steps)
        return Sample(cls(starts, ends, None if full else named, None if simple else steps), (x,))


def _position(index: Expr, taken: range) -> Expr:
    """start + step · index"""
    scaled = index if taken.step == 1 else index * taken.step
    return scaled + taken.start if taken.start else scaled


def _sample_bounds(draw: Draw, extent: int) -> tuple[int, int, int]:
    """Start, end and step that leave at least one element, in all of the ways to write them."""
    first = draw.integer(0, extent - 1)
    if draw.boolean():
        end = draw.choice((extent, LAST, extent + 3, first + 1))
        return draw.choice((first, first - extent)), end, draw.choice((1, 1, 2, 3))
    start = draw.choice((first, LAST, -1))
    return start, draw.choice((-LAST - 1, -extent - 1)), draw.choice((-1, -2))


def reverse(x: Value, axes: Sequence[int]) -> Value:
    """``x`` back to front along ``axes``."""
    if not axes:
        return x
    count = len(axes)
    result: Value = Slice((-1,) * count, (-LAST - 1,) * count, tuple(axes), (-1,) * count)(x)
    return result


def dilate(x: Value, steps: Sequence[int]) -> Value:
    """``x`` with ``step - 1`` zeros after each element along every axis."""
    if all(step == 1 for step in steps):
        return x
    pairs = reshape(x, tuple(part for extent in x.shape for part in (extent, 1)))
    ends = [part for step in steps for part in (0, step - 1)]
    spread = pad(pairs, (0,) * len(ends) + tuple(ends))
    return reshape(spread, tuple(extent * step for extent, step in zip(x.shape, steps, strict=True)))


@operator
@dataclass(frozen=True)
class Concat(Operator):
    """Operands one after another along ``axis``."""

    axis: int

    quantized: ClassVar[Quantized] = "rescales"
    copies: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> TensorType:
        if not inputs:
            raise self.fail("takes at least 1 operand")
        axis = normalize_axis(self, self.axis, inputs[0])
        if len({type_.dtype for type_ in inputs}) > 1:
            raise self.fail("operands must have one element type", *inputs)
        if len({(*type_.shape[:axis], -1, *type_.shape[axis + 1 :]) for type_ in inputs}) > 1:
            raise self.fail(f"operands must have the same shape except on axis {axis}", *inputs)
        total = sum(type_.shape[axis] for type_ in inputs)
        shape = inputs[0].shape
        return inputs[0].with_shape((*shape[:axis], total, *shape[axis + 1 :]))

    def reference(self, *inputs: Array) -> Array:
        return np.concatenate(inputs, self.axis)

    def vjp(self, g: Value, y: Value, *inputs: Value) -> Grads:
        if len(inputs) == 1:
            return (g,)
        axis = self.axis % y.rank
        sizes = tuple(x.shape[axis] for x in inputs)
        parts: Grads = SPLIT(split=sizes, axis=axis)(g)
        return parts

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (y,) = outputs
        axis, offset, nests = self.axis % len(y.shape), 0, list[Statement]()
        for x in inputs:
            index = indices_of(x.shape)
            position = (*index[:axis], index[axis] + offset if offset else index[axis], *index[axis + 1 :])
            nests.append(For(index, (y.store(position, x[index]),)))
            offset += x.shape[axis]
        return nests

    def follow(self, result: Value, *operands: Operand) -> Ragged:
        first, *others = ragged_of(operands)
        if first.axis == self.axis % result.rank or any(other.axis != first.axis for other in others):
            raise ModelError("Concat along an axis whose size is found at run time")
        return replace(first, value=result)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(-len(shape), len(shape) - 1)
        extents = [draw.integer(0 if draw.integer(0, 5) == 0 else 1, 3) for _ in range(draw.integer(1, 3))]
        at = axis % len(shape)
        return Sample(cls(axis), tuple(draw.floats((*shape[:at], e, *shape[at + 1 :])) for e in extents))


def zeros(type_: TensorType) -> Value:
    """A tensor of zeros."""
    zero = constant(np.zeros((), type_.dtype.numpy))
    result: Value = Expand(type_.shape)(zero) if type_.rank else zero
    return result
