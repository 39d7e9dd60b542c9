"""Models of older operator sets, from 6 on: their attributes, defaults and broadcasting."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.types import i64
from tests.onnx_io.onnx_models import (
    interpreted,
    loaded,
    model,
    node,
    random_inputs,
    same_as_onnx_runtime,
    trainable,
)


class TestOlderOpsets:
    @pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 15, 17, 20, 22])
    def test_a_convolutional_network(self, opset: int) -> None:
        random = np.random.default_rng(opset)
        nodes = [
            node("Conv", "x w b", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("BatchNormalization", "c scale bias mean var", "n", epsilon=1e-3),
            node("MaxPool", "n", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", "p", "g"),
            node("Flatten", "g", "f"),
            node("Softmax", "f", "y", axis=1),
        ]
        shapes = {"w": (4, 2, 3, 3), "b": (4,), "scale": (4,), "bias": (4,), "mean": (4,), "var": (4,)}
        weights = {name: random.uniform(0.1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
        graph = same_as_onnx_runtime(model(nodes, {"x": [2, 2, 6, 6]}, ["y"], weights, opset=opset))
        assert trainable(graph) == ["w", "b", "scale", "bias"]

    @pytest.mark.parametrize("opset", [7, 9])
    def test_attributes_that_became_inputs(self, opset: int) -> None:
        nodes = [
            node("Slice", "x", "s", starts=[0, 1], ends=[2, 4], axes=[0, 2]),
            node("Clip", "s", "c", min=-0.5, max=0.5),
            node("ReduceSum", "c", "r", axes=[1], keepdims=0),
            node("Unsqueeze", "r", "u", axes=[0]),
            node("Pad", "u", "d", pads=[0, 1, 0, 0, 0, 2], value=1.5),
            node("Split", "d", "a b", axis=2, split=[2, 3]),
            node("Squeeze", "b", "y", axes=[0]),
        ]
        graph = same_as_onnx_runtime(model(nodes, {"x": [3, 2, 4]}, ["a", "y"], opset=opset))
        assert [n.operator.key() for n in graph.nodes] == [
            "Slice",
            "Clip",
            "ReduceSum",
            "Unsqueeze",
            "Pad",
            "Split",
            "Squeeze",
        ]

    def test_softmax_flattened_before_opset_13(self) -> None:
        same_as_onnx_runtime(model([node("Softmax", "x", "y")], {"x": [2, 3, 4]}, ["y"], opset=11))

    def test_split_without_sizes_before_opset_18(self) -> None:
        same_as_onnx_runtime(model([node("Split", "x", "a b", axis=1)], {"x": [2, 6]}, ["a", "b"], opset=13))

    def test_dropout_at_opset_6_with_its_training_flag(self) -> None:
        proto = model([node("Dropout", "x", "y", is_test=1, ratio=0.3)], {"x": [4]}, ["y"], opset=6)
        x = np.arange(4, dtype=np.float32)
        np.testing.assert_array_equal(interpreted(loaded(proto), {"x": x})["y"], x)

    @pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Greater", "Less"])
    def test_broadcast_along_an_axis_at_opset_6(self, op: str) -> None:
        random = np.random.default_rng(0)
        w = random.standard_normal(3).astype(np.float32)
        proto = model([node(op, "x w", "y", broadcast=1, axis=1)], {"x": [2, 3, 4]}, ["y"], {"w": w}, opset=6)
        x = random.standard_normal((2, 3, 4)).astype(np.float32)
        functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Greater": np.greater, "Less": np.less}
        expected = functions[op](x, w[:, None])
        np.testing.assert_array_equal(interpreted(loaded(proto), {"x": x})["y"], expected)

    def test_logic_gemm_and_recurrence_at_opset_6(self) -> None:
        random = np.random.default_rng(0)
        nodes = [
            node("Gemm", "x w b", "g", broadcast=1),
            node("Greater", "g zero", "p", broadcast=1),
            node("And", "p flags", "y", broadcast=1),
            node("LSTM", "xs lw lr", "hs", hidden_size=3, output_sequence=1),
        ]
        initializers = {
            "w": random.standard_normal((4, 3)).astype(np.float32),
            "b": random.standard_normal(3).astype(np.float32),
            "zero": np.zeros(1, np.float32),
            "flags": np.array([True, False, True]),
            "lw": random.standard_normal((1, 12, 2)).astype(np.float32),
            "lr": random.standard_normal((1, 12, 3)).astype(np.float32),
        }
        graph = loaded(model(nodes, {"x": [2, 4], "xs": [5, 2, 2]}, ["y", "hs"], initializers, opset=6))
        inputs = random_inputs(graph)
        product = inputs["x"] @ initializers["w"] + initializers["b"]
        np.testing.assert_array_equal(interpreted(graph, inputs)["y"], (product > 0) & initializers["flags"])
        assert graph.outputs["hs"].shape == (5, 1, 2, 3)

    def test_num_outputs_of_split_before_its_time(self) -> None:
        """What PyTorch's exporter writes at opset 17: the checker refuses it, but the meaning is clear."""
        proto = model([node("Split", "x", "a b", axis=1, num_outputs=2)], {"x": [2, 6]}, ["a", "b"], opset=17)
        graph = loaded(proto)
        assert [value.shape for value in graph.outputs.values()] == [(2, 3), (2, 3)]

    def test_position_of_an_index_dtype(self) -> None:
        proto = model([node("ArgMax", "x", "y", axis=1, keepdims=0)], {"x": [2, 6]}, ["y"], opset=11)
        assert same_as_onnx_runtime(proto).outputs["y"].type == i64[2]
