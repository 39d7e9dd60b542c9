"""Linear models: LinearRegressor and LinearClassifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Draw, Sample, Value, constant, operator
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.elementwise.logic import Greater
from glowtrain.ops.ml.common import (
    Floats,
    Ints,
    Strings,
    Tabular,
    as_floats,
    best_label,
    binary_label,
    check_labels,
    check_transform,
    compute_dtype,
    converted,
    label_numbers,
    label_type,
    result_dtype,
    row,
    transform,
    transformed,
)
from glowtrain.ops.reduce.reduction import as_dtype
from glowtrain.ops.tensor.move import Concat, reshape
from glowtrain.types import Array, DType, Shape, TensorType, dtype_of, f32, f64


def as_table(shape: Shape) -> Shape:
    """One row as a table of one row."""
    return (1, *shape) if len(shape) == 1 else shape


def weighted(x: Value, coefficients: Floats, intercepts: Floats, columns: int) -> Value:
    """x · Wᵀ + b, in the element type that is computed in; W is [columns, features] in row-major order."""
    dtype = compute_dtype(x.dtype)
    table = reshape(as_dtype(x, dtype), as_table(x.shape))
    weights = np.array(coefficients, dtype.numpy).reshape(columns, -1).T
    product: Value = MatMul()(table, constant(np.ascontiguousarray(weights)))
    return product + row(intercepts, dtype) if intercepts else product


def weighted_array(x: Array, coefficients: Floats, intercepts: Floats, columns: int) -> Array:
    """The same in NumPy."""
    table = np.atleast_2d(as_floats(x))
    product = table @ np.array(coefficients, table.dtype).reshape(columns, -1).T
    return np.asarray(product + np.array(intercepts, table.dtype) if intercepts else product)


@operator
@dataclass(frozen=True)
class LinearRegressor(Tabular):
    """x · Wᵀ + b for each target, then ``post_transform``; W is [targets, features]."""

    coefficients: Floats = ()
    intercepts: Floats = ()
    targets: int = 1
    post_transform: str = "NONE"
    result: DType = f32

    def infer(self, *inputs: TensorType) -> TensorType:
        x = self.table(*inputs)
        check_transform(self, self.post_transform, x)
        if self.targets < 1 or len(self.coefficients) != self.targets * x.shape[-1]:
            raise self.fail(f"needs targets · {x.shape[-1]} coefficients, not {len(self.coefficients)}", x)
        if len(self.intercepts) not in (0, self.targets):
            raise self.fail(f"needs one intercept for each target, not {len(self.intercepts)}", x)
        return TensorType(result_dtype(self.result, x.dtype), (as_table(x.shape)[0], self.targets))

    def reference(self, x: Array) -> Array:
        scores = weighted_array(x, self.coefficients, self.intercepts, self.targets)
        return transform(self.post_transform, scores).astype(result_dtype(self.result, dtype_of(x.dtype)).numpy)

    def decompose(self, x: Value) -> Value:
        scores = weighted(x, self.coefficients, self.intercepts, self.targets)
        return converted(transformed(self.post_transform, scores), self.result, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, columns = draw_rows(draw), draw.integer(1, 4)
        weights = tuple(draw.floats((columns * x.shape[1],)).tolist())
        bias = tuple(draw.floats((columns,)).tolist()) if draw.boolean() else ()
        transform_ = draw.choice(("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"))
        if transform_ == "PROBIT":  # of probabilities
            x, weights, bias = np.abs(x) / 4 + 0.05, tuple(0.3 / x.shape[1] for _ in weights), (0.2,) * columns
        return Sample(cls(weights, bias, columns, transform_, result=f64), (x,))


def draw_rows(draw: Draw) -> Array:
    """A table with at least one row and feature."""
    return draw.floats((draw.integer(1, 4), draw.integer(1, 5)))


@operator
@dataclass(frozen=True)
class LinearClassifier(Tabular):
    """Labels (i64) and scores [rows, classes]: x · Wᵀ + b, then ``post_transform``.

    One row of weights makes a binary classifier: with score s its scores are 1 - s and s, and the label is the second
    if s > 0. Labels that are strings are given by their positions in the list.
    """

    coefficients: Floats
    intercepts: Floats = ()
    classlabels_ints: Ints = ()
    classlabels_strings: Strings = ()
    multi_class: int = 0
    post_transform: str = "NONE"
    result: DType = f32

    def _columns(self, features: int) -> int:
        return len(self.coefficients) // features if features else 0

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        x = self.table(*inputs)
        check_transform(self, self.post_transform, x)
        classes = check_labels(self, self.classlabels_ints, self.classlabels_strings, x)
        columns = self._columns(x.shape[-1])
        if not columns or len(self.coefficients) != columns * x.shape[-1] or len(self.intercepts) not in (0, columns):
            counts = f"{len(self.coefficients)} coefficients and {len(self.intercepts)} intercepts"
            raise self.fail(f"{counts} do not make rows of {x.shape[-1]} features", x)
        if classes < columns or (columns == 1 and classes != 2):
            raise self.fail(f"{columns} rows of weights do not fit {classes} labels", x)
        return label_type(x), TensorType(result_dtype(self.result, x.dtype), (as_table(x.shape)[0], max(columns, 2)))

    def reference(self, x: Array) -> tuple[Array, Array]:
        columns = self._columns(x.shape[-1])
        scores = weighted_array(x, self.coefficients, self.intercepts, columns)
        labels = np.array(label_numbers(self.classlabels_ints, self.classlabels_strings), np.int64)
        if columns == 1:
            found, final = labels[(scores[:, 0] > 0).astype(int)], self._both(scores)
        else:
            found, final = labels[scores.argmax(axis=1)], transform(self.post_transform, scores)
        return found, final.astype(result_dtype(self.result, dtype_of(x.dtype)).numpy)

    def _both(self, score: Array) -> Array:
        if self.post_transform == "LOGISTIC":
            score = transform("LOGISTIC", score)
        both = np.concatenate([1 - score, score], axis=1)
        return transform("PROBIT", both) if self.post_transform == "PROBIT" else both

    def decompose(self, x: Value) -> Any:
        columns = self._columns(x.shape[-1])
        scores = weighted(x, self.coefficients, self.intercepts, columns)
        labels = label_numbers(self.classlabels_ints, self.classlabels_strings)
        if columns == 1:
            found = binary_label(Greater()(reshape(scores, (scores.shape[0],)), 0.0), labels)
            score = transformed("LOGISTIC", scores) if self.post_transform == "LOGISTIC" else scores
            final: Value = Concat(axis=1)(1.0 - score, score)
            final = transformed("PROBIT", final) if self.post_transform == "PROBIT" else final
        else:
            found, final = best_label(scores, labels), transformed(self.post_transform, scores)
        return found, converted(final, self.result, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, columns = draw_rows(draw), draw.integer(1, 4)
        weights = tuple(draw.floats((columns * x.shape[1],)).tolist())
        bias = tuple(draw.floats((columns,)).tolist()) if draw.boolean() else ()
        labels = tuple(draw.integers((max(columns, 2),), -9, 9).tolist())
        transform_ = draw.choice(("NONE", "SOFTMAX", "LOGISTIC"))
        op = cls(weights, bias, labels, (), draw.integer(0, 1), transform_, f64)
        return Sample(op, (x,))
