"""What rounding costs: signal-to-noise by layer, and how sensitive the results are to each layer alone.

Noise is measured in decibels, 10 log10(sum x² / sum (x - y)²) for exact numbers x and rounded ones y: 6 dB more is one
bit more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.compiler import Function, compile
from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Node, Replacements, Template, Value, Variable, translate
from glowtrain.graph.modules import modules_of
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.quantization.calibration.batches import Batch
from glowtrain.quantization.checks import check_model
from glowtrain.quantization.export.constants import Arrays, with_state
from glowtrain.quantization.placement.placement import Placement, name_of
from glowtrain.quantization.placement.prepare import SCALE, PreparedModel
from glowtrain.types import Array, f32, f64

Ready = Callable[[Graph], PreparedModel]
"""Prepares a float graph."""


@dataclass(frozen=True)
class LayerNoise:
    """The noise of a value that is rounded, after all roundings before it; and that of the weights of its layer, whose
    ``module`` they belong to."""

    name: str
    operator: str
    decibels: float
    weight_decibels: float | None
    module: str = ""


@dataclass(frozen=True)
class Sensitivity:
    """The noise of the model's results when only this layer is rounded, and when all but this one are."""

    name: str
    operator: str
    alone: float
    without: float
    module: str = ""


def decibels(signal: float, noise: float) -> float:
    """A ratio of powers; infinite without noise."""
    if noise <= 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def decibel_text(number: float | None) -> str:
    """Decibels as shown; nothing for ``None``."""
    if number is None:
        return ""
    return f"{number:.1f}" if math.isfinite(number) else ("∞" if number > 0 else "-∞")


def signal_to_noise(
    floats: Graph | Template, ready: Ready, fed: Sequence[Batch], backend: str | Backend = "cpu"
) -> list[LayerNoise]:
    """The noise of every rounded value and of the model's results, in order, over the given batches."""
    check_model(floats)
    example: list[PreparedModel] = []

    def comparing(graph: Graph) -> Graph:
        found = ready(graph)
        example[:] = [found]
        outputs: dict[str, Value] = {}
        for name, (exact, rounded) in _pairs(found).items():
            outputs |= _powers(name, exact, rounded)
        return graph.with_(outputs=outputs, updates={}, results=None)

    sums = _totals(compile(floats.map(comparing), backend), fed)
    weights, modules = _weight_noise(example[0]), _modules(example[0])
    makers = {value.name: value.node for value in example[0].placement.sites}
    return [
        LayerNoise(
            name,
            _operator(makers.get(name), name in makers),
            decibels(sums[f"{name}/signal"], sums[f"{name}/noise"]),
            weights.get(name),
            modules.get(name, ""),
        )
        for name in _pairs(example[0])
    ]


def _operator(maker: Node | None, known: bool) -> str:
    if maker is not None:
        return maker.operator.key()
    return "input" if known else "output"


def _pairs(ready: PreparedModel) -> dict[str, tuple[Value, Value]]:
    """Exact and rounded forms: of the rounded values, and of the results."""
    found = {value.name: (value, rounded) for value, rounded in ready.rounded.items()}
    exact = ready.placement.graph.outputs
    results = {name: (value, ready.graph.outputs[name]) for name, value in exact.items() if value.dtype.is_float}
    return {**found, **results}


def _powers(name: str, exact: Value, rounded: Value) -> dict[str, Value]:
    wide, other = Cast(f64)(exact), Cast(f64)(rounded)
    return {
        f"{name}/signal": ReduceSum(keepdims=False)(wide * wide),
        f"{name}/noise": ReduceSum(keepdims=False)((wide - other) * (wide - other)),
    }


