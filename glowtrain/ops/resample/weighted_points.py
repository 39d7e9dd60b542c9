"""Weighted sums of elements at positions known at run time, shared by all channels: what interpolation at points is.

The three operators are each other's gradients. Compared with a gather (or scatter), a product and a sum they keep no
copy of the elements for each neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.loops import Const, Expr, For, Statement, Tensor, cast, indices_of, reduce
from glowtrain.ops.core.family import Grads
from glowtrain.ops.core.index import checked, out_of_range_fill, wrapped
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, filled, widened
from glowtrain.ops.tensor.move import Expand, reshape, sum_axes
from glowtrain.types import Array, TensorType, i64

_UNROLLED = 4
"""Taps up to which a sum is written out."""
_CHANNELS_LAST = (0, 2, 1)
_FEW_CHANNELS = 8
"""Fewer channels than these are not worth an innermost loop; then that is over points."""


class _Points(Operator):
    """What both directions share: x[N, C, S], i64 indices[N, T, P] into S, and a third operand."""

    domain: ClassVar[str] = "glowtrain"

    def check(self, *inputs: TensorType) -> None:
        """Operands present, of fitting shapes and types."""
        if len(inputs) != 3:
            raise self.fail(f"takes three operands, not {len(inputs)}", *inputs)
        x, indices, third = inputs
        if x.rank != 3 or indices.rank != 3 or indices.dtype != i64 or indices.shape[0] != x.shape[0]:
            raise self.fail("x must be [N, C, S], and indices i64, [N, T, P]", *inputs)
        if not x.dtype.is_float or third.dtype not in (x.dtype, accumulator(x.dtype)):
            raise self.fail("x and the third operand must be floating, of one type or the type of sums", *inputs)


def _elements(operator_: Operator, x: Array, indices: Array) -> Array:
    """x at the indices: [N, C, T, P]."""
    (n, c, s), (_, t, p) = x.shape, indices.shape
    positions = np.broadcast_to(checked(operator_, indices, s).reshape(n, 1, t * p), (n, c, t * p))
    return np.take_along_axis(widened(x), positions, 2).reshape(n, c, t, p)


def _read(x: Value, indices: Value) -> Value:
    """x at the indices: [N, C, T, P], in the element type of sums."""
    (n, c, _), (_, t, p) = x.shape, indices.shape
    positions: Value = Expand((n, c, t * p))(reshape(indices, (n, 1, t * p)))
    return as_dtype(reshape(GatherElements(axis=2)(x, positions), (n, c, t, p)), accumulator(x.dtype))


@operator
@dataclass(frozen=True)
class GatherSum(_Points):
    """y[n, c, p] = sum over t of x[n, c, indices[n, t, p]] weights[n, t, p]"""

    def infer(self, *inputs: TensorType) -> TensorType:
        self.check(*inputs)
        x, indices, weights = inputs
        if weights.shape != indices.shape:
            raise self.fail("weights must have the shape of indices", *inputs)
        return x.with_shape((*x.shape[:2], indices.shape[2]))

    def reference(self, x: Array, indices: Array, weights: Array) -> Array:
        sums = np.asarray(np.einsum("nctp,ntp->ncp", _elements(self, x, indices), widened(weights)))
        return sums.astype(x.dtype)

    def vjp(self, g: Value, y: Value, x: Value, indices: Value, weights: Value) -> Grads:
        for_weights: Value = GatherDot()(x, indices, g)
        return _back(g, indices, weights, x), None, as_dtype(for_weights, weights.dtype)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x, indices, weights), (y,), wide = inputs, outputs, accumulator(inputs[0].dtype)
        n, c, p = at = indices_of(y.shape)
        order, taps = (n, c, p) if y.shape[1] < _FEW_CHANNELS else (n, p, c), indices.shape[1]

        def term(t: Expr | int) -> Expr:
            position = wrapped(indices[(n, t, p)], x.shape[2])
            value = x.load((n, c, position), fill=out_of_range_fill(x.dtype))
            return cast(value, wide) * cast(weights[(n, t, p)], wide)

        if not 0 < taps <= _UNROLLED:
            return [For(order, (y.store(at, reduce("add", (taps,), term)),))]
        total = term(0)
        for t in range(1, taps):
            total = total + term(t)
        return [For(order, (y.store(at, total),))]

    def layouts(self, *inputs: TensorType) -> tuple[tuple[int, ...] | None, ...]:
        last = None if inputs[0].shape[1] < _FEW_CHANNELS else _CHANNELS_LAST
        return last, last

    def decompose(self, x: Value, indices: Value, weights: Value) -> Value:
        (n, t, p), wide = indices.shape, accumulator(x.dtype)
        terms = _read(x, indices) * as_dtype(reshape(weights, (n, 1, t, p)), wide)
        return as_dtype(sum_axes(terms, (2,)), x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, indices = _draw_points(draw)
        return Sample(cls(), (x, indices, draw.floats(indices.shape)))


@operator
@dataclass(frozen=True)
class GatherDot(_Points):
    """y[n, t, p] = sum over c of x[n, c, indices[n, t, p]] g[n, c, p], in the element type of sums"""

    def infer(self, *inputs: TensorType) -> TensorType:
        self.check(*inputs)
        x, indices, g = inputs
        if g.shape != (*x.shape[:2], indices.shape[2]):
            raise self.fail("g must be [N, C, P]", *inputs)
        return indices.with_dtype(accumulator(x.dtype))

    def reference(self, x: Array, indices: Array, g: Array) -> Array:
        return np.asarray(np.einsum("nctp,ncp->ntp", _elements(self, x, indices), widened(g)))

    def vjp(self, g: Value, y: Value, x: Value, indices: Value, other: Value) -> Grads:
        for_other: Value = GatherSum()(as_dtype(x, g.dtype), indices, g)
        return _back(other, indices, g, x), None, as_dtype(for_other, other.dtype)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x, indices, g), (y,), wide = inputs, outputs, accumulator(inputs[0].dtype)
        n, _, p = at = indices_of(y.shape)
        position = wrapped(indices[at], x.shape[2])

        def term(c: Expr) -> Expr:
            value = x.load((n, c, position), fill=out_of_range_fill(x.dtype))
            return cast(value, wide) * cast(g[(n, c, p)], wide)

        return [For(at, (y.store(at, reduce("add", (x.shape[1],), term)),))]

    def decompose(self, x: Value, indices: Value, g: Value) -> Value:
        n, c, p = g.shape
        terms = _read(x, indices) * as_dtype(reshape(g, (n, c, 1, p)), accumulator(x.dtype))
        return sum_axes(terms, (1,))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, indices = _draw_points(draw)
        return Sample(cls(), (x, indices, draw.floats((*x.shape[:2], indices.shape[2]))))


@operator
@dataclass(frozen=True)
class ScatterSum(Operator):
    """y[n, c, s] = sum of g[n, c, p] weights[n, t, p] over all t and p for which indices[n, t, p] is s < ``size``"""

    size: int

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 3:
            raise self.fail(f"takes g, indices and weights, not {len(inputs)} operands", *inputs)
        g, indices, weights = inputs
        if indices.rank != 3 or indices.dtype != i64 or weights.shape != indices.shape:
            raise self.fail("indices must be i64, [N, T, P], and weights of their shape", *inputs)
        if g.rank != 3 or (g.shape[0], g.shape[2]) != (indices.shape[0], indices.shape[2]):
            raise self.fail("g must be [N, C, P]", *inputs)
        if not g.dtype.is_float or weights.dtype not in (g.dtype, accumulator(g.dtype)):
            raise self.fail("g and weights must be floating, of one type or the type of sums", *inputs)
        return TensorType(accumulator(g.dtype), (*g.shape[:2], self.size))

    def reference(self, g: Array, indices: Array, weights: Array) -> Array:
        (n, c, _), positions = g.shape, checked(self, indices, self.size)
        terms = widened(g)[:, :, None] * widened(weights)[:, None]
        result = np.zeros((n, self.size, c), widened(g).dtype)
        np.add.at(result, (np.arange(n)[:, None, None], positions), np.moveaxis(terms, 1, 3))
        return np.ascontiguousarray(np.moveaxis(result, 2, 1))

    def vjp(self, g: Value, y: Value, *inputs: Value) -> Grads:
        spread, indices, weights = inputs
        for_spread: Value = GatherSum()(g, indices, as_dtype(weights, g.dtype))
        for_weights: Value = GatherDot()(g, indices, as_dtype(spread, g.dtype))
        return as_dtype(for_spread, spread.dtype), None, as_dtype(for_weights, weights.dtype)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (g, indices, weights), (y,), zero = inputs, outputs, indices_of(outputs[0].shape)
        n, c, t, p = order = indices_of((*y.shape[:2], *indices.shape[1:]))
        term = cast(g[(n, c, p)], y.dtype) * cast(weights[(n, t, p)], y.dtype)
        added = y.accumulate("add", (n, c, wrapped(indices[(n, t, p)], self.size)), term)
        return [For(zero, (y.store(zero, Const(0, y.dtype)),)), For(order, (added,))]

    def decompose(self, g: Value, indices: Value, weights: Value) -> Value:
        (n, c, p), t, wide = g.shape, indices.shape[1], accumulator(g.dtype)
        terms = as_dtype(reshape(g, (n, c, 1, p)), wide) * as_dtype(reshape(weights, (n, 1, t, p)), wide)
        positions: Value = Expand((n, c, t * p))(reshape(indices, (n, 1, t * p)))
        zeros = filled(0, TensorType(wide, (n, c, self.size)))
        result: Value = ScatterElements(axis=2, reduction="add")(zeros, positions, reshape(terms, (n, c, t * p)))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, indices = _draw_points(draw)
        g = draw.floats((*x.shape[:2], indices.shape[2]))
        return Sample(cls(x.shape[2]), (g, indices, draw.floats(indices.shape)))


def _back(g: Value, indices: Value, weights: Value, x: Value) -> Value:
    """The gradient of x that was read at the indices."""
    wide = accumulator(x.dtype)
    result: Value = ScatterSum(x.shape[2])(as_dtype(g, wide), indices, as_dtype(weights, wide))
    return as_dtype(result, x.dtype)


def _draw_points(draw: Draw) -> tuple[Array, Array]:
    n, c, s, p = draw.integer(1, 2), draw.choice((2, 1, 9)), draw.integer(1, 5), draw.integer(1, 4)
    indices = draw.integers((n, draw.choice((2, 1, 4, 9)), p), 0, s - 1)
    return draw.floats((n, c, s)), indices
