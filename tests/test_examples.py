"""Every example runs with ``--quick`` as a person would run it: from another directory, with nothing on the path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert all(int(saved[row]) > 20 for row in ("trained", "variables"))
    assert int(saved["activations"]) > 0  # little is kept of the trunk when it is trained, too


def test_quantiles_fall_where_they_should(tmp_path: Path) -> None:
    shares = re.findall(r"([\d.]+)% of new points", output_of("custom_loss.py", tmp_path))
    assert [float(share) for share in shares] == pytest.approx([10, 50, 90], abs=8)


def test_custom_operator(tmp_path: Path) -> None:
    said = output_of("custom_operator.py", tmp_path)
    assert "all passed" in said
    assert "in an ONNX file, for any batch: Flatten, Reshape, Sub, Mul, ReduceSum" in said


def test_fine_tuning_on_a_board(tmp_path: Path) -> None:
    """What it writes; tests/targets runs it on the boards."""
    for options in ((), ("--int8",)):
        done = run("boards/fine_tune.py", tmp_path, "--quick", *options)
        assert done.returncode == 0, done.stderr
        assert "digits for cortex-m4" in done.stdout
        written = {path.name for path in (tmp_path / "digits-on-board").iterdir()}
        assert {"digits.o", "digits.h", "board.mk", "examples.h", "fine_tune.c"} <= written


def test_runtime(tmp_path: Path) -> None:
    """Each point of Glow's plan for a runtime: enqueued, sliced and filled up, pipelined, managed, partitioned."""
    said = output_of("runtime.py", tmp_path)
    right = re.search(r"enqueued 200 requests of an image each: (\d+)% are right", said)
    assert right is not None
    assert int(right[1]) > 70
    assert "100 rows ran as 4 batches of 32, 28 rows of them filled up; 100 answers came" in said
    assert "two models in a row, on cpu:0, cpu:1: of 320 images, a mean confidence" in said
    assert "8 requests wait already, which is the limit of its queue" in said
    assert "cancelled one: True; 8 others answered, in 1 batch" in said
    assert len(re.findall(r"device cpu:\d: in service", said)) == 2
    assert "network deep fits on no device" in said
    assert "in 2 parts on 2 devices, with the bits of the whole: True" in said


def test_char_gpt(tmp_path: Path) -> None:
    said = output_of("char_gpt.py", tmp_path)
    assert "a GPT with" in said
    assert "\n\nclass " in said


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    """fashion_from_pytorch.py; its run with PyTorch is in tests/peers."""
    script = str(EXAMPLES / "fashion_from_pytorch.py")
    hidden = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({script!r}, run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(
        [sys.executable, "-c", hidden], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_examples_are_listed() -> None:
    listed = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in EXAMPLES.glob("*.py")} - {"checkout.py"}
