"""What compiles goes through the compile service, once for each function, and takes each stage once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import glowtrain as gt
from glowtrain.compiler import service
from tests.route import check, route_of


@gt.model(x=gt.f32["batch", 6])
def network(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 5, name="hidden")), 3, name="head")


def test_a_trainers_step() -> None:
    def train() -> None:
        trainer = gt.Trainer(network, "mse", gt.optim.SGD(lr=0.1), backend=gt.Cpu(cache=None, threads=1))
        trainer.step({"x": np.ones((4, 6), np.float32), "target": np.zeros((4, 3), np.float32)})

    check(route_of(train), service.build, 1)


def test_a_bundle_compiles_its_functions_together(tmp_path: Path) -> None:
    def bundle() -> None:
        gt.bundle(network, tmp_path, loss="mse", optimizer=gt.optim.SGD(lr=0.1), dims={"batch": 4}, weights="none")

    check(route_of(bundle), service.module, 2)
