"""The six peer models in plain JAX: one jit-compiled training step each, with the parameters of the PyTorch module.

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
import numpy as np
from jax import Array, lax
from torch import nn

Arrays = dict[str, Array]

BN_MOMENTUM, BN_EPSILON, LN_EPSILON = 0.1, 1e-5, 1e-5


class Net:
    """Layers by name over a dict of parameters; ``moved`` collects the running statistics that a forward pass moves."""

    def __init__(self, parameters: Arrays, statistics: Arrays, convolutions: dict[str, tuple[int, int]]) -> None:
        self.parameters = parameters
        self.statistics = statistics
        self.convolutions = convolutions
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
        """A "same" convolution of x [n, h, w, c] with the stride and groups of the PyTorch layer."""
        weight = self.parameters[f"{name}.weight"]
        stride, groups = self.convolutions[name]
        pad = weight.shape[0] // 2
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

    def embedding(self, tokens: Array, name: str) -> Array:
        """Rows of a table."""
        return self.parameters[f"{name}.weight"][tokens]


def mlp(net: Net, x: Array) -> Array:
    """Linear layers with ReLU between them."""
    names = sorted({name.rsplit(".", 1)[0] for name in net.parameters}, key=lambda name: int(name.split(".")[1]))
    for name in names[:-1]:
        x = jax.nn.relu(net.linear(x, name))
    return net.linear(x, names[-1])


def cnn(net: Net, x: Array) -> Array:
    """Two conv-BatchNorm-ReLU-pool stages, a convolution and a linear head."""
    x = _channels_last(x)
    x = jax.nn.relu(net.batch_norm(net.conv(x, "conv1"), "bn1"))
    x = _pool(x, -jnp.inf, lax.max)
    x = jax.nn.relu(net.batch_norm(net.conv(x, "conv2"), "bn2"))
    x = _pool(x, 0.0, lax.add) / 4
    x = jax.nn.relu(net.conv(x, "conv3"))
    return net.linear(x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1), "head")


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
    """MobileNetV2 for 32x32 images."""
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


def _pool(x: Array, start: float, combine: Callable[[Any, Any], Any]) -> Array:
    result: Array = lax.reduce_window(x, start, combine, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
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


def gpt(net: Net, tokens: Array, heads: int) -> Array:
    """Pre-norm decoder-only transformer with causal attention written out."""
    x = net.embedding(tokens, "tokens") + net.parameters["positions.weight"][: tokens.shape[1]]
    block = 0
    while net.has(f"blocks.{block}.up"):
        name = f"blocks.{block}"
        x = x + _attention(net, net.layer_norm(x, f"{name}.ln1"), f"{name}.attention", heads)
        y = jax.nn.gelu(net.linear(net.layer_norm(x, f"{name}.ln2"), f"{name}.up"), approximate=False)
        x = x + net.linear(y, f"{name}.down")
        block += 1
    return net.linear(net.layer_norm(x, "norm"), "head")


def _attention(net: Net, x: Array, name: str, heads: int) -> Array:
    batch, time, width = x.shape
    split = (batch, time, heads, width // heads)
    parts = jnp.split(net.linear(x, f"{name}.qkv"), 3, axis=-1)
    q, k, v = (part.reshape(split).transpose(0, 2, 1, 3) for part in parts)
    scores = (q @ k.transpose(0, 1, 3, 2)) * (1.0 / math.sqrt(width // heads))
    scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -jnp.inf)
    merged = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, time, width)
    return net.linear(merged, f"{name}.out")


FORWARD: dict[str, Callable[..., Array]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet20": resnet20,
    "mobilenetv2": mobilenetv2,
    "lstm": lstm,
    "gpt": gpt,
}
"""From a :class:`Net` and a batch's inputs to logits."""


class JaxTrainer:
    """A PyTorch module of ``models`` as a jit-compiled step of SGD with momentum, to which its arrays are donated."""

    def __init__(self, name: str, module: Any, lr: float, momentum: float) -> None:
        self.convolutions = {
            path: (layer.stride[0], layer.groups)
            for path, layer in module.named_modules()
            if isinstance(layer, nn.Conv2d)
        }
        self.parameters = {path: self._array(path, value) for path, value in module.named_parameters()}
        self.statistics = {
            path: jnp.asarray(np.array(value.numpy())) for path, value in module.named_buffers() if ".running_" in path
        }
        self.velocity = {path: jnp.zeros_like(value) for path, value in self.parameters.items()}
        heads = {"heads": module.config.heads} if name == "gpt" else {}
        self._step = jax.jit(self._update(FORWARD[name], heads, lr, momentum), donate_argnums=(0, 1, 2))

    def step(self, x: np.ndarray, labels: np.ndarray) -> float:
        """Train on one batch; the loss from before the update."""
        self.parameters, self.velocity, self.statistics, loss = self._step(
            self.parameters, self.velocity, self.statistics, x, labels
        )
        return float(loss)

    def _array(self, path: str, value: nn.Parameter) -> Array:
        array = np.array(value.detach().numpy())
        is_kernel = path.removesuffix(".weight") in self.convolutions and array.ndim == 4
        return jnp.asarray(array.transpose(2, 3, 1, 0) if is_kernel else array)

    def _update(
        self, forward: Callable[..., Array], static: dict[str, int], lr: float, momentum: float
    ) -> Callable[..., tuple[Arrays, Arrays, Arrays, Array]]:
        def loss_of(parameters: Arrays, statistics: Arrays, x: Array, labels: Array) -> tuple[Array, Arrays]:
            net = Net(parameters, statistics, self.convolutions)
            logits = forward(net, x, **static)
            scores = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]))
            return -jnp.take_along_axis(scores, labels.reshape(-1, 1), axis=1).mean(), net.moved

        def update(
            parameters: Arrays, velocity: Arrays, statistics: Arrays, x: Array, labels: Array
        ) -> tuple[Arrays, Arrays, Arrays, Array]:
            (loss, moved), found = jax.value_and_grad(loss_of, has_aux=True)(parameters, statistics, x, labels)
            velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, found)
            return jax.tree.map(lambda p, v: p - lr * v, parameters, velocity), velocity, moved, loss

        return update
