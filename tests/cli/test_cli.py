"""The command line as a whole: help, models that are none, usage, and the same files by any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glowtrain.data import digits
from tests.cli.commands import ROOT, done, refused


@pytest.mark.parametrize("name", ["demo", "train", "run", "inspect", "verify", "gradcheck"])
def test_help_has_an_example(name: str) -> None:
    assert f"glowtrain {name}" in done(name, "--help")


@pytest.mark.parametrize("command", ["gradcheck", "quantize"])
def test_help_names_the_extra_that_pages_need(command: str) -> None:
    assert "glowtrain[plot]" in "".join(done(command, "--help").replace("│", " ").split())


@pytest.mark.parametrize(
    "command", [("gradcheck", "none.onnx", "--html"), ("quantize", "none.onnx", "--calibrate", "digits", "--report")]
)
def test_pages_need_matplotlib_and_say_so_first(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = ("--out", tmp_path / "x.onnx") if command[0] == "quantize" else ()
    assert "drawing needs matplotlib: pip install -e '.[plot]'" in refused(*command, tmp_path / "r.html", *output)


def test_no_such_model(tmp_path: Path) -> None:
    assert "no such file" in refused("inspect", tmp_path / "nothing.onnx")
    assert "mlp, cnn" in refused("train", "resnet", "--data", "digits", "--out", tmp_path / "out.onnx")


@pytest.mark.exhaustive
def test_not_a_model(tmp_path: Path, trained: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is not ONNX")
    (tmp_path / "short.onnx").write_bytes(trained.read_bytes()[:1000])
    for name in ("text.onnx", "short.onnx"):
        assert name in refused("inspect", tmp_path / name)


def test_usage_errors_have_status_2(tmp_path: Path) -> None:
    for threads in ("0", "-1", "two", "5000"):
        assert "--threads" in refused("run", "mlp", "--threads", threads, status=2)
    assert "--out" in refused("train", "mlp", "--data", "digits", status=2)
    assert "bogus" in refused("inspect", "mlp", "--stage", "bogus", status=2)


@pytest.mark.exhaustive
def test_any_number_of_threads_writes_the_same_files(tmp_path: Path) -> None:
    """Models, outputs, and what they were quantized to."""
    images = tmp_path / "images.npz"
    np.savez(images, x=digits().x_valid[:50])
    written = []
    for threads in (1, 2):
        paths = [tmp_path / f"{threads}-{name}" for name in ("m.onnx", "out.npz", "q.onnx")]
        more = ("--threads", threads)
        done("train", "cnn", "--data", "digits", "--epochs", 1, "--out", paths[0], *more)
        done("run", paths[0], "--input", images, "--output", paths[1], *more)
        done("quantize", paths[0], "--calibrate", "digits", "--out", paths[2], *more)
        written.append([path.read_bytes() for path in (paths[0], paths[2])] + [np.load(paths[1])["scores"].tobytes()])
    assert written[0] == written[1]


@pytest.mark.exhaustive
def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m glowtrain inspect mlp --stage llvm | head -1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "Error" not in result.stderr
    assert "Traceback" not in result.stderr
