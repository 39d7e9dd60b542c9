"""Layers with parameters: functions that make named variables in the present scope and apply ONNX's operators."""

from __future__ import annotations

import math

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Value, constant
from glowtrain.nn.checks import check_extents, check_input, check_share
from glowtrain.nn.functions import Extents, reshape, softmax, spread, transpose
from glowtrain.nn.initializers import FanIn, Initializer, Normal, Xavier, ones, zeros
from glowtrain.nn.scope import buffer, parameter, scope
from glowtrain.ops.contraction.products import Gemm
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization, LayerNormalization
from glowtrain.ops.reduce.reduction import accumulator
from glowtrain.ops.sequence.recurrent import LSTM
from glowtrain.ops.tensor.split import Split
from glowtrain.types import DType, f32


def linear(
    x: Value, features: int, *, bias: bool = True, initializer: Initializer | None = None, name: str = "linear"
) -> Value:
    """x[..., n] times weight[n, features], plus bias[features]. Variables: ``weight``, ``bias``."""
    check_input("linear", x, "x[..., n]", 1)
    check_extents("linear", features=features)
    inputs = x.shape[-1]
    with scope(name):
        weight = parameter("weight", (inputs, features), initializer, dtype=x.dtype)
        offset = parameter("bias", (features,), FanIn(), fans=(inputs, features), dtype=x.dtype) if bias else None
    if x.rank == 2:
        result: Value = Gemm()(x, weight, offset) if offset is not None else x @ weight
        return result
    product = x @ weight
    return product if offset is None else product + offset


def conv(
    x: Value,
    channels: int,
    kernel: Extents = 3,
    *,
    stride: Extents = 1,
    padding: Extents | str = 0,
    dilation: Extents = 1,
    groups: int = 1,
    bias: bool = True,
    initializer: Initializer | None = None,
    name: str = "conv",
) -> Value:
    """A convolution of x[n, c, spatial...]. Variables: ``weight``[channels, c/groups, kernel...], ``bias``.

    ``padding="same"`` keeps the spatial extents at stride 1 (odd kernels).
    """
    check_input("conv", x, "x[n, channels, spatial...]", 3)
    check_extents("conv", channels=channels, kernel=kernel, stride=stride, dilation=dilation, groups=groups)
    if x.shape[1] % groups or channels % groups:
        raise ShapeError(f"conv: {x.shape[1]} channels in and {channels} out do not divide into {groups} groups")
    rank = x.rank - 2
    kernel, dilation = spread(kernel, rank), spread(dilation, rank)
    if isinstance(padding, str) and padding != "same":
        raise ShapeError(f'conv: padding must be "same" or numbers, not {padding!r}')
    pads = _same(kernel, dilation) if isinstance(padding, str) else spread(padding, rank)
    inputs, taps = x.shape[1] // groups, math.prod(kernel)
    fans = (inputs * taps, channels * taps)
    with scope(name):
        weight = parameter("weight", (channels, inputs, *kernel), initializer, fans=fans, dtype=x.dtype)
        offset = parameter("bias", (channels,), FanIn(), fans=fans, dtype=x.dtype) if bias else None
    operator = Conv(dilations=dilation, group=groups, kernel_shape=kernel, pads=2 * pads, strides=spread(stride, rank))
    result: Value = operator(x, weight, offset) if offset is not None else operator(x, weight)
    return result


