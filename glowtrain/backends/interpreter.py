"""The interpreter: every node's NumPy reference, one after another, in any float dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.backends.base import Artifact, Backend, Compile, Executable, Instance
from glowtrain.backends.container import pack, unpack
from glowtrain.backends.state import State
from glowtrain.errors import ArtifactError
from glowtrain.graph import Constant, Graph, Value, Variable, arrays_of, parse, to_text
from glowtrain.ops.core.evaluate import run_nodes
from glowtrain.stages import Options, Stage
from glowtrain.types import Array


class Interpreter(Backend):
    """NumPy, one operator after another; nothing is compiled."""

    name = "interpreter"

    def stages(self, walk: Sequence[Stage]) -> tuple[Stage, ...]:
        """Only what may change results: the arithmetic of quantized values, and rounded factors."""
        own = (stage for stage in walk if stage.name in ("integers", "rounded"))
        return (*own, Stage("compiled", "the graph as it is", lambda o: Compile(self, o)))

    def compile(self, subject: Graph, options: Options) -> GraphArtifact:
        return GraphArtifact(subject)

    def read(self, data: bytes) -> GraphArtifact:
        return GraphArtifact.from_bytes(data)

    def load(self, artifact: Artifact) -> InterpretedGraph:
        if not isinstance(artifact, GraphArtifact):
            raise ArtifactError(f"backend interpreter loads what it compiled, not {type(artifact).__name__}")
        return InterpretedGraph(artifact.graph)


@dataclass(frozen=True)
class GraphArtifact(Artifact):
    """The graph itself."""

    graph: Graph

    def to_bytes(self) -> bytes:
        return pack("interpreter", arrays_of(self.graph), {"graph": to_text(self.graph)})

    @classmethod
    def from_bytes(cls, data: bytes) -> GraphArtifact:
        """Read :meth:`to_bytes`. Raises :class:`ArtifactError` for anything else."""
        arrays, facts = unpack("interpreter", data)
        return cls(parse(facts["graph"], arrays))

    def __str__(self) -> str:
        return to_text(self.graph)


class InterpretedGraph(Executable):
    """The graph itself."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def bind(self, state: State) -> InterpretedInstance:
        return InterpretedInstance(self.graph, state)


class InterpretedInstance(Instance):
    """A graph and the state that it reads and updates."""

    def __init__(self, graph: Graph, state: State) -> None:
        self.graph = graph
        self.state = state

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        present = {variable.name: self.state.read(variable.name) for variable in self.graph.variables}
        environment = evaluate(self.graph, inputs, present)
        for variable, value in self.graph.updates.items():
            self.state.write(variable.name, environment[value])
        # a value may be an input, a constant or a view of one: whoever called may write to the outputs
        return {name: np.array(environment[value], order="C") for name, value in self.graph.outputs.items()}


def evaluate(graph: Graph, inputs: Mapping[str, Array], state: Mapping[str, Array] | None = None) -> dict[Value, Array]:
    """Every value of the graph, for inputs by name and variables by name (their initial values where ``state`` has
    none).
    """
    environment: dict[Value, Array] = {value: inputs[value.name] for value in graph.inputs}
    for leaf in graph.leaves:
        if isinstance(leaf, Constant):
            environment[leaf] = leaf.array
        elif isinstance(leaf, Variable):
            environment[leaf] = leaf.value_in(state or {})
    run_nodes(graph.nodes, environment)
    return environment
