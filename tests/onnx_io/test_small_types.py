"""Types of a byte and less in ONNX files: packed as ONNX packs them, and saved models that come back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import TensorProto, checker, helper, numpy_helper

import glowtrain as gt
from glowtrain.errors import ModelError
from glowtrain.graph import Graph, Input, constant
from glowtrain.onnx_io.schema.tensors import array_from_tensor, dtype_from_onnx, dtype_to_onnx, tensor_from_array
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.microsoft.quantized import QLinearAdd
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear
from glowtrain.ops.tensor.move import Reshape
from glowtrain.types import DTYPES, Array, DType, TensorType, f8e5m2, f32, i4, u2, u4

STORED = [dtype for dtype in DTYPES.values() if dtype.is_stored]
BITS = {"f8": 8, "f6": 6, "f4": 4, "i4": 4, "u4": 4, "i2": 2, "u2": 2}


def codes(dtype: DType, count: int) -> Array:
    """Elements of all kinds, as many as asked for."""
    return (np.arange(count) * 37 % (1 << BITS[dtype.name[:2]])).astype(np.uint8).view(dtype.numpy)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 64])
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_packing_is_that_of_onnx(dtype: DType, count: int) -> None:
    array = codes(dtype, count)
    tensor = tensor_from_array(array, "x")
    assert dtype_from_onnx(dtype_to_onnx(dtype), "x") == dtype
    assert tensor.raw_data == numpy_helper.from_array(array, "x").raw_data
    assert array_from_tensor(tensor, None).tobytes() == array.tobytes()
    assert numpy_helper.to_array(tensor).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_data_in_a_field_of_integers(dtype: DType) -> None:
    """Other writers use int32_data, with packed bytes in it (or codes of six bits)."""
    array = codes(dtype, 8)
    raw = array.tobytes() if dtype.name[:2] == "f6" else tensor_from_array(array, "").raw_data
    tensor = TensorProto(name="x", data_type=dtype_to_onnx(dtype), dims=[8], int32_data=list(raw))
    assert array_from_tensor(tensor, None).tobytes() == array.tobytes()


@pytest.mark.parametrize(("dtype", "count", "needed"), [(i4, 3, 2), (u2, 5, 2), (f8e5m2, 3, 3)], ids=str)
def test_packed_data_of_wrong_length(dtype: DType, count: int, needed: int) -> None:
    for length in (needed - 1, needed + 1):
        tensor = TensorProto(name="x", data_type=dtype_to_onnx(dtype), dims=[count], raw_data=bytes(length))
        with pytest.raises(
            ModelError, match=rf"'x': {dtype}\[{count}\] needs {needed} bytes but the file holds {length}"
        ):
            array_from_tensor(tensor, None)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_saved_and_loaded_again(dtype: DType) -> None:
    x = Input(TensorType(f32, (6,)), "x")
    stored = constant(codes(dtype, 6))
    outputs = {"y": Cast(f32)(stored) + x, "z": Cast(dtype)(x)}
    if dtype.name[:2] != "f6":  # of which ONNX has no Reshape
        outputs["w"] = Reshape((2, 3))(stored)
    graph = Graph((x,), outputs)
    model = gt.save(graph)
    checker.check_model(model)
    again = gt.load(model)
    feeds = {"x": np.array([0.5, 1, 1.5, 2, 3, 7], np.float32)}
    found, wanted = (gt.compile(g)(feeds) for g in (again, graph))
    for name in outputs:
        assert found[name].dtype == wanted[name].dtype
        assert found[name].tobytes() == wanted[name].tobytes()


def test_a_quantized_graph_saved_and_loaded_again() -> None:
    """Standard nodes where ONNX has them, functions of the model for operators of another domain."""
    x = Input(TensorType(f32, (4, 6)), "x")
    scale, zero = constant(np.array(0.25, np.float32)), constant(np.array(3, np.int8))
    q = QuantizeLinear()(x, scale, zero)
    total = QLinearAdd()(q, scale, zero, q, scale, zero, scale, zero)
    blocks = constant(np.full((4, 3), 0.5, np.float32))
    narrow = QuantizeLinear(axis=1, block_size=2, output_dtype=u4)(x, blocks)
    graph = Graph((x,), {"y": DequantizeLinear()(total, scale, zero), "z": DequantizeLinear(1, 2)(narrow, blocks)})
    model = gt.save(graph)
    checker.check_model(model)
    assert {f.name.rstrip("_0123456789") for f in model.functions} == {"FusedMultiplyAdd", "QLinearAdd"}
    feeds = {"x": np.linspace(-3, 9, 24, dtype=np.float32).reshape(4, 6)}
    found, wanted = (gt.compile(g)(feeds) for g in (gt.load(model), graph))
    assert all((found[name] == wanted[name]).all() for name in wanted)


@pytest.mark.parametrize("opset", [8, 11, 13, 17])
def test_operators_of_another_domain_in_old_models(opset: int) -> None:
    """Standard operators are brought up to date around them."""
    weight = np.arange(-16, 16, dtype=np.int8).reshape(8, 4)
    nodes = [
        helper.make_node("DynamicQuantizeMatMul", ["x", "w", "s"], ["a"], domain="com.microsoft"),
        helper.make_node("Softmax", ["a"], ["b"], axis=1),
        helper.make_node("Gelu", ["b"], ["y"], domain="com.microsoft"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 4])]
    initializers = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array(0.01, np.float32), "s")]
    graph = helper.make_graph(nodes, "old", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    x = np.linspace(-1, 2, 24, dtype=np.float32).reshape(1, 3, 8)
    y = gt.compile(gt.load(helper.make_model(graph, opset_imports=imports, ir_version=8)))({"x": x})["y"]
    a = x @ weight * np.float32(0.01)
    powers = np.exp(a) / np.exp(a).sum((1, 2) if opset < 13 else 1, keepdims=True)
    wanted = powers * (1 + np.vectorize(math.erf)(powers / math.sqrt(2))) / 2
    assert np.abs(y - wanted).max() < 1e-3
