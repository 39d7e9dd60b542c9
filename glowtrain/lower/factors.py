"""Rounding the factors of products to bf16: mixed precision, in the graph.

    MatMul(x, w)    MatMul(widen(round(x)), widen(round(w)))    round: f32 -> bf16, small numbers to 0

Sums stay in f32, and so does everything else: parameters, optimizers, norms, softmax, losses. Which operands are
factors is said by operators (:meth:`Operator.factors`). Programs store what is rounded in 16 bits and widen it where it
is read, so what waits for the backward pass, which reads the same factors, waits in 16 bits.

A factor below 2 ** -56 counts as 0. Then products are multiples of 2 ** -126, and so are their sums: none is denormal,
so that processors whose products of bf16 take denormals for 0 compute the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.graph import Graph, Node, Value, constant, rewrite
from glowtrain.lower.expand import expand
from glowtrain.memory.precision import LEAST_FACTOR, RoundedFactors
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.logic import Less, Where
from glowtrain.stages import DEFAULT, Costs
from glowtrain.types import bf16, f32


@dataclass(frozen=True)
class RoundFactors:
    """The pass: the ``factors`` of products of f32 that are rounded. Operators that are not lowered are written out
    before, as they may hold products."""

    factors: RoundedFactors | None = None
    costs: Costs = DEFAULT.facts.costs

    def run(self, graph: Graph) -> Graph:
        """The changed graph."""
        if self.factors is None:
            return graph
        return rewrite(expand(graph, self.costs), _Rounding(frozenset(self.factors.wide)).change)


@dataclass
class _Rounding:
    """What was rounded, so that a value that several products read is rounded once. ``wide``: the layers whose products
    are left as they are."""

    wide: frozenset[str]
    rounded: dict[Value, Value] = field(default_factory=dict)

    def change(self, node: Node) -> Sequence[Value] | None:
        """The node with its factors rounded."""
        if node.layer in self.wide:
            return None
        factors = node.operator.factors(*(None if value is None else value.type for value in node.inputs))
        operands = [self._factor(value) if at in factors else value for at, value in enumerate(node.inputs)]
        if all(new is old for new, old in zip(operands, node.inputs, strict=True)):
            return None
        return Node(node.operator, operands, node.name).outputs

    def _factor(self, value: Value | None) -> Value | None:
        if value is None or value.dtype != f32 or _is_widened(value):
            return value
        if value not in self.rounded:
            moved = self._moved(value)
            self.rounded[value] = _round(value) if moved is None else moved
        return self.rounded[value]

    def _moved(self, value: Value) -> Value | None:
        """Of a value whose elements are moved ones of another, that one's rounded elements, moved: other products may
        read these where they are, and wait for them in 16 bits. What is a part of another one is rounded alone."""
        node = value.node
        source = node.inputs[0] if node is not None and node.operator.moves else None
        if node is None or source is None or source.type.size > value.type.size:
            return None
        return Node(node.operator, (self._factor(source), *node.inputs[1:]), node.name).outputs[0]


def _round(value: Value) -> Value:
    """A value in bf16, and widened."""
    small = Less()(Abs()(value), constant(np.float32(LEAST_FACTOR)))
    rounded: Value = Cast(f32)(Cast(bf16)(Where()(small, constant(np.float32(0)), value)))
    return rounded


def _is_widened(value: Value) -> bool:
    """Whether a value is one of bf16 in f32."""
    node = value.node
    before = node.inputs[0] if node is not None and isinstance(node.operator, Cast) else None
    return before is not None and before.dtype == bf16
