"""Sums, means, extremes and norms along axes, and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.arithmetic import Abs, Pow, Sqrt
from glowtrain.ops.elementwise.logic import Cast, Equal, Greater, GreaterOrEqual, IsNaN, LessOrEqual, Or, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax, ArgMin, CumSum
from glowtrain.ops.indexing.gather import Gather, GatherElements
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.reduce import reduction
from glowtrain.ops.reduce.scans import CumProd
from glowtrain.ops.reduce.softmax import LogSoftmax, Softmax
from glowtrain.ops.tensor.move import reshape
from glowtrain.torch.aten.elementwise.transcendental import log_of_sum
from glowtrain.torch.aten.table import AtenCall, accumulated, along_axis, as_type, aten
from glowtrain.types import TensorType, boolean, f32, i64

Dims = int | Sequence[int] | None


def axes_of(x: Value, dim: Dims) -> tuple[int, ...]:
    """The axes that are meant, counted from the front: all for none."""
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(axis % max(1, x.rank) for axis in dims) if dims else tuple(range(x.rank))


def reduced(operator: type[reduction.Reduction], x: Value, dim: Dims, keepdim: bool) -> Value:
    """A reduction along axes; a scalar reduces to itself."""
    axes = axes_of(x, dim) if x.rank else ()
    result: Value = operator(axes=axes, keepdims=keepdim, noop_with_empty_axes=True)(x)
    return result


@aten("sum.default", "sum.dim_IntList")
def sum_(call: AtenCall, x: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return reduced(reduction.ReduceSum, call.cast(x), dim, keepdim)


@aten("mean.default", "mean.dim")
def mean(call: AtenCall, x: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return reduced(reduction.ReduceMean, call.cast(x), dim, keepdim)


@aten("prod.default", "prod.dim_int")
def prod(call: AtenCall, x: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return reduced(reduction.ReduceProd, call.cast(x), dim, keepdim)


@aten("amax.default")
def amax(call: AtenCall, x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    return reduced(reduction.ReduceMax, x, dim, keepdim)


@aten("amin.default")
def amin(call: AtenCall, x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    return reduced(reduction.ReduceMin, x, dim, keepdim)


@aten("max.default")
def max_(call: AtenCall, x: Value) -> Any:
    return _of_some(reduction.ReduceMax, x)


@aten("min.default")
def min_(call: AtenCall, x: Value) -> Any:
    return _of_some(reduction.ReduceMin, x)


def _of_some(operator: type[reduction.Reduction], x: Value) -> Value:
    if not x.type.size:
        raise ModelError("a tensor without elements has no largest and no smallest one")
    return reduced(operator, x, None, False)


@aten("max.dim")
@along_axis
def max_dim(call: AtenCall, x: Value, dim: int, keepdim: bool = False) -> Any:
    return extremum(ArgMax, x, dim)


@aten("min.dim")
@along_axis
def min_dim(call: AtenCall, x: Value, dim: int, keepdim: bool = False) -> Any:
    return extremum(ArgMin, x, dim)


def extremum(operator: Callable[..., Any], x: Value, dim: int) -> tuple[Value, Value]:
    """Values and indices along an axis. The values are those at the indices, so that of equal ones only that one has
    the gradient."""
    axis = dim % x.rank
    index = operator(axis=axis, keepdims=True)(x)
    return GatherElements(axis=axis)(x, index), index


@aten("argmax.default")
@along_axis
def argmax(call: AtenCall, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    return _arg(ArgMax, call, x, dim, keepdim)


@aten("argmin.default")
@along_axis
def argmin(call: AtenCall, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    return _arg(ArgMin, call, x, dim, keepdim)


def _arg(operator: Callable[..., Any], call: AtenCall, x: Value, dim: int | None, keepdim: bool) -> Value:
    if dim is None:
        x, dim = reshape(x, (x.type.size,)), 0
    found: Value = operator(axis=dim % x.rank, keepdims=keepdim)(x)
    return reshape(found, call.shape)


@aten("any.default", "any.dim", "any.dims")
def any_(call: AtenCall, x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    counted = reduced(reduction.ReduceMax, Cast(to=f32)(as_type(x, boolean)), dim, keepdim)
    return Greater()(counted, constant(0.5, f32))


@aten("all.default", "all.dim", "all.dims")
def all_(call: AtenCall, x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    counted = reduced(reduction.ReduceMin, Cast(to=f32)(as_type(x, boolean)), dim, keepdim)
    return Greater()(counted, constant(0.5, f32))


@aten("var.correction", "var.dim")
def var(call: AtenCall, x: Value, dim: Dims = None, correction: Any = 1, keepdim: bool = False) -> Any:
    return call.cast(_variance(accumulated(x), dim, _correction(correction), keepdim))


@aten("std.correction", "std.dim")
def std(call: AtenCall, x: Value, dim: Dims = None, correction: Any = 1, keepdim: bool = False) -> Any:
    """Where nothing varies the gradient is 0, as PyTorch has it."""
    variance = _variance(accumulated(x), dim, _correction(correction), keepdim)
    none = Equal()(variance, constant(0, variance.dtype))
    deviation = Sqrt()(Where()(none, constant(1, variance.dtype), variance))
    return call.cast(Where()(none, constant(0, variance.dtype), deviation))


@aten("var.default")
def var_of_all(call: AtenCall, x: Value, unbiased: bool = True) -> Any:
    return var(call, x, None, unbiased)


@aten("std.default")
def std_of_all(call: AtenCall, x: Value, unbiased: bool = True) -> Any:
    return std(call, x, None, unbiased)


@aten("var_mean.correction")
def var_mean(call: AtenCall, x: Value, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
    return var(call, x, dim, correction, keepdim), reduced(reduction.ReduceMean, x, dim, keepdim)


def _correction(given: Any) -> float:
    """What is subtracted from n: a number, or ``unbiased`` of older overloads."""
    return 1.0 if given is None else float(given)


def _variance(x: Value, dim: Dims, correction: float, keepdim: bool) -> Value:
    centered = x - reduced(reduction.ReduceMean, x, dim, True)
    count = 1
    for axis in axes_of(x, dim):
        count *= x.shape[axis]
    if 0 < count <= correction != 1:
        raise ModelError(
            f"a variance of {count} elements with correction={correction:g} is infinite, and PyTorch's gradients of it "
            "are of no formula: the correction must be less than the number of elements"
        )
    squares = reduced(reduction.ReduceSumSquare, centered, dim, keepdim)
    has_freedom = count > max(correction, 0.0)
    return squares * (1.0 / (count - correction)) if has_freedom else squares / constant(0.0, x.dtype)


@aten("logsumexp.default")
def logsumexp(call: AtenCall, x: Value, dim: Dims, keepdim: bool = False) -> Any:
    return reduced(reduction.ReduceLogSumExp, call.cast(x), dim, keepdim)


@aten("dist.default")
def dist(call: AtenCall, x: Value, y: Value, p: Any = 2) -> Any:
    return vector_norm(call, x - y, p)


@aten("_cdist_forward.default")
def cdist(call: AtenCall, x: Value, y: Value, p: float, compute_mode: int | None = None) -> Any:
    """The norms of the differences of all rows of one and all rows of the other; 0 of rows without elements."""
    if not x.shape[-1]:
        return constant(np.zeros(call.shape, call.dtype.numpy))
    return vector_norm(call, x[..., :, None, :] - y[..., None, :, :], p, -1)


@aten("_pdist_forward.default")
def pdist(call: AtenCall, x: Value, p: float = 2) -> Any:
    """The norms of the differences of rows, each pair once."""
    first, second = (constant(rows) for rows in np.triu_indices(x.shape[0], 1))
    return vector_norm(call, Gather(axis=0)(x, first) - Gather(axis=0)(x, second), p, -1)


@aten("norm.Scalar", "norm.ScalarOpt_dim", "linalg_vector_norm.default")
def vector_norm(
    call: AtenCall, x: Value, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    x, order = call.cast(x), 2.0 if p is None else float(p)
    if order == 2:
        return reduced(reduction.ReduceL2, x, dim, keepdim)
    if order == 1:
        return reduced(reduction.ReduceL1, x, dim, keepdim)
    if order == 0:
        return reduced(reduction.ReduceSum, as_type(~Equal()(x, call.cast(0)), x.dtype), dim, keepdim)
    if order in (float("inf"), float("-inf")):
        return reduced(reduction.ReduceMax if order > 0 else reduction.ReduceMin, Abs()(x), dim, keepdim)
    powers = reduced(reduction.ReduceSum, _flat_at_zero(Abs()(accumulated(x)), order), dim, keepdim)
    return call.cast(_flat_at_zero(powers, 1 / order))


def _flat_at_zero(x: Value, exponent: float) -> Value:
    """A power of what is not negative; at 0 its gradient is 0, also where the power's slope has no end."""
    number = constant(0, x.dtype)
    zero = Equal()(x, number)
    safe = Where()(zero, constant(1, x.dtype), x)
    result: Value = Where()(zero, Pow()(number, constant(exponent, x.dtype)), Pow()(safe, constant(exponent, x.dtype)))
    return result


