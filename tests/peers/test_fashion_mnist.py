"""Fashion-MNIST as Debian's package dataset-fashion-mnist installs it, and the example that takes PyTorch to it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glowtrain import data

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fashion_from_pytorch.py"


def test_debians_files() -> None:
    fashion = data.fashion_mnist()
    assert fashion.x.shape == (60_000, 1, 28, 28)
    assert fashion.x_valid is not None
    assert fashion.x_valid.shape == (10_000, 1, 28, 28)
    assert np.bincount(fashion.y).tolist() == [6000] * 10


def test_the_example_gives_the_same_accuracy_in_pytorch(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours, theirs = (float(number) for number in re.findall(r"(?:accuracy|weights:?) ([\d.]+)%", done.stdout))
    assert ours == pytest.approx(theirs, abs=0.3)
