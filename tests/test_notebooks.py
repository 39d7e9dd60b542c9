"""The notebooks of examples/notebooks, from top to bottom as Jupyter runs them. Those that need PyTorch or the server
are run by tests/with_torch and tests/serving."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs.site.notebooks import FOLDER, run, tutorials
from tests.notebooks import text_of

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
    assert "\nnavy cannellini\n" in said
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


@pytest.mark.exhaustive
def test_a_gradient_that_can_be_trusted(tmp_path: Path) -> None:
    said = shown_by("trust_a_gradient", tmp_path)
    hasty, mended = re.findall(r"^1 checked by .* comparisons, (.*) \(seed", said, re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d* failed", hasty)
    assert mended == "all passed"
    assert re.search(r"^HastyMish: wrong\n.*the rule of tutorial\.HastyMish\(.*\) is wrong", said, re.MULTILINE)
    assert "\nMish: right\n" in said


def test_a_page_shows_pictures_and_what_cells_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = ["print(6 * 7)", "import matplotlib.pyplot as plt\nplt.plot([1, 2])"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, tmp_path / "small.ipynb")
    monkeypatch.setattr("docs.site.notebooks.FOLDER", tmp_path)
    (page,) = tutorials()
    ((picture, content),) = page.pictures.items()
    assert content.startswith(b"\x89PNG"), picture
    assert f"![What the cell above draws]({picture})" in page.page
    assert "\n    42\n" in page.page


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_is_short_and_has_no_outputs(name: str) -> None:
    cells: list[Any] = nbformat.read(FOLDER / f"{name}.ipynb", 4).cells
    assert len(cells) <= 16
    assert cells[0].source.startswith("# ")
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")
    assert max(len(line) for cell in cells if cell.cell_type == "code" for line in cell.source.splitlines()) <= 100


def test_all_are_listed() -> None:
    listed = re.findall(r"\]\(notebooks/(\w+)\.ipynb\)", (FOLDER.parent / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == NOTEBOOKS
