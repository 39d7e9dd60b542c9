"""Functions of one byte are looked up; others are not."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.optimize.integer import in_integers
from glowtrain.types import TensorType, f32
from tests.optimize.quantized_graphs import operators, quantized, real


def rounded(y: Value, x: Input, dtype: type[np.generic] = np.uint8) -> Graph:
    return Graph((x,), {"y": quantized(y, 0.01, 3, dtype)})


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_functions_of_a_byte(dtype: type[np.generic], random: np.random.Generator) -> None:
    x = Input(TensorType(f32, (2, 3, 50)), "x")
    a = real(quantized(x, 0.03, 5, dtype), 0.03, 5)
    for y in (gt.nn.tanh(a), a * gt.nn.sigmoid(a), gt.nn.gelu(a) * 0.5 + 0.25):
        graph = rounded(y, x)
        assert operators(in_integers(graph)) == ["QuantizeLinear", "glowtrain.Lookup"]
        feeds = {"x": random.normal(size=(2, 3, 50)).astype(np.float32) * 3}
        found, expected = (gt.compile(graph, backend=backend)(feeds)["y"] for backend in ("cpu", "interpreter"))
        assert found.tobytes() == expected.tobytes()
        exact = y_of(graph, feeds["x"])
        assert np.abs(found.astype(int) - exact.astype(int)).max() <= 1
        assert len(np.unique(found)) > 20


def y_of(graph: Graph, x: np.ndarray) -> np.ndarray:
    """The result operator by operator."""
    from glowtrain.backends.interpreter import evaluate

    return evaluate(graph, {"x": x})[graph.outputs["y"]]


def test_cheap_functions_stay_vectors() -> None:
    x = Input(TensorType(f32, (2, 3, 50)), "x")
    a = real(quantized(x, 0.03, 5), 0.03, 5)
    assert "glowtrain.Lookup" not in operators(in_integers(rounded(gt.nn.relu(a * 2.0), x)))


def test_functions_of_more_are_no_tables() -> None:
    x, z = Input(TensorType(f32, (2, 50)), "x"), Input(TensorType(f32, (2, 50)), "z")
    a, b = real(quantized(x, 0.03, 5), 0.03, 5), real(quantized(z, 0.03, 5), 0.03, 5)
    rows = constant(np.linspace(0, 1, 50, dtype=np.float32))
    for y in (gt.nn.tanh(a) * b, gt.nn.tanh(a * rows), gt.nn.tanh(a + x), gt.nn.softmax(a)):
        graph = Graph((x, z), {"y": quantized(y, 0.01, 3)})
        assert "glowtrain.Lookup" not in operators(in_integers(graph))


def test_constants_of_the_rank_of_the_tensor(random: np.random.Generator) -> None:
    x = Input(TensorType(f32, (2, 3, 5)), "x")
    y = gt.nn.sigmoid(real(quantized(x, 0.03, 5), 0.03, 5)) * constant(np.full((1, 1, 1), 0.7, np.float32))
    graph = rounded(y, x)
    assert "glowtrain.Lookup" in operators(in_integers(graph))
    feeds = {"x": random.normal(size=(2, 3, 5)).astype(np.float32)}
    assert np.array_equal(gt.compile(graph)(feeds)["y"], y_of(graph, feeds["x"]))
