"""Sorting, elements by their rank, and counts of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.arithmetic import Floor
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.ops.elementwise.logic import Equal, GreaterOrEqual, IsNaN, LessOrEqual, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax, CumSum
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.indexing.top_k import TopK
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMin, ReduceSum
from glowtrain.ops.tensor.move import Expand, reshape
from glowtrain.torch.aten.shapes import slice_
from glowtrain.torch.aten.table import AtenCall, along_axis, as_type, aten
from glowtrain.types import boolean, f32, i64


@aten("topk.default")
@along_axis
def topk(call: AtenCall, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return TopK(axis=dim % x.rank, largest=largest, k=k)(x)


@aten("sort.default", "sort.stable")
@along_axis
def sort(call: AtenCall, x: Value, *positional: Any, **named: Any) -> Any:
    arguments = [each for each in positional if each is not None]
    dim, descending = (*arguments, *(-1, False)[len(arguments) :])[-2:]
    dim, descending = named.get("dim", dim), named.get("descending", descending)
    return TopK(axis=dim % x.rank, largest=descending, k=x.shape[dim])(x)


@aten("argsort.default", "argsort.stable")
@along_axis
def argsort(call: AtenCall, x: Value, dim: int = -1, descending: bool = False, **named: Any) -> Any:
    dim = named.get("dim", dim)
    return TopK(axis=dim % x.rank, largest=named.get("descending", descending), k=x.shape[dim])(x)[1]


@aten("kthvalue.default")
@along_axis
def kthvalue(call: AtenCall, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest, and its index."""
    axis = dim % x.rank
    return [slice_(call, each, axis, k - 1, k) for each in TopK(axis=axis, largest=False, k=k)(x)]


@aten("median.dim")
@along_axis
def median_along(call: AtenCall, x: Value, dim: int = -1, keepdim: bool = False) -> Any:
    """The lower one of two in the middle; the first NaN, if there is any."""
    axis = dim % x.rank
    value, index = kthvalue(call, x, (x.shape[axis] + 1) // 2, axis)
    if not x.dtype.is_float:
        return value, index
    strange = as_type(IsNaN()(x), f32)
    found, first = ReduceMax(axes=(axis,))(strange), ArgMax(axis=axis)(strange)
    index = Where()(found > 0, first, reshape(index, first.shape))
    return GatherElements(axis=axis)(x, index), index


@aten("median.default")
def median(call: AtenCall, x: Value) -> Any:
    """NaN if there is any; equal elements share the gradient, as those of a maximum do."""
    flat = reshape(x, (x.type.size,))
    half = (x.type.size + 1) // 2
    middle = reshape(slice_(call, TopK(axis=0, largest=False, k=half)(flat)[0], 0, half - 1, half), ())
    if not x.dtype.is_float:
        return middle
    lower = LessOrEqual()(flat, StopGradient()(middle)) | IsNaN()(flat)
    return ReduceMax(keepdims=False)(Where()(lower, flat, constant(-np.inf, x.dtype)))


@aten("nanmedian.dim")
@along_axis
def nanmedian_along(call: AtenCall, x: Value, dim: int = -1, keepdim: bool = False) -> Any:
    """That of the numbers; the first NaN, if there are none."""
    if not x.dtype.is_float:
        return median_along(call, x, dim, keepdim)
    return _nanmedian(x, dim % x.rank)


def _nanmedian(x: Value, axis: int) -> tuple[Value, Value]:
    numbers = ReduceSum(axes=(axis,))(as_type(~IsNaN()(x), i64))
    order = TopK(axis=axis, largest=False, k=x.shape[axis])(x)[1]
    index = GatherElements(axis=axis)(order, Max()(numbers - 1, 0) / 2)
    return GatherElements(axis=axis)(x, index), index


@aten("nanmedian.default")
def nanmedian(call: AtenCall, x: Value) -> Any:
    """Equal elements share the gradient, as those of a maximum do."""
    if not x.dtype.is_float:
        return median(call, x)
    flat = reshape(x, (x.type.size,))
    middle = _nanmedian(StopGradient()(flat), 0)[0]
    lower = LessOrEqual()(flat, middle) | IsNaN()(middle)
    return ReduceMax(keepdims=False)(Where()(lower, flat, constant(-np.inf, x.dtype)))


@aten("histc.default")
def histc(call: AtenCall, x: Value, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """How many elements are in each of the parts of a range: of all elements, if it is none. Others count in a part
    more, which is dropped."""
    flat = reshape(x, (x.type.size,))
    if not x.type.size:
        return call.nothing(0)[0]
    low, high = as_type(min, x.dtype), as_type(max, x.dtype)
    if min == max:
        low, high = (operator(keepdims=False)(flat) for operator in (ReduceMin, ReduceMax))
        single = Equal()(low, high)
        low, high = Where()(single, low - 1, low), Where()(single, high + 1, high)
    part = Min()(Floor()((flat - low) / (high - low) * bins), bins - 1)
    inside = GreaterOrEqual()(flat, low) & LessOrEqual()(flat, high)
    part = as_type(Where()(inside, part, bins), i64)
    counts = constant(np.zeros(bins + 1, x.dtype.numpy))
    ones = constant(np.ones(x.type.size, x.dtype.numpy))
    return slice_(call, ScatterElements(axis=0, reduction="add")(counts, part, ones), 0, 0, bins)


@aten("nonzero_static.default")
def nonzero_static(call: AtenCall, x: Value, *, size: int, fill_value: int = -1) -> Any:
    """Indices of the first elements that are not 0, and what fills up; others go to a row more, which is dropped."""
    if not call.type.size:
        return call.nothing(0)[0]
    chosen = as_type(reshape(x, (x.type.size,)), boolean)
    count = CumSum(axis=0)(as_type(chosen, i64)) - 1
    row = Where()(chosen & (count < size), count, size)
    none = constant(np.full((size + 1, x.rank), fill_value))
    indices = constant(np.stack(np.unravel_index(np.arange(x.type.size), x.shape), axis=1))
    wide = Expand(shape=indices.shape)(reshape(row, (x.type.size, 1)))
    return slice_(call, ScatterElements(axis=0)(none, wide, indices), 0, 0, size)
