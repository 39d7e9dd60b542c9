"""Preparing the columns of a table: scaling, normalization, missing values, encodings, selection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.ops.core.index import checked
from glowtrain.ops.elementwise.arithmetic import Abs, Sqrt
from glowtrain.ops.elementwise.cast import convert
from glowtrain.ops.elementwise.logic import Equal, Greater, IsNaN, Where
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.ml.common import (
    DOMAIN,
    NUMBERS,
    Floats,
    Ints,
    Strings,
    Tabular,
    as_floats,
    check_integers,
    compute_dtype,
    converted,
    result_dtype,
    row,
)
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceSum, as_dtype
from glowtrain.ops.tensor.move import Concat, Unsqueeze, reshape
from glowtrain.types import Array, DType, TensorType, dtype_of, f32, f64, i64

STEPS = "its result is piecewise constant"


@operator
@dataclass(frozen=True)
class Scaler(Tabular):
    """(x - offset) · scale, with one number for all features or one for each; absent, offset is 0 and scale is 1."""

    offset: Floats = ()
    scale: Floats = ()
    result: DType = f32

    def infer(self, *inputs: TensorType) -> TensorType:
        x = self.table(*inputs)
        self.check_length("offset", self.offset or (0.0,), x)
        self.check_length("scale", self.scale or (1.0,), x)
        return x.with_dtype(result_dtype(self.result, x.dtype))

    def reference(self, x: Array) -> Array:
        wide = as_floats(x)
        scaled = (wide - np.array(self.offset or 0.0, wide.dtype)) * np.array(self.scale or 1.0, wide.dtype)
        return np.asarray(scaled, result_dtype(self.result, dtype_of(x.dtype)).numpy)

    def decompose(self, x: Value) -> Value:
        dtype = compute_dtype(x.dtype)
        scaled = as_dtype(x, dtype)
        scaled = scaled - row(self.offset, dtype) if self.offset else scaled
        return converted(scaled * row(self.scale, dtype) if self.scale else scaled, self.result, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = _draw_table(draw)
        offset, scale = (tuple(draw.floats((draw.choice((0, 1, x.shape[-1])),)).tolist()) for _ in range(2))
        return Sample(cls(offset, scale, result=f64), (x,))


@operator
@dataclass(frozen=True)
class Normalizer(Tabular):
    """Each row divided by its largest element (MAX), sum of magnitudes (L1) or length (L2), unless that is 0."""

    norm: str = "MAX"
    result: DType = f32

    def infer(self, *inputs: TensorType) -> TensorType:
        if self.norm not in ("MAX", "L1", "L2"):
            raise self.fail("norm must be MAX, L1 or L2", *inputs)
        x = self.table(*inputs)
        if x.shape[-1] == 0 and self.norm == "MAX":
            raise self.fail("a row without features has no largest element", x)
        return x.with_dtype(result_dtype(self.result, x.dtype))

    def reference(self, x: Array) -> Array:
        wide = as_floats(x)
        if self.norm == "MAX":
            size = wide.max(axis=-1, keepdims=True)
        elif self.norm == "L1":
            size = np.abs(wide).sum(axis=-1, keepdims=True)
        else:
            size = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
        normal = wide / np.where(size == 0, 1, size)
        return normal.astype(result_dtype(self.result, dtype_of(x.dtype)).numpy)

    def decompose(self, x: Value) -> Value:
        wide = as_dtype(x, compute_dtype(x.dtype))
        if self.norm == "MAX":
            size = ReduceMax(axes=(-1,), keepdims=True)(wide)
        else:
            size = ReduceSum(axes=(-1,), keepdims=True)(Abs()(wide) if self.norm == "L1" else wide * wide)
        divisor = Where()(Equal()(size, 0.0), 1.0, size)
        return converted(wide / (Sqrt()(divisor) if self.norm == "L2" else divisor), self.result, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Elements away from 0, where the magnitude has a kink; some rows are negative throughout."""
        shape = draw.shape(min_rank=1, max_rank=2)
        magnitudes = draw.floats(shape, 0.3, 2.0)
        sign = np.sign(draw.floats(shape, avoid=(0.0,))) if draw.boolean() else draw.choice((1.0, -1.0))
        return Sample(cls(draw.choice(("MAX", "L1", "L2")), result=f64), (magnitudes * sign,))


