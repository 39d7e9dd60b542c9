"""A call's inputs as arrays: Python numbers and lists in the element type that is declared."""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.types import Array, DType, TensorType


def as_array(value: Any, type_: TensorType, name: str) -> Array:
    """A call's input of a name as an array; Python numbers and lists take the declared element type.

    Raises :class:`InputError` for a list that is no tensor of numbers, or has one that the element type does not.
    """
    if isinstance(value, (bool, int, float, list, tuple)):
        return _of_numbers(value, type_.dtype, name)
    return np.asarray(value, order="C")


def _of_numbers(value: Any, dtype: DType, name: str) -> Array:
    try:
        given = np.asarray(value)
        if given.size and given.dtype != dtype.numpy and not _are_numbers(value, given, dtype):
            raise InputError(f"{name!r} is a list of {given.dtype}, which are not all numbers of {dtype}")
        with np.errstate(over="ignore"):
            array = np.asarray(value, dtype.numpy)
    except ValueError as error:
        raise InputError(f"{name!r} is a list that is no tensor: {error}") from None
    except OverflowError:
        raise InputError(f"{name!r} has a number that is out of the range of {dtype}") from None
    if given.size and given.dtype != array.dtype and not _same(array, given, dtype):
        raise InputError(f"{name!r} has a number that is out of the range of {dtype}")
    return array


_KINDS = {"float": "fiub", "int": "iub", "uint": "iub", "bool": "biu", "stored": "fiub"}
"""For each kind of element types, NumPy's kinds of Python numbers that are meant by it."""


def _are_numbers(value: Any, given: Array, dtype: DType) -> bool:
    """Whether an element type is meant by a list that is ``given`` to NumPy: of large whole numbers, beside others, it
    makes floats or objects."""
    if given.dtype.kind in _KINDS[dtype.kind]:
        return True
    wanted = (int, float) if dtype.kind == "float" else (int,)
    return given.dtype.kind in "fO" and all(isinstance(item, wanted) for item in np.asarray(value, object).ravel())


def _same(array: Array, given: Array, dtype: DType) -> bool:
    """Whether numbers are those that were given: whole ones exactly, others up to rounding. Small formats, which are
    only stored, round as they do."""
    if dtype.kind == "stored":
        return True
    if dtype.kind == "float":
        return bool((np.isfinite(array) | ~np.isfinite(given.astype(float))).all())
    return bool((array.astype(given.dtype) == given).all())