@aten("cumsum.default")
@along_axis
def cumsum(call: AtenCall, x: Value, dim: int, dtype: Any = None) -> Any:
    return call.cast(CumSum(axis=dim % x.rank)(accumulated(call.cast(x))))


@aten("cumprod.default")
@along_axis
def cumprod(call: AtenCall, x: Value, dim: int, dtype: Any = None) -> Any:
    return call.cast(CumProd(axis=dim % x.rank)(accumulated(call.cast(x))))


@aten("logcumsumexp.default")
@along_axis
def logcumsumexp(call: AtenCall, x: Value, dim: int) -> Any:
    axis, x = dim % x.rank, accumulated(x)
    type_ = x.type.with_shape((*x.shape[:axis], *x.shape[axis + 1 :]))
    before, here = Input(type_, "before"), Input(type_, "here")
    total = log_of_sum(before, here)
    nothing = constant(np.full(type_.shape, -np.inf, type_.dtype.numpy))
    scan = Scan(Graph((before, here), {"total": total, "each": total}), 1, (axis,), (axis,))
    return call.cast(scan(nothing, x)[1])


@aten("cummax.default")
@along_axis
def cummax(call: AtenCall, x: Value, dim: int) -> Any:
    return _running_extremum(GreaterOrEqual(), x, dim)


