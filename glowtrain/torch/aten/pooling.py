"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glowtrain.errors import ModelError
from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.arithmetic import Mod
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.pooling.pooling import AveragePool
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.ops.tensor.move import Concat, reshape
from glowtrain.torch.aten.convolution import Extents, batched, spread
from glowtrain.torch.aten.reductions import extremum
from glowtrain.torch.aten.shapes import slice_
from glowtrain.torch.aten.table import AtenCall, aten


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
    rank = _pooled_axes(call)
    kernel, pads = spread(kernel_size, rank), spread(padding, rank)
    if divisor_override is not None and ceil_mode:
        raise ModelError("divisor_override is not supported with ceil_mode; multiply the result")
    pooled = AveragePool(
        kernel_shape=kernel, strides=spread(stride, rank) if stride else kernel, pads=(*pads, *pads),
        ceil_mode=ceil_mode, count_include_pad=count_include_pad or divisor_override is not None,
    )(batched(x, rank))  # fmt: skip
    factor = 1.0 if divisor_override is None else math.prod(kernel) / divisor_override
    return reshape(pooled if factor == 1 else pooled * factor, call.shape)


@aten("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default")
@aten("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(call: AtenCall, x: Value, output_size: Extents) -> Any:
    return _adaptive(call, x, _mean, AveragePool)


def _mean(x: Value, axes: Sequence[int]) -> Value:
    result: Value = ReduceMean(axes=tuple(axes), keepdims=True)(x)
    return result


def _maximum(x: Value, axes: Sequence[int]) -> Value:
    """Of equal elements the first has the gradient."""
    for axis in axes:
        x, _ = extremum(ArgMax, x, axis)
    return x


@aten("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(call: AtenCall, x: Value, output_size: Extents) -> Any:
    """The maxima; indices are not computed."""
    return _adaptive(call, x, _maximum, MaxPool), None


def _adaptive(call: AtenCall, x: Value, whole: Any, pool: Any) -> Value:
    """Means or maxima of so many parts of each axis: of equal parts by pooling, of others part by part."""
    rank = _pooled_axes(call)
    image, sizes = batched(x, rank), call.shape[-rank:]
    if all(size == 1 for size in sizes):
        return reshape(whole(image, range(rank + 1, 1, -1)), call.shape)
    extents = image.shape[2:]
    if all(extent % size == 0 for extent, size in zip(extents, sizes, strict=True)):
        kernel = tuple(extent // size for extent, size in zip(extents, sizes, strict=True))
        pooled = pool(kernel_shape=kernel, strides=kernel)(image)
        return reshape(pooled[0] if isinstance(pooled, tuple) else pooled, call.shape)
    for axis in range(rank + 1, 1, -1):
        image = _parts(call, image, axis, sizes[axis - 2], whole)
    return reshape(image, call.shape)


def _parts(call: AtenCall, x: Value, axis: int, size: int, whole: Any) -> Value:
    """Of each of ``size`` parts of an axis, which may overlap: one number (PyTorch's bounds)."""
    extent = x.shape[axis]
    bounds = [(i * extent // size, -((-(i + 1) * extent) // size)) for i in range(size)]
    pieces = [whole(slice_(call, x, axis, *bound), [axis]) for bound in bounds]
    result: Value = Concat(axis=axis)(*pieces) if len(pieces) > 1 else pieces[0]
    return result
