"""Dropout in quantization-aware training: it drops numbers after they were rounded.

    y = Dropout(x)        prepared:  Dropout(FakeQuantize(x))        exported:  the numbers of x

In this order the survivors, which grow by 1 / (1 - ratio), lie on the grid of x stretched by that factor and are not
cut off at the end of its range; the range is that of x, which is what the exported model has. Where elements are moved
or ReLU is taken behind it, Dropout goes behind that, which drops each element as often: so nothing is rounded twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from glowtrain.graph import Graph, Node, Value, constant
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.random.philox import Dropout
from glowtrain.optimize.rewrite import replaced
from glowtrain.quantization.export.constants import refreshed

Chain = tuple[Node, ...]
"""Dropouts that follow one another."""


@dataclass
class Drops:
    """Where a graph without Dropout had it: before operands of nodes, and before results."""

    operands: dict[tuple[Node, int], Chain] = field(default_factory=dict)
    outputs: dict[str, Chain] = field(default_factory=dict)
    made: dict[tuple[Node, Value], Value] = field(default_factory=dict)

    def operand(self, node: Node, place: int, value: Value, known: Mapping[Value, Value]) -> Value:
        """What a node reads: ``value``, dropped where it was."""
        return self._dropped(value, self.operands.get((node, place), ()), known)

    def output(self, name: str, value: Value, known: Mapping[Value, Value]) -> Value:
        """A result of the graph, likewise."""
        return self._dropped(value, self.outputs.get(name, ()), known)

    def _dropped(self, value: Value, chain: Chain, known: Mapping[Value, Value]) -> Value:
        for node in chain:
            if (node, value) not in self.made:  # all readers of one Dropout see the same elements
                ratios = (None if ratio is None else known.get(ratio, ratio) for ratio in node.inputs[1:])
                self.made[node, value] = Node(node.operator, [value, *ratios], node.name).outputs[0]
            value = self.made[node, value]
        return value


def without_dropout(graph: Graph) -> tuple[Graph, Drops]:
    """A graph without Dropout, and where it was."""
    known, waiting, drops = dict[Value, Value](), dict[Value, Chain](), Drops()
    for node in graph.nodes:
        if isinstance(node.operator, Dropout):
            x = node.inputs[0]
            assert x is not None
            mask = constant(np.ones(x.shape, np.bool_))
            known.update(zip(node.outputs, (known.get(x, x), mask), strict=False))
            waiting[node.outputs[0]] = (*waiting.get(x, ()), node)
            continue
        fresh = refreshed(node, known) if any(value in known for value in node.inputs) else node
        known.update((old, new) for old, new in zip(node.outputs, fresh.outputs, strict=True) if old is not new)
        for place, value in enumerate(node.inputs):
            chain = () if value is None else waiting.get(value, ())
            if chain and place == 0 and _commutes(node):
                waiting.update(dict.fromkeys(node.outputs, chain))
            elif chain:
                drops.operands[fresh, place] = chain
    drops.outputs.update((name, waiting[value]) for name, value in graph.outputs.items() if value in waiting)
    return replaced(graph, known), drops


def _commutes(node: Node) -> bool:
    """Whether an operator may as well come before Dropout: it moves elements, or is ReLU."""
    alone = all(value is None or not value.dtype.is_float for value in node.inputs[1:])
    return alone and (node.operator.moves or isinstance(node.operator, Relu))
