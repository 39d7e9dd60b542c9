"""Normalizations, losses and quantized weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from counterparts import as_tensor, axes_of, counterpart, when
from torch import Tensor
from torch.nn import functional


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
