"""ONNX tensors and element types, to NumPy and back."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from onnx import SparseTensorProto, TensorProto, TypeProto, helper, numpy_helper

from glowtrain.errors import ModelError, ShapeError
from glowtrain.types import (
    LARGEST_RANK,
    Array,
    DType,
    dtype_of,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    i2,
    i4,
    i8,
    i16,
    u2,
    u4,
    u8,
    u16,
)

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""ONNX's element types that have gradients."""

_PACKED_BITS: dict[DType, int] = {f6e2m3: 6, f6e3m2: 6, f4e2m1: 4, i4: 4, u4: 4, i2: 2, u2: 2}
"""Bits of the types whose elements lie in files without gaps, the first at the low end of the first byte."""


_RANGES: dict[DType, tuple[int, int]] = {
    dtype: (int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)) for dtype in (i8, u8, i16, u16)
}

LARGEST_SPARSE = 1 << 32
"""Bytes of a sparse tensor made dense: a small file can declare any shape."""


def element_type(type_: TypeProto) -> int:
    """The code of the element type of a tensor, of a sequence's or an optional one's; 0 of what is none of these."""
    while (kind := str(type_.WhichOneof("value"))) in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
    return type_.tensor_type.elem_type


def dtype_from_onnx(code: int, what: str) -> DType:
    """The element type of an ONNX type code. Raises :class:`ModelError`, naming ``what`` has it."""
    if code == TensorProto.BFLOAT16:
        return dtype_of(ml_dtypes.bfloat16)
    try:
        return dtype_of(helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, ShapeError, TypeError, ValueError):
        raise ModelError(f"{what}: element type {type_name(code)} is not supported") from None


def dtype_to_onnx(dtype: DType) -> int:
    """ONNX's code for an element type."""
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy))


def type_name(code: int) -> str:
    """ONNX's name of an element type, as far as it has one."""
    values = TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(code)) if code in values else f"number {code}"


