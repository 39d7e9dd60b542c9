"""The six small models that the kit verifies and trains, with batches for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from glowtrain import nn
from glowtrain.backends.base import Backend
from glowtrain.data import digits
from glowtrain.graph import Graph, Template, Value
from glowtrain.losses import softmax_cross_entropy
from glowtrain.models import build
from glowtrain.optim import Adam
from glowtrain.trainer import Trainer
from glowtrain.types import Array, f32, i64

IMAGE = (1, 8, 8)
BATCH = 16

assert_near = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
"""Losses, predictions and variables are the CPU's but for rounding, which grows from step to step."""


@nn.model(x=f32["batch", *IMAGE])
def mlp(x: Value) -> Value:
    """Linear layers."""
    return nn.linear(nn.relu(nn.linear(nn.flatten(x), 24, name="hidden")), 10, name="head")


@nn.model(x=f32["batch", *IMAGE])
def digits_cnn(x: Value) -> Value:
    """A convolution, batch normalization, pooling and dropout: running statistics, and random numbers."""
    x = nn.relu(nn.batch_norm(nn.conv(x, 8, 3, padding=1)))
    return nn.linear(nn.dropout(nn.flatten(nn.max_pool(x, 2)), 0.2), 10)


@nn.model(x=f32["batch", 7, 6])
def lstm(x: Value) -> Value:
    """A recurrence: a program with repeats."""
    return nn.linear(nn.mean(nn.lstm(x, 8), axes=1), 10)


@nn.model(x=i64["batch", 9])
def gpt(x: Value) -> Value:
    """Tokens, whose gradient is a scatter; attention and layer normalization."""
    h = nn.embedding(x, 11, 16)
    h = h + nn.attention(nn.layer_norm(h), 2, causal=True)
    h = h + nn.linear(nn.gelu(nn.linear(nn.layer_norm(h), 32)), 16)
    return nn.linear(nn.mean(h, axes=1), 10)


def image_batch(number: int) -> dict[str, Array]:
    """Digits that come along, from one after those of the batch before."""
    data, rows = digits(), slice(number * BATCH, (number + 1) * BATCH)
    return {"x": data.x[rows], "labels": data.y[rows]}


def sequence_batch(number: int) -> dict[str, Array]:
    """Sequences at random."""
    random = np.random.default_rng(number)
    return {"x": random.normal(size=(8, 7, 6)).astype(np.float32), "labels": random.integers(0, 10, 8)}


def token_batch(number: int) -> dict[str, Array]:
    """Tokens at random."""
    random = np.random.default_rng(number)
    return {"x": random.integers(0, 11, (8, 9)), "labels": random.integers(0, 10, 8)}


@dataclass(frozen=True)
class KitModel:
    """A model of 10 classes, and its batches by number: arrays ``x`` and ``labels``."""

    template: Template
    batch: Callable[[int], dict[str, Array]]

    def trainer(self, backend: str | Backend) -> Trainer:
        """A new trainer, which begins with the same weights each time."""
        return Trainer(self.template, softmax_cross_entropy(), Adam(2e-3), backend=backend)

    def step(self) -> Graph:
        """The training step for four examples."""
        return self.trainer("interpreter").graphs.step_of(self.template.bind({"batch": 4}))


MODELS = {
    "mlp": KitModel(mlp, image_batch),
    "digits_cnn": KitModel(digits_cnn, image_batch),
    "lstm": KitModel(lstm, sequence_batch),
    "gpt": KitModel(gpt, token_batch),
    "mobilenet": KitModel(build("mobilenet", IMAGE), image_batch),
    "transformer": KitModel(build("transformer", IMAGE), image_batch),
}
"""By name."""
