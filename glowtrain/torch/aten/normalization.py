"""Normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Value, constant
from glowtrain.ops.normalize.batch_and_layer import (
    BatchNormalization,
    LayerNormalization,
    RMSNormalization,
    UnbiasedBatchNormalization,
    inverse_deviation,
)
from glowtrain.ops.normalize.group import GroupNormalization, InstanceNormalization
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.ops.tensor.move import reshape
from glowtrain.torch.aten.table import AtenCall, accumulated, as_type, aten
from glowtrain.types import DType


def _filled(number: float, shape: tuple[int, ...], dtype: DType) -> Value:
    return constant(np.full(shape, number, dtype.numpy))


def _affine(x: Value, scale: Value | None, bias: Value | None, shape: tuple[int, ...]) -> tuple[Value, Value]:
    """Scale and bias, ones and zeros where there are none."""
    ones = _filled(1, shape, x.dtype) if scale is None else scale
    zeros = _filled(0, shape, x.dtype) if bias is None else bias
    return ones, zeros


def _statistics(call: AtenCall, x: Value, axes: Sequence[int], eps: float) -> list[Value]:
    """The results behind the first: mean and inverse deviation along axes, in the types that PyTorch gives them."""
    wide, mean_of = accumulated(x), ReduceMean(axes=tuple(axes))
    mean = mean_of(wide)
    centered = wide - mean
    found = mean, inverse_deviation(mean_of(centered * centered), eps)
    return [reshape(as_type(each, y.dtype), y.shape) for each, y in zip(found, call.types[1:3], strict=True) if y]


def _batch_statistics(call: AtenCall, x: Value, eps: float) -> list[Value]:
    """Those of channels, without a gradient, as PyTorch has them."""
    return _statistics(call, StopGradient()(x), (0, *range(2, x.rank)), eps)


@aten("_native_batch_norm_legit_functional.default")
def batch_norm_training(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """The result, the batch's statistics and the running ones."""
    scale, shift = _affine(x, weight, bias, x.shape[1:2])
    if not training:
        y = BatchNormalization(epsilon=eps)(x, scale, shift, mean, variance)
        return y, *call.nothing(1, 2), mean, variance
    operator = UnbiasedBatchNormalization(epsilon=eps, momentum=1 - momentum)
    y, *running = operator(x, scale, shift, mean, variance)
    types = [type_ for type_ in call.types[-2:] if type_ is not None]  # f32 for halves, which PyTorch then converts
    statistics = [StopGradient()(as_type(each, type_.dtype)) for each, type_ in zip(running, types, strict=True)]
    return y, *_batch_statistics(call, x, eps), *statistics


@aten("_batch_norm_with_update_functional.default")
def batch_norm_with_update(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """The same, with a place for what only another processor's gradient reads."""
    *found, new_mean, new_variance = batch_norm_training(call, x, weight, bias, mean, variance, True, momentum, eps)
    return *found, *call.nothing(3), new_mean, new_variance


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    scale, shift = _affine(x, weight, bias, x.shape[1:2])
    return BatchNormalization(epsilon=eps)(x, scale, shift, mean, variance), *call.nothing(1, 2)


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> Any:
    channels = x.shape[1:2]
    scale, shift = _affine(x, weight, bias, channels)
    zeros, ones = _filled(0, channels, scale.dtype), _filled(1, channels, scale.dtype)
    y = BatchNormalization(epsilon=eps, training_mode=True)(x, scale, shift, zeros, ones)[0]
    return y, *_batch_statistics(call, x, eps)


@aten("layer_norm.default")
def layer_norm(
    call: AtenCall, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    scale, shift = _affine(x, weight, bias, tuple(normalized_shape))
    axis = x.rank - len(normalized_shape)
    result = LayerNormalization(axis=axis, epsilon=eps)(x, scale, shift)
    return result[0] if isinstance(result, tuple) else result


@aten("native_layer_norm.default")
def native_layer_norm(
    call: AtenCall, x: Value, normalized_shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> Any:
    """Through its statistics no gradient flows; through those of a group norm it does."""
    axes = range(x.rank - len(normalized_shape), x.rank)
    return layer_norm(call, x, normalized_shape, weight, bias, eps), *_statistics(call, StopGradient()(x), axes, eps)


@aten("rms_norm.default")
def rms_norm(
    call: AtenCall, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Any:
    """Without ``eps``, PyTorch takes the least number that changes 1."""
    least = float(np.finfo(np.float64 if x.dtype.size == 8 else np.float32).eps)
    scale = _filled(1, tuple(normalized_shape), x.dtype) if weight is None else weight
    return RMSNormalization(axis=x.rank - len(normalized_shape), epsilon=least if eps is None else eps)(x, scale)


@aten("group_norm.default")
def group_norm(
    call: AtenCall, x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    scale, shift = _affine(x, weight, bias, x.shape[1:2])
    image = x if x.rank > 2 else reshape(x, (*x.shape, 1))
    return reshape(GroupNormalization(num_groups=num_groups, epsilon=eps)(image, scale, shift), x.shape)


@aten("native_group_norm.default")
def native_group_norm(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hxw: int, group: int, eps: float
) -> Any:
    groups = reshape(x, (n, group, c // group * hxw))
    return group_norm(call, x, group, weight, bias, eps), *_statistics(call, groups, (2,), eps)


@aten("instance_norm.default")
def instance_norm(
    call: AtenCall, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, variance: Value | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    scale, shift = _affine(x, weight, bias, x.shape[1:2])
    if use_input_stats and mean is not None:
        raise ModelError("its running statistics are not kept: make it with track_running_stats=False")
    if use_input_stats or mean is None or variance is None:
        return InstanceNormalization(epsilon=eps)(x, scale, shift)
    return BatchNormalization(epsilon=eps)(x, scale, shift, mean, variance)
