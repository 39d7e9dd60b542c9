"""Rescaling by integers: no floats in between, at most one unit from rescaling in floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Mul
from glowtrain.ops.pooling.pooling import GlobalAveragePool
from glowtrain.ops.quantized.convert import QuantizeLinear
from glowtrain.ops.quantized.fixed_point import fixed_point
from glowtrain.ops.tensor.move import Reshape
from glowtrain.optimize.fixed_point import in_fixed_point
from glowtrain.types import DType, TensorType, f8e4m3fn, f32, i4, u8
from tests.optimize.quantized_graphs import operators, quantized, real, weight


def network(random: np.random.Generator) -> Graph:
    """Convolutions with a sum, a product, means and a linear layer, quantized throughout."""
    x = Input(TensorType(f32, (2, 4, 8, 8)), "x")
    a = real(quantized(x, 0.02, 120), 0.02, 120)
    scales = random.uniform(0.002, 0.01, 4).astype(np.float32)
    w = weight(random.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8), scales, 0)
    b: Value = Relu()(Conv(pads=(1, 1, 1, 1))(a, w))
    b = real(quantized(b, 0.04, 0), 0.04, 0)
    total = real(quantized(a + b, 0.05, 80), 0.05, 80)
    product = real(quantized(Mul()(total, b), 0.1, 70), 0.1, 70)
    mean = real(quantized(GlobalAveragePool()(product), 0.01, 100), 0.01, 100)
    head = weight(random.integers(-127, 128, (4, 3)).astype(np.int8), np.full(1, 0.01, np.float32), 1)
    y = Gemm()(Reshape(shape=(2, 4))(mean), head)
    return Graph((x,), {"total": quantized(total, 0.05, 80), "y": quantized(y, 0.02, 128)})


def test_no_float_is_left_between_the_first_and_the_last_quantization(random: np.random.Generator) -> None:
    graph = in_fixed_point(network(random))
    kept = [node for node in graph.nodes if any(value is not None and value.dtype.is_float for value in node.inputs)]
    assert [node.operator.key() for node in kept] == ["QuantizeLinear"]
    assert operators(graph).count("glowtrain.Rescale") == 5


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_results_are_at_most_one_unit_away(backend: str, random: np.random.Generator) -> None:
    graph, x = network(random), random.normal(size=(2, 4, 8, 8)).astype(np.float32)
    exact = gt.compile(graph)({"x": x})
    found = gt.compile(graph, backend=backend, fixed_point=True)({"x": x})
    same = gt.compile(graph, backend="interpreter", fixed_point=True)({"x": x})
    for name in exact:
        assert found[name].tobytes() == same[name].tobytes()
    difference = np.abs(found["total"].astype(int) - exact["total"].astype(int))
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.01
    assert np.abs(found["y"].astype(int) - exact["y"].astype(int)).max() <= 1


@given(st.floats(2.0**-31, 1e6))
def test_factors_are_kept_to_31_bits(factor: float) -> None:
    multiplier, shift = fixed_point(np.array(factor))
    assert abs(np.ldexp(float(multiplier), -int(shift)) - factor) <= factor * 2.0**-30
    assert 0 < int(shift) <= 62


@pytest.mark.parametrize("factor", [0.0, -1.0, np.inf, np.nan, 2.0**40])
def test_other_factors_are_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="between 0 and"):
        fixed_point(np.array(factor))


@pytest.mark.parametrize(("scale", "zero"), [(0.0, u8), (1e-45, u8), (np.inf, u8), (0.1, f8e4m3fn), (0.1, i4)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_has_no_factor_or_no_integers_stays_in_floats(
    scale: float, zero: DType, random: np.random.Generator
) -> None:
    x = Input(TensorType(f32, (5, 6)), "x")
    w = weight(random.integers(-127, 128, (6, 4)).astype(np.int8), np.full(1, 0.03, np.float32), 1)
    product = MatMul()(real(quantized(x, 0.05, 128), 0.05, 128), w)
    y = QuantizeLinear()(product, constant(np.array(scale, np.float32)), constant(np.zeros((), zero.numpy)))
    graph = Graph((x,), {"y": y})
    assert "glowtrain.Rescale" not in operators(in_fixed_point(graph))
    gt.compile(graph, fixed_point=True)({"x": random.normal(size=(5, 6)).astype(np.float32)})
