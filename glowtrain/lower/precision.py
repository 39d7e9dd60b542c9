"""Which products of a model have factors that are rounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from glowtrain.errors import InputError
from glowtrain.graph import Graph, Node, Template
from glowtrain.graph.graph import nodes_within
from glowtrain.graph.specialise.template import example_of
from glowtrain.memory.precision import ALL, NARROW, WIDE, Precision, RoundedFactors, types_of
from glowtrain.names import layer_of, matches
from glowtrain.presentation.messages import unknown
from glowtrain.stages import DEFAULT, Facts
from glowtrain.types import f32

PRODUCT = "matrix product and no convolution of many channels in f32"


def factors_for(model: Graph | Template, precision: Precision, facts: Facts = DEFAULT.facts) -> RoundedFactors | None:
    """Which factors of a model or a training step are rounded, from what a person asked for. A layer is what
    :attr:`Node.layer` says; a pattern fits it by its name, that of a module that it is in, or of a parameter of it.

    Raises :class:`InputError` for what is no precision, where the model has no product of f32, and for patterns that
    fit no layer which has one.
    """
    if precision is None or isinstance(precision, RoundedFactors):
        return precision
    graph = model if isinstance(model, Graph) else example_of(model)
    if not any(map(_may_multiply, nodes_within(graph))):
        raise _nothing_rounded(f"{graph.name} has no {PRODUCT}")
    types = types_of(precision)
    return RoundedFactors() if set(types) == {ALL} else RoundedFactors(_wide_layers(graph, types, facts))


def _nothing_rounded(why: str) -> InputError:
    return InputError(f"precision {NARROW}: {why}, so nothing would be rounded; leave it out")


def _wide_layers(graph: Graph, types: Mapping[str, str], facts: Facts) -> tuple[str, ...]:
    """The layers with products that no pattern gives bf16, or a later one f32."""
    names = _names_of_layers(graph, facts)
    _check_patterns(types, names)
    chosen = {layer: [types[pattern] for pattern in types if _fits(own, pattern)] for layer, own in names.items()}
    wide = tuple(layer for layer, found in chosen.items() if not found or found[-1] == WIDE)
    if len(wide) == len(names):
        raise _nothing_rounded(f"the last pattern of each layer of {graph.name} has {WIDE}")
    return wide


def _check_patterns(patterns: Iterable[str], names: Mapping[str, Sequence[str]]) -> None:
    """Raise :class:`InputError` for patterns that fit no layer with products."""
    strange = [pattern for pattern in patterns if not any(_fits(own, pattern) for own in names.values())]
    known = dict.fromkeys(name for own in names.values() for name in own if name)
    if problem := unknown(strange, known, "layer of products", f"those with a {PRODUCT.replace('and no', 'or a')} are"):
        raise InputError(f"precision: there is {problem}")


def _names_of_layers(graph: Graph, facts: Facts) -> dict[str, list[str]]:
    """The layers with products of f32, and for each its name and those of its parameters."""
    from glowtrain.lower.expand import expand  # noqa: PLC0415  (of the compiler, which kept code does without)

    expanded = expand(graph, facts.costs)
    layers = dict.fromkeys(node.layer for node in nodes_within(expanded) if _multiplies(node))
    names = {layer: [layer] for layer in layers}
    for variable in graph.variables:
        if variable.trainable or variable not in graph.updates:
            names.get(layer_of(variable.name), []).append(variable.name)
    return names


def _fits(names: Sequence[str], pattern: str) -> bool:
    return any(matches(name, (pattern, f"{pattern}.*")) for name in names)


def _multiplies(node: Node) -> bool:
    """Whether an operator takes products of f32."""
    factors = node.operator.factors(*(None if value is None else value.type for value in node.inputs))
    operands = (node.inputs[at] for at in factors)
    return any(value is not None and value.dtype == f32 for value in operands)


def _may_multiply(node: Node) -> bool:
    """Whether an operator takes products of f32, or is written out by others, which may."""
    present = any(value is not None and value.dtype == f32 for value in node.inputs)
    return _multiplies(node) or (present and not node.operator.lowers(*node.inputs) and node.operator.has("decompose"))