@operator
@dataclass(frozen=True)
class Imputer(Tabular):
    """x with one value replaced (NaN too): by one number, or by one for each feature.

    Integer operands use the attributes with ``int64`` in their names.
    """

    imputed_value_floats: Floats = ()
    imputed_value_int64s: Ints = ()
    replaced_value_float: float = 0.0
    replaced_value_int64: int = 0

    def _values(self, dtype: DType) -> tuple[tuple[Any, ...], Any]:
        if dtype.is_float:
            return self.imputed_value_floats, self.replaced_value_float
        return self.imputed_value_int64s, self.replaced_value_int64

    def infer(self, *inputs: TensorType) -> TensorType:
        x = self.table(*inputs)
        kind, (imputed, replaced) = "floats" if x.dtype.is_float else "int64s", self._values(x.dtype)
        self.check_length(f"imputed_value_{kind}", imputed, x)
        if not x.dtype.is_float:
            check_integers(self, (*imputed, replaced), x)
        return x

    def reference(self, x: Array) -> Array:
        imputed, replaced = self._values(dtype_of(x.dtype))
        missing = np.isnan(x) if replaced != replaced else x == np.asarray(replaced, x.dtype)
        return np.where(missing, np.array(imputed, x.dtype), x)

    def decompose(self, x: Value) -> Value:
        imputed, replaced = self._values(x.dtype)
        missing = IsNaN()(x) if replaced != replaced else Equal()(x, replaced)
        result: Value = Where()(missing, constant(np.array(imputed), x.dtype), x)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        if draw.integer(0, 3) == 0:
            x = draw.integers(draw.shape(min_rank=1, max_rank=2), -2, 2)
            values = tuple(draw.integers((draw.choice((1, x.shape[-1])),), -9, 9).tolist())
            return Sample(cls(imputed_value_int64s=values, replaced_value_int64=draw.integer(-2, 2)), (x,))
        x = _draw_table(draw)
        replaced = draw.choice((math.nan, float(x.flat[0])))
        if math.isnan(replaced):
            x = np.where(draw.booleans(x.shape), x, math.nan)
        values = tuple(draw.floats((draw.choice((1, x.shape[-1])),)).tolist())
        replaced = replaced if math.isnan(replaced) else 3.5
        return Sample(cls(imputed_value_floats=values, replaced_value_float=replaced), (x,))


