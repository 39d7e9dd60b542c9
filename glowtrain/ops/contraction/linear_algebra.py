"""Determinants and inverses of small matrices, in stacks.

Semantics of Det: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Graph, Input, Operator, Sample, Value, constant, operator
from glowtrain.loops import Const, Expr, For, Let, Ref, Statement, Tensor, call, indices_of, reduce, select
from glowtrain.ops.contraction.products import swapped
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.core.family import Grads
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.logic import And, Equal, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceSum, accumulator, as_dtype, filled
from glowtrain.ops.tensor.move import Concat, Expand, Slice, Transpose, reshape
from glowtrain.types import Array, TensorType, boolean, f32, f64, i64

LARGEST_MINORS = 8
"""Size up to which a determinant's gradient is formed from minors, which singular matrices have too."""


@operator
@dataclass(frozen=True)
class Elimination(Operator):
    """Gauss and Jordan's elimination with partial pivoting of each matrix x[..., n, m], m ≥ n.

    Results: the matrices with their first n columns reduced to the identity, the determinants of those columns, and
    the last step's pivot row and factors, which are working memory. Where no pivot is left the row is cleared and the
    determinant is 0.
    """

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "a step of Det and Inverse, which have rules of their own"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = inputs
        if x.dtype not in (f32, f64) or x.rank < 2 or x.shape[-2] > x.shape[-1]:
            raise self.fail("the operand must be f32 or f64, [..., n, m] with n <= m", x)
        *batch, n, m = x.shape
        return x, x.with_shape((*batch,)), x.with_shape((*batch, m)), x.with_shape((*batch, n))

    def reference(self, x: Array) -> tuple[Array, ...]:
        *batch, n, m = x.shape
        work = x.reshape(math.prod(batch), n, m).copy()
        count = len(work)
        every = np.arange(count)
        det, row, column = np.ones(count, x.dtype), np.zeros((count, m), x.dtype), np.zeros((count, n), x.dtype)
        for k in range(n):
            position = k + np.argmax(np.abs(work[:, k:, k]), axis=1)
            pivot = work[every, position, k]
            det = det * np.where(position == k, pivot, -pivot)
            with np.errstate(divide="ignore"):
                row = work[every, position] * np.where(pivot == 0, 0, 1 / pivot)[:, None]
            work[every, position] = work[:, k]
            column = work[:, :, k].copy()
            column[:, k] = 0
            work -= column[:, :, None] * row[:, None]
            work[:, k] = row
        parts = (work.reshape(x.shape), det.reshape(batch), row.reshape(*batch, m), column.reshape(*batch, n))
        return tuple(np.asarray(part, x.dtype) for part in parts)

    def decompose(self, x: Value) -> tuple[Value, ...]:
        """A Scan over the columns; rows are picked by masks."""
        *batch, n, m = x.shape
        count = math.prod(batch)
        shapes = (x.shape, (*batch,), (*batch, m), (*batch, n))
        if not n:
            rest = zip((1, 0, 0), shapes[1:], strict=True)
            return x, *(filled(fill, x.type.with_shape(shape)) for fill, shape in rest)
        types = [x.type.with_shape((count, *inner)) for inner in ((n, m), (1, 1), (1, m), (n, 1))]
        states = [Input(type_, name) for type_, name in zip(types, ("work", "det", "row", "column"), strict=True)]
        here, left = (Input(TensorType(boolean, (n,)), name) for name in ("here", "left"))
        results = _reduced(states[0], states[1], reshape(here, (n, 1)), reshape(left, (n, 1)))
        body = Graph((*states, here, left), {value.name: new for value, new in zip(states, results, strict=True)})
        start = (
            reshape(x, types[0].shape),
            *(filled(fill, type_) for fill, type_ in zip((1, 0, 0), types[1:], strict=True)),
        )
        masks = constant(np.eye(n, dtype=bool)), constant(np.triu(np.ones((n, n), bool)))
        results = Scan(body, 2)(*start, *masks)
        return tuple(reshape(value, shape) for value, shape in zip(results, shapes, strict=True))

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (work, det, row, column) = inputs, outputs
        n, m = x.shape[-2:]
        batch, (i, j) = indices_of(x.shape[:-2], "b"), indices_of((n, m))
        start: list[Statement] = [
            For((i, j), (work.store((*batch, i, j), x[(*batch, i, j)]),)),
            For((j,), (row.store((*batch, j), Const(0, x.dtype)),)),
            For((i,), (column.store((*batch, i), Const(0, x.dtype)),)),
            det.store(batch, Const(1, x.dtype)),
        ]
        (k,) = indices_of((n,), "k")
        step = For((k,), tuple(self._step(outputs, batch, k)), serial=True)
        return [For(batch, (*start, step))] if batch else [*start, step]

    def _step(self, outputs: tuple[Tensor, ...], batch: Sequence[Expr], k: Expr) -> list[Statement]:
        """Choose a pivot, scale its row, bring it to row k, and take multiples of it from all others."""
        work, det, row, column = outputs
        (n, m), dtype = work.shape[-2:], work.dtype
        peak, position, pivot, scale = Ref(dtype, "peak"), Ref(i64, "place"), Ref(dtype, "pivot"), Ref(dtype, "scale")

        def size(r: Expr) -> Expr:
            return select(r < k, -1.0, call("abs", work[(*batch, r, k)]))

        def pivot_row(r: Expr) -> Expr:
            largest = call("or", call("eq", size(r), peak), call("isnan", size(r)))  # the first NaN, as in argmax
            return select((r >= k) & largest, r, n - 1)

        chosen = call("max", call("min", position, n - 1), 0)
        i, j, p, q, s = indices_of((n, m, m, m, n), "e")
        same = call("eq", position, k)
        eliminated = work[(*batch, i, j)] - column[(*batch, i)] * row[(*batch, j)]
        return [
            Let(peak, reduce("max", (n,), size)),
            Let(position, reduce("min", (n,), pivot_row)),
            Let(pivot, work[(*batch, chosen, k)]),
            Let(scale, select(call("eq", pivot, 0.0), 0.0, 1.0 / pivot)),
            det.store(batch, det[batch] * select(same, pivot, -pivot)),
            For((p,), (row.store((*batch, p), work[(*batch, chosen, p)] * scale),)),
            For((q,), (work.store((*batch, chosen, q), work[(*batch, k, q)]),)),
            For((s,), (column.store((*batch, s), select(call("eq", s, k), 0.0, work[(*batch, s, k)])),)),
            For((i, j), (work.store((*batch, i, j), select(call("eq", i, k), row[(*batch, j)], eliminated)),)),
        ]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        n = draw.integer(1, 4)
        return Sample(cls(), (draw.floats((*draw.shape(max_rank=2, max_extent=3), n, n + draw.integer(0, 3))),))


