"""Operators without a class of their own that ONNX defines by a body of simpler ones: the body is built in their place.

Every type is known when a node is built, so bodies that depend on the operands' types can be asked for exactly. An
operator that gets a class later, a user's for instance, is built by that class.
Sources: https://onnx.ai/onnx/repo-docs/IR.html (functions), https://onnx.ai/onnx/repo-docs/AddNewOp.html (bodies).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, defs, helper

from glowtrain.errors import ModelError
from glowtrain.graph import Value
from glowtrain.onnx_io.read.build import Bound, Builder
from glowtrain.onnx_io.read.parameters import class_of
from glowtrain.onnx_io.read.rules.control import Branch
from glowtrain.onnx_io.read.source import Model, is_standard, opset_of, set_nodes, subgraphs
from glowtrain.onnx_io.read.upgrade.upgrade import NEWEST_OPSET, upgrade
from glowtrain.onnx_io.schema.tensors import dtype_to_onnx


def built(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """The results of a node whose operator ONNX defines by a body.

    Raises :class:`ModelError` naming the node where there is no body for these operands, or it cannot be built.
    """
    if class_of(node) is not None:
        return builder.apply(node)
    what = builder.what(node)
    operands = [builder.read(name) if name else None for name in node.input]
    function = _function(node, operands, what)
    operands += [None] * (len(function.input) - len(operands))
    recipe = dataclasses.replace(builder.recipe, title=f"{what}, in its definition")
    scope = Branch(recipe, builder.binding, outer=builder)
    return tuple(scope.results(_body(function, node, operands, what), operands))


def _schema(node: NodeProto) -> Any:  # onnx's stubs lack what bodies need
    return defs.get_schema(node.op_type, "" if is_standard(node.domain) else node.domain)


def _function(node: NodeProto, operands: Sequence[Bound], what: str) -> FunctionProto:
    """The newest body: the same for all operands, or made for theirs."""
    schema, function = _schema(node), FunctionProto()
    fixed = list(schema.function_opset_versions)
    try:
        if fixed:
            data = schema.get_function_with_opset_version(max(fixed))
        else:
            version = max(schema.context_dependent_function_opset_versions)
            types = [_type(value).SerializeToString() for value in operands]
            data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{what}: its definition cannot be had: {error}") from None
    function.ParseFromString(data)
    if not function.node:
        raise ModelError(f"{what} is not supported: ONNX has no definition of it for these operands and attributes")
    return function


def _type(value: Bound) -> TypeProto:
    """The type of an operand; an empty one where it is absent."""
    if isinstance(value, Value):
        return helper.make_tensor_type_proto(dtype_to_onnx(value.dtype), value.shape)
    if isinstance(value, tuple) and value:
        return helper.make_sequence_type_proto(_type(value[0]))
    return TypeProto()


def _body(function: FunctionProto, node: NodeProto, operands: Sequence[Bound], what: str) -> GraphProto:
    """A body for one node, as a graph at the newest operator set."""
    absent = {name for name, value in zip(function.input, operands, strict=True) if value is None}
    attributes = _attributes(node)
    graph = GraphProto(name=function.name or node.op_type)
    graph.node.extend(_instance(inner, attributes, absent) for inner in function.node)
    for name, value in zip(function.input, operands, strict=True):
        graph.input.add(name=name, type=_type(value))
    for name in function.output:
        graph.output.add(name=name)
    model = ModelProto(ir_version=10, opset_import=function.opset_import, graph=graph)
    at_newest = opset_of(model) in (None, NEWEST_OPSET)
    return graph if at_newest else upgrade(Model(model, what, None)).graph


def _attributes(node: NodeProto) -> dict[str, AttributeProto]:
    """A node's attributes by name, with ONNX's defaults for those that it does not state."""
    defaults = ((name, expected.default_value) for name, expected in _schema(node).attributes.items())
    known = {name: value for name, value in defaults if value.type != AttributeProto.UNDEFINED}
    return known | {attribute.name: attribute for attribute in node.attribute}


def _instance(node: NodeProto, attributes: Mapping[str, AttributeProto], absent: set[str]) -> NodeProto:
    """A node of a body with the values of the attributes that it refers to, and without operands that are absent."""
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend("" if name in absent else name for name in node.input)
    del copy.attribute[:]
    for attribute in node.attribute:
        value = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if value is not None:
            copy.attribute.append(value)
            copy.attribute[-1].name = attribute.name
    for body in subgraphs(copy):
        set_nodes(body, [_instance(inner, attributes, absent) for inner in body.node])
    return copy


def defined_by_bodies() -> Iterator[str]:
    """The registry keys of all operators that ONNX defines by a body."""
    for schema in defs.get_all_schemas():
        if _has_body(schema):
            domain = "" if is_standard(schema.domain) else f"{schema.domain}."
            yield f"{domain}{schema.name}"


@functools.cache
def is_defined_by_body(key: str) -> bool:
    """Whether ONNX defines the operator of a registry key by a body."""
    domain, _, name = key.rpartition(".")
    return bool(defs.has(name, domain)) and _has_body(defs.get_schema(name, domain))


def _has_body(schema: Any) -> bool:
    return bool(schema.function_opset_versions or schema.context_dependent_function_opset_versions)
