"""Tensors as bytes and as lists: every type there and back, and whatever else is given refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from glowtrain.errors import InputError
from glowtrain.serving import tensors
from glowtrain.types import DTYPES

Array = NDArray[Any]
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def some_arrays(draw: st.DrawFn, datatypes: tuple[str, ...] = tuple(tensors.NAMES.values())) -> Array:
    """Arrays of any type of the protocol, NaN and infinity among their elements."""
    name = draw(st.sampled_from(datatypes))
    shape = draw(SHAPES)
    count = int(np.prod(shape))
    dtype = next(dtype for dtype, each in tensors.NAMES.items() if each == name)
    if name == "BOOL":
        return draw(arrays_of.arrays(np.bool_, shape))
    data = draw(st.binary(min_size=count * dtype.size, max_size=count * dtype.size))
    return np.frombuffer(data, dtype.numpy).reshape(shape)


def same(one: Array, other: Array) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@given(some_arrays())
def test_bytes_there_and_back(array: Array) -> None:
    data = tensors.to_bytes(array)
    assert same(tensors.from_bytes(data, tensors.datatype_of(array), array.shape, "x"), array)


@given(some_arrays(), st.integers(1, 16))
def test_other_numbers_of_bytes_are_refused(array: Array, more: int) -> None:
    data, name = tensors.to_bytes(array), tensors.datatype_of(array)
    with pytest.raises(InputError, match="^x: "):
        tensors.from_bytes(data + bytes(more), name, array.shape, "x")
    if data:
        with pytest.raises(InputError, match="^x: "):
            tensors.from_bytes(data[: max(len(data) - more, 0)], name, array.shape, "x")


@given(some_arrays(), st.integers(1, 7))
def test_bytes_may_begin_anywhere(array: Array, offset: int) -> None:
    """What is made of them is aligned, as native code needs it."""
    data = memoryview(bytes(offset) + tensors.to_bytes(array))[offset:]
    found = tensors.from_bytes(data, tensors.datatype_of(array), array.shape, "x")
    assert same(found, array)
    assert found.flags.aligned


IN_JSON = tuple(name for name in tensors.NAMES.values() if name not in tensors.BINARY_ONLY)


@given(
    some_arrays(IN_JSON).filter(lambda array: array.ndim > 0 and (array.dtype.kind != "f" or np.isfinite(array).all()))
)
def test_lists_there_and_back_flat_and_nested(array: Array) -> None:
    """By way of the text, as they travel."""
    name = tensors.datatype_of(array)
    flat = json.loads(json.dumps(tensors.to_list(array, "x"), allow_nan=False))
    assert same(tensors.from_list(flat, name, array.shape, "x"), array)
    assert same(tensors.from_list(json.loads(json.dumps(array.tolist())), name, array.shape, "x"), array)


@pytest.mark.parametrize(
    ("data", "name", "shape", "told"),
    [
        ([1, 2, 3], "INT32", (2,), "has 2 elements, and there are 3"),
        ([[1, 2], [3]], "INT32", (2, 2), "a row of 1 where"),
        ([[1, 2], 3], "INT32", (2, 2), "nested unevenly"),
        ([[[1], [2]]], "INT32", (1, 2), "an element is a list"),
        ([1.5], "INT32", (1,), "an element is 1.5, which is no INT32"),
        ([True], "INT32", (1,), "a boolean, which is no INT32"),
        ([1], "BOOL", (1,), "an element is 1, which is no BOOL"),
        ([None], "FP32", (1,), "null, which is no FP32"),
        ([{}], "FP32", (1,), "an object, which is no FP32"),
        (["1"], "FP32", (1,), "a string, which is no FP32"),
        ([128], "INT8", (1,), "out of the range of INT8"),
        ([-1], "UINT64", (1,), "out of the range of UINT64"),
        ([1 << 64], "INT64", (1,), "out of the range of INT64"),
        ([1e39], "FP32", (1,), "out of the range of FP32"),
        ([10**400], "FP64", (1,), "out of the range of FP64"),
        ([0.5], "FP16", (1,), "FP16 has no encoding in JSON"),
        ([0.5], "BF16", (1,), "BF16 has no encoding in JSON"),
        ("ab", "FP32", (2,), "data is a list, not a string"),
        (None, "FP32", (0,), "data is a list, not null"),
    ],
)
def test_lists_that_are_refused(data: Any, name: str, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        tensors.from_list(data, name, shape, "x")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_json_has_no_nan(value: float) -> None:
    with pytest.raises(InputError, match="NaN or infinity, which JSON cannot say"):
        tensors.to_list(np.array([1.0, value], np.float32), "output 'y'")


def test_a_bool_is_zero_or_one() -> None:
    assert tensors.from_bytes(b"\x01\x00", "BOOL", (2,), "x").tolist() == [True, False]
    with pytest.raises(InputError, match="a byte 0 or 1"):
        tensors.from_bytes(b"\x02\x00", "BOOL", (2,), "x")


@pytest.mark.parametrize("shape", [[-1], [1.0], [True], ["2"], [None], [1 << 62, 4], [0, 1 << 60], [1] * 33], ids=str)
def test_shapes_that_are_refused(shape: list[Any]) -> None:
    with pytest.raises(InputError, match="^x: "):
        tensors.check_shape(shape, "x")


def test_types_of_ours_that_the_protocol_has_no_name_for() -> None:
    assert {name for name, dtype in DTYPES.items() if dtype not in tensors.NAMES} == {
        name for name, dtype in DTYPES.items() if dtype.is_stored
    }
    with pytest.raises(InputError, match="has no element type for i4; it has BOOL"):
        tensors.datatype(DTYPES["i4"])
    with pytest.raises(InputError, match="no datatype 'FP8'"):
        tensors.check_datatype("FP8", "x")
    with pytest.raises(InputError, match="no datatype 'BYTES'"):
        tensors.check_datatype("BYTES", "x")