def _reduced(work: Value, det: Value, here: Value, left: Value) -> tuple[Value, ...]:
    """One step on [B, n, m]: ``here`` marks row k, ``left`` the rows from k on, both bool[n, 1]."""
    n = work.shape[1]

    def row_at(mask: Value) -> Value:
        result: Value = ReduceSum(axes=(1,))(Where()(mask, work, 0.0))
        return result

    def column_at(x: Value) -> Value:
        result: Value = ReduceSum(axes=(2,))(Where()(reshape(here, (1, n)), Slice((0,), (n,), (2,))(x), 0.0))
        return result

    position = ArgMax(axis=1)(Where()(left, Abs()(column_at(work)), -1.0))
    pivot_row = Equal()(position, constant(np.arange(n)[:, None]))
    pivot = column_at(row_at(pivot_row))
    none = Equal()(pivot, 0.0)
    row = row_at(pivot_row) * Where()(none, 0.0, 1.0 / Where()(none, 1.0, pivot))
    same = ReduceMax(axes=(1,))(as_dtype(And()(pivot_row, here), work.dtype))
    swapped_rows = Where()(pivot_row, row_at(here), work)
    column = Where()(here, 0.0, column_at(swapped_rows))
    return Where()(here, row, swapped_rows - column * row), det * pivot * (same * 2 - 1), row, column


def _check_square(operator_: Operator, *inputs: TensorType) -> TensorType:
    if len(inputs) != 1:
        raise operator_.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
    (x,) = inputs
    if not x.dtype.is_float or x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise operator_.fail("the operand must be floating square matrices [..., n, n]", x)
    return x


