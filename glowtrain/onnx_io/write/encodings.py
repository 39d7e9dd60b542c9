"""How an operator is written at a given operator set: as attributes and inputs of ONNX's node, if it exists there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import AttributeProto, defs, helper

from glowtrain.graph import Graph, Operator
from glowtrain.graph.operator import as_tuple, same_attribute
from glowtrain.onnx_io.read.source import kind_of
from glowtrain.onnx_io.schema.attributes import static_inputs
from glowtrain.onnx_io.schema.tensors import dtype_to_onnx, tensor_from_array, type_name
from glowtrain.onnx_io.write.downgrade import downgraded
from glowtrain.types import Array, DType, TensorType

OWN_DOMAIN = "glowtrain"
"""The domain of operators that ONNX lacks, and of the functions that stand for them."""
OPSETS: dict[str, tuple[int, ...]] = {"ai.onnx.ml": (3, 4, 5)}
"""Other domains of ONNX that are written as they are: the versions of their operators, the first that fits is taken."""
FIRST_WITH_OUR_MEANING = {"ai.onnx.ml.LabelEncoder": 4, "GroupNormalization": 21, "RoiAlign": 16}
"""Operators that had another meaning under the same signature: the first operator set with today's."""


@dataclass(frozen=True)
class ComputedExtent:
    """An extent that is a number times symbolic dimensions, plus another number."""

    factor: int
    symbols: tuple[str, ...]
    offset: int = 0


Extents = tuple[int | str | ComputedExtent, ...]
"""Extents, by name where they are symbolic."""

EncodedInput = int | Array | Extents | None


@dataclass(frozen=True)
class Encoding:
    """An ONNX node without its names.

    ``inputs`` has a position for each operand, an array for what must become a constant, extents for what follows
    symbolic dimensions, and ``None`` for what is absent.
    """

    op_type: str
    inputs: tuple[EncodedInput, ...]
    attributes: tuple[AttributeProto, ...]
    bodies: dict[str, Graph]
    domain: str = ""
    version: int = 0
    """The version of ``domain``'s operators, if that is not ai.onnx."""


def encoding_of(
    operator: Operator, types: Sequence[TensorType | None], opset: int, symbolic: Mapping[str, Extents] | None = None
) -> Encoding | None:
    """The standard node for an operator on operands of these types; ``None`` if there is none at this operator set.

    ``symbolic`` replaces static fields by extents with names.
    """
    for version in OPSETS.get(operator.domain, (opset,)):
        schema = schema_of(operator, version)
        if schema is not None and _allows(schema, operator, types):
            written = downgraded(operator, types, schema)
            encoding = None if written is None else _encoding(written, len(types), schema, symbolic or {})
            if encoding is not None:
                return replace(encoding, domain=operator.domain, version=version if operator.domain else 0)
    return None


def default_encoding(operator: Operator, count: int) -> Encoding | None:
    """The node for an operator of a package's own domain, as its fields are; ``None`` for other domains."""
    if operator.domain in ("", OWN_DOMAIN, *OPSETS):
        return None
    statics = {name: position for position, name in static_inputs(type(operator)).items()}
    given = {name: value for name, value in operator.attributes().items() if value is not None}
    inputs: dict[int, EncodedInput] = {statics[name]: static_array(given[name]) for name in statics if name in given}
    bodies = {name: value for name, value in given.items() if isinstance(value, Graph)}
    attributes = tuple(
        _own_attribute(name, value)
        for name, value in given.items()
        if name not in bodies and name not in statics and value != ()
    )
    positions = _positioned(inputs, set(statics.values()), count)
    return Encoding(operator.onnx, positions, attributes, bodies, operator.domain, 1)


def _own_attribute(name: str, value: Any) -> AttributeProto:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, tensor_from_array(value, ""))
    return helper.make_attribute(name, [_plain(item) for item in value] if isinstance(value, tuple) else _plain(value))


def schema_of(operator: Operator, opset: int) -> defs.OpSchema | None:
    """ONNX's definition of the operator at an operator set, if it is there with today's meaning."""
    if opset < FIRST_WITH_OUR_MEANING.get(operator.key(), 0) or (operator.domain and operator.domain not in OPSETS):
        return None
    try:
        return defs.get_schema(operator.onnx, opset, operator.domain)
    except defs.SchemaError:
        return None


