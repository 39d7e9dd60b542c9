"""Read the declared inputs and outputs of a model."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, ValueInfoProto

from glowtrain.onnx_io.schema.tensors import dtype_from_onnx
from glowtrain.types import Spec


def declared_types(model: ModelProto) -> tuple[dict[str, Spec], dict[str, Spec]]:
    """The types of a model's inputs and outputs, which are tensors, by name."""
    return _specs(model.graph.input), _specs(model.graph.output)


def _specs(values: Iterable[ValueInfoProto]) -> dict[str, Spec]:
    return {value.name: _spec(value) for value in values}


def _spec(value: ValueInfoProto) -> Spec:
    tensor = value.type.tensor_type
    extents = tuple(extent.dim_param or extent.dim_value for extent in tensor.shape.dim)
    return Spec(dtype_from_onnx(tensor.elem_type, value.name), extents)
