"""ONNX models of one operator, to ask other implementations for its results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from glowtrain.graph import Operator
from glowtrain.types import Array, DType, type_of


def onnx_model(
    operator: Operator, inputs: Sequence[Array | None], opset: int = onnx.defs.onnx_opset_version()
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of the one node, with what the operator holds statically as initializers, and what to feed it."""
    fields = {f.name: f.metadata["input"] for f in dataclasses.fields(operator) if "input" in f.metadata}  # type: ignore[arg-type]
    attributes = _stated(operator)
    static = {place: np.asarray(attributes.pop(name)) for name, place in fields.items() if name in attributes}
    feeds = {f"x{place}": np.asarray(array) for place, array in enumerate(inputs) if array is not None}
    outputs = _outputs(operator, inputs)
    node = helper.make_node(operator.onnx, _inputs(inputs, set(fields.values()), set(static)), outputs)
    node.attribute.extend(_attribute(name, value) for name, value in attributes.items())
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, kind, feeds[name].shape) for name, kind in kinds.items()],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
        [numpy_helper.from_array(value, f"s{place}") for place, value in static.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), feeds


def _stated(operator: Operator) -> dict[str, Any]:
    """Attributes that ONNX must be told: tensors, and what is not at its default."""
    defaults = {f.name: f.default for f in dataclasses.fields(operator) if "input" not in f.metadata}  # type: ignore[arg-type]
    pairs = ((name, value) for name, value in operator.attributes().items() if value is not None)
    return {name: value for name, value in pairs if isinstance(value, np.ndarray) or value != defaults.get(name)}


def _inputs(inputs: Sequence[Array | None], fields: set[int], static: set[int]) -> list[str]:
    """The node's inputs by name: operands around what is static, ``""`` where one is absent."""
    operands = iter(enumerate(inputs))
    names: list[str] = []
    for place in range(max(fields, default=-1) + 1 + len(inputs)):
        if place in fields:
            names.append(f"s{place}" if place in static else "")
        else:
            position, array = next(operands, (0, None))
            names.append("" if array is None else f"x{position}")
    while names and not names[-1]:
        names.pop()
    return names


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, DType):
        value = helper.np_dtype_to_tensor_dtype(value.numpy)
    if isinstance(value, np.ndarray):
        value = numpy_helper.from_array(value)
    kind = onnx.AttributeProto.INTS if isinstance(value, tuple) and not value else None
    return helper.make_attribute(name, int(value) if isinstance(value, bool) else value, attr_type=kind)


def _outputs(operator: Operator, inputs: Sequence[Array | None]) -> list[str]:
    types = operator.infer(*(None if x is None else type_of(np.asarray(x)) for x in inputs))
    return [f"y{place}" for place in range(len(types) if isinstance(types, tuple) else 1)]
