"""What differences are taken of, where a gradient is by convention not that of the function itself.

A StopGradient counts as a constant, and an operator with a surrogate (straight-through estimators) as that. In a loop
it is another constant in each step, so such a loop is unrolled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glowtrain.backends.interpreter import evaluate
from glowtrain.graph import Graph, Node, Value, constant, rewrite, substituted
from glowtrain.graph.operator import as_tuple
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.types import Array


def straight_through(graph: Graph, inputs: Mapping[str, Array]) -> Graph:
    """The graph near the point ``inputs``: surrogates in place of operators that have one, and what a StopGradient
    lets through held at the value it has at the point."""
    smooth = rewrite(graph, _simpler)
    stops = [node.output for node in smooth.nodes if isinstance(node.operator, StopGradient)]
    if not stops:
        return smooth
    values = evaluate(smooth, inputs)
    return substituted(smooth, {value: constant(values[value]) for value in stops})


def has_convention(node: Node) -> bool:
    """Whether a node's gradient is by convention not that of its function."""
    return isinstance(node.operator, StopGradient) or node.operator.has("surrogate")


def _simpler(node: Node) -> Sequence[Value] | None:
    """What stands for a node whose operator has a surrogate, or a loop that stops a gradient."""
    operator = node.operator
    if operator.has("surrogate"):
        return as_tuple(operator.surrogate(*node.inputs))
    if isinstance(operator, Scan) and any(isinstance(inner.operator, StopGradient) for inner in operator.body.nodes):
        return operator.unrolled(*node.inputs)
    return None
