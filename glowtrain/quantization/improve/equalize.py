"""Cross-layer equalisation: channels of neighbouring layers scaled so that their weights have equal ranges.

Where f(s · x) = s · f(x) for s > 0, a channel may be divided by s in one layer and multiplied by it in the next. With
s = r1 / sqrt(r1 · r2) for the ranges r1 and r2 of the channel's weights in the two layers both become sqrt(r1 · r2),
and one scale per tensor serves all channels well. Nagel et al., "Data-Free Quantization Through Weight Equalization and
Bias Correction" (2019), sections 4.1 and 4.1.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Graph, Node, Value, Variable
from glowtrain.quantization.export.constants import Arrays, only_reader
from glowtrain.types import Array

ROUNDS = 20
"""Times that all pairs are equalised at most; chains of layers settle after a few."""
SETTLED = 1e-3
"""Changes of scale below which a chain has settled."""
_PROBES = np.array([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0], np.float32)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two contractions of which only the second reads the first's channels; ``own`` is true of depthwise second ones,
    whose weights have the channel on their own channel axis."""

    first: Node
    second: Node
    own: bool


def equalized(graph: Graph) -> dict[str, Array]:
    """Values of weights and biases, by variable, under which the folded graph computes the same with more even weights.

    Layers with weights that others read too stay as they are.
    """
    pairs, arrays = list(_pairs(graph)), Arrays()
    values = {v.name: arrays.required(v).astype(np.float64) for p in pairs for v in _parameters(p)}
    for _ in range(ROUNDS):
        change = max((_equalize(pair, values) for pair in pairs), default=0.0)
        if change < SETTLED:
            break
    types = {variable.name: variable.dtype.numpy for variable in graph.variables}
    return {name: array.astype(types[name]) for name, array in values.items()}


def _pairs(graph: Graph) -> Iterator[Pair]:
    readers = {value: len(nodes) for value, nodes in graph.users.items()}
    for node in graph.nodes:
        if not _has_variables(node, readers):
            continue
        value = node.outputs[0]
        reader = only_reader(graph, value)
        while reader is not None and _keeps_scale(reader):
            value = reader.outputs[0]
            reader = only_reader(graph, value)
        if reader is None or reader.inputs[0] is not value or not _has_variables(reader, readers):
            continue
        own = _own_channels(reader)
        if own is not None and _channel_axis(node) == _channel_axis(reader):
            yield Pair(node, reader, own)


def _has_variables(node: Node, readers: dict[Value, int]) -> bool:
    """Whether a contraction's weight and bias are variables that nothing else reads."""
    if node.operator.quantized != "contraction" or not all(
        getattr(node.operator, factor, 1.0) == 1.0 for factor in ("alpha", "beta")
    ):
        return False
    parameters = [value for value in node.inputs[1:] if value is not None]
    return bool(parameters) and all(isinstance(v, Variable) and readers[v] == 1 for v in parameters) and _ranks(node)


def _ranks(node: Node) -> bool:
    """One bias for each channel, and weights with axes; groups that share weights are left alone."""
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    axes = _axes(node)
    if weight is None or axes is None:
        return False
    channels = weight.shape[axes[0]]
    return channels == _channels(node) and (bias is None or bias.shape == (channels,))


def _channels(node: Node) -> int:
    result = node.outputs[0]
    return result.shape[_channel_axis(node)]


def _axes(node: Node) -> tuple[int, int] | None:
    return node.operator.weight_axes(1, *(None if value is None else value.type for value in node.inputs))


def _channel_axis(node: Node) -> int:
    """The axis of channels in a contraction's data: 1 for images, the last one for matrices."""
    weight = node.inputs[1]
    assert weight is not None
    return 1 if weight.rank > 2 else node.outputs[0].rank - 1


def _own_channels(node: Node) -> bool | None:
    """Whether a contraction reads each channel into results of its own; ``None`` for groups of several."""
    group, weight, data = getattr(node.operator, "group", 1), node.inputs[1], node.inputs[0]
    assert weight is not None
    assert data is not None
    if group == 1:
        return False
    axes = _axes(node)
    depthwise = group == data.shape[1] and axes is not None and weight.shape[axes[0]] == group
    return True if depthwise and axes == (0, 1) else None


def _keeps_scale(node: Node) -> bool:
    """Whether f(s · x) = s · f(x) for s > 0, seen from the operator's own reference, or elements only pass."""
    operator = node.operator
    if operator.quantized == "passes":
        return not operator.moves and node.inputs[0] is not None and node.outputs[0].rank == node.inputs[0].rank
    if not operator.elementwise or sum(value is not None for value in node.inputs) != 1:
        return False
    results = [np.asarray(operator.reference(_PROBES * np.float32(scale))) for scale in (1.0, 4.0)]
    return bool(np.array_equal(results[0] * np.float32(4.0), results[1]))


def _parameters(pair: Pair) -> Iterator[Variable]:
    for node in (pair.first, pair.second):
        yield from (value for value in node.inputs[1:] if isinstance(value, Variable))


def _equalize(pair: Pair, values: dict[str, Array]) -> float:
    """Equalise one pair in place; the largest change of a scale."""
    first, bias = pair.first.inputs[1], pair.first.inputs[2] if len(pair.first.inputs) > 2 else None
    second, axes, after = pair.second.inputs[1], _axes(pair.first), _axes(pair.second)
    assert first is not None
    assert second is not None
    assert axes is not None
    assert after is not None
    read = after[0] if pair.own else after[1]
    ranges = _ranges(values[first.name], axes[0]), _ranges(values[second.name], read)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = ranges[0] / np.sqrt(ranges[0] * ranges[1])
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    values[first.name] = values[first.name] / _along(scale, axes[0], first.rank)
    values[second.name] = values[second.name] * _along(scale, read, second.rank)
    if bias is not None:
        values[bias.name] = values[bias.name] / scale
    return float(np.abs(np.log(scale)).max(initial=0.0))


def _ranges(array: Array, axis: int) -> Array:
    greatest: Array = np.abs(array).max(tuple(a for a in range(array.ndim) if a != axis))
    return greatest


def _along(scale: Array, axis: int, rank: int) -> Array:
    return scale.reshape([-1 if a == axis else 1 for a in range(rank)])
