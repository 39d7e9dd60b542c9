"""Weights of 4 bits that are stored in bytes: the same numbers, which other runtimes multiply as integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import glowtrain as gt
from glowtrain.errors import QuantizationError
from glowtrain.graph import Value, Variable, constant
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear
from glowtrain.quantization import Quantized, Recipe, Scheme, in_bytes, save_quantized
from glowtrain.types import f32, i4, i8, u4
from tests.quantization.models import images, mobile, state_of

X = images(4)
CHANNELS, BLOCKS = Scheme(i4, "symmetric", "channel"), Scheme(i4, "symmetric", "block", 4)


def quantized(weights: Scheme) -> Quantized:
    model = mobile()
    return gt.quantize(model, X, Recipe(weights=weights), state=state_of(model))


def types_in(path: Path) -> set[int]:
    """Of initializers and of Constant nodes."""
    graph = onnx.load(path).graph
    constants = [node.attribute[0].t for node in graph.node if node.op_type == "Constant"]
    return {tensor.data_type for tensor in (*graph.initializer, *constants)}


@pytest.mark.spread(1)
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("weights", [CHANNELS, Scheme(u4, "asymmetric", "channel")], ids=str)
def test_onnx_runtime_gives_the_same_bits(weights: Scheme, form: str, tmp_path: Path) -> None:
    found, path = quantized(weights), tmp_path / "q.onnx"
    ours = gt.compile(found.model)({"x": X})["scores"]
    assert save_quantized(found.graph, path, form=form, as_bytes=True) == path.stat().st_size
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    theirs = ort.InferenceSession(str(path), options).run(None, {"x": X})[0]
    np.testing.assert_array_equal(theirs, ours)
    np.testing.assert_array_equal(gt.compile(gt.load(path))({"x": X})["scores"], ours)


@pytest.mark.exhaustive
def test_what_is_written(tmp_path: Path) -> None:
    found, path = quantized(CHANNELS), tmp_path / "q.onnx"
    small = save_quantized(found.graph, path)
    assert types_in(path) >= {TensorProto.INT4}
    assert small < save_quantized(found.graph, path, as_bytes=True, opset=17)
    assert not types_in(path) & {TensorProto.INT4}
    assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert {value.dtype for value in found.graph.leaves} >= {i4}  # as it was


def test_operator_sets() -> None:
    """Without small types per channel opset 13 is enough; blocks need 21 in any case."""
    Recipe(weights=CHANNELS).check_opset(13, as_bytes=True)
    for weights, as_bytes in ((CHANNELS, False), (BLOCKS, True)):
        with pytest.raises(QuantizationError, match="opset 17 cannot say .*: it needs opset 21 or newer"):
            Recipe(weights=weights).check_opset(17, as_bytes=as_bytes)
    with pytest.raises(QuantizationError, match="a scale for each block of weights, which opset 17 cannot say"):
        save_quantized(quantized(BLOCKS).graph, opset=17, as_bytes=True)


@pytest.mark.exhaustive
def test_blocks_stay_as_they_are(tmp_path: Path) -> None:
    """ONNX Runtime does not load bytes with scales for blocks."""
    found, path = quantized(BLOCKS), tmp_path / "q.onnx"
    save_quantized(found.graph, path, as_bytes=True)
    assert types_in(path) >= {TensorProto.INT4, TensorProto.INT8}  # the linear layer's, the convolutions'
    ours = gt.compile(found.model)({"x": X})["scores"]
    theirs = ort.InferenceSession(str(path)).run(None, {"x": X})[0]
    np.testing.assert_allclose(theirs, ours, atol=0.02 * np.abs(ours).max())


def test_variables_stay_variables() -> None:
    scale, zero = constant(np.float32(0.5)), constant(np.array(0, i4.numpy))

    @gt.model(x=f32[8])
    def net(x: Value) -> Value:
        weights = Variable("w", np.linspace(-3, 3, 8).astype(np.float32))
        result: Value = DequantizeLinear()(QuantizeLinear()(weights, scale, zero), scale, zero) * x
        return result

    graph = net.bind({})
    assert [v.name for v in in_bytes(graph).variables] == [v.name for v in graph.variables] == ["w"]


def test_integers_that_are_computed_stay_as_they_are() -> None:
    scale, zero = constant(np.float32(0.5)), constant(np.array(1, i4.numpy))

    @gt.model(x=f32[8])
    def net(x: Value) -> Value:
        weights = DequantizeLinear()(constant(np.arange(-8, 0).astype(i4.numpy)), scale, zero)
        result: Value = DequantizeLinear()(QuantizeLinear()(x, scale, zero), scale, zero) * weights
        return result

    graph = in_bytes(net.bind({}))
    read = [node.inputs[0] for node in graph.nodes if isinstance(node.operator, DequantizeLinear)]
    assert sorted(str(value.dtype) for value in read if value is not None) == [str(i4), str(i8)]
    x = {"x": np.linspace(-3, 3, 8).astype(np.float32)}
    np.testing.assert_array_equal(gt.compile(graph)(x)["output"], gt.compile(net)(x)["output"])
