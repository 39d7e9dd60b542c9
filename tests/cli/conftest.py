"""Small models in files, one of them trained, and data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.cli.commands import done


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained model."""
    path = tmp_path_factory.mktemp("cli") / "trained.onnx"
    done("train", "mlp", "--data", "digits", "--epochs", 2, "--out", path)
    return path


@pytest.fixture
def regression(tmp_path: Path) -> Path:
    """Data for a model with 4 inputs."""
    path = tmp_path / "data.npz"
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(path, x=x, y=x.sum(axis=1, keepdims=True))
    return path


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    """A model with an input x f32[batch,4] whose two nodes read one weight, which nothing says is one parameter."""
    multiply = [helper.make_node("MatMul", [x, "w"], [y], f"node{y}") for x, y in (("x", "h"), ("h", "y"))]
    given, result = (helper.make_tensor_value_info(name, 1, ["batch", 4]) for name in "xy")
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    path = tmp_path / "twice.onnx"
    graph = helper.make_graph(multiply, "twice", [given], [result], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """A model with an input x f32[batch,4] and a parameter, as an ONNX file."""
    import glowtrain as gt

    @gt.model(x=gt.f32["batch", 4])
    def linear(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 1)

    path = tmp_path / "four.onnx"
    gt.save(linear.bind({"batch": 4}), path)
    return path


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """A model with an input x f32[2,2,2], which it flattens to a batch of 2 for a weight of four rows."""
    flatten = helper.make_node("Reshape", ["x", "shape"], ["flat"])
    multiply = helper.make_node("MatMul", ["flat", "w"], ["y"])
    given, result = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [2, 2, 2]), ("y", [2, 1])))
    arrays = {"shape": np.array([2, 4]), "w": np.ones((4, 1), np.float32)}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([flatten, multiply], "fixed", [given], [result], tensors)
    path = tmp_path / "fixed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path