def _wide(x: Array) -> Array:
    return x if x.dtype == np.float64 or x.dtype.kind == "c" else x.astype(np.float32)


@operator
@dataclass(frozen=True)
class Inverse(Operator):
    """The inverse of each matrix x[..., n, n]; NaN for singular ones: those that leave no pivot."""

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> TensorType:
        return _check_square(self, *inputs)

    def reference(self, x: Array) -> Array:
        n = x.shape[-1]
        beside = np.broadcast_to(np.eye(n), x.shape).astype(_wide(x).dtype)
        reduced, *_ = Elimination().reference(np.concatenate([_wide(x), beside], axis=-1))
        singular = (np.diagonal(reduced, axis1=-2, axis2=-1) == 0).any(axis=-1)
        return np.where(singular[..., None, None], np.nan, reduced[..., n:]).astype(x.dtype)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        back = swapped(y)
        return (-(back @ g @ back),)

    def decompose(self, x: Value) -> Value:
        n, wide = x.shape[-1], as_dtype(x, accumulator(x.dtype))
        beside = Expand(x.shape)(eye := constant(np.eye(n), wide.dtype))
        reduced = Elimination()(Concat(axis=-1)(wide, beside))[0]
        # a row is cleared where no pivot is left; the determinant may be 0 because it is too small for its type
        diagonal = ReduceSum(axes=(-1,), keepdims=True)(Slice((0,), (n,), (-1,))(reduced) * eye)
        cleared = ReduceSum(axes=(-2,), keepdims=True)(as_dtype(Equal()(diagonal, 0.0), wide.dtype))
        inverted = Where()(cleared > 0, np.nan, Slice((n,), (2 * n,), (-1,))(reduced))
        return as_dtype(inverted, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        n = draw.integer(1, 4)
        x = draw.floats((*draw.shape(max_rank=2, max_extent=3), n, n))
        return Sample(cls(), (x + draw.choice((-3, 3)) * n * np.eye(n),))


@operator
@dataclass(frozen=True)
class Det(Operator):
    """The determinant of each matrix x[..., n, n]; 1 for n = 0.

    The gradient is the matrix of cofactors: for n up to 8 from minors, right for singular matrices too; beyond that
    from the inverse.
    """

    def infer(self, *inputs: TensorType) -> TensorType:
        x = _check_square(self, *inputs)
        return x.with_shape(x.shape[:-2])

    def reference(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(_wide(x)), x.dtype)

    def decompose(self, x: Value) -> Value:
        return as_dtype(Elimination()(as_dtype(x, accumulator(x.dtype)))[1], x.dtype)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        if not x.shape[-1]:
            return (None,)
        seed = reshape(g, (*g.shape, 1, 1))
        if x.shape[-1] <= LARGEST_MINORS:
            return (seed * self._cofactors(x),)
        return (seed * reshape(y, (*y.shape, 1, 1)) * swapped(Inverse()(x)),)

    def _cofactors(self, x: Value) -> Value:
        """(-1)^(i+j) times the determinant without row i and column j."""
        n, r = x.shape[-1], x.rank - 2
        others = np.array([[k for k in range(n) if k != i] for i in range(n)], np.int64).reshape(n, n - 1)
        rows = Gather(axis=r)(x, constant(others))
        both = Gather(axis=r + 2)(rows, constant(others))
        minors: Any = Transpose((*range(r), r, r + 2, r + 1, r + 3))(both)
        signs = (-1.0) ** np.add.outer(np.arange(n), np.arange(n))
        result: Value = self(minors) * constant(signs, x.dtype)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        n = draw.choice((0, 1, 2, 3, 4, 4, LARGEST_MINORS + 1, LARGEST_MINORS + 1))
        batch = draw.shape(max_rank=2, max_extent=3) if n < 5 else ()
        x = draw.floats((*batch, n, n))
        if n > 1 and math.prod(batch) and draw.integer(0, 2) == 0:
            x[..., 0] = x[..., 1]  # singular
        return Sample(cls(), (x if n <= LARGEST_MINORS else np.eye(n) + x / n,))
