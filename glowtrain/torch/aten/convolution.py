"""Convolutions and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glowtrain.graph import Value
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
