"""What the operators of ai.onnx.ml share: element types, and what is done to scores at the end.

Semantics: https://onnx.ai/onnx/operators/index_ml.html; where that is silent (which column a binary classifier's only
score goes to), ONNX Runtime's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Operator, Value, constant
from glowtrain.ops.elementwise.activation import Sigmoid
from glowtrain.ops.elementwise.arithmetic import Abs, Sign, Sqrt
from glowtrain.ops.elementwise.logic import Equal, Greater, Where
from glowtrain.ops.elementwise.transcendental import Exp, Log
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceSum, array_as, as_dtype
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.types import Array, DType, TensorType, f32, f64, i32, i64

DOMAIN = "ai.onnx.ml"
NUMBERS = (f32, f64, i64, i32)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_WINITZKI = 0.147
"""The constant of Winitzki's approximation of the inverse error function (2008), which ONNX Runtime uses."""
_NEAR_ZERO = 1e-7
"""Scores up to which SOFTMAX_ZERO takes a score for zero."""

Floats = tuple[float, ...]
Ints = tuple[int, ...]
Strings = tuple[str, ...]


class Tabular(Operator):
    """An operator of ai.onnx.ml on a table [rows, features], or one row [features]."""

    domain: ClassVar[str] = DOMAIN

    def table(self, *inputs: TensorType) -> TensorType:
        """The only operand, with its element type checked."""
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        if x.dtype not in NUMBERS:
            raise self.fail(f"element type must be {', '.join(map(str, NUMBERS))}, not {x.dtype}", x)
        if x.rank not in (1, 2):
            raise self.fail("takes a table [rows, features] or one row [features]", x)
        return x

    def check_length(self, name: str, values: Sequence[Any], x: TensorType) -> None:
        """An attribute with one number for all features, or one for each."""
        if len(values) not in (1, x.shape[-1]):
            raise self.fail(f"{name} must have 1 or {x.shape[-1]} numbers, not {len(values)}", x)


def compute_dtype(dtype: DType) -> DType:
    """What is computed in: f64 for f64, f32 for everything else."""
    return f64 if dtype == f64 else f32


def result_dtype(result: DType, x: DType) -> DType:
    """ONNX gives f32 always. With ``result`` f64 the results of f64 operands are f64: for checks in that precision."""
    return f64 if result == x == f64 else f32


def as_floats(x: Array) -> Array:
    """An operand in the element type that is computed in."""
    return array_as(x, compute_dtype)


def row(values: Sequence[float], dtype: DType) -> Value:
    """A constant of rank 1."""
    return constant(np.array(values, np.float64), dtype)


def transformed(name: str, scores: Value) -> Value:
    """Scores [rows, columns] after ``post_transform``, as graph code."""
    if name == "SOFTMAX":
        return Softmax(axis=-1)(scores)  # type: ignore[no-any-return]
    if name == "LOGISTIC":
        return Sigmoid()(scores)  # type: ignore[no-any-return]
    if name == "SOFTMAX_ZERO":
        return _softmax_zero(scores)
    if name == "PROBIT":
        return _probit(scores)
    return scores


def _softmax_zero(scores: Value) -> Value:
    """Softmax in which scores of zero weigh nothing."""
    largest = ReduceMax(axes=(1,), keepdims=True)(scores)
    far = Greater()(Abs()(scores), _NEAR_ZERO)
    weights = Where()(far, Exp()(scores - largest), scores * Exp()(-largest))
    sums: Value = ReduceSum(axes=(1,), keepdims=True)(weights)
    nothing = Equal()(sums, 0.0)
    shares: Value = weights / Where()(nothing, 1.0, sums)
    return Where()(nothing, 0.5, shares)  # type: ignore[no-any-return]


def _probit(scores: Value) -> Value:
    """√2 · erf⁻¹(2 s - 1), by Winitzki's approximation."""
    x = scores * 2.0 - 1.0
    log = Log()((1.0 - x) * (x + 1.0))
    half = log * 0.5 + 2 / (math.pi * _WINITZKI)
    return Sign()(x) * Sqrt()(Sqrt()(half * half - log / _WINITZKI) - half) * math.sqrt(2)  # type: ignore[no-any-return]


def transform(name: str, scores: Array) -> Array:
    """Scores [rows, columns] after ``post_transform``, in NumPy."""
    if name == "SOFTMAX":
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
    if name == "LOGISTIC":
        return np.asarray(0.5 * (1 + np.tanh(0.5 * scores)), scores.dtype)
    if name == "SOFTMAX_ZERO":
        largest = scores.max(axis=1, keepdims=True)
        powers = np.where(np.abs(scores) > _NEAR_ZERO, np.exp(scores - largest), scores * np.exp(-largest))
        sums = powers.sum(axis=1, keepdims=True)
        return np.where(sums == 0, 0.5, powers / np.where(sums == 0, 1, sums)).astype(scores.dtype)
    if name == "PROBIT":
        x = 2 * scores - 1
        log = np.log((1 - x) * (1 + x))
        half = 2 / (math.pi * _WINITZKI) + 0.5 * log
        root = np.sqrt(np.sqrt(half * half - log / _WINITZKI) - half)
        return np.asarray(np.sign(x) * root * math.sqrt(2), scores.dtype)
    return scores


def check_transform(operator: Operator, name: str, *inputs: TensorType) -> None:
    """Raises :class:`ShapeError` for a ``post_transform`` that there is not."""
    if name not in TRANSFORMS:
        raise operator.fail(f"post_transform must be one of {', '.join(TRANSFORMS)}", *inputs)


def check_integers(operator: Operator, numbers: Sequence[int], x: TensorType) -> None:
    """Raises :class:`ShapeError` for numbers that the element type cannot hold."""
    limits = np.iinfo(x.dtype.numpy)
    wrong = next((number for number in numbers if not limits.min <= number <= limits.max), None)
    if wrong is not None:
        raise operator.fail(f"{wrong} does not fit {x.dtype}", x)


def check_labels(operator: Operator, ints: Ints, strings: Strings, *inputs: TensorType) -> int:
    """The number of classes. Raises :class:`ShapeError` unless exactly one list of labels is given."""
    if bool(ints) == bool(strings):
        raise operator.fail("needs class labels: either integers or strings", *inputs)
    return len(ints or strings)


def label_numbers(ints: Ints, strings: Strings) -> Ints:
    """What stands for each class in a tensor: its label, or its position in the list of strings."""
    return ints or tuple(range(len(strings)))


def labels_at(positions: Value, labels: Ints) -> Value:
    """The labels of positions, i64."""
    result: Value = Gather(axis=0)(constant(np.array(labels, np.int64)), positions)
    return result


def best_label(scores: Value, labels: Ints) -> Value:
    """The label of each row's largest score."""
    return labels_at(ArgMax(axis=1, keepdims=False)(scores), labels)


def binary_label(positive: Value, labels: Ints) -> Value:
    """The second label where ``positive`` holds, else the first."""
    result: Value = Where()(positive, constant(np.int64(labels[1])), constant(np.int64(labels[0])))
    return result


def converted(scores: Value, result: DType, x: DType) -> Value:
    """Scores in the element type of the result."""
    return as_dtype(scores, result_dtype(result, x))


def label_type(x: TensorType) -> TensorType:
    """One i64 label for each row."""
    return TensorType(i64, (x.shape[0] if x.rank == 2 else 1,))
