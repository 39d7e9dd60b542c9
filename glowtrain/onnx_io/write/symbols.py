"""Symbolic dimensions of a saved model: which numbers of a graph follow which dimensions of its template.

The template builds the graph again with other extents. Where the graphs differ only in numbers that can be computed
from the inputs' shapes (an extent, a product, an end, a mean's divisor), the model is valid for every binding and is
saved with named dimensions. Where anything but a single extent is computed, a third binding must tell the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from glowtrain.errors import GlowtrainError
from glowtrain.graph import Constant, Graph, Input, Node, Template, Value, Variable
from glowtrain.onnx_io.schema.attributes import static_inputs
from glowtrain.onnx_io.write.downgrade import decomposed
from glowtrain.onnx_io.write.encodings import ComputedExtent, Extents, encoding_of
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.tensor.move import Reshape

DEGREE = 3
"""Dimensions that are multiplied with each other, at most."""


@dataclass(frozen=True)
class Number:
    """A number that follows dimensions: a factor times a product of them, or divided by it."""

    factor: float
    product: ComputedExtent
    divides: bool = False


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
    numbers: dict[Constant, Number] = field(default_factory=dict)
    """What that number is, where it varies."""
    inner: dict[Value, Extents] = field(default_factory=dict)
    """Extents of the inputs and outputs of bodies."""

    @property
    def computed(self) -> bool:
        """Whether anything is computed from dimensions, and is not one of them."""
        fields = (extents for changed in self.fields.values() for extents in changed.values())
        every = (*fields, *self.constants.values())
        return bool(self.numbers) or any(isinstance(extent, ComputedExtent) for extents in every for extent in extents)


def symbols_of(graph: Graph, opset: int) -> Symbols:
    """The dimensions that stay symbolic when ``graph`` is saved; none if its template cannot vouch for any."""
    if graph.template is None or graph.updates:
        return Symbols()
    for dims in _other_dims(graph.template, graph.dims):
        found = _compare(graph, graph.template, dims, opset)
        if found is None:
            continue
        if not found.computed or found == _compare(graph, graph.template, _further(graph.dims, dims), opset):
            return found
    return Symbols()


def _other_dims(template: Template, dims: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Bindings to compare with: all dimensions other than now, then one at a time."""
    other = {symbol: dims[symbol] + 3 + 2 * position for position, symbol in enumerate(template.symbols)}
    yield other
    if len(other) > 1:
        for symbol, extent in other.items():
            yield {**dims, symbol: extent}


