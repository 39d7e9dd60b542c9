"""Common subexpressions: equal operators on the same operands are computed once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from glowtrain.graph import Change, Constant, Graph, Node, Operator, Value, bodies_of, rewrite

LARGEST_COMPARED = 1 << 16
"""Bytes up to which constants are compared by their contents; larger ones are equal if they share an array."""


@dataclass(frozen=True)
class MergeEqual:
    """Merge equal nodes, equal constants, and equal bodies. Operators that are ``random`` are never merged, nor are
    bodies that have some."""

    def run(self, graph: Graph) -> Graph:
        """The merged graph; the same object if nothing is equal."""
        return rewrite(graph, self.rule())

    def rule(self) -> Change:
        """The rule for one walk, which remembers what it has seen."""
        return _Merger().node


def merge_bodies(graph: Graph) -> Graph:
    """The graph with each body of operators once, so that passes see it once; the same object if none are equal."""
    bodies = _Bodies()

    def change(node: Node) -> Sequence[Value] | None:
        operator = bodies.of(node.operator)
        return None if operator is node.operator else Node(operator, node.inputs, node.name).outputs

    return rewrite(graph, change, bodies=False)


@dataclass
class _Bodies:
    """The bodies seen so far: graphs that are attributes of operators."""

    signatures: dict[Hashable, Graph] = field(default_factory=dict)
    """The first with each signature: keys are only found for those that are not alone with theirs."""
    keys: dict[str, Graph] = field(default_factory=dict)

    def of(self, operator: Operator) -> Operator:
        """The operator with the first bodies that compute the same as its own."""
        bodies = bodies_of(operator)
        if not bodies:
            return operator
        changes = {name: new for name, body in bodies.items() if (new := self.first(body)) is not body}
        return operator.replace(**changes) if changes else operator

    def first(self, body: Graph) -> Graph:
        """The first body that computes the same."""
        inputs, outputs = (tuple(value.type for value in values) for values in (body.inputs, body.outputs.values()))
        alike = self.signatures.setdefault((inputs, outputs, len(body.nodes)), body)
        if alike is body or draws(body):
            return body
        self.keys.setdefault(alike.positional_key, alike)
        return self.keys.setdefault(body.positional_key, body)


@dataclass
class _Merger:
    """What was seen so far, by what it computes."""

    nodes: dict[Hashable, Node] = field(default_factory=dict)
    constants: dict[Hashable, Constant] = field(default_factory=dict)
    bodies: _Bodies = field(default_factory=_Bodies)

    def node(self, node: Node) -> Sequence[Value] | None:
        if node.operator.random:
            return None
        operator, inputs = self.bodies.of(node.operator), tuple(self.canonical(value) for value in node.inputs)
        key = (type(operator), exact_attributes(operator), inputs)
        known = self.nodes.get(key)
        if known is not None:
            return None if known is node else known.outputs
        same = operator is node.operator and inputs == node.inputs
        fresh = self.nodes[key] = node if same else Node(operator, inputs, node.name, layer=node.layer)
        return None if same else fresh.outputs

    def canonical(self, value: Value | None) -> Value | None:
        """The first constant with the same contents; other values are themselves."""
        if not isinstance(value, Constant):
            return value
        small = value.type.nbytes <= LARGEST_COMPARED
        key: Hashable = (value.type, value.array.tobytes() if small else id(value.array))
        return self.constants.setdefault(key, value)


def draws(body: Graph) -> bool:
    """Whether a graph has operators whose results differ from those of equal ones."""
    return any(node.operator.random or any(map(draws, bodies_of(node.operator).values())) for node in body.nodes)


def exact_attributes(operator: Operator) -> tuple[Hashable, ...]:
    """Attributes such that equal tuples mean equal results: 0.0 is not -0.0, 1 is not true."""
    return tuple(value if isinstance(value, Graph) else repr(value) for value in operator.field_values().values())
