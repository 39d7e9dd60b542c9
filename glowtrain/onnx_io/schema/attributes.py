"""Attributes of ONNX nodes as fields of operators, by the fields' annotations.

An operator whose fields do not follow from ONNX's attributes one by one overrides :meth:`Operator.from_onnx`, which
gets what is described here under the fields' names, the operands' types and the number of outputs that are named.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto

from glowtrain.errors import ModelError, ShapeError
from glowtrain.graph import Graph, Operator
from glowtrain.graph.attributes import field_types
from glowtrain.onnx_io.read.source import describe
from glowtrain.onnx_io.schema.tensors import array_from_sparse, array_from_tensor, dtype_from_onnx
from glowtrain.types import Array, DType, TensorType


def attribute_value(attribute: AttributeProto, folder: Path | None, what: str) -> Any:
    """An attribute as a Python value: number, string, tuple or array; a graph stays a GraphProto."""
    match attribute.type:
        case AttributeProto.FLOAT:
            return float(np.float32(attribute.f))
        case AttributeProto.INT:
            return attribute.i
        case AttributeProto.STRING:
            return attribute.s.decode("utf-8", "replace")
        case AttributeProto.TENSOR:
            return array_from_tensor(attribute.t, folder, f"{what}: attribute {attribute.name}")
        case AttributeProto.SPARSE_TENSOR:
            return array_from_sparse(attribute.sparse_tensor, folder, f"{what}: attribute {attribute.name}")
        case AttributeProto.GRAPH:
            return attribute.g
        case AttributeProto.FLOATS:
            return tuple(attribute.floats)
        case AttributeProto.INTS:
            return tuple(attribute.ints)
        case AttributeProto.STRINGS:
            return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
    kind = AttributeProto.AttributeType.Name(attribute.type)
    raise ModelError(f"{what}: attribute {attribute.name} of type {kind} is not supported")


def static_inputs(cls: type[Operator]) -> dict[int, str]:
    """Fields that ONNX passes as inputs, by the inputs' positions."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    return {field.metadata["input"]: field.name for field in fields if "input" in field.metadata}


def coerce(value: Any, hint: Any, what: str) -> Any:
    """A value in the form that a field's annotation asks for. Raises :class:`ModelError` where it does not fit."""
    origin = typing.get_origin(hint)
    try:
        if origin is tuple:
            items = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else value
            element = typing.get_args(hint)[0]
            if all(type(item) is element for item in items):
                return tuple(items)  # the tables of a tree ensemble have a million entries
            return tuple(coerce(item, element, what) for item in items)
        if origin is typing.Literal:
            return value
        if isinstance(value, np.ndarray) and hint in (bool, int, float):
            value = value.reshape(()).item()
        if hint is DType:
            return dtype_from_onnx(int(value), what)
        if hint is bool or hint is int or hint is float:
            return hint(value)
        if hint is str and not isinstance(value, str):
            raise ModelError(f"{what} must be a string, not {value!r}")
    except (TypeError, ValueError, OverflowError):
        raise ModelError(f"{what} cannot be {value!r}") from None
    return value


@dataclasses.dataclass(frozen=True)
class NodeCall:
    """What is known of a node when its operator is made."""

    node: NodeProto
    title: str
    types: tuple[TensorType | None, ...]
    statics: Mapping[str, Array]
    bodies: Mapping[str, Graph]
    folder: Path | None

    @property
    def what(self) -> str:
        return f"{self.title}: {describe(self.node)}"


def operator_from(call: NodeCall, cls: type[Operator]) -> Operator:
    """The operator of a node: attributes and static inputs made into fields.

    Raises :class:`ModelError` naming the node for attributes that are unknown, missing or do not fit.
    """
    values = _fields(call, cls)
    try:
        return cls.from_onnx(values, call.types, sum(1 for name in call.node.output if name))
    except (ShapeError, TypeError, ValueError) as error:
        raise ModelError(f"{call.what}: {error}") from None


def _fields(call: NodeCall, cls: type[Operator]) -> dict[str, Any]:
    hints = field_types(cls)
    values: dict[str, Any] = {}
    for attribute in call.node.attribute:
        name = attribute.name
        if name not in hints:
            raise ModelError(f"{call.what}: attribute {name} of {cls.key()} is not supported")
        if name in call.bodies:
            values[name] = call.bodies[name]
            continue
        value = attribute_value(attribute, call.folder, call.what)
        if hints[name] is DType and value == TensorProto.UNDEFINED:
            continue  # not given, as far as ONNX has a default
        values[name] = coerce(value, hints[name], f"{call.what}: attribute {name}")
    for name, array in call.statics.items():
        values[name] = coerce(array, hints[name], f"{call.what}: input {name}")
    return values
