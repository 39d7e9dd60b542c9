"""Parts of quantized graphs, and what compiled code is held against: ONNX Runtime, bit for bit."""

from __future__ import annotations

import numpy as np
import onnxruntime

import glowtrain as gt
from glowtrain.graph import Graph, Value, constant
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear
from glowtrain.types import Array


def scale_of(value: float) -> Value:
    return constant(np.array(value, np.float32))


def quantized(x: Value, scale: float, zero: int, dtype: type[np.generic] = np.uint8) -> Value:
    result: Value = QuantizeLinear()(x, scale_of(scale), constant(np.array(zero, dtype)))
    return result


def real(x: Value, scale: float, zero: int) -> Value:
    result: Value = DequantizeLinear()(x, scale_of(scale), constant(np.array(zero, x.dtype.numpy)))
    return result


def weight(array: Array, scales: Array, axis: int) -> Value:
    result: Value = DequantizeLinear(axis=axis)(
        constant(array), constant(scales), constant(np.zeros(scales.shape, array.dtype))
    )
    return result


def bias(array: Array, scales: Array) -> Value:
    result: Value = DequantizeLinear(axis=0)(constant(array), constant(scales))
    return result


def operators(graph: Graph) -> list[str]:
    return [node.operator.key() for node in graph.nodes]


def against_onnxruntime(graph: Graph, x: Array, tmp_path: object) -> Array:
    """The result of compiled code: that of the interpreter and of ONNX Runtime, bit for bit."""
    path = f"{tmp_path}/model.onnx"
    gt.save(graph, path, opset=17)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    expected = onnxruntime.InferenceSession(path, options).run(None, {"x": x})[0]
    for backend in ("interpreter", "cpu"):
        found = gt.compile(graph, backend=backend)({"x": x})["y"]
        assert found.tobytes() == expected.tobytes(), backend
    return np.asarray(expected)
