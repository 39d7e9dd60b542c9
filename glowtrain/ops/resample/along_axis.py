"""Weighted sums of a few elements along one axis: what resizing is along each axis, and its transpose.

Tables ``[taps, out]`` say which elements are read and with which weights. Where they are constants, the transpose is a
weighted sum of the same kind with other tables, so that a gradient gathers as the forward direction does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.graph.value import Constant
from glowtrain.loops import Expr, For, Statement, Tensor, cast, indices_of, reduce
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.core.index import checked
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.indexing.scatter import ScatterAdd
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, filled, widened
from glowtrain.ops.tensor.move import Expand, Slice, reshape, sum_axes
from glowtrain.types import Array, TensorType, dtype_of, i32, i64

_UNROLLED = 8
"""Taps up to which a sum is written out."""
_EMPTIEST = 8
"""Table entries for each one that counts, up to which a gradient is gathered instead of scattered."""


@dataclass(frozen=True)
class Taps:
    """Element i of the result is the sum over t of ``weights[t, i]`` times element ``indices[t, i]`` of an axis."""

    indices: Array
    weights: Array
    extent: int
    """Elements of the axis that is read."""

    @staticmethod
    def of(results: Array, reads: Array, weights: Array, out: int, extent: int) -> Taps:
        """With as few taps as possible, from which result reads which element with which weight.

        Short columns are filled up with zero weights on an element that they read anyway, so that no infinity elsewhere
        leaks in.
        """
        pairs = results * extent + reads
        order = np.argsort(pairs, kind="stable")  # fast: a few runs that are sorted already
        pairs, weights = pairs[order], weights[order]
        different = np.flatnonzero(np.diff(pairs, prepend=-1))
        pairs, sums = pairs[different], np.add.reduceat(weights, different) if len(pairs) else weights
        pairs, sums = pairs[sums != 0], sums[sums != 0]
        results, reads = np.divmod(pairs, max(extent, 1))
        starts = np.searchsorted(results, np.arange(out))
        taps = np.arange(len(pairs)) - starts[results]
        count = int(taps.max(initial=0)) + 1
        first = reads[np.minimum(starts, len(reads) - 1)] if len(reads) else 0
        indices, table = np.zeros((count, out), np.int64) + first, np.zeros((count, out))
        indices[taps, results], table[taps, results] = reads, sums
        return Taps(indices, table, extent)

    def _entries(self) -> tuple[Array, Array, Array]:
        """Result, element and weight of every tap that counts."""
        taps, results = np.nonzero(self.weights)
        return results, self.indices[taps, results], self.weights[taps, results]

    def compact(self) -> Taps:
        """The same sums with as few taps as possible."""
        return Taps.of(*self._entries(), self.indices.shape[1], self.extent)

    def transposed(self) -> Taps | None:
        """The sums that take a cotangent of the result back to the axis; ``None`` if their table would be mostly empty,
        because few elements are read by many results."""
        results, reads, weights = self._entries()
        most = int(np.bincount(reads).max(initial=0))
        if most * self.extent > _EMPTIEST * (len(reads) + self.extent + self.indices.shape[1]):
            return None
        return Taps.of(reads, results, weights, self.extent, self.indices.shape[1])

    @property
    def copies(self) -> bool:
        """Every result element is just one element."""
        return len(self.indices) == 1 and bool((self.weights == 1).all())

    def apply(self, x: Value, axis: int) -> Value:
        """The sums along an axis of ``x``: by moves alone where elements are copied in a regular pattern."""
        if 0 in (self.extent, self.indices.shape[1]):
            return filled(0, x.type.with_shape((*x.shape[:axis], self.indices.shape[1], *x.shape[axis + 1 :])))
        moved = self._moved(x, axis)
        if moved is not None:
            return moved
        if self.copies and not x.dtype.is_float:
            copied: Value = Gather(axis)(x, constant(self.indices[0]))
            return copied
        weights = constant(self.weights, accumulator(x.dtype))
        result: Value = Resample(axis)(x, constant(self.indices), weights)
        return result

    def _moved(self, x: Value, axis: int) -> Value | None:
        if not self.copies:
            return None
        positions, out = self.indices[0], self.indices.shape[1]
        if out % self.extent == 0 and np.array_equal(positions, np.arange(out) // (out // self.extent)):
            return repeat(x, axis, out // self.extent)
        step = int(positions[1] - positions[0]) if out > 1 else 1
        if step > 0 and np.array_equal(positions, positions[0] + step * np.arange(out)):
            start = int(positions[0])
            taken: Value = Slice((start,), (start + step * out,), (axis,), (step,))(x)
            return taken
        return None


def repeat(x: Value, axis: int, times: int) -> Value:
    """Every element ``times`` in a row along ``axis``."""
    if times == 1:
        return x
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    spread: Value = Expand((*before, times, *after))(reshape(x, (*before, 1, *after)))
    return reshape(spread, (*before[:-1], before[-1] * times, *after))


@operator
@dataclass(frozen=True)
class Resample(Operator):
    """y[p.., i, s..] = sum over t of weights[t, i] x[p.., indices[t, i], s..], with i on ``axis``.

    Compiled code reads 0 for an index outside [0, extent).
    """

    axis: int

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 3:
            raise self.fail(f"takes x, indices and weights, not {len(inputs)} operands", *inputs)
        x, indices, weights = inputs
        axis = normalize_axis(self, self.axis, x)
        if indices.dtype not in (i32, i64) or indices.rank != 2 or weights.shape != indices.shape:
            raise self.fail("indices (i32 or i64) and weights must have one shape [taps, out]", *inputs)
        if not x.dtype.is_float or weights.dtype not in (x.dtype, accumulator(x.dtype)):
            raise self.fail("x must be floating, and weights of the element type in which x is summed", *inputs)
        return x.with_shape((*x.shape[:axis], indices.shape[1], *x.shape[axis + 1 :]))

    def reference(self, x: Array, indices: Array, weights: Array) -> Array:
        axis = self.axis % x.ndim
        taken = np.take(widened(x), checked(self, indices, x.shape[axis]), axis)
        factors = widened(weights).reshape(*weights.shape, *(1,) * (x.ndim - axis - 1))
        return np.asarray((taken * factors).sum(axis)).astype(x.dtype)

    def vjp(self, g: Value, y: Value, x: Value, indices: Value, weights: Value) -> Grads:
        axis = self.axis % x.rank
        others = (*range(axis), *range(axis + 2, x.rank + 1))
        for_weights = sum_axes(self._spread(g, weights.dtype) * self._read(x, indices, weights), others)
        return self._for_x(g, x, indices, weights), None, for_weights

    def _for_x(self, g: Value, x: Value, indices: Value, weights: Value) -> Value:
        axis = self.axis % x.rank
        if isinstance(indices, Constant) and isinstance(weights, Constant):
            back = Taps(indices.array, weights.array, x.shape[axis]).transposed()
            if back is not None:
                return back.apply(g, axis)
        terms = as_dtype(self._spread(g, weights.dtype) * _aligned(weights, x.rank - axis - 1), g.dtype)
        result: Value = ScatterAdd(shape=x.shape, axis=axis)(indices, terms)
        return result

    def _spread(self, g: Value, dtype: object) -> Value:
        """A cotangent with an axis for the taps."""
        axis = self.axis % g.rank
        wide = as_dtype(g, accumulator(g.dtype) if g.dtype != dtype else g.dtype)
        return reshape(wide, (*g.shape[:axis], 1, *g.shape[axis:]))

    def _read(self, x: Value, indices: Value, weights: Value) -> Value:
        """The elements under the taps: [p.., taps, out, s..]."""
        result: Value = Gather(self.axis % x.rank)(x, indices)
        return as_dtype(result, weights.dtype)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x, indices, weights), (y,) = inputs, outputs
        axis, wide, at = self.axis % len(x.shape), accumulator(x.dtype), indices_of(y.shape)
        taps = indices.shape[0]

        def term(t: Expr | int) -> Expr:
            position = cast(indices[(t, at[axis])], i64)
            value = x.load((*at[:axis], position, *at[axis + 1 :]), fill=0)
            return cast(value, wide) * cast(weights[(t, at[axis])], wide)

        if taps > _UNROLLED or taps == 0:
            return [For(at, (y.store(at, reduce("add", (taps,), term)),))]
        value = term(0)
        for t in range(1, taps):
            value = value + term(t)
        return [For(at, (y.store(at, value),))]

    def decompose(self, x: Value, indices: Value, weights: Value) -> Value:
        """Gather, multiply, sum."""
        axis = self.axis % x.rank
        terms = self._read(x, indices, weights) * _aligned(weights, x.rank - axis - 1)
        return as_dtype(sum_axes(terms, (axis,)), x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(-len(shape), len(shape) - 1)
        table = (draw.choice((1, 2, 3, 9)), draw.integer(1, 4))
        indices = draw.integers(table, 0, shape[axis] - 1)
        return Sample(cls(axis), (draw.floats(shape), indices, draw.floats(table)))


def _aligned(weights: Value, after: int) -> Value:
    """Weights with axes for those that come after theirs."""
    return reshape(weights, (*weights.shape, *(1,) * after))


def summed(x: Array, taps: Taps, axis: int) -> Array:
    """The sums along an axis of an array, in the element type in which it is summed."""
    wide = widened(x) if dtype_of(x.dtype).is_float else x.astype(np.float64)
    matrix = np.zeros((taps.indices.shape[1], taps.extent), wide.dtype)
    for indices, weights in zip(taps.indices, taps.weights, strict=True):
        matrix[np.arange(len(indices)), indices] += weights.astype(wide.dtype)
    return np.moveaxis(np.tensordot(matrix, wide, (1, axis)), 0, axis)
