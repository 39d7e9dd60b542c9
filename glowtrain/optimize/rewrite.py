"""Rewriting a graph node by node, from the operands up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from glowtrain.graph import Graph, Node, Operator, Value

Change = Callable[[Node], Sequence[Value] | None]
"""Given a node whose operands are rewritten already: values to take the place of its outputs, or ``None``."""


def rewrite(graph: Graph, change: Change) -> Graph:
    """The graph with ``change`` applied to every node, also in graphs that are attributes; the same object if none changed.

    Names of replaced values pass to their replacements where these have none.
    """
    known: dict[Value, Value] = {}
    for node in graph.nodes:
        fresh = _refreshed(node, known, change)
        values = change(fresh)
        if values is None and fresh is node:
            continue
        for old, new in zip(node.outputs, fresh.outputs if values is None else values, strict=True):
            if new is not old:
                known[old] = new
                new.name = new.name or old.name
    return replaced(graph, known) if known else graph


def replaced(graph: Graph, known: dict[Value, Value]) -> Graph:
    """The graph with its outputs and updates taken from ``known`` where they are there."""
    outputs = {name: known.get(value, value) for name, value in graph.outputs.items()}
    updates = {variable: known.get(value, value) for variable, value in graph.updates.items()}
    return graph.with_(outputs=outputs, updates=updates)


def _refreshed(node: Node, known: dict[Value, Value], change: Change) -> Node:
    """The node over its operands' replacements; the same object where nothing changed."""
    inputs = tuple(None if value is None else known.get(value, value) for value in node.inputs)
    operator = _with_bodies(node.operator, change)
    if inputs == node.inputs and operator is node.operator:
        return node
    fresh = Node(operator, inputs, node.name)
    for old, new in zip(node.outputs, fresh.outputs, strict=True):
        new.name = old.name
    return fresh


def _with_bodies(operator: Operator, change: Change) -> Operator:
    bodies = {
        field.name: getattr(operator, field.name)
        for field in dataclasses.fields(operator)  # type: ignore[arg-type]
        if isinstance(getattr(operator, field.name), Graph)
    }
    changes = {name: rewrite(body, change) for name, body in bodies.items()}
    changes = {name: body for name, body in changes.items() if body is not bodies[name]}
    return operator.replace(**changes) if changes else operator
