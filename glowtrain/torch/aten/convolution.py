"""Convolutions and resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Value, constant
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.convolution.convolution import Conv, ConvTranspose
from glowtrain.ops.resample.grid_sample import GridSample
from glowtrain.ops.resample.resize import Resize
from glowtrain.ops.tensor.move import reshape
from glowtrain.torch.aten.table import AtenCall, aten

Extents = int | Sequence[int]


def spread(extents: Extents, rank: int) -> tuple[int, ...]:
    """One number for each axis, of one for all or one for each."""
    given = [extents] if isinstance(extents, int) else list(extents)
    return tuple(given * rank if len(given) == 1 else given)


def batched(x: Value, rank: int) -> Value:
    """With an axis of one image in front, where PyTorch's operand has none."""
    return x if x.rank == rank + 2 else reshape(x, (1, *x.shape))


@aten("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    call: AtenCall, x: Value, weight: Value, bias: Value | None = None, stride: Extents = 1, padding: Extents = 0,
    dilation: Extents = 1, groups: int = 1,
) -> Any:  # fmt: skip
    rank = weight.rank - 2
    pads = spread(padding, rank)
    operator = Conv(
        group=groups, dilations=spread(dilation, rank), pads=(*pads, *pads), strides=spread(stride, rank),
        kernel_shape=weight.shape[2:],
    )  # fmt: skip
    operands = (batched(x, rank), weight) if bias is None else (batched(x, rank), weight, bias)
    return reshape(operator(*operands), call.shape)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padding(
    call: AtenCall, x: Value, weight: Value, bias: Value | None = None, stride: Extents = 1, padding: str = "valid",
    dilation: Extents = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """``same``: of an odd number of elements PyTorch puts one more behind."""
    rank = weight.rank - 2
    dilations = spread(dilation, rank)
    totals = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, weight.shape[2:], strict=True)]
    before = [total // 2 for total in totals]
    operator = Conv(
        group=groups, dilations=dilations, strides=spread(stride, rank), kernel_shape=weight.shape[2:],
        pads=(*before, *(total - half for total, half in zip(totals, before, strict=True))),
    )  # fmt: skip
    operands = (batched(x, rank), weight) if bias is None else (batched(x, rank), weight, bias)
    return reshape(operator(*operands), call.shape)


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    call: AtenCall, x: Value, weight: Value, bias: Value | None = None, stride: Extents = 1, padding: Extents = 0,
    output_padding: Extents = 0, groups: int = 1, dilation: Extents = 1,
) -> Any:  # fmt: skip
    rank = weight.rank - 2
    pads = spread(padding, rank)
    operator = ConvTranspose(
        group=groups, dilations=spread(dilation, rank), pads=(*pads, *pads), strides=spread(stride, rank),
        output_padding=spread(output_padding, rank), kernel_shape=weight.shape[2:],
    )  # fmt: skip
    operands = (batched(x, rank), weight) if bias is None else (batched(x, rank), weight, bias)
    return reshape(operator(*operands), call.shape)


@aten("convolution.default")
def convolution(
    call: AtenCall, x: Value, weight: Value, bias: Value | None, stride: Extents, padding: Extents, dilation: Extents,
    transposed: bool, output_padding: Extents, groups: int,
) -> Any:  # fmt: skip
    if transposed:
        return conv_transpose(call, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(call, x, weight, bias, stride, padding, dilation, groups)


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


def _by_axis(scales: Sequence[Any]) -> Sequence[Any]:
    """Of one list, or of one number for each axis, which overloads without a list have."""
    listed = scales[0] if len(scales) == 1 and (scales[0] is None or isinstance(scales[0], (list, tuple))) else scales
    return listed or ()


def _resized(call: AtenCall, x: Value, scales: Sequence[Any], **how: Any) -> Value:
    """By the scales, if there are any: where they are fractions, they say other coordinates than the extents do."""
    given = _by_axis(scales)
    if given and None not in given and how["coordinate_transformation_mode"] != "align_corners":
        result: Value = Resize(scales=(1.0, 1.0, *map(float, given)), **how)(x)
        return result
    result = Resize(sizes=call.shape, **how)(x)
    return result


@aten("_upsample_bilinear2d_aa.vec", "_upsample_bilinear2d_aa.default")
def upsample_bilinear_antialiased(
    call: AtenCall, x: Value, output_size: Any, align_corners: bool, *scales: Any, **named: Any
) -> Any:
    return _antialiased(call, x, align_corners, (*scales, *named.values()), 1, _triangle)


@aten("_upsample_bicubic2d_aa.vec", "_upsample_bicubic2d_aa.default")
def upsample_bicubic_antialiased(
    call: AtenCall, x: Value, output_size: Any, align_corners: bool, *scales: Any, **named: Any
) -> Any:
    return _antialiased(call, x, align_corners, (*scales, *named.values()), 2, _cubic)


def _triangle(x: np.ndarray) -> np.ndarray:
    height: np.ndarray = np.maximum(1 - np.abs(x), 0)
    return height


def _cubic(x: np.ndarray) -> np.ndarray:
    """Keys' cubic convolution, with a = -1/2."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    height: np.ndarray = np.where(x < 1, near, np.where(x < 2, far, 0))
    return height


Kernel = Callable[[np.ndarray], np.ndarray]


def _antialiased(
    call: AtenCall, x: Value, align_corners: bool, scales: Sequence[Any], radius: int, kernel: Kernel
) -> Value:
    """Two products with matrices of weights: every result element weighs those that a kernel reaches, which is as wide
    as the axis shrinks. PyTorch does not centre it otherwise where corners are aligned."""
    if not x.dtype.is_float:
        raise ModelError("whole numbers are not resized with antialias=True: convert them to floats")
    given = _by_axis(scales) or (None, None)
    across, down = (
        _weights(x.shape[axis], call.shape[axis], align_corners, given[axis], radius, kernel).astype(x.dtype.numpy)
        for axis in (-1, -2)
    )
    result: Value = MatMul()(constant(down), MatMul()(x, constant(across.T)))
    return result


def _weights(
    extent: int, size: int, align_corners: bool, scale: float | None, radius: int, kernel: Kernel
) -> np.ndarray:
    """[size, extent], rows of sum 1."""
    step = (extent - 1) / max(size - 1, 1) * (size > 1) if align_corners else 1 / scale if scale else extent / size
    width, centers = max(step, 1.0), step * (np.arange(size)[:, None] + 0.5)
    ends = [np.trunc(centers + side * radius * width + 0.5) for side in (-1, 1)]
    numbers = np.arange(extent)
    reached = (numbers >= ends[0]) & (numbers < ends[1])
    heights = np.where(reached, kernel((numbers - centers + 0.5) / width), 0)
    weights: np.ndarray = heights / heights.sum(axis=1, keepdims=True)
    return weights


@aten("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(
    call: AtenCall, x: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    mode = ("linear", "nearest", "cubic")[interpolation_mode]
    padding = ("zeros", "border", "reflection")[padding_mode]
    return GridSample(align_corners=align_corners, mode=mode, padding_mode=padding)(x, grid)  # type: ignore[arg-type]  # one of the three
