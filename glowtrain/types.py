"""Element types and tensor types.

type ::= dtype "[" extent ("," extent)* "]"      e.g.  f32[64,784]   i64[]
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from weakref import ref

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from glowtrain.errors import ShapeError

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class DType:
    """An element type: its name, its NumPy type and its kind ("float", "int", "uint", "bool" or "stored").

    Tensors of a "stored" type (4- to 8-bit floats, 2- and 4-bit integers) are kept, moved and converted, but not
    computed with. In memory each element has a byte of its own.
    """

    name: str
    numpy: np.dtype[Any]
    kind: str

    @property
    def size(self) -> int:
        """Bytes of one element in memory."""
        return self.numpy.itemsize

    @property
    def exponent(self) -> int:
        """The bits of a float's exponent, which are those of infinity."""
        return int.from_bytes(np.asarray(np.inf, self.numpy).tobytes(), sys.byteorder)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_number(self) -> bool:
        """Whether tensors of this type are computed with."""
        return self.is_float or self.is_integer

    @property
    def is_stored(self) -> bool:
        """Whether tensors of this type are only kept, moved and converted."""
        return self.kind == "stored"

    def __getitem__(self, shape: Any) -> Any:
        """``f32[64, 784]`` is a tensor type; with a name among the extents, a :class:`Spec`."""
        extents = shape if isinstance(shape, tuple) else (shape,)
        if all(isinstance(extent, int) for extent in extents):
            return TensorType(self, extents)
        return Spec(self, extents)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, DType) and (self.name, self.numpy, self.kind) == (other.name, other.numpy, other.kind)
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


f64 = DType("f64", np.dtype(np.float64), "float")
f32 = DType("f32", np.dtype(np.float32), "float")
f16 = DType("f16", np.dtype(np.float16), "float")
bf16 = DType("bf16", np.dtype(ml_dtypes.bfloat16), "float")
i64 = DType("i64", np.dtype(np.int64), "int")
i32 = DType("i32", np.dtype(np.int32), "int")
i16 = DType("i16", np.dtype(np.int16), "int")
i8 = DType("i8", np.dtype(np.int8), "int")
u64 = DType("u64", np.dtype(np.uint64), "uint")
u32 = DType("u32", np.dtype(np.uint32), "uint")
u16 = DType("u16", np.dtype(np.uint16), "uint")
u8 = DType("u8", np.dtype(np.uint8), "uint")
boolean = DType("bool", np.dtype(np.bool_), "bool")
f8e4m3fn = DType("f8e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), "stored")
f8e4m3fnuz = DType("f8e4m3fnuz", np.dtype(ml_dtypes.float8_e4m3fnuz), "stored")
f8e5m2 = DType("f8e5m2", np.dtype(ml_dtypes.float8_e5m2), "stored")
f8e5m2fnuz = DType("f8e5m2fnuz", np.dtype(ml_dtypes.float8_e5m2fnuz), "stored")
f8e8m0 = DType("f8e8m0", np.dtype(ml_dtypes.float8_e8m0fnu), "stored")
f6e2m3 = DType("f6e2m3", np.dtype(ml_dtypes.float6_e2m3fn), "stored")
f6e3m2 = DType("f6e3m2", np.dtype(ml_dtypes.float6_e3m2fn), "stored")
f4e2m1 = DType("f4e2m1", np.dtype(ml_dtypes.float4_e2m1fn), "stored")
i4 = DType("i4", np.dtype(ml_dtypes.int4), "stored")
u4 = DType("u4", np.dtype(ml_dtypes.uint4), "stored")
i2 = DType("i2", np.dtype(ml_dtypes.int2), "stored")
u2 = DType("u2", np.dtype(ml_dtypes.uint2), "stored")

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        *(f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean),
        *(f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0, f6e2m3, f6e3m2, f4e2m1, i4, u4, i2, u2),
    )
}
SMALL_INTEGERS: dict[DType, tuple[int, int]] = {i4: (-8, 7), u4: (0, 15), i2: (-2, 1), u2: (0, 3)}
"""The least and the greatest number of each integer type of less than a byte."""
_BY_NUMPY: dict[np.dtype[Any], DType] = {dtype.numpy: dtype for dtype in DTYPES.values()}


def wide_of(dtype: DType) -> DType:
    """The type by way of which a stored type is converted to and from others: it holds all of its numbers."""
    return i32 if dtype in SMALL_INTEGERS else f32