@aten("cummin.default")
@along_axis
def cummin(call: AtenCall, x: Value, dim: int) -> Any:
    return _running_extremum(LessOrEqual(), x, dim)


def _running_extremum(wins: Callable[[Value, Value], Value], x: Value, dim: int) -> tuple[Value, Value]:
    """Values and indices: of equal elements the last, and NaN wins over numbers."""
    axis = dim % x.rank
    type_ = x.type.with_shape((*x.shape[:axis], *x.shape[axis + 1 :]))
    best, here = Input(type_, "best"), Input(type_, "here")
    at, number = Input(TensorType(i64, type_.shape), "at"), Input(TensorType(i64), "number")
    taken = wins(here, best)
    if type_.dtype.is_float:
        taken = Or()(taken, IsNaN()(here))
    place = Where()(taken, number, at)
    body = Graph((best, at, here, number), {"best": Where()(taken, here, best), "at": place, "index": place})
    first = reshape(StopGradient()(x[(*[slice(None)] * axis, slice(0, 1))]), type_.shape)
    numbers = constant(np.arange(x.shape[axis]))
    scan = Scan(body, 2, (axis, 0), (axis,))
    index = scan(first, constant(np.zeros(type_.shape, np.int64)), StopGradient()(x), numbers)[2]
    return GatherElements(axis=axis)(x, index), index


@aten("softmax.int", "_softmax.default")
@along_axis
def softmax(call: AtenCall, x: Value, dim: int, *_: Any, **__: Any) -> Any:
    return Softmax(axis=dim % x.rank)(call.cast(x))


@aten("log_softmax.int", "_log_softmax.default")
@along_axis
def log_softmax(call: AtenCall, x: Value, dim: int, *_: Any, **__: Any) -> Any:
    return LogSoftmax(axis=dim % x.rank)(call.cast(x))
