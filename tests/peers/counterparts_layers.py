"""Convolutions, pools, normalizations, interpolation and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from counterparts import as_tensor, axes_of, counterpart, derivative, plain, when
from counterparts_moves import margins
from counterparts_pointwise import _activated
from torch import Tensor
from torch.nn import functional

from glowtrain.graph import Sample
from glowtrain.types import type_of

CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAX_POOL = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE_POOL = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}

Pairs = list[tuple[int, int]]


def same_pads(total: int, upper: bool) -> tuple[int, int]:
    """Padding that is split in two: an odd place goes to the end, or to the start."""
    less, more = total // 2, total - total // 2
    return (less, more) if upper else (more, less)


def pads_of(op: Any, spatial: Sequence[int], kernel: Sequence[int]) -> Pairs:
    """The padding of each axis, as ``auto_pad`` or ``pads`` says."""
    rank = len(spatial)
    strides, dilations = op.strides or (1,) * rank, op.dilations or (1,) * rank
    if not op.auto_pad.startswith("SAME"):
        pads = op.pads or (0,) * 2 * rank
        return list(zip(pads[:rank], pads[rank:], strict=True))
    pairs = []
    for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
        total = max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pairs.append(same_pads(total, op.auto_pad == "SAME_UPPER"))
    return pairs


def _ones(given: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(given) or (1,) * rank


@counterpart("Conv")
def conv(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    pairs = pads_of(op, x.shape[2:], w.shape[2:])
    strides, dilations = _ones(op.strides, rank), _ones(op.dilations, rank)
    if all(before == after for before, after in pairs):
        return CONV[rank](x, w, bias, strides, [before for before, _ in pairs], dilations, op.group)
    return CONV[rank](functional.pad(x, margins(pairs)), w, bias, strides, 0, dilations, op.group)


@counterpart("com.microsoft.FusedConv")
def fused_conv(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None, other: Tensor | None = None) -> Tensor:
    y = conv(op, x, w, bias)
    return _activated(op, y if other is None else y + other)


@counterpart("ConvTranspose")
def conv_transpose(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """The whole result, then cut: PyTorch has no padding of two sizes and no wanted shape."""
    rank = x.ndim - 2
    strides, dilations = _ones(op.strides, rank), _ones(op.dilations, rank)
    whole = TRANSPOSED[rank](x, w, None, strides, 0, 0, op.group, dilations)
    extra = op.output_padding or (0,) * rank
    pads = op.pads or (0,) * 2 * rank
    pairs = []
    for a, (n, full) in enumerate(zip(x.shape[2:], whole.shape[2:], strict=True)):
        if op.output_shape:
            wanted = op.output_shape[a - rank]
        elif op.auto_pad.startswith("SAME"):
            wanted = n * strides[a] if strides[a] <= full - (n - 1) * strides[a] else full + extra[a]
        else:
            pairs.append((-pads[a], extra[a] - pads[a + rank]))
            continue
        begin, _ = same_pads(max(0, full + extra[a] - wanted), op.auto_pad == "SAME_UPPER")
        pairs.append((-begin, wanted - full + begin))
    y = functional.pad(whole, margins(pairs))
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)


def _plain_conv(op: Any, x: Tensor, w: Tensor) -> Tensor:
    rank = x.ndim - 2
    pairs = list(zip(op.pads[:rank], op.pads[rank:], strict=True))
    return CONV[rank](functional.pad(x, margins(pairs)), w, None, op.strides, 0, op.dilations, op.group)


@counterpart("glowtrain.ConvInputGradient")
def conv_input_gradient(op: Any, g: Tensor, w: Tensor) -> Tensor:
    shape = (g.shape[0], w.shape[1] * op.group, *op.spatial)
    return derivative(lambda x: _plain_conv(op, x, w), shape, g)


@counterpart("glowtrain.ConvWeightGradient")
def conv_weight_gradient(op: Any, g: Tensor, x: Tensor) -> Tensor:
    shape = (g.shape[1], x.shape[1] // op.group, *op.kernel_shape)
    return derivative(lambda w: _plain_conv(op, x, w), shape, g)


@counterpart("CausalConvWithState")
def causal_conv(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None, past: Tensor | None = None) -> Any:
    taps = w.shape[2]
    before = torch.zeros(*x.shape[:2], taps - 1, dtype=x.dtype) if past is None else past
    whole = torch.cat([before, x], 2)
    y = functional.conv1d(whole, w, bias, groups=x.shape[1])
    return y if op.activation == "none" else functional.silu(y), whole[:, :, whole.shape[2] - taps + 1 :]


# --- pools -----------------------------------------------------------------------------------------------------------


def windows(op: Any, x: Tensor, fill: float, pairs: Pairs | None = None, out: Sequence[int] | None = None) -> Tensor:
    """The taps of each window, [N, C, out..., taps], by PyTorch's unfold; what lies outside is ``fill``."""
    kernel, rank = tuple(op.kernel_shape), x.ndim - 2
    strides, dilations = _ones(op.strides, rank), _ones(op.dilations, rank)
    pairs = pads_of(op, x.shape[2:], kernel) if pairs is None else pairs
    out = places_of(op, x) if out is None else out
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    needed = [(n - 1) * s + span for n, s, span in zip(out, strides, spans, strict=True)]
    after = [m - n - before for m, n, (before, _) in zip(needed, x.shape[2:], pairs, strict=True)]
    x = functional.pad(x, margins([(before, end) for (before, _), end in zip(pairs, after, strict=True)]), value=fill)
    for axis, (span, stride, dilation) in enumerate(zip(spans, strides, dilations, strict=True)):
        x = x.unfold(2 + axis, span, stride)[..., ::dilation]
    return x.flatten(-rank)


