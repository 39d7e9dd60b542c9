"""The networks that are swept, built with ``gt.nn``, with the multiply-adds of a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import glowtrain as gt
from benchmarks.speed.sweep.axes import CLASSES, HEAD, Size
from glowtrain import Template, Value

Arrays = dict[str, np.ndarray]
PASSES = 3
"""Forward, and two products of the same size backward."""


@dataclass(frozen=True)
class Family:
    """A kind of network: how to build one of a size, what goes in, and the multiply-adds of its forward pass."""

    build: Callable[[Size], Template]
    feeds: Callable[[Size], Arrays]
    forward: Callable[[Size], int] = field(repr=False)

    def work(self, size: Size) -> int:
        """Multiply-adds of the contractions of a training step."""
        return PASSES * self.forward(size)


def _mlp(size: Size) -> Template:
    @gt.model(x=gt.f32[size.batch, size.width])
    def mlp(x: Value) -> Value:
        for _ in range(size.depth):
            x = gt.nn.relu(gt.nn.linear(x, size.width))
        return gt.nn.linear(x, CLASSES)

    return mlp


def _transformer(size: Size) -> Template:
    @gt.model(x=gt.i64[size.batch, size.sequence])
    def transformer(x: Value) -> Value:
        x = gt.nn.embedding(x, CLASSES, size.width)
        for _ in range(size.depth):
            x = x + gt.nn.attention(gt.nn.layer_norm(x), size.width // HEAD, causal=True)
            hidden = gt.nn.gelu(gt.nn.linear(gt.nn.layer_norm(x), 4 * size.width))
            x = x + gt.nn.linear(hidden, size.width)
        return gt.nn.linear(gt.nn.layer_norm(x), CLASSES)

    return transformer


def _lstm(size: Size) -> Template:
    @gt.model(x=gt.f32[size.batch, size.sequence, size.width])
    def lstm(x: Value) -> Value:
        for _ in range(size.depth):
            x = x + gt.nn.lstm(x, size.width)  # without the sum gradients of 48 layers are too small for normal floats
        return gt.nn.linear(x, CLASSES)

    return lstm


def _rows(size: Size) -> Arrays:
    random = np.random.default_rng(0)
    x = random.standard_normal((size.batch, size.width)).astype(np.float32)
    return {"x": x, "labels": random.integers(0, CLASSES, size.batch)}


def _tokens(size: Size) -> Arrays:
    text = np.random.default_rng(0).integers(0, CLASSES, (size.batch, size.sequence + 1))
    return {"x": text[:, :-1].copy(), "labels": text[:, 1:].copy()}


def _series(size: Size) -> Arrays:
    random = np.random.default_rng(0)
    x = random.standard_normal((size.batch, size.sequence, size.width)).astype(np.float32)
    return {"x": x, "labels": random.integers(0, CLASSES, (size.batch, size.sequence))}


def _mlp_work(size: Size) -> int:
    return size.batch * size.width * (size.depth * size.width + CLASSES)


def _transformer_work(size: Size) -> int:
    layer = 12 * size.width**2 + 2 * size.sequence * size.width
    return size.batch * size.sequence * (size.depth * layer + size.width * CLASSES)


def _lstm_work(size: Size) -> int:
    return size.batch * size.sequence * size.width * (8 * size.depth * size.width + CLASSES)


FAMILIES = {
    "mlp": Family(_mlp, _rows, _mlp_work),
    "transformer": Family(_transformer, _tokens, _transformer_work),
    "lstm": Family(_lstm, _series, _lstm_work),
}
"""By the names of :mod:`benchmarks.speed.sweep.axes`."""
