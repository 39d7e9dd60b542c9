"""How a person's arrays become what an input takes: its element type, and where nothing is ambiguous its shape.

Element types: floats are rounded to the input's float type; integers and bools become floats of the same value (an
image of u8 stays 0 to 255); integers take another width if they fit in it. Floats never become integers.

Shapes: examples that are flat where the input's are not, or the other way round, keep the order of their elements;
axes of extent 1 come and go. Any other shape stays as it is, and does not fit: the elements of images with channels
last are as many as those with channels first, but they stand elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.types import Array, DType, Spec, bf16, type_of

Extent = int | str

INTEGERS = "iub"
"""NumPy's kinds whose values are whole numbers."""


def converted(name: str, array: Array, dtype: DType) -> Array:
    """The array in an element type that it can be converted to, else as it is.

    Raises :class:`InputError` for values that the type does not hold.
    """
    if array.dtype == dtype.numpy or not convertible(array, dtype):
        return array
    if not dtype.is_float:
        _check_range(name, array, dtype)
        return array.astype(dtype.numpy)
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype.numpy)
    except FloatingPointError:
        raise InputError(f"{name!r} holds numbers that are too large for {dtype}; scale them") from None


def as_variables(values: Mapping[str, Any], present: Mapping[str, Array]) -> dict[str, Array]:
    """Values for variables by name, in the types of the present ones.

    Raises :class:`InputError` naming all that have other shapes, or types that cannot be converted.
    """
    types = {name: type_of(array) for name, array in present.items()}
    arrays = {name: converted(name, np.asarray(value), types[name].dtype) for name, value in values.items()}
    problems = [
        f"{name!r} is {types[name]}, not {array.dtype}{list(array.shape)}"
        for name, array in arrays.items()
        if (array.dtype, array.shape) != (present[name].dtype, present[name].shape)
    ]
    if problems:
        raise InputError(f"variables of other types: {'; '.join(problems)}")
    return arrays


def convertible(array: Array, dtype: DType) -> bool:
    """Whether :func:`converted` takes arrays of this kind to the type."""
    if array.dtype == dtype.numpy:
        return True
    if dtype.is_float:
        return array.dtype.kind in "f" + INTEGERS or array.dtype == bf16.numpy
    return dtype.kind in ("int", "uint") and array.dtype.kind in INTEGERS


def _check_range(name: str, array: Array, dtype: DType) -> None:
    if not array.size or array.dtype.kind == "b":
        return
    least, most = _range(dtype)
    low, high = int(array.min()), int(array.max())
    if low < least or high > most:
        raise InputError(f"{name!r} holds {low if low < least else high}, but {dtype} only {least} to {most}")


def _range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    bits = 8 * dtype.size
    return (0, 2**bits - 1) if dtype.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def shaped(array: Array, spec: Spec) -> Array:
    """The array with examples of the input's shape, if theirs has the same elements in the same order."""
    have, want = array.shape[1:], spec.shape[1:]
    if not array.ndim or not spec.shape or not _all_fixed(want) or have == want:
        return array
    extents = tuple(int(extent) for extent in want)
    flat = math.prod(have) == math.prod(extents) and min(_rank(have), _rank(extents)) <= 1
    return array.reshape(len(array), *extents) if flat or _same_but_ones(have, extents) else array


def one_hot(name: str, labels: Array, spec: Spec) -> Array:
    """Labels as vectors that are 1 at the label and else 0. Raises :class:`InputError` for labels that are none."""
    classes = spec.shape[-1]
    if not isinstance(classes, int):
        raise InputError(f"{name!r} holds labels, but how many classes there are is open: {spec}")
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise InputError(f"{name!r} holds {labels.min()} to {labels.max()}, but labels are from 0 to {classes - 1}")
    vectors = np.zeros((*labels.shape, classes), spec.dtype.numpy)
    np.put_along_axis(vectors, labels[..., None].astype(np.int64), 1, axis=-1)
    return vectors


def with_unit_axes(array: Array, spec: Spec) -> Array:
    """The array with those axes of extent 1 that the input has: [n] for [batch, 1], or [n, 1] for [batch]."""
    have, want = array.shape[1:], spec.shape[1:]
    if not array.ndim or not spec.shape or len(have) == len(want) or not _same_but_ones(have, want):
        return array
    rest = iter(extent for extent in have if extent != 1)
    return array.reshape(len(array), *(1 if extent == 1 else next(rest) for extent in want))


def mismatch(name: str, array: Array, spec: Spec) -> str:
    """What is wrong with examples for an input, and what to do; empty if nothing.

    The first extent, the batch, may be anything.
    """
    fits = array.ndim == len(spec.shape) and _fit(array.shape[1:], spec.shape[1:])
    if fits and convertible(array, spec.dtype):
        return ""
    advice = "" if convertible(array, spec.dtype) else f"; convert it with .astype({_numpy_name(spec.dtype)})"
    advice += "" if fits else transposition(array.shape, spec) or unit_axes(array.shape, spec)
    return f"{name!r} must be {spec}, not {array.dtype}[{','.join(map(str, array.shape))}]{advice}"


def unit_axes(shape: Sequence[int], spec: Spec) -> str:
    """``; it lacks an axis of 1: use .reshape(-1, 1, 28, 28)`` where examples have the input's elements without it."""
    want = spec.shape[1:]
    if not _all_fixed(want) or len(shape) >= len(spec.shape) or not _same_but_ones(shape[1:], want):
        return ""
    return f"; it lacks an axis of 1: use .reshape({', '.join(map(str, (-1, *want)))})"


def transposition(shape: Sequence[int], spec: Spec) -> str:
    """``; it looks like channels last: use .transpose(0, 3, 1, 2)`` where examples have the axes in another order."""
    have, want = tuple(shape[1:]), spec.shape[1:]
    if len(have) != len(want) or len(have) < 2 or len(have) > 4 or _fit(have, want):
        return ""
    axes = tuple(range(1, len(shape)))
    moved = {"channels last": (axes[-1], *axes[:-1]), "channels first": (*axes[1:], axes[0])}
    for what, order in moved.items():
        if _fit([shape[axis] for axis in order], want):
            return f"; it looks like {what}: use {_transpose(order)}"
    orders = [order for order in permutations(axes) if _fit([shape[axis] for axis in order], want)]
    return f"; its axes are in another order: use {_transpose(orders[0])}" if len(orders) == 1 else ""


def _transpose(order: Sequence[int]) -> str:
    return f".transpose(0, {', '.join(map(str, order))})"


def _fit(have: Sequence[int], want: Sequence[Extent]) -> bool:
    return len(have) == len(want) and all(isinstance(w, str) or h == w for h, w in zip(have, want, strict=True))


def _all_fixed(extents: Sequence[Extent]) -> bool:
    return all(isinstance(extent, int) for extent in extents)


def _rank(extents: Sequence[int]) -> int:
    """Axes that hold more than one element."""
    return sum(extent != 1 for extent in extents)


def _same_but_ones(have: Sequence[int], want: Sequence[Extent]) -> bool:
    return _fit([extent for extent in have if extent != 1], [extent for extent in want if extent != 1])


def _numpy_name(dtype: DType) -> str:
    """What the element type is called in Python."""
    return f"{'np' if dtype.numpy.type.__module__ == 'numpy' else 'ml_dtypes'}.{dtype.numpy.name}"
