"""Replace operators that have no lowering by their decomposition, until every operator left has one."""

from __future__ import annotations

from collections.abc import Sequence

from glowtrain.graph import Graph, Node, Value
from glowtrain.ops.control import Scan
from glowtrain.optimize.rewrite import rewrite


def expand(graph: Graph) -> Graph:
    """The same graph in operators that can be lowered (bodies of Scans too)."""
    while (simpler := rewrite(graph, _decomposed)) is not graph:
        graph = simpler
    return graph


def _decomposed(node: Node) -> Sequence[Value] | None:
    operator = node.operator
    lowered = operator.is_canonical if isinstance(operator, Scan) else operator.has("lower")
    if lowered or not operator.has("decompose"):
        return None
    results = operator.decompose(*node.inputs)
    return results if isinstance(results, tuple) else (results,)
