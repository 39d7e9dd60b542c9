"""LabelEncoder: a table from numbers to numbers, and the binary search that it compiles to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.loops import Const, Expr, For, Let, Ref, Statement, Tensor, indices_of, select
from glowtrain.ops.elementwise.extrema import Min
from glowtrain.ops.elementwise.logic import Equal, IsNaN, Less, Where
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.ml.common import DOMAIN, Floats, Ints, Strings, check_integers
from glowtrain.ops.reduce.reduction import ReduceSum, as_dtype
from glowtrain.ops.tensor.move import Unsqueeze
from glowtrain.types import Array, DType, TensorType, dtype_of, f32, f64, i64

POSITIONS = "positions are integers"


@operator
@dataclass(frozen=True)
class SearchSorted(Operator):
    """How many elements of the increasing list ``sorted`` are less than each element of x, as i64; 0 for NaN."""

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = POSITIONS

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2 or inputs[1].rank != 1 or inputs[1].size == 0 or inputs[0].dtype != inputs[1].dtype:
            raise self.fail("takes a tensor and a list of at least one number of the same type", *inputs)
        if inputs[0].dtype.kind == "bool":
            raise self.fail("element type must be a number, not bool", *inputs)
        return inputs[0].with_dtype(i64)

    def reference(self, x: Array, ordered: Array) -> Array:
        found = np.searchsorted(ordered, x, side="left")
        return np.where(x == x, found, 0).astype(np.int64)

    def decompose(self, x: Value, ordered: Value) -> Value:
        less = as_dtype(Less()(ordered, Unsqueeze(axes=(-1,))(x)), i64)
        result: Value = ReduceSum(axes=(-1,), keepdims=False)(less)
        return result

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        """Binary search without branches: the count grows by powers of two."""
        (x, ordered), (y,) = inputs, outputs
        extent, at = ordered.shape[0], indices_of(y.shape)
        largest = np.inf if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).max)
        body: list[Statement] = []
        count: Expr = Const(0, i64)
        for level in reversed(range(extent.bit_length())):
            more = count + (1 << level)
            below = ordered.load((more - 1,), fill=largest) < x[at]
            ref = Ref(i64, f"count{level}")
            body.append(Let(ref, select(below, more, count)))
            count = ref
        return [For(at, (*body, y.store(at, count)))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        ordered = np.unique(draw.integers((draw.integer(1, 9),), -9, 9))
        x = draw.integers(draw.shape(max_rank=2), -10, 10)
        if draw.boolean():
            return Sample(cls(), (x, ordered))
        return Sample(cls(), (x.astype(np.float64), ordered.astype(np.float64)))


@dataclass(frozen=True)
class Mapping:
    """A table with increasing keys; ``nan`` is the value of the key NaN, if there is one."""

    keys: Array
    values: Array
    default: Array
    nan: Array | None

    @classmethod
    def of(cls, keys: Sequence[Any], values: Array, default: Array, dtype: DType) -> Mapping:
        """Sort by key; of equal keys the last counts."""
        last = {key: value for key, value in zip(keys, values, strict=True) if key == key}
        nans = [value for key, value in zip(keys, values, strict=True) if key != key]
        ordered = sorted(last)
        found = np.array([last[key] for key in ordered], values.dtype)
        return cls(np.array(ordered, dtype.numpy), found, default, np.asarray(nans[-1]) if nans else None)


@operator
@dataclass(frozen=True)
class LabelEncoder(Operator):
    """Each element replaced by the value that stands at its key, or by the default; NaN is a key too.

    Keys and values are given in one attribute each. Tensors hold numbers: tables from or to strings are refused.
    ``dtype`` is the element type of ``values_tensor``, which may be given as an array. With ``result`` f64 values that
    are floats are f64: for checks in that precision.
    """

    keys_floats: Floats = ()
    keys_int64s: Ints = ()
    keys_strings: Strings = ()
    keys_tensor: Any = ()
    values_floats: Floats = ()
    values_int64s: Ints = ()
    values_strings: Strings = ()
    values_tensor: Any = ()
    default_float: float = -0.0
    default_int64: int = -1
    default_string: str = "_Unused"
    default_tensor: Any = ()
    dtype: DType = f32
    result: DType = f32

    domain: ClassVar[str] = DOMAIN
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "its result is piecewise constant"

    def __post_init__(self) -> None:
        if isinstance(self.values_tensor, np.ndarray):
            object.__setattr__(self, "dtype", dtype_of(self.values_tensor.dtype))
        for name in ("keys_tensor", "values_tensor", "default_tensor"):
            array = getattr(self, name)
            if isinstance(array, np.ndarray):
                object.__setattr__(self, name, tuple(array.reshape(-1).tolist()))

    @property
    def keys(self) -> tuple[Any, ...]:
        return self.keys_floats or self.keys_int64s or tuple(self.keys_tensor)

    @property
    def values(self) -> Array:
        if self.values_tensor:
            values = np.array(self.values_tensor, self.dtype.numpy)
        else:
            values = np.array(self.values_floats or self.values_int64s, np.float32 if self.values_floats else np.int64)
        return values.astype(np.float64) if self.result == f64 and values.dtype.kind == "f" else values

    @property
    def default(self) -> Array:
        values = self.values
        given = self.default_tensor[0] if self.values_tensor and self.default_tensor else None
        number = self.default_float if values.dtype.kind == "f" else self.default_int64
        return np.asarray(number if given is None else given, values.dtype)

    def attributes(self) -> dict[str, Any]:
        """As in ONNX: the tables that are tensors are arrays."""
        values = {name: value for name, value in super().attributes().items() if name != "dtype"}
        for name in ("values_tensor", "default_tensor"):
            values[name] = np.array(values[name], self.dtype.numpy) if values[name] else ()
        values["keys_tensor"] = np.array(self.keys_tensor) if self.keys_tensor else ()
        return values

    def mapping(self, dtype: DType) -> Mapping:
        """The table for operands of an element type."""
        return Mapping.of(self.keys, self.values, self.default, dtype)

    def infer(self, *inputs: TensorType) -> TensorType:
        if self.keys_strings or self.values_strings:
            raise self.fail("maps strings, but tensors hold numbers; encode labels as integers before export", *inputs)
        if len(inputs) != 1 or inputs[0].dtype.kind == "bool":
            raise self.fail("takes 1 operand of numbers", *inputs)
        if not self.keys or len(self.keys) != self.values.size:
            raise self.fail(f"{len(self.keys)} keys need as many values, not {self.values.size}", *inputs)
        if not inputs[0].dtype.is_float and any(not isinstance(key, int) for key in self.keys):
            raise self.fail(f"the keys are fractions, but the elements are {inputs[0].dtype}", *inputs)
        if not inputs[0].dtype.is_float:
            check_integers(self, self.keys, inputs[0])
        return inputs[0].with_dtype(dtype_of(self.values.dtype))

    def reference(self, x: Array) -> Array:
        table, result = self.mapping(dtype_of(x.dtype)), np.full(x.shape, self.default)
        for key, value in zip(table.keys, table.values, strict=True):
            result[x == key] = value
        if table.nan is not None:
            result[np.isnan(x)] = table.nan
        return result

    def decompose(self, x: Value) -> Value:
        table = self.mapping(x.dtype)
        result: Value = constant(table.default)
        if table.keys.size:
            found = Min()(SearchSorted()(x, constant(table.keys)), np.int64(table.keys.size - 1))
            hit = Equal()(Gather()(constant(table.keys), found), x)
            result = Where()(hit, Gather()(constant(table.values), found), result)
        if table.nan is not None:
            result = Where()(IsNaN()(x), constant(table.nan), result)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, count = draw.integers(draw.shape(max_rank=2), 0, 6), draw.integer(1, 6)
        keys, values = draw.integers((count,), 0, 5), draw.integers((count,), -9, 9)
        if draw.boolean():
            listed = {"keys_tensor": keys} if draw.boolean() else {"keys_int64s": tuple(keys.tolist())}
            op = cls(**listed, values_tensor=values, default_tensor=np.array([7]))
            return Sample(op, (x,))
        if draw.boolean():
            fractions = tuple((values / 4).tolist())
            return Sample(cls(keys_int64s=tuple(keys.tolist()), values_floats=fractions, default_float=0.5), (x,))
        floats = (*(keys / 2).tolist(), math.nan)
        op = cls(keys_floats=floats, values_int64s=(*values.tolist(), 42), default_int64=draw.integer(-3, 3))
        return Sample(op, (np.where(x == 6, math.nan, x / 2),))
