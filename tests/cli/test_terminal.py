"""What commands print fits into a terminal, and no word is broken at its edge."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, Group
from typer.testing import CliRunner

from glowtrain.cli import app
from glowtrain.cli.terminal.markdown import parts
from glowtrain.trainer.progress import line
from tests.cli.terminal import ROOT, screen, words

COMMANDS = {
    "train": ("train", "mlp", "--data", "digits", "--epochs", "2", "--out", "mlp.onnx"),
    "quantize": ("quantize", "mlp", "--calibrate", "digits", "--examples", "64", "--out", "int8.onnx"),
    "gradcheck": ("gradcheck", "--op", "Tanh", "--op", "Conv", "--examples", "2", "--jobs", "1"),
    "gradcheck of a model": ("gradcheck", "mlp"),
    "verify": ("verify", "mlp"),
    "inspect": ("inspect", "mlp", "--train"),
    "operators": ("operators",),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("name", "columns"), [*((name, 80) for name in COMMANDS), ("train", 60), ("gradcheck", 60), ("verify", 60)]
)
def test_no_word_is_broken(name: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[name]
    into_a_file = CliRunner().invoke(app, command)
    assert into_a_file.exit_code == 0, into_a_file.output
    lines = screen(columns, *command, folder=tmp_path)
    assert [text for text in lines if len(text) > columns] == []
    assert words(" ".join(lines)) - words(into_a_file.output) == set()


PAGE = """\
# Title

Words that fill more than one line of a terminal, *one* of them leaning and `others` set apart.

| operator | element types | notes |
|---|---|---|
| AveragePool | floats | – |
| BlackmanWindow | – | known when compiling: size |
"""


def test_a_page_of_markdown_is_laid_out_to_its_width() -> None:
    def shown(width: int) -> list[str]:
        console = Console(width=width, file=StringIO(), markup=False)
        console.print(Group(*parts(PAGE, width)))
        assert isinstance(console.file, StringIO)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    table = ["operator        element types  notes"]
    table += ["AveragePool     floats         –", "BlackmanWindow  –              known when compiling: size"]
    wide = len(table[-1])
    assert shown(wide)[-4:-1] == table
    narrow = ["AveragePool", "  element types floats", "BlackmanWindow", "  notes known when compiling: size"]
    assert shown(wide - 1)[-5:-1] == narrow
    assert max(map(len, shown(40))) <= 40
    assert words(" ".join(shown(40))) <= words(PAGE)


def test_demo(tmp_path: Path) -> None:
    lines = screen(80, "demo", folder=tmp_path)
    assert [text for text in lines if len(text) > 80] == []
    said = re.sub(r"\s+", " ", " ".join(lines))
    accuracy = [float(number) for number in re.findall(r"test accuracy ([\d.]+)%", said)]
    assert accuracy[-1] >= 97
    assert "two linear layers" in said
    assert "try next" in said
    assert (tmp_path / "trained.onnx").exists()


def test_an_error_breaks_no_word(tmp_path: Path) -> None:
    lines = screen(60, "train", "mlp", "--data", "nothing", "--out", "mlp.onnx", folder=tmp_path, status=1)
    assert [text for text in lines if len(text) > 60] == []
    assert "use digits, fashion-mnist or the path of a file (.npz, .csv, .parquet)" in " ".join(map(str.strip, lines))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (("inspect", "mlp"), 0, "x the peak of what is alive"),
        (("operators",), 0, "Abs | 1-"),
        (("inspect", "modèle.onnx"), 1, "modele.onnx: no such file"),
    ],
    ids=["inspect", "operators", "error"],
)
def test_a_pipe_in_ascii(command: tuple[str, ...], status: int, said: str, tmp_path: Path) -> None:
    called = subprocess.run(
        [sys.executable, "-m", "glowtrain", *command], capture_output=True, cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert called.returncode == status, called.stderr
    assert said in (called.stdout + called.stderr).decode("ascii")


def test_an_epoch_leaves_out_what_does_not_fit() -> None:
    record = {"epoch": 3, "loss": 0.5, "val_loss": 0.25, "seconds": 1.5, "examples_per_second": 1234.0}
    whole = "epoch  3/10  loss 0.5000  val_loss 0.2500  1.5 s  1,234 examples/s"
    assert line(record, 10) == line(record, 10, len(whole)) == whole
    assert line(record, 10, len(whole) - 1) == "epoch  3/10  loss 0.5000  val_loss 0.2500  1.5 s"
    assert line(record, 10, 20) == "epoch  3/10  loss 0.5000  val_loss 0.2500"
