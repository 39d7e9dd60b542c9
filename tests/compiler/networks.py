"""Small models and training steps that the tests of this folder compile."""

from __future__ import annotations

from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain.graph import Graph, Value
from glowtrain.kit.models import gpt, lstm, mlp
from glowtrain.types import Array


def step_of(model: Any, optimizer: Any = None, **data: Array) -> tuple[Graph, dict[str, Array]]:
    """The training step of a model of classes for a batch, and inputs for it."""
    trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), optimizer or gt.optim.Adam(1e-2))
    graph = trainer.graphs.step_of(trainer.graphs.model.bind({"batch": len(data["labels"])}))
    hyper = {v.name: np.asarray(1e-2, v.dtype.numpy) for v in graph.inputs if v.name not in data}
    return graph, {**data, **hyper}


def training_step() -> tuple[Graph, dict[str, Array]]:
    """That of the :func:`mlp` for eight digits."""
    random = np.random.default_rng(0)
    return step_of(mlp, x=random.normal(size=(8, 1, 8, 8)).astype(np.float32), labels=random.integers(0, 10, 8))


@gt.model(x=gt.f32["batch", 1, 12, 12])
def cnn(x: Value) -> Value:
    x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 8, 3, padding=1)))
    return gt.nn.linear(gt.nn.dropout(gt.nn.flatten(gt.nn.max_pool(x, 2))), 10)


def steps() -> dict[str, tuple[Graph, dict[str, Array]]]:
    """Training steps of all four by name, with inputs."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 4)
    images = random.normal(size=(4, 1, 12, 12)).astype(np.float32)
    return {
        "mlp": training_step(),
        "cnn": step_of(cnn, x=images, labels=labels),
        "lstm": step_of(lstm, x=random.normal(size=(4, 7, 6)).astype(np.float32), labels=labels),
        "gpt": step_of(gpt, gt.optim.AdamW(1e-2), x=random.integers(0, 11, (4, 9)), labels=labels),
    }
