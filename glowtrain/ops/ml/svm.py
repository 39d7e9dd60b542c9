"""Support vector machines: SVMRegressor and SVMClassifier."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.elementwise.logic import Greater, Where
from glowtrain.ops.elementwise.transcendental import Exp, Tanh
from glowtrain.ops.ml.common import (
    Floats,
    Ints,
    Strings,
    Tabular,
    as_floats,
    best_label,
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
from glowtrain.ops.ml.coupling import coupled, coupled_array
from glowtrain.ops.ml.linear import as_table, draw_rows
from glowtrain.ops.reduce.reduction import ReduceSum, as_dtype
from glowtrain.ops.tensor.move import Concat, Unsqueeze, reshape
from glowtrain.types import Array, DType, TensorType, dtype_of, f32, f64

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


@dataclass(frozen=True)
class SvmKernel:
    """A kernel with its parameters gamma, coef0 and degree."""

    kind: str
    gamma: float
    offset: float
    degree: float

    @classmethod
    def of(cls, kind: str, parameters: Floats) -> SvmKernel:
        return cls(kind, *(*parameters, 0.0, 0.0, 0.0)[:3])

    def array(self, x: Array, vectors: Array) -> Array:
        """The kernel of each row of x with each vector, in NumPy."""
        if self.kind == "RBF":
            difference = x[:, None, :] - vectors[None, :, :]
            return np.asarray(np.exp(-self.gamma * (difference * difference).sum(axis=2)), x.dtype)
        products = x @ vectors.T
        if self.kind == "LINEAR":
            return products
        scaled = products * x.dtype.type(self.gamma) + x.dtype.type(self.offset)
        return np.asarray(np.tanh(scaled) if self.kind == "SIGMOID" else scaled**self.degree, x.dtype)

    def value(self, x: Value, vectors: Array) -> Value:
        """The same as graph code. Distances are summed as squared differences, which do not cancel."""
        if self.kind == "RBF":
            difference: Value = Unsqueeze(axes=(1,))(x) - constant(vectors)
            squares: Value = ReduceSum(axes=(2,), keepdims=False)(difference * difference)
            return Exp()(squares * -self.gamma)  # type: ignore[no-any-return]
        products: Value = MatMul()(x, constant(np.ascontiguousarray(vectors.T)))
        if self.kind == "LINEAR":
            return products
        scaled = products * self.gamma + self.offset
        return Tanh()(scaled) if self.kind == "SIGMOID" else scaled**self.degree


def _check_kernel(operator_: Operator, kind: str, parameters: Floats, x: TensorType) -> None:
    if kind not in KERNELS or len(parameters) not in (0, 3):
        kernels = ", ".join(KERNELS)
        raise operator_.fail(f"kernel_type must be one of {kernels}, kernel_params gamma, coef0 and degree", x)


@operator
@dataclass(frozen=True)
class SVMRegressor(Tabular):
    """Weighted kernels of x with the support vectors, plus rho; with ``one_class`` 1 where that is positive, else -1.

    Without support vectors the coefficients are those of a linear function.
    """

    coefficients: Floats = ()
    kernel_params: Floats = ()
    kernel_type: str = "LINEAR"
    n_supports: int = 0
    one_class: int = 0
    post_transform: str = "NONE"
    rho: Floats = ()
    support_vectors: Floats = ()
    result: DType = f32

    def infer(self, *inputs: TensorType) -> TensorType:
        x = self.table(*inputs)
        check_transform(self, self.post_transform, x)
        _check_kernel(self, self.kernel_type, self.kernel_params, x)
        count = self.n_supports
        if count < 0 or len(self.rho) != 1 or len(self.coefficients) != (count or x.shape[-1]):
            raise self.fail("needs one rho, and one coefficient for each support vector (or feature)", x)
        if len(self.support_vectors) != count * x.shape[-1]:
            raise self.fail(f"needs {count} support vectors of {x.shape[-1]} features", x)
        return TensorType(result_dtype(self.result, x.dtype), (as_table(x.shape)[0], 1))

    def _model(self, dtype: DType) -> tuple[SvmKernel, Array, Array]:
        """Kernel, vectors [supports, features] and coefficients [supports, 1]; one vector if it is linear."""
        weights = np.array(self.coefficients, dtype.numpy)
        if not self.n_supports:
            return SvmKernel.of("LINEAR", ()), weights[None, :], np.ones((1, 1), dtype.numpy)
        vectors = np.array(self.support_vectors, dtype.numpy).reshape(self.n_supports, -1)
        return SvmKernel.of(self.kernel_type, self.kernel_params), vectors, weights[:, None]

    def reference(self, x: Array) -> Array:
        table = np.atleast_2d(as_floats(x))
        kernel, vectors, weights = self._model(dtype_of(table.dtype))
        scores = kernel.array(table, vectors) @ weights + table.dtype.type(self.rho[0])
        if self.one_class:
            scores = np.where(scores > 0, 1.0, -1.0)
        return transform(self.post_transform, scores).astype(result_dtype(self.result, dtype_of(x.dtype)).numpy)

    def decompose(self, x: Value) -> Value:
        dtype = compute_dtype(x.dtype)
        table = reshape(as_dtype(x, dtype), as_table(x.shape))
        kernel, vectors, weights = self._model(dtype)
        scores: Value = MatMul()(kernel.value(table, vectors), constant(weights)) + self.rho[0]
        if self.one_class:
            scores = Where()(Greater()(scores, 0.0), constant(np.array(1.0), dtype), constant(np.array(-1.0), dtype))
        return converted(transformed(self.post_transform, scores), self.result, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, count, kind = draw_rows(draw), draw.integer(0, 4), draw.choice(KERNELS)
        weights = tuple(draw.floats((count or x.shape[1],)).tolist())
        vectors = tuple(draw.floats((count * x.shape[1],)).tolist())
        single = int(draw.integer(0, 3) == 0)
        form, rho = draw.choice(("NONE", "LOGISTIC")), draw.choice((0.37, -0.21))
        op = cls(weights, _draw_parameters(draw), kind, count, single, form, (rho,), vectors, f64)
        return Sample(op, (x,))


def _draw_parameters(draw: Draw) -> Floats:
    return (draw.choice((0.5, 0.25)), draw.choice((0.0, 0.7)), draw.choice((2.0, 3.0)))


@operator
@dataclass(frozen=True)
class SVMClassifier(Tabular):
    """Labels (i64) and scores. Every pair of classes has a score, whose sign votes for one of them; most votes win.

    With ``prob_a`` and ``prob_b`` the scores are probabilities of the classes (see :mod:`glowtrain.ops.ml.coupling`),
    else those of the pairs; of two classes with score s they are -s and s. Without ``vectors_per_class`` the
    coefficients are those of a linear function for each class. Labels that are strings are given by their positions.
    """

    classlabels_ints: Ints = ()
    classlabels_strings: Strings = ()
    coefficients: Floats = ()
    kernel_params: Floats = ()
    kernel_type: str = "LINEAR"
    post_transform: str = "NONE"
    prob_a: Floats = ()
    prob_b: Floats = ()
    rho: Floats = ()
    support_vectors: Floats = ()
    vectors_per_class: Ints = ()
    result: DType = f32

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "labels are integers, and probabilities come from an iteration that stops at a tolerance"

    @property
    def labels(self) -> Ints:
        return label_numbers(self.classlabels_ints, self.classlabels_strings)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(itertools.combinations(range(len(self.labels)), 2))

    @property
    def columns(self) -> int:
        """How many scores a row has."""
        classes = len(self.labels)
        return len(self.pairs) if classes > 2 and self.vectors_per_class and not self.prob_a else classes

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        x = self.table(*inputs)
        check_transform(self, self.post_transform, x)
        _check_kernel(self, self.kernel_type, self.kernel_params, x)
        classes = check_labels(self, self.classlabels_ints, self.classlabels_strings, x)
        if classes < 2:
            raise self.fail("needs at least two class labels", x)
        (self._check_vectors if self.vectors_per_class else self._check_linear)(classes, x)
        return label_type(x), TensorType(result_dtype(self.result, x.dtype), (as_table(x.shape)[0], self.columns))

    def _check_linear(self, classes: int, x: TensorType) -> None:
        if len(self.coefficients) != classes * x.shape[-1] or not self.rho:
            raise self.fail("a linear classifier needs a coefficient for each class and feature, and rho", x)

    def _check_vectors(self, classes: int, x: TensorType) -> None:
        count, pairs = sum(self.vectors_per_class), len(self.pairs)
        if len(self.vectors_per_class) != classes or min(self.vectors_per_class) < 0:
            raise self.fail(f"vectors_per_class must have {classes} numbers, not {len(self.vectors_per_class)}", x)
        if len(self.support_vectors) != count * x.shape[-1] or len(self.coefficients) != count * (classes - 1):
            rule = f"{count} support vectors need {x.shape[-1]} features and {classes - 1} coefficients each"
            raise self.fail(rule, x)
        if len(self.rho) != pairs or len(self.prob_a) not in (0, pairs) or len(self.prob_b) != len(self.prob_a):
            raise self.fail(f"rho (and prob_a, prob_b) need a number for each of the {pairs} pairs of classes", x)

    def _pair_weights(self) -> Array:
        """What each support vector's kernel counts in each pair's score, [vectors, pairs] in f64."""
        counts = np.array(self.vectors_per_class)
        first = np.concatenate([[0], np.cumsum(counts)])
        given = np.array(self.coefficients).reshape(len(self.labels) - 1, -1)
        weights = np.zeros((int(first[-1]), len(self.pairs)))
        for column, (i, j) in enumerate(self.pairs):
            weights[first[i] : first[i + 1], column] = given[j - 1, first[i] : first[i + 1]]
            weights[first[j] : first[j + 1], column] = given[i, first[j] : first[j + 1]]
        return weights

    def _model(self, dtype: DType) -> tuple[SvmKernel, Array, Array]:
        """Kernel, vectors [vectors, features] and weights [vectors, scores]."""
        if not self.vectors_per_class:
            vectors = np.array(self.coefficients, dtype.numpy).reshape(len(self.labels), -1)
            return SvmKernel.of("LINEAR", ()), vectors, np.eye(len(self.labels), dtype=dtype.numpy)
        vectors = np.array(self.support_vectors, dtype.numpy).reshape(sum(self.vectors_per_class), -1)
        return SvmKernel.of(self.kernel_type, self.kernel_params), vectors, self._pair_weights().astype(dtype.numpy)

    def _ballots(self, dtype: DType) -> tuple[Array, Array]:
        """For which class a positive score votes, and a negative one: [pairs, classes] each."""
        one = np.eye(len(self.labels), dtype=dtype.numpy)
        return one[[i for i, _ in self.pairs]], one[[j for _, j in self.pairs]]

    @property
    def _offsets(self) -> Floats:
        return self.rho if self.vectors_per_class else self.rho[:1]

    def reference(self, x: Array) -> tuple[Array, Array]:
        table = np.atleast_2d(as_floats(x))
        dtype = dtype_of(table.dtype)
        kernel, vectors, weights = self._model(dtype)
        scores = kernel.array(table, vectors) @ weights + np.array(self._offsets, table.dtype)
        best = scores
        if self.vectors_per_class:
            positive, negative = self._ballots(dtype)
            best = np.where(scores > 0, 1, 0) @ positive + np.where(scores > 0, 0, 1) @ negative
            if self.prob_a:
                scores = coupled_array(scores, np.array(self.prob_a, table.dtype), np.array(self.prob_b, table.dtype))
            elif len(self.labels) == 2:
                scores = np.concatenate([-scores, scores], axis=1)
        found = np.array(self.labels, np.int64)[best.argmax(axis=1)]
        final = transform(self.post_transform, scores.astype(table.dtype))
        return found, final.astype(result_dtype(self.result, dtype_of(x.dtype)).numpy)

    def decompose(self, x: Value) -> Any:
        dtype = compute_dtype(x.dtype)
        table = reshape(as_dtype(x, dtype), as_table(x.shape))
        kernel, vectors, weights = self._model(dtype)
        scores: Value = MatMul()(kernel.value(table, vectors), constant(weights)) + row(self._offsets, dtype)
        best = scores
        if self.vectors_per_class:
            best = self._votes(scores)
            if self.prob_a:
                scores = coupled(scores, row(self.prob_a, dtype), row(self.prob_b, dtype), len(self.labels))
            elif len(self.labels) == 2:
                scores = Concat(axis=1)(-scores, scores)
        final = converted(transformed(self.post_transform, scores), self.result, x.dtype)
        return best_label(best, self.labels), final

    def _votes(self, scores: Value) -> Value:
        positive, negative = self._ballots(scores.dtype)
        won = as_dtype(Greater()(scores, 0.0), scores.dtype)
        votes: Value = MatMul()(won, constant(positive)) + MatMul()(1.0 - won, constant(negative))
        return votes

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, classes = draw_rows(draw), draw.integer(2, 4)
        labels, pairs = tuple(range(3, 3 + classes)), classes * (classes - 1) // 2
        if draw.integer(0, 3) == 0:
            weights = tuple(draw.floats((classes * x.shape[1],)).tolist())
            form = draw.choice(("NONE", "LOGISTIC", "SOFTMAX"))
            op = cls(labels, coefficients=weights, rho=(draw.choice((0.2, -0.3)),), post_transform=form, result=f64)
            return Sample(op, (x,))
        counts = tuple(draw.integer(1, 3) for _ in labels)
        shapes = (sum(counts) * (classes - 1),), (sum(counts) * x.shape[1],), (pairs,), (pairs,)
        weights, vectors, rho, bias = (tuple(draw.floats(shape).tolist()) for shape in shapes)
        slopes = draw.floats((pairs,), -2.0, -1.0)
        likely = (tuple(slopes.tolist()), bias) if classes == 2 and draw.boolean() else ((), ())
        kernel = (_draw_parameters(draw), draw.choice(KERNELS))
        form = draw.choice(("NONE", "LOGISTIC", "SOFTMAX"))
        op = cls(labels, (), weights, *kernel, form, *likely, rho, vectors, counts, f64)
        return Sample(op, (x,))
