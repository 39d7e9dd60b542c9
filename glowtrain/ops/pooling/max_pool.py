"""Max pooling, with the winners' positions; its gradient sends each window's cotangent to its winner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, For, Let, Ref, Statement, Tensor, call, cast, flatten, indices_of, reduce, select
from glowtrain.ops.convolution.geometry import SlidingWindow
from glowtrain.ops.core.family import Grads
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.pooling.pooling import Pool, PoolGradient, draw_pool
from glowtrain.ops.reduce.reduction import accumulator, filled, widened
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.types import Array, Shape, TensorType, i32, i64

_FAR = (1 << 62) - 1
"""Larger than any position."""
_MOST_IN_32 = 1 << 31
"""Elements whose positions fit an i32."""


@operator
@dataclass(frozen=True)
class MaxPool(Pool):
    """The maximum of each window, and its position in the flattened input (that of the first among equals).

    Results ``y[N, C, out...]`` and ``indices``, i64 of the same shape; with ``storage_order=1`` the spatial axes count
    in column-major order. NaN in a window wins.
    """

    storage_order: int = 0

    quantized: ClassVar[Quantized] = "passes"
    kinds = Pool.kinds | {"i8", "u8"}

    def infer(self, *inputs: Any) -> tuple[TensorType, TensorType]:
        pooled = self.pooled(inputs[0])
        return pooled, pooled.with_dtype(i64)

    def reference(self, *inputs: Any) -> tuple[Array, Array]:
        x = inputs[0]
        geometry = self.geometry(x)
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        positions = _positions(x.shape, self.storage_order)
        indices = geometry.view(geometry.pad(positions, -1)).reshape(
            *x.shape[:2], *geometry.out, math.prod(geometry.kernel)
        )
        values = geometry.view(geometry.pad(widened(x), lowest)).reshape(indices.shape)
        # Padding must not win even over -inf, so a tie is broken by being inside.
        best = values.max(axis=-1, keepdims=True)
        wins = ((values == best) | (values != values)) & (indices >= 0)
        first = wins.argmax(axis=-1)[..., None]
        taken = (np.take_along_axis(array, first, -1)[..., 0] for array in (values, indices))
        return next(taken).astype(x.dtype), next(taken)

    def vjp(self, g: Any, y: Any, *inputs: Any) -> Grads:
        x, cotangent = inputs[0], g[0]
        if cotangent is None or not x.dtype.is_float:
            return (None,)
        geometry = self.geometry(x)
        gradient = MaxPoolGradient(
            geometry.spatial, geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads,
            self.storage_order,
        )  # fmt: skip
        # Positions are kept until the backward pass: in half of the bytes where they fit them.
        indices = Cast(i32)(y[1]) if x.type.size <= _MOST_IN_32 else y[1]
        return (gradient(cotangent, indices),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (y, positions), x = outputs, inputs[0]
        geometry = self.geometry(x)
        n, c, *position = indices = indices_of(y.shape)
        lowest = -math.inf if x.dtype.is_float else (-128 if x.dtype.kind == "int" else 0)

        def element(tap: Sequence[Expr]) -> Expr:
            loaded: Expr = x.load((n, c, *geometry.source(position, tap)), fill=lowest)
            return loaded

        best = Ref(x.dtype, "best")

        def candidate(*tap: Expr) -> Expr:
            value = element(tap)
            wins = (
                call("or", call("eq", value, best), call("isnan", value))
                if x.dtype.is_float
                else call("eq", value, best)
            )
            where = flatten((n, c, *geometry.source(position, tap)), x.shape)
            return select(_inside(geometry, position, tap, wins), where, _FAR)

        first = reduce("min", geometry.kernel, candidate)
        maximum = Let(best, reduce("max", geometry.kernel, lambda *tap: element(tap)))
        stored = positions.store(indices, _in_order(first, x.shape, self.storage_order))
        return [For(indices, (maximum, y.store(indices, best), stored))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = draw_pool(draw)
        return Sample(cls(storage_order=draw.integer(0, 1), **chosen), (draw.floats(shape),))


def _positions(shape: Shape, storage_order: int) -> Array:
    """The number of every element, counting row-major or with column-major spatial axes."""
    spatial = shape[2:] if storage_order == 0 else shape[:1:-1]
    numbers = np.arange(math.prod(shape)).reshape(*shape[:2], *spatial)
    return numbers if storage_order == 0 else numbers.transpose(0, 1, *range(len(shape) - 1, 1, -1))


def _in_order(position: Expr, shape: Shape, storage_order: int) -> Expr:
    """A row-major position counted in the storage order instead."""
    if storage_order == 0:
        return position
    area = math.prod(shape[2:])
    flat, total, step = position % area, (position // area) * area, 1
    below = area
    for extent in shape[2:]:
        below //= extent
        total = total + (flat // below) % extent * step
        step *= extent
    return total


def _inside(geometry: SlidingWindow, position: Sequence[Expr], tap: Sequence[Expr], condition: Expr) -> Expr:
    """``condition``, and the tap lies inside the input on every axis where it may not."""
    source = geometry.source(position, tap)
    for subscript, axis in zip(source, geometry.axes, strict=True):
        if axis.begin:
            condition = call("and", condition, call("ge", subscript, 0))
        if axis.after:
            condition = call("and", condition, call("lt", subscript, axis.extent))
    return condition


@operator
@dataclass(frozen=True)
class MaxPoolGradient(PoolGradient):
    """dx[N, C, D...] from g[N, C, out...] and MaxPool's indices, as i64 or i32: each window's cotangent goes to its
    winner."""

    storage_order: int = 0

    def infer(self, *inputs: Any) -> TensorType:
        g, indices = inputs
        if indices not in (g.with_dtype(i64), g.with_dtype(i32)):
            raise self.fail("indices must be i64 or i32 of g's shape", *inputs)
        return self.spread(g)

    def reference(self, *inputs: Any) -> Array:
        g, indices = inputs
        shape = (*g.shape[:2], *self.spatial)
        flat = np.zeros(math.prod(shape), widened(g).dtype)
        np.add.at(flat, indices.reshape(-1), widened(g).reshape(-1))
        return flat[_positions(shape, self.storage_order)].astype(g.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        return Gather(axis=0)(self._flat(g), inputs[1]), None

    def _flat(self, x: Value) -> Value:
        ordered = x if self.storage_order == 0 else Transpose(perm=(0, 1, *range(x.rank - 1, 1, -1)))(x)
        return reshape(ordered, (math.prod(x.shape),))

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (dx,), (g, indices) = outputs, inputs
        wide = accumulator(g.dtype)
        ordered = (*dx.shape[:2], *(dx.shape[2:] if self.storage_order == 0 else dx.shape[:1:-1]))

        def term(position: Sequence[Expr], target: Sequence[Expr]) -> Expr:
            number = flatten((*target[:2], *(target[2:] if self.storage_order == 0 else target[:1:-1])), ordered)
            won = call("eq", indices.load(position, fill=-1), cast(number, indices.dtype))
            return select(won, cast(g.load(position, fill=0), wide), 0)

        return self.nests(dx, g, term)

    def decompose(self, *inputs: Any) -> Value:
        g, indices = inputs
        size = math.prod((*g.shape[:2], *self.spatial))
        zeros = filled(0.0, g.type.with_shape((size,)))
        flat = ScatterElements(axis=0, reduction="add")(
            zeros, reshape(indices, (g.type.size,)), reshape(g, (g.type.size,))
        )
        if self.storage_order == 0:
            return reshape(flat, (*g.shape[:2], *self.spatial))
        swapped = reshape(flat, (*g.shape[:2], *self.spatial[::-1]))
        result: Value = Transpose(perm=(0, 1, *range(swapped.rank - 1, 1, -1)))(swapped)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = draw_pool(draw)
        pool = MaxPool(storage_order=draw.integer(0, 1), **chosen)
        y, indices = pool.reference(draw.floats(shape))
        geometry = pool.geometry(np.empty(shape))
        fields = (geometry.spatial, geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads)
        indices = indices.astype(draw.choice((np.int64, np.int32)))
        return Sample(cls(*fields, pool.storage_order), (draw.floats(y.shape), indices))
