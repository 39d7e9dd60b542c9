"""What differences are taken of, where a gradient is by convention not that of the function itself.

A StopGradient counts as a constant, and an operator with a surrogate (straight-through estimators) as that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glowtrain.backends.interpreter import evaluate
from glowtrain.graph import Graph, Node, Value, constant
from glowtrain.ops.move import StopGradient
from glowtrain.optimize.rewrite import rewrite
from glowtrain.types import Array


def held(graph: Graph, inputs: Mapping[str, Array]) -> Graph:
    """The graph near the point ``inputs``: surrogates in place of operators that have one, and what a StopGradient
    lets through held at the value it has at the point."""
    smooth = rewrite(graph, _surrogate)
    stops = [node.output for node in smooth.nodes if isinstance(node.operator, StopGradient)]
    if not stops:
        return smooth
    known = evaluate(smooth, inputs)
    return smooth.substituted({value: constant(known[value]) for value in stops})


def has_convention(node: Node) -> bool:
    """Whether a node's gradient is by convention not that of its function."""
    return isinstance(node.operator, StopGradient) or node.operator.has("surrogate")


def _surrogate(node: Node) -> Sequence[Value] | None:
    if not node.operator.has("surrogate"):
        return None
    results = node.operator.surrogate(*node.inputs)
    return results if isinstance(results, tuple) else (results,)
