"""Every example runs with ``--quick`` as a person would run it: from another directory, with nothing on the path."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glowtrain.data import FASHION_MNIST_DIR

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)


def output_of(name: str, folder: Path) -> str:
    done = run(name, folder, "--quick")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mlp_in_python(tmp_path: Path) -> None:
    accuracy = re.search(r"test accuracy: ([\d.]+)%", output_of("mlp_in_python.py", tmp_path))
    assert accuracy is not None
    assert float(accuracy[1]) > 85


def test_freezing_saves_memory_and_time(tmp_path: Path) -> None:
    saved = dict(re.findall(r"^  (\w+).* (-?\d+)%$", output_of("finetune_frozen_trunk.py", tmp_path), re.MULTILINE))
    assert {"trained", "activations", "variables", "a"} <= set(saved)
    assert all(int(saved[row]) > 20 for row in ("trained", "activations", "variables"))


def test_quantiles_fall_where_they_should(tmp_path: Path) -> None:
    shares = re.findall(r"([\d.]+)% of new points", output_of("custom_loss.py", tmp_path))
    assert [float(share) for share in shares] == pytest.approx([10, 50, 90], abs=8)


def test_custom_operator(tmp_path: Path) -> None:
    said = output_of("custom_operator.py", tmp_path)
    assert "all passed" in said
    assert "with the function SquaredDistances" in said


def test_char_gpt(tmp_path: Path) -> None:
    said = output_of("char_gpt.py", tmp_path)
    assert "a GPT with" in said
    assert "\n\ndef " in said


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the peers extra")
@pytest.mark.skipif(not FASHION_MNIST_DIR.is_dir(), reason="needs dataset-fashion-mnist")
def test_fashion_from_pytorch(tmp_path: Path) -> None:
    said = output_of("fashion_from_pytorch.py", tmp_path)
    ours, theirs = (float(number) for number in re.findall(r"(?:accuracy|weights:?) ([\d.]+)%", said))
    assert ours == pytest.approx(theirs, abs=0.3)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_so(tmp_path: Path) -> None:
    done = run("fashion_from_pytorch.py", tmp_path)
    assert done.returncode != 0
    assert "pip install torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_examples_are_listed() -> None:
    listed = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in EXAMPLES.glob("*.py")} - {"checkout.py"}
