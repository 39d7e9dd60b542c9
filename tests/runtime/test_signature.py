"""What a network takes: arrays that fit are passed on, others converted or refused, with all that is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.errors import InputError
from glowtrain.graph import Value
from glowtrain.runtime.signature import NetworkSignature, signature_of
from tests.runtime.devices import counting


@gt.model(x=gt.f32["batch", 3], ids=gt.i64["batch", 2])
def two_inputs(x: Value, ids: Value) -> dict[str, Value]:
    return {"y": x + gt.ops.Cast(gt.f32)(gt.nn.sum(ids, axes=1, keepdims=True)), "z": x * 2.0}


@gt.model(ids=gt.i64["batch", 2])
def embedded(ids: Value) -> dict[str, Value]:
    return {"y": gt.nn.embedding(ids, 5, 4)}


def signature(model: Any = two_inputs, size: int = 4) -> NetworkSignature:
    return signature_of("net", model.bind({"batch": size}), batched=True)


def fitting(rows: int = 2) -> dict[str, Any]:
    return {"x": np.ones((rows, 3), np.float32), "ids": np.zeros((rows, 2), np.int64)}


@given(st.integers(1, 9))
def test_arrays_that_fit_are_passed_on(rows: int) -> None:
    inputs = fitting(rows)
    arrays, found = signature().checked(inputs)
    assert found == rows
    assert all(arrays[name] is array for name, array in inputs.items())
    arrays, found = signature().checked(inputs, copied=True)
    assert found == rows
    assert not any(np.shares_memory(arrays[name], array) for name, array in inputs.items())


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(
    "x",
    [
        [[1, 2, 3], [4, 5, 6]],
        np.asfortranarray(np.array([[1, 2, 3], [4, 5, 6]], np.float32)),
        np.repeat(np.array([[1, 2, 3], [4, 5, 6]], np.float32), 2, axis=1)[:, ::2],
        np.ma.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32),
    ],
)
def test_others_are_converted(x: Any, copied: bool) -> None:
    arrays, rows = signature().checked(fitting() | {"x": x}, copied=copied)
    assert rows == 2
    assert type(arrays["x"]) is np.ndarray
    assert arrays["x"].flags.c_contiguous
    np.testing.assert_array_equal(arrays["x"], [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, r"'x' must be f32\[batch,3\]"),
        ({"x": np.ones((2, 3))}, r"'x' must be f32\[batch,3\], not float64\[2, 3\]"),
        ({"x": np.ones((2, 3), ">f4")}, r"'x' must be f32\[batch,3\], not >f4|not float32"),
        ({"x": np.ones((2, 4), np.float32)}, r"'x' must be f32\[batch,3\], not float32\[2, 4\]"),
        ({"x": np.ones(3, np.float32)}, r"not float32\[3\]"),
        ({"x": np.float32(1)}, r"not float32\[\]"),
        ({"x": np.ones((3, 3), np.float32)}, "the same number of rows: 'x' has 3, 'ids' has 2"),
        ({"x": np.ones((0, 3), np.float32), "ids": np.ones((0, 2), np.int64)}, "a request needs at least one row"),
        ({"X": 1}, r"'X' is not an input \(inputs: x, ids\)"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        signature().checked(fitting() | change)


def test_all_problems_at_once() -> None:
    with pytest.raises(InputError, match=r"net: 'ids' is missing \(i64\[batch,2\]\); 'a' is not an input.*'x' must be"):
        signature().checked({"x": np.ones((2, 9), np.float32), "a": 1})


@pytest.mark.parametrize("inputs", [None, [1], np.ones(3), "x"])
def test_inputs_that_are_no_dict(inputs: Any) -> None:
    with pytest.raises(InputError, match="inputs must be a dict from names to arrays"):
        signature().checked(inputs)


@pytest.mark.parametrize("rows", [1, 4, 7])
@pytest.mark.parametrize("wrong", [-6, 5, np.iinfo(np.int64).max])
def test_indices_that_are_out_of_range(rows: int, wrong: int) -> None:
    """In whichever row: native code would read what is not its own."""
    for row in range(rows):
        ids = np.zeros((rows, 2), np.int64)
        assert signature(embedded).checked({"ids": ids})[1] == rows
        ids[row, 1] = wrong
        with pytest.raises(InputError, match="'ids' must hold numbers from"):
            signature(embedded).checked({"ids": ids})


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["w"], "net has no output 'w'; it has 'y', 'z'"),
        ("y", r"outputs are a list of names, not a text: \['y'\]"),
        ([["y"]], r"net has no output \['y'\]"),
        (3, "outputs are a list of names, not 3"),
    ],
)
def test_outputs_that_it_does_not_have(outputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        signature().requested(outputs)


def test_outputs_in_the_order_that_was_asked_for() -> None:
    assert signature().requested(None) == ("y", "z")
    assert signature().requested(["z", "y", "z"]) == ("z", "y")
    assert signature().requested(()) == ()


def test_without_batches() -> None:
    whole = signature_of("count", counting(), batched=False)
    _, rows = whole.checked({"x": np.ones(1, np.float32)})
    assert rows == 1
    with pytest.raises(InputError, match=r"'x' must be f32\[1\], not float32\[2\]"):
        whole.checked({"x": np.ones(2, np.float32)})
