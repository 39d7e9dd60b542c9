"""Models of operator sets 1 to 5, and what else the converter of the onnx package leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from glowtrain import load
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ModelError
from glowtrain.graph import Graph
from glowtrain.types import Array
from tests.onnx_io.onnx_models import model, node


def result(proto: onnx.ModelProto, **inputs: Array) -> dict[str, Array]:
    graph = load(proto)
    assert isinstance(graph, Graph)
    values = evaluate(graph, inputs)
    return {name: values[value] for name, value in graph.outputs.items()}


def one(op: str, x: Array, opset: int = 1, names: str = "x", initializers: Any = None, **attributes: Any) -> Array:
    """The only result of one old node on the input ``x``."""
    proto = model([node(op, names, "y", **attributes)], {"x": list(x.shape)}, ["y"], initializers, opset=opset)
    return result(proto, x=x)["y"]


X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


class TestOldForms:
    def test_a_shape_as_attribute(self) -> None:
        np.testing.assert_array_equal(one("Reshape", X, shape=[2, -1]), X.reshape(2, 6))

    def test_concat_along_axis_1(self) -> None:
        np.testing.assert_array_equal(one("Concat", X, names="x x"), np.concatenate([X, X], axis=1))

    def test_the_name_of_a_type(self) -> None:
        found = one("Cast", X, opset=5, to="INT32")
        assert found.dtype == np.int32
        with pytest.raises(ModelError, match="no element type FLOAT99"):
            one("Cast", X, opset=5, to="FLOAT99")

    def test_paddings(self) -> None:
        np.testing.assert_array_equal(
            one("Pad", X, paddings=[0, 1, 0, 2], value=3.0), np.pad(X, [(0, 0), (1, 2)], constant_values=3)
        )

    def test_a_norm_with_a_float(self) -> None:
        found = one("GlobalLpPool", X.reshape(1, 1, 3, 4), p=2.0)
        np.testing.assert_allclose(found.ravel(), [np.linalg.norm(X)], rtol=1e-6)
        with pytest.raises(ModelError, match="not a whole number"):
            one("GlobalLpPool", X.reshape(1, 1, 3, 4), p=2.5)

    def test_sizes_of_a_split_as_input(self) -> None:
        split = {"s": np.array([1, 3], np.int64)}
        proto = model([node("Split", "x s", "a b", axis=1)], {"x": [3, 4]}, ["a", "b"], split, opset=1)
        np.testing.assert_array_equal(result(proto, x=X)["b"], X[:, 1:])

    def test_repeating_one_axis(self) -> None:
        numbers = {"tiles": np.array([2], np.int64), "axis": np.array([1], np.int64)}
        np.testing.assert_array_equal(one("Tile", X, names="x tiles axis", initializers=numbers), np.tile(X, (1, 2)))

    @pytest.mark.parametrize("opset", [1, 6])
    def test_two_factors_of_an_upsampling(self, opset: int) -> None:
        x = X.reshape(1, 1, 3, 4)
        found = one("Upsample", x, opset=opset, height_scale=2.0, width_scale=3.0, mode="nearest")
        np.testing.assert_array_equal(found[0, 0], X.repeat(2, axis=0).repeat(3, axis=1))

    def test_memory_that_a_node_may_reuse_and_broadcasting(self) -> None:
        w = {"w": np.array([1, 2, 3], np.float32)}
        found = one("Add", X, names="x w", initializers=w, broadcast=1, axis=0, consumed_inputs=[0, 0])
        np.testing.assert_array_equal(found, X + w["w"][:, None])

    def test_an_old_convolutional_network(self) -> None:
        """As converters of 2017 wrote them."""
        rng = np.random.default_rng(0)
        weights = {"w": rng.standard_normal((4, 2, 3, 3)), "v": rng.standard_normal((16, 5)), "c": np.zeros(5)}
        statistics = {name: rng.uniform(0.5, 1, 4) for name in ("s", "b", "m", "d")}
        arrays = {name: array.astype(np.float32) for name, array in {**weights, **statistics}.items()}
        nodes = [
            node("Conv", "x w", "h", kernel_shape=[3, 3]),
            node("BatchNormalization", "h s b m d", "n", is_test=1, consumed_inputs=[0, 0, 0, 1, 1]),
            node("Relu", "n", "r", consumed_inputs=[0]),
            node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("Reshape", "p", "f", shape=[1, 16]),
            node("Dropout", "f", "o", is_test=1, ratio=0.5),
            node("Gemm", "o v c", "g", broadcast=1),
            node("Softmax", "g", "y"),
        ]
        found = result(model(nodes, {"x": [1, 2, 6, 6]}, ["y"], arrays, opset=3), x=np.ones((1, 2, 6, 6), np.float32))
        assert found["y"].sum() == pytest.approx(1)

    def test_files_before_operator_sets(self) -> None:
        """IR versions 1 and 2 do not name one: it is 1."""
        proto = model([node("Reshape", "x", "y", shape=[12])], {"x": [3, 4]}, ["y"], opset=1, ir_version=2)
        del proto.opset_import[:]
        np.testing.assert_array_equal(result(proto, x=X)["y"], X.ravel())


class TestAfterConversion:
    @pytest.mark.parametrize("opset", [9, 10])
    def test_scatter(self, opset: int) -> None:
        proto = model(
            [node("Scatter", "x i u", "y", axis=1)], {"x": [3, 4], "i": (onnx.TensorProto.INT64, [3, 1]), "u": [3, 1]},
            ["y"], opset=opset,
        )  # fmt: skip
        found = result(proto, x=X, i=np.array([[0], [1], [3]]), u=np.full((3, 1), 9, np.float32))["y"]
        np.testing.assert_array_equal(np.argwhere(found == 9), [[0, 0], [1, 1], [2, 3]])

    def test_random_nodes_without_seeds_differ(self) -> None:
        nodes = [node("RandomNormalLike", "x", "a"), node("RandomNormalLike", "x", "b")]
        found = result(model(nodes, {"x": [3, 4]}, ["a", "b"]), x=X)
        assert not np.array_equal(found["a"], found["b"])

    @pytest.mark.parametrize("seed", [1.5, 3.5])
    def test_their_seeds_are_not_those_that_other_nodes_state(self, seed: float) -> None:
        nodes = [
            node("RandomNormalLike", "x", "a"),
            node("RandomNormalLike", "x", "b", seed=seed),
            node("RandomNormalLike", "x", "c"),
        ]
        found = result(model(nodes, {"x": [3, 4]}, ["a", "b", "c"]), x=X)
        assert len({array.tobytes() for array in found.values()}) == 3

    def test_every_step_of_an_unrolled_loop_draws_other_numbers(self) -> None:
        value = helper.make_empty_tensor_value_info
        declared = [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, [])]
        declared.append(helper.make_tensor_value_info("s", 1, [3, 4]))
        steps = [node("Identity", "c", "d"), node("Identity", "s", "t"), node("RandomNormalLike", "s", "r")]
        body = helper.make_graph(steps, "body", declared, [value("d"), value("t"), value("r")])
        proto = model([node("Loop", "n _ x", "last y", body=body)], {"x": [3, 4]}, ["y"], {"n": np.array(2)})
        first, second = result(proto, x=X)["y"]
        assert not np.array_equal(first, second)
