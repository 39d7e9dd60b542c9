"""The notebook of examples/notebooks that needs PyTorch; the others are run by tests/test_notebooks.py."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from docs.site.notebooks import FOLDER, run
from tests.notebooks import text_of


def test_a_loop_of_pytorch(tmp_path: Path) -> None:
    said = text_of(run(nbformat.read(FOLDER / "pytorch_loop.ipynb", 4), tmp_path))
    losses = [tuple(map(float, pair)) for pair in re.findall(r"loss ([\d.]+)  PyTorch's ([\d.]+)", said)]
    assert len(losses) == 8
    assert all(abs(ours - theirs) < 2e-3 for ours, theirs in losses)
    assert losses[-1][0] < 0.05
    assert re.search(r"a step takes [\d.]+ ms; eager PyTorch takes [\d.]+ times as long", said)
    right = [float(share) for share in re.findall(r"(\d+\.\d)% of the validation images are right", said)]
    assert len(right) == 2
    assert min(right) > 95
    assert "sequential: 38,378 parameters" in said
