"""The models of benchmarks/peers: losses, gradients, saved steps and bits as that program checks them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "agreement.py"


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20", "mobilenetv2", "lstm", "lstm2", "bilstm2", "gpt"])
def test_training_agrees_with_pytorch_and_onnx_runtime(name: str) -> None:
    command = [sys.executable, str(PROGRAM), "--models", name]
    done = subprocess.run(command, cwd=PROGRAM.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
