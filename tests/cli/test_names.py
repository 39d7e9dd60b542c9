"""Names are printed as they are, also those that look like the markup of the library that prints."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app

MODEL, INPUT, WEIGHT, OUTPUT = "[bold]net[/x]", "in[/x]", "blocks[mlp].w[red]", ":fire:[/]"
ARGUMENTS = {
    "inspect": (INPUT, WEIGHT, OUTPUT),
    "inspect --stage profile": (),
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
    console.print(gt.quantization.report(quantized, sensitivities=False).tables())
    assert isinstance(console.file, StringIO)
    said = console.file.getvalue()
    assert [name for name in (WEIGHT, INPUT, OUTPUT, MODEL) if name not in said] == []
