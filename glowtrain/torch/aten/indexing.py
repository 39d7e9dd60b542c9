"""Elements by index: embeddings, gather, scatter, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.indexing.gather import Gather, GatherElements, GatherND
from glowtrain.ops.indexing.scatter import ScatterElements, ScatterND
from glowtrain.ops.indexing.top_k import TopK
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.tensor.move import Concat, Expand, Transpose, reshape
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import i64


@aten("embedding.default")
def embedding(
    call: AtenCall, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:  # fmt: skip
    """Rows of a table; the row of ``padding_idx`` gets no gradient."""
    if padding_idx < 0:
        return Gather(axis=0)(weight, indices)
    rows = Gather(axis=0)(weight, indices)
    padding = Equal()(reshape(indices, (*indices.shape, 1)), constant(padding_idx, indices.dtype))
    return Where()(padding, StopGradient()(rows), rows)


@aten("index_select.default")
def index_select(call: AtenCall, x: Value, dim: int, index: Value) -> Any:
    return Gather(axis=dim % x.rank)(x, index)


@aten("gather.default")
def gather(call: AtenCall, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Any:
    return GatherElements(axis=dim % x.rank)(x, index)


@aten("take_along_dim.default")
def take_along_dim(call: AtenCall, x: Value, indices: Value, dim: int | None = None) -> Any:
    if dim is None:
        return GatherElements(axis=0)(reshape(x, (x.type.size,)), reshape(indices, (indices.type.size,)))
    return GatherElements(axis=dim % x.rank)(x, indices)


@aten("scatter.src", "scatter.value")
def scatter(call: AtenCall, x: Value, dim: int, index: Value, source: Any) -> Any:
    return ScatterElements(axis=dim % x.rank)(x, index, _sources(x, index, source))


@aten("scatter_add.default")
def scatter_add(call: AtenCall, x: Value, dim: int, index: Value, source: Value) -> Any:
    return ScatterElements(axis=dim % x.rank, reduction="add")(x, index, _sources(x, index, source))


@aten("index_add.default")
def index_add(call: AtenCall, x: Value, dim: int, index: Value, source: Value, alpha: Any = 1) -> Any:
    """Slices along an axis, added where the index says."""
    axis = dim % x.rank
    wide = reshape(index, (index.type.size, *[1] * (x.rank - axis - 1)))
    places = Expand(shape=source.shape)(wide)
    scaled = source if alpha == 1 else source * as_type(alpha, x.dtype)
    return ScatterElements(axis=axis, reduction="add")(x, places, scaled)


def _sources(x: Value, index: Value, source: Any) -> Value:
    """As many elements as indices: PyTorch's source may be larger."""
    if not isinstance(source, Value):
        return constant(np.full(index.shape, source, x.dtype.numpy))
    return source if source.shape == index.shape else source[tuple(slice(extent) for extent in index.shape)]


@aten("index.Tensor")
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
    beside = axes == list(range(axes[0], axes[0] + len(axes)))
    if not beside or axes[0] == 0:
        return found
    count = tuples.rank - 1
    front = [count + i for i in range(axes[0])]
    behind = range(count + axes[0], found.rank)
    return Transpose(perm=(*front, *range(count), *behind))(found)


def _tuples(indices: Sequence[Value]) -> Value:
    """Indices that broadcast together, as tuples along a last axis."""
    shape = np.broadcast_shapes(*(each.shape for each in indices))
    columns = [each if each.shape == shape else Expand(shape=shape)(each) for each in indices]
    result: Value = Concat(axis=len(shape))(*(reshape(column, (*shape, 1)) for column in columns))
    return result


@aten("index_put.default")
def index_put(
    call: AtenCall, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Any:
    """Elements set, or added to, at tuples of indices into some axes."""
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    order = (*axes, *(axis for axis in range(x.rank) if axis not in axes))
    tuples = _tuples([as_type(each, i64) for each in indices if each is not None])
    front = x if order == tuple(range(x.rank)) else Transpose(perm=order)(x)
    shape = (*tuples.shape[:-1], *front.shape[len(axes) :])
    updates = values if values.shape == shape else Expand(shape=shape)(values)
    result = ScatterND(reduction="add" if accumulate else "none")(front, tuples, updates)
    return result if front is x else Transpose(perm=tuple(int(axis) for axis in np.argsort(order)))(result)


@aten("topk.default")
def topk(call: AtenCall, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return TopK(axis=dim % x.rank, largest=largest, k=k)(x)


@aten("sort.default", "sort.stable")
def sort(call: AtenCall, x: Value, *given: Any, **named: Any) -> Any:
    arguments = [each for each in given if each is not None]
    dim, descending = (*arguments, *(-1, False)[len(arguments) :])[-2:]
    dim, descending = named.get("dim", dim), named.get("descending", descending)
    return TopK(axis=dim % x.rank, largest=descending, k=x.shape[dim])(x)


@aten("argsort.default", "argsort.stable")
def argsort(call: AtenCall, x: Value, dim: int = -1, descending: bool = False, **named: Any) -> Any:
    dim = named.get("dim", dim)
    return TopK(axis=dim % x.rank, largest=named.get("descending", descending), k=x.shape[dim])(x)[1]


@aten("one_hot.default")
def one_hot(call: AtenCall, x: Value, num_classes: int = -1) -> Any:
    classes = constant(np.arange(call.shape[-1]))
    return call.cast(Equal()(reshape(x, (*x.shape, 1)), classes))
