"""Names are printed as they are, also those that look like the markup of the library that prints."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.profiling.measure import profile

MODEL, INPUT, WEIGHT, OUTPUT = "[bold]net[/x]", "in[/x]", "blocks[mlp].w[red]", ":fire:[/]"
ARGUMENTS = {
    "inspect": (INPUT, WEIGHT, OUTPUT),
    "profile --runs 1": (),
    "verify": (MODEL, INPUT, WEIGHT, OUTPUT),
    "gradcheck": (INPUT, WEIGHT),
    "train --data data[x].npz --loss mse --batch-size 4 --out [o].onnx": (MODEL, "data[x].npz", "[o].onnx"),
    "quantize --calibrate data[x].npz --loss mse --out [q].onnx": (MODEL, INPUT, OUTPUT, "[q].onnx"),
}
"""Commands and the names that each prints."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model in a file, data for it beside it, all with brackets in their names."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(5)
    x = gt.Input(gt.f32[4, 3], INPUT)
    scores = x @ gt.Variable(WEIGHT, draw.normal(size=(3, 2)).astype(np.float32))
    gt.save(gt.Graph((x,), {OUTPUT: scores}, name=MODEL), "net[x].onnx")
    np.savez("data[x].npz", x=draw.normal(size=(8, 3)).astype(np.float32), y=np.zeros((8, 2), np.float32))
    return "net[x].onnx"


@pytest.mark.parametrize("line", ARGUMENTS)
def test_commands_print_names_as_they_are(line: str, model: str) -> None:
    command, *options = line.split()
    result = CliRunner().invoke(app, [command, model, *options])
    assert result.exit_code == 0, result.output
    assert [name for name in ARGUMENTS[line] if name not in result.output] == []


def test_reports_print_names_as_they_are_on_any_console(model: str) -> None:
    quantized = gt.quantize(gt.load(model), {INPUT: np.ones((4, 3), np.float32)})
    console = Console(width=100, file=StringIO())
    console.print(gt.gradcheck.check(gt.load(model)).table(all_subjects=True))
    console.print(gt.quantization.report(quantized, sensitivities=False))
    assert isinstance(console.file, StringIO)
    said = console.file.getvalue()
    assert [name for name in (WEIGHT, INPUT, OUTPUT, MODEL) if name not in said] == []


@pytest.mark.parametrize("own", ["main_graph", "a0eab83f1ba84c2e817b12838e8f61c6", ""])
def test_a_file_names_a_model_that_its_exporter_did_not_name(own: str, model: str) -> None:
    proto = onnx.load(model)
    proto.graph.name = own
    onnx.save(proto, "mine.onnx")
    assert gt.load("mine.onnx").name == "mine"
    assert gt.load("mine.onnx", name="other").name == "other"


def test_a_model_keeps_the_name_that_its_file_states(model: str) -> None:
    assert gt.load(model).name == MODEL


@pytest.fixture(scope="module")
def small() -> gt.Template:
    @gt.model(x=gt.f32["batch", 8])
    def small(x: gt.Value) -> gt.Value:
        with gt.nn.scope("trunk"):
            x = gt.nn.relu(gt.nn.linear(x, 4, name="first"))
        return gt.nn.linear(x, 3, name="head")

    return small


def test_a_report_on_rounding_names_the_modules_of_weights(small: gt.Template) -> None:
    report = gt.quantization.report(gt.quantize(small, {"x": np.ones((4, 8), np.float32)}))
    assert {row.module for row in report.layers} == {"", "trunk.first", "head"}
    assert {row.module for row in report.sensitivities} == {"trunk.first", "head"}


def test_a_profile_names_the_layers_of_kernels(small: gt.Template) -> None:
    rows = profile(small.bind({"batch": 4}), gt.Cpu(threads=1), 1).rows
    assert sorted(layer for row in rows for layer in row.origin.layers) == ["head", "trunk.first"]
