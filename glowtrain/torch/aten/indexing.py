"""Elements by index: embeddings, gather, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.extrema import Clip, Max
from glowtrain.ops.elementwise.logic import Equal, IsNaN, Less, LessOrEqual, Where
from glowtrain.ops.indexing.arg_extrema import CumSum
from glowtrain.ops.indexing.gather import Gather, GatherElements, GatherND
from glowtrain.ops.indexing.scatter import ScatterElements, ScatterND
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceSum
from glowtrain.ops.tensor.move import Concat, Expand, Transpose, reshape
from glowtrain.torch.aten.elementwise.arithmetic import div_mode
from glowtrain.torch.aten.table import AtenCall, accumulated, along_axis, as_type, aten
from glowtrain.types import Shape, boolean, f32, i64


@aten("embedding.default")
def embedding(
    call: AtenCall, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:  # fmt: skip
    """Rows of a table; the row of ``padding_idx`` gets no gradient."""
    _refuse_frequencies(scale_grad_by_freq)
    if padding_idx < 0:
        return Gather(axis=0)(weight, indices)
    rows = Gather(axis=0)(weight, indices)
    padding = Equal()(reshape(indices, (*indices.shape, 1)), constant(padding_idx, indices.dtype))
    return Where()(padding, StopGradient()(rows), rows)


def _refuse_frequencies(scaled: bool) -> None:
    if scaled:
        raise ModelError("scale_grad_by_freq is not supported: gradients are not divided by how often a row is read")


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    call: AtenCall, weight: Value, indices: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Value | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Sums, means or maxima of the rows in each bag, and nothing for what only PyTorch's gradient reads.

    Bags begin at the offsets. What is padding belongs to no bag: it goes to a last one, which is dropped.
    """
    _refuse_frequencies(scale_grad_by_freq)
    bags, count = call.shape[0], indices.shape[0]
    starts = as_type(offsets, i64)[:bags]
    at = LessOrEqual()(reshape(starts, (1, bags)), constant(np.arange(count)[:, None]))
    bag = ReduceSum(axes=(1,), keepdims=False)(as_type(at, i64)) - 1
    if padding_idx >= 0:
        bag = Where()(Equal()(indices, constant(padding_idx, indices.dtype)), constant(bags), bag)
    rows = Gather(axis=0)(weight, indices)
    if per_sample_weights is not None:
        rows = rows * reshape(per_sample_weights, (count, 1))
    return _bagged(call, bag, rows, ("sum", "mean", "amax")[mode]), None, None, None


def _bagged(call: AtenCall, bag: Value, rows: Value, reduce: str) -> Value:
    """Rows by the number of their bag; empty ones are 0."""
    bags, size = call.shape
    empty = constant(np.zeros((bags + 1, size), rows.dtype.numpy))
    return _index_reduced(call, empty, 0, bag, rows, reduce, include_self=False)[:bags]


@aten("index_select.default")
@along_axis
def index_select(call: AtenCall, x: Value, dim: int, index: Value) -> Any:
    return Gather(axis=dim % x.rank)(x, index)