def _further(dims: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """A third binding, of the dimensions in which two differ."""
    return {symbol: extent + 4 * (extent != dims[symbol]) for symbol, extent in other.items()}


def _compare(graph: Graph, template: Template, dims: Mapping[str, int], opset: int) -> Symbols | None:
    try:
        other = template.build(replace(graph.binding, dims=dims))
    except GlowtrainError:
        return None
    changed = {symbol: (graph.dims[symbol], extent) for symbol, extent in dims.items() if extent != graph.dims[symbol]}
    return _Comparison(graph, other, changed, opset).symbols()


class _DifferentError(Exception):
    """The two graphs differ in more than extents."""


@dataclass
class _Comparison:
    """Two graphs of one template, walked together. ``dims``: the dimensions that differ, with their extents in both."""

    first: Graph
    second: Graph
    dims: Mapping[str, tuple[int, int]]
    opset: int
    found: Symbols = field(default_factory=Symbols)
    twins: dict[Value, Value] = field(default_factory=dict)

    def symbols(self) -> Symbols | None:
        try:
            for value, twin in zip(self.first.inputs, self.second.inputs, strict=True):
                self.input(value, twin)
            self.nodes(self.first, self.second)
            for name, output in self.first.outputs.items():
                other = self.second.outputs[name]
                self.same(output, other)
                self.found.outputs[name] = self.declared(output.shape, other.shape, f"{name}_")
        except (_DifferentError, KeyError, ValueError):
            return None
        return self.found

    def nodes(self, first: Graph, second: Graph) -> None:
        if len(first.nodes) != len(second.nodes):
            raise _DifferentError
        for node, other in zip(first.nodes, second.nodes, strict=True):
            self.node(node, other)

    def input(self, value: Input, twin: Input) -> None:
        self.twins[value] = twin
        extents = self.declared(value.shape, twin.shape)
        self.found.inputs[value.name] = extents
        for axis, extent in enumerate(extents):
            if isinstance(extent, str):
                self.found.sources.setdefault(extent, (value.name, axis))

    def declared(self, first: Sequence[int], second: Sequence[int], prefix: str = "") -> Extents:
        """Extents as they are declared: names of dimensions, or with a prefix, new names for what follows them."""
        extents = self.extents(first, second, unknown=bool(prefix))
        if not prefix and any(isinstance(extent, ComputedExtent) for extent in extents):
            raise _DifferentError
        return tuple(f"{prefix}{k}" if isinstance(e, ComputedExtent) else e for k, e in enumerate(extents))

    def extents(self, first: Sequence[int], second: Sequence[int], *, unknown: bool = False) -> Extents:
        """Numbers that are equal, and what others follow; ``unknown``: with no product where nothing explains them."""
        if len(first) != len(second):
            raise _DifferentError
        return tuple(self.extent(*pair, unknown=unknown) for pair in zip(first, second, strict=True))

    def extent(self, first: int, second: int, *, unknown: bool = False) -> int | str | ComputedExtent:
        if first == second:
            return first
        for symbols, before, after in self.products():
            if first % before == 0 and second % after == 0 and first // before == second // after:
                alone = first == before and len(symbols) == 1
                return symbols[0] if alone else ComputedExtent(first // before, symbols)
        for symbol, (before, after) in self.dims.items():
            factor, rest = divmod(second - first, after - before)
            if not rest and factor > 0:
                return ComputedExtent(factor, (symbol,), first - factor * before)
        if unknown:
            return ComputedExtent(0, ())
        raise _DifferentError

    def products(self) -> Iterator[tuple[tuple[str, ...], int, int]]:
        """Products of the dimensions that differ, with their values in both graphs."""
        for degree in range(1, DEGREE + 1):
            for symbols in itertools.combinations_with_replacement(self.dims, degree):
                before, after = zip(*(self.dims[symbol] for symbol in symbols), strict=True)
                if math.prod(before) and math.prod(after):
                    yield symbols, math.prod(before), math.prod(after)

    def number(self, first: Any, second: Any, *, whole: bool) -> Number:
        """What a number follows that differs, in whole numbers or not."""
        if whole:
            extent = self.extent(int(first), int(second))
            return Number(1.0, extent if isinstance(extent, ComputedExtent) else ComputedExtent(1, (str(extent),)))
        first, second = float(first), float(second)
        for symbols, before, after in self.products():
            for divides in (False, True):
                a, b = (first * before, second * after) if divides else (first / before, second / after)
                if math.isclose(a, b, rel_tol=1e-6) and a:
                    return Number(a, ComputedExtent(1, symbols), divides)
        raise _DifferentError

    def node(self, node: Node, twin: Node) -> None:
        if type(node.operator) is not type(twin.operator) or len(node.inputs) != len(twin.inputs):
            raise _DifferentError
        for value, other in zip(node.inputs, twin.inputs, strict=True):
            self.same(value, other)
        if isinstance(node.operator, Scan) and isinstance(twin.operator, Scan):
            self.scan(node.operator, twin.operator)
        else:
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
        if value.shape == twin.shape and value.array.tobytes() == twin.array.tobytes():
            return
        numbers = [np.unique(leaf.array) for leaf in (value, twin)]
        if any(array.size != 1 for array in numbers):
            raise _DifferentError
        if numbers[0].tobytes() != numbers[1].tobytes():
            self.found.numbers[value] = self.number(*(array[0] for array in numbers), whole=not value.dtype.is_float)
        self.found.constants[value] = self.extents(value.shape, twin.shape)

    def scan(self, first: Scan, second: Scan) -> None:
        """Loops are the same if their bodies are; extents of what bodies take and give may vary."""
        if first.replace(body=second.body) != second or len(first.body.inputs) != len(second.body.inputs):
            raise _DifferentError
        values: list[Value] = [*first.body.inputs, *first.body.outputs.values()]
        twins: list[Value] = [*second.body.inputs, *second.body.outputs.values()]
        self.twins.update(zip(first.body.inputs, second.body.inputs, strict=True))
        self.nodes(first.body, second.body)
        for value, twin in zip(values, twins, strict=True):
            self.same(value, twin)
            self.found.inner[value] = self.extents(value.shape, twin.shape, unknown=True)

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
        inner = _Comparison(first, second, self.dims, self.opset)
        inner.twins.update(zip(first.inputs, second.inputs, strict=True))
        inner.nodes(first, second)
        if inner.found != Symbols():
            raise _DifferentError


def _equal(value: object, other: object) -> bool:
    """Whether two fields of operators are equal; arrays of the same elements, and graphs that compute the same, are."""
    if isinstance(value, Graph) and isinstance(other, Graph):
        return value.key == other.key
    return repr(value) == repr(other)
