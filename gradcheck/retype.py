"""A graph in another float type: leaves and dtype attributes change, operators and structure stay."""

from __future__ import annotations

import dataclasses

from glowtrain.graph import Constant, Graph, Input, Node, Operator, Value, Variable
from glowtrain.types import DType


def retyped(graph: Graph, before: DType, after: DType) -> Graph:
    """The graph with every tensor of element type ``before`` in ``after`` (bodies of control operators too)."""
    known: dict[Value, Value] = {value: _leaf(value, before, after) for value in (*graph.inputs, *graph.leaves)}
    for node in graph.nodes:
        operands = [None if value is None else known[value] for value in node.inputs]
        fresh = Node(_operator(node.operator, before, after), operands, node.name)
        for old, new in zip(node.outputs, fresh.outputs, strict=True):
            new.name = old.name
            known[old] = new
    inputs = tuple(value for value in (known[v] for v in graph.inputs) if isinstance(value, Input))
    outputs = {name: known[value] for name, value in graph.outputs.items()}
    pairs = ((known[variable], known[value]) for variable, value in graph.updates.items())
    updates = {variable: value for variable, value in pairs if isinstance(variable, Variable)}
    return Graph(inputs, outputs, updates, graph.name)


def _leaf(value: Value, before: DType, after: DType) -> Value:
    if value.dtype != before:
        return value
    if isinstance(value, Constant):
        return Constant(value.array.astype(after.numpy), value.name)
    if isinstance(value, Variable):
        return Variable(value.name, value.initial.astype(after.numpy), value.trainable)
    return Input(value.type.with_dtype(after), value.name)


def _operator(operator: Operator, before: DType, after: DType) -> Operator:
    changes: dict[str, object] = {}
    for field in dataclasses.fields(operator):  # type: ignore[arg-type]
        value = getattr(operator, field.name)
        if isinstance(value, Graph):
            changes[field.name] = retyped(value, before, after)
        elif isinstance(value, DType) and value == before:
            changes[field.name] = after
    return operator.replace(**changes) if changes else operator
