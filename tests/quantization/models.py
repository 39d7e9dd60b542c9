"""Small models with every kind of operator that is quantized, and data for them."""

from __future__ import annotations

import numpy as np

import glowtrain as gt
from glowtrain import nn
from glowtrain.graph import Template, Value, Variable, constant
from glowtrain.ops.contraction.products import Gemm
from glowtrain.ops.convolution.convolution import ConvTranspose
from glowtrain.ops.elementwise.activation import HardSwish, Sigmoid
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.pooling.pooling import AveragePool, GlobalAveragePool
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.move import Concat, Transpose, reshape
from glowtrain.types import Array, f32


def images(count: int = 16, seed: int = 0, size: int = 8, channels: int = 3) -> Array:
    """Smooth random images f32[count, channels, size, size]."""
    draw = np.random.default_rng(seed)
    noise = draw.standard_normal((count, channels, size, size))
    return (noise + np.roll(noise, 1, 2) + np.roll(noise, 1, 3)).astype(np.float32)


def state_of(model: Template, seed: int = 1, **dims: int) -> dict[str, Array]:
    """Values as after some training: running statistics and scales that differ from channel to channel."""
    draw = np.random.default_rng(seed)
    graph = model.bind(dims or {"batch": 2})
    state = {}
    for variable in graph.variables:
        noise = draw.random(variable.shape).astype(np.float32)
        plain = variable.name.endswith((".weight", ".bias")) and "norm" not in variable.name
        state[variable.name] = variable.initial if plain else variable.initial * (0.5 + noise) + 0.1 * noise
    return state


def relu6(x: Value) -> Value:
    result: Value = Clip()(x, constant(0.0, f32), constant(6.0, f32))
    return result


def conv_norm(x: Value, channels: int, kernel: int, name: str, *, stride: int = 1, groups: int = 1) -> Value:
    padding = (kernel - 1) // 2
    x = nn.conv(x, channels, kernel, stride=stride, padding=padding, groups=groups, bias=False, name=f"{name}.conv")
    return nn.batch_norm(x, name=f"{name}.norm")


def mobile() -> Template:
    """Inverted residual blocks with depthwise convolutions and ReLU6, global pooling, a linear layer."""

    @gt.model(x=f32["batch", 3, 8, 8])
    def mobile(x: Value) -> dict[str, Value]:
        x = relu6(conv_norm(x, 8, 3, "stem"))
        for number in (1, 2):
            hidden = relu6(conv_norm(x, 24, 1, f"block{number}.expand"))
            hidden = relu6(conv_norm(hidden, 24, 3, f"block{number}.depthwise", groups=24))
            x = x + conv_norm(hidden, 8, 1, f"block{number}.project")
        pooled = nn.flatten(GlobalAveragePool()(x))
        return {"scores": nn.linear(pooled, 5, name="scores")}

    return mobile


def branches() -> Template:
    """Concatenated branches, average pooling, a transposed convolution, sigmoid gates and a hard swish."""

    @gt.model(x=f32["batch", 3, 8, 8])
    def branches(x: Value) -> dict[str, Value]:
        left = nn.relu(nn.conv(x, 6, 3, padding=1, name="left"))
        right = HardSwish()(nn.conv(x, 6, 1, name="right"))
        joined = Concat(axis=1)(left, right)
        pooled = AveragePool(kernel_shape=(2, 2), strides=(2, 2))(joined)
        gate = Sigmoid()(nn.conv(pooled, 12, 1, name="gate"))
        weight = Variable("up.weight", np.linspace(-1, 1, 12 * 4 * 4, dtype=np.float32).reshape(12, 4, 2, 2))
        grown = ConvTranspose(kernel_shape=(2, 2), strides=(2, 2))(pooled * gate, weight)
        return {"y": nn.conv(grown, 2, 3, padding=1, name="last")}

    return branches


def transformer() -> Template:
    """One block of attention over 6 places of 16 features, two heads, LayerNorm before each part."""

    @gt.model(x=f32["batch", 6, 16])
    def transformer(x: Value) -> dict[str, Value]:
        places = x.shape[1]
        normal = nn.layer_norm(x, name="norm1")

        def heads(name: str) -> Value:
            split = reshape(nn.linear(normal, 16, name=name), (x.shape[0], places, 2, 8))
            result: Value = Transpose((0, 2, 1, 3))(split)
            return result

        scores = (heads("query") @ Transpose((0, 1, 3, 2))(heads("key"))) * 0.35
        mixed = Transpose((0, 2, 1, 3))(Softmax()(scores) @ heads("value"))
        x = x + nn.linear(reshape(mixed, x.shape), 16, name="out")
        hidden = nn.gelu(nn.linear(nn.layer_norm(x, name="norm2"), 32, name="up"))
        x = x + nn.linear(hidden, 16, name="down")
        return {"scores": nn.linear(reshape(x, (x.shape[0], places * 16)), 4, name="scores")}

    return transformer


def matrices(weight: Array, *, transposed: bool = False) -> Template:
    """One Gemm with a given weight [in, out]."""
    stored = Variable("weight", np.ascontiguousarray(weight.T if transposed else weight))

    @gt.model(x=f32["batch", weight.shape[0]])
    def matrices(x: Value) -> dict[str, Value]:
        return {"y": Gemm(transB=transposed)(x, stored)}

    return matrices


def chain(hidden: int = 8, seed: int = 0) -> Template:
    """Two Gemm with a ReLU between, on 4 features."""
    draw = np.random.default_rng(seed)
    first = Variable("first.weight", draw.standard_normal((4, hidden)).astype(np.float32))
    last = Variable("last.weight", draw.standard_normal((hidden, 3)).astype(np.float32))

    @gt.model(x=f32["batch", 4])
    def chain(x: Value) -> dict[str, Value]:
        return {"y": Gemm()(nn.relu(Gemm()(x, first)), last)}

    return chain


def rows(count: int = 16) -> Array:
    """Examples for :func:`chain`."""
    return np.random.default_rng(0).standard_normal((count, 4)).astype(np.float32)
