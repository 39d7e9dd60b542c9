"""The models of the training rows in plain JAX, over the parameters of the PyTorch modules.

Images are channels last inside and convolutions [kh, kw, in / groups, out], which is what XLA's CPU convolutions are
written for; everything else keeps PyTorch's names and shapes. BatchNorm updates its running statistics as PyTorch does,
so that all engines do the same work in a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Arrays = dict[str, Array]

BN_MOMENTUM, BN_EPSILON, LN_EPSILON, GN_EPSILON = 0.1, 1e-5, 1e-5, 1e-5
FUNCTIONS = (jnp.log, jnp.tanh, jax.nn.sigmoid, lax.erf, jax.nn.mish)
MANY, STATES = 10, 60


class Net:
    """Layers by name over a dict of parameters; ``moved`` collects the running statistics that a forward pass moves."""

    def __init__(self, parameters: Arrays, statistics: Arrays, layers: dict[str, Any]) -> None:
        self.parameters = parameters
        self.statistics = statistics
        self.convolutions: dict[str, tuple[int, int, int]] = layers["convolutions"]
        self.heads: int = layers["heads"]
        self.moved: Arrays = {}

    def has(self, name: str) -> bool:
        """Whether a layer of this name has parameters."""
        return f"{name}.weight" in self.parameters

    def linear(self, x: Array, name: str) -> Array:
        """x W^T + b, W [out, in]."""
        y = x @ self.parameters[f"{name}.weight"].T
        bias = self.parameters.get(f"{name}.bias")
        return y if bias is None else y + bias

    def conv(self, x: Array, name: str) -> Array:
        """A convolution of x [n, h, w, c] with the stride, groups and padding of the PyTorch layer."""
        weight = self.parameters[f"{name}.weight"]
        stride, groups, pad = self.convolutions[name]
        y = lax.conv_general_dilated(
            x, weight, (stride, stride), ((pad, pad), (pad, pad)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
        )  # fmt: skip
        bias = self.parameters.get(f"{name}.bias")
        return y if bias is None else y + bias

    def batch_norm(self, x: Array, name: str) -> Array:
        """Training form over all axes but the last; the running variance is the unbiased one."""
        axes = tuple(range(x.ndim - 1))
        count = math.prod(x.shape[:-1])
        mean = x.mean(axes)
        variance = jnp.square(x - mean).mean(axes)
        for suffix, value in (("running_mean", mean), ("running_var", variance * (count / (count - 1)))):
            old = self.statistics[f"{name}.{suffix}"]
            self.moved[f"{name}.{suffix}"] = old + BN_MOMENTUM * (lax.stop_gradient(value) - old)
        scale = self.parameters[f"{name}.weight"] * lax.rsqrt(variance + BN_EPSILON)
        return (x - mean) * scale + self.parameters[f"{name}.bias"]

    def layer_norm(self, x: Array, name: str) -> Array:
        """Over the last axis."""
        centred = x - x.mean(-1, keepdims=True)
        scale = lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + LN_EPSILON)
        return centred * scale * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]

    def group_norm(self, x: Array, name: str, groups: int) -> Array:
        """x [n, h, w, c], normalized over each group of channels."""
        split = x.reshape(*x.shape[:3], groups, -1)
        centred = split - split.mean((1, 2, 4), keepdims=True)
        scale = lax.rsqrt(jnp.square(centred).mean((1, 2, 4), keepdims=True) + GN_EPSILON)
        return (centred * scale).reshape(x.shape) * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]

    def embedding(self, tokens: Array, name: str) -> Array:
        """Rows of a table."""
        return self.parameters[f"{name}.weight"][tokens]


def mlp(net: Net, x: Array, activation: Callable[[Array], Array] = jax.nn.relu) -> Array:
    """Linear layers with an activation between them."""
    names = sorted({name.rsplit(".", 1)[0] for name in net.parameters}, key=lambda name: int(name.split(".")[1]))
    for name in names[:-1]:
        x = activation(net.linear(x, name))
    return net.linear(x, names[-1])


def tiny(net: Net, x: Array) -> Array:
    """Linear layers with tanh between them."""
    return mlp(net, x, jnp.tanh)


def cnn(net: Net, x: Array) -> Array:
    """Two convolutions, a pooling, and two linear layers."""
    x = jax.nn.relu(net.conv(_channels_last(x), "conv1"))
    x = _max_pool(jax.nn.relu(net.conv(x, "conv2")))
    x = jax.nn.relu(net.linear(x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1), "hidden"))
    return net.linear(x, "head")


def resnet20(net: Net, x: Array) -> Array:
    """CIFAR ResNet-20."""
    x = jax.nn.relu(net.batch_norm(net.conv(_channels_last(x), "stem.0"), "stem.1"))
    block = 0
    while net.has(name := f"blocks.{block}.conv1"):
        name = name.removesuffix(".conv1")
        y = jax.nn.relu(net.batch_norm(net.conv(x, f"{name}.conv1"), f"{name}.bn1"))
        y = net.batch_norm(net.conv(y, f"{name}.conv2"), f"{name}.bn2")
        if net.has(f"{name}.shortcut.0"):
            x = net.batch_norm(net.conv(x, f"{name}.shortcut.0"), f"{name}.shortcut.1")
        x = jax.nn.relu(y + x)
        block += 1
    return net.linear(x.mean((1, 2)), "head")


def mobilenetv2(net: Net, x: Array) -> Array:
    """MobileNetV2."""
    x = _conv_bn(net, _channels_last(x), "features.0")
    block = 1
    while net.has(f"features.{block}.body.0.0"):
        x = _inverted_residual(net, x, f"features.{block}.body")
        block += 1
    return net.linear(_conv_bn(net, x, f"features.{block}").mean((1, 2)), "head")


def _inverted_residual(net: Net, x: Array, name: str) -> Array:
    last = 2 if net.has(f"{name}.2.0") else 1
    y = x
    for layer in range(last):
        y = _conv_bn(net, y, f"{name}.{layer}")
    y = net.batch_norm(net.conv(y, f"{name}.{last}.0"), f"{name}.{last}.1")
    return x + y if x.shape == y.shape else y


def _conv_bn(net: Net, x: Array, name: str) -> Array:
    return jax.nn.relu6(net.batch_norm(net.conv(x, f"{name}.0"), f"{name}.1"))


def _channels_last(x: Array) -> Array:
    return x.transpose(0, 2, 3, 1)


def _max_pool(x: Array) -> Array:
    result: Array = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return result


def lstm(net: Net, tokens: Array) -> Array:
    """Embedding, one LSTM layer as a scan over time, and a head on the last state."""
    p = net.parameters
    x = net.embedding(tokens, "embed").transpose(1, 0, 2)
    gates = x @ p["lstm.weight_ih_l0"].T + (p["lstm.bias_ih_l0"] + p["lstm.bias_hh_l0"])
    recurrent = p["lstm.weight_hh_l0"].T

    def cell(state: tuple[Array, Array], gate: Array) -> tuple[tuple[Array, Array], None]:
        h, c = state
        i, f, g, o = jnp.split(gate + h @ recurrent, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros((tokens.shape[0], recurrent.shape[0]), x.dtype)
    (h, _), _ = lax.scan(cell, (zero, zero), gates)
    return net.linear(h, "head")


def gpt(net: Net, tokens: Array) -> Array:
    """Pre-norm decoder-only transformer with causal attention written out."""
    x = net.embedding(tokens, "tokens") + net.parameters["positions.weight"][: tokens.shape[1]]
    block = 0
    while net.has(f"blocks.{block}.up"):
        name = f"blocks.{block}"
        y = _attention(net, net.layer_norm(x, f"{name}.ln1"), f"{name}.attention.", causal=True)
        x = _transformer_mlp(net, x + y, name)
        block += 1
    return net.linear(net.layer_norm(x, "norm"), "head")


def vit(net: Net, x: Array) -> Array:
    """Vision transformer with a mean in place of a class token."""
    x = net.conv(_channels_last(x), "patches")
    x = x.reshape(x.shape[0], -1, x.shape[-1]) + net.parameters["positions"]
    block = 0
    while net.has(f"blocks.{block}.up"):
        name = f"blocks.{block}"
        x = x + _attention(net, net.layer_norm(x, f"{name}.ln1"), f"{name}.", causal=False)
        x = _transformer_mlp(net, x, name)
        block += 1
    return net.linear(net.layer_norm(x, "norm").mean(1), "head")


def _transformer_mlp(net: Net, x: Array, name: str) -> Array:
    y = jax.nn.gelu(net.linear(net.layer_norm(x, f"{name}.ln2"), f"{name}.up"), approximate=False)
    return x + net.linear(y, f"{name}.down")


def _attention(net: Net, x: Array, prefix: str, *, causal: bool) -> Array:
    batch, time, width = x.shape
    size = width // net.heads
    parts = jnp.split(net.linear(x, f"{prefix}qkv"), 3, axis=-1)
    q, k, v = (part.reshape(batch, time, net.heads, size).transpose(0, 2, 1, 3) for part in parts)
    scores = (q @ k.transpose(0, 1, 3, 2)) * (1.0 / math.sqrt(size))
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -jnp.inf)
    merged = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, time, width)
    return net.linear(merged, f"{prefix}out")


def segmentation(net: Net, x: Array) -> Array:
    """U-Net of two levels, up by a transposed convolution and by linear interpolation."""
    one = _stage(net, _channels_last(x), "enter")
    two = _stage(net, _max_pool(one), "down")
    up = _doubled(net, _stage(net, _max_pool(two), "bottom"), "raise_")
    up = _stage(net, jnp.concatenate((up, two), -1), "merge")
    up = jax.image.resize(up, (*one.shape[:3], up.shape[-1]), "linear")
    return net.conv(_stage(net, jnp.concatenate((up, one), -1), "last"), "out")


def _stage(net: Net, x: Array, name: str) -> Array:
    return jax.nn.silu(net.group_norm(net.conv(x, f"{name}.0"), f"{name}.1", 4))


def _doubled(net: Net, x: Array, name: str) -> Array:
    """A transposed convolution of stride 2 with a 2×2 kernel in PyTorch's layout [in, out, kh, kw]."""
    kernel = net.parameters[f"{name}.weight"][:, :, ::-1, ::-1].transpose(2, 3, 0, 1)
    y = lax.conv_transpose(x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + net.parameters[f"{name}.bias"]


def scan(net: Net, x: Array) -> Array:
    """Scalar states that each follow their neighbour and a common input: their mean at each step."""
    start, neighbour, own = (net.parameters[name] for name in ("start", "neighbour", "own"))

    def step(states: tuple[Array, ...], drive: Array) -> tuple[tuple[Array, ...], Array]:
        pairs = enumerate(zip(states, (*states[1:], states[0]), strict=True))
        following = tuple(s + 0.1 * (jnp.tanh(neighbour[i] * n + own[i] * s + drive) - s) for i, (s, n) in pairs)
        return following, sum(following, jnp.zeros(())) / STATES

    _, means = lax.scan(step, tuple(start[i] for i in range(STATES)), x)
    return means


def cumprod(net: Net, x: Array) -> Array:
    """The mean of cumulative products along rows."""
    return jnp.cumprod(net.parameters["scale"] * x, axis=1).mean()


def elementwise(net: Net, x: Array) -> Array:
    """The mean of five functions."""
    v = x * net.parameters["scale"]
    return sum((function(v) for function in FUNCTIONS), jnp.zeros(())).mean()


def adam(net: Net, x: Array) -> Array:
    """The sum of the means of squares, times x."""
    return (sum(jnp.square(net.parameters[f"weights.{i}"]).mean() for i in range(MANY)) * x).sum()


FORWARD: dict[str, Callable[[Net, Array], Array]] = {
    "tiny": tiny,
    "mlp": mlp,
    "cnn": cnn,
    "resnet20": resnet20,
    "mobilenetv2": mobilenetv2,
    "lstm": lstm,
    "gpt": gpt,
    "vit": vit,
    "segmentation": segmentation,
    "scan": scan,
    "cumprod": cumprod,
    "elementwise": elementwise,
    "adam": adam,
}
"""From a :class:`Net` and a batch's inputs to outputs, by the rows' names."""
