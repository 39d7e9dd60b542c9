"""``glowtrain evaluate`` and ``run`` on tables, folders of images and shards, with what a model's file says of its
training: the numbers of ``trainer.evaluate`` and of scikit-learn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from PIL import Image
from sklearn import metrics as sklearn

import glowtrain as gt
from tests.cli.commands import call, done, refused

METRICS = ["f1_macro", "auc", "confusion_matrix", "per_class_accuracy"]


@pytest.fixture(scope="module")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of three kinds to train on and to test, and a model of them."""
    folder = tmp_path_factory.mktemp("flowers")
    rng = np.random.default_rng(0)
    kinds = np.repeat(["rose", "lily", "aster"], 60)
    centre = {"rose": (0, 0), "lily": (2, 0), "aster": (0, 2)}
    rows = np.array([centre[kind] for kind in kinds]) + rng.standard_normal((180, 2))
    frame = pd.DataFrame({"length": rows[:, 0], "width": rows[:, 1], "kind": kinds, "note": "dry"})
    frame = frame.assign(number=range(180), w=rng.uniform(0, 2, 180)).sample(frac=1, random_state=0)
    frame[:120][["length", "width", "kind", "note"]].to_csv(folder / "train.csv", index=False)
    frame[120:][["note", "kind", "number", "w", "width", "length"]].to_csv(folder / "test.csv", index=False)
    frame[120:][["width", "length"]].to_csv(folder / "new.csv", index=False)
    train("mlp", folder / "train.csv", folder / "model.onnx", "--labels", "kind", "--drop", "note")
    return folder


def train(model: str, data: Path, out: Path, *options: str | Path) -> None:
    done("train", model, "--data", data, "--out", out, "--epochs", "15", "--batch-size", "16", *options)


def evaluated(model: Path, data: Path, *options: str | Path) -> dict[str, Any]:
    """What the command measures, as its file says."""
    report = model.with_name("report.json")
    done("evaluate", model, "--data", data, "--json", report, *options)
    said: dict[str, Any] = json.loads(report.read_text())
    return said


def listed(*metrics: str) -> list[str]:
    return [word for metric in metrics for word in ("--metric", metric)]


def predicted(model: Path, data: Path, *options: str | Path) -> pd.DataFrame:
    """The table that ``run`` writes."""
    out = model.with_name("predictions.csv")
    done("run", model, "--input", data, "--output", out, *options)
    return pd.read_csv(out)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_test_set_is_measured_as_the_trainer_and_scikit_learn_do(flowers: Path, weighted: bool) -> None:
    """Rows whose columns stand in another order, beside others."""
    model, test = flowers / "model.onnx", flowers / "test.csv"
    options = ("--sample-weight", "w") if weighted else ()
    said = evaluated(model, test, "--labels", "kind", *listed(*METRICS), *options)
    names = ("aster", "lily", "rose")
    rows = gt.data.table(test, "kind", weight="w", classes=names, columns=["length", "width"])
    arrays = {name: array for name, array in rows.train.items() if weighted or name != "sample_weight"}
    trainer = gt.Trainer(gt.load(model), "softmax_cross_entropy", "adam", metrics=METRICS, sample_weight=weighted)
    assert said["results"] == trainer.evaluate(arrays)
    assert (said["examples"], said["classes"]) == (60, [*names])
    scores = trainer.predict(rows.x)["scores"].astype(np.float64)
    weights = arrays.get("sample_weight")
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    by = {"sample_weight": weights}
    expected = {
        "loss": sklearn.log_loss(rows.y, shares, **by),
        "accuracy": sklearn.accuracy_score(rows.y, scores.argmax(1), **by),
        "f1_macro": sklearn.f1_score(rows.y, scores.argmax(1), average="macro", **by),
        "auc": sklearn.roc_auc_score(rows.y, shares, multi_class="ovr", **by),
    }
    assert {name: said["results"][name] for name in expected} == pytest.approx(expected, rel=1e-5)
    matrix = sklearn.confusion_matrix(rows.y, scores.argmax(1), **by)
    np.testing.assert_allclose(said["results"]["confusion_matrix"], matrix, rtol=1e-6)


