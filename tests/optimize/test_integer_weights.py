"""Real matrices times weights of known integers: their scales multiply the sums, not the weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler.walk import arrive
from glowtrain.graph import Graph, Input, Value, Variable, constant
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.elementwise.arithmetic import Mul
from glowtrain.ops.quantized.convert import limits
from glowtrain.optimize.integer import in_integers
from glowtrain.types import Array, DType, TensorType, f32, i8, u8

INNER, COLUMNS = 40, 24


def numbers(*shape: int) -> Array:
    return np.random.default_rng(0).integers(-128, 128, shape).astype(np.float32)


def real(*shape: int) -> Array:
    return np.random.default_rng(1).uniform(0.001, 0.02, shape).astype(np.float32)


def scaled(w: Array, scale: Array, *, turned: bool = False) -> Value:
    """The weight, with scales that may change from call to call."""
    factor = Variable("scale", scale)
    return factor * constant(w) if turned else constant(w) * factor


def product(operator: MatMul | Gemm, weight: Value, *rows: int, biases: Sequence[Array] = ()) -> Graph:
    x = Input(TensorType(f32, (*rows, INNER)), "x")
    return Graph((x,), {"y": operator(x, weight, *map(constant, biases))})


TURNED = Gemm(transB=True, alpha=0.5, beta=2.0)
FORMS = {
    "columns": product(MatMul(), scaled(numbers(INNER, COLUMNS), real(1, COLUMNS)), 7),
    "vector": product(MatMul(), scaled(numbers(INNER, COLUMNS), real(COLUMNS), turned=True), 2, 7),
    "one": product(MatMul(), scaled(numbers(INNER, COLUMNS), real()), 7),
    "gemm": product(Gemm(), scaled(numbers(INNER, COLUMNS), real(COLUMNS)), 7, biases=[real(COLUMNS)]),
    "turned": product(TURNED, scaled(numbers(COLUMNS, INNER), real(COLUMNS, 1)), 7, biases=[real(7, COLUMNS)]),
}
OTHERS = {
    "rows": product(MatMul(), scaled(numbers(INNER, COLUMNS), real(INNER, 1)), 7),
    "elements": product(MatMul(), scaled(numbers(INNER, COLUMNS), real(INNER, COLUMNS)), 7),
    "fractions": product(MatMul(), scaled(numbers(INNER, COLUMNS) / 4, real(1, COLUMNS)), 7),
    "one row": product(MatMul(), scaled(numbers(INNER, COLUMNS), real(1, COLUMNS))),
    "rows, turned": product(TURNED, scaled(numbers(COLUMNS, INNER), real(INNER)), 7),
}


def makes_weights(graph: Graph) -> bool:
    """Whether a matrix of as many elements as the weight is multiplied in each call."""
    products = [node for node in graph.nodes if isinstance(node.operator, Mul)]
    return any(node.output.type.size == INNER * COLUMNS for node in products)


@pytest.mark.parametrize("name", FORMS)
def test_scales_multiply_the_sums(name: str) -> None:
    graph = FORMS[name]
    assert makes_weights(graph)
    assert not makes_weights(in_integers(graph))
    (x,) = graph.inputs
    feeds = {"x": np.random.default_rng(2).uniform(-1, 1, x.shape).astype(np.float32)}
    (wanted,), (found,) = (gt.compile(graph, backend=name)(feeds).values() for name in ("interpreter", "cpu"))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", [i8, u8])
def test_contractions_read_bytes(dtype: DType) -> None:
    """A weight that is too large to be made floats when compiling, and nothing of its size is made in calls."""
    (low, high), inner, columns = limits(dtype), 300, 260
    w = np.random.default_rng(3).integers(low, high + 1, (inner, columns)).astype(np.float32)
    x = Input(TensorType(f32, (5, inner)), "x")
    graph = Graph((x,), {"y": x @ scaled(w, real(1, columns))})
    program = arrive(graph).program
    assert {b.dtype for b in program.buffers if b.shape == w.shape} == {dtype}
    feeds = {"x": np.random.default_rng(2).uniform(-1, 1, x.shape).astype(np.float32)}
    wanted = feeds["x"].astype(np.float64) @ (w.astype(np.float64) * real(1, columns))
    for backend in ("evaluator", "cpu"):
        (found,) = gt.compile(graph, backend=backend)(feeds).values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max(), err_msg=backend)


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay_as_they_are(name: str) -> None:
    assert in_integers(OTHERS[name]) is OTHERS[name]
