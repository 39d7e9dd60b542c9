"""Common subexpressions: equal operators on the same operands are computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from glowtrain.graph import Constant, Graph, Node, Operator, Value, rewrite

LARGEST_COMPARED = 1 << 16
"""Bytes up to which constants are compared by their contents; larger ones are equal if they share an array."""


@dataclass(frozen=True)
class MergeEqual:
    """Merge equal nodes and equal constants. Operators that are ``random`` are never merged."""

    def run(self, graph: Graph) -> Graph:
        """The merged graph; the same object if nothing is equal."""
        return rewrite(graph, _Merger().node)


@dataclass
class _Merger:
    """What was seen so far, by what it computes."""

    nodes: dict[Hashable, Node] = field(default_factory=dict)
    constants: dict[Hashable, Constant] = field(default_factory=dict)

    def node(self, node: Node) -> Sequence[Value] | None:
        if node.operator.random:
            return None
        inputs = tuple(self.canonical(value) for value in node.inputs)
        key = (type(node.operator), exact_attributes(node.operator), inputs)
        known = self.nodes.get(key)
        if known is not None:
            return known.outputs
        fresh = node if inputs == node.inputs else Node(node.operator, inputs, node.name)
        self.nodes[key] = fresh
        return None if fresh is node else fresh.outputs

    def canonical(self, value: Value | None) -> Value | None:
        """The first constant with the same contents; other values are themselves."""
        if not isinstance(value, Constant):
            return value
        small = value.type.nbytes <= LARGEST_COMPARED
        key: Hashable = (value.type, value.array.tobytes() if small else id(value.array))
        return self.constants.setdefault(key, value)


def exact_attributes(operator: Operator) -> tuple[Hashable, ...]:
    """Attributes such that equal tuples mean equal results: 0.0 is not -0.0, 1 is not true."""
    values = (getattr(operator, entry.name) for entry in dataclasses.fields(operator))  # type: ignore[arg-type]
    return tuple(value if isinstance(value, Graph) else repr(value) for value in values)