def _same(kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    if any(extent % 2 == 0 for extent in kernel):
        raise ShapeError(f'conv: padding="same" needs odd kernels, not {list(kernel)}; give the padding in numbers')
    return tuple(step * (extent - 1) // 2 for extent, step in zip(kernel, dilation, strict=True))


def batch_norm(x: Value, *, momentum: float = 0.1, epsilon: float = 1e-5, name: str = "batch_norm") -> Value:
    """Normalization of each channel (axis 1) over the batch in training, by running statistics otherwise.

    ``momentum`` is the weight of the present batch in the running statistics (PyTorch's convention; ONNX's is 1 minus
    that). Variables: ``scale``, ``bias``; not trained: ``mean``, ``variance``, which are f32 for x in 16 bits, where
    small changes of an average would be rounded away.
    """
    check_input("batch_norm", x, "x[n, channels, ...]", 2)
    check_share("batch_norm", "momentum", momentum)
    channels = (x.shape[1],)
    with scope(name):
        scale = parameter("scale", channels, ones, dtype=x.dtype)
        bias = parameter("bias", channels, zeros, dtype=x.dtype)
        mean = buffer("mean", channels, zeros, dtype=accumulator(x.dtype))
        variance = buffer("variance", channels, ones, dtype=accumulator(x.dtype))
    result: Value = BatchNormalization(epsilon=epsilon, momentum=1.0 - momentum)(x, scale, bias, mean, variance)
    return result


def layer_norm(x: Value, *, epsilon: float = 1e-5, name: str = "layer_norm") -> Value:
    """Normalization over the last axis. Variables: ``scale``, ``bias``."""
    check_input("layer_norm", x, "x[..., features]", 1)
    features = (x.shape[-1],)
    with scope(name):
        scale = parameter("scale", features, ones, dtype=x.dtype)
        bias = parameter("bias", features, zeros, dtype=x.dtype)
    result: Value = LayerNormalization(axis=-1, epsilon=epsilon)(x, scale, bias)[0]
    return result


def embedding(
    indices: Value,
    count: int,
    features: int,
    *,
    initializer: Initializer | None = None,
    dtype: DType = f32,
    name: str = "embedding",
) -> Value:
    """Rows of a table ``weight``[count, features] for integer indices. Standard normal unless told otherwise."""
    check_input("embedding", indices, "whole numbers", 0, floats=False)
    check_extents("embedding", count=count, features=features)
    with scope(name):
        table = parameter("weight", (count, features), initializer or Normal(1.0), dtype=dtype)
    result: Value = Gather(axis=0)(table, indices)
    return result


def lstm(x: Value, hidden: int, *, direction: str = "forward", name: str = "lstm") -> Value:
    """A long short-term memory over x[batch, time, features]; gives [batch, time, hidden] (or 2 hidden, bidirectional).

    ``direction``: forward, reverse or bidirectional. Variables in ONNX's order of gates (input, output, forget, cell):
    ``weight``, ``recurrent``, ``bias``. Source: Hochreiter and Schmidhuber (1997), as ONNX's LSTM.
    """
    check_input("lstm", x, "x[batch, time, features]", 3, 3)
    check_extents("lstm", hidden=hidden)
    batch, time, features = x.shape
    directions = 2 if direction == "bidirectional" else 1
    fans = (hidden, hidden)
    with scope(name):
        weight = parameter("weight", (directions, 4 * hidden, features), FanIn(), fans=fans, dtype=x.dtype)
        recurrent = parameter("recurrent", (directions, 4 * hidden, hidden), FanIn(), fans=fans, dtype=x.dtype)
        bias = parameter("bias", (directions, 8 * hidden), FanIn(), fans=fans, dtype=x.dtype)
    outputs = LSTM(hidden_size=hidden, direction=direction)(transpose(x, 1, 0, 2), weight, recurrent, bias)
    by_batch = transpose(outputs[0], 2, 0, 1, 3)
    return reshape(by_batch, (batch, time, directions * hidden))


def attention(x: Value, heads: int, *, causal: bool = False, name: str = "attention") -> Value:
    """Multi-head self-attention over x[batch, time, features]; ``causal`` hides later places from earlier ones.

    Variables: ``qkv`` and ``output``, two linear layers. Source: Vaswani et al., Attention Is All You Need (2017), 3.2.
    """
    check_input("attention", x, "x[batch, time, features]", 3, 3)
    check_extents("attention", heads=heads)
    batch, time, features = x.shape
    if features % heads:
        raise ShapeError(f"attention: {features} features do not divide into {heads} heads; x: {x.type}")
    size = features // heads
    with scope(name):
        joined = reshape(linear(x, 3 * features, initializer=Xavier(), name="qkv"), (batch, time, 3, heads, size))
        parts = Split(num_outputs=3, axis=0)(transpose(joined, 2, 0, 3, 1, 4))
        query, key, value = (reshape(part, (batch, heads, time, size)) for part in parts)
        scores = (query @ transpose(key, 0, 1, 3, 2)) * (1.0 / math.sqrt(size))
        if causal:
            scores = Where()(constant(np.tri(time, dtype=np.bool_)), scores, -math.inf)
        mixed = transpose(softmax(scores) @ value, 0, 2, 1, 3)
        return linear(reshape(mixed, (batch, time, features)), features, initializer=Xavier(), name="output")
