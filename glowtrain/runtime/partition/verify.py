"""The verifier of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from glowtrain.errors import GraphError, PartitionError
from glowtrain.graph import verify as verify_graph
from glowtrain.presentation.messages import listed
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.types import TensorType


def verify(partition: Partition) -> None:
    """Check every invariant of a partition and raise :class:`PartitionError` with all that are broken.

    - There are parts; their names are all different, their stages counted from 0, their graphs well formed.
    - Each value is an input of the network or is given by one part; no two have the same name.
    - Every part comes after those whose values it takes, so parts do not wait for each other.
    - A value is taken in the type in which it is given, an input of the network in its own.
    - Every variable belongs to one stage, has one type there, and is updated by one part at most.
    - The part that updates a variable comes after all others that read it, and waits for them by values that it takes.
    - Every output of the network is a value.
    """
    problems = [*_parts(partition), *_values(partition), *_variables(partition), *_outputs(partition)]
    if problems:
        raise PartitionError(f"partition {partition.name} is not well formed:", problems)


def _parts(partition: Partition) -> Iterator[str]:
    if not partition.parts:
        yield "it has no parts"
    for name, count in Counter(part.name for part in partition.parts).items():
        if count > 1:
            yield f"{count} parts are called {name!r}"
    for part in partition.parts:
        stage: object = part.stage  # whatever somebody wrote by hand
        if not isinstance(stage, int) or stage < 0:
            yield f"part {part.name} is of stage {stage!r}; stages are counted from 0"
        try:
            verify_graph(part.graph)
        except GraphError as error:
            yield f"part {part.name}: {error}"


def _values(partition: Partition) -> Iterator[str]:
    known: dict[str, TensorType] = dict(partition.inputs)
    makers = dict.fromkeys(known, "an input of the network")
    for part in partition.parts:
        for name, type_ in part.graph.input_types.items():
            if name not in known:
                yield f"part {part.name} takes {name!r}, which {_origin(name, part, partition)}"
            elif known[name] != type_:
                yield f"part {part.name} takes {name!r} as {type_}, but {makers[name]} is {known[name]}"
        for name, value in part.graph.outputs.items():
            if name in known:
                yield f"part {part.name} gives {name!r}, which is {makers[name]} already"
            known[name], makers[name] = value.type, f"what part {part.name} gives"


def _origin(name: str, part: Part, partition: Partition) -> str:
    """Where a value comes from that is not there when a part needs it."""
    if name in part.gives:
        return "it gives itself"
    givers = [other.name for other in partition.parts if name in other.gives]
    return f"part {givers[0]} gives after it" if givers else "nothing gives"


def _variables(partition: Partition) -> Iterator[str]:
    homes: dict[str, Part] = {}
    for part in partition.parts:
        for variable in part.graph.variables:
            home = homes.setdefault(variable.name, part)
            if home.stage != part.stage:
                yield f"variable {variable.name!r} is of stage {home.stage} and of stage {part.stage}"
            elif home.graph.variable(variable.name).type != variable.type:
                yield f"variable {variable.name!r} has one type in part {home.name} and another in part {part.name}"
    for name in homes:
        yield from _updated(name, partition)


def _updated(name: str, partition: Partition) -> Iterator[str]:
    numbers = range(len(partition.parts))
    updating = [k for k in numbers if any(v.name == name for v in partition.parts[k].graph.updates)]
    if len(updating) > 1:
        yield f"variable {name!r} is updated by {listed([partition.parts[k].name for k in updating])}"
    for number in updating[:1]:
        awaited = _awaited(number, partition)
        for other in numbers:
            part = partition.parts[other]
            if other != number and any(v.name == name for v in part.graph.variables) and other not in awaited:
                yield (
                    f"part {part.name} reads variable {name!r}, which part {partition.parts[number].name} updates "
                    "without waiting for it"
                )


def _awaited(number: int, partition: Partition) -> set[int]:
    """The parts before a part whose values it needs, and those that these need."""
    wanted, found = set(partition.parts[number].takes), set[int]()
    for other in reversed(range(number)):
        part = partition.parts[other]
        if wanted & set(part.gives):
            found.add(other)
            wanted |= set(part.takes)
    return found


def _outputs(partition: Partition) -> Iterator[str]:
    given = {name for part in partition.parts for name in part.gives} | set(partition.inputs)
    for name, value in partition.outputs.items():
        if value not in given:
            yield f"output {name!r} is {value!r}, which nothing gives"
