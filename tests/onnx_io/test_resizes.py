"""Resize and Upsample of old operator sets mean what they meant then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import glowtrain as gt
from glowtrain.errors import ModelError


def model(kind: str, opset: int, mode: str, scales: list[float]) -> ModelProto:
    attributes: dict[str, Any] = {"scales": scales} if kind == "Upsample" and opset < 9 else {}
    node = helper.make_node(kind, ["x"] if attributes else ["x", "scales"], ["y"], mode=mode, **attributes)
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2, 4]), ("y", None))
    ]
    constants = [] if attributes else [numpy_helper.from_array(np.array(scales, np.float32), "scales")]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


OLD = [("Upsample", 7), ("Upsample", 9), ("Resize", 10)]


@pytest.mark.parametrize(("kind", "opset"), OLD)
def test_linear_divides_places_by_the_scale(kind: str, opset: int) -> None:
    x = np.array([[0, 2, 4, 6], [8, 10, 12, 14]], np.float32)
    compiled = gt.compile(gt.load(model(kind, opset, "linear", [1.0, 2.0])), backend="interpreter")
    expected = [[0, 1, 2, 3, 4, 5, 6, 6], [8, 9, 10, 11, 12, 13, 14, 14]]
    np.testing.assert_array_equal(compiled({"x": x})["y"], expected)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [([0.6, 0.6], [[1, 3]]), ([1.0, 1.5], [[1, 1, 2, 3, 3, 4], [5, 5, 6, 7, 7, 8]])],
)
def test_nearest_rounds_up_where_it_shrinks(scales: list[float], expected: list[list[int]]) -> None:
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    compiled = gt.compile(gt.load(model("Resize", 10, "nearest", scales)), backend="interpreter")
    np.testing.assert_array_equal(compiled({"x": x})["y"], expected)


def test_shrinking_and_growing_at_once_is_refused() -> None:
    with pytest.raises(ModelError, match="shrink"):
        gt.load(model("Resize", 10, "nearest", [0.5, 2.0]))


def test_a_transformation_that_was_dropped() -> None:
    """(place + 1/2) / scale, in opsets 11 and 12."""
    proto = model("Resize", 11, "nearest", [1.0, 0.5])
    proto.graph.node[0].input[:] = ["x", "", "scales"]
    proto.graph.node[0].attribute.append(
        helper.make_attribute("coordinate_transformation_mode", "tf_half_pixel_for_nn")
    )
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    compiled = gt.compile(gt.load(proto), backend="interpreter")
    np.testing.assert_array_equal(compiled({"x": x})["y"], [[1, 3], [5, 7]])
