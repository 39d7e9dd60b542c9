"""From the stage of each node to groups of nodes that can run as parts: one after the other, no two of which wait for
each other.

    items ::= nodes, updates, and leaves that are given away (a variable to another stage, an output that is an input)

An item's level is the number of times that its operands have come from another stage on the longest way to it; items of
one level and one stage are a group. Groups of a stage are merged then where nothing between them runs elsewhere: a
stage that only passes values on has one part, one of a training step two (forward, backward) and the last stage one,
where forward turns into backward.

Every update reads the values from before the step: it waits for all of its stage that reads the variable.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from glowtrain.graph import Graph, Node, Value, Variable, topological
from glowtrain.runtime.partition.storage import Storage


@dataclass(frozen=True)
class Update:
    """A variable and its new value."""

    variable: Variable
    value: Value


Item = Node | Value | Update
"""A node, a leaf that is given away, or an update."""


@dataclass(frozen=True)
class Stages:
    """The stage of every node and every variable."""

    of_node: Mapping[Node, int]
    of_variable: Mapping[Variable, int]

    def of(self, item: Item) -> int:
        """An item's; inputs and constants are given by the first stage."""
        if isinstance(item, Node):
            return self.of_node[item]
        if isinstance(item, Update):
            return self.of_variable[item.variable]
        return self.of_variable[item] if isinstance(item, Variable) else min(self.of_node.values(), default=0)

    def away(self, item: Item, value: Value) -> bool:
        """Whether an operand of an item is a variable of another stage."""
        return isinstance(value, Variable) and self.of_variable[value] != self.of(item)


def operands(item: Item) -> Iterator[Value]:
    """The values that a node or an update reads."""
    if isinstance(item, Node):
        yield from (value for value in item.inputs if value is not None)
    elif isinstance(item, Update):
        yield item.value


@dataclass(frozen=True)
class StageCut:
    """A graph to be cut: its ``items``, each after those that it reads."""

    graph: Graph
    stages: Stages
    storage: Storage

    @cached_property
    def items(self) -> list[Item]:
        work: list[Item] = [
            *self.graph.nodes,
            *(Update(variable, value) for variable, value in self.graph.updates.items()),
        ]
        away = (value for item in work for value in self.sources(item) if self.stages.away(item, value))
        outputs = (value for value in self.graph.outputs.values() if value.node is None)
        return [*dict.fromkeys((*away, *outputs)), *work]

    def sources(self, item: Item) -> list[Value]:
        """What an item is computed from, where all that is inlined is computed again: stored values and leaves."""
        return list(dict.fromkeys(source for value in operands(item) for source in self._stored[value]))

    @cached_property
    def _stored(self) -> dict[Value, tuple[Value, ...]]:
        found: dict[Value, tuple[Value, ...]] = {value: (value,) for value in self.graph.leaves}
        for node in self.graph.nodes:
            below = dict.fromkeys(source for value in operands(node) for source in found[value])
            for output in node.outputs:
                found[output] = tuple(below) if self.storage.is_inlined(output) else (output,)
        return found

    @cached_property
    def before(self) -> dict[Item, list[Item]]:
        """What has to run before each item, or with it."""
        found: dict[Item, list[Item]] = {}
        readers: dict[Value, list[Item]] = {}
        for item in self.items:
            sources = self.sources(item)
            near = [v for v in operands(item) if v.node is not None and not _hop(v.node, item, self.stages)]
            away = [value for value in sources if value.node is None and self.stages.away(item, value)]
            found[item] = [*(value.node for value in (*sources, *near) if value.node is not None), *away]
            for value in sources:
                if isinstance(value, Variable) and value not in away and not isinstance(item, Update):
                    readers.setdefault(value, []).append(item)
        for item in self.items:
            if isinstance(item, Update):
                found[item] += readers.get(item.variable, [])
                found[item] += [item.variable] if item.variable in found else []
        return found


@dataclass(frozen=True)
class NodeGroup:
    """Items of one stage that run together."""

    stage: int
    items: tuple[Item, ...]