def _totals(function: Function, fed: Sequence[Batch]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for batch in fed:
        for name, array in function(batch).items():
            sums[name] = sums.get(name, 0.0) + float(array)
    return sums


def _weight_noise(ready: PreparedModel) -> dict[str, float]:
    """The noise of weights by the value that is rounded next after their contraction."""
    found, arrays = dict[str, float](), Arrays()
    for weight in ready.placement.weights:
        array, rounded = arrays.of(weight.value), ready.weights.get((weight.node, weight.operand))
        if array is None or rounded is None or rounded.node is None:
            continue
        scale = rounded.node.inputs[1]
        parameters = None if scale is None else ready.parameters.get(scale.name.removesuffix(SCALE))
        if parameters is not None:
            wide = array.astype(np.float64)
            noise = float(((parameters.rounded(array) - wide) ** 2).sum())
            found[_end(ready.placement, weight.node).name] = decibels(float((wide**2).sum()), noise)
    return found


def _modules(ready: PreparedModel) -> dict[str, str]:
    """The modules that weights belong to, by the value that is rounded next after their contraction."""
    placement = ready.placement
    found = {_end(placement, weight.node).name: modules_of([weight.value]) for weight in placement.weights}
    return {name: ", ".join(modules) for name, modules in found.items()}


def _end(placement: Placement, node: Node) -> Value:
    """The value that is rounded after a node: its own result, or that of what belongs to it."""
    value, users = node.outputs[0], placement.graph.users
    while value not in placement.sites and len(users.get(value, ())) == 1:
        value = users[value][0].outputs[0]
    return value


def sensitivity(
    floats: Graph | Template, ready: Ready, fed: Sequence[Batch], backend: str | Backend = "cpu"
) -> list[Sensitivity]:
    """How much rounding each layer alone, and all but it, disturbs the results: the most sensitive layer first.

    A layer is an operator that computes with quantized numbers; it is rounded where it reads. One function is compiled,
    in which variables turn layers on and off. Raises :class:`QuantizationError` for models without float results.
    """
    check_model(floats)
    names: dict[str, str] = {}
    modules: dict[str, str] = {}

    def gated(graph: Graph) -> Graph:
        form = _Gated(ready(graph))
        names.update({name: node.operator.key() for name, node in form.layers.items()})
        modules.update({name: ", ".join(modules_of(node.inputs)) for name, node in form.layers.items()})
        return form.graph()

    function = compile(floats.map(gated), backend)
    function(fed[0])
    rows = []
    for name, operator in names.items():
        alone, without = (_with_gates(function, fed, [*names], [name], inside) for inside in (1.0, 0.0))
        rows.append(Sensitivity(name, operator, alone, without, modules[name]))
    return sorted(rows, key=lambda row: row.alone)


def gate_name(layer: str) -> str:
    """The variable that says whether a layer is rounded (1) or not (0)."""
    return f"gate.{layer}"


def _with_gates(function: Function, fed: Sequence[Batch], names: list[str], chosen: list[str], inside: float) -> float:
    for name in names:
        value = inside if name in chosen else 1.0 - inside
        function.state.write(gate_name(name), np.array(value, np.float32))
    sums = _totals(function, fed)
    return decibels(*(sum(sums[name] for name in sums if name.endswith(kind)) for kind in ("/signal", "/noise")))


class _Gated:
    """The float graph with each layer's operands between exact (gate 0) and rounded (gate 1)."""

    def __init__(self, ready: PreparedModel) -> None:
        self.ready = ready
        nodes = (node for node in ready.placement.quantized if any(True for _ in self.rounded_operands(node)))
        self.layers = {name_of(node): node for node in nodes if node.operator.quantized != "passes"}

    def rounded_operands(self, node: Node) -> Iterator[tuple[int, Node]]:
        """The places of operands that are rounded, and the FakeQuantize of each."""
        for position, value in enumerate(node.inputs):
            rounded = self.ready.weights.get((node, position))
            if rounded is None and value in self.ready.placement.sites:
                rounded = self.ready.rounded.get(value)
            if rounded is not None and rounded.node is not None:
                yield position, rounded.node

    def change(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        if self.layers.get(name_of(node)) is not node:
            return None
        gate = Variable(gate_name(name_of(node)), np.array(1.0, np.float32), trainable=False)
        operands = replacements.operands(node)
        for position, fake in self.rounded_operands(node):
            exact = operands[position]
            assert exact is not None
            rounded = Node(fake.operator, [exact, *fake.inputs[1:]]).output
            operands[position] = exact + gate * (rounded - exact)
        return Node(node.operator, operands, node.name).outputs

    def graph(self) -> Graph:
        exact = self.ready.placement.graph
        changed = translate(exact, self.change)
        outputs: dict[str, Value] = {}
        for name, value in exact.outputs.items():
            if value.dtype == f32:
                outputs |= _powers(name, value, changed.outputs[name])
        if not outputs:
            raise QuantizationError(f"{exact.name} has no result in f32 whose noise could be measured")
        return exact.with_(outputs=outputs, updates={}, results=None)


def accuracy(
    model: Graph | Template,
    fed: Sequence[Batch],
    labels: Sequence[Array],
    *,
    output: str | None = None,
    state: Mapping[str, Array] | None = None,
    backend: str | Backend = "cpu",
) -> float:
    """The part of examples whose greatest score, along the last axis of ``output`` (the first one), is at the label."""
    check_model(model)
    function = compile(model.map(lambda graph: with_state(graph, state or {})), backend)
    right = total = 0
    if len(fed) != len(labels):
        raise QuantizationError(f"labels are one array for each batch: {len(labels)} for {len(fed)}")
    for batch, wanted in zip(fed, labels, strict=True):
        results = function(batch)
        if output is not None and output not in results:
            raise QuantizationError(f"{model.name} has no output {output!r}; it has {', '.join(results)}")
        scores = results[output or next(iter(results))]
        if np.shape(wanted) != scores.shape[:-1]:
            shapes = f"scores {list(scores.shape)}, labels {list(np.shape(wanted))}"
            raise QuantizationError(f"there must be one label, a class, for each row of scores: {shapes}")
        right += int((scores.argmax(-1) == wanted).sum())
        total += int(np.asarray(wanted).size)
    return right / max(total, 1)
