"""Partitions in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.messages import LISTED, plural
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.types import TensorType

COLUMNS = "part", "stage", "nodes", "variables", "constants", "takes", "gives", "estimated"


@dataclass(frozen=True)
class Crossing:
    """The values that one part takes of another, the largest first."""

    giver: Part
    taker: Part
    values: dict[str, TensorType]

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(type_.nbytes for type_ in self.values.values())


def crossings(partition: Partition) -> list[Crossing]:
    """What passes between parts."""
    found = []
    for number, taker in enumerate(partition.parts):
        for giver in partition.parts[:number]:
            types = {name: type_ for name, type_ in taker.graph.input_types.items() if name in giver.gives}
            if types:
                order = sorted(types, key=lambda name: (-types[name].nbytes, name))
                found.append(Crossing(giver, taker, {name: types[name] for name in order}))
    return found


def variable_bytes(part: Part) -> int:
    """Those of the variables that a part reads or updates."""
    return sum(variable.type.nbytes for variable in part.graph.variables)


def milliseconds(part: Part) -> str:
    """What a part is estimated to take."""
    return "" if part.milliseconds is None else f"{part.milliseconds:.3f} ms"


def to_text(partition: Partition) -> str:
    """Parts, one to a line, then what passes between them."""
    count = f"{plural(len(partition.stages), 'stage')}, {plural(len(partition.parts), 'part')}"
    lines = [f"partition {partition.name}: {count}", *_columns([COLUMNS, *map(_row, partition.parts)])]
    for crossing in crossings(partition):
        names = f"{crossing.giver.name} -> {crossing.taker.name}"
        lines.append(f"  {names}: {plural(len(crossing.values), 'value')}, {byte_text(crossing.nbytes)}")
        lines += _values(crossing)
    return "\n".join(lines)


def _row(part: Part) -> tuple[str, ...]:
    graph = part.graph
    sizes = (
        variable_bytes(part),
        sum(value.type.nbytes for value in graph.constants),
        sum(value.type.nbytes for value in graph.inputs),
        sum(value.type.nbytes for value in graph.outputs.values()),
    )
    return part.name, str(part.stage), str(len(graph.nodes)), *map(byte_text, sizes), milliseconds(part)


def _values(crossing: Crossing) -> Iterator[str]:
    for name, type_ in list(crossing.values.items())[:LISTED]:
        yield f"    {name} {type_}, {byte_text(type_.nbytes)}"
    if len(crossing.values) > LISTED:
        yield f"    and {len(crossing.values) - LISTED:,} more"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows with their cells below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
