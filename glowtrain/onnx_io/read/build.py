"""Build a graph from ONNX nodes for one binding of what the model leaves open."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from glowtrain.errors import ModelError, ShapeError, UnknownValueError, UnsupportedOperatorError
from glowtrain.graph import (
    Binding,
    Constant,
    Graph,
    Input,
    Node,
    Operand,
    Operator,
    Ragged,
    Structure,
    Value,
    Variable,
    topological,
)
from glowtrain.graph.specialise.binding import Result, Trimmed, part_name
from glowtrain.graph.specialise.ragged import whole
from glowtrain.onnx_io.read.data_dependent_sizes import follow, ragged
from glowtrain.onnx_io.read.exported import node_name
from glowtrain.onnx_io.read.parameters import Roles, class_of, key_of
from glowtrain.onnx_io.read.source import describe, subgraphs
from glowtrain.onnx_io.schema.attributes import NodeCall, attribute_value, operator_from, static_inputs
from glowtrain.onnx_io.schema.tensors import array_from_sparse, array_from_tensor
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.quantized.convert import DequantizeLinear
from glowtrain.ops.quantized.scales import WithScales
from glowtrain.ops.random.draws import SeededDraw
from glowtrain.optimize.fold import constants
from glowtrain.types import Array, Spec

Bound = Value | Ragged | tuple[Any, ...] | None
"""What a name stands for: a tensor, one whose size is found at run time, a sequence, or an absent optional."""

Rule = Callable[["Builder", NodeProto], tuple[Bound, ...]]
"""What a node's outputs are, for an operator that is resolved while loading or read in a way of its own."""

LARGEST_VALUE = 1024
"""Elements of an input up to which a graph may be specialised on them."""

LARGEST_FOLD = 1 << 22
"""Elements of a result up to which it is computed while loading."""

_BROKEN = (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError)
"""What operators raise on operands of impossible ranks or counts."""


@dataclass(frozen=True)
class BuildRecipe:
    """A model, ready to be built: nodes at the newest operator set, initializers and their roles.

    ``rules`` are the operators, by registry key, that are read in a way of their own.
    """

    proto: GraphProto
    inputs: Mapping[str, Spec]
    structures: Mapping[str, Structure]
    arrays: Mapping[str, Array]
    roles: Roles
    name: str
    title: str
    folder: Path | None
    rules: Mapping[str, Rule]

    def build(self, binding: Binding) -> Graph:
        """The graph of a binding."""
        return Builder(self, binding).graph()


