"""glowtrain run: predictions from arrays in files, the types these hold, and arrays that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from glowtrain import save
from glowtrain.data import digits
from glowtrain.graph import Graph, Input
from glowtrain.types import bf16
from tests.cli.commands import done, refused


def test_run_predicts(trained: Path, tmp_path: Path) -> None:
    images, scores = tmp_path / "images.npz", tmp_path / "scores.npz"
    data = digits()
    assert data.x_valid is not None
    np.savez(images, x=data.x_valid)
    done("run", trained, "--input", images, "--output", scores)
    with np.load(scores) as stored:
        assert (stored["scores"].argmax(1) == data.y_valid).mean() > 0.9
    done("run", trained, "--input", images, "--output", tmp_path / "again.npz", "--backend", "interpreter")
    with np.load(scores) as compiled, np.load(tmp_path / "again.npz") as interpreted:
        np.testing.assert_allclose(compiled["scores"], interpreted["scores"], rtol=1e-4, atol=1e-4)


def test_run_writes_npz_and_says_so(trained: Path, tmp_path: Path) -> None:
    said = refused("run", trained, "--input", tmp_path / "no.npz", "--output", tmp_path / "scores.txt")
    assert "scores.txt: predictions are written as .npz or .csv, not as .txt" in said


def test_run_keeps_compiled_code(trained: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((3, 1, 8, 8), np.float32))
    arguments = ("run", trained, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    for _ in range(2):
        done(*arguments, "--cache", tmp_path / "kept")
    kept = list((tmp_path / "kept").glob("*.compiled"))
    assert kept
    done(*arguments, "--cache", tmp_path / "kept")
    assert list((tmp_path / "kept").glob("*.compiled")) == kept
    message = refused(*arguments, "--cache", tmp_path / "kept", "--backend", "interpreter")
    assert "--cache is about native code" in message


def test_run_checks_names_shapes_and_types(trained: Path, tmp_path: Path) -> None:
    image = np.zeros((2, 1, 8, 8), np.float32)
    for arrays, expected in (
        ({"images": image, "more": image}, "no array for the model's input 'x'"),
        ({"x": image[:, :, :4]}, "8"),
        ({"x": image.astype(np.complex64)}, "complex64"),
    ):
        path = tmp_path / "in.npz"
        np.savez(path, **arrays)
        assert expected in refused("run", trained, "--input", path, "--output", tmp_path / "out.npz")
    path.write_bytes(b"no archive")
    assert "npz" in refused("run", trained, "--input", path, "--output", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_run_takes_and_gives_numbers_that_npz_files_hold(tmp_path: Path) -> None:
    """A bf16 model on f64 arrays: NumPy's files know no bf16."""
    x = Input(bf16[2, 3], "x")
    save(Graph((x,), {"y": x * 2.0}), tmp_path / "narrow.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones((2, 3)))
    done("run", tmp_path / "narrow.onnx", "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    found = np.load(tmp_path / "out.npz")["y"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.full((2, 3), 2))
