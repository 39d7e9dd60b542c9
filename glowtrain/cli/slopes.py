"""A quick look at a trainer's compiled gradients: slopes along random directions, against differences in f64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.grad.training import LOSS
from glowtrain.graph import Graph
from glowtrain.graph.retype import widened
from glowtrain.trainer import Trainer
from glowtrain.types import Array

STEP = 1e-7
"""Small, so that hardly any ReLU changes sides between the two ends; rounding in f64 leaves eight digits all the same."""


def gradient_errors(trainer: Trainer, model: Graph, batch: Mapping[str, Array], seed: int = 0) -> dict[str, float]:
    """For each trained parameter, how far the compiled gradient is from numerical differentiation, over its norm.

    ``model`` is the trainer's model bound for ``batch``. One random direction d a parameter: the gradient's slope along
    it, against (loss(p + h d) - loss(p - h d)) / 2h, in double precision by the interpreter.
    """
    step = trainer.forms.step_of(model)
    loss = widened(step.with_(outputs={LOSS: step.outputs[LOSS]}, updates={})).graph
    inputs = {value.name: _wide(batch.get(value.name, np.zeros(value.shape))) for value in loss.inputs}
    state = {name: _wide(array) for name, array in trainer.variables().items()}
    random = np.random.default_rng(seed)

    def slope(name: str, direction: Array) -> float:
        ends = (state[name] + STEP * direction, state[name] - STEP * direction)
        up, down = (evaluate(loss, inputs, {**state, name: end})[loss.outputs[LOSS]] for end in ends)
        return float(up - down) / (2 * STEP)

    errors = {}
    for name, gradient in trainer.gradients(batch).items():
        direction = random.standard_normal(gradient.shape)
        error = abs(slope(name, direction) - float(np.vdot(gradient, direction)))
        errors[name] = error / max(float(np.linalg.norm(gradient)), 1e-12)
    return errors


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
