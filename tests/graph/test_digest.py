"""Digests of graphs: equal whatever values are called, different wherever what is computed differs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from glowtrain.graph import Constant, Graph, Input, Value, Variable
from glowtrain.graph.digest import digest
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.random.philox import Dropout
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.types import f32, f64

Change = Callable[..., dict[str, Value]]


def outputs(
    *, scale: float = 2.0, axis: int = 1, name: str = "h", shape: int = 3, start: float = 1.0, trainable: bool = True
) -> dict[str, Value]:
    x = Input(f32[2, shape], "x")
    w = Variable("w", np.full((shape, 4), start, np.float32), trainable)
    hidden = x @ w
    hidden.name = name
    table = Constant(np.full((2, 4), scale, np.float32), f"table of {name}")
    return {"y": Softmax(axis=axis)(hidden * table)}


def test_names_and_initial_values_do_not_count() -> None:
    assert digest(outputs(name="other")) == digest(outputs(start=5.0)) == digest(outputs())


DIFFERENT: dict[str, Change] = {
    "a constant": lambda: outputs(scale=3.0),
    "the sign of a zero": lambda: outputs(scale=-0.0),
    "an attribute": lambda: outputs(axis=0),
    "a shape": lambda: outputs(shape=5),
    "what is trained": lambda: outputs(trainable=False),
    "the name of an output": lambda: {"z": outputs()["y"]},
    "one more output": lambda: {**outputs(), "z": Input(f32[2, 3], "x")},
    "an element type": lambda: {"y": Cast(to=f64)(outputs()["y"])},
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=list(DIFFERENT))
def test_what_is_computed_counts(change: Change) -> None:
    zero = outputs(scale=0.0)
    assert digest(change()) not in (digest(outputs()), digest(zero))


def test_operands_and_sharing_count() -> None:
    x, y = Input(f32[2], "x"), Input(f32[2], "y")
    assert digest({"z": x - y}) != digest({"z": y - x})
    once, again = Dropout()(x)[0], Dropout()(x)[0]
    assert digest({"z": once + once}) != digest({"z": once + again})
    assert digest({"z": x + y, "w": x}) != digest({"z": x + y, "w": y})


def test_given_values_stand_for_what_computes_them() -> None:
    first, second = outputs(scale=2.0)["y"], outputs(scale=3.0)["y"]
    assert digest({"loss": first * first}, {first: "y"}) == digest({"loss": second * second}, {second: "y"})
    assert digest({"loss": first * first}, {first: "y"}) != digest({"loss": first * first}, {first: "z"})


def scan(factor: float, names: str = "") -> dict[str, Value]:
    """A running sum of scaled rows."""
    total, row = Input(f32[3], f"{names}total"), Input(f32[3], f"{names}row")
    after = total + row * factor
    body = Graph((total, row), {f"{names}next": after, f"{names}seen": after * 1.0}, name=f"{names}body")
    start, rows = Input(f32[3], "start"), Input(f32[4, 3], "rows")
    return {"sums": Scan(body, num_scan_inputs=1)(start, rows)[1]}


def test_subgraphs_count_and_their_names_do_not() -> None:
    assert digest(scan(2.0, "other ")) == digest(scan(2.0))
    assert digest(scan(3.0)) != digest(scan(2.0))


PROGRAM = """
import glowtrain as gt
from glowtrain.trainer.checkpoints.fingerprint import fingerprint
@gt.model(x=gt.f32["batch", 1, 4, 4])
def net(x):
    x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 4, padding="same")))
    return gt.nn.linear(gt.nn.dropout(gt.nn.flatten(x), 0.2), 3)
trainer = gt.Trainer(net, gt.losses.softmax_cross_entropy(), gt.optim.Adam(clip_norm=1.0), backend="interpreter")
print(fingerprint(trainer.graphs))
"""


def test_other_processes_give_the_same() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1
    assert said != {""}
