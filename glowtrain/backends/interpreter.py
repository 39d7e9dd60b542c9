"""The interpreter: every node's NumPy reference, one after another, in any float dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from glowtrain.backends.base import Backend, Executable, Instance, State
from glowtrain.graph import Constant, Graph, Node, Value, Variable
from glowtrain.program.memory.plan import Plan
from glowtrain.types import Array


class Interpreter(Backend):
    """NumPy, one operator after another; nothing is compiled."""

    name = "interpreter"

    def compile(self, graph: Graph, plan: Callable[[], Plan]) -> Executable:
        return InterpretedGraph(graph)


class InterpretedGraph(Executable):
    """The graph itself."""

    def bind(self, state: State) -> Instance:
        return InterpretedInstance(self.graph, state)


class InterpretedInstance(Instance):
    """A graph and the state that it reads and updates."""

    def __init__(self, graph: Graph, state: State) -> None:
        self.graph = graph
        self.state = state

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        present = {variable.name: self.state.read(variable.name) for variable in self.graph.variables}
        known = evaluate(self.graph, inputs, present)
        for variable, value in self.graph.updates.items():
            self.state.write(variable.name, known[value])
        return {name: known[value] for name, value in self.graph.outputs.items()}


def evaluate(graph: Graph, inputs: Mapping[str, Array], state: Mapping[str, Array] | None = None) -> dict[Value, Array]:
    """Every value of the graph, for inputs by name and variables by name (their initial values where ``state`` has
    none).
    """
    known: dict[Value, Array] = {value: inputs[value.name] for value in graph.inputs}
    for leaf in graph.leaves:
        if isinstance(leaf, Constant):
            known[leaf] = leaf.array
        elif isinstance(leaf, Variable):
            known[leaf] = (state or {}).get(leaf.name, leaf.initial)
    run_nodes(graph.nodes, known)
    return known


def run_nodes(nodes: Iterable[Node], known: dict[Value, Array]) -> None:
    """Add the outputs of nodes, which are in order. Floating-point warnings are off: infinities and NaN are data."""
    with np.errstate(all="ignore"):
        for node in nodes:
            operands: list[Any] = [None if value is None else known[value] for value in node.inputs]
            results = node.operator.reference(*operands)
            arrays = results if isinstance(results, tuple) else (results,)
            known.update(zip(node.outputs, map(np.asarray, arrays), strict=True))


def run_node(node: Node, known: Mapping[Value, Array]) -> tuple[Array, ...]:
    """The node's outputs."""
    found = {value: known[value] for value in node.inputs if value is not None}
    run_nodes([node], found)
    return tuple(found[output] for output in node.outputs)
