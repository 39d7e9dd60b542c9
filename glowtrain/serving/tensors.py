"""The protocol's element types, and tensors as bytes and as lists of JSON.

    bytes ::= the elements, row by row, little-endian; a BOOL is one byte, 0 or 1
    list  ::= the elements, row by row, in one list or in one a row, as deep as the shape

FP16 and BF16 have no encoding as lists. The protocol's BYTES, strings, are not here: no network has tensors of them.
Source: Open Inference Protocol v2 (kserve/open-inference-protocol, specification/protocol/inference_rest.md), and
Triton's extension for binary tensor data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.presentation.messages import plural
from glowtrain.types import (
    Array,
    DType,
    Shape,
    bf16,
    boolean,
    dtype_of,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)

NAMES: dict[DType, str] = {
    boolean: "BOOL",
    u8: "UINT8", u16: "UINT16", u32: "UINT32", u64: "UINT64",
    i8: "INT8", i16: "INT16", i32: "INT32", i64: "INT64",
    f16: "FP16", bf16: "BF16", f32: "FP32", f64: "FP64",
}  # fmt: skip
"""What the protocol calls element types."""
_TYPES = {name: dtype for dtype, name in NAMES.items()}
BINARY_ONLY = ("FP16", "BF16")
"""Types without an encoding in JSON."""

LARGEST_RANK = 32
"""Axes of a tensor in a request."""
_IN_JSON: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "uint": (int,), "float": (int, float)}
"""What elements are as JSON is read, by the kind of their type."""


def datatype_of(array: Array) -> str:
    """The protocol's name of an array's element type. Raises :class:`InputError` for types that have none."""
    return datatype(dtype_of(array.dtype))


def datatype(dtype: DType) -> str:
    """The protocol's name of an element type. Raises :class:`InputError` for types that have none."""
    if dtype not in NAMES:
        raise InputError(f"the Open Inference Protocol has no element type for {dtype}; it has {', '.join(_TYPES)}")
    return NAMES[dtype]


def check_datatype(name: str, where: str) -> None:
    """Raise :class:`InputError` for what is no element type of the protocol."""
    if name not in _TYPES:
        raise InputError(f"{where}: there is no datatype {name!r} here; there are {', '.join(_TYPES)}")


def check_shape(shape: Sequence[int], where: str) -> Shape:
    """A shape whose extents are not negative, and that an array can have. Raises :class:`InputError`."""
    if len(shape) > LARGEST_RANK:
        raise InputError(f"{where}: a shape of {len(shape)} axes; there can be {LARGEST_RANK} at most")
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise InputError(f"{where}: the shape {list(shape)} has an extent that is no integer from 0 on")
    if math.prod(extent or 1 for extent in shape) >= 1 << 58:
        raise InputError(f"{where}: the shape {list(shape)} has too many elements")
    return tuple(shape)


def from_bytes(data: bytes | memoryview, name: str, shape: Shape, where: str) -> Array:
    """The tensor that bytes encode: a view of them where that is possible.

    Raises :class:`InputError` for another number of bytes than the shape says, and for a BOOL that is neither 0 nor 1.
    """
    dtype = _TYPES[name]
    wanted = math.prod(shape) * dtype.size
    if len(data) != wanted:
        raise InputError(
            f"{where}: {name}{list(shape)} is {plural(wanted, 'byte')}, and there are {plural(len(data), 'byte')}"
        )
    elements = np.frombuffer(data, dtype.numpy.newbyteorder("<"))
    if dtype is boolean and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise InputError(f"{where}: a BOOL is a byte 0 or 1, and there are others")
    aligned = elements if elements.flags.aligned else elements.copy()
    return aligned.astype(dtype.numpy, copy=False).reshape(shape)


def to_bytes(array: Array) -> bytes:
    """The bytes that encode a tensor."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def from_list(data: object, name: str, shape: Shape, where: str) -> Array:
    """The tensor that a list of JSON encodes, nested as its shape or flat.

    Raises :class:`InputError` for a type without such an encoding, for elements of another kind or out of the type's
    range, and for another number of them than the shape says.
    """
    if name in BINARY_ONLY:
        raise InputError(f"{where}: {name} has no encoding in JSON; send its bytes, with binary_data_size")
    elements = _flat(data, shape, where)
    _check_kinds(elements, _IN_JSON[_TYPES[name].kind], name, where)
    with np.errstate(over="ignore"):
        array = from_elements(elements, name, shape, where)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{where}: an element is out of the range of {name}")
    return array


def from_elements(elements: Sequence[Any], name: str, shape: Shape, where: str) -> Array:
    """The tensor of these elements, row by row: of Python's types.

    Raises :class:`InputError` for elements out of the type's range, and for another number of them than the shape says.
    """
    if len(elements) != math.prod(shape):
        wanted = plural(math.prod(shape), "element")
        raise InputError(f"{where}: the shape {list(shape)} has {wanted}, and there are {len(elements):,}")
    dtype = _TYPES[name]
    try:
        return np.array(elements, dtype.numpy).reshape(shape)
    except OverflowError:
        raise InputError(f"{where}: an element is out of the range of {name}") from None


def _flat(data: object, shape: Shape, where: str) -> list[Any]:
    if not isinstance(data, list):
        raise InputError(f"{where}: data is a list, not {_kind(data)}")
    elements = data
    for extent in shape[1:] if any(isinstance(item, list) for item in data) else ():
        if not all(isinstance(item, list) for item in elements):
            raise InputError(f"{where}: data is nested unevenly, or not as deep as the shape {list(shape)}")
        elements = _rows(elements, extent, shape, where)
    return elements


def _rows(lists: list[list[Any]], extent: int, shape: Shape, where: str) -> list[Any]:
    lengths = set(map(len, lists))
    if lengths - {extent}:
        odd = next(length for length in lengths if length != extent)
        raise InputError(f"{where}: data has a row of {odd:,} where the shape {list(shape)} has {extent:,}")
    return list(chain.from_iterable(lists))


def _check_kinds(elements: Iterable[object], kinds: tuple[type, ...], name: str, where: str) -> None:
    strange = set(map(type, elements)) - set(kinds)
    if strange:
        item = next(item for item in elements if type(item) in strange)
        raise InputError(f"{where}: an element is {_kind(item)}, which is no {name}")


def _kind(value: object) -> str:
    """What a value is in JSON's words."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), f"{value!r:.40}")


def to_list(array: Array, where: str) -> list[Any]:
    """A tensor's elements as one list for JSON.

    Raises :class:`InputError` for what JSON cannot say: FP16 and BF16, NaN and infinity.
    """
    name = datatype_of(array)
    if name in BINARY_ONLY:
        raise InputError(f"{where}: {name} has no encoding in JSON; ask for its bytes, with binary_data")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{where}: it has NaN or infinity, which JSON cannot say; ask for its bytes, with binary_data")
    elements: list[Any] = array.ravel().tolist()
    return elements
