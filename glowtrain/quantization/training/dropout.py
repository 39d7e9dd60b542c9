"""Dropout in quantization-aware training: it drops numbers after they were rounded.

    y = Dropout(x)        prepared:  Dropout(FakeQuantize(x))        exported:  the numbers of x

In this order the survivors, which grow by 1 / (1 - ratio), lie on the grid of x stretched by that factor and are not
cut off at the end of its range; the range is that of x, which is what the exported model has. Where elements are moved
or ReLU is taken behind it, Dropout goes behind that, which drops each element as often: so nothing is rounded twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.graph import Graph, Node, Replacements, Value, constant, translate
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.random.philox import Dropout

Chain = tuple[Node, ...]
"""Dropouts that follow one another."""


@dataclass
class Drops:
    """Where a graph without Dropout had it: before operands of nodes, and before results."""

    operands: dict[tuple[Node, int], Chain] = field(default_factory=dict)
    outputs: dict[str, Chain] = field(default_factory=dict)
    made: dict[tuple[Node, Value], Value] = field(default_factory=dict)

    def operand(self, node: Node, position: int, value: Value, replacements: Replacements) -> Value:
        """What a node reads: ``value``, dropped where it was."""
        return self._dropped(value, self.operands.get((node, position), ()), replacements)

    def output(self, name: str, value: Value, replacements: Replacements) -> Value:
        """A result of the graph, likewise."""
        return self._dropped(value, self.outputs.get(name, ()), replacements)

    def _dropped(self, value: Value, chain: Chain, replacements: Replacements) -> Value:
        for node in chain:
            if (node, value) not in self.made:  # all readers of one Dropout see the same elements
                ratios = replacements.operands(node)[1:]
                self.made[node, value] = Node(node.operator, [value, *ratios], node.name).outputs[0]
            value = self.made[node, value]
        return value


def without_dropout(graph: Graph) -> tuple[Graph, Drops]:
    """A graph without Dropout, and where it was."""
    removing = _Removing()
    plain = translate(graph, removing.change)
    waiting = removing.waiting
    outputs = {name: waiting[value] for name, value in graph.outputs.items() if value in waiting}
    return plain, Drops(removing.operands, outputs)


@dataclass
class _Removing:
    waiting: dict[Value, Chain] = field(default_factory=dict)
    """The dropouts before a value that its readers are still to be told of."""
    operands: dict[tuple[Node, int], Chain] = field(default_factory=dict)

    def change(self, node: Node, replacements: Replacements) -> Sequence[Value]:
        if isinstance(node.operator, Dropout):
            return self.removed(node, replacements)
        fresh = replacements.refreshed(node)
        for position, value in enumerate(node.inputs):
            chain = () if value is None else self.waiting.get(value, ())
            if chain and position == 0 and _commutes(node):
                self.waiting.update(dict.fromkeys(node.outputs, chain))
            elif chain:
                self.operands[fresh, position] = chain
        return fresh.outputs

    def removed(self, node: Node, replacements: Replacements) -> Sequence[Value]:
        """The operand of a Dropout, and a mask that leaves every element where it was."""
        x = node.inputs[0]
        assert x is not None
        self.waiting[node.outputs[0]] = (*self.waiting.get(x, ()), node)
        return (replacements.of(x), constant(np.ones(x.shape, np.bool_)))[: len(node.outputs)]


def _commutes(node: Node) -> bool:
    """Whether an operator may as well come before Dropout: it moves elements, or is ReLU."""
    alone = all(value is None or not value.dtype.is_float for value in node.inputs[1:])
    return alone and (node.operator.moves or isinstance(node.operator, Relu))
