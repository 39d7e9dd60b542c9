"""A graph as a row of blocks, between which stages may begin, and what every range of them takes: time, memory, bytes
from other stages.

A block is some neighbouring positions (:mod:`.positions`), with all that stands there: forward, backward and updates.
All numbers of a range [i, j) of blocks are entries i, j of a matrix, exact but for the memory of activations: that is
the greatest sum of the range's values that the whole graph has alive at the same time, in the order of its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from glowtrain.backends.device import Device, DeviceFacts
from glowtrain.graph import Graph, Node, Value, Variable
from glowtrain.runtime.partition.positions import Positions
from glowtrain.runtime.partition.storage import Storage
from glowtrain.runtime.partition.work import NodeWork, WorkModel
from glowtrain.types import Array

MOST_BLOCKS = 192
"""Blocks that a graph is seen as at most; of more positions, those with the fewest bytes between them begin one."""


@dataclass(frozen=True)
class ValueFlow:
    """A value that passes: its bytes, the position where it is made and those where it is read.

    It is alive from node ``first`` to node ``last``. Up to position ``within`` there are forward nodes that read it in
    the kernel that makes it, so that it is in no memory.
    """

    nbytes: int
    made: int
    read: frozenset[int]
    first: int = 0
    last: int = 0
    within: int = 0

    @property
    def extent(self) -> tuple[int, int]:
        """The first position and the last one where it is needed."""
        places = {self.made, *self.read}
        return min(places), max(places)


def flows(graph: Graph, positions: Positions, storage: Storage) -> list[ValueFlow]:
    """The values that nodes make and others read, as far as they are stored, and variables: what is inlined is read as
    that of which it is computed."""
    return list(_Flows(graph, positions, storage).flows())


@dataclass
class _Flows:
    graph: Graph
    positions: Positions
    storage: Storage
    stored: dict[Value, frozenset[Value]] = field(default_factory=dict)
    """The stored values that readers of a value read."""

    def flows(self) -> Iterator[ValueFlow]:
        order = {node: index for index, node in enumerate(self.graph.nodes)}
        readers: dict[Value, list[Node]] = {}
        for node in self.graph.nodes:
            for value in self._reads(node):
                readers.setdefault(value, []).append(node)
        yield from self._variables(readers)
        kept = {value: len(order) for value in self.graph.outputs.values()}
        for node in self.graph.nodes:
            for value in node.outputs:
                if not self.storage.is_inlined(value):
                    read = readers.get(value, [])
                    last = max([order[node], *(order[reader] for reader in read), kept.get(value, 0)])
                    at = frozenset(self.positions.of_node[reader] for reader in read)
                    maker = self.positions.of_node[node]
                    within = self._within(value, maker, read) if value in self.storage.fused else 0
                    yield ValueFlow(value.type.nbytes, maker, at, order[node], last, within)

    def _variables(self, readers: Mapping[Value, Sequence[Node]]) -> Iterator[ValueFlow]:
        """Variables, which other stages than theirs take as values; where they are, they are no activations."""
        for variable, maker in self.positions.of_variable.items():
            at = frozenset(self.positions.of_node[reader] for reader in readers.get(variable, ()))
            yield ValueFlow(variable.type.nbytes, maker, at, last=-1)

    def _within(self, value: Value, maker: int, readers: Sequence[Node]) -> int:
        """The last forward node that reads a value made by one."""
        forward = self.positions.forward
        if forward[maker] is not value.node:
            return 0
        positions = [self.positions.of_node[reader] for reader in readers]
        return max((at for at, reader in zip(positions, readers, strict=True) if forward[at] is reader), default=0)

    def _reads(self, node: Node) -> frozenset[Value]:
        """The stored values that a node reads."""
        found = frozenset[Value]()
        for value in node.inputs:
            if isinstance(value, Variable):
                found |= {value}
            elif value is not None and value.node is not None:
                found |= self.stored[value]
        for output in node.outputs:
            self.stored[output] = found if self.storage.is_inlined(output) else frozenset({output})
        return found


@dataclass(frozen=True)
class NodeBlocks:
    """A graph in blocks: ``starts`` are the positions at which they begin."""

    graph: Graph
    positions: Positions
    storage: Storage
    flows: Sequence[ValueFlow]
    starts: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.starts)

    def of(self, position: int) -> int:
        """The block that a position is in."""
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    @cached_property
    def nodes(self) -> list[list[Node]]:
        """The nodes of each block."""
        found: list[list[Node]] = [[] for _ in self.starts]
        for node in self.graph.nodes:
            found[self.of(self.positions.of_node[node])].append(node)
        return found

    @cached_property
    def work(self) -> dict[Node, NodeWork]:
        """The work of each node."""
        model = WorkModel(self.storage)
        return {node: model.of(node) for node in self.graph.nodes}

    def time(self, facts: DeviceFacts) -> Array:
        """Nanoseconds of each range on a device: its work, what comes and goes, and a call."""
        own = [sum(self.work[node].nanoseconds(facts) for node in nodes) for nodes in self.nodes]
        return self._sums(own) + (self.bytes_in + self.bytes_out) / (facts.link or facts.bandwidth) + facts.launch

    def unsupported(self, device: Device) -> Array:
        """How many nodes of each range a device does not support."""
        return self._sums([sum(not device.supports(node.operator) for node in nodes) for nodes in self.nodes])

    @cached_property
    def bytes_in(self) -> Array:
        """Bytes that each range takes from others, each value once."""
        return self._between(lambda made, read: read & ~made)

    @cached_property
    def bytes_out(self) -> Array:
        """Bytes that each range makes and others take, each value once."""
        return self._between(lambda made, read: made & read, outside=True)

    @cached_property
    def memory(self) -> Array:
        """Bytes that each range takes on a device: its variables, constants and activations, and what it takes and
        gives."""
        return self._variables() + self._constants() + self._activations() + self.bytes_in + self.bytes_out

    def _variables(self) -> Array:
        sizes = Counter[int]()
        for variable, position in self.positions.of_variable.items():
            sizes[self.of(position)] += variable.type.nbytes
        return self._sums([sizes[block] for block in range(self.count)])

    def _constants(self) -> Array:
        total = np.zeros((self.count + 1, self.count + 1))
        for value in self.graph.constants:
            read = {self.of(self.positions.of_node[node]) for node in self.graph.users.get(value, ())}
            total += value.type.nbytes * self._any(read)
        return total

    def _activations(self) -> Array:
        """The greatest sum of the values of each range that are alive at the same time."""
        changes = np.zeros((self.count + 1, len(self.graph.nodes) + 2))
        for flow in self.flows:
            block = self.of(flow.made) + 1
            changes[block, flow.first] += flow.nbytes
            changes[block, flow.last + 1] -= flow.nbytes
        alive = np.cumsum(np.cumsum(changes, axis=1), axis=0)
        result = np.zeros((self.count + 1, self.count + 1))
        for first in range(self.count):
            result[first, first + 1 :] = (alive[first + 1 :] - alive[first]).max(axis=1)
        return result

    def _sums(self, sizes: Sequence[float]) -> Array:
        """The sum of each range of blocks."""
        upto = np.concatenate([[0.0], np.cumsum(np.asarray(sizes, np.float64))])
        result: Array = np.maximum(upto[None, :] - upto[:, None], 0.0)
        return result

    def _any(self, blocks: Collection[int]) -> Array:
        """Which ranges have one of the blocks."""
        has = self._sums([block in blocks for block in range(self.count)])
        return has > 0

    def _between(self, counts: Callable[[Array, Array], Array], *, outside: bool = False) -> Array:
        """The bytes of the values that count, by which ranges make them and which read them."""
        sizes = Counter[tuple[int, frozenset[int]]]()
        for flow in self.flows:
            sizes[self.of(flow.made), frozenset(map(self.of, flow.read))] += flow.nbytes
        total = np.zeros((self.count + 1, self.count + 1))
        for (maker, read), nbytes in sizes.items():
            if read - {maker}:
                reading = self._not_all(read) if outside else self._any(read)
                total += nbytes * counts(self._any({maker}), reading)
        return total

    def _not_all(self, blocks: Collection[int]) -> Array:
        """Which ranges lack one of the blocks."""
        has = self._sums([block in blocks for block in range(self.count)])
        return has < len(blocks)


def in_blocks(
    graph: Graph, positions: Positions, storage: Storage, forced: Collection[int] = (), least: int = 1
) -> NodeBlocks:
    """A graph in blocks, of which some begin at ``forced`` positions.

    No other begins within a kernel of the whole: sums that are computed with what follows them may be taken in another
    order without it. Where there are not so many as ``least`` of them, all positions are looked at.
    """
    found = flows(graph, positions, storage)
    crossing, within = np.zeros(positions.count + 1), np.zeros(positions.count + 1, bool)
    for flow in found:
        first, last = flow.extent
        crossing[first + 1 : last + 1] += flow.nbytes
        within[flow.made + 1 : flow.within + 1] = True
    clean = np.flatnonzero(~within[: positions.count])
    starts = {0, *forced}
    if len(starts.union(clean.tolist())) < least:
        clean = np.arange(positions.count)
    for window in np.array_split(clean, min(len(clean), MOST_BLOCKS)):
        starts.add(int(window[np.argmin(crossing[window])]))
    return NodeBlocks(graph, positions, storage, found, tuple(sorted(starts)))