def byte_of(dtype: DType) -> DType:
    """The type of 8 bits that holds an i4 or i2 (i8), a u4 or u2 (u8); other types stay as they are."""
    if dtype not in SMALL_INTEGERS:
        return dtype
    least, _ = SMALL_INTEGERS[dtype]
    return i8 if least < 0 else u8


def dtype_of(numpy_type: DTypeLike) -> DType:
    """The element type of a NumPy dtype. Raises :class:`ShapeError` for types that tensors cannot have."""
    found = _BY_NUMPY.get(np.dtype(numpy_type))
    if found is None:
        raise ShapeError(f"element type {np.dtype(numpy_type)} is not supported; use one of {', '.join(DTYPES)}")
    return found


LARGEST_RANK = 64
"""Axes of a tensor: as many as NumPy has."""


@dataclass(frozen=True)
class TensorType:
    """Element type and static shape."""

    dtype: DType
    shape: Shape = ()

    def __post_init__(self) -> None:
        if len(self.shape) > LARGEST_RANK:
            raise ShapeError(f"a tensor of {len(self.shape)} axes: there can be {LARGEST_RANK} at most")
        if self.shape and min(self.shape) < 0:
            raise ShapeError(f"{self}: extents cannot be negative")
        if self.nbytes >= 1 << 62 or (0 in self.shape and math.prod(e or 1 for e in self.shape) >= 1 << 58):
            raise ShapeError(f"{self}: the product of the extents overflows")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        return self.size * self.dtype.size

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def accepts(self, array: Array | LazyArray) -> bool:
        """Whether an array has exactly this type."""
        return array.dtype == self.dtype.numpy and array.shape == self.shape

    @cached_property
    def text(self) -> str:
        """``f32[64,784]``, which :func:`parse_type` reads."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def type_of(array: Array | LazyArray) -> TensorType:
    """The tensor type of an array."""
    return _typed(array.dtype, array.shape)


@lru_cache(maxsize=1024)
def _typed(dtype: np.dtype[Any], shape: Shape) -> TensorType:
    """Most constants of a graph are scalars, and most variables have one of a few shapes."""
    return TensorType(dtype_of(dtype), tuple(map(int, shape)))


class LazyArray:
    """An array that is computed when one looks at it, the same one each time, and kept as long as one does."""

    __slots__ = ("_known", "_make", "type")

    def __init__(self, type_: TensorType, make: Callable[[], Array]) -> None:
        """``make``: returns the array, of this type."""
        self.type = type_
        self._make = make
        self._known: ref[Array] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.type.dtype.numpy

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def array(self) -> Array:
        """The array, which must not be changed."""
        known = None if self._known is None else self._known()
        if known is None:
            known = self._make()
            known.flags.writeable = False  # what was written to it would be gone with it
            self._known = ref(known)
        return known

    def __reduce__(self) -> tuple[Callable[[Array], Array], tuple[Array]]:
        """Its elements: what computes them may be another function elsewhere."""
        return np.asarray, (self.array,)


def elements_of(array: Array | LazyArray) -> Array:
    """An array itself, or the one that a lazy one stands for."""
    return array.array if isinstance(array, LazyArray) else array


@lru_cache(maxsize=1024)
def parse_type(text: str) -> TensorType:
    """Read ``f32[64,784]``. Raises :class:`ShapeError`."""
    match = re.fullmatch(r"(\w+)\[([\d,]*)\]", text)
    if match is None or match[1] not in DTYPES:
        raise ShapeError(f"{text!r} is not a tensor type such as f32[64,784]")
    return TensorType(DTYPES[match[1]], tuple(int(extent) for extent in match[2].split(",") if extent))


@dataclass(frozen=True)
class Spec:
    """A tensor type with symbolic dimensions: ``f32["batch", 784]``. :meth:`bind` makes it static."""

    dtype: DType
    shape: tuple[int | str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbolic dimensions, in order of appearance."""
        return tuple(dict.fromkeys(extent for extent in self.shape if isinstance(extent, str)))

    def bind(self, dims: dict[str, int]) -> TensorType:
        """The static type. Raises ``KeyError`` with the name of an unbound dimension."""
        return TensorType(
            self.dtype, tuple(dims[extent] if isinstance(extent, str) else extent for extent in self.shape)
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__
