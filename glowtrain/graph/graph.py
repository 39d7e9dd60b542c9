"""The graph: inputs, outputs, and updates of the state.

    graph  ::= inputs, outputs (name -> value), updates (variable <- value)

A graph is immutable. Its nodes are what outputs and updates reach, in a deterministic order in which every node comes
after its operands. Every update reads the variables' values from before the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from glowtrain.errors import GraphError
from glowtrain.graph.interface import interface
from glowtrain.graph.operator import Operator, field_names
from glowtrain.graph.specialise.binding import Binding, Result, Trimmed, parts_of
from glowtrain.graph.specialise.index_ranges import IndexedInput, IndexUse, index_uses
from glowtrain.graph.traversal import topological
from glowtrain.graph.value import Constant, Input, Node, Value, Variable
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table
from glowtrain.types import Array, LazyArray, TensorType

if TYPE_CHECKING:
    from glowtrain.graph.specialise.template import Template


@dataclass(frozen=True, eq=False)
class Graph(Displayable):
    """An immutable typed graph; see the module's docstring.

    ``template`` and ``binding`` record what the graph was specialised from, so that other bindings can be made.
    ``results`` says how outputs make up what a call returns, where that is more than one tensor for each name.
    """

    inputs: tuple[Input, ...]
    outputs: dict[str, Value]
    updates: dict[Variable, Value] = field(default_factory=dict)
    name: str = "graph"
    template: Template | None = None
    binding: Binding = field(default_factory=Binding)
    results: dict[str, Result] | None = None

    @property
    def dims(self) -> dict[str, int]:
        """The extents of the template's symbolic dimensions."""
        return dict(self.binding.dims)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, operands first."""
        return tuple(topological(self.roots))

    @cached_property
    def leaves(self) -> tuple[Value, ...]:
        """Inputs, constants and variables that are used, each once, in order of first use."""
        operands = (value for node in self.nodes for value in node.inputs if value is not None)
        found = dict.fromkeys(value for value in (*operands, *self.roots, *self.updates) if value.node is None)
        return tuple(found)

    @property
    def roots(self) -> tuple[Value, ...]:
        """What the graph computes: outputs, then updates."""
        return (*self.outputs.values(), *self.updates.values())

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """The state that is read or updated."""
        return tuple(value for value in self.leaves if isinstance(value, Variable))

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        return tuple(value for value in self.leaves if isinstance(value, Constant))

    @cached_property
    def key(self) -> str:
        """Equal for graphs that compute the same in the same way, whatever their nodes and inner values are called."""
        from glowtrain.graph.digest import structural_key  # noqa: PLC0415  (it is written in terms of graphs)

        return structural_key(self)

    @cached_property
    def positional_key(self) -> str:
        """Equal for graphs that compute the same, inputs and outputs in the same order, whatever they are called."""
        from glowtrain.graph.digest import positional_key  # noqa: PLC0415  (it is written in terms of graphs)

        return positional_key(self)

    @property
    def trimmed(self) -> dict[str, Trimmed]:
        """The outputs whose size is found at run time, by name."""
        parts = parts_of((self.results or {}).values())
        return {part.output: part for part in parts if isinstance(part, Trimmed)}

    @cached_property
    def users(self) -> dict[Value, tuple[Node, ...]]:
        """The nodes that read each value."""
        found: dict[Value, dict[Node, None]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value is not None:
                    found.setdefault(value, {})[node] = None
        return {value: tuple(nodes) for value, nodes in found.items()}

    @cached_property
    def input_types(self) -> dict[str, TensorType]:
        """The types of the inputs, by name."""
        return {value.name: value.type for value in self.inputs}

    @cached_property
    def output_types(self) -> dict[str, TensorType]:
        """The types of the outputs, by name."""
        return {name: value.type for name, value in self.outputs.items()}

    @cached_property
    def index_uses(self) -> tuple[IndexUse, ...]:
        """The inputs whose elements index other tensors."""
        return tuple(index_uses(self))

    @cached_property
    def indexed_inputs(self) -> tuple[IndexedInput, ...]:
        """The same without the nodes."""
        return tuple(use.indexed for use in self.index_uses)

    @cached_property
    def initial_values(self) -> dict[str, Array | LazyArray]:
        """Where the variables' values come from at the start, by name."""
        return {variable.name: variable.source for variable in self.variables}

    @cached_property
    def parameter_names(self) -> frozenset[str]:
        """The variables that an optimizer may change."""
        return frozenset(variable.name for variable in self.variables if variable.trainable)

    @cached_property
    def updated_names(self) -> frozenset[str]:
        """The variables that the graph updates."""
        return frozenset(variable.name for variable in self.updates)

    @cached_property
    def foreign_modules(self) -> frozenset[str]:
        """The modules of operators, of those in attributes too, that are not Glowtrain's."""
        modules = {type(operator).__module__ for operator in _operators(self.nodes)}
        return frozenset(module for module in modules if module.partition(".")[0] != "glowtrain")

    def input(self, name: str) -> Input:
        """The input called ``name``. Raises :class:`GraphError`."""
        for value in self.inputs:
            if value.name == name:
                return value
        raise GraphError(
            f"graph {self.name} has no input {name!r}; it has {', '.join(v.name for v in self.inputs) or 'none'}"
        )

    def variable(self, name: str) -> Variable:
        """The variable called ``name``. Raises :class:`GraphError`."""
        for value in self.variables:
            if value.name == name:
                return value
        raise GraphError(f"graph {self.name} has no variable {name!r}")

    def with_(self, **changes: Any) -> Graph:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def map(self, change: Callable[[Graph], Graph]) -> Graph:
        """The changed graph; its template, if it has one, is that of changed graphs too."""
        template = None if self.template is None else self.template.map(change)
        return change(self).with_(template=template)

    def __repr__(self) -> str:
        """``<Graph mlp(x f32[64,784]) -> scores f32[64,10]: 5 operators, 6 variables>``"""
        taken = ", ".join(f"{value.name} {value.type}" for value in self.inputs)
        given = ", ".join(f"{name} {value.type}" for name, value in self.outputs.items())
        size = f"{plural(len(self.nodes), 'operator')}, {plural(len(self.variables), 'variable')}"
        return f"<Graph {self.name}({taken}) -> {given}: {size}>"

    def _contents(self) -> Iterator[str | Table]:
        operators = Counter(node.operator.key() for node in self.nodes).most_common()
        yield repr(self)[1:-1]
        yield from interface(self, "the graph as text has all")
        yield "operators: " + ", ".join(f"{name} × {count}" if count > 1 else name for name, count in operators)

    def __getstate__(self) -> dict[str, Any]:
        """The fields, after all nodes: pickle and copy then meet each node after its operands, however deep it is."""
        return {"nodes": self.nodes, **{item.name: getattr(self, item.name) for item in fields(self)}}

    def __str__(self) -> str:
        from glowtrain.graph.text import to_text  # noqa: PLC0415  (the text form is written in terms of graphs)

        return to_text(self)


def _operators(nodes: Iterable[Node]) -> Iterator[Operator]:
    """The operators of nodes, and of graphs that are attributes of these."""
    for node in nodes:
        yield node.operator
        for value in node.operator.field_values().values():
            if isinstance(value, (Graph, tuple)):
                yield from _inner(value)


def _inner(value: Any) -> Iterator[Operator]:
    if isinstance(value, Graph):
        yield from _operators(value.nodes)
    elif isinstance(value, tuple):
        for item in value:
            yield from _inner(item)


def nodes_within(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, and those of bodies."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node.operator).values():
            yield from nodes_within(body)


def bodies_of(operator: Operator) -> dict[str, Graph]:
    """The graphs among an operator's attributes, by name."""
    found = {}
    for name in field_names(type(operator)):  # type: ignore[arg-type]
        value = getattr(operator, name)
        if isinstance(value, Graph):
            found[name] = value
    return found
