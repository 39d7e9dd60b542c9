"""QR and LU factors, column by column, of small matrices in stacks; what is made of reflections and of factors.

The signs and pivots are LAPACK's (E. Anderson et al., LAPACK Users' Guide, 1999: larfg, getrf).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.contraction.linear_algebra import Inverse
from glowtrain.ops.contraction.products import MatMul, swapped
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.arithmetic import Abs, Sqrt
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceSum
from glowtrain.ops.tensor.move import Expand, Transpose, reshape
from glowtrain.torch.aten.creation import tril, triu
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import DType, TensorType, i32, i64


def _eye(rows: int, columns: int, dtype: DType) -> np.ndarray:
    return np.eye(rows, columns, dtype=dtype.numpy)


def _below(rows: int, columns: int, dtype: DType) -> np.ndarray:
    """[columns, rows]: what is below the diagonal in each column."""
    return np.triu(np.ones((columns, rows), dtype.numpy), 1)


def _sum(x: Value, axis: int) -> Value:
    result: Value = ReduceSum(axes=(axis,), keepdims=True)(x)
    return result


def _stacked(x: Value) -> Value:
    """Columns along a first axis."""
    result: Value = Transpose(perm=(x.rank - 1, *range(x.rank - 1)))(x)
    return result


def _unstacked(x: Value) -> Value:
    result: Value = Transpose(perm=(*range(1, x.rank), 0))(x)
    return result


# --- reflections ------------------------------------------------------------------------------------------------------


def _triangularized(x: Value) -> tuple[Value, Value, Value]:
    """The triangular factor, and the reflections that lead to it: vectors [count, ..., rows], factors [count, ...]."""
    *batch, m, n = x.shape
    count = min(m, n)
    left = Input(x.type, "left")
    here, below, column = (
        Input(TensorType(x.dtype, shape), name) for name, shape in (("here", (m,)), ("below", (m,)), ("column", (n,)))
    )
    entries = _sum(left * column, -1)
    head, rest = _sum(entries * reshape(here, (m, 1)), -2), entries * reshape(below, (m, 1))
    squares = _sum(rest * rest, -2)
    done = Equal()(squares, 0)
    length = Sqrt()(Where()(done, 1, head * head + squares))
    target = Where()(head < 0, length, -length)
    vector = reshape(here, (m, 1)) + Where()(done, 0, rest / (head - target))
    factor = Where()(done, 0, (target - head) / target)
    body = Graph(
        (left, here, below, column),
        {
            "left": _reflected(left, vector, factor),
            "vector": reshape(vector, (*batch, m)),
            "factor": reshape(factor, tuple(batch)),
        },
    )
    each = _eye(count, m, x.dtype), _below(m, count, x.dtype), _eye(count, n, x.dtype)
    result, vectors, factors = Scan(body, 3)(x, *map(constant, each))
    return result, vectors, factors


def _reflected(x: Value, vector: Value, factor: Value) -> Value:
    result: Value = x - vector * (factor * MatMul()(swapped(vector), x))
    return result


def _all_reflected(x: Value, vectors: Value, factors: Value, *, last_first: bool) -> Value:
    """x, [..., rows, columns], behind all reflections."""
    left = Input(x.type, "left")
    vector, factor = (Input(each.type.with_shape(each.shape[1:]), "each") for each in (vectors, factors))
    reflected = _reflected(left, reshape(vector, (*vector.shape, 1)), reshape(factor, (*factor.shape, 1, 1)))
    body = Graph((left, vector, factor), {"left": reflected})
    result: Value = Scan(body, 2, scan_input_directions=(int(last_first),) * 2)(x, vectors, factors)
    return result


def _orthogonal(vectors: Value, factors: Value, columns: int) -> Value:
    *batch, m = vectors.shape[1:]
    start = Expand(shape=(*batch, m, columns))(constant(_eye(m, columns, vectors.dtype)))
    return _all_reflected(start, vectors, factors, last_first=True)


def _reflections(call: AtenCall, x: Value, factors: Value) -> tuple[Value, Value]:
    """Those that ``geqrf`` has left below the diagonal."""
    if not x.type.size or not factors.type.size:
        raise ModelError("there are no reflections, and PyTorch gives no gradients then, not even zeros")
    count = factors.shape[-1]
    lower = tril(call, x[..., :count], -1) + constant(_eye(x.shape[-2], count, x.dtype))
    return _stacked(lower), _stacked(factors)


@aten("linalg_qr.default")
def qr(call: AtenCall, x: Value, mode: str = "reduced") -> Any:
    m, n = x.shape[-2:]
    count = min(m, n)
    if not count:
        q, r = call.nothing(0, 1)
        return (Expand(shape=q.shape)(constant(_eye(m, m, x.dtype))) if mode == "complete" else q), r
    upper, vectors, factors = _triangularized(x)
    upper = triu(call, upper if mode == "complete" else upper[..., :count, :])
    if mode == "r":
        return *call.nothing(0), upper
    return _orthogonal(vectors, factors, m if mode == "complete" else count), upper


@aten("geqrf.default")
def geqrf(call: AtenCall, x: Value) -> Any:
    """R, with the vectors of reflections below the diagonal, and their factors."""
    if not x.type.size:
        return x, *call.nothing(1)
    upper, vectors, factors = _triangularized(x)
    m, n = x.shape[-2:]
    lower = tril(call, _unstacked(vectors), -1)
    wide = MatMul()(lower, constant(_eye(min(m, n), n, x.dtype)))
    return triu(call, upper) + wide, _unstacked(factors)


@aten("linalg_householder_product.default")
def householder_product(call: AtenCall, x: Value, tau: Value) -> Any:
    return _orthogonal(*_reflections(call, x, tau), x.shape[-1])


@aten("ormqr.default")
def ormqr(call: AtenCall, x: Value, tau: Value, other: Value, left: bool = True, transpose: bool = False) -> Any:
    """The product with the orthogonal matrix, from the left or from the right."""
    operand = other if left else swapped(other)
    product = _all_reflected(operand, *_reflections(call, x, tau), last_first=left != transpose)
    return product if left else swapped(product)


# --- LU factors -------------------------------------------------------------------------------------------------------


def _factored(x: Value) -> tuple[Value, Value, Value]:
    """Both factors in one matrix; the row that each row was exchanged with, from 0, [..., columns]; and the rows as
    they stand then, [..., rows]."""
    *batch, m, n = x.shape
    count = min(m, n)
    left, rows = Input(x.type, "left"), Input(TensorType(i64, (*batch, m)), "rows")
    number = Input(TensorType(i64), "number")
    here, below, column, right = (
        Input(TensorType(x.dtype, (extent,)), name)
        for name, extent in (("here", m), ("below", m), ("column", n), ("right", n))
    )
    entries = reshape(_sum(left * column, -1), (*batch, m))
    pivot = ArgMax(axis=-1, keepdims=True)(Where()(here + below > 0, Abs()(entries), -1))
    order = _exchanged(number, pivot, m)
    swapped_ = GatherElements(axis=-2)(left, Expand(shape=x.shape)(reshape(order, (*batch, m, 1))))
    row, entries = _sum(swapped_ * reshape(here, (m, 1)), -2), _sum(swapped_ * column, -1)
    divisor = _sum(row * column, -1)
    is_zero = Equal()(divisor, 0)
    under = Where()(is_zero, 0, entries / Where()(is_zero, 1, divisor)) * reshape(below, (m, 1))
    chosen = reshape(below, (m, 1)) * column > 0
    body = Graph(
        (left, rows, number, here, below, column, right),
        {
            "left": Where()(chosen, under, swapped_ - under * (row * right)),
            "rows": GatherElements(axis=-1)(rows, order),
            "pivot": reshape(pivot, tuple(batch)),
        },
    )
    each = (
        np.arange(count), _eye(count, m, x.dtype), _below(m, count, x.dtype), _eye(count, n, x.dtype),
        _below(n, count, x.dtype),
    )  # fmt: skip
    first = Expand(shape=(*batch, m))(constant(np.arange(m)))
    factors, rows_, pivots = Scan(body, 5)(x, first, *map(constant, each))
    return factors, _unstacked(pivots), rows_


def _exchanged(number: Value, pivot: Value, count: int) -> Value:
    """Rows in order, but two of them: a number and [..., 1] others."""
    order = constant(np.arange(count))
    result: Value = Where()(Equal()(order, number), pivot, Where()(Equal()(order, pivot), number, order))
    return result


def _permutation(rows: Value, dtype: DType) -> Value:
    """P, by which the product of the factors is multiplied."""
    count = rows.shape[-1]
    at = Equal()(reshape(rows, (*rows.shape[:-1], 1, count)), constant(np.arange(count)[:, None]))
    return as_type(at, dtype)


def _rows(pivots: Value, count: int) -> Value:
    """The rows as they stand behind all exchanges, which count from 1."""
    *batch, steps = pivots.shape
    first: Value = Expand(shape=(*batch, count))(constant(np.arange(count)))
    if not steps:
        return first
    rows, number = Input(first.type, "rows"), Input(TensorType(i64), "number")
    pivot = Input(TensorType(i64, tuple(batch)), "pivot")
    order = _exchanged(number, reshape(pivot, (*batch, 1)), count)
    body = Graph((rows, number, pivot), {"rows": GatherElements(axis=-1)(rows, order)})
    result: Value = Scan(body, 2)(first, constant(np.arange(steps)), _stacked(as_type(pivots, i64) - 1))
    return result


def _lower_and_upper(call: AtenCall, factors: Value) -> tuple[Value, Value]:
    m, n = factors.shape[-2:]
    count = min(m, n)
    lower = tril(call, factors[..., :count], -1) + constant(_eye(m, count, factors.dtype))
    return lower, triu(call, factors[..., :count, :])


@aten("linalg_lu_factor_ex.default")
def lu_factor(call: AtenCall, x: Value, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Factors, pivots from 1, and the first pivot from 1 that is zero, or 0."""
    if not x.type.size:
        return x, *call.nothing(1, 2)
    factors, pivots, _ = _factored(x)
    m, n = x.shape[-2:]
    diagonal = _sum(factors * constant(_eye(m, n, x.dtype)), -1)[..., : min(m, n), 0]
    is_zero = as_type(Equal()(diagonal, 0), i32)
    none = Equal()(ReduceMax(axes=(-1,), keepdims=False)(is_zero), 0)
    info = Where()(none, 0, ArgMax(axis=-1, keepdims=False)(is_zero) + 1)
    return factors, as_type(pivots + 1, i32), as_type(info, i32)