def places_of(op: Any, x: Tensor) -> Sequence[int]:
    """The result's spatial extents."""
    types = op.infer(type_of(x.detach().numpy()))
    return (types[0] if isinstance(types, tuple) else types).shape[2:]


def _symmetric(op: Any, x: Tensor) -> list[int] | None:
    """The padding in PyTorch's form, where it has one."""
    pairs = pads_of(op, x.shape[2:], op.kernel_shape)
    small = all(before == after and before <= k // 2 for (before, after), k in zip(pairs, op.kernel_shape, strict=True))
    return [before for before, _ in pairs] if small else None


@counterpart("MaxPool")
def max_pool(op: Any, x: Tensor) -> Any:
    rank, pads = x.ndim - 2, _symmetric(op, x)
    if pads is None:
        return windows(op, x, -math.inf).amax(-1), None
    strides, dilations = _ones(op.strides, rank), _ones(op.dilations, rank)
    y, places = MAX_POOL[rank](x, op.kernel_shape, strides, pads, dilations, op.ceil_mode, return_indices=True)
    if y.shape[2:] != torch.Size(places_of(op, x)) or op.storage_order:
        return windows(op, x, -math.inf).amax(-1), None
    planes = torch.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * rank)
    return y, places + planes * math.prod(x.shape[2:])


@counterpart("AveragePool")
def average_pool(op: Any, x: Tensor) -> Tensor:
    rank, pads = x.ndim - 2, _symmetric(op, x)
    if pads is not None and set(op.dilations) <= {1}:
        y = AVERAGE_POOL[rank](
            x, op.kernel_shape, _ones(op.strides, rank), pads, op.ceil_mode, bool(op.count_include_pad)
        )
        if y.shape[2:] == torch.Size(places_of(op, x)):
            return y
    pairs, ones = pads_of(op, x.shape[2:], op.kernel_shape), torch.ones_like(x.detach())
    if op.count_include_pad:
        ones = functional.pad(ones, margins(pairs), value=1.0)
        counts = windows(op, ones, 0.0, [(0, 0)] * rank, places_of(op, x))
    else:
        counts = windows(op, ones, 0.0)
    return windows(op, x, 0.0).sum(-1) / counts.sum(-1)


