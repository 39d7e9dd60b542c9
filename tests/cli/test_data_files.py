"""Data files on the command line: which arrays go where, in which shapes and types, and which are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app

RUNNER = CliRunner()


def call(*arguments: object) -> tuple[int, str]:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, re.sub(r"\s+", " ", result.output)


def done(*arguments: object) -> str:
    status, said = call(*arguments)
    assert status == 0, said
    return said


def refused(*arguments: object) -> str:
    status, said = call(*arguments)
    assert status == 1, said
    return said


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A classifier of color images x f32[batch,3,4,6]."""

    @gt.model(x=gt.f32["batch", 3, 4, 6])
    def images(x: gt.Value) -> dict[str, gt.Value]:
        return {"scores": gt.nn.linear(gt.nn.flatten(gt.nn.relu(gt.nn.conv(x, 4, 3))), 3)}

    path = tmp_path / "images.onnx"
    gt.save(images.bind({"batch": 4}), path)
    return path


def data(path: Path, change: Any = lambda x: x, **more: np.ndarray) -> Path:
    """Images and labels, those for validation too, in one file."""
    random = np.random.default_rng(3)
    x, y = random.normal(size=(24, 3, 4, 6)).astype(np.float32), random.integers(0, 3, 24)
    arrays = {"x": change(x[:16]), "y": y[:16], "x_valid": change(x[16:]), "y_valid": y[16:]}
    np.savez(path, **arrays, **more)
    return path


def commands(model: Path, file: Path, out: Path) -> dict[str, tuple[object, ...]]:
    return {
        "train": ("train", model, "--data", file, "--epochs", 1, "--out", out),
        "run": ("run", model, "--input", file, "--output", out),
        "quantize": ("quantize", model, "--calibrate", file, "--out", out),
        "gradcheck": ("gradcheck", model, "--input", file, "--loss", "softmax_cross_entropy"),
    }


@pytest.mark.parametrize("command", ["train", "run", "quantize", "gradcheck"])
def test_channels_last_is_an_error_that_says_what_to_transpose(command: str, model: Path, tmp_path: Path) -> None:
    file = data(tmp_path / "last.npz", lambda x: x.transpose(0, 2, 3, 1))
    said = refused(*commands(model, file, tmp_path / "out")[command])
    assert "'x' must be f32[batch,3,4,6], not float32[16,4,6,3]; it looks like channels last" in said
    assert "use .transpose(0, 3, 1, 2)" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.spread(1)
