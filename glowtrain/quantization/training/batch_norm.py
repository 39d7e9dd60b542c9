"""BatchNormalization in quantization-aware training: folded into weights, and trained all the same.

The quantized model rounds w · γ/σ, so training must round that too, while statistics of batches still move. In training
form a layer computes

    f = γ / sqrt(running variance + ε)        y = BatchNormalization(conv(x, FakeQuantize(w · f)) / f)

Division by f gives the convolution's own results back, apart from the rounding, so that normalisation by the batch's
statistics works as it did (Krishnamoorthi 2018, arXiv:1806.08342, section 3.2.2; Jacob et al. 2018, figure C.8,
convolves twice instead). Frozen, a layer is conv(x, FakeQuantize(w · f)) + (β - μ · f), over the same variables, and
that is exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from glowtrain.graph import Graph, Node, Replacements, Template, Value, Variable, rewrite, translate
from glowtrain.modes.training_and_inference import inference
from glowtrain.ops.elementwise.arithmetic import Div, Mul, Sqrt
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.ops.elementwise.logic import Less, Where
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.ops.tensor.move import Reshape, reshape
from glowtrain.quantization.checks import check_model
from glowtrain.quantization.export.constants import Arrays, named, only_reader, with_state
from glowtrain.types import Array

LEAST_FACTOR = 1e-6
"""Magnitude below which γ/σ is not divided by: a channel that γ switched off must not make infinities."""


@dataclass(frozen=True)
class NormalizedLayer:
    """A contraction and the BatchNormalization that alone reads it."""

    contraction: Node
    normalization: Node

    @property
    def weight(self) -> Variable | None:
        """The weights, if they are a variable."""
        weight = self.contraction.inputs[1]
        return weight if isinstance(weight, Variable) else None


def unfolded(prepared: Graph, model: Graph, state: Mapping[str, Array] | None = None) -> Graph:
    """A prepared graph with BatchNormalization in training form where ``model`` has it behind a contraction.

    ``model`` is the float graph that was folded and prepared, ``state`` its variables' values by name. Layers of
    another structure stay folded: they train with the statistics that they have.
    """
    plain = named(inference(with_state(model, state or {})))
    layers = {layer.normalization.outputs[0].name: layer for layer in _layers(plain)}
    return translate(prepared, _Unfolding(layers).change)


def freeze(model: Graph | Template, state: Mapping[str, Array] | None = None) -> Graph | Template:
    """The model in which BatchNormalization is folded exactly, with the running statistics as they are.

    ``model`` is what :func:`~glowtrain.quantization.training.qat.prepare_training` gave, or a trainer's model;
    ``state`` holds variables' values by name. It can be trained on (γ, β, weights and scales are still variables, and
    Dropout is where it was) and converted.
    """
    check_model(model)
    return model.map(lambda graph: frozen(with_state(graph, state or {})))


def frozen(graph: Graph) -> Graph:
    """:func:`freeze` of a graph whose variables begin with their final values."""
    return rewrite(inference(graph, dropout=True), _frozen)


def _layers(graph: Graph) -> list[NormalizedLayer]:
    found = []
    for node in graph.nodes:
        value = node.inputs[0] if isinstance(node.operator, BatchNormalization) else None
        maker = None if value is None else value.node
        if value is None or maker is None or maker.operator.quantized != "contraction":
            continue
        if only_reader(graph, value) is node:
            found.append(NormalizedLayer(maker, node))
    return [layer for layer in found if layer.weight is not None]


@dataclass
class _Unfolding:
    layers: Mapping[str, NormalizedLayer]
    arrays: Arrays = field(default_factory=Arrays)

    def change(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        layer = self.layers.get(node.outputs[0].name)
        rounding = _maker(node.inputs[1], FakeQuantize) if len(node.inputs) > 1 else None
        if layer is None or layer.weight is None or rounding is None or node.operator.quantized != "contraction":
            return None
        axes = node.operator.weight_axes(1, *(None if value is None else value.type for value in node.inputs))
        statistics = self.statistics(layer)
        if statistics is None or axes is None or statistics[0].shape != (layer.weight.shape[axes[0]],):
            return None
        x, old = node.inputs[0], rounding.inputs[0]
        if x is None or old is None or old.type != layer.weight.type:
            return None
        return self.normalized(layer, statistics, Node(node.operator, [replacements.of(x), *node.inputs[1:]]), axes[0])

    def normalized(
        self, layer: NormalizedLayer, statistics: Sequence[Variable], contraction: Node, axis: int
    ) -> tuple[Value, ...]:
        """BatchNormalization of a contraction of rounded, scaled weights, its results scaled back."""
        (x, rounded, *_), weight, operator = contraction.inputs, layer.weight, layer.normalization.operator
        rounding = _maker(rounded, FakeQuantize)
        assert isinstance(operator, BatchNormalization)
        assert rounding is not None
        assert weight is not None
        factor = _guarded(statistics[0] / Sqrt()(statistics[3] + operator.epsilon))
        scaled = weight * _spread(factor, axis, weight.rank)
        again = Node(rounding.operator, [scaled, *rounding.inputs[1:]], rounding.name).output
        plain = Node(contraction.operator, [x, again], layer.contraction.name).output
        restored = plain / _spread(factor, 0, plain.rank - 1)
        result = Node(operator, [restored, *statistics], layer.normalization.name)
        name = layer.normalization.outputs[0].name
        scaled.name, plain.name, restored.name = weight.name, f"{name}.scaled", f"{name}.restored"
        result.outputs[0].name = name
        return result.outputs[:1]

    def statistics(self, layer: NormalizedLayer) -> tuple[Variable, ...] | None:
        """γ, β, running mean and variance as variables; the mean less the contraction's bias, which it makes up for."""
        found = [None if value is None else self.arrays.of(value) for value in layer.normalization.inputs[1:]]
        if any(array is None for array in found):
            return None
        gamma, beta, mean, variance = (array for array in found if array is not None)
        bias = layer.contraction.inputs[2] if len(layer.contraction.inputs) > 2 else None
        if bias is not None:
            offset = self.arrays.of(bias)
            if offset is None or offset.size != mean.size:
                return None
            mean = (mean - offset.reshape(mean.shape)).astype(mean.dtype)
        labels = zip(("scale", "bias", "mean", "variance"), (gamma, beta, mean, variance), strict=True)
        values = [value for value in layer.normalization.inputs[1:] if value is not None]
        name = layer.normalization.outputs[0].name
        return tuple(
            Variable(value.name or f"{name}.{label}", array, trainable=label in ("scale", "bias"))
            for value, (label, array) in zip(values, labels, strict=True)
        )


