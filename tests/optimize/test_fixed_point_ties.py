"""Rescaling by integers rounds ties to even, on every rung, and so gives what factors in floats give where these are
powers of two."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.quantized.fixed_point import Rescale
from glowtrain.types import Array, TensorType, f32, i32
from tests.optimize.quantized_graphs import quantized, real, weight


def rescale(shift: int) -> Graph:
    x = Input(TensorType(i32, (4001,)), "x")
    y: Value = Rescale()(x, constant(np.array(1, np.int32)), constant(np.array(shift, np.int32)), constant(np.int8(3)))
    return Graph((x,), {"y": y})


@pytest.mark.parametrize("shift", [1, 2, 5, 31])
def test_ties_round_to_even(shift: int) -> None:
    x = np.arange(-2000, 2001, dtype=np.int32)
    expected = np.clip(np.rint(x / 2.0**shift) + 3, -128, 127).astype(np.int8)
    graph = rescale(shift)
    operands: tuple[Array, ...] = (x, np.array(1, np.int32), np.array(shift, np.int32), np.array(3, np.int8))
    np.testing.assert_array_equal(Rescale().reference(*operands), expected)
    names = ("x", "multiplier", "shift", "zero")
    types = [TensorType(gt.types.dtype_of(array.dtype), array.shape) for array in operands]
    leaves = [Input(*both) for both in zip(types, names, strict=True)]
    parts = Graph(tuple(leaves), {"y": Rescale().decompose(*leaves)})
    feeds = dict(zip(names, operands, strict=True))
    np.testing.assert_array_equal(gt.compile(parts, "interpreter")(feeds)["y"], expected)
    for backend in ("interpreter", "cpu"):
        np.testing.assert_array_equal(gt.compile(graph, backend)({"x": x})["y"], expected)


def test_powers_of_two_are_rescaled_as_in_floats() -> None:
    """All sums and factors are exact then: nothing but the rounding of ties could differ, and half of all are ties."""
    draw = np.random.default_rng(0)
    x = Input(TensorType(f32, (64, 8)), "x")
    product: Value = MatMul()(
        real(quantized(x, 0.25, 128), 0.25, 128),
        weight(draw.integers(-7, 8, (8, 16)).astype(np.int8), np.full(1, 0.5, np.float32), 1),
    )
    graph = Graph((x,), {"y": quantized(product, 0.25, 128)})
    feeds = {"x": (draw.integers(-20, 20, (64, 8)) * 0.25).astype(np.float32)}
    exact = gt.compile(graph)(feeds)["y"]
    np.testing.assert_array_equal(gt.compile(graph, fixed_point=True)(feeds)["y"], exact)
    assert len(np.unique(exact)) > 50
