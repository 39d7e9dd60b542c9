"""Operators that only move elements: views, permutations, slices, joins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.tensor.move import Concat, Expand, Slice, Transpose, reshape
from glowtrain.ops.tensor.pad import Pad, Tile
from glowtrain.torch.aten.table import AtenCall, as_type, aten


@aten(
    "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int",
    "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "view_as.default", "reshape_as.default",
    "_reshape_copy.default", "view_copy.default", "squeeze_copy.dim", "unsqueeze_copy.default",
)  # fmt: skip
def view(call: AtenCall, x: Value, *_: Any) -> Any:
    """The same elements in the shape of the result, whatever names it."""
    return x if x.shape == call.shape else reshape(x, call.shape)


@aten("permute.default", "permute_copy.default")
def permute(call: AtenCall, x: Value, dims: Sequence[int]) -> Any:
    return Transpose(perm=tuple(dim % x.rank for dim in dims))(x)


@aten("transpose.int", "swapaxes.default", "swapdims.default", "transpose_copy.int")
def transpose(call: AtenCall, x: Value, dim0: int, dim1: int) -> Any:
    if not x.rank:
        return x
    order = list(range(x.rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(call, x, order)


@aten("t.default", "numpy_T.default", "mT.default", "adjoint.default", "matrix_H.default", "t_copy.default")
def transposed(call: AtenCall, x: Value) -> Any:
    return x if x.rank < 2 else transpose(call, x, -2, -1) if x.rank == 2 else _reversed_or_matrix(call, x)


def _reversed_or_matrix(call: AtenCall, x: Value) -> Any:
    """Of more than two axes ``T`` reverses all, ``mT`` exchanges the last two; the shape of the result tells."""
    if "numpy_T" in str(call.node.target):
        return permute(call, x, range(x.rank)[::-1])
    return transpose(call, x, -2, -1)


@aten("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def movedim(call: AtenCall, x: Value, source: Any, destination: Any) -> Any:
    sources = [dim % x.rank for dim in ([source] if isinstance(source, int) else source)]
    places = [dim % x.rank for dim in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(axis for axis in range(x.rank) if axis not in sources)
    order = [sources[places.index(axis)] if axis in places else next(rest) for axis in range(x.rank)]
    return permute(call, x, order)


@aten("expand.default", "expand_as.default", "broadcast_to.default", "expand_copy.default")
def expand(call: AtenCall, x: Value, *_: Any, **__: Any) -> Any:
    return x if x.shape == call.shape else Expand(shape=call.shape)(x)


@aten("repeat.default", "tile.default")
def repeat(call: AtenCall, x: Value, repeats: Sequence[int]) -> Any:
    widened = reshape(x, (*[1] * (len(repeats) - x.rank), *x.shape))
    return Tile(repeats=(*[1] * (widened.rank - len(repeats)), *repeats))(widened)


@aten("repeat_interleave.self_int")
def repeat_interleave(call: AtenCall, x: Value, repeats: int, dim: int | None = None, output_size: Any = None) -> Any:
    if dim is None:
        x, dim = reshape(x, (x.type.size,)), 0
    axis = dim % x.rank
    shape = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    beside = reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    return reshape(Expand(shape=shape)(beside), call.shape)


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(call: AtenCall, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis, extent = dim % x.rank, x.shape[dim]
    first, behind, _ = slice(start, end).indices(extent)
    if (first, behind, step) == (0, extent, 1):
        return x
    return Slice(starts=(first,), ends=(max(first, behind),), axes=(axis,), steps=(step,))(x)


@aten("narrow.default", "narrow_copy.default")
def narrow(call: AtenCall, x: Value, dim: int, start: int, length: int) -> Any:
    first = start % x.shape[dim] if start < 0 else start
    return slice_(call, x, dim, first, first + length)


@aten("select.int", "select_copy.int")
def select(call: AtenCall, x: Value, dim: int, index: int) -> Any:
    place = index % x.shape[dim]
    return reshape(slice_(call, x, dim, place, place + 1), call.shape)


@aten("slice_scatter.default")
def slice_scatter(
    call: AtenCall, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """What stands before, the source, what stands behind; with steps, by elements that are chosen by their index."""
    axis, extent = dim % x.rank, x.shape[dim]
    first, behind, _ = slice(start, end).indices(extent)
    source = as_type(source, x.dtype)
    if source.shape == x.shape:
        return source
    if step != 1:
        return _strided_scatter(x, source, axis, range(first, behind, step))
    pieces = [slice_(call, x, axis, 0, first), source, slice_(call, x, axis, max(first, behind), extent)]
    return Concat(axis=axis)(*(piece for piece in pieces if piece.shape[axis]))


def _strided_scatter(x: Value, source: Value, axis: int, places: range) -> Value:
    """Slices along an axis, each from the source or from x."""
    chosen = np.arange(x.shape[axis])
    chosen[list(places)] = x.shape[axis] + np.arange(len(places))
    result: Value = Gather(axis=axis)(Concat(axis=axis)(x, source), chosen)
    return result


@aten("select_scatter.default")
def select_scatter(call: AtenCall, x: Value, source: Value, dim: int, index: int) -> Any:
    axis = dim % x.rank
    place = index % x.shape[axis]
    row = reshape(source, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return slice_scatter(call, x, row, axis, place, place + 1)


@aten("cat.default", "concat.default", "concatenate.default")
def cat(call: AtenCall, tensors: Sequence[Value], dim: int = 0) -> Any:
    """Tensors of no elements and one axis, which PyTorch lets pass, are left out."""
    pieces = [call.cast(each) for each in tensors if each.shape != (0,)] or [call.cast(tensors[0])]
    return Concat(axis=dim % len(call.shape))(*pieces) if len(pieces) > 1 else pieces[0]


@aten("stack.default")
def stack(call: AtenCall, tensors: Sequence[Value], dim: int = 0) -> Any:
    axis = dim % len(call.shape)
    rows = [reshape(call.cast(x), (*x.shape[:axis], 1, *x.shape[axis:])) for x in tensors]
    return Concat(axis=axis)(*rows) if len(rows) > 1 else rows[0]


@aten("split.Tensor", "split_with_sizes.default", "split.sizes", "chunk.default", "tensor_split.sections")
@aten("split_with_sizes_copy.default", "split_copy.Tensor", "unsafe_split.Tensor", "unsafe_chunk.default")
def split(call: AtenCall, x: Value, parts: Any, dim: int = 0) -> Any:
    """Pieces as large as the results are."""
    axis, first, pieces = dim % x.rank, 0, []
    for type_ in call.types:
        assert type_ is not None
        pieces.append(slice_(call, x, axis, first, first + type_.shape[axis]))
        first += type_.shape[axis]
    return pieces


@aten("unbind.int", "unbind_copy.int")
def unbind(call: AtenCall, x: Value, dim: int = 0) -> Any:
    return [reshape(slice_(call, x, dim, i, i + 1), _without(x, dim)) for i in range(x.shape[dim])]


def _without(x: Value, dim: int) -> tuple[int, ...]:
    axis = dim % x.rank
    return (*x.shape[:axis], *x.shape[axis + 1 :])


@aten("unfold.default")
def unfold(call: AtenCall, x: Value, dimension: int, size: int, step: int) -> Any:
    """Windows along an axis, whose elements lie along a last one."""
    if not x.rank:
        return reshape(x, call.shape)
    axis = dimension % x.rank
    first = np.arange(0, x.shape[axis] - size + 1, step)
    windows = Gather(axis=axis)(x, constant(first[:, None] + np.arange(size)))
    return movedim(call, windows, axis + 1, -1)


@aten("flip.default")
def flip(call: AtenCall, x: Value, dims: Sequence[int]) -> Any:
    axes = tuple(dim % x.rank for dim in dims)
    if not axes:
        return x
    ends = tuple(-x.shape[axis] - 1 for axis in axes)
    return Slice(starts=(-1,) * len(axes), ends=ends, axes=axes, steps=(-1,) * len(axes))(x)


@aten("roll.default")
def roll(call: AtenCall, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return reshape(roll(call, reshape(x, (x.type.size,)), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        extent = x.shape[dim]
        cut = (extent - shift) % extent if extent else 0
        if cut:
            x = Concat(axis=dim % x.rank)(slice_(call, x, dim, cut, extent), slice_(call, x, dim, 0, cut))
    return x


@aten("pad.default", "constant_pad_nd.default")
def pad(call: AtenCall, x: Value, pad: Sequence[int], mode: Any = "constant", value: Any = None) -> Any:
    """ATen's pads begin with the last axis, and may be negative: these cut, in circular mode before the others pad,
    which otherwise read what is cut."""
    if not isinstance(mode, str):
        mode, value = "constant", mode
    counts = [(pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)][::-1]
    cut = [tuple(min(0, count) for count in pair) for pair in counts]
    widths = [tuple(max(0, count) for count in pair) for pair in counts]
    if mode == "circular":
        return _padded(call, _cut(call, x, cut), widths, mode, value)
    return _cut(call, _padded(call, x, widths, mode, value), cut)


def _cut(call: AtenCall, x: Value, counts: Sequence[Sequence[int]]) -> Value:
    """Without so many elements at the ends of the last axes, which are given as negative numbers."""
    for axis, (before, after) in enumerate(counts, x.rank - len(counts)):
        x = slice_(call, x, axis, -before, x.shape[axis] + after)
    return x


def _padded(call: AtenCall, x: Value, widths: Sequence[Sequence[int]], mode: str, value: Any) -> Value:
    if not any(map(any, widths)):
        return x
    pads = (*(before for before, _ in widths), *(after for _, after in widths))
    theirs = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    padded = Pad(pads=pads, axes=tuple(range(x.rank - len(widths), x.rank)), mode=theirs[mode])  # type: ignore[arg-type]  # one of the four
    result: Value = padded(x, call.cast(value)) if mode == "constant" and value else padded(x)
    return result


@aten("pixel_shuffle.default")
def pixel_shuffle(call: AtenCall, x: Value, upscale_factor: int) -> Any:
    *batch, channels, height, width = x.shape
    r, kept = upscale_factor, len(batch)
    blocks = reshape(x, (*batch, channels // (r * r), r, r, height, width))
    order = (*range(kept), kept, kept + 3, kept + 1, kept + 4, kept + 2)
    return reshape(Transpose(perm=order)(blocks), call.shape)


@aten("diagonal.default", "diagonal_copy.default")
def diagonal(call: AtenCall, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Of the matrices flat, every (columns + 1)-th element."""
    rest = [axis for axis in range(x.rank) if axis not in (dim1 % x.rank, dim2 % x.rank)]
    matrices = permute(call, x, [*rest, dim1, dim2])
    columns, count = matrices.shape[-1], call.shape[-1]
    flat = reshape(matrices, (*matrices.shape[:-2], math.prod(matrices.shape[-2:])))
    first = offset if offset >= 0 else -offset * columns
    return slice_(call, flat, -1, first, first + (count - 1) * (columns + 1) + 1, columns + 1)


@aten("diagonal_scatter.default")
def diagonal_scatter(call: AtenCall, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Every element is one of x's, or one of the source's, which stand behind them."""
    order = np.arange(x.type.size).reshape(x.shape)
    chosen = order.copy()
    behind = x.type.size + np.arange(source.type.size).reshape(source.shape)
    np.put(chosen, np.diagonal(order, offset, dim1, dim2), behind)
    flat = Concat(axis=0)(reshape(x, (x.type.size,)), reshape(as_type(source, x.dtype), (source.type.size,)))
    return Gather(axis=0)(flat, constant(chosen))
