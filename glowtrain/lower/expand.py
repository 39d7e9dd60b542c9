"""Replace operators that have no lowering by their decomposition, until every operator left has one."""

from __future__ import annotations

from glowtrain.graph import Graph, Node, Operator, Value
from glowtrain.ops.control import Scan


def expand(graph: Graph) -> Graph:
    """The same graph in operators that can be lowered (bodies of Scans too)."""
    while any(_expands(node.operator) for node in graph.nodes):
        graph = _expand_once(graph)
    return graph


def _expands(operator: Operator) -> bool:
    if isinstance(operator, Scan):
        return not operator.is_canonical or any(_expands(node.operator) for node in operator.body.nodes)
    return operator.has("decompose") and not operator.has("lower")


def _expand_once(graph: Graph) -> Graph:
    known: dict[Value, Value] = {}
    for node in graph.nodes:
        inputs = tuple(None if value is None else known.get(value, value) for value in node.inputs)
        if not _expands(node.operator) and inputs == node.inputs:
            continue
        for old, new in zip(node.outputs, _replacements(node, inputs), strict=True):
            known[old] = new
            if not new.name and new.node is not None:
                new.name = old.name
    outputs = {name: known.get(value, value) for name, value in graph.outputs.items()}
    updates = {variable: known.get(value, value) for variable, value in graph.updates.items()}
    return graph.with_(outputs=outputs, updates=updates)


def _replacements(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
    operator = node.operator
    if not _expands(operator):
        return Node(operator, inputs, node.name).outputs
    if isinstance(operator, Scan) and operator.is_canonical:
        return Node(operator.replace(body=expand(operator.body)), inputs, node.name).outputs
    results = operator.decompose(*inputs)
    return results if isinstance(results, tuple) else (results,)