@counterpart("LpPool")
def lp_pool(op: Any, x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(windows(op, x, 0.0), op.p, -1)


class _Pads:
    """A pool's window that ``windows`` understands."""

    def __init__(self, op: Any) -> None:
        self.kernel_shape, self.strides, self.dilations, self.pads = op.kernel_shape, op.strides, op.dilations, op.pads
        self.auto_pad = "NOTSET"


def _sum_pool(op: Any, x: Tensor) -> Tensor:
    rank = x.ndim - 2
    out = [
        (n + op.pads[a] + op.pads[a + rank] - (op.kernel_shape[a] - 1) * op.dilations[a] - 1) // op.strides[a] + 1
        for a, n in enumerate(x.shape[2:])
    ]
    return windows(_Pads(op), x, 0.0, None, out).sum(-1)


counterpart("glowtrain.SumPool")(_sum_pool)


@counterpart("glowtrain.SumPoolGradient")
def sum_pool_gradient(op: Any, g: Tensor) -> Tensor:
    return derivative(lambda x: _sum_pool(op, x), (*g.shape[:2], *op.spatial), g)


GLOBAL_POOLS = {
    "GlobalAveragePool": {1: functional.adaptive_avg_pool1d, 2: functional.adaptive_avg_pool2d,
                          3: functional.adaptive_avg_pool3d},
    "GlobalMaxPool": {1: functional.adaptive_max_pool1d, 2: functional.adaptive_max_pool2d,
                      3: functional.adaptive_max_pool3d},
}  # fmt: skip
for _name, _pools in GLOBAL_POOLS.items():
    plain(_name, lambda x, pools=_pools: pools[x.ndim - 2](x, 1))


@counterpart("GlobalLpPool")
def global_lp_pool(op: Any, x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, op.p, tuple(range(2, x.ndim)), keepdim=True)


def _blocks(op: Any, inputs: Sequence[Any]) -> bool:
    return len(op.block_shape) <= 2  # all that fold and unfold know


def _in_plane(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(numbers) if len(numbers) == 2 else (1, *numbers)


@counterpart("Col2Im", fitted=when(_blocks))
def col2im(op: Any, x: Tensor) -> Tensor:
    rank = len(op.block_shape)
    pads = op.pads or (0,) * 2 * rank
    padded = [n + pads[a] + pads[a + rank] for a, n in enumerate(op.image_shape)]
    kernel = _in_plane(op.block_shape)
    dilation, stride = (_in_plane(_ones(given, rank)) for given in (op.dilations, op.strides))
    y = functional.fold(x, _in_plane(padded), kernel, dilation, 0, stride)
    y = y if rank == 2 else y[:, :, 0]
    return functional.pad(y, margins([(-pads[a], -pads[a + rank]) for a in range(rank)]))


@counterpart("glowtrain.Im2Col", fitted=when(_blocks))
def im2col(op: Any, x: Tensor) -> Tensor:
    rank = len(op.block_shape)
    pads = op.pads or (0,) * 2 * rank
    x = functional.pad(x, margins([(pads[a], pads[a + rank]) for a in range(rank)]))
    dilation, stride = (_in_plane(_ones(given, rank)) for given in (op.dilations, op.strides))
    return functional.unfold(x if rank == 2 else x[:, :, None], _in_plane(op.block_shape), dilation, 0, stride)


# --- normalizations --------------------------------------------------------------------------------------------------


def _per_channel(numbers: Tensor, x: Tensor) -> Tensor:
    return numbers.reshape(-1, *(1,) * (x.ndim - 2))


@counterpart("BatchNormalization", "glowtrain.UnbiasedBatchNormalization")
def batch_normalization(op: Any, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Any:
    """PyTorch's running statistics have no gradient: they are written out, and so is the inference form."""
    if not op.training_mode:
        factor = _per_channel(scale / torch.sqrt(variance + op.epsilon), x)
        y = (x - _per_channel(mean, x)) * factor + _per_channel(bias, x)
        with torch.no_grad():
            torch.testing.assert_close(y, functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, op.epsilon))
        return y
    y = functional.batch_norm(x, None, None, scale, bias, True, 0.0, op.epsilon)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    of_batch, keep = torch.var_mean(x, axes, correction=op.correction), op.momentum
    return y, mean * keep + of_batch[1] * (1 - keep), variance * keep + of_batch[0] * (1 - keep)


@counterpart("LayerNormalization")
def layer_normalization(op: Any, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    axis = op.axis % x.ndim
    row, axes = x.shape[axis:], tuple(range(axis, x.ndim))
    if scale.shape == row and (bias is None or bias.shape == row):
        y = functional.layer_norm(x, row, scale, bias, op.epsilon)
    else:
        y = functional.layer_norm(x, row, None, None, op.epsilon) * scale
        y = y if bias is None else y + bias
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return y, mean, torch.rsqrt(variance + op.epsilon)


@counterpart("RMSNormalization")
def rms_normalization(op: Any, x: Tensor, scale: Tensor) -> Tensor:
    row = x.shape[op.axis % x.ndim :]
    if scale.shape == row:
        return functional.rms_norm(x, row, scale, op.epsilon)
    return functional.rms_norm(x, row, None, op.epsilon) * scale


@counterpart("SimplifiedLayerNormalization")
def simplified_layer_normalization(op: Any, x: Tensor, scale: Tensor) -> Any:
    axes = tuple(range(op.axis % x.ndim, x.ndim))
    inverse = torch.rsqrt(x.square().mean(axes, keepdim=True) + op.epsilon)
    return functional.rms_norm(x, x.shape[axes[0] :], scale, op.epsilon), inverse


@counterpart("com.microsoft.SkipLayerNormalization")
def skip_layer_normalization(
    op: Any, x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    variance, mean = torch.var_mean(total, -1, correction=0, keepdim=True)
    y = functional.layer_norm(total, total.shape[-1:], gamma, beta, op.epsilon)
    return y, mean, torch.rsqrt(variance + op.epsilon), total


@counterpart("com.microsoft.SkipSimplifiedLayerNormalization")
def skip_simplified(op: Any, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    inverse = torch.rsqrt(total.square().mean(-1, keepdim=True) + op.epsilon)
    y = functional.rms_norm(total, total.shape[-1:], gamma, op.epsilon)
    return y, total.mean(-1, keepdim=True), inverse, total


@counterpart("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(
    op: Any,
    words: Tensor,
    segments: Tensor | None,
    table: Tensor,
    positions: Tensor,
    segment_table: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    places: Tensor | None = None,
) -> Any:
    places = torch.arange(words.shape[1]) if places is None else places.long()
    total = functional.embedding(words.long(), table) + functional.embedding(places, positions)
    if segments is not None and segment_table is not None:
        total = total + functional.embedding(segments.long(), segment_table)
    return functional.layer_norm(total, total.shape[-1:], gamma, beta, op.epsilon), None, total


def _several(op: Any, inputs: Sequence[Any]) -> bool:
    """Whether more than one number is normalized together; PyTorch refuses less."""
    shape = inputs[0].shape
    return math.prod(shape[1:]) > getattr(op, "num_groups", shape[1])


@counterpart("InstanceNormalization", fitted=when(_several))
def instance_normalization(op: Any, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(x, None, None, scale, bias, True, 0.0, op.epsilon)


@counterpart("GroupNormalization", fitted=when(_several))
def group_normalization(op: Any, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.group_norm(x, op.num_groups, scale, bias, op.epsilon)


@counterpart("LRN")
def lrn(op: Any, x: Tensor) -> Tensor:
    """PyTorch's window of an even size reaches further back, ONNX's further ahead: the channels are turned round."""
    flat = x.reshape(*x.shape[:2], -1).flip(1)
    y = functional.local_response_norm(flat, op.size, op.alpha, op.beta, op.bias)
    return y.flip(1).reshape(x.shape)


@counterpart("MeanVarianceNormalization")
def mean_variance_normalization(op: Any, x: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(x, axes_of(x, op.axes), correction=0, keepdim=True)
    return (x - mean) / (deviation + 1e-9)


# --- interpolation ---------------------------------------------------------------------------------------------------


def _resizable(sample: Sample) -> Sample:
    """The nearest Resize that ``interpolate`` knows: its coordinates, its neighbours, its cubic coefficient."""
    op: Any = sample.operator
    rank = np.asarray(sample.inputs[0]).ndim
    mode = op.mode if rank < 3 or op.mode == "nearest" else "linear"
    changes: dict[str, Any] = {"roi": None, "extrapolation_value": 0.0, "keep_aspect_ratio_policy": "stretch"}
    antialias = op.antialias and mode != "nearest" and rank < 3
    aligned = op.coordinate_transformation_mode == "align_corners" and mode != "nearest" and not antialias
    coordinates = "align_corners" if aligned else "half_pixel"
    nearest = "round_prefer_floor"
    if mode == "nearest":
        floor = op.coordinate_transformation_mode == "asymmetric"
        coordinates, nearest = ("asymmetric", "floor") if floor else ("half_pixel", "round_prefer_ceil")
    return Sample(
        op.replace(
            mode=mode,
            antialias=antialias,
            coordinate_transformation_mode=coordinates,
            nearest_mode=nearest,
            exclude_outside=antialias,
            cubic_coeff_a=-0.5 if antialias else -0.75,
            **changes,
        ),
        sample.inputs,
    )


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


# --- losses ----------------------------------------------------------------------------------------------------------


def _weighted_loss(op: Any, logs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The loss written out, for PyTorch's has no gradient for its weights."""
    counted = torch.ones_like(labels, dtype=torch.bool) if op.ignore_index is None else labels != op.ignore_index
    chosen = torch.where(counted, labels, 0)
    each = torch.where(counted, weights[chosen], 0.0)
    losses = -each * torch.gather(logs, 1, chosen[:, None])[:, 0]
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / each.sum()}[op.reduction]


def _loss(op: Any, logs: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    ignored = -100 if op.ignore_index is None else op.ignore_index
    fixed = None if weights is None else weights.detach()
    direct = functional.nll_loss(logs, labels, fixed, ignore_index=ignored, reduction=op.reduction)
    if weights is None:
        return direct
    written = _weighted_loss(op, logs, labels, weights)
    torch.testing.assert_close(written, direct)
    return written


@counterpart("NegativeLogLikelihoodLoss")
def negative_log_likelihood(op: Any, x: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    return _loss(op, x, labels, weights)


@counterpart("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(op: Any, x: Tensor, labels: Tensor, weights: Tensor | None = None) -> Any:
    logs = functional.log_softmax(x, 1)
    if weights is None:
        ignored = -100 if op.ignore_index is None else op.ignore_index
        return functional.cross_entropy(x, labels, ignore_index=ignored, reduction=op.reduction), logs
    return _loss(op, logs, labels, weights), logs


# --- quantized weights -----------------------------------------------------------------------------------------------


def _spread(numbers: Tensor, like: Tensor, op: Any) -> Tensor:
    """Scales or zero points at every element: one for all, one for each place of an axis, or one for a block."""
    if numbers.numel() == 1:
        return numbers.reshape(())
    if not getattr(op, "block_size", 0):
        axis = (1 if op.axis is None else op.axis) % like.ndim
        return numbers.reshape(-1, *(1,) * (like.ndim - 1 - axis))
    axis = op.axis % like.ndim
    return numbers.repeat_interleave(op.block_size, axis).narrow(axis, 0, like.shape[axis])


@counterpart("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_linear(op: Any, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    difference = x.double() if zero is None else x.double() - _spread(zero.double(), x, op)
    return difference * _spread(scale, x, op)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(0, 8, bits)
    return ((packed.long()[..., None] >> shifts) & (1 << bits) - 1).flatten(-2).double()


@counterpart("com.microsoft.MatMulNBits")
def matmul_n_bits(
    op: Any,
    a: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    group: None = None,
    bias: Tensor | None = None,
) -> Tensor:
    blocks = -(-op.K // op.block_size)
    numbers = _unpacked(packed.reshape(op.N, -1), op.bits)
    if zeros is None:
        zeros = as_tensor(np.full((op.N, blocks), 2.0 ** (op.bits - 1)))
    elif zeros.dtype == torch.uint8:
        zeros = _unpacked(zeros.reshape(op.N, -1), op.bits)[:, :blocks]
    spread = [x.reshape(op.N, blocks).repeat_interleave(op.block_size, 1) for x in (zeros, scales)]
    return functional.linear(a, ((numbers - spread[0]) * spread[1])[:, : op.K], bias)
