"""``glowtrain quantize`` from end to end, on a small trained model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.data import digits

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantize") / "trained.onnx"
    done("train", "cnn", "--data", "digits", "--epochs", "2", "--out", path)
    return path


def called(*arguments: object) -> tuple[int, str]:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def done(*arguments: object) -> str:
    status, said = called(*arguments)
    assert status == 0, said
    return said


def kinds(path: Path) -> set[str]:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return {node.op_type for node in model.graph.node}


def test_after_training(trained: Path, tmp_path: Path) -> None:
    out, page, profile, plain = (tmp_path / name for name in ("int8.onnx", "r.html", "profile.json", "r.json"))
    said = done(
        "quantize", trained, "--calibrate", "digits", "--out", out, "--report", page, "--profile", profile,
        "--method", "entropy", "--keep", "Gemm", "--sensitivity", "--json", plain, "--weight-method", "mse",
    )  # fmt: skip
    found = json.loads(plain.read_text())
    assert set(found["accuracies"]) == {"float", "after calibration"}
    assert f"accuracy on validation data, float: {100 * found['accuracies']['float']:.2f} %" in said
    assert "weights' method mse" in found["recipe"]
    assert "Sensitivity" in said
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= kinds(out)
    assert f"size {out.stat().st_size:,} bytes instead of {trained.stat().st_size:,} (" in said
    assert "<h2>Accuracy on validation data</h2>" in page.read_text()
    assert "<svg" in page.read_text() or "<img" in page.read_text()
    again = done(
        "quantize", trained, "--calibrate", "digits", "--out", tmp_path / "2.onnx", "--profile", profile,
        "--method", "entropy",
    )  # fmt: skip
    assert f"wrote {profile}" in said
    assert f"ranges from {profile}" in again
    assert "after calibration" in again


@pytest.mark.exhaustive
def test_without_validation_data_the_report_says_what_was_measured(trained: Path, tmp_path: Path) -> None:
    images, page = tmp_path / "images.npz", tmp_path / "r.html"
    np.savez(images, x=digits().x[:64], y=digits().y[:64])
    said = done("quantize", trained, "--calibrate", images, "--out", tmp_path / "int8.onnx", "--report", page)
    assert "accuracy on the data for calibration, float: " in said
    assert "validation data" not in said + page.read_text()


@pytest.mark.exhaustive
def test_sizes_are_those_of_all_files(trained: Path, tmp_path: Path) -> None:
    apart, out = tmp_path / "apart.onnx", tmp_path / "int8.onnx"
    onnx.save(onnx.load(trained), apart, save_as_external_data=True, location="weights", size_threshold=0)
    both = apart.stat().st_size + (tmp_path / "weights").stat().st_size
    said = done("quantize", apart, "--calibrate", "digits", "--examples", "64", "--out", out, "--format", "qoperator")
    assert f"size {out.stat().st_size:,} bytes instead of {both:,} (" in said


@pytest.mark.exhaustive
def test_a_profile_serves_every_method(trained: Path, tmp_path: Path) -> None:
    """It has histograms, though the method that it was first taken for needs none."""
    profile = tmp_path / "profile.json"
    for method in ("minmax", "entropy"):
        done(
            "quantize", trained, "--calibrate", "digits", "--examples", "64", "--profile", profile,
            "--method", method, "--out", tmp_path / "int8.onnx",
        )  # fmt: skip


@pytest.mark.exhaustive
def test_sensitive_layers_stay_in_float(trained: Path, tmp_path: Path) -> None:
    out, plain = tmp_path / "int8.onnx", tmp_path / "report.json"
    done(
        "quantize", trained, "--calibrate", "digits", "--examples", "64", "--keep-sensitive", "1", "--json", plain,
        "--out", out,
    )  # fmt: skip
    assert "asked for" in [kept["reason"] for kept in json.loads(plain.read_text())["kept"]]


@pytest.mark.exhaustive
def test_operators_on_quantized_tensors(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    done("quantize", trained, "--calibrate", "digits", "--format", "qoperator", "--out", out)
    assert "QLinearConv" in {node.op_type for node in onnx.load(out).graph.node}


@pytest.mark.exhaustive
def test_while_training_and_on_from_there(trained: Path, tmp_path: Path) -> None:
    out, more = tmp_path / "int4.onnx", tmp_path / "more.onnx"
    said = done("quantize", trained, "--calibrate", "digits", "--weights", "i4", "--qat", "1", "--out", out)
    assert "after 1 epoch of training" in said
    assert onnx.load(out).opset_import[0].version == 21
    assert "after 1 epoch" in done("quantize", out, "--calibrate", "digits", "--qat", "1", "--out", more)
    done("quantize", out, "--calibrate", "digits", "--qat", "1", "--as-bytes", "--opset", "17", "--out", more)
    assert onnx.load(more).opset_import[0].version == 17
    for arguments, words in (((), "--qat"), (("--qat", "1", "--report", tmp_path / "r.html"), "quantized already")):
        status, said = called("quantize", out, "--calibrate", "digits", "--out", more, *arguments)
        assert status == 1
        assert words in said


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--weights", "i4", "--opset", "17"), "opset 17 cannot say"),
        (("--weights", "i4", "--block", "4", "--as-bytes", "--opset", "17"), "opset 17 cannot say i4"),
        (("--calibrate", "none.npz"), "none.npz"),
        (("--method", "guess"), "guess"),
        (("--keep", "*"), "nothing in"),
        (("--qat", "1", "--frozen", "2"), "part of the epochs"),
        (("--qat", "1", "--equalize"), "for rounding after training"),
    ],
)
def test_mistakes(trained: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    status, said = called("quantize", trained, "--calibrate", "digits", "--out", tmp_path / "x.onnx", *arguments)
    assert status != 0
    assert words in said.replace("\n", " ")
    assert not (tmp_path / "x.onnx").exists()


def test_data_that_are_not_numbers(trained: Path, tmp_path: Path) -> None:
    x = np.full((64, 1, 8, 8), np.nan, np.float32)
    np.savez(tmp_path / "nan.npz", x=x, y=np.zeros(64, np.int64))
    status, said = called("quantize", trained, "--calibrate", tmp_path / "nan.npz", "--out", tmp_path / "x.onnx")
    assert status == 1
    assert "NaN" in said


@pytest.mark.exhaustive
def test_data_without_labels(trained: Path, tmp_path: Path) -> None:
    """Calibration needs none; training does."""
    np.savez(tmp_path / "images.npz", x=np.random.default_rng(1).random((64, 1, 8, 8), np.float32))
    arguments = ("quantize", trained, "--calibrate", tmp_path / "images.npz", "--out", tmp_path / "x.onnx")
    assert "after calibration" not in done(*arguments)
    assert "QuantizeLinear" in kinds(tmp_path / "x.onnx")
    status, said = called(*arguments, "--qat", "1")
    assert status == 1
    assert "--labels" in said


def test_a_profile_that_cannot_be_written(trained: Path, tmp_path: Path) -> None:
    """It is said before anything is computed."""
    place = tmp_path / "nowhere" / "profile.json"
    status, said = called(
        "quantize", trained, "--calibrate", "digits", "--out", tmp_path / "x.onnx", "--profile", place
    )
    assert status == 1
    assert "create it first" in said.replace("\n", " ")
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.exhaustive
def test_without_data(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    said = done("quantize", trained, "--dynamic", "--keep", "scores", "--out", out)
    assert f"wrote {out}: " in said.replace("\n", "")
    model = gt.load(out, {"batch": 4})
    assert isinstance(model, gt.Graph)
    assert sum(node.operator.onnx == "MatMulInteger" for node in model.nodes) == 1
    assert out.stat().st_size < trained.stat().st_size
    x = digits().x[:4]
    wanted, found = (gt.compile(gt.load(path))({"x": x})["scores"] for path in (trained, out))
    np.testing.assert_allclose(found, wanted, atol=0.02 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "typical data, --calibrate D, or rounds without them, --dynamic"),
        (("--dynamic", "--calibrate", "digits", "--qat", "2"), "--qat, --calibrate: nothing is calibrated"),
        (("--dynamic", "--weights", "i8"), "--weights: nothing is calibrated, measured or trained with --dynamic"),
        (("--dynamic", "--no-cache"), "--no-cache: nothing"),
        (("--dynamic", "--keep", "nowhere"), "nowhere"),
        (("--dynamic", "--keep", "Gemm"), "there is nothing to do"),
        (("--dynamic", "--dims", "height=3"), "there is no dimension height"),
    ],
)
def test_mistakes_without_data(trained: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    status, said = called("quantize", trained, "--out", tmp_path / "x.onnx", *arguments)
    assert status == 1
    assert words in " ".join(said.split())
    assert not (tmp_path / "x.onnx").exists()


def test_the_model_itself_is_not_overwritten(trained: Path) -> None:
    before = trained.read_bytes()
    status, said = called("quantize", trained, "--dynamic", "--out", trained)
    assert (status, trained.read_bytes()) == (1, before)
    assert "is the model itself" in " ".join(said.split())
