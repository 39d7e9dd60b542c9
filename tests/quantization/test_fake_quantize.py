"""FakeQuantize: the bits of QuantizeLinear and DequantizeLinear, and gradients by the straight-through convention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnxruntime
import pytest

import glowtrain as gt
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.operators.oracles import check_sample
from glowtrain.ops.core.family import Grads
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear, limits
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.types import Array, DType, bf16, f16, f32, f64, i4, i8, i16, u4, u8, u16

DTYPES = (i8, u8, i16, u16, i4, u4)
LAYOUTS = ((1, 0, ()), (0, 0, (5,)), (-1, 0, (7,)), (1, 3, (5, 3)))
"""Axis, block size and the shape of scales for a tensor of 5 × 7."""


def operands(dtype: DType, real: DType, scales: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Numbers around the whole range, halves between steps among them, and infinities."""
    random = np.random.default_rng(0)
    low, high = limits(dtype)
    scale = 2.0 ** random.integers(-4, 2, scales)
    zero = random.integers(max(low, -100), min(high, 100) + 1, scales)
    x = random.integers(2 * low - 10, 2 * high + 10, (5, 7)) * 0.125
    x[0, :4] = np.inf, -np.inf, 0.0, -0.0
    return x.astype(real.numpy), np.asarray(scale, real.numpy), np.asarray(zero).astype(dtype.numpy)


@pytest.mark.spread(8)
@pytest.mark.parametrize("real", [f32, f64, f16, bf16], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_has_the_bits_of_quantize_and_dequantize(dtype: DType, real: DType) -> None:
    for axis, block, scales in LAYOUTS:
        x, scale, zero = operands(dtype, real, scales)
        with np.errstate(over="ignore"):
            integers = QuantizeLinear(axis, block).reference(x, scale, zero)
        expected = DequantizeLinear(axis, block).reference(integers, scale, zero)
        inputs = gt.Input(real[5, 7], "x")
        y = FakeQuantize(axis, block)(inputs, scale, zero)
        for backend in ("interpreter", "cpu"):
            found = gt.compile(gt.Graph((inputs,), {"y": y}), backend)({"x": x})["y"]
            np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def test_nan_stays() -> None:
    x = gt.Input(gt.f32[3], "x")
    y = FakeQuantize()(x, np.float32(0.5), np.int8(1))
    for backend in ("interpreter", "cpu"):
        found = gt.compile(gt.Graph((x,), {"y": y}), backend)({"x": np.array([np.nan, 1.3, np.nan], np.float32)})["y"]
        np.testing.assert_array_equal(found, np.array([np.nan, 1.5, np.nan], np.float32))


def gradients(operator: FakeQuantize, x: Array, scale: Array, zero: Array) -> list[Array]:
    """Of the sum of all results, for x and scale."""
    leaves = gt.Input(gt.f32[x.shape], "x"), gt.Input(gt.f32[scale.shape], "scale")
    loss = gt.nn.total(operator(*leaves, zero))
    found = gt.gradients(loss, leaves)
    graph = gt.Graph(leaves, {"dx": found[0], "dscale": found[1]})
    results = gt.compile(graph)({"x": x, "scale": scale})
    return [results["dx"], results["dscale"]]


def test_gradient_is_that_of_learned_step_sizes() -> None:
    """By hand, with steps of 0.5 from -8 to 7: inside, rounded up and down; half a step past a bound; outside."""
    x = np.array([0.6, 0.9, -4.2, 3.7, 3.8, 9.0, -9.0], np.float32)
    dx, dscale = gradients(FakeQuantize(), x, np.array(0.5, np.float32), np.zeros((), i4.numpy))
    np.testing.assert_array_equal(dx, [1, 1, 1, 1, 0, 0, 0])
    by_element = [1 - 1.2, 2 - 1.8, -8 + 8.4, 7 - 7.4, 7, 7, -8]
    assert dscale == pytest.approx(sum(by_element), rel=1e-5)


def test_bounds_move_with_the_zero_point() -> None:
    x = np.array([[-0.1, 0.3], [12.0, 255.4]], np.float32)
    dx, dscale = gradients(FakeQuantize(axis=0), x, np.ones(2, np.float32), np.array([0, 3], np.uint8))
    np.testing.assert_array_equal(dx, [[1, 1], [1, 0]])
    np.testing.assert_allclose(dscale, [0.1 - 0.3, 0.0 + 252.0], rtol=1e-5)


def test_step_gradient_is_a_factor_on_the_scale_only() -> None:
    x, scale = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4), np.full((4,), 0.3, np.float32)
    zero = np.zeros(4, np.int8)
    whole, part = (gradients(FakeQuantize(1, 0, factor), x, scale, zero) for factor in (1.0, 0.125))
    np.testing.assert_array_equal(whole[0], part[0])
    np.testing.assert_allclose(part[1], whole[1] * 0.125, rtol=1e-6)
    assert np.abs(whole[1]).min() > 0


