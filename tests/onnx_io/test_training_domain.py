"""ai.onnx.preview.training: Gradient, which is resolved while loading, and the optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import glowtrain as gt
from glowtrain.errors import ModelError
from glowtrain.graph import Graph
from glowtrain.ops.objective.optimizer_steps import Adagrad, Adam, Momentum
from glowtrain.types import Array

DOMAIN = "ai.onnx.preview.training"


def gradient(inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node("Gradient", inputs.split(), outputs.split(), "slope", domain=DOMAIN, **attributes)


def model(nodes: Sequence[NodeProto], inputs: dict[str, Any], outputs: str, **arrays: Array) -> ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()]
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "model", given, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)])


def run(proto: ModelProto, **inputs: Array) -> dict[str, Array]:
    """Compiled results, which are the interpreted ones."""
    graph = gt.load(proto)
    found, interpreted = (gt.compile(graph, backend)(inputs) for backend in ("cpu", "interpreter"))
    for name, array in interpreted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    return found


LAYER = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
W = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
X, OTHER = np.random.default_rng(1).normal(size=(2, 2, 4)).astype(np.float32)


class TestGradient:
    @pytest.mark.parametrize("first", [True, False])
    @pytest.mark.parametrize(("point", "value"), [("x", X), ("other", OTHER)])
    def test_of_a_layer(self, first: bool, point: str, value: Array) -> None:
        """At the values of the names, and at others; the node may stand before what it differentiates."""
        slope = gradient(f"{point} w", "dx dw", xs=["x", "w"], y="y")
        nodes = [slope, *LAYER] if first else [*LAYER, slope]
        found = run(model(nodes, {"x": [2, 4], "other": [2, 4]}, "y dx dw", w=W), x=X, other=OTHER)
        g = 1 - np.tanh(value @ W) ** 2
        np.testing.assert_allclose(found["y"], np.tanh(X @ W), rtol=1e-5)
        np.testing.assert_allclose(found["dx"], g @ W.T, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["dw"], value.T @ g, rtol=1e-4, atol=1e-6)

    def test_shares_the_forward_pass(self) -> None:
        """At the names' own values nothing is computed twice."""
        graph = gt.load(model([*LAYER, gradient("x", "dx", xs=["x"], y="y")], {"x": [2, 4]}, "y dx", w=W))
        assert isinstance(graph, Graph)
        assert [node.operator.key() for node in graph.nodes].count("Tanh") == 1

    @pytest.mark.parametrize("point", ["w", "v"])
    def test_second_order(self, point: str) -> None:
        """y = w³: the gradient's gradient is 6 w."""
        nodes = [
            helper.make_node("Mul", ["w", "w"], ["square"]),
            helper.make_node("Mul", ["square", "w"], ["y"]),
            gradient("w", "dy", xs=["w"], y="y"),
            gradient(point, "ddy", xs=["w"], y="dy"),
        ]
        w, v = np.array([1, 2, 3], np.float32), np.array([-1, 0, 5], np.float32)
        found = run(model(nodes, {"w": [3], "v": [3]}, "dy ddy"), w=w, v=v)
        np.testing.assert_allclose(found["dy"], 3 * w * w)
        np.testing.assert_allclose(found["ddy"], 6 * (w if point == "w" else v))

    def test_at_an_intermediate_value(self, random: np.random.Generator) -> None:
        """y = h z with h = w²: with respect to h at given h and z, w does not matter."""
        nodes = [helper.make_node("Mul", ["w", "w"], ["h"]), helper.make_node("Mul", ["h", "z"], ["y"])]
        nodes.append(gradient("h1 z1", "dh dz", xs=["h", "z"], y="y"))
        inputs = {name: random.normal(size=3).astype(np.float32) for name in ("w", "z", "h1", "z1")}
        found = run(model(nodes, {name: [3] for name in inputs}, "y dh dz"), **inputs)
        np.testing.assert_allclose(found["dh"], inputs["z1"])
        np.testing.assert_allclose(found["dz"], inputs["h1"])
        np.testing.assert_allclose(found["y"], inputs["w"] ** 2 * inputs["z"], rtol=1e-5)

    def test_without_a_path(self) -> None:
        found = run(model([*LAYER, gradient("z w", "dz", xs=["z"], zs=["w"], y="y")], {"x": [2, 4], "z": [5]}, "dz",
                          w=W), x=X, z=np.ones(5, np.float32))  # fmt: skip
        np.testing.assert_array_equal(found["dz"], np.zeros(5))

    @pytest.mark.parametrize(
        ("attributes", "message"),
        [
            ({"xs": ["x"]}, "attributes xs and y must name|attribute y is missing"),
            ({"xs": ["x", "w"], "y": "y"}, "has 1 inputs, but xs and zs name 2"),
            ({"xs": ["x"], "y": "nowhere"}, "y='nowhere', which nothing in the graph gives"),
        ],
    )
    def test_mistakes(self, attributes: dict[str, Any], message: str) -> None:
        with pytest.raises(ModelError, match=message):
            gt.load(model([*LAYER, gradient("other", "dx", **attributes)], {"x": [2, 4], "other": [2, 4]}, "dx", w=W))