def groups(cut: StageCut) -> list[NodeGroup]:
    """The groups, each after those that it waits for."""
    items, before, stages = cut.items, cut.before, cut.stages
    levels = _levels(items, before, stages, set(topological(cut.graph.outputs.values())))
    keys = sorted({(levels[item], stages.of(item)) for item in items})
    number = {key: index for index, key in enumerate(keys)}
    first = {item: number[levels[item], stages.of(item)] for item in items}
    merging = _Merging([stage for _, stage in keys])
    for item in items:
        for other in before[item]:
            merging.connect(first[other], first[item])
    merging.run()
    members: dict[int, list[Item]] = {}
    for item in items:
        members.setdefault(merging.home(first[item]), []).append(item)
    return [NodeGroup(merging.stages[index], tuple(members[index])) for index in merging.order()]


def _levels(
    items: Sequence[Item], before: Mapping[Item, Sequence[Item]], stages: Stages, forward: Collection[Item]
) -> dict[Item, int]:
    """The level of each item. What outputs do not need is as late as what reads it allows: a gradient's first steps
    run beside the others, so that little passes from the forward part of a stage to its backward part."""
    levels: dict[Item, int] = {}
    for item in items:
        levels[item] = max((levels[other] + _hop(other, item, stages) for other in before[item]), default=0)
    latest = dict.fromkeys(items, sys.maxsize)
    for item in reversed(items):
        if item not in forward and not isinstance(item, Update) and latest[item] != sys.maxsize:
            levels[item] = latest[item]
        for other in before[item]:
            latest[other] = min(latest[other], levels[item] - _hop(other, item, stages))
    return levels


def _hop(first: Item, second: Item, stages: Stages) -> bool:
    return stages.of(first) != stages.of(second)


@dataclass
class _Merging:
    """Groups by number, with the ``stages`` that they are of, and which wait for which."""

    stages: list[int]
    after: dict[int, set[int]] = field(default_factory=dict)
    """The groups that wait for a group."""
    merged: dict[int, int] = field(default_factory=dict)
    """The group that another one has become a part of."""

    def __post_init__(self) -> None:
        self.after = {index: set() for index in range(len(self.stages))}

    def connect(self, first: int, second: int) -> None:
        """Let a group wait for another one."""
        if first != second:
            self.after[first].add(second)

    def home(self, index: int) -> int:
        """The group that a group is in now."""
        while index in self.merged:
            index = self.merged[index]
        return index

    def run(self) -> None:
        """Merge until no two groups of a stage can be."""
        while (pair := self._pair()) is not None:
            self._merge(*pair)

    def _pair(self) -> tuple[int, int] | None:
        same = ((a, b) for a, b in combinations(self.after, 2) if self.stages[a] == self.stages[b])
        return next(((a, b) for a, b in same if not self._between(a, b) and not self._between(b, a)), None)

    def _between(self, first: int, second: int) -> bool:
        """Whether a group waits for the first and is waited for by the second."""
        return any(second in self._reached([other]) for other in self.after[first] if other != second)

    def _reached(self, start: Iterable[int]) -> set[int]:
        found: set[int] = set()
        waiting = list(start)
        while waiting:
            index = waiting.pop()
            if index not in found:
                found.add(index)
                waiting += self.after[index]
        return found

    def _merge(self, a: int, b: int) -> None:
        self.merged[b] = a
        self.after[a] = (self.after[a] | self.after.pop(b)) - {a, b}
        for index, others in self.after.items():
            if b in others:
                self.after[index] = (others - {b} | {a}) - {index}

    def order(self) -> list[int]:
        """The groups, each after those that it waits for; otherwise as they were numbered."""
        return ordered(list(self.after), self.after)


def ordered(numbers: Sequence[int], after: Mapping[int, Iterable[int]]) -> list[int]:
    """Numbers so that each comes before those that wait for it; otherwise as they are."""
    left, found = list(numbers), list[int]()
    while left:
        blocked = {other for index in left for other in after[index]}
        free = next(index for index in left if index not in blocked)
        left.remove(free)
        found.append(free)
    return found
