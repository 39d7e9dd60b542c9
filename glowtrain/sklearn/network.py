"""The network of an estimator: a model of rows of features, its trainer, and predictions in batches of one size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain import nn
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template, Value
from glowtrain.trainer import Trainer
from glowtrain.types import Array, f32

Model = Callable[[Value, int], Value]
"""From a batch of rows, f32[batch, features], and a number of outputs to f32[batch, outputs]."""


@dataclass(frozen=True)
class Perceptron:
    """Linear layers of these widths with ReLU between them."""

    hidden: tuple[int, ...]

    def __call__(self, x: Value, outputs: int) -> Value:
        """The outputs for a batch of rows."""
        for number, width in enumerate(self.hidden):
            x = nn.relu(nn.linear(x, width, name=f"hidden{number}"))
        return nn.linear(x, outputs, name="output")


@dataclass(frozen=True)
class FeatureNetwork:
    """A model of so many ``features`` with so many ``outputs``; ``settings`` are a trainer's."""

    model: Model
    features: int
    outputs: int
    seed: int
    settings: Mapping[str, Any]

    @cached_property
    def template(self) -> Template:
        """The model, for any batch."""

        def rows(x: Value) -> Value:
            return self.model(x, self.outputs)

        return nn.model(seed=self.seed, x=f32["batch", self.features])(rows)

    @cached_property
    def trainer(self) -> Trainer:
        """What trains it."""
        return Trainer(self.template, seed=self.seed, **self.settings)

    def fit(self, data: tuple[Array, Array, Array], epochs: int, size: int, **settings: Any) -> None:
        """Train on rows, targets and weights, in batches of one size, of which an epoch leaves out what is no whole
        one."""
        self.trainer.fit(data, epochs, min(size, len(data[0])), drop_last=True, **settings)

    def predict(self, x: Array, size: int) -> Array:
        """The outputs for rows, each by itself: batches are filled up, so that one size is compiled."""
        parts = []
        for start in range(0, len(x), size):
            part = x[start : start + size]
            filled = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), part.dtype)])
            (outputs,) = self.trainer.predict({"x": filled}).values()
            parts.append(outputs[: len(part)])
        return np.concatenate(parts)

    def state(self) -> dict[str, Any]:
        """What training has changed."""
        trainer = self.trainer
        return {"variables": trainer.variables(), "hyper": dict(trainer.hyper), "records": trainer.history.records}

    def restored(self, state: Mapping[str, Any]) -> FeatureNetwork:
        """The same network as it was when :meth:`state` was taken."""
        self.trainer.set_variables(state["variables"])
        self.trainer.hyper.update(state["hyper"])
        self.trainer.history.records.extend(state["records"])
        return self


def model_of(model: Model | None, hidden: Sequence[int]) -> Model:
    """A person's own model, or a perceptron. Raises :class:`InputError` for a graph, whose shapes are fixed."""
    if isinstance(model, (Graph, Template)):
        raise InputError(
            f"an estimator makes its network for its data, so its model is a function (x, outputs): {model.name} "
            "without @gt.model, as in def own(x, outputs): return gt.nn.linear(x, outputs)"
        )
    return Perceptron(tuple(hidden)) if model is None else model