class TestOptimizers:
    """By hand, where ONNX's own tests do not look: no bias correction at T = 0, beta at T > 0, decay."""

    def step(self, operator: Any, count: int, *tensors: Array) -> list[Array]:
        names = [f"t{place}" for place in range(len(tensors))]
        inputs = [gt.Input(gt.f32[()], "r"), gt.Input(gt.i64[()], "t")]
        inputs += [gt.Input(gt.TensorType(gt.f32, array.shape), n) for n, array in zip(names, tensors, strict=True)]
        graph = Graph(tuple(inputs), {f"y{k}": value for k, value in enumerate(operator(*inputs))})
        feeds = {"r": np.float32(0.1), "t": np.int64(count), **dict(zip(names, tensors, strict=True))}
        return list(gt.compile(graph)(feeds).values())

    @pytest.mark.parametrize("count", [0, 1, 1000])
    def test_adam(self, count: int) -> None:
        x, g, v, h = (np.array([value], np.float32) for value in (1.0, 0.5, 0.2, 0.3))
        found = self.step(Adam(norm_coefficient=0.1, norm_coefficient_post=0.01), count, x, g, v, h)
        g = g + 0.1 * x
        v, h = 0.9 * v + 0.1 * g, 0.999 * h + 0.001 * g * g
        rate = 0.1 * np.sqrt(1 - 0.999**count) / (1 - 0.9**count) if count else 0.1
        expected = (0.99 * (x - rate * v / (np.sqrt(h) + 1e-6)), v, h)
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-6)

    @pytest.mark.parametrize("count", [0, 3])
    @pytest.mark.parametrize("mode", ["standard", "nesterov"])
    def test_momentum(self, count: int, mode: str) -> None:
        x, g, v = (np.array([value], np.float32) for value in (1.0, 0.5, 0.2))
        found = self.step(Momentum(0.9, 0.25, 0.1, mode), count, x, g, v)
        g = g + 0.1 * x
        v = 0.9 * v + (0.25 if count else 1.0) * g
        expected = (x - 0.1 * (g + 0.9 * v if mode == "nesterov" else v), v)
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-6)

    def test_adagrad_of_two_tensors(self) -> None:
        """Tensors stand side by side: all X, all gradients, all states."""
        xs = [np.array([1.0], np.float32), np.array([2.0, 3.0], np.float32)]
        found = self.step(Adagrad(decay_factor=0.5), 2, *xs, *(x * 2 for x in xs), *(x * 0 for x in xs))
        expected = [*(x - 0.05 * 2 * x / (2 * x + 1e-6) for x in xs), *(4 * x * x for x in xs)]
        for array, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-6)

    def test_wrong_operands(self) -> None:
        with pytest.raises(gt.GlowtrainError, match="must have one type"):
            self.step(Adagrad(), 0, np.zeros(2, np.float32), np.zeros(3, np.float32), np.zeros(2, np.float32))
        with pytest.raises(gt.GlowtrainError, match="standard"):
            self.step(Momentum(0.9, 1.0, 0.0, "fast"), 0, *[np.zeros(2, np.float32)] * 3)
