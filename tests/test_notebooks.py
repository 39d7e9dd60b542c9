"""The notebooks of examples/notebooks, from top to bottom as Jupyter runs them; the one that needs PyTorch is run in
tests/with_torch."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks import FOLDER, run, text_of

NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def shown_by(name: str, folder: Path) -> str:
    """All that the outputs of a notebook say."""
    return text_of(run(nbformat.read(FOLDER / f"{name}.ipynb", 4), folder))


@pytest.mark.exhaustive
def test_first_steps(tmp_path: Path) -> None:
    said = shown_by("first_steps", tmp_path)
    assert "600 examples of x" in said
    assert re.search(r"^epoch +\d+/200  loss 0\.1\d+  val_loss 0\.[12]\d+  val_accuracy 0\.9", said, re.MULTILINE)
    assert "network: 115 parameters, 3,072 multiply-adds for batch = 32" in said
    assert said.endswith("['navy', 'cannellini']\n")
    assert (tmp_path / "beans.onnx").exists()


@pytest.mark.exhaustive
def test_fine_tuning(tmp_path: Path) -> None:
    try:
        metadata.distribution("basic-pitch")
    except metadata.PackageNotFoundError:
        pytest.skip("needs its files: pip install --no-deps basic-pitch")
    said = shown_by("fine_tune_onnx", tmp_path)
    before, after = (ast.literal_eval(found) for found in re.findall(r"array\((\[.*?\])\)", said, re.DOTALL))
    assert before == [19] * 16
    assert sum(off == 0 for off in after) >= 14
    slopes = re.search(r"length is ([\d.]+); the loss rises by ([\d.]+)", said)
    assert slopes is not None
    assert float(slopes[2]) == pytest.approx(float(slopes[1]), rel=0.01)


@pytest.mark.exhaustive
def test_a_small_device(tmp_path: Path) -> None:
    said = shown_by("small_device", tmp_path)
    found = dict(re.findall(r"^(.*): ([\d.]+)% of the validation images are right$", said, re.MULTILINE))
    in_floats, rounded, trained = (float(found[name]) for name in ("in floats", "rounded", "trained so"))
    assert rounded < min(in_floats, trained)
    assert trained > 97
    assert {"digits.o", "main.c"} <= {path.name for path in (tmp_path / "device").iterdir()}
    assert f"digits.o      {(tmp_path / 'device' / 'digits.o').stat().st_size:8,} bytes" in said
    assert "digits_predict(&handle, predict_x_data, predict_scores_data)" in said


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_is_short_and_has_no_outputs(name: str) -> None:
    cells: list[Any] = nbformat.read(FOLDER / f"{name}.ipynb", 4).cells
    assert len(cells) < 15
    assert cells[0].source.startswith("# ")
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")
    assert max(len(line) for cell in cells if cell.cell_type == "code" for line in cell.source.splitlines()) <= 100


def test_all_are_listed() -> None:
    listed = re.findall(r"\]\(notebooks/(\w+)\.ipynb\)", (FOLDER.parent / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == NOTEBOOKS