def array_from_tensor(tensor: TensorProto, folder: Path | None, what: str = "tensor") -> Array:
    """The elements of a tensor; data outside the model is read from ``folder``.

    Raises :class:`ModelError` for types that are not supported, extents that are negative or overflow, data that is
    shorter or longer than the extents say, and external data that is missing or outside ``folder``.
    """
    what = f"{what} {tensor.name!r}" if tensor.name else what
    dtype = dtype_from_onnx(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if len(shape) > LARGEST_RANK:
        raise ModelError(f"{what}: a tensor of {len(shape)} axes: there can be {LARGEST_RANK} at most")
    if any(extent < 0 for extent in shape) or math.prod(extent or 1 for extent in shape) * dtype.size >= 1 << 62:
        raise ModelError(f"{what}: shape {list(shape)} is negative or overflows")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _from_bytes(_external_bytes(tensor, folder, dtype, what), dtype, shape, what)
    if tensor.HasField("raw_data"):
        return _from_bytes(tensor.raw_data, dtype, shape, what)
    _check_range(tensor, dtype, what)
    try:
        array = np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{what} of shape {list(shape)} cannot be read: {error}") from None
    return array.astype(dtype.numpy, copy=False)


def _check_range(tensor: TensorProto, dtype: DType, what: str) -> None:
    """Integers of 8 and 16 bits, which a file may hold as numbers of 32 bits."""
    if dtype not in _RANGES or not tensor.int32_data:
        return
    low, high = _RANGES[dtype]
    numbers = np.array(tensor.int32_data)
    outside = numbers[(numbers < low) | (numbers > high)]
    if outside.size:
        raise ModelError(f"{what}: {outside[0]} is not a number of {dtype}, which holds {low} to {high}")


def _from_bytes(data: bytes, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
    _check_size(len(data), dtype, shape, what)
    if dtype in _PACKED_BITS:
        return unpacked(data, dtype, math.prod(shape)).reshape(shape)
    return np.frombuffer(data, dtype.numpy.newbyteorder("<")).astype(dtype.numpy, copy=False).reshape(shape)


def _check_size(size: int, dtype: DType, shape: Sequence[int], what: str) -> None:
    """Raise :class:`ModelError` unless a tensor takes as many bytes as a file holds of it."""
    needed = -(-math.prod(shape) * _PACKED_BITS.get(dtype, 8 * dtype.size) // 8)
    if size != needed:
        raise ModelError(f"{what}: {dtype}{list(shape)} needs {needed} bytes but the file holds {size}")


def unpacked(data: bytes, dtype: DType, count: int) -> Array:
    """The first ``count`` elements of a type of less than a byte, from a file's bytes."""
    bits = _PACKED_BITS[dtype]
    stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: count * bits].reshape(count, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(count).view(dtype.numpy)


def packed(array: Array) -> bytes:
    """The elements of a type of less than a byte without gaps, as :func:`unpacked` reads them."""
    codes = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    stream = np.unpackbits(codes, axis=1, count=_PACKED_BITS[dtype_of(array.dtype)], bitorder="little")
    return np.packbits(stream.reshape(-1), bitorder="little").tobytes()


def _external_bytes(tensor: TensorProto, folder: Path | None, dtype: DType, what: str) -> bytes:
    """A tensor's bytes from the file beside the model; how many there are is checked before any is read."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"{what} lies in the file {location!r} beside the model: load the model by its path")
    path = _inside(folder.resolve(), location, what)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{what}: its data file {path} is not a regular file")
        offset = _byte_count(entries, "offset", 0, what)
        end = offset + _byte_count(entries, "length", status.st_size - offset, what)
        if offset < 0 or end < offset or end > status.st_size:
            raise ModelError(f"{what}: its data are bytes {offset} to {end} of {path}, which has {status.st_size}")
        _check_size(end - offset, dtype, tensor.dims, what)
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(end - offset)
    except OSError as error:
        raise ModelError(f"{what}: its data file {path} cannot be read: {error.strerror}") from None


def _byte_count(entries: Mapping[str, str], key: str, default: int, what: str) -> int:
    """A number of bytes, in decimal digits and nothing else: ``int`` would also take " 0 " and "1_0"."""
    text = entries.get(key, str(default))
    if not re.fullmatch("-?[0-9]{1,99}", text):
        rule = "offset and length of external data must be numbers in decimal digits"
        raise ModelError(f"{what}: {rule}, and {key} is {text!r}")
    return int(text)


def _inside(root: Path, location: str, what: str) -> Path:
    """The file at a location, which must be below a folder."""
    try:
        path = (root / location).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a null character
        raise ModelError(f"{what}: its data file {location!r} cannot be found: {error}") from None
    if not location or not path.is_relative_to(root) or path == root:
        raise ModelError(f"{what}: its data file {location!r} is outside the model's folder {root}")
    return path


def array_from_sparse(sparse: SparseTensorProto, folder: Path | None, what: str = "") -> Array:
    """A sparse tensor made dense. Raises :class:`ModelError` for indices outside of it and tensors that do not fit."""
    what, shape = what or f"sparse tensor {sparse.values.name!r}", tuple(sparse.dims)
    values = array_from_tensor(sparse.values, folder, f"{what}: values")
    indices = array_from_tensor(sparse.indices, folder, f"{what}: indices")
    if any(extent < 0 for extent in shape) or math.prod(shape) * values.itemsize > LARGEST_SPARSE:
        raise ModelError(f"{what}: shape {list(shape)} is negative or too large")
    flat = values.ndim == 1 and indices.shape == values.shape
    if not flat and (values.ndim != 1 or indices.shape != (*values.shape, len(shape))):
        raise ModelError(f"{what}: values{list(values.shape)} do not fit indices{list(indices.shape)}")
    dense = np.zeros(shape, values.dtype)
    try:
        positions = indices if flat else np.ravel_multi_index(tuple(indices.T), shape)
        if positions.size and positions.min() < 0:
            raise ModelError(f"{what}: an index is negative")
        dense.reshape(-1)[positions] = values
    except (IndexError, ValueError, TypeError) as error:
        raise ModelError(f"{what} of shape {list(shape)}: {error}") from None
    return dense


def tensor_from_array(array: Array, name: str) -> TensorProto:
    """An array as a tensor, in raw form."""
    data, dtype = np.ascontiguousarray(array), dtype_of(array.dtype)
    little = data.astype(data.dtype.newbyteorder("<"), copy=False)
    raw = packed(data) if dtype in _PACKED_BITS else little.tobytes()
    return TensorProto(name=name, data_type=dtype_to_onnx(dtype), dims=array.shape, raw_data=raw)
