"""Tables as data sets: features, labels of texts, numbers to learn; from file to model; what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain import data
from glowtrain.cli import app
from glowtrain.errors import DataError, MissingExtraError


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """Three kinds that differ in two features."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(["rose", "lily", "aster"], 40)
    centre = {"rose": (0, 0), "lily": (4, 0), "aster": (0, 4)}
    rows = np.array([centre[kind] for kind in kinds]) + rng.standard_normal((120, 2)) / 2
    frame = pd.DataFrame({"length": rows[:, 0], "width": rows[:, 1], "kind": kinds, "note": "dry"})
    path = tmp_path / "flowers.csv"
    frame.sample(frac=1, random_state=0).to_csv(path, index=False)
    return path


def test_texts_become_classes_in_order(flowers: Path) -> None:
    found = data.load(flowers, target="kind", drop=["note"])
    frame = pd.read_csv(flowers)
    assert found.classes == ("aster", "lily", "rose")
    assert (found.x.dtype, found.x.shape, found.y.dtype) == (np.float32, (120, 2), np.int64)
    assert [found.classes[label] for label in found.y] == frame["kind"].tolist()
    assert np.array_equal(found.x, frame[["length", "width"]].to_numpy(np.float32))


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([3, 1, 2], np.int64, [3, 1, 2]),
        ([0.5, 1.5, 2.5], np.float32, [0.5, 1.5, 2.5]),
        ([True, False, True], np.int64, [1, 0, 1]),
    ],
)
def test_numbers_to_learn_stay_as_they_are(
    tmp_path: Path, values: list[float], dtype: type, expected: list[float]
) -> None:
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": [1.0, 2.0, 3.0], "target": values}).to_csv(path, index=False)
    found = data.table(path, "target")
    assert found.y.dtype == dtype
    assert found.y.tolist() == expected


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("a,b\n1,\n2,3\n", "b", r"values are missing in b \(1\) of 2 rows"),
        ("a,b\n1,2\n", "c", r"no column 'c'"),
        ("name,b\nx,2\n", "b", r"columns 'name' are no numbers.*--drop"),
        ("a,b\n", "b", "the table has no rows"),
        ("", "b", "cannot be read as a table"),
        ("a,b\n1,2\n3,4,5\n", "b", "cannot be read as a table"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, text: str, target: str, message: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        data.table(path, target)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        data.table(tmp_path / "none.csv", "y")
    with pytest.raises(DataError, match=r"unknown data set 'rows.txt': use digits, fashion-mnist or the path"):
        data.load("rows.txt")


def test_without_pandas(flowers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"reading flowers.csv needs pandas: pip install -e '\.\[table\]'"):
        data.table(flowers, "kind")


class TestCommand:
    def run(self, *arguments: object) -> str:
        done = CliRunner().invoke(app, ["train", *map(str, arguments)])
        assert done.exit_code == 0, done.output
        return done.output

    def test_from_a_table_to_a_model_that_names_its_classes(self, flowers: Path, tmp_path: Path) -> None:
        out = tmp_path / "flowers.onnx"
        said = self.run(
            "mlp", "--data", flowers, "--labels", "kind", "--drop", "note", "--validation", 0.25, "--epochs", 20,
            "--batch-size", 16, "--out", out,
        )  # fmt: skip
        assert "val_accuracy 1.0000" in said
        entries = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
        assert json.loads(entries["glowtrain.classes"]) == ["aster", "lily", "rose"]

    def test_a_trained_model_numbers_labels_by_its_own_classes(self, flowers: Path, tmp_path: Path) -> None:
        out, again, small = (tmp_path / f"{name}.onnx" for name in ("flowers", "again", "int8"))
        common = ("--labels", "kind", "--epochs")
        self.run("mlp", "--data", flowers, "--drop", "note", *common, 20, "--batch-size", 16, "--out", out)
        rows = pd.read_csv(flowers).drop(columns="note")
        some = tmp_path / "some.csv"
        rows[rows["kind"] != "aster"].to_csv(some, index=False)
        said = self.run(out, "--data", some, *common, 1, "--lr", 0, "--train-metrics", "--out", again)
        assert "train_accuracy 1.0000" in said
        options = ("quantize", again, "--calibrate", some, "--labels", "kind", "--out", small)
        assert CliRunner().invoke(app, [*map(str, options)]).exit_code == 0
        dynamic = ("quantize", again, "--dynamic", "--out", tmp_path / "dynamic.onnx")
        assert CliRunner().invoke(app, [*map(str, dynamic)]).exit_code == 0
        for path in (again, small, tmp_path / "dynamic.onnx"):
            entries = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
            assert json.loads(entries["glowtrain.classes"]) == ["aster", "lily", "rose"]
        rows.replace({"kind": {"lily": "tulip"}}).to_csv(some, index=False)
        done = CliRunner().invoke(app, ["train", *map(str, (out, "--data", some, *common, 1, "--out", again))])
        assert done.exit_code == 1
        assert "'tulip' is none of the classes that are trained on" in " ".join(done.output.split())

    @pytest.mark.parametrize(("text", "problem"), [("[", "are not JSON"), ('["a", 1]', "must be a list of texts")])
    def test_classes_in_metadata_that_are_none(self, text: str, problem: str, flowers: Path, tmp_path: Path) -> None:
        @gt.model(x=gt.f32["batch", 2])
        def net(x: gt.Value) -> gt.Value:
            return gt.nn.linear(x, 3)

        gt.save(net, tmp_path / "net.onnx", metadata={"glowtrain.classes": text})
        options = (tmp_path / "net.onnx", "--data", flowers, "--drop", "note", "--labels", "kind")
        done = CliRunner().invoke(app, ["train", *map(str, (*options, "--out", tmp_path / "out.onnx"))])
        assert done.exit_code == 1
        assert f"the metadata 'glowtrain.classes' {problem}" in " ".join(done.output.split())

    def test_numbers_are_learnt_by_the_perceptron(self, tmp_path: Path) -> None:
        path, x = tmp_path / "rows.csv", np.random.default_rng(0).standard_normal((200, 3))
        pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "sum": x.sum(axis=1)}).to_csv(path, index=False)
        said = self.run(
            "mlp", "--data", path, "--labels", "sum", "--loss", "mse", "--metric", "r2", "--validation", 0.2,
            "--epochs", 20, "--out", tmp_path / "sum.onnx",
        )  # fmt: skip
        assert float(said.split("val_r2 ")[-1].split()[0]) > 0.9
        without = ("train", "mlp", "--data", path, "--labels", "sum", "--out", tmp_path / "sum.onnx")
        done = CliRunner().invoke(app, [*map(str, without)])
        assert done.exit_code == 1
        assert "not float32; numbers are learnt by a loss such as mse" in " ".join(done.output.split())

    def test_a_column_of_weights(self, flowers: Path, tmp_path: Path) -> None:
        frame = pd.read_csv(flowers).assign(weight=lambda rows: (rows["kind"] != "rose") * 1.5)
        frame.to_csv(tmp_path / "rows.csv", index=False)
        common = ("mlp", "--data", tmp_path / "rows.csv", "--labels", "kind", "--drop", "note", "--epochs", 20)
        weighted = ("--sample-weight", "weight", "--class-weight", "1,2,3", "--batch-size", 16)
        out = tmp_path / "flowers.onnx"
        self.run(*common, *weighted, "--metric", "per_class_accuracy", "--validation", 0.25, "--out", out)
        rows = frame.drop(columns=["kind", "note", "weight"]).to_numpy(np.float32)
        chosen = gt.compile(gt.load(out))({"x": rows}).popitem()[1].argmax(1)
        assert set(chosen.tolist()) == {0, 1}
        for wrong, expected in (
            (("--sample-weight", "w"), "no column 'w'"),
            (("--class-weight", "a"), "must be balanced"),
        ):
            done = CliRunner().invoke(app, ["train", *map(str, (*common, *wrong, "--out", out))])
            assert done.exit_code == 1
            assert expected in " ".join(done.output.split())

    def test_an_array_of_weights(self, tmp_path: Path) -> None:
        x, out = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32), tmp_path / "m.onnx"
        np.savez(tmp_path / "rows.npz", x=x, y=(x[:, 0] > 0) * 1, w=np.ones(64))
        common = ("mlp", "--data", tmp_path / "rows.npz", "--epochs", 1, "--out", out, "--sample-weight")
        assert "val_accuracy" in self.run(*common, "w", "--class-weight", "balanced", "--validation", 0.25)
        done = CliRunner().invoke(app, ["train", *map(str, (*common, "weights"))])
        assert done.exit_code == 1
        assert "no array 'weights' for --sample-weight; it has x, y, w" in " ".join(done.output.split())

    def test_columns_of_what_is_no_table(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(
            app, ["train", "mlp", "--data", "digits", "--drop", "x", "--out", str(tmp_path / "m.onnx")]
        )
        assert done.exit_code == 1
        assert "--drop leaves columns of a table out (.csv, .parquet), and not arrays of digits" in done.output


def test_other_rows_are_numbered_by_the_classes_of_those_trained_on(flowers: Path, tmp_path: Path) -> None:
    classes = data.table(flowers, "kind", ["note"]).classes
    (tmp_path / "more.csv").write_text("length,width,kind\n1,2,rose\n3,4,aster\n")
    assert data.table(tmp_path / "more.csv", "kind").y.tolist() == [1, 0]
    found = data.table(tmp_path / "more.csv", "kind", classes=classes)
    assert (found.y.tolist(), found.classes) == ([2, 0], classes)
    (tmp_path / "more.csv").write_text("length,width,kind\n1,2,rose\n3,4,tulip\n")
    with pytest.raises(DataError, match=r"more.csv: 'tulip' is none of the classes that are .*'aster', 'lily'"):
        data.table(tmp_path / "more.csv", "kind", classes=classes)