@pytest.mark.parametrize("change", ["flat", "f64", "column"])
def test_flat_examples_and_wide_floats_are_the_same_images(change: str, model: Path, tmp_path: Path) -> None:
    changes = {
        "flat": lambda x: x.reshape(len(x), -1),
        "f64": lambda x: x.astype(np.float64),
        "column": lambda x: x.reshape(len(x), 1, -1, 1),
    }
    plain, other = data(tmp_path / "plain.npz"), data(tmp_path / "other.npz", changes[change])
    for number, file in enumerate((plain, other)):
        done("run", model, "--input", file, "--output", tmp_path / f"{number}.npz")
        done("train", model, "--data", file, "--epochs", 1, "--out", tmp_path / f"{number}.onnx")
    assert (tmp_path / "0.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()
    np.testing.assert_array_equal(np.load(tmp_path / "0.npz")["scores"], np.load(tmp_path / "1.npz")["scores"])


@pytest.mark.parametrize("command", ["train", "run", "gradcheck"])
def test_one_file_is_for_all_commands(command: str, model: Path, tmp_path: Path) -> None:
    """The file that train takes has labels and validation arrays; other things in it are named, and not used."""
    file = data(tmp_path / "d.npz", meta=np.arange(3), names=np.array(["a", "b"]), version=np.array(2))
    said = done(*commands(model, file, tmp_path / "out")[command])
    ignored = ("y, " if command == "run" else "") + "meta, names, version"
    assert f"not used: {ignored}" in said


def test_run_takes_the_arrays_that_are_not_for_validation(model: Path, tmp_path: Path) -> None:
    done("run", model, "--input", data(tmp_path / "d.npz"), "--output", tmp_path / "p.npz")
    found, x = np.load(tmp_path / "p.npz")["scores"], np.load(tmp_path / "d.npz")["x"]
    np.testing.assert_array_equal(found, gt.compile(gt.load(model))({"x": x})["scores"])


def test_an_input_without_an_array_is_told_what_there_is(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", a=np.zeros((2, 3, 4, 6)), b=np.zeros(2))
    said = refused("run", model, "--input", tmp_path / "d.npz", "--output", tmp_path / "p.npz")
    assert "has a float64[2, 3, 4, 6], b float64[2], but no array for the model's input 'x'" in said


def test_gradcheck_does_not_draw_an_input_whose_name_is_misspelt(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", xx=np.zeros((2, 3, 4, 6)), y=np.zeros(2, int))
    said = refused("gradcheck", model, "--input", tmp_path / "d.npz", "--loss", "softmax_cross_entropy")
    assert "has no input 'xx'; it has x, labels" in said


def test_messages_name_the_arrays_as_the_file_does(tmp_path: Path) -> None:
    @gt.model(features=gt.f32["batch", 4])
    def line(features: gt.Value) -> gt.Value:
        return gt.nn.linear(features, 2)

    gt.save(line.bind({"batch": 4}), tmp_path / "line.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 4)), y=np.zeros(8))
    said = refused(
        *("train", tmp_path / "line.onnx", "--data", tmp_path / "d.npz", "--loss", "mse", "--out", tmp_path / "o.onnx")
    )
    assert "'target' must be f32[batch,2], not float64[8]; the loss compares it with output 'output'" in said
    assert "('target' is y in the data)" in said


def test_a_flat_target_and_integers_are_a_column_of_floats(tmp_path: Path) -> None:
    @gt.model(x=gt.f32["batch", 4])
    def line(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 1)

    gt.save(line.bind({"batch": 4}), tmp_path / "line.onnx")
    x = np.random.default_rng(0).integers(0, 9, (16, 4)).astype(np.uint8)
    y = x.sum(1).astype(np.int32)
    np.savez(tmp_path / "flat.npz", x=x, y=y)
    np.savez(tmp_path / "column.npz", x=x.astype(np.float32), y=y[:, None].astype(np.float32))
    for name in ("flat", "column"):
        file, out = tmp_path / f"{name}.npz", tmp_path / f"{name}.onnx"
        done("train", tmp_path / "line.onnx", "--data", file, "--loss", "mse", "--out", out)
        done("gradcheck", tmp_path / "line.onnx", "--input", file, "--loss", "mse")
    assert (tmp_path / "flat.onnx").read_bytes() == (tmp_path / "column.onnx").read_bytes()


# --- a fixed batch ---------------------------------------------------------------------------------------------------


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """A classifier of 5 examples x f32[5,4] at once, as an ordinary export writes it."""

    @gt.model(x=gt.f32["batch", 4])
    def five(x: gt.Value) -> dict[str, gt.Value]:
        return {"scores": gt.nn.linear(x, 3)}

    path = tmp_path / "fixed.onnx"
    gt.save(five.bind({"batch": 5}).with_(template=None), path)
    return path


def rows(path: Path, count: int, valid: int) -> Path:
    random = np.random.default_rng(8)
    x, y = random.normal(size=(count + valid, 4)).astype(np.float32), random.integers(0, 3, count + valid)
    np.savez(path, x=x[:count], y=y[:count], x_valid=x[count:], y_valid=y[count:])
    return path


def test_a_models_fixed_batch_is_the_default(fixed: Path, tmp_path: Path) -> None:
    file, log = rows(tmp_path / "d.npz", 20, 10), tmp_path / "log.jsonl"
    done("train", fixed, "--data", file, "--out", tmp_path / "out.onnx", "--log", log)
    assert [line["epoch"] for line in map(json.loads, log.read_text().splitlines())] == [1, 2, 3]


@pytest.mark.exhaustive
def test_short_batches_of_a_fixed_model_can_be_left_out(fixed: Path, tmp_path: Path) -> None:
    file, whole = rows(tmp_path / "d.npz", 22, 12), tmp_path / "whole.npz"
    assert "cannot take a last batch of 2: leave it out (drop_last=True, --drop-last)" in refused(
        "train", fixed, "--data", file, "--out", tmp_path / "out.onnx"
    )
    found = np.load(file)
    np.savez(whole, x=found["x"], y=found["y"], x_valid=found["x_valid"][:10], y_valid=found["y_valid"][:10])
    logs = []
    for number, name in enumerate((file, whole)):
        log = tmp_path / f"{number}.jsonl"
        done("train", fixed, "--data", name, "--drop-last", "--out", tmp_path / f"{number}.onnx", "--log", log)
        logs.append([json.loads(line)["val_loss"] for line in log.read_text().splitlines()])
    assert logs[0] == logs[1]
    short = rows(tmp_path / "short.npz", 20, 3)
    said = refused("train", fixed, "--data", short, "--drop-last", "--out", tmp_path / "out.onnx")
    assert "3 examples do not fill one batch of 5" in said


@pytest.mark.exhaustive
def test_short_batches_can_be_left_out_of_any_model(model: Path, tmp_path: Path) -> None:
    seen = []
    for drop in ((), ("--drop-last",)):
        step = tmp_path / "step.onnx"
        arguments = ("--batch-size", 6, "--epochs", 1, "--out", tmp_path / "o.onnx", "--step-out", step)
        done("train", model, "--data", data(tmp_path / "d.npz"), *arguments, *drop)
        steps = next(v for v in gt.load(step).variables if v.name == "optimizer.step")
        seen.append(int(steps.initial))
    assert seen == [3, 2]


@pytest.mark.parametrize("count", [3, 5, 13])
def test_run_gives_a_fixed_model_its_batches(fixed: Path, tmp_path: Path, count: int) -> None:
    x = np.random.default_rng(2).normal(size=(count, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    said = done("run", fixed, "--input", tmp_path / "x.npz", "--output", tmp_path / "p.npz")
    assert f"scores f32[{count},3]" in said
    weights = {variable.name: variable.initial for variable in gt.load(fixed).variables}
    expected = x @ weights["linear.weight"] + weights["linear.bias"]
    np.testing.assert_allclose(np.load(tmp_path / "p.npz")["scores"], expected, rtol=1e-5, atol=1e-6)


def test_run_works_in_batches(model: Path, tmp_path: Path) -> None:
    file = data(tmp_path / "d.npz")
    found = []
    for size in ((), ("--batch-size", 3)):
        done("run", model, "--input", file, "--output", tmp_path / "p.npz", *size)
        found.append(np.load(tmp_path / "p.npz")["scores"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
    said = refused("run", model, "--dims", "batch=4", "--batch-size", 3, "--input", file, "--output", tmp_path / "p")
    assert "the model's batch is fixed at 4: it cannot be 3" in said
