"""Sorting, and elements by their rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.logic import IsNaN, LessOrEqual, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.indexing.top_k import TopK
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.reduce.reduction import ReduceMax
from glowtrain.ops.tensor.move import reshape
from glowtrain.torch.aten.shapes import slice_
from glowtrain.torch.aten.table import AtenCall, along_axis, as_type, aten
from glowtrain.types import f32


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
