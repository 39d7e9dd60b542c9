"""Operators that read at places known at run time only, where their own samples do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import glowtrain as gt
from glowtrain.graph import Graph, Input, Operator
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.convolution.deformable import DeformConv
from glowtrain.ops.pooling.columns import Col2Im, Im2Col, MaxUnpool
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.pooling.regions import MaxRoiPool, RoiAlign
from glowtrain.ops.resample.grid_sample import AffineGrid, GridSample
from glowtrain.types import Array, type_of


def images(random: np.random.Generator, *shape: int) -> Array:
    return random.normal(size=shape).astype(np.float32)


def run(op: Operator, *arrays: Array) -> Array:
    """The operator in native code."""
    inputs = tuple(Input(type_of(array), f"x{place}") for place, array in enumerate(arrays))
    compiled = gt.compile(Graph(inputs, {"y": op(*inputs)}), backend="cpu")
    return np.asarray(compiled({f"x{place}": array for place, array in enumerate(arrays)})["y"])


def onnx_reference(op: Operator, *arrays: Array) -> Array:
    names = [f"x{place}" for place in range(len(arrays))]
    attributes = {name: value for name, value in op.attributes().items() if value != ()}
    node = helper.make_node(op.onnx, names, ["y"], **attributes)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (*names, "y")]
    model = helper.make_model(
        helper.make_graph([node], "g", infos[:-1], infos[-1:]), opset_imports=[helper.make_opsetid("", 22)]
    )
    results: Any = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    return np.asarray(results[0])


@pytest.mark.spread(6)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("corners", [False, True])
def test_grid_sample_agrees_with_onnx(mode: str, padding: str, corners: bool, random: np.random.Generator) -> None:
    op = GridSample(corners, mode, padding)  # type: ignore[arg-type]
    reach = 0.75 if (mode, padding) == ("cubic", "border") else 2.5  # beyond, it differs on purpose
    x, grid = images(random, 2, 2, 4, 5), random.uniform(-reach, reach, (2, 3, 6, 2)).astype(np.float32)
    np.testing.assert_allclose(run(op, x, grid), onnx_reference(op, x, grid), atol=1e-4)


def test_cubic_border_repeats_the_edges(random: np.random.Generator) -> None:
    """The same as an image that was padded with its edges before."""
    x, grid = images(random, 1, 2, 4, 4), random.uniform(-2, 2, (1, 5, 6, 2)).astype(np.float32)
    padded = np.pad(x, [(0, 0), (0, 0), (4, 4), (4, 4)], mode="edge")
    inside = run(GridSample(mode="cubic"), padded, grid / 3)
    np.testing.assert_allclose(run(GridSample(mode="cubic", padding_mode="border"), x, grid), inside, atol=1e-4)


def test_points_at_infinity(random: np.random.Generator) -> None:
    x, grid = images(random, 1, 1, 3, 3), np.full((1, 1, 2, 2), [[[-np.inf, 0], [np.inf, 1e30]]], np.float32)
    np.testing.assert_array_equal(run(GridSample(True), x, grid).ravel(), [0, 0])
    edges = run(GridSample(True, padding_mode="border"), x, grid)
    np.testing.assert_array_equal(edges.ravel(), [x[0, 0, 1, 0], x[0, 0, 2, 2]])


def test_identity_grid_gives_the_image_back(random: np.random.Generator) -> None:
    x = images(random, 2, 3, 4, 5)
    theta = np.tile(np.eye(2, 3, dtype=np.float32), (2, 1, 1))
    for corners in (False, True):
        grid = run(AffineGrid(x.shape, corners), theta)
        np.testing.assert_allclose(run(GridSample(corners), x, grid), x, atol=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_counts_samples(mode: str, random: np.random.Generator) -> None:
    """``sampling_ratio=0``: regions inside, outside, across the border, and much larger than the image."""
    op = RoiAlign("half_pixel", mode, 3, 2, 0, 0.5)
    rois = np.array(
        [[2, 3, 11, 9], [-30, -20, -10, -4], [-5, -4, 7, 30], [-60, -70, 50, 90], [1, 1, 60, 2]], np.float32
    )
    x, batch = images(random, 2, 2, 6, 7), np.array([0, 1, 1, 0, 1])
    np.testing.assert_allclose(run(op, x, rois, batch), onnx_reference(op, x, rois, batch), atol=1e-5)


def test_max_roi_pool() -> None:
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    rois = np.array([[0, 1, 1, 4, 4], [0, 0, 0, 2, 5], [0, 8, 8, 9, 9]], np.float32)
    expected = [[[14, 16], [26, 28]], [[13, 14], [31, 32]], [[0, 0], [0, 0]]]
    np.testing.assert_array_equal(run(MaxRoiPool((2, 2)), x, rois)[:, 0], expected)


def test_without_offsets_a_deformable_convolution_is_one(random: np.random.Generator) -> None:
    x, w, b = images(random, 2, 4, 6, 5), images(random, 6, 2, 3, 2), images(random, 6)
    shared = {"dilations": (1, 2), "group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1)}
    expected = Conv(**shared).reference(x, w, b)  # type: ignore[arg-type]
    offset = np.zeros((2, 2 * 6 * 2, *expected.shape[2:]), np.float32)
    found = run(DeformConv(offset_group=2, **shared), x, w, offset, b)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_columns_and_back_count_the_overlaps() -> None:
    x = np.ones((1, 1, 4, 4), np.float32)
    columns = run(Im2Col((2, 2)), x)
    assert columns.shape == (1, 4, 9)
    counts = [[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]]
    np.testing.assert_array_equal(run(Col2Im((4, 4), (2, 2)), columns)[0, 0], counts)


def test_unpooling_puts_maxima_back(random: np.random.Generator) -> None:
    x = images(random, 2, 2, 6, 4)
    y, positions = MaxPool(kernel_shape=(2, 2), strides=(2, 2)).reference(x)
    back = run(MaxUnpool(None, (2, 2), (), (2, 2)), y, positions)
    np.testing.assert_array_equal(back, np.where(np.isin(x, y), x, 0))