@dataclass
class Builder:
    """Builds the graph of a :class:`BuildRecipe`: names to values, node by node."""

    recipe: BuildRecipe
    binding: Binding
    environment: dict[str, Bound] = field(default_factory=dict)
    steps: int = 0
    """Steps of loops that were unrolled, those in other loops' steps too."""
    seeds: Iterator[float] | None = None
    """Seeds for random nodes that state none."""

    def seed(self) -> float:
        """A seed that no other random node of the whole model has."""
        if self.seeds is None:
            self.seeds = unused_seeds(self.recipe.proto)
        return next(self.seeds)

    def unroll(self) -> int:
        """Count a step of a loop that is built in place; the number so far in the whole model."""
        self.steps += 1
        return self.steps

    def graph(self) -> Graph:
        """The graph. Raises :class:`ModelError` naming the node that is broken."""
        recipe, values = self.recipe, self.binding.values
        self.environment.update((name, Constant(array, name)) for name, array in values.items())
        dims = dict(self.binding.dims)
        inputs = [Input(spec.bind(dims), name) for name, spec in recipe.inputs.items() if name not in values]
        self.environment.update((value.name, value) for value in inputs)
        for name, structure in recipe.structures.items():
            parts = self._parts(name)
            inputs += parts or ()
            self.environment[name] = parts[0] if parts and structure.kind == "optional" else parts
        self.run(recipe.proto)
        outputs: dict[str, Value] = {}
        results = {value.name: _result(value.name, self.read(value.name), outputs) for value in recipe.proto.output}
        plain = all(name == result for name, result in results.items())
        return Graph(tuple(inputs), outputs, name=recipe.name, results=None if plain else results)

    def _parts(self, name: str) -> tuple[Input, ...] | None:
        types = self.binding.parts[name]
        if types is None:
            return None
        return tuple(Input(type_, part_name(name, position)) for position, type_ in enumerate(types))

    def run(self, graph: GraphProto) -> None:
        """Add every node of a graph."""
        for node in graph.node:
            try:
                self.add(node)
            except ShapeError as error:
                raise ModelError(f"{self.what(node)}: {error}") from None
            except _BROKEN as error:
                problem = str(error) or type(error).__name__
                raise ModelError(f"{self.what(node)} cannot be built: {problem}") from None

    def what(self, node: NodeProto) -> str:
        """A node as named in messages."""
        return f"{self.recipe.title}: {describe(node)}"

    def add(self, node: NodeProto) -> None:
        """Bind a node's output names."""
        rule = self.recipe.rules.get(key_of(node))
        results = rule(self, node) if rule is not None else self.apply(node)
        named = [name for name in node.output if name]
        if len(node.output) > len(results):
            raise ModelError(f"{self.what(node)} has {len(named)} outputs, not {len(results)}")
        for name, value in zip(node.output, results, strict=False):
            if name:
                self.environment[name] = value
                if isinstance(value, Value):
                    value.name = value.name or name

    def read(self, name: str) -> Bound:
        """What a name stands for; initializers become leaves when they are first read."""
        if name not in self.environment:
            self.environment[name] = self.leaf(name)
        return self.environment[name]

    def leaf(self, name: str) -> Bound:
        """The variable or constant of an initializer."""
        array, roles = self.recipe.arrays[name], self.recipe.roles
        if name in roles.trainable or name in roles.running:
            return Variable(name, array, trainable=name in roles.trainable)
        return Constant(array, name)

    def tensor(self, name: str, what: str) -> Value:
        """The tensor of a name."""
        value = self.read(name)
        if isinstance(value, Value):
            return value
        if isinstance(value, Ragged):
            raise ModelError(f"{what} reads {name!r}, whose size depends on data; that is not supported here")
        kind = "an absent optional" if value is None else "a sequence of tensors"
        raise ModelError(f"{what} reads {name!r}, which is {kind} and not a tensor")

    def sequence(self, name: str, what: str) -> tuple[Bound, ...]:
        """The sequence of a name."""
        value = self.read(name)
        if not isinstance(value, tuple):
            raise ModelError(f"{what} reads {name!r}, which is not a sequence")
        return value

    def operand(self, name: str, node: NodeProto) -> Operand:
        """The tensor of a name, which may have a size that is found at run time; ``None`` for no name."""
        value = self.read(name) if name else None
        return value if value is None or isinstance(value, Ragged) else self.tensor(name, self.what(node))

    def operands(self, node: NodeProto) -> list[Value | None]:
        """The tensors that a node reads; ``None`` where an optional one is absent."""
        return [self.tensor(name, self.what(node)) if name else None for name in node.input]

    def constant(self, node: NodeProto, position: int, name: str) -> Array | None:
        """The elements of an input that must be known now; ``None`` if it is absent."""
        if position >= len(node.input) or not node.input[position]:
            return None
        value = self.tensor(node.input[position], self.what(node))
        if not isinstance(value, Constant):
            raise self.unknown(value, f"{self.what(node)}: input {position} ({name}, {node.input[position]!r})")
        return value.array

    def unknown(self, value: Value, what: str) -> ModelError:
        """The error for a value that decides about shapes or structure but depends on what a call gives."""
        message = f"{what} must be known when the model is compiled, but it is {_origin(value)}"
        roots = [self.root(leaf) for leaf in leaves_of(value)]
        names = [root.name for root in roots if isinstance(root, Input)]
        if len(names) < len(roots) or sum(root.type.size for root in roots if root is not None) > LARGEST_VALUE:
            return ModelError(message)
        given = ", ".join(f"{name!r}: ..." for name in names)
        return UnknownValueError(f"{message}; give values={{{given}}} when loading, or compile the template", names)

    def root(self, leaf: Value) -> Value | None:
        """The model's input that a leaf of this scope stands for; ``None`` if it is none."""
        return leaf if isinstance(leaf, Input) and leaf.name in self.recipe.inputs else None

    def apply(self, node: NodeProto) -> tuple[Bound, ...]:
        """Apply a registered operator; fold it where its results are known."""
        cls = class_of(node)
        if cls is None:
            raise UnsupportedOperatorError(f"{self.what(node)} is not supported")
        positions = static_inputs(cls)
        statics = {name: self.constant(node, position, name) for position, name in positions.items()}
        inputs = [self.operand(name, node) for position, name in enumerate(node.input) if position not in positions]
        while inputs and inputs[-1] is None:
            inputs.pop()
        types = tuple(None if value is None else value.type for value in map(whole, inputs))
        present = {name: array for name, array in statics.items() if array is not None}
        call = NodeCall(node, self.recipe.title, types, present, {}, self.recipe.folder)
        operator = operator_from(call, cls)
        if any(isinstance(value, Ragged) for value in inputs):
            return follow(operator, inputs, self.build(operator, operator.counted(*inputs), node))
        results = self.build(operator, [whole(value) for value in inputs], node)
        sizes = operator.data_dependent_sizes(*types)
        return ragged(results, sizes) if sizes else results

    def build(self, operator: Operator, inputs: list[Value | None], node: NodeProto) -> tuple[Value, ...]:
        """The outputs of a new node, or constants; what is made of integers for weights is known by those integers."""
        if isinstance(operator, SeededDraw) and operator.seed is None:
            operator = replace(operator, seed=self.seed())
        fresh = Node(operator, inputs, node_name(node))
        if isinstance(operator, WithScales):
            operator.check_constants(inputs)
        known = None if isinstance(operator, DequantizeLinear) else constants(fresh, LARGEST_FOLD)
        return known or fresh.outputs


