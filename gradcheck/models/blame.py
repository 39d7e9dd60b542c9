"""Which node is to blame for a wrong gradient.

A gradient is a chain of local rules and sums. Walking back from the loss, the same way as the gradient, each node
between it and a leaf is put to the test alone: its rule at the operands it really has, in f64, against central
differences of its own reference. Where every rule is right, the sums are looked at: the gradient for an intermediate
value against differences of the rest of the graph, nearest to the loss first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from glowtrain.gradcheck.operators.differences import Probe, check_gradient
from glowtrain.gradcheck.operators.oracles import MISTAKES, applied, check_sample, described
from glowtrain.gradcheck.report.report import Measure
from glowtrain.graph import Graph, Input, Node, Sample, Value, rebuild
from glowtrain.types import Array, f64

LARGEST = 1 << 20
"""Elements of a node's operands up to which its rule is checked by itself."""
PROJECTED = 6
"""Elements of an operand of a large node up to which its Jacobian is computed whole; others are looked at in few
directions."""
COMPILED = 200
"""Nodes that are compiled one by one, at most, to find one whose native code is wrong."""
SUMS = 60
"""Intermediate values whose gradients are compared, at most."""
INNOCENT = "no single operator's rule is wrong by itself, and neither is a sum of gradients"


@dataclass
class Blame:
    """Verdicts over the nodes between the leaves of a graph (all of it f64) and its loss.

    ``values``: every value of the graph at the point that is looked at.
    """

    graph: Graph
    loss: Value
    values: Mapping[Value, Array]
    random: np.random.Generator
    locations: Mapping[Node, str] = field(default_factory=dict)
    """Where nodes come from, if anything says so."""
    verdicts: dict[Node, str] = field(default_factory=dict)

    def of(self, leaf: Value) -> str:
        """What is wrong between a leaf and the loss, or :data:`INNOCENT`."""
        for node in reversed(self.path(leaf)):
            if verdict := self.verdict(node):
                return verdict
        return self.sums(leaf)

    @cached_property
    def compiled(self) -> str:
        """The first node (of any: gradients read values from everywhere) whose native code, by itself, is wrong."""
        for node in self.graph.nodes[:COMPILED]:
            wrong = _first_wrong(check_sample(self.sample(node), ["compiled"]))
            if wrong:
                return f"the native code of {self.named(node)} is wrong by itself: {wrong}"
        return "no node's native code is wrong by itself: glowtrain verify finds the stage that differs"

    def path(self, leaf: Value) -> list[Node]:
        """The nodes on the ways from a leaf to the loss, operands first."""
        reached, path = {leaf}, []
        for node in self.graph.nodes:
            if any(value in reached for value in node.inputs if value is not None):
                reached.update(node.outputs)
                path.append(node)
        return [node for node in path if any(output in self.needed for output in node.outputs)]

    @cached_property
    def needed(self) -> set[Value]:
        """What the loss is computed from."""
        nodes = Graph((), {"loss": self.loss}).nodes
        return {self.loss, *(value for node in nodes for value in node.inputs if value is not None)}

    def sample(self, node: Node) -> Sample:
        """The node's operator on the operands it really has."""
        return Sample(node.operator, tuple(None if value is None else self.values[value] for value in node.inputs))

    def named(self, node: Node) -> str:
        """A node for messages: its operator with attributes and operand types, its name, and what it feeds."""
        name = f" of node {node.name!r}" if node.name else ""
        output = f" (it makes {node.outputs[0].name!r})" if node.outputs[0].name and not node.name else ""
        location = f" {self.locations[node]}" if node in self.locations else ""
        return f"{described(self.sample(node))}{name}{output}{location}"

    def verdict(self, node: Node) -> str:
        """Why a node's rule is wrong at its operands; empty where it is right, on a kink, or not to be checked."""
        if node not in self.verdicts:
            wrong = self._wrong(node)
            self.verdicts[node] = f"the rule of {self.named(node)} is wrong: {wrong}" if wrong else ""
        return self.verdicts[node]

    def _wrong(self, node: Node) -> str:
        sample = self.sample(node)
        if not node.operator.differentiable or sum(np.size(a) for a in sample.inputs if a is not None) > LARGEST:
            return ""
        try:
            probe = applied(sample).probe
            full = 40 if sum(array.size for array in probe.arrays) < 1 << 14 else PROJECTED
            return _first_wrong(check_gradient(probe, self.random, "rule", full))
        except MISTAKES as error:
            return f"{type(error).__name__}: {error}"

    def sums(self, leaf: Value) -> str:
        """The value nearest to the loss whose gradient is wrong although the rules of all its readers are right."""
        values = [value for node in self.path(leaf) for value in node.outputs if self._is_summed(value)]
        for value in [*list(reversed(values))[:SUMS], leaf]:
            wrong = self._wrong_sum(value)
            if wrong:
                readers = self.graph.users.get(value, ())
                return f"gradients for {self._place(value)} are summed wrongly over its {len(readers)} readers: {wrong}"
        return INNOCENT

    def _is_summed(self, value: Value) -> bool:
        return value in self.needed and value.dtype == f64 and value is not self.loss and value.type.size > 0

    def _wrong_sum(self, value: Value) -> str:
        stand_in = Input(value.type, "value")
        (loss,) = rebuild([self.loss], {value: stand_in})
        leaves = tuple(leaf for leaf in Graph((), {"loss": loss}).leaves if isinstance(leaf, Input))
        arrays = tuple(self.values[value] if leaf is stand_in else self.values[leaf] for leaf in leaves)
        try:
            probe = Probe(leaves, arrays, (loss,), (leaves.index(stand_in),), (0,))
            return _first_wrong(check_gradient(probe, self.random, "sum", PROJECTED))
        except MISTAKES as error:
            return f"{type(error).__name__}: {error}"

    def _place(self, value: Value) -> str:
        if value.node is None:
            return repr(value.name)
        return f"the result of {self.named(value.node)}"


def _first_wrong(measures: Iterator[Measure]) -> str:
    """The detail of the first measure that failed."""
    return next((measure.detail or "it disagrees" for measure in measures if measure.status == "failed"), "")