@aten("gather.default")
@along_axis
def gather(call: AtenCall, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Any:
    return GatherElements(axis=dim % x.rank)(x, as_type(index, i64))


@aten("take_along_dim.default")
def take_along_dim(call: AtenCall, x: Value, indices: Value, dim: int | None = None) -> Any:
    if dim is None:
        return GatherElements(axis=0)(reshape(x, (x.type.size,)), reshape(indices, (indices.type.size,)))
    axis = dim % x.rank
    rest = [1 if i == axis else extent for i, extent in enumerate(call.shape)]
    wide = np.broadcast_shapes(x.shape, tuple(rest))
    return GatherElements(axis=axis)(_expanded(x, wide), _expanded(indices, call.shape))


@aten("take.default")
def take(call: AtenCall, x: Value, index: Value) -> Any:
    return Gather(axis=0)(reshape(x, (x.type.size,)), index)


@aten("scatter.src", "scatter.value")
@along_axis
def scatter(call: AtenCall, x: Value, dim: int, index: Value, source: Any) -> Any:
    return ScatterElements(axis=dim % x.rank)(x, index, _sources(x, index, source))


@aten("scatter_add.default")
@along_axis
def scatter_add(call: AtenCall, x: Value, dim: int, index: Value, source: Value) -> Any:
    x = accumulated(x)
    return call.cast(ScatterElements(axis=dim % x.rank, reduction="add")(x, index, _sources(x, index, source)))


@aten("index_add.default")
@along_axis
def index_add(call: AtenCall, x: Value, dim: int, index: Value, source: Value, alpha: Any = 1) -> Any:
    """Slices along an axis, added where the index says."""
    axis = dim % x.rank
    wide = reshape(index, (index.type.size, *[1] * (x.rank - axis - 1)))
    scaled = source if alpha == 1 else source * as_type(alpha, x.dtype)
    return ScatterElements(axis=axis, reduction="add")(x, _expanded(wide, source.shape), scaled)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
@along_axis
def index_fill(call: AtenCall, x: Value, dim: int, index: Value, value: Any) -> Any:
    """A number in the slices that the index names, and counts once in the gradient however often it names one."""
    axis, extent = dim % x.rank, x.shape[dim]
    columns = reshape(index, (index.type.size, 1))
    named = Equal()(Where()(columns < 0, columns + extent, columns), constant(np.arange(extent), index.dtype))
    chosen = ReduceMax(axes=(0,), keepdims=False)(as_type(named, f32)) > 0
    return Where()(reshape(chosen, (extent, *[1] * (x.rank - axis - 1))), reshape(call.cast(value), ()), x)


@aten("scatter.reduce", "scatter.value_reduce")
@along_axis
def scatter_with(call: AtenCall, x: Value, dim: int, index: Value, source: Any, *, reduce: str) -> Any:
    operators = {"add": "sum", "multiply": "prod"}
    return scatter_reduce(call, x, dim, index, _sources(x, index, source), operators[reduce])


@aten("index_reduce.default")
@along_axis
def index_reduce(
    call: AtenCall, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Any:
    return _index_reduced(call, x, dim, index, source, reduce, include_self)


def _index_reduced(
    call: AtenCall, x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool
) -> Value:
    axis = dim % x.rank
    wide = reshape(index, (index.type.size, *[1] * (x.rank - axis - 1)))
    return _scatter_reduced(call, x, dim, _expanded(wide, source.shape), source, reduce, include_self)


@aten("scatter_reduce.two")
@along_axis
def scatter_reduce(
    call: AtenCall, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Any:
    return _scatter_reduced(call, x, dim, index, source, reduce, include_self)


def _scatter_reduced(
    call: AtenCall, x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool
) -> Value:
    """Without ``include_self``, elements that others meet begin as the operation's neutral element."""
    axis, x = dim % x.rank, accumulated(x)
    source = _sources(x, index, source)
    if not include_self:
        x = ScatterElements(axis=axis)(x, index, _sources(x, index, _neutral(x, reduce)))
    operators = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
    met = ScatterElements(axis=axis, reduction=operators[reduce])(x, index, source)
    if reduce != "mean":
        return call.cast(met)
    none = constant(np.full(x.shape, 1 if include_self else 0, x.dtype.numpy))
    counts = ScatterElements(axis=axis, reduction="add")(none, index, _sources(x, index, 1))
    counts = Max()(counts, constant(1, x.dtype))
    return call.cast(met / counts if x.dtype.is_float else div_mode(call, met, counts, "floor"))


def _neutral(x: Value, reduce: str) -> Any:
    if reduce in ("sum", "mean", "prod"):
        return 1 if reduce == "prod" else 0
    if x.dtype.is_float:
        return float("-inf") if reduce == "amax" else float("inf")
    limits = np.iinfo(x.dtype.numpy)
    return limits.min if reduce == "amax" else limits.max


def _expanded(x: Value, shape: Shape) -> Value:
    result: Value = x if x.shape == tuple(shape) else Expand(shape=tuple(shape))(x)
    return result


def _sources(x: Value, index: Value, source: Any) -> Value:
    """As many elements as indices: PyTorch's source may be larger."""
    if not isinstance(source, Value):
        return constant(np.full(index.shape, source, x.dtype.numpy))
    given: Value = as_type(source, x.dtype)
    return given if given.shape == index.shape else as_type(given[tuple(map(slice, index.shape))], x.dtype)


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(call: AtenCall, x: Value, indices: Sequence[Value | None]) -> Any:
    """Advanced indexing, as NumPy has it: indices broadcast together, and stand where the first of them stood, or in
    front where others stand between them."""
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    chosen = [as_type(each, i64) for each in indices if each is not None]
    if len(chosen) == 1:
        return Gather(axis=axes[0])(x, chosen[0])
    rest = [axis for axis in range(x.rank) if axis not in axes]
    tuples = _tuples(chosen)
    found = GatherND()(Transpose(perm=(*axes, *rest))(x), tuples)
    if not _beside(axes) or axes[0] == 0:
        return found
    order = np.argsort(_to_front(found.rank, axes[0], tuples.rank - 1))
    return Transpose(perm=tuple(int(axis) for axis in order))(found)


def _tuples(indices: Sequence[Value]) -> Value:
    """Indices that broadcast together, as tuples along a last axis."""
    shape = np.broadcast_shapes(*(each.shape for each in indices))
    columns = [reshape(_expanded(each, shape), (*shape, 1)) for each in indices]
    result: Value = Concat(axis=len(shape))(*columns) if len(columns) > 1 else columns[0]
    return result


@aten("index_put.default")
def index_put(
    call: AtenCall, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Any:
    """Elements set, or added to, at tuples of indices into some axes, or where a mask says."""
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    chosen = [each for each in indices if each is not None]
    if any(each.dtype == boolean for each in chosen):
        return _put_masked(x, indices, values, accumulate)
    tuples = _tuples([as_type(each, i64) for each in chosen])
    order = (*axes, *(axis for axis in range(x.rank) if axis not in axes))
    front = Transpose(perm=order)(x)
    count, rest = tuples.rank - 1, front.shape[len(axes) :]
    before = axes[0] if _beside(axes) else 0
    updates = _expanded(values, (*rest[:before], *tuples.shape[:-1], *rest[before:]))
    updates = Transpose(perm=_to_front(updates.rank, before, count))(updates)
    result = ScatterND(reduction="add" if accumulate else "none")(front, tuples, updates)
    return Transpose(perm=tuple(int(axis) for axis in np.argsort(order)))(result)


@aten("put.default")
def put(call: AtenCall, x: Value, index: Value, source: Value, accumulate: bool = False) -> Any:
    flat, positions, values = (reshape(each, (each.type.size,)) for each in (x, index, source))
    scatter = ScatterElements(axis=0, reduction="add" if accumulate else "none")
    return reshape(scatter(flat, positions, values), x.shape)


@aten("masked_scatter.default")
def masked_scatter(call: AtenCall, x: Value, mask: Value, source: Value) -> Any:
    """The source's elements one after the other, wherever the mask is true."""
    if not source.type.size:
        return x
    chosen = _expanded(mask, call.shape)
    count = CumSum(axis=0)(reshape(as_type(chosen, i64), (chosen.type.size,)))
    rank = Clip()(count - 1, constant(0), constant(source.type.size - 1))
    taken = Gather(axis=0)(reshape(source, (source.type.size,)), rank)
    return Where()(chosen, reshape(taken, call.shape), x)


def _beside(axes: Sequence[int]) -> bool:
    return list(axes) == list(range(axes[0], axes[0] + len(axes)))


def _to_front(rank: int, before: int, count: int) -> tuple[int, ...]:
    """The permutation that brings ``count`` axes from behind ``before`` others to the front."""
    return (*range(before, before + count), *range(before), *range(before + count, rank))


def _put_masked(x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool) -> Value:
    """One number wherever a mask of the first axes is true: how many elements that are plays no part."""
    mask = indices[0]
    if len(indices) > 1 or mask is None or values.type.size != 1:
        raise ModelError(
            "a mask of booleans chooses as many elements as its own say, and shapes must not depend on elements: "
            "choose between two tensors by torch.where"
        )
    wide = reshape(mask, (*mask.shape, *[1] * (x.rank - mask.rank)))
    number = reshape(as_type(values, x.dtype), ())
    result: Value = Where()(wide, x + number if accumulate else number, x)
    return result


@aten("bucketize.Tensor")
def bucketize(call: AtenCall, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Any:
    return searchsorted(call, boundaries, x, right=right)


@aten("searchsorted.Tensor")
def searchsorted(
    call: AtenCall, sorted: Value, x: Value, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Value | None = None,
) -> Any:  # fmt: skip
    """How many elements of a list, or of x's own row of lists, are less; or less or equal. NaN is behind all."""
    rows = sorted if sorter is None else GatherElements(axis=sorted.rank - 1)(sorted, sorter)
    within = reshape(rows, (*rows.shape[:-1], *([1] if rows.rank > 1 else []), rows.shape[-1]))
    beyond = reshape(x, (*x.shape, 1))
    met = LessOrEqual()(within, beyond) if right or side == "right" else Less()(within, beyond)
    met = met | IsNaN()(beyond) if x.dtype.is_float else met
    return call.cast(ReduceSum(axes=(-1,), keepdims=False)(as_type(met, i64)))


@aten("one_hot.default")
def one_hot(call: AtenCall, x: Value, num_classes: int = -1) -> Any:
    classes = constant(np.arange(call.shape[-1]))
    return call.cast(Equal()(reshape(x, (*x.shape, 1)), classes))