def unused_seeds(graph: GraphProto) -> Iterator[float]:
    """Seeds that no node of a graph, or of the graphs in it, states."""
    stated = set(_stated_seeds(graph))
    return (number + 0.5 for number in itertools.count(1) if number + 0.5 not in stated)


def _stated_seeds(graph: GraphProto) -> Iterator[float]:
    for node in graph.node:
        yield from (attribute.f for attribute in node.attribute if attribute.name == "seed")
        for body in subgraphs(node):
            yield from _stated_seeds(body)


def leaves_of(value: Value) -> list[Value]:
    """Inputs, variables and body inputs that a value depends on."""
    operands = (operand for node in topological([value]) for operand in node.inputs)
    found = dict.fromkeys(leaf for leaf in (*operands, value) if leaf is not None and leaf.node is None)
    return [leaf for leaf in found if not isinstance(leaf, Constant)]


def _result(name: str, bound: Bound, outputs: dict[str, Value]) -> Result:
    """What a call returns for an output, whose tensors are added to ``outputs``."""
    if isinstance(bound, tuple):
        return tuple(_result(part_name(name, position), item, outputs) for position, item in enumerate(bound))
    if isinstance(bound, Ragged):
        outputs[name], outputs[f"{name}.size"] = bound.value, bound.size
        return Trimmed(name, f"{name}.size", bound.axis)
    if bound is None:
        return None
    outputs[name] = bound
    return name


def _origin(value: Value) -> str:
    if value.node is not None:
        return f"computed by {value.node.operator.key()} from inputs or variables"
    return f"the {'input' if isinstance(value, Input) else 'variable'} {value.name!r}"


def attributes_of(builder: Builder, node: NodeProto) -> dict[str, Any]:
    """A node's attributes by name; graphs stay protos."""
    what, folder = builder.what(node), builder.recipe.folder
    return {attribute.name: attribute_value(attribute, folder, what) for attribute in node.attribute}


def constant_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """Constant: a tensor in one of several attributes."""
    what = builder.what(node)
    if len(node.attribute) != 1:
        raise ModelError(f"{what} must have exactly one attribute")
    attribute, folder = node.attribute[0], builder.recipe.folder
    if attribute.type == AttributeProto.TENSOR:
        return (Constant(array_from_tensor(attribute.t, folder, what)),)
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        return (Constant(array_from_sparse(attribute.sparse_tensor, folder, what)),)
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name not in dtypes:
        raise ModelError(f"{what}: attribute {attribute.name} is not supported")
    return (Constant(np.array(attribute_value(attribute, folder, what), dtypes[attribute.name])),)


def identity_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """Identity: its operand, of any kind."""
    return (builder.read(node.input[0]),)


def cast_like_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """CastLike is Cast: the type of the second operand is known."""
    x, like = builder.operands(node)
    assert x is not None
    assert like is not None
    attributes = attributes_of(builder, node)
    cast = Cast(like.dtype, bool(attributes.get("saturate", 1)), attributes.get("round_mode", "up"))
    return (x,) if x.dtype == like.dtype else builder.build(cast, [x], node)
