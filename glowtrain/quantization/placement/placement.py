"""Which values are quantized, and which operators stay in floating point, from what operators say of themselves.

:attr:`~glowtrain.graph.Operator.quantized` is the only source: no operator is named here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Node, Value
from glowtrain.names import matches
from glowtrain.onnx_io.runtimes import INTEGER_RESULTS, SCALED_OPERAND
from glowtrain.quantization.export.constants import Arrays, constant_values, only_reader
from glowtrain.quantization.placement.recipe import Recipe
from glowtrain.types import TensorType, f32


@dataclass(frozen=True)
class Kept:
    """A node that stays in floating point, and why."""

    name: str
    operator: str
    reason: str


@dataclass(frozen=True, eq=False)
class Weight:
    """Operand number ``operand`` of a contraction that no input reaches, with its axes of channels and of sums."""

    node: Node
    operand: int
    value: Value
    axes: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a graph is rounded.

    ``sites`` maps each rounded value to the one whose range it has: itself, or the value whose elements it passes on.
    ``everywhere`` are the sites all of whose readers read the rounded value; others are rounded only for the
    ``readers``. ``weights`` are the known operands of contractions, ``biases`` contractions with a bias in i32.
    """

    graph: Graph
    sites: dict[Value, Value]
    everywhere: set[Value]
    readers: set[Node]
    weights: list[Weight]
    biases: list[Node]
    kept: list[Kept]

    def observed(self) -> dict[str, Value]:
        """The values whose ranges are needed, by name."""
        return {value.name: value for value in dict.fromkeys(self.sites.values())}

    @property
    def quantized(self) -> tuple[Node, ...]:
        """The nodes that compute with quantized numbers."""
        return tuple(node for node in self.graph.nodes if node in self.readers)


def name_of(node: Node) -> str:
    """A node's name in lists and reports: that of its first result."""
    return node.outputs[0].name or node.name or node.operator.key()


def place_rounding(graph: Graph, recipe: Recipe) -> Placement:
    """Decide where a graph (folded, its values named) is rounded.

    Raises :class:`QuantizationError` for patterns in ``keep`` and ``only`` that fit nothing.
    """
    return _Placing(graph, recipe).run()


