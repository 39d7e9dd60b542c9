"""What a node has to do, for the roofline model: operations, and bytes that come from memory and go there.

Operations are those of the loops that a node is lowered to (:mod:`glowtrain.program.analysis.work_count`), each kind of
node lowered once by itself. Bytes are those of the values that the compiler stores.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from glowtrain.backends.device import DeviceFacts
from glowtrain.errors import PluginError
from glowtrain.graph import Constant, Graph, Input, Node, Operator, Value
from glowtrain.lower.expand import ExpandOperators
from glowtrain.lower.lower import Lower
from glowtrain.program.analysis.work_count import trips_of, work_of
from glowtrain.runtime.partition.storage import Storage


@dataclass(frozen=True)
class NodeWork:
    """Operations, and bytes read and written."""

    operations: int = 0
    bytes: int = 0

    def __add__(self, other: NodeWork) -> NodeWork:
        return NodeWork(self.operations + other.operations, self.bytes + other.bytes)

    def nanoseconds(self, facts: DeviceFacts) -> float:
        """The time that it takes on a device at best: that of the slower of the two."""
        return max(self.operations / facts.operations, self.bytes / facts.bandwidth)


@dataclass
class WorkModel:
    """The work of a graph's nodes."""

    storage: Storage
    _operations: dict[Hashable, int] = field(default_factory=dict)

    def of(self, node: Node) -> NodeWork:
        """A node's work. An operator of another package that has no loops counts as many bytes as its operands."""
        values = {value for value in (*node.inputs, *node.outputs) if value is not None}
        stored = (value.type.nbytes for value in values if not self.storage.is_inlined(value))
        return NodeWork(self._counted(node), sum(stored))

    def _counted(self, node: Node) -> int:
        operands = tuple(None if value is None else (value.type, _array(value)) for value in node.inputs)
        key = (node.operator, operands)
        if key not in self._operations:
            self._operations[key] = _operations(node)
        return self._operations[key]


def _array(value: Value) -> int | None:
    """What tells constants apart, on which work may depend."""
    return id(value.array) if isinstance(value, Constant) else None


def _operations(node: Node) -> int:
    leaves = {
        value: value if isinstance(value, Constant) else Input(value.type, f"x{index}")
        for index, value in enumerate(dict.fromkeys(value for value in node.inputs if value is not None))
    }
    operator: Operator = node.operator
    alone = Node(operator, [None if value is None else leaves[value] for value in node.inputs])
    inputs = tuple(value for value in leaves.values() if isinstance(value, Input))
    graph = Graph(inputs, {f"y{index}": value for index, value in enumerate(alone.outputs)})
    try:
        program = Lower().run(ExpandOperators().run(graph))
    except PluginError:
        return 0
    return sum(work_of(instruction).total * times for instruction, times in trips_of(program))
