"""Build a graph from ONNX nodes for one binding of the symbolic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from glowtrain.errors import ModelError, ShapeError, UnsupportedOperatorError
from glowtrain.graph import Constant, Graph, Input, Node, Operator, Value, Variable, lookup
from glowtrain.onnx_io.attributes import Call, attribute_value, operator_from, static_inputs
from glowtrain.onnx_io.parameters import Roles, key_of
from glowtrain.onnx_io.source import describe
from glowtrain.onnx_io.tensors import array_from_sparse, array_from_tensor
from glowtrain.ops.control import Scan
from glowtrain.ops.logic import Cast
from glowtrain.ops.move import Squeeze
from glowtrain.ops.split import Split
from glowtrain.optimize.fold import constants
from glowtrain.types import Array, Spec, TensorType

Known = Value | tuple[Value, ...]
"""What a name stands for: a tensor, or a sequence of tensors."""

LARGEST_FOLD = 1 << 22
"""Elements of a result up to which it is computed while loading."""

_BROKEN = (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError)
"""What operators raise on operands of impossible ranks or counts."""


@dataclass(frozen=True)
class Recipe:
    """A model, ready to be built: nodes at the newest operator set, initializers and their roles."""

    proto: GraphProto
    inputs: Mapping[str, Spec]
    arrays: Mapping[str, Array]
    roles: Roles
    name: str
    title: str
    folder: Path | None


@dataclass
class Builder:
    """Builds the graph of a :class:`Recipe`: names to values, node by node."""

    recipe: Recipe
    dims: Mapping[str, int]
    known: dict[str, Known] = field(default_factory=dict)

    def graph(self) -> Graph:
        """The graph. Raises :class:`ModelError` naming the node that is broken."""
        recipe = self.recipe
        inputs = {name: Input(spec.bind(dict(self.dims)), name) for name, spec in recipe.inputs.items()}
        self.known.update(inputs)
        self.run(recipe.proto)
        outputs = {value.name: self.tensor(value.name, f"output {value.name!r}") for value in recipe.proto.output}
        return Graph(tuple(inputs.values()), outputs, name=recipe.name)

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
        built_in = BUILT_IN.get(key_of(node))
        results = built_in(self, node) if built_in is not None else self.apply(node)
        named = [name for name in node.output if name]
        if len(node.output) > len(results):
            raise ModelError(f"{self.what(node)} has {len(named)} outputs, not {len(results)}")
        for name, value in zip(node.output, results, strict=False):
            if name:
                self.known[name] = value
                if isinstance(value, Value):
                    value.name = value.name or name

    def read(self, name: str) -> Known:
        """What a name stands for; initializers become leaves when they are first read."""
        if name not in self.known:
            self.known[name] = self.leaf(name)
        return self.known[name]

    def leaf(self, name: str) -> Value:
        """The variable or constant of an initializer."""
        array, roles = self.recipe.arrays[name], self.recipe.roles
        if name in roles.trainable or name in roles.running:
            return Variable(name, array, trainable=name in roles.trainable)
        return Constant(array, name)

    def tensor(self, name: str, what: str) -> Value:
        """The tensor of a name."""
        value = self.read(name)
        if isinstance(value, tuple):
            raise ModelError(f"{what} is a sequence of tensors, which is only supported where its parts are taken out")
        return value

    def operands(self, node: NodeProto) -> list[Value | None]:
        """The tensors that a node reads; ``None`` where an optional one is absent."""
        return [self.tensor(name, self.what(node)) if name else None for name in node.input]

    def constant(self, node: NodeProto, place: int, name: str) -> Array | None:
        """The elements of an input that must be known now; ``None`` if it is absent."""
        if place >= len(node.input) or not node.input[place]:
            return None
        value = self.tensor(node.input[place], self.what(node))
        if not isinstance(value, Constant):
            raise ModelError(
                f"{self.what(node)}: input {place} ({name}, {node.input[place]!r}) must be known when the model is "
                f"loaded, but it is {_origin(value)}"
            )
        return value.array

    def apply(self, node: NodeProto) -> tuple[Known, ...]:
        """Apply a registered operator; fold it where its results are known."""
        cls = lookup(key_of(node))
        if cls is None:
            raise UnsupportedOperatorError(f"{self.what(node)} is not supported")
        places = static_inputs(cls)
        statics = {name: self.constant(node, place, name) for place, name in places.items()}
        inputs = [value for place, value in enumerate(self.operands(node)) if place not in places]
        while inputs and inputs[-1] is None:
            inputs.pop()
        types = tuple(None if value is None else value.type for value in inputs)
        present = {name: array for name, array in statics.items() if array is not None}
        call = Call(node, self.recipe.title, types, present, {}, self.recipe.folder)
        return self.made(operator_from(call, cls), inputs, node)

    def made(self, operator: Operator, inputs: list[Value | None], node: NodeProto) -> tuple[Value, ...]:
        """The outputs of a new node, or constants."""
        fresh = Node(operator, inputs, node.name)
        return constants(fresh, LARGEST_FOLD) or fresh.outputs


def _origin(value: Value) -> str:
    if value.node is not None:
        return f"computed by {value.node.operator.key()} from inputs or variables"
    return f"the {'input' if isinstance(value, Input) else 'variable'} {value.name!r}"


def _attributes(builder: Builder, node: NodeProto) -> dict[str, Any]:
    what, folder = builder.what(node), builder.recipe.folder
    return {attribute.name: attribute_value(attribute, folder, what) for attribute in node.attribute}


def _constant(builder: Builder, node: NodeProto) -> tuple[Known, ...]:
    """Constant: a tensor in one of several attributes."""
    what = builder.what(node)
    if len(node.attribute) != 1:
        raise ModelError(f"{what} must have exactly one attribute")
    attribute, folder = node.attribute[0], builder.recipe.folder
    if attribute.type == AttributeProto.TENSOR:
        return (Constant(array_from_tensor(attribute.t, folder, what)),)
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        return (Constant(array_from_sparse(attribute.sparse_tensor, folder)),)
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name not in dtypes:
        raise ModelError(f"{what}: attribute {attribute.name} is not supported")
    return (Constant(np.array(attribute_value(attribute, folder, what), dtypes[attribute.name])),)


def _identity(builder: Builder, node: NodeProto) -> tuple[Known, ...]:
    return (builder.read(node.input[0]),)


def _cast_like(builder: Builder, node: NodeProto) -> tuple[Known, ...]:
    """CastLike is Cast: the type of the second operand is known."""
    x, like = builder.operands(node)
    assert x is not None
    assert like is not None
    return (x,) if x.dtype == like.dtype else builder.made(Cast(to=like.dtype), [x], node)


def _if(builder: Builder, node: NodeProto) -> tuple[Known, ...]:
    """If with a known condition: the branch that is taken, in place."""
    condition = builder.tensor(node.input[0], builder.what(node))
    if not isinstance(condition, Constant):
        raise UnsupportedOperatorError(
            f"{builder.what(node)}: its condition is {_origin(condition)}; If is supported where the condition is "
            "known when the model is loaded"
        )
    wanted = "then_branch" if condition.array.reshape(()).item() else "else_branch"
    branch = next(attribute.g for attribute in node.attribute if attribute.name == wanted)
    inner = Builder(builder.recipe, builder.dims, dict(builder.known))
    for tensor in branch.initializer:
        inner.known[tensor.name] = Constant(array_from_tensor(tensor, builder.recipe.folder), tensor.name)
    inner.run(branch)
    return tuple(inner.read(value.name) for value in branch.output)


def _scan(builder: Builder, node: NodeProto) -> tuple[Known, ...]:
    """Scan: what its body reads of the graph around it becomes operands."""
    attributes = _attributes(builder, node)
    body, count = attributes.pop("body"), attributes["num_scan_inputs"]
    operands = [builder.tensor(name, builder.what(node)) for name in node.input]
    states = len(operands) - count
    axes = attributes.get("scan_input_axes") or (0,) * count
    types = [value.type for value in operands[:states]]
    for value, axis in zip(operands[states:], axes, strict=True):
        shape = list(value.shape)
        del shape[axis]
        types.append(value.type.with_shape(tuple(shape)))
    inner = _Body(builder.recipe, builder.dims, outer=builder)
    graph = inner.subgraph(body, types)
    scan = Scan(body=graph, num_captured=len(inner.captured), **attributes)
    return builder.made(scan, [*operands, *inner.captured], node)


@dataclass
class _Body(Builder):
    """Builds a graph that is an attribute: values of the graph around it are captured as further inputs."""

    outer: Builder = field(kw_only=True)
    captured: dict[Value, Input] = field(default_factory=dict)

    def subgraph(self, body: GraphProto, types: list[TensorType]) -> Graph:
        inputs = [Input(type_, value.name) for value, type_ in zip(body.input, types, strict=True)]
        self.known.update((value.name, value) for value in inputs)
        for tensor in body.initializer:
            self.known[tensor.name] = Constant(array_from_tensor(tensor, self.recipe.folder), tensor.name)
        self.run(body)
        outputs = {value.name: self.tensor(value.name, f"output {value.name!r}") for value in body.output}
        return Graph((*inputs, *self.captured.values()), outputs, name=body.name or "body")

    def leaf(self, name: str) -> Value:
        value = self.outer.tensor(name, "a value that a body reads")
        if isinstance(value, Constant):
            return value
        return self.captured.setdefault(value, Input(value.type, name))


def _split_to_sequence(builder: Builder, node: NodeProto) -> tuple[Known, ...]:
    """A sequence of pieces: of the sizes given, of one size (the last may be smaller), or of extent 1."""
    x = builder.tensor(node.input[0], builder.what(node))
    attributes = _attributes(builder, node)
    axis = attributes.get("axis", 0)
    extent = x.shape[axis]
    split = builder.constant(node, 1, "split")
    if split is not None and split.ndim == 1:
        sizes = tuple(int(size) for size in split)
    else:
        chunk = 1 if split is None else int(split)
        sizes = tuple(min(chunk, extent - start) for start in range(0, extent, chunk))
    pieces = builder.made(Split(split=sizes, axis=axis), [x], node)
    if split is None and not attributes.get("keepdims", 1):
        pieces = tuple(builder.made(Squeeze(axes=(axis,)), [piece], node)[0] for piece in pieces)
    return (pieces,)


def _sequence_construct(builder: Builder, node: NodeProto) -> tuple[Known, ...]:
    return (tuple(builder.tensor(name, builder.what(node)) for name in node.input),)


def _sequence_at(builder: Builder, node: NodeProto) -> tuple[Known, ...]:
    sequence = builder.read(node.input[0])
    place = builder.constant(node, 1, "position")
    if not isinstance(sequence, tuple) or place is None:
        raise ModelError(f"{builder.what(node)} needs a sequence and a position")
    return (sequence[int(place)],)


BUILT_IN: dict[str, Callable[[Builder, NodeProto], tuple[Known, ...]]] = {
    "Constant": _constant,
    "Identity": _identity,
    "CastLike": _cast_like,
    "If": _if,
    "Scan": _scan,
    "SplitToSequence": _split_to_sequence,
    "SequenceConstruct": _sequence_construct,
    "SequenceAt": _sequence_at,
}
"""Operators that are resolved while loading, or read in a way of their own."""
