"""Unusual uses of operators that are quantized: each runs, agrees with ONNX Runtime, and stays near the float model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.graph import Template, Value, Variable, constant
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.convolution.convolution import Conv, ConvTranspose
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.tensor.move import Concat, Slice, Transpose
from glowtrain.ops.tensor.split import Split
from glowtrain.quantization import Recipe, qoperator
from glowtrain.types import Array, f32


def weight(*shape: int, name: str = "w") -> Variable:
    """Its numbers depend on its shape alone."""
    return Variable(name, np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


def result_that_is_read(x: Value) -> dict[str, Value]:
    """A convolution's result is a result of the model, and read on."""
    first = nn.conv(x, 4, 3, padding=1, name="first")
    return {"first": first, "again": first, "second": nn.conv(nn.relu(first), 2, 3, name="second"), "x": x}


def weights_on_the_left(x: Value) -> Value:
    result: Value = MatMul()(weight(5, 8), x)
    return result


def stacked_weights(x: Value) -> Value:
    result: Value = MatMul()(x, weight(3, 8, 5))
    return result


def turned_weights(x: Value) -> Value:
    result: Value = Conv(kernel_shape=(3, 3))(x, Transpose((1, 0, 2, 3))(weight(3, 6, 3, 3)), weight(6, name="b"))
    return result


def factors(x: Value) -> Value:
    result: Value = Gemm(alpha=0.5, beta=2.0)(nn.flatten(x), weight(192, 4), weight(4, name="b"))
    return result


def bias_for_each_row(x: Value) -> Value:
    result: Value = Gemm()(nn.flatten(x), weight(192, 4), weight(1, 4, name="b"))
    return result


def groups(x: Value) -> Value:
    y = nn.conv(x, 6, 3, groups=3, stride=2, name="grouped")
    result: Value = ConvTranspose(kernel_shape=(2, 2), group=2)(nn.relu(y), weight(6, 2, 2, 2), weight(4, name="b"))
    return result


def bounds(x: Value) -> Value:
    y = nn.conv(x, 4, 3, name="first")
    low: Value = Clip()(y, constant(-0.2, f32), None)
    high: Value = Clip()(nn.conv(low, 4, 3, name="second"), None, constant(0.3, f32))
    return nn.conv(high, 2, 1, name="third")


def parts(x: Value) -> Value:
    y = nn.conv(x, 6, 1, name="first")
    left, right = Split(split=(2, 4), axis=1)(y)
    cut: Value = Slice((0,), (2,), (1,))(right)
    picked: Value = Gather(axis=1)(y, constant(np.array([0, 3, 3])))
    return nn.conv(Concat(axis=1)(left, cut, picked), 2, 1, name="last")


def a_parameter_joined(x: Value) -> Value:
    y = nn.conv(x, 4, 1, name="first")
    joined: Value = Concat(axis=1)(y, Variable("token", np.ones((6, 1, 8, 8), np.float32)))
    return nn.conv(joined, 2, 1, name="last")


def without_operands_of_its_own(x: Value) -> Value:
    """One value is both operands."""
    y = nn.conv(x, 4, 1, name="first")
    return nn.conv(y * y + y, 2, 1, name="last")


USES: list[Callable[[Value], object]] = [
    result_that_is_read,
    weights_on_the_left,
    stacked_weights,
    turned_weights,
    factors,
    bias_for_each_row,
    groups,
    bounds,
    parts,
    a_parameter_joined,
    without_operands_of_its_own,
]


def images() -> Array:
    return np.random.default_rng(1).standard_normal((6, 3, 8, 8)).astype(np.float32)


@pytest.mark.spread(3)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_use(use: Callable[[Value], object], tmp_path: Path) -> None:
    model = gt.model(x=f32[6, 3, 8, 8])(use)
    assert isinstance(model, Template)
    graph, x = model.bind({}), images()
    found = gt.quantize(graph, x, Recipe(outputs=use is not factors))
    exact, ours = (gt.compile(m)({"x": x}) for m in (found.exact, found.model))
    assert found.example.parameters
    for name, array in exact.items():
        assert np.abs(ours[name] - array).max() <= 0.06 * np.abs(array).max() + 1e-6
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    gt.save(found.graph, tmp_path / "q.onnx")
    session = ort.InferenceSession(str(tmp_path / "q.onnx"), options)
    for name, array in zip((o.name for o in session.get_outputs()), session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(array, ours[name], atol=0.02 * np.abs(ours[name]).max())
        assert np.mean(np.abs(array - ours[name]) > 1e-5 * np.abs(ours[name]).max()) < 0.01
    for name, array in gt.compile(qoperator(found.graph))({"x": x}).items():
        np.testing.assert_allclose(array, ours[name], atol=1e-5 * np.abs(ours[name]).max())
