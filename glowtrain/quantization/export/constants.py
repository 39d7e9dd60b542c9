"""What is known of a graph before it runs: values that no input reaches, and unique names for all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from glowtrain.errors import QuantizationError
from glowtrain.graph import (
    Constant,
    Graph,
    Node,
    Replacements,
    Value,
    Variable,
    topological,
    translate,
)
from glowtrain.modes.variables import unknown_variables, with_values
from glowtrain.names import Names
from glowtrain.ops.core.evaluate import results_of
from glowtrain.ops.random.philox import Dropout
from glowtrain.types import Array


@dataclass
class Arrays:
    """The elements of constants and variables, and of what is computed from them alone.

    ``state`` holds variables' values by name; the others have their initial ones.
    """

    state: Mapping[str, Array] = field(default_factory=dict)
    memo: dict[Value, Array | None] = field(default_factory=dict)

    def of(self, value: Value) -> Array | None:
        """The elements; ``None`` where they depend on an input or are drawn at random."""
        for node in topological([value], boundary=self.memo.keys()):
            self._compute(node)
        return self._leaf(value) if value.node is None else self.memo[value]

    def required(self, value: Value) -> Array:
        """The elements. Raises :class:`QuantizationError` where they are not known."""
        array = self.of(value)
        if array is None:
            raise QuantizationError(f"{value!r} depends on the model's inputs, so its elements are not known")
        return array

    def _leaf(self, value: Value) -> Array | None:
        if isinstance(value, Constant):
            return value.array
        if not isinstance(value, Variable):
            return None
        array = value.value_in(self.state)
        if not value.type.accepts(array):
            given = f"{array.dtype}{list(array.shape)}"
            raise QuantizationError(f"variable {value.name!r} is {value.type}, but its value is {given}")
        return array

    def _operand(self, value: Value | None) -> Array | None:
        if value is None:
            return None
        return self._leaf(value) if value.node is None else self.memo[value]

    def _compute(self, node: Node) -> None:
        operands = [self._operand(value) for value in node.inputs]
        missing = any(array is None for array, value in zip(operands, node.inputs, strict=True) if value is not None)
        if missing or node.operator.random or node.operator.control:
            self.memo.update(dict.fromkeys(node.outputs))
            return
        self.memo.update(zip(node.outputs, results_of(node.operator, operands), strict=True))


def with_state(graph: Graph, state: Mapping[str, Array]) -> Graph:
    """The graph with variables that begin with the values in ``state``. Raises :class:`QuantizationError` for values
    of another type, or of variables that there are not."""
    if problem := unknown_variables(graph, state):
        raise QuantizationError(f"state is for other variables: {problem}")
    arrays = Arrays(state)
    checked = {variable.name: arrays.required(variable) for variable in graph.variables if variable.name in state}
    return with_values(graph, checked)


def constant_values(graph: Graph) -> set[Value]:
    """The values that no input reaches: parameters, constants, and what is computed from them."""
    found: set[Value] = {value for value in graph.leaves if isinstance(value, (Constant, Variable))}
    for node in graph.nodes:
        if not node.operator.random and all(value is None or value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def named(graph: Graph) -> Graph:
    """A copy in which every value that is computed has a name of its own, the same one for every binding.

    Names that are there stay. Others are those of the layer whose parameters are read, else the operator's. Dropout
    changes none of the others' names.
    """
    fresh = Names((value.name for value in (*graph.inputs, *graph.variables)), separator=".")
    results = ((_before_dropout(value), name) for name, value in graph.outputs.items())
    said = {value: name for value, name in results if value.node is not None}

    def rename(node: Node, replacements: Replacements) -> tuple[Value, ...]:
        copy = replacements.copied(node)
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name = fresh.fresh(said.get(old) or old.name or node.name or _layer(node) or node.operator.onnx)
        return copy.outputs

    return translate(graph, rename)


def _before_dropout(value: Value) -> Value:
    while value.node is not None and isinstance(value.node.operator, Dropout) and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    return value


def _layer(node: Node) -> str:
    """The name that a layer's parameters begin with: ``stage1.conv`` for ``stage1.conv.weight``."""
    return next((v.name.rpartition(".")[0] for v in node.inputs if isinstance(v, Variable)), "")


def only_reader(graph: Graph, value: Value) -> Node | None:
    """The node that alone reads a value which is no result of the graph; ``None`` if there are others."""
    readers = graph.users.get(value, ())
    if len(readers) != 1 or value in graph.roots or sum(operand is value for operand in readers[0].inputs) != 1:
        return None
    return readers[0]
