"""What a model consists of: a table of its layers with results, parameters and multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from glowtrain.compiler.walk import arrive, select
from glowtrain.errors import InputError
from glowtrain.graph import Constant, Graph, Input, Node, Template, Value, Variable, no_model
from glowtrain.graph.modules import layer_name
from glowtrain.loops import Apply, Cast, Expr, For, Reduce, Statement, expressions
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table
from glowtrain.program.program import Instruction, Program
from glowtrain.types import TensorType

COLUMNS = ("layer", "operator", "result", "parameters>", "multiply-adds>")


@dataclass(frozen=True)
class Layer:
    """One node: ``parameters`` counts the elements of those that no earlier layer reads, ``trained`` those of them that
    are trained."""

    name: str
    operator: str
    result: TensorType
    parameters: int
    trained: int
    multiply_adds: int


@dataclass(frozen=True)
class Outline(Displayable):
    """The layers of a model for given extents of its dimensions; printed, a table."""

    name: str
    dims: Mapping[str, int]
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def trained(self) -> int:
        return sum(layer.trained for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        return sum(layer.multiply_adds for layer in self.layers)

    def __repr__(self) -> str:
        return self._as_text()

    def _contents(self) -> Iterator[str | Table]:
        yield Table(COLUMNS, self._rows())
        yield self.total()

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for layer in self.layers:
            counts = (f"{count:,}" if count else "" for count in (layer.parameters, layer.multiply_adds))
            yield layer.name, layer.operator, str(layer.result), *counts

    def total(self) -> str:
        """A line: the sums, and what they are for."""
        dims = ", ".join(f"{name} = {extent}" for name, extent in self.dims.items())
        counts = f"{plural(self.parameters, 'parameter')}, {plural(self.multiply_adds, 'multiply-add')}"
        return f"{self.name}: {counts}{f' for {dims}' if dims else ''}"


def summary(model: Graph | Template, dims: Mapping[str, int] | None = None) -> Outline:
    """The layers of a model: each node's result, parameters, and multiply-adds (products that are summed).

    Dimensions that ``dims`` leaves open are 1. Raises :class:`BindingError` for ``dims`` that the model does not have.
    """
    if not isinstance(model, (Graph, Template)):
        raise InputError(f"a summary is of a graph or a template, {no_model(model)}")
    graph = model if isinstance(model, Graph) else model.bind({**dict.fromkeys(model.symbols, 1), **(dims or {})})
    return outline(graph)


def outline(graph: Graph, trained: Mapping[str, int] | None = None) -> Outline:
    """The layers of a graph, of whose parameters so many elements are ``trained``, by name; without it, all."""
    seen: set[Variable] = set()
    return Outline(graph.name, graph.dims, tuple(_layer(node, seen, trained) for node in graph.nodes))


def _layer(node: Node, seen: set[Variable], trained: Mapping[str, int] | None) -> Layer:
    read = [value for value in node.inputs if isinstance(value, Variable) and value.trainable]
    new = set(read) - seen
    seen |= new
    sizes = {variable.name: variable.type.size for variable in new}
    chosen = sum(sizes.values() if trained is None else (trained.get(name, 0) for name in sizes))
    result, work = node.outputs[0].type, multiply_adds(node)
    return Layer(layer_name(node), node.operator.key(), result, sum(sizes.values()), chosen, work)


def multiply_adds(node: Node) -> int:
    """How many products a node sums, in all kernels that it becomes."""
    leaves: dict[Value, Value] = {
        value: value if isinstance(value, Constant) else Input(value.type, f"x{place}")
        for place, value in enumerate(node.inputs)
        if value is not None
    }
    alone = Node(node.operator, [None if value is None else leaves[value] for value in node.inputs])
    inputs = tuple(leaf for leaf in leaves.values() if isinstance(leaf, Input))
    outputs = {f"y{place}": value for place, value in enumerate(alone.outputs)}
    program: Program = arrive(Graph(inputs, outputs), stages=select("expanded", "lowered"))
    return _of_instructions(program.instructions)


def _of_instructions(instructions: Sequence[Instruction]) -> int:
    total = 0
    for instruction in instructions:
        total += instruction.trips * _of_instructions(instruction.children)
        total += sum(_of_statement(statement) for statement in instruction.nests)
    return total


def _of_statement(statement: Statement) -> int:
    if isinstance(statement, For):
        points = math.prod(index.extent for index in statement.indices)
        return points * sum(_of_statement(inner) for inner in statement.body)
    return sum(_of_expression(expression) for expression in expressions(statement))


def _of_expression(expression: Expr) -> int:
    inner = sum(_of_expression(child) for child in expression.children)
    if not isinstance(expression, Reduce):
        return inner
    points = math.prod(index.extent for index in expression.indices)
    return points * (inner + (expression.op == "add" and _is_product(expression.body)))


def _is_product(expression: Expr) -> bool:
    while isinstance(expression, Cast):
        expression = expression.value
    return isinstance(expression, Apply) and expression.function == "mul"
