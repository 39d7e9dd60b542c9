"""Gather and scatter: exact cases, repeated indices, and indices outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.errors import ShapeError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Input, Operator, constant, topological
from glowtrain.ops.indexing.gather import Gather, GatherElements, GatherND
from glowtrain.ops.indexing.one_hot import OneHot
from glowtrain.ops.indexing.scatter import ScatterAdd, ScatterElements, ScatterND
from glowtrain.types import f64
from tests.ops.rules import gradients, lowered, run

pytestmark = pytest.mark.usefixtures("quiet")


def test_gather_gradient_adds_up_where_an_index_repeats() -> None:
    data, indices = np.arange(6.0).reshape(3, 2), np.array([[0, 2], [-1, 2]])
    assert Gather().reference(data, indices)[1, 0].tolist() == [4, 5]
    g = np.arange(8.0).reshape(2, 2, 2)
    np.testing.assert_array_equal(gradients(Gather(), [data, indices], g=g), [[0, 1], [0, 0], [12, 15]])


@pytest.mark.parametrize("indices", [-1, 0, [1, 2], [-2, -1], [0, 1, 2], [2, 1], [1, 1]])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradient_of_constant_indices(axis: int, indices: Any) -> None:
    """Of elements that follow one another it is padding, of others a sum of what came from each."""
    random, places = np.random.default_rng(axis), np.asarray(indices)
    data, weights = Input(f64[3, 3], "data"), random.normal(size=np.take(np.zeros((3, 3)), places, axis).shape)
    (gradient,) = pullback([Gather(axis)(data, constant(places))], [constant(weights)], [data])
    assert gradient is not None
    expected = np.zeros((3, 3))
    np.add.at(expected.swapaxes(0, axis), places, np.moveaxis(weights, axis, 0) if places.ndim else weights)
    np.testing.assert_array_equal(run([gradient], {data: np.zeros((3, 3))})[0], expected)
    scatters = any(isinstance(node.operator, ScatterAdd) for node in topological([gradient]))
    assert scatters == (indices in ([2, 1], [1, 1]))


def test_gather_nd_gradient_with_batch_dims() -> None:
    data, indices = np.arange(8.0).reshape(2, 2, 2), np.array([[[1]], [[1]]])
    np.testing.assert_array_equal(GatherND(1).reference(data, indices), [[[2, 3]], [[6, 7]]])
    np.testing.assert_array_equal(gradients(GatherND(1), [data, indices]), [[[0, 0], [1, 1]]] * 2)


def test_scatter_reductions_and_repeated_indices() -> None:
    data, indices, updates = np.array([1.0, 2.0, 3.0]), np.array([2, 2, -3]), np.array([5.0, 7.0, 2.0])
    expected = {"add": [3, 2, 15], "mul": [2, 2, 105], "max": [2, 2, 7], "min": [1, 2, 3]}
    for reduction, result in expected.items():
        assert ScatterElements(reduction=reduction).reference(data, indices, updates).tolist() == result
        assert ScatterND(reduction).reference(data, indices[:, None], updates).tolist() == result
    assert ScatterND().reference(data, np.array([[1], [0]]), updates[:2]).tolist() == [7, 5, 3]


def test_scatter_product_gradient_is_right_with_zeros() -> None:
    arrays = [np.array([2.0, 3.0]), np.array([0, 0, 1]), np.array([0.0, 5.0, 0.0])]
    operator = ScatterElements(reduction="mul")
    assert gradients(operator, arrays, 0).tolist() == [0, 0]
    assert gradients(operator, arrays, 2).tolist() == [10, 0, 3]


def test_scatter_maximum_ties_share_the_gradient() -> None:
    arrays = [np.array([4.0]), np.array([0, 0, 0]), np.array([4.0, 1.0, 4.0])]
    operator = ScatterElements(reduction="max")
    np.testing.assert_allclose(gradients(operator, arrays, 0), [1 / 3])
    np.testing.assert_allclose(gradients(operator, arrays, 2), [1 / 3, 0, 1 / 3])


@pytest.mark.parametrize(("operator", "arrays"), [
    (Gather(), [np.zeros(3), np.array([1, 3])]),
    (GatherElements(), [np.zeros(3), np.array([1, -4])]),
    (GatherND(), [np.zeros((3, 2)), np.array([[0, 1], [1, 2]])]),
    (ScatterElements(), [np.zeros(3), np.array([3]), np.zeros(1)]),
    (ScatterAdd((3,)), [np.array([-4]), np.zeros(1)]),
])  # fmt: skip
def test_an_index_outside_is_refused(operator: Operator, arrays: list[Any]) -> None:
    with pytest.raises(ShapeError, match=r"index -?\d at .* is outside \[-\d, \d\]"):
        operator.reference(*arrays)


def test_one_hot_leaves_an_index_outside_off() -> None:
    result = OneHot(3, axis=0).reference(np.array([2, -1, 3, -4]), np.array([7, 1], np.int32))
    assert result.tolist() == [[7, 7, 7, 7], [7, 7, 7, 7], [1, 1, 7, 7]]
    assert result.dtype == np.int32


def test_compiled_indices_outside_read_nan_and_write_nothing() -> None:
    data, indices, updates = (
        np.array([1.0, 2.0], np.float32),
        np.array([1, 2, -3]),
        np.array([5.0, 6.0, 7.0], np.float32),
    )
    np.testing.assert_array_equal(lowered(Gather(), [data, indices])[0], [2, np.nan, np.nan])
    np.testing.assert_array_equal(lowered(Gather(), [indices[:2], indices])[0], [2, 0, 0])
    np.testing.assert_array_equal(lowered(ScatterAdd((2,)), [indices, updates])[0], [0, 5])
    for reduction in ("none", "max"):
        result = lowered(ScatterElements(reduction=reduction), [data, indices, updates])[0]
        np.testing.assert_array_equal(result, [1, 5])
        result = lowered(ScatterND(reduction), [data, indices[:, None], updates])[0]
        np.testing.assert_array_equal(result, [1, 5])
