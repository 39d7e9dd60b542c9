"""``x[key]`` of values: what NumPy gives, in the interpreter, compiled, and backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import GraphError

X = np.random.default_rng(4).normal(size=(4, 5, 6))
AT = np.array([[0, -1], [3, 3]])


def taken(key: Any, x: np.ndarray, backend: str) -> np.ndarray:
    feed = gt.Input(gt.f64[x.shape], "x")
    found: np.ndarray = gt.compile(gt.Graph((feed,), {"y": feed[key]}), backend)({"x": x})["y"]
    return found


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        np.int64(2),
        slice(1, 3),
        slice(None),
        ...,
        None,
        (slice(None), 0),
        (0, 1, 2),
        (slice(None), slice(None, None, 2), slice(4, 1, -1)),
        (slice(None, None, -1),),
        (slice(3, None, -2), slice(2, 2)),
        (..., -1),
        (1, ..., None),
        (None, slice(1, 99), None, 0),
        [2, 0, 2],
        AT,
        (slice(1, 3), AT),
        (0, slice(None), np.array([5, 0])),
        (..., AT, slice(2, 4)),
    ],
    ids=str,
)
def test_what_numpy_takes(key: Any, backend: str) -> None:
    expected = X[key]
    if isinstance(key, tuple) and key[0] == 0 and isinstance(key[-1], np.ndarray):
        expected = X[0][:, key[-1]]  # NumPy puts axes in front where an array and an integer index together
    np.testing.assert_array_equal(taken(key, X, backend), expected)


def test_a_value_can_be_the_indices() -> None:
    x, at = gt.Input(gt.f64[4, 5, 6], "x"), gt.Input(gt.i64[2, 2], "at")
    graph = gt.Graph((x, at), {"y": x[:, at], "z": x[at[0, 0]]})
    found = gt.compile(graph)({"x": X, "at": AT})
    np.testing.assert_array_equal(found["y"], X[:, AT])
    np.testing.assert_array_equal(found["z"], X[AT[0, 0]])


def test_the_gradient_of_what_is_taken_goes_back_to_where_it_was() -> None:
    x = gt.Input(gt.f64[4, 5, 6], "x")
    for key in ((slice(1, None, 2), 0), ([1, 1, 3], slice(None, None, -1)), (..., None, -1)):
        weight = np.random.default_rng(0).normal(size=X[key].shape)
        (gradient,) = gt.gradients(gt.nn.total(x[key] * weight), [x])
        expected = np.zeros_like(X)
        np.add.at(expected, key, weight)
        found = gt.compile(gt.Graph((x,), {"g": gradient}))({"x": X})["g"]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_whole_of_a_value_is_the_value() -> None:
    x = gt.Input(gt.f64[4, 5, 6], "x")
    assert x[:] is x[...] is x[:, 0:5, ...] is x


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (4, r"index 4 is outside of f64\[4,5,6\] on axis 0"),
        ((0, -6), r"index -6 is outside of f64\[4,5,6\] on axis 1"),
        ((0, 0, 0, 0), "has 3 axes: it cannot be indexed by 4 parts"),
        ((..., 0, ...), "cannot be indexed by 3 parts"),
        ((AT, AT), "only one array can index"),
        (np.ones(4, bool), "indexed by integers, slices"),
        (True, "indexed by integers, slices"),
        (1.5, "indexed by integers, slices"),
        ("x", "indexed by integers, slices"),
    ],
)
def test_keys_that_do_not_fit(key: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        gt.Input(gt.f64[4, 5, 6], "x")[key]


def test_sequences_and_tokens_in_a_network() -> None:
    @gt.model(x=gt.f32["batch", "time", 4])
    def last(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x[:, -1], 3) + x[:, 0, :3]

    x = np.random.default_rng(0).normal(size=(5, 7, 4)).astype(np.float32)
    graph = last.bind({"batch": 5, "time": 7})
    found = gt.compile(last)({"x": x})["output"]
    p = {variable.name: variable.initial for variable in graph.variables}
    expected = x[:, -1] @ p["linear.weight"] + p["linear.bias"] + x[:, 0, :3]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert gt.gradcheck.check(graph).passed


def test_a_model_is_no_function() -> None:
    @gt.model(x=gt.f32["batch", 4])
    def mlp(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 3)

    with pytest.raises(GraphError, match=r"the model mlp is not a function: gt\.compile\(mlp\) .*\{'x': array\}"):
        mlp(np.zeros((2, 4)))
