"""Rewriting a graph node by node, from the operands up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from glowtrain.graph import Graph, Node, Operator, Value

Change = Callable[[Node], Sequence[Value] | None]
"""Given a node whose operands are rewritten already: values to take the place of its outputs, or ``None``."""


def rewrite(graph: Graph, change: Change, *, bodies: bool = True) -> Graph:
    """The graph with ``change`` applied to every node, with ``bodies`` also in graphs that are attributes.

    Gives the same object if nothing changed. Names of replaced values pass to their replacements where these have none
    and are new; the given graph stays as it is.
    """
    return _Rewriter(change, bodies).graph(graph)


@dataclass
class _Rewriter:
    """Replacements so far: one map for a graph and all its bodies, as bodies may share values."""

    change: Change
    inside: bool
    given: set[Value] = field(default_factory=set)
    """Values of the graph that is rewritten: they stay as they are, names included."""
    known: dict[Value, Value] = field(default_factory=dict)
    done: set[Node] = field(default_factory=set)
    bodies: dict[Graph, Graph] = field(default_factory=dict)

    def graph(self, graph: Graph) -> Graph:
        self.given.update(graph.leaves, *(node.outputs for node in graph.nodes))
        for node in graph.nodes:
            if node not in self.done:
                self.done.add(node)
                self.node(node)
        return replaced(graph, self.known)

    def node(self, node: Node) -> None:
        fresh = self.refreshed(node)
        values = self.change(fresh)
        if values is None and fresh is node:
            return
        for old, new in zip(node.outputs, fresh.outputs if values is None else values, strict=True):
            if new is not old:
                self.known[old] = new
                if new not in self.given:
                    new.name = new.name or old.name

    def refreshed(self, node: Node) -> Node:
        """The node over its operands' replacements; the same object where nothing changed."""
        inputs = tuple(None if value is None else self.known.get(value, value) for value in node.inputs)
        operator = self.operator(node.operator)
        if inputs == node.inputs and operator is node.operator:
            return node
        fresh = Node(operator, inputs, node.name)
        for old, new in zip(node.outputs, fresh.outputs, strict=True):
            new.name = old.name
        return fresh

    def operator(self, operator: Operator) -> Operator:
        if not self.inside:
            return operator
        changes = {}
        for entry in dataclasses.fields(operator):  # type: ignore[arg-type]
            body = getattr(operator, entry.name)
            if isinstance(body, Graph):
                if body not in self.bodies:
                    self.bodies[body] = self.graph(body)
                if self.bodies[body] is not body:
                    changes[entry.name] = self.bodies[body]
        return operator.replace(**changes) if changes else operator


def replaced(graph: Graph, known: dict[Value, Value]) -> Graph:
    """The graph with outputs and updates taken from ``known`` where they are there; the same object if none is."""
    if not any(value in known for value in graph.roots):
        return graph
    outputs = {name: known.get(value, value) for name, value in graph.outputs.items()}
    updates = {variable: known.get(value, value) for variable, value in graph.updates.items()}
    return graph.with_(outputs=outputs, updates=updates)