def test_units_of_a_table_s_columns_mean_nothing_to_the_perceptron(flowers: Path, tmp_path: Path) -> None:
    """But for rounding, and a column of one number."""
    for name in ("train.csv", "test.csv"):
        frame = pd.read_csv(flowers / name)
        frame = frame.assign(length=5e4 + 1e4 * frame.length, width=1e-4 * frame.width, always=0.1)
        frame.to_csv(tmp_path / name, index=False)
    train("mlp", tmp_path / "train.csv", tmp_path / "model.onnx", "--labels", "kind", "--drop", "note")
    found, expected = (predicted(folder / "model.onnx", folder / "test.csv") for folder in (tmp_path, flowers))
    assert (found["class"] == expected["class"]).mean() > 0.9


def test_predictions_of_rows_without_labels(flowers: Path) -> None:
    model, test = flowers / "model.onnx", pd.read_csv(flowers / "test.csv")
    test[["width", "length"]].to_parquet(flowers / "new.parquet")
    found = predicted(model, flowers / "new.csv")
    x = test[["length", "width"]].to_numpy(np.float32)
    scores = gt.compile(gt.load(model))({"x": x})["scores"]
    assert [*found] == ["class", "scores_aster", "scores_lily", "scores_rose"]
    np.testing.assert_array_equal(found.to_numpy()[:, 1:].astype(np.float32), scores)
    assert found["class"].tolist() == [("aster", "lily", "rose")[number] for number in scores.argmax(1)]
    assert (found["class"] == test["kind"]).mean() > 0.6
    for same in (flowers / "test.csv", flowers / "new.parquet"):
        assert predicted(model, same).equals(found)
    done("run", model, "--data", flowers / "new.csv", "--output", flowers / "new.npz")
    np.testing.assert_array_equal(np.load(flowers / "new.npz")["scores"], scores)


def test_tables_on_the_terminal(flowers: Path) -> None:
    said = done(
        "evaluate", flowers / "model.onnx", "--data", flowers / "test.csv", "--labels", "kind", *listed(*METRICS)
    )
    results = evaluated(flowers / "model.onnx", flowers / "test.csv", "--labels", "kind", *listed(*METRICS))["results"]
    words = said.split()
    assert said.startswith(f"{flowers / 'model.onnx'} on 60 examples of {flowers / 'test.csv'}")
    assert f"{results['f1_macro']:.6g}" == words[words.index("f1_macro") + 1]
    row = words.index("lily", words.index("rose"))
    assert [int(word) for word in words[row + 1 : row + 4]] == results["confusion_matrix"][1]
    assert words[-2:] == ["rose", f"{results['per_class_accuracy'][2]:.6g}"]


def test_numbers_are_measured_by_the_loss_that_the_model_was_trained_by(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "sum": x.sum(axis=1)})
    frame[:150].to_csv(tmp_path / "train.csv", index=False)
    frame[150:][["sum", "c", "b", "a"]].to_csv(tmp_path / "test.csv", index=False)
    model = tmp_path / "sum.onnx"
    train("mlp", tmp_path / "train.csv", model, "--labels", "sum", "--loss", "mse")
    results = evaluated(model, tmp_path / "test.csv", "--labels", "sum", *listed("r2", "rmse"))["results"]
    found = predicted(model, tmp_path / "test.csv")
    target = frame["sum"][150:].to_numpy()
    assert [*found] == ["scores"]
    assert results == pytest.approx(
        {
            "loss": sklearn.mean_squared_error(target, found["scores"]),
            "r2": sklearn.r2_score(target, found["scores"]),
            "rmse": sklearn.root_mean_squared_error(target, found["scores"]),
        },
        rel=1e-5,
    )
    other = evaluated(model, tmp_path / "test.csv", "--labels", "sum", "--loss", "l1")["results"]
    assert other["loss"] == pytest.approx(sklearn.mean_absolute_error(target, found["scores"]), rel=1e-5)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, light in {"dark": 40, "light": 200}.items():
        for number in range(12):
            pixels = np.clip(rng.normal(light, 20, (9 + number % 3, 12, 3)), 0, 255).astype(np.uint8)
            path = tmp_path / "photos" / name / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return tmp_path / "photos"