@operator
@dataclass(frozen=True)
class Binarizer(Tabular):
    """1 where x > threshold, else 0, in the element type of x."""

    threshold: float = 0.0
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1 or inputs[0].dtype not in NUMBERS:
            raise self.fail("takes 1 operand of numbers", *inputs)
        return inputs[0]

    def reference(self, x: Array) -> Array:
        return (x.astype(np.float64) > self.threshold).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        wide = as_dtype(x, f64)
        return as_dtype(Greater()(wide, constant(np.array(self.threshold), f64)), x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        if draw.boolean():
            return Sample(cls(draw.choice((0.0, 0.5, -1.0))), (draw.integers(shape, -3, 3),))
        return Sample(cls(draw.choice((0.0, 0.7))), (draw.floats(shape, avoid=(0.0, 0.7)),))


@operator
@dataclass(frozen=True)
class OneHotEncoder(Operator):
    """A new last axis: 1 at the category that equals the element (cut off to an integer), else 0; f32.

    With ``zeros`` false an unknown category is an error in the reference; compiled code gives NaN for it.
    """

    cats_int64s: Ints = ()
    cats_strings: Strings = ()
    zeros: bool = True
    domain: ClassVar[str] = DOMAIN
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1 or inputs[0].dtype not in NUMBERS:
            raise self.fail("takes 1 operand of numbers", *inputs)
        if self.cats_strings or not self.cats_int64s:
            raise self.fail("categories must be integers (cats_int64s): tensors hold numbers, not strings", *inputs)
        return TensorType(f32, (*inputs[0].shape, len(self.cats_int64s)))

    def reference(self, x: Array) -> Array:
        hot = convert(x, i64)[..., None] == np.array(self.cats_int64s, np.int64)
        if not self.zeros and not hot.any(axis=-1).all():
            raise self.fail(f"{x[~hot.any(axis=-1)][0]} is none of the categories")
        return np.asarray(hot, np.float32)

    def decompose(self, x: Value) -> Value:
        wide: Value = Unsqueeze(axes=(-1,))(as_dtype(x, i64))
        hot = as_dtype(Equal()(wide, constant(np.array(self.cats_int64s, np.int64))), f32)
        if self.zeros:
            return hot
        found = ReduceMax(axes=(-1,), keepdims=True)(hot)
        result: Value = Where()(Equal()(found, 0.0), math.nan, hot)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.integers(draw.shape(min_rank=1, max_rank=2), 0, 3)
        zeros = draw.boolean()
        cats = (2, 0, 7) if zeros else (3, 1, 0, 2, 9)
        return Sample(cls(cats, zeros=zeros), (x if draw.boolean() else x.astype(np.float64) + 0.25,))


@operator
@dataclass(frozen=True)
class FeatureVectorizer(Operator):
    """Tables side by side, as floats; a row [features] counts as a table of one row."""

    inputdimensions: Ints = ()
    result: DType = f32
    domain: ClassVar[str] = DOMAIN

    def infer(self, *inputs: TensorType) -> TensorType:
        if not inputs or any(x.dtype not in NUMBERS or x.rank not in (1, 2) for x in inputs):
            raise self.fail("takes tables or rows of numbers", *inputs)
        rows = {x.shape[0] if x.rank == 2 else 1 for x in inputs}
        widths = tuple(x.shape[-1] for x in inputs)
        if len(rows) > 1 or len({x.dtype for x in inputs}) > 1:
            raise self.fail("all tables must have the same number of rows and one element type", *inputs)
        if self.inputdimensions and self.inputdimensions != widths:
            raise self.fail(f"inputdimensions must be the numbers of features, {list(widths)}", *inputs)
        return TensorType(result_dtype(self.result, inputs[0].dtype), (rows.pop(), sum(widths)))

    def reference(self, *inputs: Array) -> Array:
        dtype = result_dtype(self.result, dtype_of(inputs[0].dtype)).numpy
        return np.concatenate([np.atleast_2d(x).astype(dtype) for x in inputs], axis=1)

    def decompose(self, *inputs: Value) -> Value:
        tables = [converted(reshape(x, (1, *x.shape)[-2:]), self.result, x.dtype) for x in inputs]
        result: Value = Concat(axis=1)(*tables)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        rows, count = draw.choice((1, 1, 3)), draw.integer(1, 3)
        widths = [draw.integer(1, 4) for _ in range(count)]
        shapes = [(width,) if rows == 1 and draw.boolean() else (rows, width) for width in widths]
        tables: list[Array] = [draw.floats(shape) for shape in shapes]
        if draw.integer(0, 3) == 0:
            tables = [draw.integers(shape, -9, 9) for shape in shapes]
        return Sample(cls(tuple(widths) if draw.boolean() else (), result=f64), tuple(tables))


@operator
@dataclass(frozen=True)
class ArrayFeatureExtractor(Operator):
    """Elements of the last axis, by index; of a single row, as a table of one row."""

    domain: ClassVar[str] = DOMAIN

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2 or inputs[0].rank == 0 or inputs[1].dtype != i64:
            raise self.fail("takes a tensor of rank 1 or more, and i64 indices", *inputs)
        x, indices = inputs
        return x.with_shape(((*x.shape[:-1], indices.size)) if x.rank > 1 else (1, indices.size))

    def reference(self, x: Array, indices: Array) -> Array:
        return np.take(np.atleast_2d(x), checked(self, indices.reshape(-1), x.shape[-1]), axis=-1)

    def decompose(self, x: Value, indices: Value) -> Value:
        table = reshape(x, (1, *x.shape)) if x.rank == 1 else x
        result: Value = Gather(axis=-1)(table, reshape(indices, (indices.type.size,)))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        count = draw.integer(1, 4)
        indices = draw.integers(draw.choice(((count,), (1, count))), 0, shape[-1] - 1)
        return Sample(cls(), (draw.floats(shape), indices))


def _draw_table(draw: Draw) -> Array:
    return draw.floats(draw.shape(min_rank=1, max_rank=2))
