"""Where each node of a graph stands on the way from inputs to outputs, so that a stage is a range of positions.

The nodes that outputs need are the forward ones, in order; each has a position of its own. The others (gradients, an
optimizer's rules) stand where the forward node is that they are about, so that the forward and the backward of a layer
are of one stage, wherever stages begin:

- What reads forward values or parameters stands where all of them are at hand: where they are made or read. Of several
  such positions that of its own layer is meant, else the last one.
- Cotangents flow back: a node stands nowhere behind the nodes that it reads, forward ones aside. Sums over all
  parameters (a norm) so come to the first of them. What reads cotangents alone (the gradient of a bias) goes on to
  where it is read, if no more bytes go there so.
- What reads no more than hyperparameters and counters stands where it is read.
- A variable stands where it is read first on the way forward, one that only updates read where its new value is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from glowtrain.graph import Graph, Node, Value, Variable, topological


@dataclass(frozen=True)
class Positions:
    """The positions of nodes and variables; ``forward`` are the nodes in the order of theirs."""

    forward: tuple[Node, ...]
    of_node: dict[Node, int]
    of_variable: dict[Variable, int]

    @property
    def count(self) -> int:
        """One more than the last position."""
        return len(self.forward)


def positions(graph: Graph) -> Positions:
    """The positions of a graph that has nodes."""
    return _Finding(graph).computed()


@dataclass
class _Finding:
    graph: Graph
    of_node: dict[Node, int] = field(default_factory=dict)
    at_hand: dict[Value, set[int]] = field(default_factory=dict)
    """For forward values and variables, where they are made or read on the way forward."""
    layers: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forward = tuple(topological(self.graph.outputs.values())) or self.graph.nodes
        self.last = len(self.forward) - 1
        for position, node in enumerate(self.forward):
            self.of_node[node] = position
            self.layers.setdefault(node.layer, set()).add(position)
            for value in (*node.outputs, *_read(node)):
                if value.node is not None or isinstance(value, Variable):
                    self.at_hand.setdefault(value, set()).add(position)

    def computed(self) -> Positions:
        rest = [node for node in self.graph.nodes if node not in self.of_node]
        for node in rest:
            self._follow_operands(node)
        for node in reversed(rest):
            self._follow_readers(node)
        for node in reversed(rest):
            self._follow_cotangents(node)
        return Positions(self.forward, self.of_node, {v: self._of_variable(v) for v in self.graph.variables})

    def _follow_operands(self, node: Node) -> None:
        """Its position, by what it reads, if that has one."""
        homes = [self.at_hand[value] for value in _read(node) if value in self.at_hand]
        makers = [value.node for value in _read(node) if value.node is not None and value not in self.at_hand]
        bounds = [self.of_node[maker] for maker in makers if maker in self.of_node]
        if homes or bounds:
            self.of_node[node] = self._nearest(node, homes, min(bounds, default=self.last))

    def _nearest(self, node: Node, homes: Collection[set[int]], bound: int) -> int:
        layer = self.layers.get(node.layer, set()) if node.layer else set[int]()
        if not homes:
            return bound
        common = set.intersection(*homes) or {max(map(min, homes))}
        own = {position for position in common & layer if position <= bound}
        return max(own or {position for position in common if position <= bound}, default=bound)

    def _follow_readers(self, node: Node) -> None:
        """Its position, by what reads it, where it has none yet."""
        if node in self.of_node:
            return
        self.of_node[node] = max(self._readers(node), default=self.last)

    def _follow_cotangents(self, node: Node) -> None:
        """Move a node that reads nothing of the forward way on to what reads it, where no more bytes go there so."""
        results = [value for value in _read(node) if value.node is not None]
        position = max(self._readers(node), default=self.last)
        if not results or position >= self.of_node[node] or any(value in self.at_hand for value in _read(node)):
            return
        more = sum(value.type.nbytes for value in results if not self._is_read(value, node, position))
        if more <= sum(value.type.nbytes for value in node.outputs):
            self.of_node[node] = position

    def _is_read(self, value: Value, besides: Node, position: int) -> bool:
        """Whether a value goes to a position, or before it, for another node anyway."""
        return any(self.of_node[node] <= position for node in self.graph.users[value] if node is not besides)

    def _readers(self, node: Node) -> list[int]:
        """The positions of what reads a node."""
        readers = (reader for output in node.outputs for reader in self.graph.users.get(output, ()))
        updated = (self._read_at(v) for v, value in self.graph.updates.items() if value.node is node)
        return [*(self.of_node[reader] for reader in readers), *updated]

    def _read_at(self, variable: Variable) -> int:
        return min(self.at_hand.get(variable, {self.last}))

    def _of_variable(self, variable: Variable) -> int:
        if variable in self.at_hand:
            return min(self.at_hand[variable])
        maker = self.graph.updates[variable].node if variable in self.graph.updates else None
        readers = [self.of_node[node] for node in self.graph.users.get(variable, ())]
        return self.of_node[maker] if maker is not None else min(readers, default=self.last)


def _read(node: Node) -> Iterable[Value]:
    return (value for value in node.inputs if value is not None)
