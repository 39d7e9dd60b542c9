"""Convolutions, pooling and resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glowtrain.errors import ModelError
from glowtrain.graph import Value, constant
from glowtrain.ops.convolution.convolution import Conv, ConvTranspose
from glowtrain.ops.elementwise.arithmetic import Mod
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.pooling.pooling import AveragePool
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.ops.resample.grid_sample import GridSample
from glowtrain.ops.resample.resize import Resize
from glowtrain.ops.tensor.move import Concat, reshape
from glowtrain.torch.aten.reductions import extremum
from glowtrain.torch.aten.shapes import slice_
from glowtrain.torch.aten.table import AtenCall, aten

Extents = int | Sequence[int]


def _spread(extents: Extents, rank: int) -> tuple[int, ...]:
    """One number for each axis, of one for all or one for each."""
    given = [extents] if isinstance(extents, int) else list(extents)
    return tuple(given * rank if len(given) == 1 else given)


def _batched(x: Value, rank: int) -> Value:
    """With an axis of one image in front, where PyTorch's operand has none."""
    return x if x.rank == rank + 2 else reshape(x, (1, *x.shape))


@aten("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    call: AtenCall, x: Value, weight: Value, bias: Value | None = None, stride: Extents = 1, padding: Extents = 0,
    dilation: Extents = 1, groups: int = 1,
) -> Any:  # fmt: skip
    rank = weight.rank - 2
    pads = _spread(padding, rank)
    operator = Conv(
        group=groups, dilations=_spread(dilation, rank), pads=(*pads, *pads), strides=_spread(stride, rank),
        kernel_shape=weight.shape[2:],
    )  # fmt: skip
    operands = (_batched(x, rank), weight) if bias is None else (_batched(x, rank), weight, bias)
    return reshape(operator(*operands), call.shape)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padding(
    call: AtenCall, x: Value, weight: Value, bias: Value | None = None, stride: Extents = 1, padding: str = "valid",
    dilation: Extents = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """``same``: of an odd number of elements PyTorch puts one more behind."""
    rank = weight.rank - 2
    dilations = _spread(dilation, rank)
    totals = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, weight.shape[2:], strict=True)]
    before = [total // 2 for total in totals]
    operator = Conv(
        group=groups, dilations=dilations, strides=_spread(stride, rank), kernel_shape=weight.shape[2:],
        pads=(*before, *(total - half for total, half in zip(totals, before, strict=True))),
    )  # fmt: skip
    operands = (_batched(x, rank), weight) if bias is None else (_batched(x, rank), weight, bias)
    return reshape(operator(*operands), call.shape)


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    call: AtenCall, x: Value, weight: Value, bias: Value | None = None, stride: Extents = 1, padding: Extents = 0,
    output_padding: Extents = 0, groups: int = 1, dilation: Extents = 1,
) -> Any:  # fmt: skip
    rank = weight.rank - 2
    pads = _spread(padding, rank)
    operator = ConvTranspose(
        group=groups, dilations=_spread(dilation, rank), pads=(*pads, *pads), strides=_spread(stride, rank),
        output_padding=_spread(output_padding, rank), kernel_shape=weight.shape[2:],
    )  # fmt: skip
    operands = (_batched(x, rank), weight) if bias is None else (_batched(x, rank), weight, bias)
    return reshape(operator(*operands), call.shape)


@aten("convolution.default")
def convolution(
    call: AtenCall, x: Value, weight: Value, bias: Value | None, stride: Extents, padding: Extents, dilation: Extents,
    transposed: bool, output_padding: Extents, groups: int,
) -> Any:  # fmt: skip
    if transposed:
        return conv_transpose(call, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(call, x, weight, bias, stride, padding, dilation, groups)


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
    kernel, pads = _spread(kernel_size, rank), _spread(padding, rank)
    image = _batched(x, rank)
    pooled, positions = MaxPool(
        kernel_shape=kernel, strides=_spread(stride, rank) if stride else kernel, pads=(*pads, *pads),
        dilations=_spread(dilation, rank), ceil_mode=ceil_mode,
    )(image)  # fmt: skip
    within = Mod()(positions, constant(math.prod(image.shape[2:])))
    return reshape(pooled, call.shape), reshape(within, call.shape)


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    call: AtenCall, x: Value, kernel_size: Extents, stride: Extents = (), padding: Extents = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    rank = _pooled_axes(call)
    kernel, pads = _spread(kernel_size, rank), _spread(padding, rank)
    if divisor_override is not None and ceil_mode:
        raise ModelError("divisor_override is not supported with ceil_mode; multiply the result")
    pooled = AveragePool(
        kernel_shape=kernel, strides=_spread(stride, rank) if stride else kernel, pads=(*pads, *pads),
        ceil_mode=ceil_mode, count_include_pad=count_include_pad or divisor_override is not None,
    )(_batched(x, rank))  # fmt: skip
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
    image, sizes = _batched(x, rank), call.shape[-rank:]
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


@aten("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def upsample_nearest(call: AtenCall, x: Value, output_size: Any, *scales: Any) -> Any:
    how = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return _resized(call, x, scales, **how)


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
@aten("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
def upsample_linear(call: AtenCall, x: Value, output_size: Any, align_corners: bool, *scales: Any) -> Any:
    return _resized(call, x, scales, mode="linear", coordinate_transformation_mode=_coordinates(align_corners))


@aten("upsample_bicubic2d.vec", "upsample_bicubic2d.default")
def upsample_bicubic(call: AtenCall, x: Value, output_size: Any, align_corners: bool, *scales: Any) -> Any:
    return _resized(call, x, scales, mode="cubic", coordinate_transformation_mode=_coordinates(align_corners))


def _coordinates(align_corners: bool) -> str:
    return "align_corners" if align_corners else "half_pixel"


def _resized(call: AtenCall, x: Value, scales: Sequence[Any], **how: Any) -> Value:
    """By the scales, if there are any: where they are fractions, they say other coordinates than the extents do.

    They are one list, or one number for each axis, which overloads without a list have.
    """
    given = scales[0] if len(scales) == 1 and isinstance(scales[0], (list, tuple)) else scales
    if given and None not in given and how["coordinate_transformation_mode"] != "align_corners":
        result: Value = Resize(scales=(1.0, 1.0, *map(float, given)), **how)(x)
        return result
    result = Resize(sizes=call.shape, **how)(x)
    return result


@aten("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(
    call: AtenCall, x: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    mode = ("linear", "nearest", "cubic")[interpolation_mode]
    padding = ("zeros", "border", "reflection")[padding_mode]
    return GridSample(align_corners=align_corners, mode=mode, padding_mode=padding)(x, grid)  # type: ignore[arg-type]  # one of the three
