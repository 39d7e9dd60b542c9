"""Options by which commands read a model otherwise: weights that are untied, a fixed batch that is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import done, refused


def test_weights_that_nodes_share_are_named_and_untied(twice: Path, tmp_path: Path) -> None:
    said = done("inspect", twice)
    assert "'w': node 'nodeh' (MatMul), node 'nodey' (MatMul)" in said
    assert "w is shared by nodeh, nodey" in said
    apart = done("inspect", twice, "--untie", "w")
    assert "w.1" in apart
    assert "share" not in apart
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=x)
    arguments = ("train", twice, "--data", tmp_path / "data.npz", "--loss", "mse", "--out", tmp_path / "out.onnx")
    trained = done(*arguments)
    assert "--untie" in trained
    assert "16 parameters" in trained
    assert "32 parameters" in done(*arguments, "--untie", "*")
    assert "nothing matches 'v'" in refused(*arguments, "--untie", "v")
    np.savez(tmp_path / "in.npz", x=x)
    assert "untie" not in done("run", twice, "--input", tmp_path / "in.npz", "--output", tmp_path / "y.npz")


def test_a_fixed_batch_is_opened(fixed: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(21, 2, 2)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=x.sum((1, 2))[:, None])
    data, out = tmp_path / "data.npz", tmp_path / "out.onnx"
    done("train", fixed, "--data", data, "--loss", "mse", "--open-batch", "--batch-size", 8, "--out", out)
    np.savez(tmp_path / "in.npz", x=x)
    done("run", fixed, "--open-batch", "--input", tmp_path / "in.npz", "--output", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_allclose(outputs["y"], x.sum((1, 2))[:, None], rtol=1e-5, atol=1e-6)
    assert "--open-batch are for ONNX files" in refused("inspect", "mlp", "--open-batch")


@pytest.mark.exhaustive
def test_weights_are_untied_where_a_model_is_checked(twice: Path) -> None:
    assert "several nodes read one initializer" in done("verify", twice, "--train", "--loss", "mse")
    assert "several nodes" not in done("verify", twice, "--train", "--loss", "mse", "--untie", "w")
    assert "w.1" not in done("gradcheck", twice)
    assert "w.1" in done("gradcheck", twice, "--untie", "w")


@pytest.mark.parametrize(("command", "batch"), [("verify", 4), ("gradcheck", 3)])
def test_a_batch_is_opened_where_a_model_is_checked(command: str, batch: int, fixed: Path) -> None:
    assert "taking" not in done(command, fixed)
    assert f"taking batch={batch}" in done(command, fixed, "--open-batch")


def test_what_is_for_a_model_needs_one() -> None:
    for option in ("--open-batch", "--untie=w"):
        assert "--untie and --open-batch are for a MODEL of your own" in refused("gradcheck", option)
