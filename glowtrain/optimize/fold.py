"""Constant folding: nodes whose operands are all constants become constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Change, Constant, Graph, Node, Value, rewrite
from glowtrain.ops.core.evaluate import results_of, run_node
from glowtrain.ops.quantized.convert import DequantizeLinear
from glowtrain.types import Array

LARGEST_RESULT = 1 << 16
"""Elements of a result up to which folding is worth the memory."""
LARGEST_WEIGHTS = 1 << 22
"""The same for what is made of weights stored as integers."""


def evaluate(node: Node) -> tuple[Array, ...] | None:
    """The node's results if they are known when compiling: all operands are constants, or only their types matter."""
    operator = node.operator
    if operator.random:
        return None
    if operator.from_type:
        return results_of(operator, map(_stand_in, node.inputs))
    if all(value is None or isinstance(value, Constant) for value in node.inputs):
        return run_node(node, {})
    return None


def _stand_in(value: Value | None) -> Array | None:
    """An array of the value's type that takes no memory."""
    return None if value is None else np.broadcast_to(np.zeros((), value.dtype.numpy), value.shape)


def constants(node: Node, largest: int) -> tuple[Constant, ...] | None:
    """The node's outputs as constants, if they are known and have at most ``largest`` elements together."""
    if sum(output.type.size for output in node.outputs) > largest:
        return None
    arrays = evaluate(node)
    if arrays is None:
        return None
    return tuple(Constant(array, output.name) for array, output in zip(arrays, node.outputs, strict=True))


@dataclass(frozen=True)
class Fold:
    """Evaluate nodes whose operands are constants; results of more than ``largest`` elements stay computed."""

    largest: int = LARGEST_RESULT

    def run(self, graph: Graph) -> Graph:
        """The folded graph; the same object if nothing folds."""
        return rewrite(graph, self.rule())

    def rule(self) -> Change:
        """The rule for one walk."""
        return lambda node: constants(node, self.largest_of(node))

    def largest_of(self, node: Node) -> int:
        """Weights are dequantized once, not in every call."""
        return max(self.largest, LARGEST_WEIGHTS) if isinstance(node.operator, DequantizeLinear) else self.largest
