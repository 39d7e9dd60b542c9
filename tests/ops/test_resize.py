"""Resize against ONNX's reference over its attributes, and what it becomes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import glowtrain as gt
from glowtrain.errors import ShapeError
from glowtrain.graph import Graph, Input
from glowtrain.lower.expand import expand
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.resample.resize import MODES, NEAREST_MODES, TRANSFORMATIONS, Resize
from glowtrain.types import Array, f32, type_of

SHAPE = (2, 5, 7)


def onnx_reference(op: Resize, x: Array) -> Array:
    attributes: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in op.attributes().items()
        if name not in ("roi", "scales", "sizes") and value is not None
    }
    given: dict[str, Any] = {"roi": np.array(op.roi or (), np.float32)}
    given["scales"] = None if op.scales is None else np.array(op.scales, np.float32)
    given["sizes"] = None if op.sizes is None else np.array(op.sizes, np.int64)
    names = [name if array is not None else "" for name, array in given.items()]
    node = helper.make_node("Resize", ["x", *names], ["y"], **attributes)
    image = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    constants = [numpy_helper.from_array(array, name) for name, array in given.items() if array is not None]
    graph = helper.make_graph([node], "g", image[:1], image[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    results: Any = ReferenceEvaluator(model).run(None, {"x": x})
    return np.asarray(results[0])


def cases() -> list[Resize]:
    found = []
    targets: tuple[dict[str, Any], ...] = (
        {"sizes": (8, 4)}, {"scales": (0.625, 2.0)}, {"sizes": (4, 3), "keep_aspect_ratio_policy": "not_smaller"},
    )  # fmt: skip
    current = [transformation for transformation in TRANSFORMATIONS if transformation != "tf_half_pixel_for_nn"]
    for mode, transformation, target in itertools.product(MODES, current, targets):
        chosen = {**target, "mode": mode, "coordinate_transformation_mode": transformation, "axes": (1, 2)}
        if transformation == "tf_crop_and_resize":
            chosen.update(roi=(0.125, -0.25, 0.75, 1.5), extrapolation_value=7.0)
        found += [Resize(**chosen, nearest_mode=n) for n in NEAREST_MODES] if mode == "nearest" else []
        found += [Resize(**chosen, antialias=a) for a in (False, True)] if mode != "nearest" else []
        found += [Resize(**chosen, exclude_outside=True, cubic_coeff_a=-0.5)] if mode == "cubic" else []
    return found


@pytest.mark.parametrize("op", cases(), ids=str)
def test_agrees_with_onnx(op: Resize) -> None:
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(op.reference(x), onnx_reference(op, x), atol=1e-5)


def keys_of(graph: Graph) -> set[str]:
    return {node.operator.key() for node in expand(graph).nodes}


def test_regular_copies_are_moves() -> None:
    x = Input(f32[1, 2, 4, 4], "x")
    for scale in (2.0, 0.5):
        op = Resize(scales=(1, 1, scale, scale), coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        assert keys_of(Graph((x,), {"y": op(x)})) <= {"Reshape", "Expand", "Slice"}


def test_gradient_gathers() -> None:
    """No scatter: the transposed sums are sums of the same kind."""
    x = Input(f32[1, 2, 5, 4], "x")
    y = Resize(sizes=(9, 7), axes=(2, 3), mode="linear")(x)
    (gradient,) = gt.gradients(ReduceSum(keepdims=False)(y * y), [x])
    assert not {key for key in keys_of(Graph((x,), {"g": gradient})) if "Scatter" in key}


def test_gradient_of_a_small_region() -> None:
    """All results read few elements: here the gradient scatters."""
    x = Input(f32[2, 400], "x")
    op = Resize(
        (0.5, 0.503), sizes=(300,), axes=(1,), mode="linear", coordinate_transformation_mode="tf_crop_and_resize"
    )
    (gradient,) = gt.gradients(ReduceSum(keepdims=False)(op(x) * 1.0), [x])
    compiled = gt.compile(Graph((x,), {"g": gradient}), backend="cpu")
    found = compiled({"x": np.zeros(x.shape, np.float32)})["g"]
    expected = np.stack([op.reference(row[None])[0] for row in np.eye(400)]).sum(axis=1)
    np.testing.assert_allclose(found, np.tile(expected, (2, 1)), rtol=1e-5)


def test_rounding_takes_no_neighbour() -> None:
    """3 / (1 / 49) is not 147 in floating point."""
    op = Resize(sizes=(7,), coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    for extent in (49, 343, 7 * 103):
        np.testing.assert_array_equal(op.reference(np.arange(extent)), np.arange(7) * (extent // 7))


@pytest.mark.parametrize("mode", MODES)
def test_no_elements(mode: str) -> None:
    """Batches without images, and axes that vanish."""
    for op, shape, expected in (
        (Resize(scales=(1.0, 2.0), mode=mode), (0, 3), (0, 6)),
        (Resize(sizes=(0, 5), mode=mode), (0, 3), (0, 5)),
        (Resize(scales=(0.2, 1.0), mode=mode), (3, 2), (0, 2)),
    ):
        x = Input(f32[shape], "x")
        compiled = gt.compile(Graph((x,), {"y": op(x)}), backend="cpu")
        assert (
            compiled({"x": np.zeros(shape, np.float32)})["y"].shape == op.reference(np.zeros(shape)).shape == expected
        )


def test_infinity_stays_with_its_neighbours() -> None:
    x = np.arange(9, dtype=np.float32)
    x[0] = np.inf
    op = Resize(sizes=(5,), mode="linear", antialias=True)
    y = Input(f32[9], "x")
    result = gt.compile(Graph((y,), {"y": op(y)}), backend="cpu")({"x": x})["y"]
    assert np.isinf(result[0])
    assert np.isfinite(result[2:]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_integers_are_rounded_and_clamped(dtype: Any) -> None:
    x = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 3], dtype)
    op = Resize(sizes=(9,), mode="cubic")
    v = Input(type_of(x), "x")
    compiled = gt.compile(Graph((v,), {"y": op(v)}), backend="cpu")
    np.testing.assert_array_equal(compiled({"x": x})["y"], op.reference(x))
    wide = Resize(sizes=(9,), mode="cubic").reference(x.astype(np.float64))
    expected = np.clip(np.round(wide), np.iinfo(dtype).min, np.iinfo(dtype).max)
    np.testing.assert_array_equal(op.reference(x), expected)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Resize(), "exactly one of scales and sizes"),
        (Resize(scales=(2.0,)), "scales must hold 2 numbers"),
        (Resize(sizes=(2, -1)), "none negative"),
        (Resize(scales=(1.0, 0.0)), "positive"),
        (Resize(sizes=(2, 2), mode="bilinear"), "mode must be one of"),
        (Resize(sizes=(2, 2), antialias=True), "antialias needs"),
        (Resize(sizes=(2, 2), coordinate_transformation_mode="tf_crop_and_resize"), "roi must hold 4"),
        (Resize(sizes=(2,), axes=(3,)), "axis 3"),
    ],
)
def test_says_what_is_wrong(op: Resize, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        op(Input(f32[3, 4], "x"))
