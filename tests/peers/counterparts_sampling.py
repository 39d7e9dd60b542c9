"""Interpolation: resizes, grids, deformed windows and regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from counterparts import axes_of, counterpart, when
from counterparts_windows import or_ones
from torch import Tensor
from torch.nn import functional

from glowtrain.graph import Sample


def _resizable(sample: Sample) -> Sample | None:
    """The nearest Resize that ``interpolate`` knows: its coordinates, its neighbours, its cubic coefficient."""
    op: Any = sample.operator
    shape = np.asarray(sample.inputs[0]).shape
    rank = len(shape)
    mode = op.mode if rank < 3 or op.mode == "nearest" else "linear"
    changes: dict[str, Any] = {"roi": None, "extrapolation_value": 0.0, "keep_aspect_ratio_policy": "stretch"}
    outs = [axis.out for axis in op.replace(**changes).resized(shape).values()]
    # PyTorch's antialias filter reads one element for a whole image of width 1.
    antialias = op.antialias and mode != "nearest" and rank < 3 and shape[-1:] != (1,)
    aligned = op.coordinate_transformation_mode == "align_corners" and mode != "nearest" and not antialias
    coordinates = "align_corners" if aligned else "half_pixel"
    if aligned:  # by whole extents; ONNX goes by the products of extents and scales, which may be fractions
        changes |= {"scales": None, "sizes": tuple(outs)}
    nearest = "round_prefer_floor"
    if mode == "nearest":
        floor = op.coordinate_transformation_mode == "asymmetric"
        coordinates, nearest = ("asymmetric", "floor") if floor else ("half_pixel", "round_prefer_ceil")
    changes |= {"exclude_outside": antialias, "cubic_coeff_a": -0.5 if antialias else -0.75}
    fitted = op.replace(
        mode=mode, antialias=antialias, coordinate_transformation_mode=coordinates, nearest_mode=nearest, **changes
    )
    return Sample(fitted, sample.inputs) if all(outs) else None


LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@counterpart("Resize", fitted=_resizable)
def resize(op: Any, x: Tensor) -> Tensor:
    axes = axes_of(x, op.axes)
    scales, sizes = [1.0] * x.ndim, list(x.shape)
    for k, axis in enumerate(axes):
        if op.scales is not None:
            scales[axis] = op.scales[k]
        else:
            sizes[axis] = op.sizes[k]
    rank = x.ndim
    image = x[None, None]
    if rank == 1 and (op.mode == "cubic" or op.antialias):
        image, scales, sizes, rank = image[:, :, None], [1.0, *scales], [1, *sizes], 2
    names = {"nearest": "nearest" if op.nearest_mode == "floor" else "nearest-exact", "cubic": "bicubic"}
    mode = names.get(op.mode, LINEAR[rank])
    aligned = None if op.mode == "nearest" else op.coordinate_transformation_mode == "align_corners"
    target: dict[str, Any] = {"scale_factor": scales} if op.scales is not None else {"size": sizes}
    y = functional.interpolate(image, mode=mode, align_corners=aligned, antialias=op.antialias, **target)
    return y[0, 0] if x.ndim == rank else y[0, 0, 0]


def _samplable(op: Any, inputs: Sequence[Any]) -> bool:
    rank = inputs[0].ndim - 2
    return rank == 2 or (rank == 3 and op.mode != "cubic")


@counterpart("GridSample", fitted=when(_samplable))
def grid_sample(op: Any, x: Tensor, grid: Tensor) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(op.mode, op.mode)
    return functional.grid_sample(x, grid, mode, op.padding_mode, bool(op.align_corners))


@counterpart("AffineGrid")
def affine_grid(op: Any, theta: Tensor) -> Tensor:
    return functional.affine_grid(theta, list(op.size), bool(op.align_corners))


def _deformable(op: Any, inputs: Sequence[Any]) -> bool:
    spatial = inputs[0].shape[2:]
    return len(spatial) > 1 and min(spatial) > 1


@counterpart("DeformConv", fitted=when(_deformable))
def deform_conv(
    op: Any, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """What each tap reads by grid_sample, then a product: PyTorch's own is in torchvision."""
    kernel, out, rank, q = w.shape[2:], offset.shape[2:], x.ndim - 2, op.offset_group
    taps, (strides, dilations) = math.prod(kernel), (or_ones(given, rank) for given in (op.strides, op.dilations))
    moved, pads = offset.unflatten(1, (q, taps, rank)), op.pads or (0,) * 2 * rank
    tap_places = torch.meshgrid(*map(torch.arange, kernel), indexing="ij")
    positions = []
    for a in range(rank):
        tap = tap_places[a].reshape(taps, *(1,) * rank) * dilations[a]
        place = (torch.arange(out[a]) * strides[a] - pads[a]).reshape(-1, *(1,) * (rank - 1 - a))
        positions.append(2 * (moved[:, :, :, a] + tap + place) / (x.shape[2 + a] - 1) - 1)
    grid = torch.stack(positions[::-1], -1).flatten(0, 1).flatten(1, 2)
    images = x.unflatten(1, (q, -1)).flatten(0, 1)
    read = functional.grid_sample(images, grid, "bilinear", "zeros", True).unflatten(2, (taps, -1))
    read = read.unflatten(0, (-1, q))
    read = (read if mask is None else read * mask.unflatten(1, (q, 1, taps))).flatten(1, 2)
    columns, rows = read.unflatten(1, (op.group, -1)), w.flatten(2).unflatten(0, (op.group, -1))
    y = torch.einsum("ngct...,gmct->ngm...", columns, rows).flatten(1, 2)
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)


def _averaged(sample: Sample) -> Sample:
    """RoiAlign's mean: torchvision has no maximum."""
    return Sample(sample.operator.replace(mode="avg"), sample.inputs)


@counterpart("RoiAlign", fitted=_averaged)
def roi_align(op: Any, x: Tensor, rois: Tensor, images: Tensor) -> Tensor:
    """Samples by grid_sample, then their means: PyTorch's own is in torchvision."""
    half = op.coordinate_transformation_mode == "half_pixel"
    out, rows = (op.output_height, op.output_width), []
    for roi, image in zip(rois, images.tolist(), strict=True):
        grids, inside = [], []
        for axis, extent in enumerate(x.shape[2:]):
            start, end = (roi[1 - axis + k] * op.spatial_scale - 0.5 * half for k in (0, 2))
            size = end - start if half else torch.clamp(end - start, min=1.0)
            count = op.sampling_ratio or math.ceil(float(size) / out[axis])
            positions = start + (torch.arange(out[axis] * count, dtype=x.dtype) + 0.5) / count * (size / out[axis])
            inside.append((positions >= -1) & (positions <= extent))
            grids.append(2 * positions.clamp(0, extent - 1) / (extent - 1) - 1)
        grid = torch.stack(torch.meshgrid(*grids, indexing="ij")[::-1], -1)
        read = functional.grid_sample(x[image][None], grid[None], align_corners=True)[0]
        read = read * (inside[0][:, None] & inside[1])
        rows.append(read.unflatten(2, (out[1], -1)).unflatten(1, (out[0], -1)).mean((2, 4)))
    return torch.stack(rows)
