"""Changing graphs: other values in place of those that a graph has.

Graphs are immutable, so what changes is built again with all that reads it, and the rest is shared. Every change walks
the nodes, operands first, and keeps which values stand for which (:class:`Replacements`); what differs is what it is
given: :func:`rebuild` and :func:`substituted` the values themselves, :func:`rewrite` a rule on nodes whose operands are
replaced already, :func:`translate` one on the nodes as they were.

Names pass alike in all of them: a new value without a name takes the name of the one that it stands for; values of the
graph, and those that are given, stay as they are. New nodes belong to the layer of the node that they are made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from glowtrain.graph.graph import Graph, bodies_of
from glowtrain.graph.operator import Operator
from glowtrain.graph.traversal import topological
from glowtrain.graph.value import Input, Node, Value, Variable, layers


@dataclass
class Replacements:
    """Which values stand for those of a graph, as far as its nodes were walked."""

    values: dict[Value, Value] = field(default_factory=dict)
    shared: set[Value] = field(default_factory=set)
    """Values that are there already: they keep their names, or have none."""

    def share(self, graph: Graph) -> None:
        """Leave the graph's own values as they are."""
        self.shared.update(graph.leaves, *(node.outputs for node in graph.nodes))

    def of(self, value: Value) -> Value:
        """What stands for a value: itself, unless it was replaced."""
        return self.values.get(value, value)

    def operands(self, node: Node) -> list[Value | None]:
        """What a node reads now."""
        return [None if value is None else self.values.get(value, value) for value in node.inputs]

    def copied(self, node: Node, operator: Operator | None = None) -> Node:
        """A new node over the operands' replacements, with the same names."""
        operator, operands = node.operator if operator is None else operator, self.operands(node)
        known = operator is node.operator and all(map(_same_type, operands, node.inputs))
        types = [output.type for output in node.outputs] if known else None
        fresh = Node(operator, operands, node.name, types, node.layer)
        for old, new in zip(node.outputs, fresh.outputs, strict=True):
            new.name = old.name
        return fresh

    def refreshed(self, node: Node, operator: Operator | None = None) -> Node:
        """The node over the operands' replacements; the same object where nothing changed."""
        same = operator is None or operator is node.operator
        return node if same and self.values.keys().isdisjoint(node.inputs) else self.copied(node, operator)

    def put(self, node: Node, results: Sequence[Value]) -> None:
        """Put ``results`` in the place of a node's outputs. Names pass to them where they are new and have none."""
        if results is node.outputs:
            return
        for old, new in zip(node.outputs, results, strict=True):
            if new is not old:
                self.values[old] = new
                if new not in self.shared:
                    new.name = new.name or old.name

    def graph(self, graph: Graph) -> Graph:
        """The graph of the replacements; the same object if none is a root, an input or an updated variable.

        Inputs that something else stands for are inputs all the same; variables are no longer updated.
        """
        if not any(value in self.values for value in (*graph.roots, *graph.inputs, *graph.updates)):
            return graph
        inputs = (new if isinstance(new := self.of(value), Input) else value for value in graph.inputs)
        updates = ((self.of(variable), self.of(value)) for variable, value in graph.updates.items())
        return graph.with_(
            inputs=tuple(inputs),
            outputs={name: self.of(value) for name, value in graph.outputs.items()},
            updates={target: value for target, value in updates if isinstance(target, Variable)},
        )


def _same_type(a: Value | None, b: Value | None) -> bool:
    return a is b or (a is not None and b is not None and a.type == b.type)


def rebuild(roots: Sequence[Value], mapping: Mapping[Value, Value]) -> list[Value]:
    """``roots`` with every value in ``mapping`` replaced (also below them)."""
    return list(map(_substitution(roots, mapping).of, roots))


def substituted(graph: Graph, mapping: Mapping[Value, Value]) -> Graph:
    """The graph with every value in ``mapping`` replaced (see :meth:`Replacements.graph`)."""
    return _substitution(graph.roots, mapping).graph(graph)


def _substitution(roots: Sequence[Value], mapping: Mapping[Value, Value]) -> Replacements:
    replacements = Replacements(dict(mapping), shared=set(mapping.values()))
    for node in topological(roots, boundary=mapping):
        fresh = replacements.refreshed(node)
        replacements.put(node, [mapping.get(old, new) for old, new in zip(node.outputs, fresh.outputs, strict=True)])
    return replacements


Change = Callable[[Node], Sequence[Value] | None]
"""Given a node whose operands are replaced already: values to take the place of its outputs, or ``None``."""


def rewrite(graph: Graph, change: Change, *, bodies: bool = True) -> Graph:
    """The graph with ``change`` applied to every node, with ``bodies`` also in graphs that are attributes.

    Gives the same object if nothing changed; the given graph stays as it is, names included.
    """
    return _Rewriter(change, bodies).graph(graph)


Translation = Callable[[Node, Replacements], Sequence[Value] | None]
"""Given a node as it was, and what stands for its operands: values to take the place of its outputs, or ``None``."""


def translate(graph: Graph, change: Translation) -> Graph:
    """The graph with ``change`` applied to every node as it is in the graph, so that its readers can be looked at.

    Gives the same object if nothing changed; the given graph stays as it is, names included.
    """
    replacements = Replacements()
    replacements.share(graph)
    with layers() as enter:
        for node in graph.nodes:
            enter(node.layer)
            results = change(node, replacements)
            replacements.put(node, replacements.refreshed(node).outputs if results is None else results)
    return replacements.graph(graph)


@dataclass
class _Rewriter:
    """One record of replacements for a graph and all its bodies, as bodies may share values."""

    change: Change
    inside: bool
    replacements: Replacements = field(default_factory=Replacements)
    done: set[Node] = field(default_factory=set)
    bodies: dict[Graph, Graph] = field(default_factory=dict)

    def graph(self, graph: Graph) -> Graph:
        self.replacements.share(graph)
        with layers() as enter:
            for node in graph.nodes:
                if node not in self.done:
                    self.done.add(node)
                    enter(node.layer)
                    self.node(node)
        return self.replacements.graph(graph)

    def node(self, node: Node) -> None:
        fresh = self.replacements.refreshed(node, self.operator(node.operator))
        values = self.change(fresh)
        self.replacements.put(node, fresh.outputs if values is None else values)

    def operator(self, operator: Operator) -> Operator:
        """The operator with its bodies rewritten; the same object where nothing changed."""
        if not self.inside:
            return operator
        bodies = bodies_of(operator)
        if not bodies:
            return operator
        for body in bodies.values():
            if body not in self.bodies:
                self.bodies[body] = self.graph(body)
        changes = {name: new for name, body in bodies.items() if (new := self.bodies[body]) is not body}
        return operator.replace(**changes) if changes else operator
