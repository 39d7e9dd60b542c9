"""JAX: forward, backward and update as one function under ``jit``, to which its arrays are donated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.speed.prepared import Arrays, Prepared
from benchmarks.speed.training import rows
from benchmarks.speed.training.jax_forward import FORWARD, Net
from benchmarks.speed.training.rows import TrainingRow
from benchmarks.speed.turns import Step

Tree = Any
Rule = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
"""From parameters, their gradients and the optimizer's state to new parameters and state."""
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class JaxStep(Step):
    """A row's model. Tokens and labels are i32: JAX has no i64 unless asked."""

    def __init__(self, row: TrainingRow, prepared: Prepared) -> None:
        self.row, self.layers = row, prepared.layers
        self.batches = [{name: _narrow(array) for name, array in batch.items()} for batch in prepared.batches]
        parameters = {name: self._parameter(name, array) for name, array in prepared.parameters.items()}
        statistics = {name: jnp.asarray(array) for name, array in prepared.statistics.items()}
        self.state: Tree = (parameters, optimizer_state(row, parameters), statistics)
        self._update = jax.jit(self._updated, donate_argnums=0)

    def __call__(self, i: int) -> float:
        if self.row.calls > 1:
            return sum(map(self._step, self.batches)) / len(self.batches)
        return self._step(self.batches[i % len(self.batches)])

    def _step(self, batch: Arrays) -> float:
        self.state, loss = self._update(self.state, batch)
        return float(loss)

    def _parameter(self, name: str, array: np.ndarray) -> Array:
        """Kernels of convolutions as [kh, kw, in / groups, out]."""
        is_kernel = name.removesuffix(".weight") in self.layers["convolutions"] and array.ndim == 4
        return jnp.asarray(array.transpose(2, 3, 1, 0) if is_kernel else array)

    def _updated(self, state: Tree, batch: dict[str, Array]) -> tuple[Tree, Array]:
        parameters, slots, statistics = state
        of_parameters = jax.value_and_grad(self._loss, has_aux=True)
        (loss, moved), gradients = of_parameters(parameters, statistics, batch)
        parameters, slots = rule(self.row)(parameters, gradients, slots)
        return (parameters, slots, moved), loss

    def _loss(self, parameters: Tree, statistics: Tree, batch: dict[str, Array]) -> tuple[Array, Tree]:
        net = Net(parameters, statistics, self.layers)
        output = FORWARD[self.row.module](net, batch["x"])
        match self.row.loss:
            case "classes":
                scores = jax.nn.log_softmax(output.reshape(-1, output.shape[-1]))
                output = -jnp.take_along_axis(scores, batch["labels"].reshape(-1, 1), axis=1).mean()
            case "squares":
                output = jnp.square(output - batch["labels"]).mean()
        return output, net.moved


def _narrow(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int32) if array.dtype == np.int64 else array


def optimizer_state(row: TrainingRow, parameters: Tree) -> Tree:
    """What the rule of the row's optimizer starts from."""
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    match row.optimizer:
        case "adam":
            return jnp.zeros((), jnp.float32), zeros, jax.tree.map(jnp.zeros_like, parameters)
        case "momentum":
            return zeros
    return ()


def rule(row: TrainingRow) -> Rule:
    """The row's optimizer."""
    return {"adam": _adam, "momentum": _momentum, "plain": _plain}[row.optimizer]


def _plain(parameters: Tree, gradients: Tree, slots: Tree) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda p, g: p - rows.PLAIN_RATE * g, parameters, gradients), slots


def _momentum(parameters: Tree, gradients: Tree, slots: Tree) -> tuple[Tree, Tree]:
    velocity = jax.tree.map(lambda v, g: rows.MOMENTUM * v + g, slots, gradients)
    return jax.tree.map(lambda p, v: p - rows.SGD_RATE * v, parameters, velocity), velocity


def _adam(parameters: Tree, gradients: Tree, slots: Tree) -> tuple[Tree, Tree]:
    """As torch.optim.Adam: epsilon after the bias correction (Kingma and Ba 2015, algorithm 1)."""
    updates, first, second = slots[0] + 1, slots[1], slots[2]
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, gradients)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * jnp.square(g), second, gradients)
    rate = rows.ADAM_RATE / (1 - BETA1**updates)
    root = jnp.sqrt(1 - BETA2**updates)
    moved = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) / root + EPSILON), parameters, first, second)
    return moved, (updates, first, second)


def make(row: TrainingRow, prepared: Prepared, cores: int, cache: Path) -> Step:
    """The step; XLA uses the cores that this process is bound to. What it compiles is kept in ``cache``."""
    jax.config.update("jax_compilation_cache_dir", str(cache))  # type: ignore[no-untyped-call]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # type: ignore[no-untyped-call]
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)  # type: ignore[no-untyped-call]
    return JaxStep(row, prepared)
