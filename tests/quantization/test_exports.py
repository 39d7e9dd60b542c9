"""What is written: operators on quantized tensors that mean the same, weights read along two axes, scales that other
runtimes round with alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.graph import Constant, Graph, Template, Value, Variable, constant
from glowtrain.onnx_io.runtimes import reciprocal
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.pooling.pooling import GlobalMaxPool
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.pad import Pad
from glowtrain.quantization import Recipe, Scheme, convert, prepare_training, qoperator, save_quantized
from glowtrain.quantization.export.convert import reaching
from glowtrain.types import Array, DType, f32, i4, i8, u8

FRAME = (0, 0, 1, 2, 0, 0, 1, 0)


def images() -> Array:
    return np.random.default_rng(1).standard_normal((4, 3, 6, 6)).astype(np.float32)


def bound(model: object) -> Graph:
    assert isinstance(model, Template)
    return model.bind({})


def operators(graph: Graph) -> set[str]:
    return {node.operator.onnx for node in graph.nodes}


def in_onnx_runtime(graph: Graph, x: Array, path: Path, form: str) -> Array:
    save_quantized(graph, path, form=form)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    result: Array = ort.InferenceSession(str(path), options).run(None, {"x": x})[0]
    return result


def operators_left(path: Path) -> set[str]:
    """After ONNX Runtime's optimizations."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    options.log_severity_level = 3
    ort.InferenceSession(str(path), options)
    return {node.op_type for node in onnx.load(path.with_suffix(".optimized.onnx")).graph.node}


