"""Small trainers of all kinds, with batches for them, that the tests of this folder make bundles of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

import glowtrain as gt
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.optim import Optimizer
from glowtrain.types import Array, DType
from tests.compiler.networks import cnn, gpt, lstm, mlp

BATCH = 4
Batch = Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    """A trainer, and a function that draws a batch for it."""

    trainer: gt.Trainer
    batch: Callable[[np.random.Generator], Batch]


def classifier(model: object, *shape: int, optimizer: Optimizer | None = None, whole: bool = False) -> Case:
    """A model of ten classes for inputs x of a shape."""

    def batch(random: np.random.Generator) -> Batch:
        x = random.integers(0, 10, (BATCH, *shape)) if whole else random.normal(size=(BATCH, *shape))
        return {"x": x if whole else x.astype(np.float32), "labels": random.integers(0, 10, BATCH)}

    return Case(gt.Trainer(model, "softmax_cross_entropy", optimizer or gt.optim.Adam(1e-2)), batch)


def linear(dtype: DType) -> Case:
    """A linear layer in a float type, with momentum."""

    @gt.model(x=dtype["batch", 5])
    def layer(x: Value) -> Value:
        return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 7)), 3)

    target = dtype.numpy if dtype.size > 2 else np.float32

    def batch(random: np.random.Generator) -> Batch:
        x, y = random.normal(size=(BATCH, 5)), random.normal(size=(BATCH, 3))
        return {"x": x.astype(dtype.numpy), "target": y.astype(target)}

    return Case(gt.Trainer(layer, "mse", gt.optim.SGD(0.1, momentum=0.9)), batch)


def several() -> Case:
    """Several inputs and outputs, whose names say nothing in C; a variable without axes; names that C reserves."""
    random = np.random.default_rng(7)
    first, second = Input(gt.f32[BATCH, 3], "first/input*/"), Input(gt.f32[BATCH, 3], "int")
    scale = Variable("scale", np.float32(1.5))
    weight = Variable('w "0" */ %d \\', random.normal(size=(3, 3)).astype(np.float32))
    hidden = Tanh()(first @ weight) * scale
    error = hidden - second
    loss = gt.nn.mean(error * error)
    outputs = {'the "loss" %s */ \\': loss, "1st": hidden, "class": error}
    graph = Graph((first, second), outputs, {}, name="two-sides of 1")

    def batch(random: np.random.Generator) -> Batch:
        return {name: random.normal(size=(BATCH, 3)).astype(np.float32) for name in ("first/input*/", "int")}

    return Case(gt.Trainer(graph, 'the "loss" %s */ \\', gt.optim.AdamW(1e-2)), batch)


def frozen() -> Case:
    """A convolution whose weights stay, and a head that is trained."""

    def images(random: np.random.Generator) -> Batch:
        x = random.normal(size=(BATCH, 1, 12, 12)).astype(np.float32)
        return {"x": x, "labels": random.integers(0, 10, BATCH)}

    trainer = gt.Trainer(
        cnn, "softmax_cross_entropy", gt.optim.SGD(0.1), trainable=["linear.*"], freeze_statistics=True
    )
    return Case(trainer, images)


CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: classifier(mlp, 1, 8, 8),
    "mlp, clipped": lambda: classifier(mlp, 1, 8, 8, optimizer=gt.optim.SGD(0.1, clip_norm=0.1, weight_decay=0.01)),
    "mlp, accumulated": lambda: classifier(mlp, 1, 8, 8, optimizer=gt.optim.RMSProp(1e-2, accumulate=2)),
    "mlp, nadam": lambda: classifier(mlp, 1, 8, 8, optimizer=gt.optim.NAdam(1e-2)),
    "cnn": lambda: classifier(cnn, 1, 12, 12),
    "cnn, muon": lambda: classifier(cnn, 1, 12, 12, optimizer=gt.optim.Muon(1e-2)),
    "lstm": lambda: classifier(lstm, 7, 6),
    "gpt": lambda: classifier(gpt, 9, whole=True),
    "frozen": frozen,
    "f64": lambda: linear(gt.f64),
    "f16": lambda: linear(gt.f16),
    "bf16": lambda: linear(gt.bf16),
    "several": several,
}
"""Makers of trainers by what is tested of them."""
