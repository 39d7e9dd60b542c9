"""The same graph in double precision: what every narrower computation is measured against."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from glowtrain.graph.graph import Graph
from glowtrain.graph.operator import Operator
from glowtrain.graph.value import Constant, Input, Node, Value, Variable
from glowtrain.types import DType, f64


@dataclass(frozen=True)
class Widened:
    """A graph in f64, and the value in it that stands for each value of the graph it was made from."""

    graph: Graph
    values: dict[Value, Value]


def widened(graph: Graph) -> Widened:
    """All floats in f64: inputs, constants, variables, dtype attributes (those of bodies too). Roundings vanish."""
    known: dict[Value, Value] = {value: _leaf(value) for value in (*graph.inputs, *graph.leaves)}
    for node in graph.nodes:
        operands = [None if value is None else known[value] for value in node.inputs]
        fresh = Node(in_f64(node.operator), operands, node.name)
        for old, new in zip(node.outputs, fresh.outputs, strict=True):
            new.name = old.name
            known[old] = new
    inputs = tuple(value for value in (known[v] for v in graph.inputs) if isinstance(value, Input))
    outputs = {name: known[value] for name, value in graph.outputs.items()}
    pairs = ((known[variable], known[value]) for variable, value in graph.updates.items())
    updates = {variable: value for variable, value in pairs if isinstance(variable, Variable)}
    return Widened(Graph(inputs, outputs, updates, graph.name), known)


def _leaf(value: Value) -> Value:
    if not value.dtype.is_float or value.dtype == f64:
        return value
    if isinstance(value, Constant):
        return Constant(value.array.astype(f64.numpy), value.name)
    if isinstance(value, Variable):
        return Variable(value.name, value.initial.astype(f64.numpy), value.trainable)
    return Input(value.type.with_dtype(f64), value.name)


def in_f64(operator: Operator) -> Operator:
    """The operator with float dtype attributes, and bodies, in f64."""
    changes = {name: _attribute(value) for name, value in operator.attributes().items()}
    changed = {name: value for name, value in changes.items() if value is not getattr(operator, name)}
    return dataclasses.replace(operator, **changed) if changed else operator  # type: ignore[type-var]


def _attribute(value: Any) -> Any:
    if isinstance(value, Graph):
        return widened(value).graph
    return f64 if isinstance(value, DType) and value.is_float else value
