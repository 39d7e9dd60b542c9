"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.arithmetic import Floor, Mod
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.pooling.pooling import AveragePool
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.ops.tensor.move import Concat, Expand, reshape
from glowtrain.torch.aten.convolution import Extents, batched, spread
from glowtrain.torch.aten.reductions import extremum
from glowtrain.torch.aten.shapes import slice_
from glowtrain.torch.aten.table import AtenCall, accumulated, as_type, aten
from glowtrain.types import i64


@aten("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def max_pool(
    call: AtenCall, x: Value, kernel_size: Extents, stride: Extents = (), padding: Extents = 0, dilation: Extents = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    return max_pool_with_indices(call, x, kernel_size, stride, padding, dilation, ceil_mode)[0]


def _pooled_axes(call: AtenCall) -> int:
    """1, 2 or 3, as the operator's name says."""
    (digit,) = (c for c in str(call.node.target).partition(".")[2].partition(".")[0] if c in "123")
    return int(digit)


@aten("max_pool1d_with_indices.default", "max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool_with_indices(
    call: AtenCall, x: Value, kernel_size: Extents, stride: Extents = (), padding: Extents = 0, dilation: Extents = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The maxima and their positions: PyTorch's count within an image, ours within all."""
    rank = _pooled_axes(call)
    kernel, pads = spread(kernel_size, rank), spread(padding, rank)
    image = batched(x, rank)
    pooled, positions = MaxPool(
        kernel_shape=kernel, strides=spread(stride, rank) if stride else kernel, pads=(*pads, *pads),
        dilations=spread(dilation, rank), ceil_mode=ceil_mode,
    )(image)  # fmt: skip
    within = Mod()(positions, constant(math.prod(image.shape[2:])))
    return reshape(pooled, call.shape), reshape(within, call.shape)


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    call: AtenCall, x: Value, kernel_size: Extents, stride: Extents = (), padding: Extents = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """With ``divisor_override`` sums over so much: means of the elements that there are, times their number."""
    rank = _pooled_axes(call)
    kernel, pads, image = spread(kernel_size, rank), spread(padding, rank), batched(x, rank)
    strides = spread(stride, rank) if stride else kernel
    pooled = AveragePool(
        kernel_shape=kernel, strides=strides, pads=(*pads, *pads), ceil_mode=ceil_mode,
        count_include_pad=count_include_pad and divisor_override is None,
    )(image)  # fmt: skip
    if divisor_override is not None:
        window = zip(image.shape[2:], pooled.shape[2:], kernel, strides, pads, strict=True)
        counts = reduce(np.multiply.outer, [_counts(*axis) for axis in window])
        pooled = pooled * constant(counts / divisor_override, x.dtype)
    return reshape(pooled, call.shape)


def _counts(extent: int, size: int, kernel: int, stride: int, pad: int) -> np.ndarray:
    """How many elements of an axis each window has."""
    first = np.arange(size) * stride - pad
    counts: np.ndarray = np.minimum(first + kernel, extent) - np.maximum(first, 0)
    return counts


@aten("max_pool2d_with_indices_backward.default")
def max_pool_backward(
    call: AtenCall, gradient: Value, x: Value, kernel_size: Extents, stride: Extents, padding: Extents,
    dilation: Extents, ceil_mode: bool, indices: Value,
) -> Any:  # fmt: skip
    """Each element of a gradient added where the maximum came from."""
    planes = math.prod(x.shape[:-2])
    none = accumulated(constant(np.zeros((planes, math.prod(x.shape[-2:])), x.dtype.numpy)))
    at, added = (reshape(each, (planes, math.prod(each.shape[-2:]))) for each in (indices, accumulated(gradient)))
    return reshape(call.cast(ScatterElements(axis=1, reduction="add")(none, at, added)), call.shape)


@aten("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default")
@aten("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(call: AtenCall, x: Value, output_size: Extents) -> Any:
    rank = _pooled_axes(call)
    image, sizes = batched(x, rank), call.shape[-rank:]
    if kernel := _equal_parts(image, sizes):
        return reshape(AveragePool(kernel_shape=kernel, strides=kernel)(image), call.shape)
    return reshape(_adaptive(call, [image], sizes, _mean)[0], call.shape)


@aten("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(call: AtenCall, x: Value, output_size: Extents) -> Any:
    """The maxima and their positions within an image."""
    rank = _pooled_axes(call)
    image, sizes = batched(x, rank), call.shape[-rank:]
    if kernel := _equal_parts(image, sizes):
        return max_pool_with_indices(call, x, kernel)
    return [reshape(each, call.shape) for each in _adaptive(call, _with_positions(image), sizes, _maximum)]


def _equal_parts(image: Value, sizes: Sequence[int]) -> tuple[int, ...]:
    """How large each part of each axis is; () if they are not equal, or each axis is one part."""
    pairs = list(zip(image.shape[2:], sizes, strict=True))
    if all(size == 1 for size in sizes) or any(extent % size for extent, size in pairs):
        return ()
    return tuple(extent // size for extent, size in pairs)


Parts = Sequence[Value]
"""An image, and perhaps the positions of its elements."""


def _with_positions(image: Value) -> Parts:
    numbers = np.arange(math.prod(image.shape[2:])).reshape(image.shape[2:])
    return image, Expand(shape=image.shape)(constant(numbers))


def _mean(parts: Parts, axes: Sequence[int]) -> Parts:
    return [ReduceMean(axes=tuple(axes), keepdims=True)(x) for x in parts]


def _maximum(parts: Parts, axes: Sequence[int]) -> Parts:
    """Of equal elements the first has the gradient."""
    x, positions = parts
    for axis in axes:
        x, index = extremum(ArgMax, x, axis)
        positions = GatherElements(axis=axis)(positions, index)
    return x, positions


def _adaptive(
    call: AtenCall, parts: Parts, sizes: Sequence[int], whole: Callable[[Parts, Sequence[int]], Parts]
) -> Parts:
    """Means or maxima of so many parts of each axis: of all at once, or axis by axis from the last."""
    axes = range(parts[0].rank - 1, 1, -1)
    if all(size == 1 for size in sizes):
        return whole(parts, axes)
    for axis, size in zip(axes, sizes[::-1], strict=True):
        pieces = [
            whole([slice_(call, each, axis, *bound) for each in parts], [axis])
            for bound in _bounds(parts[0].shape[axis], size)
        ]
        parts = [Concat(axis=axis)(*each) if size > 1 else each[0] for each in zip(*pieces, strict=True)]
    return parts


def _bounds(extent: int, size: int) -> list[tuple[int, int]]:
    """PyTorch's bounds of ``size`` parts, which may overlap."""
    return [(i * extent // size, -((-(i + 1) * extent) // size)) for i in range(size)]


@aten("fractional_max_pool2d.default", "fractional_max_pool3d.default")
def fractional_max_pool(
    call: AtenCall, x: Value, kernel_size: Extents, output_size: Extents, random_samples: Value
) -> Any:
    """The maxima, and their positions within an image, of windows that begin where random numbers say, which each
    channel has for each axis: in two dimensions the last axis has the first one."""
    rank = _pooled_axes(call)
    kernel, sizes, parts = spread(kernel_size, rank), spread(output_size, rank), _with_positions(batched(x, rank))
    for axis in range(rank + 1, 1, -1):
        number = rank + 1 - axis if rank == 2 else axis - 2
        size, window = sizes[axis - 2], kernel[axis - 2]
        starts = _starts(random_samples[:, :, number : number + 1], parts[0].shape[axis], size, window)
        windows = reshape(starts, (*starts.shape, 1)) + constant(np.arange(window))
        parts = _maximum([_windows(each, axis, windows) for each in parts], [axis + 1])
        parts = [reshape(each, (*each.shape[: axis + 1], *each.shape[axis + 2 :])) for each in parts]
    return [reshape(each, call.shape) for each in parts]


def _starts(sample: Value, extent: int, size: int, window: int) -> Value:
    """Where the windows of an axis begin: the last one ends where the axis does."""
    last: Value = Expand(shape=(*sample.shape[:2], 1))(constant(extent - window))
    if size == 1:
        return last
    step = (extent - window) / (size - 1)
    firsts = Floor()((sample + constant(np.arange(size - 1), sample.dtype)) * step) - Floor()(sample * step)
    result: Value = Concat(axis=2)(as_type(firsts, i64), last)
    return result


def _windows(x: Value, axis: int, windows: Value) -> Value:
    """Elements along an axis, by indices [batch, channels, windows, elements], in place of it."""
    count, size = windows.shape[2:]
    flat = reshape(windows, (*windows.shape[:2], *[count * size if i == axis else 1 for i in range(2, x.rank)]))
    index = Expand(shape=(*x.shape[:axis], count * size, *x.shape[axis + 1 :]))(flat)
    return reshape(GatherElements(axis=axis)(x, index), (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
