"""glowtrain train: what it learns and writes, and the settings and files that it refuses before it begins."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from glowtrain import load
from glowtrain.backends import thread_count
from glowtrain.trainer.graphs import specs_of
from tests.cli.commands import done, refused


@pytest.mark.exhaustive
def test_train_learns_and_says_so(tmp_path: Path) -> None:
    out, step, log, picture = (tmp_path / name for name in ("out.onnx", "step.onnx", "log.jsonl", "loss.png"))
    said = done(
        *("train", "mlp", "--data", "digits", "--epochs", "3", "--out", out, "--log", log, "--plot", picture),
        *("--step-out", step, "--schedule", "cosine", "--warmup", "5", "--weight-decay", "0.01", "--clip-norm", "1"),
    )
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert records[-1]["val_accuracy"] > 0.9
    assert said.count("epoch ") >= 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {"labels", "hyper.lr"} <= set(specs_of(load(step)))


@pytest.mark.exhaustive
def test_some_parameters_otherwise_and_means(tmp_path: Path) -> None:
    out, step = tmp_path / "out.onnx", tmp_path / "step.onnx"
    said = done(
        *("train", "mlp", "--data", "digits", "--epochs", "1", "--out", out, "--step-out", step, "--ema", "0.9"),
        *("--group", "*.bias:lr_factor=0,weight_decay=0", "--regularize", "*.weight:l1=1e-4", "--beta2", "0.99"),
        *("--constrain", "*.weight:non_negative", "--amsgrad", "--eps", "1e-6"),
    )
    assert "out.onnx, of the means of the parameters" in said
    model, state = _initial(out), _initial(step)
    weights = [name for name in model if name.endswith(".weight")]
    assert weights
    assert all(np.array_equal(model[name], state[f"{name}.ema"]) for name in weights)
    assert not any(np.array_equal(model[name], state[name]) for name in weights)
    assert min(state[name].min() for name in weights) == 0
    assert all(np.array_equal(array, state[name]) for name, array in model.items() if name.endswith(".bias"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_trunk_keeps_its_statistics(tmp_path: Path, frozen: bool) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    done("train", "cnn", "--data", "digits", "--epochs", "1", "--batch-size", "479", "--out", first)
    options = ("--trainable", "scores.*", *(("--freeze-statistics",) if frozen else ()))
    done("train", first, "--data", "digits", "--epochs", "1", "--batch-size", "479", *options, "--out", second)
    changed = {name for name, array in _initial(first).items() if not np.array_equal(array, _initial(second)[name])}
    assert {"scores.weight", "scores.bias"} <= changed
    assert any("norm" in name for name in changed) != frozen


def _initial(path: Path) -> dict[str, np.ndarray]:
    """The initial values of a file's variables, running statistics among them."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


@pytest.mark.exhaustive
def test_more_threads_than_cores_are_a_remark_and_no_line_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_count, "cores", lambda: 1)
    thread_count._say_once.cache_clear()
    said = done("train", "mlp", "--data", "digits", "--epochs", "1", "--threads", "3", "--out", tmp_path / "t.onnx")
    thread_count._say_once.cache_clear()
    assert "warning: 3 threads share 1 core: more are not faster" in said
    assert ".py" not in said


def test_launched_processes_that_train_alone_hear_of_fleets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = "train", "mlp", "--data", "digits", "--epochs", "1", "--out"
    assert "--fleet" not in done(*train, tmp_path / "alone.onnx")
    monkeypatch.setenv("PMI_SIZE", "3")
    assert "3 processes were launched, and each trains alone" in done(*train, tmp_path / "launched.onnx")


