"""Replace operators that are not lowered by their decomposition, until every operator left is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glowtrain.graph import Graph, Node, Value, rewrite
from glowtrain.graph.operator import as_tuple
from glowtrain.optimize.cse import merge_bodies


@dataclass(frozen=True)
class ExpandOperators:
    """The pass: only operators that are lowered are left."""

    def run(self, graph: Graph) -> Graph:
        """The changed graph."""
        return expand(graph)


def expand(graph: Graph) -> Graph:
    """The same graph in operators that can be lowered (bodies of Scans too)."""
    while (simpler := rewrite(graph, _decomposed)) is not graph:
        graph = merge_bodies(simpler)
    return graph


def _decomposed(node: Node) -> Sequence[Value] | None:
    operator = node.operator
    if operator.lowers(*node.inputs) or not operator.has("decompose"):
        return None
    return as_tuple(operator.decompose(*node.inputs))
