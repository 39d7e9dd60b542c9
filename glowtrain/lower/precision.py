"""Whether a model has products whose factors can be rounded."""

from __future__ import annotations

from collections.abc import Iterator

from glowtrain.errors import InputError
from glowtrain.graph import Graph, Node, Template
from glowtrain.graph.graph import bodies_of
from glowtrain.graph.specialise.template import example_of
from glowtrain.memory.precision import Precision, checked_precision
from glowtrain.types import f32


def precision_for(model: Graph | Template, precision: str | None) -> Precision:
    """The precision of a model's products, from what a person asked for.

    Raises :class:`InputError` for anything but ``"bf16"`` and ``None``, and where the model has no product of f32.
    """
    checked = checked_precision(precision)
    if checked is None:
        return None
    graph = model if isinstance(model, Graph) else example_of(model)
    if not any(map(_may_multiply, _nodes(graph))):
        raise InputError(
            f"precision {precision}: {graph.name} has no matrix product and no convolution of many channels in f32, so "
            "nothing would be rounded; leave it out"
        )
    return checked


def _nodes(graph: Graph) -> Iterator[Node]:
    """The nodes, and those of bodies."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node.operator).values():
            yield from _nodes(body)


def _may_multiply(node: Node) -> bool:
    """Whether an operator takes products of f32, or is written out by others, which may."""
    present = [value for value in node.inputs if value is not None and value.dtype == f32]
    types = [None if value is None else value.type for value in node.inputs]
    written_out = not node.operator.lowers(*node.inputs) and node.operator.has("decompose")
    return bool(present) and (written_out or bool(node.operator.factors(*types)))