@dataclass(frozen=True)
class ScaleForgotten(FakeQuantize):
    """Wrong: the scale's gradient as that of DequantizeLinear alone."""

    domain: ClassVar[str] = "planted"

    def vjp(self, g: gt.Value, y: gt.Value, *inputs: gt.Value) -> Grads:
        dx, _, _ = super().vjp(g, y, *inputs)
        steps = self.layout(*inputs).gathered(g * (y / self.layout(*inputs).spread_value(inputs[1])), inputs[1].shape)
        return dx, steps, None


@dataclass(frozen=True)
class NeverSaturated(FakeQuantize):
    """Wrong: gradients go through what was cut off."""

    domain: ClassVar[str] = "planted"

    def vjp(self, g: gt.Value, y: gt.Value, *inputs: gt.Value) -> Grads:
        return g, super().vjp(g, y, *inputs)[1], None


@pytest.mark.parametrize("planted", [ScaleForgotten, NeverSaturated])
def test_gradcheck_finds_a_wrong_convention(planted: type[FakeQuantize]) -> None:
    drawn = [planted.sample(ChoiceDraw(example, "planted")) for example in range(8)]
    for oracle in ("jacobian", "directions", "decomposition"):
        measures = [measure for sample in drawn for measure in check_sample(sample, [oracle])]
        assert any(measure.status == "failed" for measure in measures), oracle


def test_is_saved_as_quantize_and_dequantize() -> None:
    x = gt.Input(gt.f32[4, 6], "x")
    scale = gt.Variable("scale", np.array([0.1, 0.02, 0.5, 1.0], np.float32))
    y = FakeQuantize(0)(x, scale, np.array([3, 128, 0, 255], np.uint8))
    graph = gt.Graph((x,), {"y": y})
    model = gt.save(graph)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    data = {"x": np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32) * 20}
    expected = gt.compile(graph)(data)["y"]
    np.testing.assert_array_equal(session.run(None, data)[0], expected)
    assert {node.op_type for function in model.functions for node in function.node} == {
        "QuantizeLinear",
        "DequantizeLinear",
    }


@pytest.mark.parametrize(
    ("types", "rule"),
    [
        ((gt.f32[3], gt.f32[()]), "takes x, its scale and its zero point"),
        ((gt.f32[3], gt.f64[()], gt.i8[()]), "x and its scale must have one floating element type"),
        ((gt.i32[3], gt.i32[()], gt.i8[()]), "x and its scale must have one floating element type"),
        ((gt.f32[3], gt.f32[()], gt.i32[()]), "the zero point's type must be the quantized one"),
        ((gt.f32[3, 2], gt.f32[3], gt.i8[3]), "3 scales for the 2 positions on axis 1"),
        ((gt.f32[3, 2], gt.f32[2], gt.i8[()]), "scale and zero point must have one shape"),
    ],
)
def test_refuses(types: tuple[gt.TensorType, ...], rule: str) -> None:
    with pytest.raises(gt.errors.ShapeError, match=rule):
        FakeQuantize().infer(*types)
