"""glowtrain train that stops and goes on: checkpoints, --resume, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from glowtrain.data import digits
from tests.cli.commands import ROOT, done, refused


@pytest.mark.exhaustive
def test_resume_gives_the_same_bytes(tmp_path: Path) -> None:
    whole, parts, checkpoint = (tmp_path / name for name in ("whole.onnx", "parts.onnx", "run.safetensors"))
    common = ("train", "cnn", "--data", "digits", "--batch-size", "479")
    done(*common, "--epochs", "2", "--out", whole)
    done(*common, "--epochs", "1", "--out", parts, "--checkpoint", checkpoint)
    done(*common, "--epochs", "2", "--out", parts, "--checkpoint", checkpoint, "--resume")
    assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.exhaustive
def test_a_checkpoint_is_not_overwritten_without_a_word(tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "run.safetensors", tmp_path / "out.onnx"
    arguments = ("train", "mlp", "--data", "digits", "--batch-size", "479", "--out", out, "--checkpoint", checkpoint)
    done(*arguments, "--epochs", "2")
    before = checkpoint.read_bytes()
    message = refused(*arguments, "--epochs", "1")
    assert "exists: --resume goes on from it, --overwrite begins anew in its place" in message
    assert checkpoint.read_bytes() == before
    assert "not both" in refused(*arguments, "--resume", "--overwrite")
    assert "1 epoch is done" in done(*arguments, "--epochs", "1", "--overwrite")
    assert checkpoint.read_bytes() != before


@pytest.mark.exhaustive
def test_a_rate_that_is_given_takes_effect_when_a_run_goes_on(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.safetensors"
    arguments = ("train", "mlp", "--data", "digits", "--batch-size", "479", "--checkpoint", checkpoint)
    done(*arguments, "--epochs", "1", "--lr", "0.01", "--out", tmp_path / "0.onnx")
    begun = checkpoint.read_bytes()
    found = {}
    for rate in (None, "0.01", "0.5"):
        checkpoint.write_bytes(begun)
        out, lr = tmp_path / f"{rate}.onnx", () if rate is None else ("--lr", rate)
        said = done(*arguments, "--epochs", "2", "--resume", *lr, "--out", out)
        assert ("going on in epoch 2 with lr 0.5 instead of 0.01" in said) == (rate == "0.5")
        found[rate] = out.read_bytes()
    assert found[None] == found["0.01"] != found["0.5"]


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def _interrupted(*arguments: str | Path, begun: Path) -> tuple[int, str]:
    """Status and output of a training run that gets Ctrl-C when the file ``begun`` has content."""
    command = [sys.executable, "-m", "glowtrain", "train", "mlp", "--data", "digits", "--epochs", "100000"]
    process = subprocess.Popen(
        command + [str(argument) for argument in arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (begun.exists() and begun.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert said.count("interrupted") == 1
    assert "Traceback" not in said
    return process.returncode, said


def test_ctrl_c_keeps_a_whole_checkpoint(tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "run.safetensors", tmp_path / "out.onnx"
    status, said = _interrupted("--out", out, "--checkpoint", checkpoint, begun=checkpoint)
    assert status == 130
    assert f"go on with --checkpoint {checkpoint} --resume" in said
    assert not out.exists()
    said = done(
        "train", "mlp", "--data", "digits", "--epochs", "1", "--out", out, "--checkpoint", checkpoint, "--resume"
    )
    assert re.search(r"the checkpoint's run has \d+ epochs? already, and (they|1) were asked for; wrote", said)


@pytest.mark.exhaustive
def test_ctrl_c_without_a_checkpoint_keeps_the_model(tmp_path: Path) -> None:
    log, out, scores = (tmp_path / name for name in ("run.jsonl", "out.onnx", "scores.npz"))
    status, said = _interrupted("--out", out, "--log", log, begun=log)
    assert status == 130
    assert f"wrote {out}: the model as it is now" in said
    images = digits()
    np.savez(tmp_path / "images.npz", x=images.x)
    done("run", out, "--input", tmp_path / "images.npz", "--output", scores)
    assert (np.load(scores)["scores"].argmax(1) == images.y).mean() > 0.5
