"""``--import``: operators of a person's own on the command line."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")

MODEL = """
import glowtrain as gt
from myops import Softcap

@gt.model(x=gt.f32["batch", 2])
def model(x):
    return Softcap(cap=2.0)(gt.nn.linear(x, 3, name="layer"))

gt.save(model.bind({"batch": 4}), "model.onnx")
"""


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own, which has imported no operator."""
    command = [sys.executable, *arguments]
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def glowtrain(*arguments: str, folder: Path) -> str:
    """What a command that succeeds prints."""
    done = python("-m", "glowtrain", *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str, folder: Path) -> str:
    """The message of a command that fails."""
    done = python("-m", "glowtrain", *arguments, folder=folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``myops.py`` with the operator that the page shows, a model with it, and data."""
    folder = tmp_path_factory.mktemp("own")
    block = next(block for block in re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL) if "class Softcap" in block)
    examples = doctest.DocTestParser().get_examples(block)
    (folder / "myops.py").write_text("".join(example.source for example in examples))
    made = python("-c", MODEL, folder=folder)
    assert made.returncode == 0, made.stderr
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=np.arange(4) % 3)
    np.savez(folder / "inputs.npz", x=x)
    return folder


def test_the_last_step_of_the_page(folder: Path) -> None:
    (command,) = re.findall(r"^glowtrain gradcheck (.*)$", PAGE, re.MULTILINE)
    assert "all passed" in glowtrain("gradcheck", *command.split(), folder=folder)


def test_processes_that_share_the_work_import_it_too(folder: Path) -> None:
    options = ("--op", "example.Softcap", "--examples", "60", "--jobs", "2")
    assert "all passed" in glowtrain("gradcheck", "--import", "myops", *options, folder=folder)


@pytest.mark.parametrize(
    "command",
    [
        ("gradcheck", "model.onnx"),
        ("verify", "model.onnx"),
        ("inspect", "model.onnx"),
        ("run", "model.onnx", "--input", "inputs.npz", "--output", "scores.npz"),
        ("train", "model.onnx", "--data", "data.npz", "--epochs", "1", "--batch-size", "4", "--out", "trained.onnx"),
        ("quantize", "model.onnx", "--calibrate", "data.npz", "--out", "int8.onnx"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_reads_models(command: tuple[str, ...], folder: Path) -> None:
    assert "Softcap" in refused(*command, folder=folder)
    glowtrain(*command, "--import", "myops", folder=folder)


def test_a_file_by_its_path(folder: Path, tmp_path: Path) -> None:
    options = ("--op", "example.Softcap", "--examples", "1")
    assert "all passed" in glowtrain("gradcheck", "--import", str(folder / "myops.py"), *options, folder=tmp_path)


def test_a_key_without_its_domain_is_told(folder: Path) -> None:
    told = refused("gradcheck", "--import", "myops", "--op", "Softcap", folder=folder)
    assert "no operator 'Softcap' (with its domain it is 'example.Softcap')" in told


def test_modules_that_cannot_be_imported(folder: Path) -> None:
    assert "there is no module 'nowhere'" in refused("gradcheck", "--import", "nowhere", folder=folder)
    (folder / "broken.py").write_text("import nowhere\n")
    assert "importing 'broken' failed: No module named 'nowhere'" in refused(
        "gradcheck", "--import", "broken", folder=folder
    )
    (folder / "wrong.py").write_text("1 / 0\n")
    assert "importing 'wrong' failed with ZeroDivisionError" in refused("gradcheck", "--import", "wrong", folder=folder)
