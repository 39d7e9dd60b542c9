"""From groups of items to parts: which values pass between them, and under which names.

What the compiler stores when it compiles the whole graph passes as it lies in memory there, its axes in that order.
What it does not store (moves and cheap arithmetic, which readers compute themselves) is computed again from what
passes. So parts have the kernels of the whole, and its bits.

A part that updates a variable comes after all others that read it. Where it takes nothing of one of them, by whatever
way, it takes a value that it does not use, so that whoever runs parts as their values come keeps the order too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from glowtrain.graph import Graph, Input, Node, Value, Variable, rebuild
from glowtrain.names import Names
from glowtrain.ops.tensor.memory_order import inverse
from glowtrain.runtime.partition.grouping import Item, NodeGroup, StageCut, Stages, Update, groups, operands
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.runtime.partition.storage import Layout, Storage, permuted
from glowtrain.types import TensorType

Clock = Callable[[Collection[Node], int], float]
"""The nanoseconds that nodes take on the device of a stage."""


def assembled(graph: Graph, stages: Stages, storage: Storage, clock: Clock) -> Partition:
    """The partition of a graph whose nodes and variables are of these stages."""
    return _Assembling(StageCut(graph, stages, storage), clock).partition()


@dataclass
class _Draft:
    """A part that is being made: the values that it ``takes`` from others and ``gives``, each once, in order, and the
    leaves and values of its own that it ``reads``."""

    group: NodeGroup
    takes: dict[Value, None] = field(default_factory=dict)
    gives: dict[Value, None] = field(default_factory=dict)
    reads: set[Value] = field(default_factory=set)

    @property
    def nodes(self) -> list[Node]:
        """Its nodes, as the whole has them."""
        return [item for item in self.group.items if isinstance(item, Node)]

    @property
    def updates(self) -> dict[Variable, Value]:
        return {item.variable: item.value for item in self.group.items if isinstance(item, Update)}

    @property
    def empty(self) -> bool:
        """Whether nobody needs it: what it computes is computed again by others."""
        return not self.gives and not self.updates


class _Assembling:
    def __init__(self, cut: StageCut, clock: Clock) -> None:
        self.clock = clock
        self.graph, self.stages, self.storage = cut.graph, cut.stages, cut.storage
        self.drafts = [_Draft(group) for group in groups(cut)]
        self.maker = {item: index for index, draft in enumerate(self.drafts) for item in draft.group.items}
        """The part that each item is in."""
        self.names = Names((*self.graph.input_types, *(variable.name for variable in self.graph.variables)))
        self.outputs = frozenset(self.graph.outputs.values())
        self.named: dict[Value, str] = {}

    def partition(self) -> Partition:
        outputs = {name: self._name(value, name) for name, value in self.graph.outputs.items()}
        for value in self.graph.outputs.values():
            self.drafts[self._maker(value)].gives[value] = None
        for index in reversed(range(len(self.drafts))):
            self._fill(index)
        self.drafts = [draft for draft in self.drafts if not draft.empty]
        for index, draft in enumerate(self.drafts):
            for variable in draft.updates:
                self._wait(index, variable)
        return Partition(self.graph.name, tuple(self._parts()), self.graph.input_types, outputs)

    def _maker(self, value: Value) -> int:
        item: Item = value if value.node is None else value.node
        return self.maker[item]

    def _fill(self, index: int) -> None:
        """Find what a part takes and reads, for what it has to give and to update."""
        draft = self.drafts[index]
        waiting = [*draft.gives, *draft.updates.values()]
        while waiting:
            value = waiting.pop()
            if value in draft.reads or value in draft.takes:
                continue
            if self._is_foreign(value, index):
                draft.takes[value] = None
                self.drafts[self._maker(value)].gives[value] = None
            else:
                draft.reads.add(value)
                waiting += () if value.node is None else operands(value.node)

    def _is_foreign(self, value: Value, index: int) -> bool:
        """Whether a part takes a value from another one."""
        if isinstance(value, Variable):
            return self.stages.of_variable[value] != self.drafts[index].group.stage
        return value.node is not None and self._maker(value) != index and not self.storage.is_inlined(value)

    def _wait(self, index: int, variable: Variable) -> None:
        """Let a part that updates a variable wait for the others of its stage that read it."""
        stage = self.drafts[index].group.stage
        for other in reversed(range(index)):
            draft = self.drafts[other]
            if draft.group.stage == stage and variable in draft.reads and other not in self._awaited(index):
                results = [value for node in draft.nodes for value in node.outputs if value in draft.reads]
                token = min(draft.gives or results or [variable], key=lambda value: value.type.nbytes)
                draft.gives[token] = None
                self.drafts[index].takes[token] = None

    def _awaited(self, index: int) -> set[int]:
        """The parts whose values a part takes, and those that these wait for."""
        found: set[int] = set()
        waiting = [index]
        while waiting:
            others = {self._giver(value) for value in self.drafts[waiting.pop()].takes} - found
            found |= others
            waiting += others
        return found

    def _giver(self, value: Value) -> int:
        return next(index for index, draft in enumerate(self.drafts) if value in draft.gives)

    def _parts(self) -> Iterator[Part]:
        stages = [draft.group.stage for draft in self.drafts]
        for index, draft in enumerate(self.drafts):
            stage = draft.group.stage
            name = f"stage{stage}"
            if stages.count(stage) > 1:
                name += f".{stages[:index].count(stage) + 1}"
            graph = self._graph(draft, f"{self.graph.name}.{name}")
            yield Part(name, graph, stage, self.clock(draft.nodes, stage) / 1e6)

    def _graph(self, draft: _Draft, name: str) -> Graph:
        inputs = {value: Input(self._passed(value), self._name(value)) for value in draft.takes}
        taken = {value: permuted(source, inverse(self._order(value))) for value, source in inputs.items()}
        updates = draft.updates
        values = rebuild([*draft.gives, *updates.values()], taken)
        gives = {
            self._name(v): permuted(results, self._order(v)) for v, results in zip(draft.gives, values, strict=False)
        }
        new = dict(zip(updates, values[len(gives) :], strict=True))
        own = tuple(value for value in self.graph.inputs if value in draft.reads)
        return Graph((*own, *inputs.values()), gives, new, name)

    def _passed(self, value: Value) -> TensorType:
        """The type under which a value passes."""
        return value.type.with_shape(tuple(value.shape[axis] for axis in self._order(value)))

    def _order(self, value: Value) -> Layout:
        """The order in which a value's axes pass: an output's is its own."""
        return tuple(range(value.rank)) if value in self.outputs else self.storage.layout(value)

    def _name(self, value: Value, hint: str = "") -> str:
        """The name under which a value passes."""
        if value not in self.named:
            layer = value.node.layer if value.node is not None else ""
            self.named[value] = self.names.fresh(hint or value.name or layer or "value")
        return self.named[value]
