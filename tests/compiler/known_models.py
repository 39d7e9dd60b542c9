"""A model in a file, and the training runs of it that the tests of kept graphs compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain.graph import Value

SHAPE = 6, 5
BATCH = {
    "x": np.random.default_rng(1).integers(0, 7, SHAPE),
    "labels": np.random.default_rng(2).integers(0, 3, SHAPE[0]),
}
SPECIFIED = {"batch": SHAPE[0]}


@gt.model(x=gt.i64["batch", SHAPE[1]])
def network(x: Value) -> Value:
    """With indices, statistics that a step updates, and dropout, whose counter is state."""
    hidden = gt.nn.reshape(gt.nn.embedding(x, 7, 4, name="words"), (x.shape[0], 4 * SHAPE[1]))
    hidden = gt.nn.relu(gt.nn.batch_norm(gt.nn.linear(hidden, 8, name="hidden"), name="norm"))
    return gt.nn.linear(gt.nn.dropout(hidden, 0.25), 3, name="scores")


@dataclass(frozen=True)
class Run:
    """A training run: how the model is loaded, and how it is trained."""

    loading: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def trainer(self, path: Path) -> gt.Trainer:
        own = {"loss": gt.losses.softmax_cross_entropy(), "optimizer": gt.optim.Adam(lr=0.01), "threads": 1}
        return gt.Trainer(gt.load(path, **self.loading), **{**own, **self.settings})

    def outcome(self, path: Path) -> tuple[list[float], dict[str, bytes]]:
        """Losses of two steps, and all variables after them."""
        trainer = self.trainer(path)
        losses = [trainer.step(BATCH), trainer.step(BATCH)]
        return losses, {name: array.tobytes() for name, array in trainer.variables().items()}


PLAIN, BOUND = Run(), Run({"dims": SPECIFIED})