def test_images_have_the_size_that_the_model_takes(photos: Path, tmp_path: Path) -> None:
    model = tmp_path / "photos.onnx"
    train("cnn", photos, model, "--image-size", "8x12")
    found = gt.data.images(photos, (8, 12))
    trainer = gt.Trainer(gt.load(model), "softmax_cross_entropy", "adam", metrics=["f1"])
    assert evaluated(model, photos, "--metric", "f1")["results"] == trainer.evaluate(found)
    table = predicted(model, photos)
    assert table["file"].tolist() == [f"{name}/{n:02}.png" for name in ("dark", "light") for n in range(12)]
    np.testing.assert_array_equal(table["scores_light"].astype(np.float32), trainer.predict(found.x)["scores"][:, 1])
    flat = predicted(model, photos / "light")
    assert (flat["file"][0], set(flat["class"])) == ("00.png", {"light"})
    (photos / "none").mkdir()
    said = refused("run", model, "--input", photos / "none", "--output", tmp_path / "none.csv")
    assert "there are no images in this folder" in said
    (photos / "medium").mkdir()
    (photos / "light" / "00.png").rename(photos / "medium" / "00.png")
    assert "'medium' is none of the classes that are trained on" in refused("evaluate", model, "--data", photos)


def test_shards_and_quantized_models(trained: Path, tmp_path: Path) -> None:
    digits = gt.data.digits()
    (tmp_path / "shards").mkdir()
    for number, (x, y) in enumerate(zip(np.array_split(digits.x, 3), np.array_split(digits.y, 3), strict=True)):
        np.savez(tmp_path / "shards" / f"{number}.npz", x=x, y=y)
    trainer = gt.Trainer(gt.load(trained), "softmax_cross_entropy", "adam", metrics=["top_3"])
    small = tmp_path / "int8.onnx"
    done("quantize", trained, "--calibrate", "digits", "--out", small)
    results = evaluated(small, tmp_path / "shards", "--metric", "top_3")["results"]
    assert results == pytest.approx(trainer.evaluate(digits.train), rel=0.05)
    np.savez(tmp_path / "digits.npz", x=digits.x, y=digits.y)
    assert results == evaluated(small, tmp_path / "digits.npz", "--metric", "top_3")["results"]
    table = predicted(trained, tmp_path / "shards", "--batch-size", "100")
    np.testing.assert_array_equal(table["class"], trainer.predict(digits)["scores"].argmax(1))
    said = evaluated(trained, Path("digits"))
    assert (said["data"], said["examples"]) == ("digits (validation)", 360)
    assert said["results"] == {k: v for k, v in trainer.evaluate(digits).items() if k != "top_3"}


@gt.model(x=gt.f32["batch", 5])
def two(x: gt.Value) -> dict[str, gt.Value]:
    x = gt.nn.tanh(gt.nn.linear(x, 8))
    return {"size": gt.nn.linear(x, 2), "kind": gt.nn.linear(x, 3)}