def test_the_log_has_the_accuracy_of_training(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    common = ("train", "mlp", "--data", "digits", "--epochs", "1", "--out", tmp_path / "out.onnx", "--log", log)
    assert "train_accuracy" not in done(*common)
    assert "train_accuracy" not in log.read_text()
    said = done(*common, "--train-metrics")
    assert f"train_accuracy {json.loads(log.read_text())['train_accuracy']:.4f}" in said


@pytest.mark.exhaustive
def test_metrics_by_name(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    said = done(
        *("train", "mlp", "--data", "digits", "--epochs", "2", "--out", tmp_path / "out.onnx", "--log", log),
        *("--metric", "f1", "--metric", "confusion_matrix", "--metric", "top_3", "--train-metrics"),
        *("--patience", "2", "--monitor", "val_f1"),
    )
    record = json.loads(log.read_text().splitlines()[-1])
    assert f"val_f1 {record['val_f1']:.4f}" in said
    assert record["train_top_3"] > record["train_accuracy"]
    assert np.trace(record["val_confusion_matrix"]) == pytest.approx(360 * record["val_accuracy"])


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--out", "--checkpoint", "--log", "--step-out"])
def test_unwritable_outputs_are_found_before_training(option: str, tmp_path: Path) -> None:
    started = time.perf_counter()
    others = () if option == "--out" else ("--out", tmp_path / "out.onnx")
    message = refused("train", "cnn", "--data", "digits", option, tmp_path / "missing" / "file", *others)
    assert "missing" in message
    assert time.perf_counter() - started < 2
    assert list(tmp_path.iterdir()) == []


def test_directory_as_output(tmp_path: Path) -> None:
    assert "directory" in refused("train", "mlp", "--data", "digits", "--out", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--data", "imagenet"), "unknown data set"),
        (("--data", "digits", "--optimizer", "lbfgs"), "choose from sgd"),
        (("--data", "digits", "--optimizer", "adam", "--momentum", "0.9"), "adam has no --momentum"),
        (("--data", "digits", "--optimizer", "lion", "--nesterov"), "lion has no --nesterov; it has lr, "),
        (("--data", "digits", "--metric", "acc"), "there is no metric 'acc' (the nearest is 'accuracy')"),
        (("--data", "digits", "--metric", "r2"), "'r2' is of numbers that are to be near their targets"),
        (("--data", "digits", "--monitor", "val_f1"), "goes with patience"),
        (("--data", "digits", "--schedule", "wavy"), "choose from constant"),
        (("--data", "digits", "--shards", "8"), "are for ranks: give --fleet, too"),
        (
            ("--data", "digits", "--loss", "hinge"),
            "no loss 'hinge' (there are: softmax_cross_entropy, nll, mse, l1,",
        ),
        (("--data", "digits", "--loss", "crossentropy"), "(the nearest is 'softmax_cross_entropy'), and mlp has no"),
        (("--data", "digits", "--backend", "tpu"), "cpu, interpreter"),
        (
            ("--data", "digits", "--backend", "interpreter", "--threads", "2"),
            "interpreter runs on one thread, not on 2",
        ),
        (("--data", "digits", "--dims", "batch"), "NAME=EXTENT"),
        (("--data", "digits", "--dims", "time=3"), "time"),
        (("--data", "digits", "--trainable", "nothing.*"), "nothing.*"),
        (("--data", "digits", "--trainable", "scores.*[:11]"), "10 elements along axis 0, so :11 is no part of it"),
        (("--data", "digits", "--lr", "-1"), "lr"),
        (("--data", "digits", "--resume"), "--checkpoint"),
        (("--data", "digits", "--labels", "z"), "--labels"),
        (("--data", "fashion-mnist", "--data-dir", "/nowhere"), "/nowhere"),
    ],
)
def test_wrong_settings(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    assert expected in refused("train", "mlp", *arguments, "--out", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_labels_out_of_range(tmp_path: Path, trained: Path) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, x=np.zeros((8, 1, 8, 8), np.float32), y=np.full(8, 11))
    assert "label 11" in refused("train", trained, "--data", path, "--out", tmp_path / "out.onnx")


def test_diverging_loss_stops_and_says_where(tmp_path: Path, four: Path, regression: Path) -> None:
    message = refused(
        *("train", four, "--data", regression, "--loss", "mse", "--optimizer", "sgd", "--lr", "1e30", "--epochs", "9"),
        *("--batch-size", "4", "--out", tmp_path / "out.onnx"),
    )
    assert "the loss is" in message
    assert not (tmp_path / "out.onnx").exists()


def test_an_unknown_kind_of_picture_is_found_before_training(tmp_path: Path) -> None:
    said = refused(
        "train", "none.onnx", "--data", "none.npz", "--out", tmp_path / "o.onnx", "--plot", tmp_path / "p.gif"
    )
    assert "a plot is drawn into a file whose name ends in .png or .svg" in said


def test_an_impossible_opset_is_found_before_training(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    message = refused("train", "mlp", "--data", "digits", "--epochs", "1", "--opset", "3", "--out", path)
    (line,) = message.strip().splitlines()
    assert line.startswith("error: cannot save at opset 3: choose one from 13 to ")
    assert not path.exists()
