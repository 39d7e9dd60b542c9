"""Derivatives of whole models in f64 against PyTorch's, as benchmarks/peers/gradients.py compares them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "gradients.py"
MODELS = ("mlp", "cnn", "resnet20", "mobilenetv2", "lstm", "lstm2", "bilstm2", "gpt", "unet", "vit", "gru")


@pytest.mark.parametrize("name", MODELS)
def test_first_and_second_derivatives_agree_with_pytorch(name: str) -> None:
    command = [sys.executable, str(PROGRAM), "--models", name]
    done = subprocess.run(command, cwd=PROGRAM.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok ") == 12, done.stdout  # two forms, three derivatives, two engines
