"""x ** 2 and x ** 3 with known exponents: products, rounded once."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.compiler.walk import arrive, until
from glowtrain.graph import Graph, Input, constant
from glowtrain.ops.elementwise.arithmetic import Pow
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.types import DType, TensorType, bf16, f16, f32, f64, i32
from tests.ops.rules import reference

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 1e30, -1e30, 1e-45]


def power(dtype: DType, exponent: float | int, size: int = 64) -> Graph:
    x = Input(TensorType(dtype, (size,)), "x")
    given = np.array(exponent, np.int64 if isinstance(exponent, int) else dtype.numpy)
    return Graph((x,), {"y": Pow()(x, constant(given))})


def is_product(graph: Graph) -> bool:
    return "pow(" not in str(arrive(graph, stages=until("fused")))


@pytest.mark.parametrize("target", [None, "avx2", "scalar"])
@pytest.mark.parametrize("exponent", [2, 3, 2.0, 3.0])
def test_rounded_once(exponent: float, target: str | None) -> None:
    rng = np.random.default_rng(0)
    x = np.array([*SPECIAL, *rng.standard_normal(1000), *rng.uniform(-1e12, 1e12, 90)], np.float32)
    graph = power(f32, exponent, len(x))
    assert is_product(graph)
    found = gt.compile(graph, Cpu(target) if target else Cpu())({"x": x})["y"]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        exact = (x.astype(np.longdouble) ** int(exponent)).astype(np.float32)
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(np.signbit(found[:4]), np.signbit(exact[:4]))


@pytest.mark.parametrize(
    ("dtype", "exponent", "product"),
    [(f16, 2, True), (bf16, 3, True), (f64, 2, True), (f64, 3, False), (f32, 4, False), (f32, 2.5, False),
     (f32, -2, False), (i32, 2, False)],
)  # fmt: skip
def test_which_powers_are_products(dtype: DType, exponent: float, product: bool) -> None:
    graph = power(dtype, exponent)
    assert is_product(graph) is product
    x = np.random.default_rng(1).uniform(0.5, 3, 64).astype(dtype.numpy)
    wanted = reference(Pow(), x, np.asarray(exponent)).astype(np.float64)
    found = gt.compile(graph)({"x": x})["y"].astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol={f16: 1e-3, bf16: 1e-2}.get(dtype, 3e-7))


def test_an_exponent_that_is_not_known_or_not_one_is_a_power() -> None:
    x, y = Input(f32[8], "x"), Input(f32[1], "y")
    assert not is_product(Graph((x, y), {"z": Pow()(x, y)}))
    assert not is_product(Graph((x,), {"z": Pow()(x, constant(np.full(8, 2, np.float32)))}))


def test_a_mean_of_squares_has_no_power() -> None:
    """As root mean square normalisation is exported."""
    x = Input(f32[6, 40], "x")
    graph = Graph((x,), {"y": ReduceMean(axes=(1,))(Pow()(x, 2.0))})
    values = np.random.default_rng(2).standard_normal((6, 40)).astype(np.float32)
    assert "pow(" not in str(arrive(graph).program)
    wanted = (values.astype(np.float64) ** 2).mean(1, keepdims=True)
    np.testing.assert_allclose(gt.compile(graph)({"x": values})["y"], wanted, rtol=1e-6)
