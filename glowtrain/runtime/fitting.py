"""Whether partitions are those of the graphs that a network is to be served by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from glowtrain.errors import PartitionError
from glowtrain.graph import Graph
from glowtrain.presentation.messages import kind_of, listed
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.runtime.partition.verify import verify
from glowtrain.types import TensorType


def check_partitions(graphs: Mapping[int | None, Graph], partitions: Mapping[int | None, Partition]) -> None:
    """Raise :class:`PartitionError` for a partition that is not well formed, that does not take and give what its graph
    does, and for partitions of several sizes that have other stages, or variables in other stages."""
    for size, graph in graphs.items():
        _check(graph, partitions[size])
    first, *others = partitions.values()
    for other in others:
        if set(other.stages) != set(first.stages) or _homes(other) != _homes(first):
            raise PartitionError(
                f"partition {first.name}: all batch sizes are to have the same stages, with the same variables; cut "
                "them like the largest: partitioned(graph, devices, like=...)"
            )


def _check(graph: Graph, partition: object) -> None:
    if not isinstance(partition, Partition) or not all(isinstance(part, Part) for part in partition.parts):
        raise PartitionError(f"a partition of {graph.name} is a Partition of Part objects, not {kind_of(partition)}")
    verify(partition)
    if problems := list(_differences(graph, partition)):
        raise PartitionError(f"partition {partition.name} is not one of {graph.name}:", problems)


def _differences(graph: Graph, partition: Partition) -> Iterator[str]:
    given = {name: value.type for name, value in graph.outputs.items()}
    types = {**partition.inputs, **_made(partition)}
    yield from _differing("takes", graph.input_types, partition.inputs)
    yield from _differing("gives", given, {name: types[value] for name, value in partition.outputs.items()})
    if strange := sorted(_updated(partition) - {variable.name for variable in graph.updates}):
        yield f"it updates {listed(strange)}, which the graph does not"


def _differing(verb: str, wanted: Mapping[str, TensorType], found: Mapping[str, TensorType]) -> Iterator[str]:
    for name in dict.fromkeys((*wanted, *found)):
        if wanted.get(name) != found.get(name):
            yield f"it {verb} {name!r} as {found.get(name, 'nothing')}, and the graph as {wanted.get(name, 'nothing')}"


def _made(partition: Partition) -> dict[str, TensorType]:
    return {name: value.type for part in partition.parts for name, value in part.graph.outputs.items()}


def _updated(partition: Partition) -> set[str]:
    updates = (update for part in partition.parts for update in part.graph.updates.items())
    return {variable.name for variable, value in updates if value is not variable}


def _homes(partition: Partition) -> dict[str, int]:
    """The stage of each variable, by name."""
    return {variable.name: part.stage for part in partition.parts for variable in part.graph.variables}
