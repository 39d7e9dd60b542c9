"""Ctrl-C while ``glowtrain quantize`` runs: one line, and no half-written file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.graph import Value
from glowtrain.types import f32

ROOT = Path(__file__).resolve().parents[2]


@gt.model(x=f32["batch", 1, 8, 8])
def small(x: Value) -> dict[str, Value]:
    return {"scores": nn.linear(nn.relu(nn.linear(nn.flatten(x), 16, name="a")), 10, name="b")}


@pytest.mark.exhaustive
def test_nothing_is_written(tmp_path: Path) -> None:
    model, out, profile = tmp_path / "float.onnx", tmp_path / "int8.onnx", tmp_path / "profile.json"
    gt.save(small.bind({"batch": 2}), model)
    out.write_bytes(b"what was there before")
    command = [sys.executable, "-m", "glowtrain", "quantize", str(model), "--calibrate", "digits", "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--qat", "100000", "--profile", str(profile)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not profile.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)  # it trains now, or is about to
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.splitlines()[-1] == f"interrupted: {out} was not written"
    assert "Traceback" not in said
    assert out.read_bytes() == b"what was there before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["float.onnx", "int8.onnx", "profile.json"]
