"""The partitioner: cuts a graph into stages for several devices.

graph --prepare--> graph and storage --positions, blocks--> ranges of stages --assemble--> parts
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain.backends.device import Device
from glowtrain.compiler.walk import WALK, arrive
from glowtrain.errors import PartitionError
from glowtrain.graph import Graph, Node, Variable, no_graph
from glowtrain.memory.byte_size import byte_text
from glowtrain.ops.tensor.memory_order import MemoryOrder
from glowtrain.presentation.messages import kind_of, plural
from glowtrain.runtime.partition.annotations import begun_at, stages_of
from glowtrain.runtime.partition.assembling import assembled
from glowtrain.runtime.partition.blocks import NodeBlocks, in_blocks
from glowtrain.runtime.partition.cutting import ChosenCuts, balanced, least_largest
from glowtrain.runtime.partition.grouping import Stages
from glowtrain.runtime.partition.needs import stage_needs
from glowtrain.runtime.partition.partition import Partition, whole
from glowtrain.runtime.partition.positions import Positions, positions
from glowtrain.runtime.partition.storage import Storage, storage
from glowtrain.runtime.partition.verify import verify
from glowtrain.stages import Options, Stage
from glowtrain.types import Array

GRAPH_STAGES = ("integers", "rounded", "expanded", "optimized")
"""The stages whose results are graphs: what they make is cut, as far as all devices' backends have them, so that none
of them finds less in a part than in the whole."""
ROUNDS = 6
"""Times that stages are chosen anew at most, after one took more memory than was estimated."""

NEARLY_NONE = 1e-9
"""Bytes, for a device that has none: what takes any takes a large part of them."""


def partitioned(
    graph: Graph,
    devices: Sequence[Device],
    *,
    count: int | None = None,
    cuts: Sequence[str] = (),
    stages: Mapping[str, int] | None = None,
    like: Partition | None = None,
) -> Partition:
    """Cut a graph into stages, of which stage k is for device k: at most as many as there are devices.

    Stages follow one another on the way from the inputs to the outputs; of a training step, forward, backward and
    updates of a layer are of one stage. Each fits into its device's memory and has operators only that it supports. Of
    such ways to cut, the one whose slowest stage is the fastest is taken, or one that is nearly as fast with the fewest
    bytes between stages.

    ``count``: just so many stages. ``cuts``: names of layers or values at which stages begin, and only there unless
    ``count`` is higher. ``stages``: the stage of each layer, by patterns of names. ``like``: a partition of the same
    network for another batch size; variables are of the same stages. Raises :class:`PartitionError` where there is no
    such way, and says what is in the way.
    """
    if not isinstance(graph, Graph):
        raise PartitionError(f"partitioned takes a graph, {no_graph(graph)}")
    _check_devices(devices, count, cuts)
    _check_said(stages, like)
    if not graph.nodes:
        return whole(graph)
    prepared = _prepared(graph, devices)
    _check_support(prepared, devices)
    count = len(cuts) + 1 if cuts and count is None else count
    if count is None and like is not None and sorted(like.stages) == list(range(len(like.stages))):
        count = len(like.stages)
    chosen = _Partitioner(graph, prepared, devices[:count], count is not None, cuts, stages or {}, _homes(like))
    found = chosen.partition()
    verify(found)
    return found


def _homes(like: Partition | None) -> dict[str, int]:
    """The stage of each variable of a partition, by name."""
    parts = () if like is None else like.parts
    return {variable.name: part.stage for part in parts for variable in part.graph.variables}


def _check_devices(devices: Any, count: Any, cuts: Any) -> None:
    if isinstance(cuts, str):
        raise PartitionError(f"cuts are a list of names, not {cuts!r}: write [{cuts!r}]")
    if not isinstance(cuts, Sequence) or not all(isinstance(name, str) for name in cuts):
        raise PartitionError(f"cuts are a list of names, not {kind_of(cuts)}")
    if not isinstance(devices, Sequence):
        raise PartitionError(f"partitioned takes a list of devices, not {kind_of(devices)}")
    if not devices:
        raise PartitionError("partitioned takes one device or more, not none")
    for device in devices:
        _check_device(device)
    if count is not None and type(count) is not int:
        raise PartitionError(f"count is a whole number of stages, not {kind_of(count)}")
    if count is not None and not 1 <= count <= len(devices):
        raise PartitionError(f"{count} stages do not go on {plural(len(devices), 'device')}: a stage needs one each")
    if len(cuts) >= (count or len(devices)):
        raise PartitionError(
            f"{plural(len(cuts), 'cut')} make {len(cuts) + 1} stages, and there are {count or len(devices)}"
        )


def _check_said(stages: object, like: object) -> None:
    if like is not None and not isinstance(like, Partition):
        raise PartitionError(f"like is a Partition, not {kind_of(like)}")
    if stages is not None and not isinstance(stages, Mapping):
        raise PartitionError(f"stages are a dict from names of layers to stages, not {kind_of(stages)}")
    for name, stage in (stages or {}).items():
        if not isinstance(name, str) or type(stage) is not int:
            raise PartitionError(f"stages: {name!r} is given {stage!r}, which is no stage; stages are counted from 0")


def _check_device(device: object) -> None:
    if not isinstance(device, Device):
        raise PartitionError(f"partitioned takes a list of devices, not {kind_of(device)}")


def _prepared(graph: Graph, devices: Sequence[Device]) -> Graph:
    """The graph after all stages with graphs as results that the devices have in common. Variables that nothing needs
    any more stay as they are."""
    first, *others = (_stages(device) for device in devices)
    common = set(GRAPH_STAGES).intersection(*({stage.name for stage in walk} for walk in others))
    result: Graph = arrive(graph, _options(devices), [stage for stage in first if stage.name in common])
    kept: dict[Variable, Variable] = {v: v for v in graph.variables if v not in result.variables}
    return result.with_(updates={**result.updates, **kept}) if kept else result


def _stages(device: Device) -> tuple[Stage, ...]:
    return device.backend.stages(WALK)


def _options(devices: Sequence[Device]) -> Options:
    return Options(facts=devices[0].backend.facts)


def _check_support(graph: Graph, devices: Sequence[Device]) -> None:
    """Raise :class:`PartitionError` for operators that no device supports."""
    operators = {str(node.operator): node.operator for node in graph.nodes}
    lacking = [text for text, operator in operators.items() if not any(d.supports(operator) for d in devices)]
    if lacking:
        kinds = {operator.key(): operator for operator in operators.values()}
        supported = [
            f"{device.name}: {', '.join(key for key, operator in kinds.items() if device.supports(operator)) or 'none'}"
            for device in devices
        ]
        raise PartitionError(
            f"{graph.name}: no device supports {', '.join(lacking)}; its operators are supported by", supported
        )


@dataclass(frozen=True)
class _Partitioner:
    """``graph`` as it was given and ``prepared``; ``every`` device is to have a stage."""

    graph: Graph
    prepared: Graph
    devices: Sequence[Device]
    every: bool
    cuts: Sequence[str]
    stages: Mapping[str, int]
    homes: Mapping[str, int]
    """The stages of variables that have one already."""

    def partition(self) -> Partition:
        """The partition, by the memory that is estimated; where plans say that more is needed, with more of it."""
        if self.every and self.blocks.count < len(self.devices):
            raise PartitionError(
                f"{self.graph.name} can be cut into {plural(self.blocks.count, 'stage')} at most, not into "
                f"{len(self.devices)}"
            )
        scale = 1.0
        for _ in range(ROUNDS):
            choice = self._choice(scale)
            if choice is None:
                return self._tightest()
            found = self._built(choice)
            excess = self._excess(found)
            if excess <= 1.0:
                return found
            scale *= excess
        return self._tightest()

    @cached_property
    def positions(self) -> Positions:
        return positions(self.prepared)

    @cached_property
    def storage(self) -> Storage:
        """How the whole is stored, where all devices' backends lower graphs alike."""
        if not all(any(stage.name == "plan" for stage in _stages(device)) for device in self.devices):
            return Storage()
        found = storage(self.prepared, _stages(self.devices[0]), _options(self.devices))
        moves = all(device.supports(MemoryOrder((1, 0))) for device in self.devices)
        return found if moves else replace(found, layouts={})

    @cached_property
    def begun(self) -> list[int]:
        """Positions at which stages have to begin."""
        return begun_at(self.cuts, self.positions)

    @cached_property
    def stated_stages(self) -> dict[int, int]:
        """The stage of positions, where it was said."""
        found = stages_of(self.stages, self.homes, self.positions)
        if found and max(found.values()) >= len(self.devices):
            raise PartitionError(
                f"stages: there is no stage {max(found.values())} on {plural(len(self.devices), 'device')}"
            )
        return found

    @cached_property
    def blocks(self) -> NodeBlocks:
        forward = self.positions.forward
        able = [tuple(device.supports(node.operator) for device in self.devices) for node in forward]
        changes = {position for position in range(1, len(able)) if able[position] != able[position - 1]}
        sides = {position for before in self.stated_stages for position in (before, before + 1)}
        ends = {
            position for position in sides if self.stated_stages.get(position) != self.stated_stages.get(position - 1)
        } - {len(forward)}
        least = len(self.devices) if self.every else 1
        return in_blocks(self.prepared, self.positions, self.storage, {*self.begun, *changes, *ends}, least)

    @cached_property
    def possible(self) -> list[Array]:
        """Which ranges of blocks each device may have, whatever they take."""
        blocks = self.blocks
        first, behind = np.indices((blocks.count + 1, blocks.count + 1))
        uncut = np.ones_like(first, bool)
        for position in self.begun:
            at = blocks.of(position)
            uncut &= ~((first < at) & (at < behind))
        found = []
        for stage, device in enumerate(self.devices):
            own = uncut & (blocks.unsupported(device) == 0)
            for position, other in self.stated_stages.items():
                if other != stage:
                    at = blocks.of(position)
                    own &= ~((first <= at) & (at < behind))
            found.append(own)
        return found

    @cached_property
    def times(self) -> list[Array]:
        """Nanoseconds of ranges on each device."""
        return [self.blocks.time(device.facts) for device in self.devices]

    @cached_property
    def shares(self) -> list[Array]:
        """The part of each device's memory that ranges are estimated to take; 0 where it has no limit."""
        limits = [device.facts.memory for device in self.devices]
        return [
            np.zeros_like(self.blocks.memory) if limit is None else self.blocks.memory / (limit or NEARLY_NONE)
            for limit in limits
        ]

    def _choice(self, scale: float) -> ChosenCuts | None:
        """The fastest ranges, if memory is ``scale`` times what is estimated."""
        costs = [
            np.where(own & (share * scale <= 1.0), time, np.inf)
            for own, share, time in zip(self.possible, self.shares, self.times, strict=True)
        ]
        return balanced(costs, self.blocks.bytes_in, every=self.every)

    def _tightest(self) -> Partition:
        """The ranges that take the least share of memory. Raises :class:`PartitionError` if they do not fit."""
        costs = [np.where(own, share, np.inf) for own, share in zip(self.possible, self.shares, strict=True)]
        choice = least_largest(costs, every=self.every)
        if choice is None:
            raise PartitionError(self._unsupported())
        found = self._built(choice)
        if self._excess(found) > 1.0:
            raise PartitionError(f"{self.graph.name} does not fit into the memory of its devices:", self._needed(found))
        return found

    def _unsupported(self) -> str:
        said = ", as cuts=, stages= and like= say" if self.stated_stages or self.begun else ""
        names = ", ".join(device.name for device in self.devices)
        return (
            f"{self.graph.name} cannot be cut into stages on {names}, in this order{said}, so that each has only "
            "operators that its device supports"
        )

    def _needed(self, found: Partition) -> list[str]:
        """What the stages take, and what there is."""
        lines = []
        for stage in found.stages:
            device = self.devices[stage]
            limit, needs = device.facts.memory, stage_needs(found, stage, device)
            has = "no limit" if limit is None else f"{byte_text(limit)}"
            lines.append(f"stage {stage} takes {byte_text(needs)} ({needs:,} bytes) at least; {device.name} has {has}")
        return lines

    def _excess(self, found: Partition) -> float:
        """The largest share of its memory that a stage takes by its plans; 0 where there is no limit."""
        shares = [0.0]
        for stage in found.stages:
            limit = self.devices[stage].facts.memory
            if limit is not None:
                shares.append(stage_needs(found, stage, self.devices[stage]) / (limit or NEARLY_NONE))
        return max(shares)

    def _built(self, choice: ChosenCuts) -> Partition:
        """The partition of these ranges, each part with its time."""
        starts = [self.blocks.starts[first] if first < behind else None for first, behind in choice.ranges]
        begun = [(start, stage) for stage, start in enumerate(starts) if start is not None]
        stage_at = np.zeros(self.positions.count, int)
        for start, stage in begun:
            stage_at[start:] = stage
        stages = Stages(
            {node: int(stage_at[position]) for node, position in self.positions.of_node.items()},
            {variable: int(stage_at[position]) for variable, position in self.positions.of_variable.items()},
        )
        return assembled(self.prepared, stages, self.storage, self._nanoseconds)

    def _nanoseconds(self, nodes: Collection[Node], stage: int) -> float:
        """What nodes take on the device of a stage."""
        facts = self.devices[stage].facts
        return facts.launch + sum(self.blocks.work[node].nanoseconds(facts) for node in nodes)
