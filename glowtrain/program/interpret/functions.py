"""Scalar functions, conversions, constants and reductions of the loop language on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from glowtrain.errors import ProgramError
from glowtrain.loops import FUNCTIONS
from glowtrain.loops.functions import truncated
from glowtrain.types import Array, DType, boolean, dtype_of, f32, wide_of

UFUNCS: Mapping[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}
"""How the operations of a Reduce and an Accumulate combine two elements; "max" and "min" propagate NaN."""


def apply(function: str, arguments: list[Array]) -> Array:
    """A function of :data:`glowtrain.loops.FUNCTIONS` on arrays of one element type (that broadcast)."""
    return FUNCTIONS[function].on(arguments)


def reinterpret(array: Array, dtype: DType) -> Array:
    """The same bits as another element type; a byte is true as a bool unless it is 0."""
    return array != 0 if dtype == boolean else np.ascontiguousarray(array).view(dtype.numpy).reshape(array.shape)


def convert(array: Array, dtype: DType) -> Array:
    """NumPy's ``astype``, but floats are truncated to integers; stored types are converted by way of f32 or i32."""
    if array.dtype == dtype.numpy:
        return array
    for stored in (dtype_of(array.dtype), dtype):
        if stored.is_stored:
            array = _in_one_step(array, wide_of(stored))
    return _in_one_step(array, dtype)


def _in_one_step(array: Array, dtype: DType) -> Array:
    if dtype_of(array.dtype).is_float and dtype.is_integer:
        return truncated(array, dtype)
    if array.dtype.kind not in "fiub" or array.dtype == np.float16:
        array = array.astype(np.float32)
    if dtype.name == "bf16" and array.dtype.kind in "iub":
        array = array.astype(np.float32)
    return array.astype(dtype.numpy)


def number(value: bool | int | float, dtype: DType) -> Array:
    """A constant of an element type, as a 0-d array; integers wrap."""
    if dtype.is_float:
        return np.asarray(float(value)).astype(dtype.numpy)
    if dtype == boolean:
        return np.asarray(bool(value))
    return np.asarray(int(value) & (1 << 64) - 1, np.uint64).astype(dtype.numpy)


def identity(op: str, dtype: DType) -> Array:
    """What combining no elements at all gives."""
    if op in ("add", "or"):
        return number(0, dtype)
    if op in ("mul", "and"):
        return number(1, dtype)
    if dtype.is_float:
        return number(-math.inf if op == "max" else math.inf, dtype)
    if dtype == boolean:
        return number(op == "min", dtype)
    limits = np.iinfo(dtype.numpy)
    return number(int(limits.min if op == "max" else limits.max), dtype)


def combine(op: str, array: Array, axes: tuple[int, ...]) -> Array:
    """Reduce over axes in the array's own element type. Raises :class:`ProgramError` for an unknown operation."""
    if op not in UFUNCS:
        raise ProgramError(f"a reduction by {op!r} does not exist; use one of {', '.join(UFUNCS)}")
    reduced: Array
    if array.dtype.name == "bfloat16":
        reduced = np.asarray(UFUNCS[op].reduce(array.astype(f32.numpy), axis=axes)).astype(array.dtype)
    elif op in ("and", "or"):
        reduced = np.asarray(UFUNCS[op].reduce(array, axis=axes))
    else:
        reduced = np.asarray(UFUNCS[op].reduce(array, axis=axes, dtype=array.dtype))
    return reduced


def combine_in_order(op: str, factors: Sequence[Array], dtype: DType, partials: int) -> Array:
    """Reduce the last axis: element i goes into partial result i mod ``partials``; these are combined half with half.

    The elements are one array, or those of a sum, the products of two, which fused multiply-adds add.
    """
    extent = factors[0].shape[-1]
    sums = np.full((*factors[0].shape[:-1], partials), identity(op, dtype), dtype.numpy)
    for start in range(0, extent, partials):
        into = sums[..., : extent - start]
        part = [array[..., start : start + partials] for array in factors]
        into[...] = apply("fma", [*part, into]) if len(part) == 2 else _both(op, into, part[0])
    while sums.shape[-1] > 1:
        sums = _both(op, *np.split(sums, 2, axis=-1))
    result: Array = sums[..., 0]
    return result


def _both(op: str, left: Array, right: Array) -> Array:
    """Two arrays, combined element by element."""
    return combine(op, np.stack((left, right)), (0,))
