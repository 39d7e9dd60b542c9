"""Symbolic dimensions of a saved model: which extents of a graph follow which dimension of its template.

The template builds the graph a second time with other extents. Where the two graphs differ only in numbers that can be
computed from the inputs' shapes, the model is valid for every binding and is saved with named dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from glowtrain.errors import GlowtrainError
from glowtrain.graph import Constant, Graph, Input, Node, Template, Value, Variable
from glowtrain.onnx_io.schema.attributes import static_inputs
from glowtrain.onnx_io.write.downgrade import decomposed
from glowtrain.onnx_io.write.encodings import Extents, encoding_of
from glowtrain.ops.tensor.move import Reshape


@dataclass(frozen=True)
class Symbols:
    """Where a graph's numbers follow its dimensions."""

    sources: dict[str, tuple[str, int]] = field(default_factory=dict)
    """For each dimension an input's name and axis that have it."""
    inputs: dict[str, Extents] = field(default_factory=dict)
    outputs: dict[str, Extents] = field(default_factory=dict)
    fields: dict[Node, dict[str, Extents]] = field(default_factory=dict)
    """Static fields of nodes that vary; -1 where Reshape finds the extent."""
    constants: dict[Constant, Extents] = field(default_factory=dict)
    """Shapes of constants that are one number repeated."""


def symbols_of(graph: Graph, opset: int) -> Symbols:
    """The dimensions that stay symbolic when ``graph`` is saved; none if its template cannot vouch for any."""
    if graph.template is None or graph.updates:
        return Symbols()
    for dims in _other_dims(graph.template, graph.dims):
        found = _compare(graph, graph.template, dims, opset)
        if found is not None:
            return found
    return Symbols()


