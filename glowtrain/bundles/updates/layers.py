"""The layers of a model with what can be trained of each, in the order in which a backward pass meets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from glowtrain.graph import Graph, Variable
from glowtrain.names import module_of
from glowtrain.types import Array


@dataclass(frozen=True)
class LayerParameters:
    """A module of a model: its vectors that are added (biases), and its other parameters."""

    name: str
    biases: tuple[Variable, ...]
    weights: tuple[Variable, ...]


def layers_of(graph: Graph) -> list[LayerParameters]:
    """The layers of a model, the last first; scales of normalizations with running statistics stay as they are."""
    scales = set(_scales(graph))
    found: dict[str, list[Variable]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if isinstance(value, Variable) and value.trainable and value.dtype.is_float and value not in scales:
                members = found.setdefault(module_of(value.name) or value.name, [])
                members += [] if value in members else [value]
    return [_layer(name, members) for name, members in reversed(found.items())]


def learning(layers: Iterable[LayerParameters], squares: Mapping[str, Array]) -> list[LayerParameters]:
    """The layers with those parameters that have any gradient: what lies before a rounded value would learn nothing."""

    def left(variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        return tuple(variable for variable in variables if squares[variable.name].any())

    found = (LayerParameters(layer.name, left(layer.biases), left(layer.weights)) for layer in layers)
    return [layer for layer in found if layer.biases or layer.weights]


def _scales(graph: Graph) -> Iterator[Variable]:
    for node in graph.nodes:
        scale = node.inputs[1] if node.operator.running_inputs else None
        if isinstance(scale, Variable):
            yield scale


def _layer(name: str, members: list[Variable]) -> LayerParameters:
    vectors = tuple(variable for variable in members if variable.rank <= 1)
    return LayerParameters(name, vectors, tuple(variable for variable in members if variable not in vectors))