def _guarded(factor: Value) -> Value:
    """``factor`` kept away from 0, with its sign."""
    below, above = Min()(factor, -LEAST_FACTOR), Max()(factor, LEAST_FACTOR)
    result: Value = Where()(Less()(factor, 0.0), below, above)
    return result


def _spread(factor: Value, axis: int, rank: int) -> Value:
    """A vector along an axis of a tensor, to broadcast with it."""
    return reshape(factor, tuple(factor.shape[0] if position == axis else 1 for position in range(rank)))


def _before_reshapes(value: Value | None) -> Value | None:
    """A value before it was reshaped."""
    while value is not None and value.node is not None and isinstance(value.node.operator, Reshape):
        value = value.node.inputs[0]
    return value


def _maker(value: Value | None, kind: type) -> Node | None:
    node = None if value is None else value.node
    return node if node is not None and isinstance(node.operator, kind) else None


def _frozen(node: Node) -> Sequence[Value] | None:
    """A normalized layer as one contraction with a bias."""
    if not isinstance(node.operator, BatchNormalization):
        return None
    division = _maker(node.inputs[0], Div)
    plain = None if division is None or division.inputs[0] is None else division.inputs[0].node
    if division is None or plain is None or plain.operator.quantized != "contraction":
        return None
    rounding = _maker(plain.inputs[1], FakeQuantize)
    product = None if rounding is None else _maker(rounding.inputs[0], Mul)
    factor = _before_reshapes(division.inputs[1])
    if product is None or factor is None or _before_reshapes(product.inputs[1]) is not factor:
        return None
    _, _, beta, mean, _ = (value for value in node.inputs if value is not None)
    offset = beta - mean * factor
    offset.name = f"{node.outputs[0].name}.bias"
    result = Node(plain.operator, [*plain.inputs[:2], offset], plain.name).output
    statistics = [value for value in node.inputs[3:] if value is not None]
    return (result, *statistics)[: len(node.outputs)]