def _other_dims(template: Template, dims: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Bindings to compare with: all dimensions other than now, then one at a time."""
    other = {symbol: dims[symbol] + 3 + 2 * position for position, symbol in enumerate(template.symbols)}
    yield other
    if len(other) > 1:
        for symbol, extent in other.items():
            yield {**dims, symbol: extent}


def _compare(graph: Graph, template: Template, dims: Mapping[str, int], opset: int) -> Symbols | None:
    try:
        other = template.build(replace(graph.binding, dims=dims))
    except GlowtrainError:
        return None
    pairs = {(graph.dims[symbol], dims[symbol]): symbol for symbol in dims if dims[symbol] != graph.dims[symbol]}
    return _Comparison(graph, other, pairs, opset).symbols()


class _DifferentError(Exception):
    """The two graphs differ in more than extents."""


@dataclass
class _Comparison:
    """Two graphs of one template, walked together. ``pairs``: extents in both, and the dimension that explains them."""

    first: Graph
    second: Graph
    pairs: Mapping[tuple[int, int], str]
    opset: int
    found: Symbols = field(default_factory=Symbols)
    twins: dict[Value, Value] = field(default_factory=dict)

    def symbols(self) -> Symbols | None:
        try:
            self.leaves_and_nodes(self.first, self.second)
            for name, value in self.first.outputs.items():
                twin = self.second.outputs[name]
                self.same(value, twin)
                self.found.outputs[name] = self.extents(value.shape, twin.shape, f"{name}_")
        except (_DifferentError, KeyError):
            return None
        return self.found

    def leaves_and_nodes(self, first: Graph, second: Graph) -> None:
        if len(first.nodes) != len(second.nodes) or len(first.inputs) != len(second.inputs):
            raise _DifferentError
        for value, twin in zip(first.inputs, second.inputs, strict=True):
            self.input(value, twin)
        for node, other in zip(first.nodes, second.nodes, strict=True):
            self.node(node, other)

    def input(self, value: Input, twin: Input) -> None:
        self.twins[value] = twin
        extents = self.extents(value.shape, twin.shape)
        self.found.inputs[value.name] = extents
        for axis, extent in enumerate(extents):
            if isinstance(extent, str):
                self.found.sources.setdefault(extent, (value.name, axis))

    def extents(self, first: Sequence[int], second: Sequence[int], prefix: str = "") -> Extents:
        """Numbers that are equal, and names of those that are not: with a prefix, new ones where none explains them."""
        if len(first) != len(second):
            raise _DifferentError
        result: list[int | str] = []
        for position, pair in enumerate(zip(first, second, strict=True)):
            if pair[0] == pair[1]:
                result.append(pair[0])
            elif pair in self.pairs:
                result.append(self.pairs[pair])
            elif prefix:
                result.append(f"{prefix}{position}")
            else:
                raise _DifferentError
        return tuple(result)

    def node(self, node: Node, twin: Node) -> None:
        if type(node.operator) is not type(twin.operator) or len(node.inputs) != len(twin.inputs):
            raise _DifferentError
        for value, other in zip(node.inputs, twin.inputs, strict=True):
            self.same(value, other)
        changed = self.changed_fields(node, twin)
        if changed:
            self.found.fields[node] = changed
        self.decomposition(node, twin)
        self.twins.update(zip(node.outputs, twin.outputs, strict=True))

    def same(self, value: Value | None, twin: Value | None) -> None:
        """Both are the same value of the model. Raises where they are not."""
        if value is None or twin is None:
            if value is not twin:
                raise _DifferentError
        elif isinstance(value, Constant) and isinstance(twin, Constant):
            self.constant(value, twin)
        elif isinstance(value, Variable) and isinstance(twin, Variable):
            if value.name != twin.name or value.type != twin.type:
                raise _DifferentError
        elif self.twins.get(value) is not twin:
            raise _DifferentError

    def constant(self, value: Constant, twin: Constant) -> None:
        if value.dtype != twin.dtype:
            raise _DifferentError
        if value.shape == twin.shape:
            if value.array.tobytes() != twin.array.tobytes():
                raise _DifferentError
            return
        numbers = {array.tobytes() for leaf in (value, twin) for array in (np.unique(leaf.array),)}
        if len(numbers) != 1 or np.unique(value.array).size != 1:
            raise _DifferentError
        self.found.constants[value] = self.extents(value.shape, twin.shape)

    def changed_fields(self, node: Node, twin: Node) -> dict[str, Extents]:
        passed = set(static_inputs(type(node.operator)).values())
        changed: dict[str, Extents] = {}
        mine, others = node.operator.attributes(), twin.operator.attributes()
        for name, value in mine.items():
            if _equal(value, others[name]):
                continue
            if name not in passed or not isinstance(value, tuple) or not isinstance(others[name], tuple):
                raise _DifferentError
            if len(value) != len(others[name]):
                raise _DifferentError
            varying = [k for k, pair in enumerate(zip(value, others[name], strict=True)) if pair[0] != pair[1]]
            if isinstance(node.operator, Reshape) and len(varying) == 1 and -1 not in value:
                position = varying[0]
                changed[name] = (*value[:position], -1, *value[position + 1 :])
            else:
                changed[name] = self.extents(value, others[name])
        return changed

    def decomposition(self, node: Node, twin: Node) -> None:
        """An operator that is written as a function must decompose in the same way for both."""
        types = [None if value is None else value.type for value in node.inputs]
        if node.operator.control or encoding_of(node.operator, types, self.opset) is not None:
            return
        if not node.operator.has("decompose"):
            raise _DifferentError
        first, second = decomposed(node), decomposed(twin)
        inner = _Comparison(first, second, self.pairs, self.opset)
        inner.leaves_and_nodes(first, second)
        if inner.found.fields or inner.found.constants:
            raise _DifferentError


def _equal(value: object, other: object) -> bool:
    """Whether two fields of operators are equal; arrays of the same elements, and graphs that compute the same, are."""
    if isinstance(value, Graph) and isinstance(other, Graph):
        return value.key == other.key
    return repr(value) == repr(other)
