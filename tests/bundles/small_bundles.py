"""Small bundles in folders, with batches for them, for the tests of what stands over the C interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.types import Array
from tests.bundles.networks import BATCH
from tests.compiler.networks import mlp


def digits(seed: int) -> dict[str, Array]:
    """A batch for the mlp."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(BATCH, 1, 8, 8)).astype(np.float32)
    return {"x": x, "labels": random.integers(0, 10, BATCH)}


def trainer() -> gt.Trainer:
    return gt.Trainer(mlp, "softmax_cross_entropy", gt.optim.Adam(1e-2))


def written(folder: Path, model: Any = None, **options: Any) -> Path:
    """The folder with a bundle of a model, by default a trainer of the mlp."""
    if model is None:
        model, options = trainer(), {"dims": {"batch": BATCH}, **options}
    gt.bundle(model, folder, **options)
    return folder


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    """Whether variables of the same names have the same bits."""
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@gt.model(x=gt.bf16["batch", 5])
def halves(x: Value) -> Value:
    return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 7)), 3)


def odd_names() -> gt.Trainer:
    """Inputs whose names mean something elsewhere, differ in case alone, or are no names; one without axes."""
    random = np.random.default_rng(7)
    first, second = Input(gt.f32[BATCH, 3], "first/input"), Input(gt.f32[BATCH, 3], "First_input")
    match, mode = Input(gt.f32[BATCH, 3], "match"), Input(gt.boolean[()], "last")
    weight = Variable("weight", random.normal(size=(3, 3)).astype(np.float32))
    hidden = Tanh()(first @ weight) * second - match
    loss = gt.nn.mean(hidden * hidden)
    outputs = {"loss": loss, 'the "state"': hidden, "létzt\n{one}": gt.nn.where(mode, hidden, match)}
    graph = Graph((first, second, match, mode), outputs, {}, name="odd names")
    return gt.Trainer(graph, "loss", gt.optim.SGD(0.1))


def odd_batch(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    names = ("first/input", "First_input", "match")
    batch = {name: random.normal(size=(BATCH, 3)).astype(np.float32) for name in names}
    return {**batch, "last": np.asarray(True)}
