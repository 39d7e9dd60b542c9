"""A network as a DAG of parts.

    partition ::= parts, inputs (name: type), outputs (name <- value)
    part      ::= name, stage, graph

Values pass between parts by name. A part's graph has an input for each value that it takes, under the value's name: an
input of the network, or an output of a part before it. Its outputs are the values that it gives, under their names. The
parts of one stage run on one device, where they share variables; every variable belongs to one stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glowtrain.graph import Graph
from glowtrain.memory.budget import UNSAID, Budget
from glowtrain.names import Names
from glowtrain.types import TensorType


@dataclass(frozen=True)
class Part:
    """A subgraph, and the ``stage`` that it is of.

    ``milliseconds``: what it takes, estimated, on the device that the stage is meant for. ``memory``: what is paid for
    less of it where it is compiled.
    """

    name: str
    graph: Graph
    stage: int = 0
    milliseconds: float | None = None
    memory: Budget = UNSAID

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of the values that it needs."""
        return tuple(value.name for value in self.graph.inputs)

    @property
    def gives(self) -> tuple[str, ...]:
        """The names of the values that it makes."""
        return tuple(self.graph.outputs)


@dataclass(frozen=True)
class Partition:
    """Parts, each after those whose values it takes. ``inputs`` are the network's, ``outputs`` say which value each of
    its outputs is."""

    name: str
    parts: tuple[Part, ...]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, str]

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages, in the order of their first parts."""
        return tuple(dict.fromkeys(part.stage for part in self.parts))

    def of_stage(self, stage: int) -> list[Part]:
        """The parts of a stage, in their order."""
        return [part for part in self.parts if part.stage == stage]

    def __str__(self) -> str:
        from glowtrain.runtime.partition.text import to_text  # noqa: PLC0415  (the text is written in terms of these)

        return to_text(self)


def whole(graph: Graph, memory: Budget = UNSAID) -> Partition:
    """A graph as one part, compiled within ``memory``. An output that has the name of an input is a value of another
    name."""
    names = Names((*graph.input_types, *graph.outputs))
    values = {name: names.fresh(name) if name in graph.input_types else name for name in graph.outputs}
    given = {values[name]: value for name, value in graph.outputs.items()}
    own = graph if given.keys() == graph.outputs.keys() else graph.with_(outputs=given)
    return Partition(graph.name, (Part(graph.name, own, memory=memory),), graph.input_types, values)