def _encoding(
    operator: Operator, count: int, schema: defs.OpSchema, symbolic: Mapping[str, Extents]
) -> Encoding | None:
    values = operator.attributes()
    statics = {name: position for position, name in static_inputs(type(operator)).items()}
    attributes: list[AttributeProto] = []
    bodies: dict[str, Graph] = {}
    inputs: dict[int, EncodedInput] = {}
    for name, value in values.items():
        if isinstance(value, Graph):
            bodies[name] = value
        elif name in schema.attributes:
            if not _is_default(operator, name, value, schema.attributes[name]):
                attributes.append(_attribute(name, value, schema.attributes[name]))
        elif name in statics and statics[name] < len(schema.inputs):
            inputs[statics[name]] = symbolic.get(name) or (None if value is None else static_array(value))
        elif not _is_field_default(operator, name, value):
            return None
    return Encoding(operator.onnx, _positioned(inputs, set(statics.values()), count), tuple(attributes), bodies)


def _positioned(inputs: dict[int, EncodedInput], statics: set[int], count: int) -> tuple[EncodedInput, ...]:
    """Inputs in order: operands fill the positions of no static field; fields that became attributes leave none."""
    position = 0
    for operand in range(count):
        while position in statics:
            position += 1
        inputs[position] = operand
        position += 1
    listed = [
        inputs.get(position)
        for position in range(max(inputs, default=-1) + 1)
        if position in inputs or position not in statics
    ]
    while listed and listed[-1] is None:
        listed.pop()
    return tuple(listed)


def static_array(value: Any) -> Array:
    """A static field as the array that ONNX passes: lists of integers as i64, floats as f32."""
    if isinstance(value, np.ndarray):
        return value
    flat = value if isinstance(value, tuple) else (value,)
    if all(isinstance(item, bool) for item in flat) and flat:
        return np.array(value, np.bool_)
    return np.array(value, np.float32 if any(isinstance(item, float) for item in flat) else np.int64)


def _is_default(operator: Operator, name: str, value: Any, expected: defs.OpSchema.Attribute) -> bool:
    """Whether an attribute can be left out: absent, or what ONNX assumes as well."""
    if value is None or (isinstance(value, tuple) and not value and not expected.required):
        return True
    if expected.required or isinstance(value, np.ndarray):
        return False
    assumed = expected.default_value
    if assumed.type == AttributeProto.UNDEFINED:
        return _is_field_default(operator, name, value)
    known = helper.get_attribute_value(assumed)
    known = known.decode() if isinstance(known, bytes) else known
    plain = float(np.float32(value)) if isinstance(value, float) else _plain(value)
    return same_attribute(plain, known)


def _is_field_default(operator: Operator, name: str, value: Any) -> bool:
    fields = {field.name: field.default for field in dataclasses.fields(operator)}  # type: ignore[arg-type]
    if isinstance(value, np.ndarray) or name not in fields:
        return False
    return same_attribute(value, fields[name]) or (name == "dilations" and set(value) == {1})


def _plain(value: Any) -> Any:
    """A value as ONNX's attributes hold it."""
    if isinstance(value, DType):
        return dtype_to_onnx(value)
    return int(value) if isinstance(value, bool) else value


def _attribute(name: str, value: Any, expected: defs.OpSchema.Attribute) -> AttributeProto:
    kind = kind_of(expected)
    if kind == AttributeProto.TENSOR:
        return helper.make_attribute(name, tensor_from_array(static_array(value), ""))
    plain: Any = [_plain(item) for item in value] if isinstance(value, tuple) else _plain(value)
    if kind == AttributeProto.FLOAT:
        plain = float(plain)
    return helper.make_attribute(name, plain, attr_type=kind)


def formal_type(dtype: DType) -> str:
    """An element type as ONNX's definitions write it: ``tensor(float)``."""
    return f"tensor({type_name(dtype_to_onnx(dtype)).lower()})"


def _allows(schema: defs.OpSchema, operator: Operator, types: Sequence[TensorType | None]) -> bool:
    """Whether the operands' element types are allowed at this operator set."""
    statics = static_inputs(type(operator))
    positions = [position for position in range(len(types) + len(statics)) if position not in statics]
    formal = schema.inputs
    for position, type_ in zip(positions, types, strict=False):
        at = min(position, len(formal) - 1)
        if type_ is None or at < 0:
            continue
        if position >= len(formal) and formal[at].option != defs.OpSchema.FormalParameterOption.Variadic:
            return False
        if formal_type(type_.dtype) not in formal[at].types:
            return False
    return _gives(schema, operator, types)


def _gives(schema: defs.OpSchema, operator: Operator, types: Sequence[TensorType | None]) -> bool:
    """Whether results of element types that no operand has (of a cast, of a constant) are allowed as well."""
    read = {formal.type_str for formal in schema.inputs}
    free = [position for position, formal in enumerate(schema.outputs) if formal.type_str not in read]
    if not free:
        return True
    results = as_tuple(operator.infer(*types))
    return all(formal_type(results[k].dtype) in schema.outputs[k].types for k in free if k < len(results))