def test_several_outputs(tmp_path: Path) -> None:
    rng, model = np.random.default_rng(0), tmp_path / "two.onnx"
    arrays = {
        "x": rng.normal(size=(30, 5)),
        "kind_target": rng.integers(0, 3, 30),
        "size_target": rng.normal(size=(30, 2)),
    }
    np.savez(tmp_path / "data.npz", **arrays)
    gt.save(two.bind({"batch": 8}), tmp_path / "given.onnx")
    losses = ("--loss", "kind=softmax_cross_entropy", "--loss", "size=0.5*mse")
    train(str(tmp_path / "given.onnx"), tmp_path / "data.npz", model, *losses)
    results = evaluated(model, tmp_path / "data.npz", *listed("kind=f1", "size=mae"))["results"]
    by_outputs = {"kind": "softmax_cross_entropy", "size": 0.5 * gt.losses.mse("size_target")}
    trainer = gt.Trainer(gt.load(model), by_outputs, "adam", metrics={"kind": ["f1"], "size": ["mae"]})
    assert results == trainer.evaluate(arrays)
    table = predicted(model, tmp_path / "data.npz")
    assert [*table] == ["size_0", "size_1", "kind_class", "kind_0", "kind_1", "kind_2"]
    np.testing.assert_array_equal(table["kind_class"], trainer.predict(arrays["x"])["kind"].argmax(1))


@gt.model(x=gt.f32["batch", 2])
def average(x: gt.Value) -> dict[str, gt.Value]:
    return {"mean": gt.nn.mean(gt.nn.linear(x, 3))}


Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.mark.parametrize(
    ("change", "command", "expected"),
    [
        (lambda rows: rows.drop(columns="width"), "run", "no column 'width'; .* was trained on 'length', 'width'"),
        (lambda rows: rows.assign(width=np.nan), "run", r"values are missing in width \(60\) of 60 rows"),
        (lambda rows: rows.assign(width="wide"), "run", "columns 'width' are no numbers"),
        (lambda rows: rows.drop(columns="kind"), "evaluate", "no column 'kind'"),
        (lambda rows: rows.replace({"kind": {"lily": "tulip"}}), "evaluate", "'tulip' is none of the classes"),
        (lambda rows: rows.assign(kind=np.nan), "evaluate", r"values are missing in kind \(60\)"),
    ],
)  # fmt: skip
def test_rows_that_a_model_cannot_take(
    flowers: Path, change: Change, command: str, expected: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    change(pd.read_csv(flowers / "test.csv")).to_csv(path, index=False)
    options = ("--output", out) if command == "run" else ("--labels", "kind", "--json", out)
    said = refused(command, flowers / "model.onnx", "--data", path, *options)
    assert re.search(expected, said), said
    assert not out.exists()


def test_mistakes(flowers: Path, tmp_path: Path) -> None:
    model, test = flowers / "model.onnx", flowers / "test.csv"
    known = ("evaluate", model, "--data", test, "--labels", "kind")
    assert "no 'y' for the loss; name it with --labels" in refused("evaluate", model, "--data", test)
    assert "'r2' is of numbers" in refused(*known, "--metric", "r2")
    assert "('target' is y in the data)" in refused(*known, "--loss", "mse")
    assert "missing" in refused(*known, "--json", tmp_path / "missing" / "r.json")
    assert "predictions are written as .npz or .csv" in refused("run", model, "--data", test, "--output", "p.txt")
    assert call("evaluate", model).exit_code == 2
    gt.save(average.bind({"batch": 4}), tmp_path / "mean.onnx")
    said = refused("run", tmp_path / "mean.onnx", "--data", flowers / "new.csv", "--output", tmp_path / "p.csv")
    assert "mean f32[] are not one for each example, so they make no table" in said


def test_metadata_of_training_stay_with_a_model(flowers: Path, tmp_path: Path) -> None:
    model, again, small = flowers / "model.onnx", tmp_path / "again.onnx", tmp_path / "int8.onnx"
    train(str(model), flowers / "test.csv", again, "--labels", "kind", "--loss", "nll")
    done("quantize", model, "--dynamic", "--out", small)
    for path, loss in ((model, "softmax_cross_entropy"), (again, "nll"), (small, "softmax_cross_entropy")):
        entries = {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}
        assert entries["glowtrain.columns"] == ["length", "width"]
        assert entries["glowtrain.loss"] == [loss]
