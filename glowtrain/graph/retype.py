"""The same graph in other element types: leaves, dtype attributes and bodies change, operators and structure stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from glowtrain.graph.graph import Graph
from glowtrain.graph.operator import Operator
from glowtrain.graph.rewriting import Replacements
from glowtrain.graph.value import Constant, Input, Value, Variable
from glowtrain.types import DTYPES, DType, f64

FLOATS = frozenset(dtype for dtype in DTYPES.values() if dtype.is_float)


@dataclass(frozen=True)
class Retyped:
    """A graph in other types, and the value in it that stands for each value of the graph it was made from."""

    graph: Graph
    values: dict[Value, Value]


def retyped(graph: Graph, before: Collection[DType], after: DType) -> Retyped:
    """All that has one of the types ``before`` in the type ``after``: inputs, constants, variables, dtype attributes
    (those of bodies too)."""
    replacements = Replacements({value: _leaf(value, before, after) for value in (*graph.inputs, *graph.leaves)})
    for node in graph.nodes:
        replacements.put(node, replacements.copied(node, retyped_operator(node.operator, before, after)).outputs)
    result = replacements.graph(graph)
    return Retyped(Graph(result.inputs, result.outputs, result.updates, graph.name), replacements.values)


def widened(graph: Graph) -> Retyped:
    """All floats in f64: what every narrower computation is measured against. Roundings vanish."""
    return retyped(graph, FLOATS, f64)


def retyped_operator(operator: Operator, before: Collection[DType], after: DType) -> Operator:
    """The operator with dtype attributes, and bodies, in another type."""
    fields = {entry.name: getattr(operator, entry.name) for entry in dataclasses.fields(operator)}  # type: ignore[arg-type]
    changes = {name: _attribute(value, before, after) for name, value in fields.items()}
    changed = {name: value for name, value in changes.items() if value is not fields[name]}
    return operator.replace(**changed) if changed else operator


def _leaf(value: Value, before: Collection[DType], after: DType) -> Value:
    if value.dtype not in before or value.dtype == after:
        return value
    if isinstance(value, Constant):
        return Constant(value.array.astype(after.numpy), value.name)
    if isinstance(value, Variable):
        return Variable(value.name, value.initial.astype(after.numpy), value.trainable)
    return Input(value.type.with_dtype(after), value.name)


def _attribute(value: Any, before: Collection[DType], after: DType) -> Any:
    if isinstance(value, Graph):
        return retyped(value, before, after).graph
    return after if isinstance(value, DType) and value in before else value