@dataclass
class _Placing:
    graph: Graph
    recipe: Recipe
    arrays: Arrays = field(default_factory=Arrays)
    roles: dict[Node, str] = field(default_factory=dict)
    """"contraction", "rescales", "passes", or "joined" for what belongs to the node before it."""
    kept: list[Kept] = field(default_factory=list)
    grid: set[Value] = field(default_factory=set)
    """Values that quantized nodes make, or pass on."""

    def run(self) -> Placement:
        self.constants = constant_values(self.graph)
        check_patterns(self.graph, (*self.recipe.keep, *self.recipe.only))
        for node in self.graph.nodes:
            self.decide(node)
        wanted = self.wanted()
        sites: dict[Value, Value] = {}
        for value in self.in_order():
            if value in wanted:
                sites[value] = self.source(value, sites)
        readers = {node for node, role in self.roles.items() if role in ("contraction", "rescales")}
        readers |= {n for n, role in self.roles.items() if role == "passes" and n.inputs[0] in sites}
        weights = [weight for node in self.graph.nodes if node in readers for weight in self.weights(node)]
        biases = [weight.node for weight in weights if weight.operand == 1 and self.has_bias(weight)]
        everywhere = {value for value in sites if value in self.grid}
        return Placement(self.graph, sites, everywhere, readers, weights, biases, self.kept)

    def in_order(self) -> Iterator[Value]:
        yield from self.graph.inputs
        for node in self.graph.nodes:
            yield from node.outputs

    def decide(self, node: Node) -> None:
        if not any(_is_real(value) and value not in self.constants for value in (*node.inputs, *node.outputs)):
            return
        if all(output in self.constants for output in node.outputs):
            return
        reason = self.reason(node)
        if reason:
            self.kept.append(Kept(name_of(node), node.operator.key(), reason))
            return
        role = self.role(node)
        self.roles[node] = role
        if role in ("contraction", "rescales", "joined"):
            self.grid.update(value for value in node.outputs if _is_real(value))
        if role == "joined":
            self.grid.discard(_first(node))
        if role == "passes" and node.inputs[0] in self.grid:
            self.grid.update(value for value in node.outputs if _is_real(value))

    def reason(self, node: Node) -> str:
        """Why a node stays in floating point; empty if it does not."""
        if matched(node, self.recipe.keep):
            return "asked for"
        kind, data = node.operator.quantized, self.data(node)
        if self.follows(node):
            return ""
        if self.recipe.only and not matched(node, self.recipe.only):
            return "not among those asked for"
        if not kind:
            return "has no integer form"
        if not data or any(not _is_real(value) for value in data):
            return f"computes in {node.inputs[0].dtype if node.inputs[0] is not None else 'nothing'}, not in f32"
        if kind == "contraction":
            return ""
        if any(value in self.constants for value in data):
            return "one operand is a parameter"
        quantizes = kind == "passes" and self.passes(node)
        return "" if quantizes or not self.grid.isdisjoint(data) else "reads nothing that is quantized"

    def role(self, node: Node) -> str:
        if self.follows(node):
            return "joined"
        kind = node.operator.quantized
        if kind == "clips":
            return "rescales"
        return "rescales" if kind == "passes" and not self.passes(node) else kind

    def data(self, node: Node) -> list[Value]:
        """The operands that have scales of their own."""
        kind, present = node.operator.quantized, [value for value in node.inputs if value is not None]
        if kind in ("passes", "clips"):
            return present[:1]
        return present[:2] if kind == "contraction" else [value for value in present if value.dtype.is_float]

    def passes(self, node: Node) -> bool:
        """Whether all that is passed on is the first operand's, or 0."""
        rest = [value for value in node.inputs[1:] if value is not None and value.dtype.is_float]
        arrays = [self.arrays.of(value) for value in rest]
        return all(array is not None and not array.any() for array in arrays)

    def follows(self, node: Node) -> bool:
        """Whether a node belongs to the quantized one before it, whose result nothing else reads: it clips the result,
        or adds a number for each channel."""
        for value in node.inputs:
            before = None if value is None else value.node
            if before is None or value is None or self.roles.get(before) not in ("contraction", "rescales", "joined"):
                continue
            if only_reader(self.graph, value) is not node or node.outputs[0].type != value.type:
                continue
            rest = [other for other in node.inputs if other is not None and other is not value]
            if all(other in self.constants for other in rest) and self.joins(node, before, value, rest):
                return True
        return False

    def joins(self, node: Node, before: Node, value: Value, rest: list[Value]) -> bool:
        if node.operator.quantized == "clips":
            return value is node.inputs[0]
        if self.roles[before] != "contraction" or node.operator.quantized != "rescales" or len(rest) != 1:
            return False
        return node.operator.broadcasts and rest[0].rank >= 1 and rest[0].type.size == rest[0].shape[-1]

    def wanted(self) -> set[Value]:
        """The values that somebody reads as quantized numbers."""
        found: set[Value] = set()
        if self.recipe.outputs:
            found |= {value for value in self.graph.outputs.values() if value in self.grid}
        for node in reversed(self.graph.nodes):
            role = self.roles.get(node)
            found |= self.integer_results(node)
            if role in ("contraction", "rescales"):
                found |= {value for value in self.data(node) if value not in self.constants}
            elif role == "passes" and node.inputs[0] in self.grid and not found.isdisjoint(node.outputs):
                found.add(_first(node))
        return found - self.unrounded_inputs()

    def integer_results(self, node: Node) -> set[Value]:
        """The result of a contraction of :data:`INTEGER_RESULTS`, with all that is joined to it."""
        if self.roles.get(node) != "contraction" or not isinstance(node.operator, INTEGER_RESULTS):
            return set()
        value = node.outputs[0]
        while value not in self.grid:
            (joined,) = self.graph.users[value]
            value = joined.outputs[0]
        return {value} if value in self.graph.users else set()

    def unrounded_inputs(self) -> set[Value]:
        return set() if self.recipe.inputs else set(self.graph.inputs)

    def source(self, value: Value, sites: dict[Value, Value]) -> Value:
        """The value whose range a site has."""
        node = value.node
        if node is None or self.roles.get(node) != "passes" or node.inputs[0] not in self.grid:
            return value
        return sites.get(_first(node), value)

    def weights(self, node: Node) -> Iterator[Weight]:
        if self.roles.get(node) != "contraction":
            return
        types: list[TensorType | None] = [None if value is None else value.type for value in node.inputs]
        for position in (0, 1):
            value = node.inputs[position]
            if value is None or value not in self.constants:
                continue
            axes = node.operator.weight_axes(position, *types) if position == SCALED_OPERAND else None
            stacked = axes is not None and value.rank > 2 and value.rank - 1 in axes
            yield Weight(node, position, value, None if stacked else axes)

    def has_bias(self, weight: Weight) -> bool:
        node, axes = weight.node, weight.axes
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        factors = [getattr(node.operator, name, 1.0) for name in ("alpha", "beta")]
        if bias is None or axes is None:
            return False
        return bias in self.constants and bias.rank == 1 and factors == [1.0, 1.0]


def check_patterns(graph: Graph, patterns: Collection[str]) -> None:
    """Raise :class:`QuantizationError` for a pattern that fits nothing."""
    for pattern in patterns:
        if not any(matched(node, [pattern]) for node in graph.nodes):
            names = ", ".join(dict.fromkeys(name_of(node) for node in graph.nodes))
            raise QuantizationError(
                f"no operator of {graph.name} is called {pattern!r}, nor is its type, layer or weight; "
                f"there are: {names}"
            )


def matched(node: Node, patterns: Collection[str]) -> bool:
    """Whether one of the names that a node goes by is meant."""
    return any(matches(name, patterns) for name in _names(node))


def _names(node: Node) -> list[str]:
    """What patterns may fit: the node, its results, its operator, its parameters and the layer that they belong to."""
    parameters = [value.name for value in node.inputs if value is not None and value.node is None]
    layers = [name.rpartition(".")[0] for name in parameters]
    names = [node.name, node.operator.key(), *(value.name for value in node.outputs), *parameters, *layers]
    return [name for name in names if name]


def _is_real(value: Value | None) -> bool:
    return value is not None and value.dtype == f32


def _first(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    return value
