"""Linear equations, logarithms of determinants, Cholesky factors, exponentials: of small matrices, in stacks.

What only PyTorch's own gradients read (factors, pivots) is not computed; nor is it looked whether a matrix can be
inverted: one that cannot gives NaN, and PyTorch an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.contraction.linear_algebra import Det, Inverse
from glowtrain.ops.contraction.products import MatMul, swapped
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.arithmetic import Abs, Sign, Sqrt
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.elementwise.transcendental import Log
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.reduce.reduction import ReduceL1, ReduceL2, ReduceMax, ReduceSum
from glowtrain.ops.tensor.move import Expand, Transpose, reshape
from glowtrain.torch.aten.creation import tril, triu
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import Shape, TensorType, f64, i32, i64

TAYLOR, SQUARINGS = 14, 32
"""The degree of the polynomial for exp, which is right to the last digit of f64 within 1/2; how often it is squared."""


@aten("linalg_inv.default", "inverse.default")
def inverse(call: AtenCall, x: Value) -> Any:
    return Inverse()(x)


@aten("linalg_inv_ex.default")
def inverse_unchecked(call: AtenCall, x: Value, check_errors: bool = False) -> Any:
    return Inverse()(x), _no_errors(x.shape[:-2])


def _no_errors(shape: Shape) -> Value:
    return constant(np.zeros(shape, i32.numpy))


@aten("linalg_det.default", "det.default")
def det(call: AtenCall, x: Value) -> Any:
    return Det()(x)


@aten("_linalg_slogdet.default", "linalg_slogdet.default")
def slogdet(call: AtenCall, x: Value) -> Any:
    """Of rows of length 1, in f64, so that the determinant of a large matrix is neither 0 nor infinite."""
    lengths = ReduceL2(axes=(-1,), keepdims=True)(StopGradient()(as_type(x, f64)))
    scales = Where()(Equal()(lengths, 0.0), constant(1.0, f64), lengths)
    determinant = Det()(as_type(x, f64) / scales)
    size = Log()(Abs()(determinant)) + ReduceSum(axes=(-1, -2), keepdims=False)(Log()(scales))
    return call.cast(Sign()(determinant)), call.cast(size), None, None


@aten("_linalg_solve_ex.default", "linalg_solve_ex.default")
def solve(call: AtenCall, matrix: Value, right: Value, *, left: bool = True, check_errors: bool = False) -> Any:
    """A right side that has the shape of the stack of matrices without their last axis is a stack of vectors."""
    columns = right.rank == 1 or (right.rank == matrix.rank - 1 and right.shape == matrix.shape[:-1])
    rows = right[..., None] if columns else right
    solved = _product(Inverse()(matrix), rows, left)
    rest = (_no_errors(type_.shape) if type_ and type_.dtype == i32 else None for type_ in call.types[1:])
    return reshape(solved, call.shape), *rest


def _product(inverted: Value, right: Value, left: bool = True) -> Value:
    result: Value = MatMul()(inverted, right) if left else MatMul()(right, inverted)
    return result


@aten("linalg_solve_triangular.default")
def solve_triangular(
    call: AtenCall, matrix: Value, right: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    return _product(Inverse()(_triangle(call, matrix, upper, unitriangular)), right, left)


def _triangle(call: AtenCall, x: Value, upper: bool, unit: bool = False) -> Value:
    """The triangle, without its diagonal and with ones there if it is said to have them."""
    half: Value = triu(call, x, int(unit)) if upper else tril(call, x, -int(unit))
    return half + constant(np.eye(x.shape[-1], dtype=x.dtype.numpy)) if unit else half


@aten("triangular_solve.default")
def triangular_solve(
    call: AtenCall,
    right: Value,
    matrix: Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    half = _triangle(call, matrix, upper, unitriangular)
    return _product(Inverse()(swapped(half) if transpose else half), right), matrix


@aten("linalg_cholesky_ex.default")
def cholesky_unchecked(call: AtenCall, x: Value, *, upper: bool = False, check_errors: bool = False) -> Any:
    return cholesky(call, x, upper), _no_errors(x.shape[:-2])


@aten("cholesky.default", "linalg_cholesky.default")
def cholesky(call: AtenCall, x: Value, upper: bool = False) -> Any:
    """Column by column: each is taken off what is left of the matrix. One triangle is read; the gradient is that of a
    symmetric matrix."""
    *batch, n, _ = x.shape
    if not n:
        return x
    left = Input(x.type, "left")
    here, below = Input(TensorType(x.dtype, (n,)), "here"), Input(TensorType(x.dtype, (n,)), "below")
    column = ReduceSum(axes=(-1,), keepdims=True)(left * here)
    pivot = ReduceSum(axes=(-2,), keepdims=True)(column * reshape(here, (n, 1)))
    scaled = column * reshape(below, (n, 1)) / Sqrt()(pivot)
    body = Graph((left, here, below), {"rest": left - scaled * swapped(scaled), "column": reshape(scaled, (*batch, n))})
    ones = np.eye(n, dtype=x.dtype.numpy), np.triu(np.ones((n, n), x.dtype.numpy))
    columns = Scan(body, 2)(_symmetric(call, x, upper), *map(constant, ones))[1]
    rows = Transpose(perm=(*range(1, len(batch) + 1), 0, len(batch) + 1))(columns)
    return rows if upper else swapped(rows)


def _symmetric(call: AtenCall, x: Value, upper: bool) -> Value:
    mean = (x + swapped(x)) * 0.5
    half = _triangle(call, x, upper)
    mirrored = Where()(constant(np.eye(x.shape[-1], dtype=bool)), half, half + swapped(half))
    result: Value = mean + StopGradient()(mirrored - mean)
    return result


@aten("cholesky_solve.default")
def cholesky_solve(call: AtenCall, right: Value, factor: Value, upper: bool = False) -> Any:
    return _product(cholesky_inverse(call, factor, upper), right)


@aten("cholesky_inverse.default")
def cholesky_inverse(call: AtenCall, factor: Value, upper: bool = False) -> Any:
    """The gradient is that of a whole matrix, of which a triangle happens to be 0."""
    inverted = Inverse()(factor + StopGradient()(_triangle(call, factor, upper) - factor))
    return MatMul()(inverted, swapped(inverted)) if upper else MatMul()(swapped(inverted), inverted)


@aten("linalg_matrix_exp.default", "matrix_exp.default")
def matrix_exp(call: AtenCall, x: Value) -> Any:
    """Taylor's polynomial of a matrix that is halved until its norm is at most 1/2, squared as often; in f64. NaN where
    that is more than SQUARINGS times: nothing is right there."""
    if not x.type.size:
        return x
    matrix, eye = as_type(x, f64), constant(np.eye(x.shape[-1]))
    norm = ReduceMax(axes=(-1,), keepdims=True)(ReduceL1(axes=(-2,), keepdims=True)(StopGradient()(matrix)))
    halvings = ReduceSum(axes=(-1,), keepdims=True)(as_type(norm > constant(2.0 ** np.arange(-1, SQUARINGS)), i64))
    scaled = matrix * Gather(axis=0)(constant(np.append(0.5 ** np.arange(SQUARINGS + 1), np.nan)), halvings)
    power, step = Input(matrix.type, "power"), Input(TensorType(f64), "step")
    argument, often = Input(matrix.type, "argument"), Input(norm.type, "often")
    taylor = Graph((power, step, argument), {"power": eye + MatMul()(argument, power) / step})
    squared = Graph((power, step, often), {"power": Where()(often >= step, MatMul()(power, power), power)})
    start = Expand(shape=x.shape)(eye)
    series = Scan(taylor, 1, num_captured=1)(start, constant(np.arange(TAYLOR, 0.0, -1)), scaled)
    often_ = as_type(halvings, f64)
    return call.cast(Scan(squared, 1, num_captured=1)(series, constant(np.arange(1.0, SQUARINGS + 1)), often_))
