"""Models of one operator on quantized tensors, as files have them: any part can be another."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import glowtrain as gt
from glowtrain.graph import Graph, Template
from glowtrain.types import Array


def scalar(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def vector(*values: float) -> Array:
    return np.array(values, np.float32)


def model(operator: str, inits: dict[str, Array | TensorProto], x: str = "f32[2,4]", **settings: Any) -> ModelProto:
    """One operator that reads x and the initializers, in this order."""
    kind, shape = x.rstrip("]").split("[")
    code = {"f32": TensorProto.FLOAT, "u8": TensorProto.UINT8, "i8": TensorProto.INT8}[kind]
    domain, _, name = operator.rpartition(".")
    place = settings.pop("place", 0)
    names = list(inits)
    node = helper.make_node(name, [*names[:place], "x", *names[place:]], ["y"], name="it", domain=domain, **settings)
    tensors = [t if isinstance(t, TensorProto) else numpy_helper.from_array(t, name) for name, t in inits.items()]
    given = helper.make_tensor_value_info("x", code, [int(extent) for extent in shape.split(",")])
    graph = helper.make_graph([node], "small", [given], [helper.make_empty_tensor_value_info("y")], tensors)
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def loaded(proto: ModelProto) -> Graph:
    found = gt.load(proto)
    return found.bind({}) if isinstance(found, Template) else found


def quantize(scale: Array, zero: Array | TensorProto | None = None, **settings: Any) -> ModelProto:
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    return model("QuantizeLinear", {"scale": scale, "zero": zero}, **settings)


def dequantize(scale: Array, weight: Array | None = None, x: str = "", **settings: Any) -> ModelProto:
    """Of a weight, or of x."""
    zero = np.zeros(scale.shape, np.int8)
    if x:
        return model("DequantizeLinear", {"scale": scale, "zero": zero}, x, **settings)
    inits = {"weight": np.ones((2, 4), np.int8) if weight is None else weight, "scale": scale, "zero": zero}
    proto = model("DequantizeLinear", inits, "i8[2,4]", **settings)
    del proto.graph.node[0].input[0]
    return proto


def conv(**changes: Array) -> ModelProto:
    parts: dict[str, Array | TensorProto] = {
        "x_scale": scalar(0.1), "x_zero": scalar(3, np.uint8), "weight": np.ones((3, 4, 1, 1), np.int8),
        "w_scale": vector(0.1, 0.2, 0.3), "w_zero": np.zeros(3, np.int8), "y_scale": scalar(0.1),
        "y_zero": scalar(0, np.uint8), **changes,
    }  # fmt: skip
    return model("QLinearConv", parts, "u8[1,4,2,2]")


def product(operator: str = "QLinearMatMul", **changes: Array) -> ModelProto:
    parts: dict[str, Array | TensorProto] = {
        "a_scale": scalar(0.1), "a_zero": scalar(3, np.uint8), "b": np.ones((4, 3), np.int8),
        "b_scale": vector(0.1, 0.2, 0.3), "b_zero": np.zeros(3, np.int8), "y_scale": scalar(0.1),
        "y_zero": scalar(0, np.uint8), **changes,
    }  # fmt: skip
    return model(operator, parts, "u8[2,4]")


def added(**changes: Array) -> ModelProto:
    parts: dict[str, Array | TensorProto] = {
        "a_scale": scalar(0.1), "a_zero": scalar(3, np.uint8), "b": np.ones((2, 4), np.uint8),
        "b_scale": scalar(0.1), "b_zero": scalar(3, np.uint8), "y_scale": scalar(0.1), "y_zero": scalar(3, np.uint8),
        **changes,
    }  # fmt: skip
    return model("com.microsoft.QLinearAdd", parts, "u8[2,4]")


def joined(**changes: Array) -> ModelProto:
    parts: dict[str, Array | TensorProto] = {
        "y_scale": scalar(0.1), "y_zero": scalar(3, np.uint8), "x_scale": scalar(0.1), "x_zero": scalar(0, np.uint8),
        **changes,
    }  # fmt: skip
    return model("com.microsoft.QLinearConcat", parts, "u8[2,4]", place=2, axis=1)


def dynamic(**changes: Array) -> ModelProto:
    parts = {"b": np.ones((4, 3), np.int8), "b_scale": vector(0.1, 0.2, 0.3), "b_zero": np.zeros(3, np.int8), **changes}
    return model("com.microsoft.DynamicQuantizeMatMul", parts, "f32[2,4]")
