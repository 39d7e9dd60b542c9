"""Replace operators that are not lowered by their decomposition, until every operator left is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from glowtrain.graph import Graph, Node, Value, rewrite
from glowtrain.graph.operator import as_tuple
from glowtrain.graph.specialise.index_ranges import check_constant_indices
from glowtrain.optimize.cse import merge_bodies
from glowtrain.stages import DEFAULT, Costs


@dataclass(frozen=True)
class ExpandOperators:
    """The pass: only operators that are lowered are left."""

    costs: Costs = DEFAULT.facts.costs

    def run(self, graph: Graph) -> Graph:
        """The changed graph."""
        return expand(graph, self.costs)


def expand(graph: Graph, costs: Costs = DEFAULT.facts.costs) -> Graph:
    """The same graph in operators that can be lowered (bodies of Scans too), by algorithms that ``costs`` choose."""
    while (simpler := rewrite(graph, partial(_decomposed, costs=costs))) is not graph:
        graph = merge_bodies(simpler)
    return graph


def _decomposed(node: Node, *, costs: Costs) -> Sequence[Value] | None:
    operator = node.operator
    if operator.lowers(*node.inputs) or not operator.has("decompose"):
        return None
    check_constant_indices(node)
    return as_tuple(operator.decompose_for(costs, *node.inputs))
