"""``glowtrain gradients``: what it says of a file, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.graph import Graph, Input, Node, Value, Variable
from glowtrain.ops.elementwise.arithmetic import Round
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.indexing.arg_extrema import ArgMax

X = Input(gt.f32[2, 4], "x")


def told(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gradients", *map(str, arguments)])


def refused(*arguments: object) -> str:
    result = told(*arguments)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def weight(name: str, *shape: int) -> Variable:
    return Variable(name, np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))


def written(folder: Path, **outputs: Value) -> Path:
    gt.save(Graph((X,), outputs, name="net"), folder / "net.onnx")
    return folder / "net.onnx"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A file whose parameters all get a gradient."""
    return written(tmp_path, y=gt.nn.relu(X @ weight("head.weight", 4, 3)))


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A file with a layer that is rounded, a gate that is chosen, and what another output alone reads."""
    hidden = gt.nn.relu(X @ weight("fc1.weight", 4, 5) + weight("fc1.bias", 5))
    rounded = Node(Round(), [hidden], "/fc1/round").output @ weight("fc2.weight", 5, 3)
    best = Node(ArgMax(axis=1, keepdims=True), [X @ weight("gate.weight", 4, 3)], "/gate/best").output
    return written(tmp_path, y=rounded * Cast(to=gt.f32)(best), aux=X * weight("other.weight", 4))


def test_what_is_printed(cut: Path, golden: Callable[[str, str], None]) -> None:
    result = told(cut, "--of", "y")
    assert result.exit_code == 1
    lines = (line.rstrip() for line in result.stdout.splitlines())
    golden("gradients.txt", "\n".join(lines) + "\n")


def test_the_exit_status_says_whether_all_parameters_get_one(whole: Path, tmp_path: Path) -> None:
    done = told(whole)
    assert done.exit_code == 0, done.output
    assert "gradients reach 1 of 1 parameters, 1 of 1 inputs" in done.output
    lost = told(written(tmp_path, y=Round()(X * weight("w", 4))))
    assert lost.exit_code == 1
    assert "no gradient reaches 1 parameter: 1 parameter w: cut by Round" in " ".join(lost.stderr.split())


def test_models_that_come_along_and_losses() -> None:
    done = told("mlp", "--loss", "softmax_cross_entropy")
    assert done.exit_code == 0, done.output
    assert "mlp: ways of the gradient of the loss" in done.output
    assert "SoftmaxCrossEntropyLoss" in done.output
    assert "not bound" not in done.output, "extents do not matter here"


def test_parameters_are_chosen(cut: Path) -> None:
    assert told(cut, "--by", "other.weight").exit_code == 0
    assert "fc1.weight, fc1.bias" in refused(cut, "--by", "fc*")


def test_json(cut: Path, tmp_path: Path) -> None:
    result = told(cut, "--json", tmp_path / "found.json")
    assert result.exit_code == 1
    assert f"wrote {tmp_path / 'found.json'}" in result.output
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["passed"] is False
    assert [leaf["name"] for leaf in found["leaves"] if leaf["standing"] == "cut"] == [
        "fc1.weight",
        "fc1.bias",
        "gate.weight",
    ]
    assert {entry["operator"] for entry in found["cuts"]} == {"Round", "ArgMax"}


def test_names_with_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    assert "[bold]w[/bold]" in refused(written(tmp_path, y=Round()(X * weight("[bold]w[/bold]", 4))))


def test_bad_input(cut: Path, tmp_path: Path) -> None:
    assert "no output 'z'; it has 'y', 'aux'" in refused(cut, "--of", "z")
    assert "(the nearest is 'other.weight')" in refused(cut, "--by", "ohter.weight")
    assert "give a loss or outputs, not both" in refused(cut, "--loss", "mse", "--of", "y")
    assert "there is no loss 'mze' (the nearest is 'mse')" in refused(cut, "--loss", "mze")
    assert "no such file" in refused(tmp_path / "nowhere.onnx")
    assert "does not exist; create it first" in refused(cut, "--json", tmp_path / "no" / "such" / "folder.json")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert "broken.onnx" in refused(tmp_path / "broken.onnx")