@aten("linalg_lu.default")
def lu(call: AtenCall, x: Value, *, pivot: bool = True) -> Any:
    factors, _, rows = _factored(x)
    return _permutation(rows, x.dtype), *_lower_and_upper(call, factors)


@aten("lu_unpack.default")
def lu_unpack(
    call: AtenCall, factors: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    none = call.nothing(0, 1, 2)
    permutation = _permutation(_rows(pivots, factors.shape[-2]), factors.dtype) if unpack_pivots else none[0]
    return permutation, *(_lower_and_upper(call, factors) if unpack_data else none[1:])


@aten("linalg_lu_solve.default")
def lu_solve(
    call: AtenCall, factors: Value, pivots: Value, right: Value, *, left: bool = True, adjoint: bool = False
) -> Any:
    """Of A X = B, or with A transposed; X A = B is the other one of both, transposed."""
    permutation = _permutation(_rows(pivots, factors.shape[-2]), factors.dtype)
    lower, upper = map(Inverse(), _lower_and_upper(call, factors))
    inverted = MatMul()(upper, MatMul()(lower, swapped(permutation)))
    matrix = swapped(inverted) if adjoint else inverted
    return MatMul()(matrix, right) if left else MatMul()(right, matrix)


@aten("lu_solve.default")
def lu_solve_of(call: AtenCall, right: Value, factors: Value, pivots: Value) -> Any:
    return lu_solve(call, factors, pivots, right)