MARGINS: dict[str, Callable[[Value], Value]] = {
    "default": Pad(pads=FRAME),
    "zero": lambda x: Pad(pads=FRAME)(x, constant(0.0, f32)),
    "edge": Pad(pads=FRAME, mode="edge"),
    "maximum of all": GlobalMaxPool(),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", MARGINS)
def test_operators_that_pass_numbers_on_mean_the_same_in_both_forms(name: str, tmp_path: Path) -> None:
    """A margin of 0 is one of zero points; an operator on real numbers alone stays one."""

    @gt.model(x=f32[4, 3, 6, 6])
    def net(x: Value) -> Value:
        return nn.conv(MARGINS[name](nn.conv(x, 4, 3, padding=1, name="first")), 2, 1, name="second")

    found = gt.quantize(bound(net), images(), Recipe(outputs=True))
    other = qoperator(found.graph)
    assert {"QLinearConv"} <= operators(other)
    ours = gt.compile(found.model)({"x": images()})["output"]
    assert len(np.unique(ours)) > 5
    np.testing.assert_array_equal(gt.compile(other)({"x": images()})["output"], ours)
    np.testing.assert_array_equal(in_onnx_runtime(found.graph, images(), tmp_path / "q.onnx", "qoperator"), ours)


@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
def test_a_margin_of_another_number_is_quantized(dtype: DType) -> None:
    scale, zero = constant(np.float32(0.05)), constant(np.array(20, dtype.numpy))

    @gt.model(x=f32[4, 3, 6, 6])
    def net(x: Value) -> Value:
        numbers = DequantizeLinear()(QuantizeLinear()(x, scale, zero), scale, zero)
        padded = Pad(pads=FRAME)(numbers, constant(-0.31, f32))
        result: Value = DequantizeLinear()(QuantizeLinear()(padded, scale, zero), scale, zero)
        return result

    other = qoperator(bound(net))
    (pad,) = (node for node in other.nodes if isinstance(node.operator, Pad))
    assert pad.outputs[0].dtype == dtype
    expected = gt.compile(net)({"x": images()})["output"]
    np.testing.assert_array_equal(gt.compile(other)({"x": images()})["output"], expected)
    assert expected[0, 0, 0, 0] == np.float32(-0.3)


@pytest.mark.parametrize(("factor", "zero", "found"), [(1.0, 0, True), (2.0, 0, False), (1.0, 3, False)])
def test_a_bias_in_other_units_is_no_operand_of_qlinearconv(factor: float, zero: int, found: bool) -> None:
    """Files of other quantizers may have such; QLinearConv has no scale for its bias."""

    def real(numbers: Value, scale: float, zero: int) -> Value:
        result: Value = DequantizeLinear()(numbers, constant(np.float32(scale)), constant(np.array(zero, np.int32)))
        return result

    step, middle = constant(np.float32(0.02)), constant(np.array(128, np.uint8))

    @gt.model(x=f32[4, 3, 6, 6])
    def net(x: Value) -> Value:
        a = DequantizeLinear()(QuantizeLinear()(x, step, middle), step, middle)
        weight = np.random.default_rng(0).integers(-127, 128, (2, 3, 3, 3)).astype(np.int8)
        w = DequantizeLinear()(constant(weight), constant(np.float32(0.01)), constant(np.int8(0)))
        bias = real(constant(np.array([500, -900], np.int32)), 0.0002 * factor, zero)
        y = Conv(kernel_shape=(3, 3))(a, w, bias)
        result: Value = DequantizeLinear()(QuantizeLinear()(y, step, middle), step, middle)
        return result

    graph = bound(net)
    other = qoperator(graph)
    assert ("QLinearConv" in operators(other)) == found
    wanted, given = (gt.compile(model)({"x": images()})["output"] for model in (graph, other))
    np.testing.assert_allclose(given, wanted, atol=0.0201)
    assert np.mean(given != wanted) < 0.01


WEIGHTS = {
    "channels": Scheme(i8, "symmetric", "channel"),
    "asymmetric channels": Scheme(i8, "asymmetric", "channel"),
    "blocks": Scheme(i4, "symmetric", "block", 4),
}


@pytest.mark.parametrize("scheme", WEIGHTS)
@pytest.mark.parametrize("columns", [8, 12])
def test_a_weight_that_is_read_along_two_axes_has_scales_for_each(scheme: str, columns: int) -> None:
    """Tied weights: one operator's channels are the other's sums."""
    draw = np.random.default_rng(0)
    sizes = 10.0 ** np.linspace(-2, 0, columns)
    weight = Variable("tied", (draw.standard_normal((8, columns)) * sizes).astype(np.float32))

    @gt.model(x=f32[16, 8])
    def net(x: Value) -> dict[str, Value]:
        hidden = MatMul()(x, weight)
        return {"hidden": hidden, "again": Gemm(transB=True)(hidden, weight)}

    x = draw.standard_normal((16, 8)).astype(np.float32)
    found = gt.quantize(bound(net), x, Recipe(activations=Scheme(gt.u16), weights=WEIGHTS[scheme]))
    assert {"tied", "tied.1"} <= set(found.example.parameters)
    exact, ours = (gt.compile(model)({"x": x}) for model in (found.exact, found.model))
    coarse = 0.25 if WEIGHTS[scheme].dtype == i4 else 0.02
    for column in range(columns):  # also the smallest has its own scale
        error = np.abs(ours["hidden"][:, column] - exact["hidden"][:, column]).max()
        assert error <= coarse * np.abs(exact["hidden"][:, column]).max()
    assert np.abs(ours["again"] - exact["again"]).max() <= coarse * np.abs(exact["again"]).max()


def test_the_biases_of_all_readers_of_a_weight_fit() -> None:
    """The scale of a shared weight is the one that the largest bias needs."""
    weight = Variable("shared", np.full((4, 3), 1e-7, np.float32))
    small, large = Variable("small", np.zeros(3, np.float32)), Variable("large", np.full(3, 5.0, np.float32))

    @gt.model(x=f32[8, 4])
    def net(x: Value) -> dict[str, Value]:
        return {"a": Gemm()(x, weight, small), "b": Gemm()(x, weight, large)}

    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    found = gt.quantize(bound(net), x)
    np.testing.assert_allclose(gt.compile(found.model)({"x": x})["b"], 5.0, rtol=1e-3)


def test_scales_of_softmax_are_reciprocals() -> None:
    """1 / scale in f32, without its fraction, is 1 / scale: so ONNX Runtime takes it."""
    kept = np.array([1 / 256, 2.0], np.float32)
    scales = np.random.default_rng(0).uniform(1e-5, 1 / 15, 20_000).astype(np.float32)
    found = reciprocal(scales, 1000)
    whole = np.trunc(np.float32(1) / found)
    assert (found >= scales * (1 - 1e-6)).all()
    assert ((found / scales - 1) * whole).max() <= 1.0001
    np.testing.assert_allclose(found * whole, 1.0, rtol=2e-7)
    np.testing.assert_array_equal(reciprocal(kept, 1000), kept)


def test_scales_reach_no_further_than_clip() -> None:
    """In f32, as other runtimes multiply; what does not reach so far stays, and powers of two do."""
    scales = np.array([0.02, 0.0235, 0.0236, 0.04, 2.0**-5], np.float32)
    found = reaching(scales, 255, 6.0)
    np.testing.assert_array_equal(found == scales, [True, True, False, False, True])
    for top in np.random.default_rng(0).uniform(0.1, 30, 1000).astype(np.float32):
        for steps in (255, 127, 65535):
            (found,) = reaching(np.array([100.0], np.float32), steps, float(top))
            assert top * (1 - 2e-7) <= found * np.float32(steps) <= top


@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
def test_onnx_runtime_needs_no_clip_though_training_widened_its_range(dtype: DType, tmp_path: Path) -> None:
    @gt.model(x=f32[4, 3, 6, 6])
    def net(x: Value) -> Value:
        y = Clip()(20.0 * nn.conv(x, 4, 3, padding=1, name="first"), 0.0, 6.0)
        return nn.conv(y, 2, 1, name="second")

    net = bound(net)
    recipe = Recipe(activations=Scheme(dtype), outputs=True)
    training = prepare_training(net, gt.quantization.calibrate(net, images()), recipe)
    wider = {"Clip.log_scale": np.array(0.05, np.float32)}
    graph = convert(training, state=wider)
    assert isinstance(graph, Graph)
    (scale,) = (v.array for v in graph.leaves if isinstance(v, Constant) and v.name == "Clip.scale")
    assert scale == pytest.approx(6 / 255, rel=1e-6)
    ours = gt.compile(graph)({"x": images()})["output"]
    np.testing.assert_array_equal(in_onnx_runtime(graph, images(), tmp_path / "q.onnx", "qdq"), ours)
    assert {"Conv", "Clip"}.isdisjoint(operators_left(tmp_path / "q.onnx"))


@pytest.mark.parametrize("count", [2, 3, 4, 20])
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_shares_that_are_nearly_equal(count: int, form: str, tmp_path: Path) -> None:
    """Their range would give a scale with which ONNX Runtime's QLinearSoftmax overflows: 0 for the greatest."""
    small = Variable("w", 0.01 * np.random.default_rng(0).standard_normal((108, count)).astype(np.float32))

    @gt.model(x=f32[4, 3, 6, 6])
    def net(x: Value) -> Value:
        result: Value = Softmax()(nn.flatten(x) @ small)
        return result

    found = gt.quantize(bound(net), images(), Recipe(outputs=True))
    theirs = in_onnx_runtime(found.graph, images(), tmp_path / "q.onnx", form)
    assert theirs.min() > 0.5 / count
    exact = gt.compile(found.prepared)({"x": images()})["output"]
    assert np.abs(theirs - exact).max() < 1.5 / 148 / count


def test_softmax_is_rounded_as_by_onnx_runtime(tmp_path: Path) -> None:
    @gt.model(x=f32[4, 3, 6, 6])
    def net(x: Value) -> Value:
        result: Value = Softmax(axis=1)(nn.conv(x, 4, 3, padding=1, name="first"))
        return result

    found = gt.quantize(bound(net), images(), Recipe(outputs=True))
    ours = gt.compile(found.model)({"x": images()})["output"]
    for form in ("qdq", "qoperator"):
        theirs = in_onnx_runtime(found.graph, images(), tmp_path / "q.onnx", form)
        assert np.mean(theirs != ours) < 0.001
