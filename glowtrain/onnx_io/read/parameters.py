"""Which initializers of a file are parameters, which are state, and which are constants.

ONNX does not say. The rule was made from what PyTorch's exporters write for known models. An initializer is a
parameter if

- its elements are floats, its rank is at least 1 (scalars are constants of formulas: 0.5, a ratio, a bound),
- all elements are finite and below 1e30 (attention masks are not), and
- some output depends on it differentiably, through other inputs than those that an operator declares as its settings
  or as an initial state that is zero, and those that are fixed when compiling.

Running statistics (``running_inputs``) are state that is not trained. Everything else is a constant, and so is
what PyTorch's dynamo exporter says is not a parameter (:mod:`glowtrain.onnx_io.read.exported`).

Exporters also merge parameters that happen to have equal values at export (all LayerNormalization scales of 1). An
initializer whose elements are all equal and that several nodes read as a parameter therefore becomes one for each.

Files that Glowtrain wrote say it: the metadata :data:`METADATA` of a model holds a JSON object from the names of
variables to whether they are trainable. The rule above is for the other initializers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from glowtrain.errors import ModelError
from glowtrain.graph import Operator, Variable, lookup
from glowtrain.onnx_io.read.source import captures, is_standard, set_nodes
from glowtrain.onnx_io.schema.attributes import static_inputs
from glowtrain.types import Array, dtype_of

METADATA = "glowtrain.variables"
"""The entry of a model's metadata that says which initializers are variables, and which of them are trainable."""

_LARGEST = 1e30


@dataclass(frozen=True)
class Roles:
    """Names of initializers that become variables: trainable ones, and running statistics."""

    trainable: frozenset[str]
    running: frozenset[str]


def key_of(node: NodeProto) -> str:
    """The registry key of a node's operator."""
    return node.op_type if is_standard(node.domain) else f"{node.domain}.{node.op_type}"


def class_of(node: NodeProto) -> type[Operator] | None:
    """The registered operator of a node: under its own key, or one of Glowtrain's that finds the size of its result."""
    own, sized = lookup(key_of(node)), lookup(f"glowtrain.{node.op_type}")
    return sized if own is None and sized is not None and sized.has("found_sizes") else own


def state_variables(model: ModelProto, variables: Sequence[Variable]) -> None:
    """Write down in a model which of its initializers are variables."""
    if variables:
        helper.set_model_props(model, {METADATA: json.dumps({v.name: v.trainable for v in variables})})


def stated_variables(model: ModelProto, title: str) -> dict[str, bool]:
    """What a model says of its variables: whether they are trainable, by name. Raises :class:`ModelError`."""
    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA), "{}")
    try:
        stated = json.loads(text)
    except ValueError as error:
        raise ModelError(f"{title}: the metadata {METADATA!r} are not JSON: {error}") from None
    if not isinstance(stated, dict) or not all(isinstance(trainable, bool) for trainable in stated.values()):
        raise ModelError(f"{title}: the metadata {METADATA!r} must be an object from names to true or false")
    return stated


def roles(
    graph: GraphProto, arrays: dict[str, Array], stated: Mapping[str, bool], constants: Collection[str] = ()
) -> Roles:
    """The role of every initializer: what the file says, else by the rule above; ``constants`` are known not to be."""
    live = _live(graph, arrays).difference(constants)
    running = frozenset(name for node in graph.node for name in _running(node) if name in arrays)
    trainable = {name for name, array in arrays.items() if name in live and name not in running and _is_weight(array)}
    trained = {name for name, is_trained in stated.items() if is_trained and name in arrays}
    frozen = {name for name in stated if name in arrays} - trained
    return Roles(frozenset(trainable - frozen | trained), frozenset(running - trained | frozen))


def _is_weight(array: Array) -> bool:
    if not dtype_of(array.dtype).is_float or array.ndim == 0:
        return False
    if not array.size:
        return True
    with np.errstate(invalid="ignore"):
        return float(array.min()) > -_LARGEST and float(array.max()) < _LARGEST  # NaN is on no side of anything


def _running(node: NodeProto) -> list[str]:
    return [name for place, name in enumerate(node.input) if name and _is_running(node, place)]


def _live(graph: GraphProto, arrays: dict[str, Array]) -> set[str]:
    """Names of values that an output depends on differentiably."""
    live = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if live.isdisjoint(node.output):
            continue
        cls = class_of(node)
        if cls is None or cls.differentiable:
            live.update(_differentiable_inputs(node, cls, arrays))
            live.update(captures(node))
    return live


def _differentiable_inputs(node: NodeProto, cls: type[Operator] | None, arrays: dict[str, Array]) -> Iterator[str]:
    fixed = set() if cls is None else {*static_inputs(cls), *cls.running_inputs, *cls.setting_inputs}
    initial = () if cls is None else cls.state_inputs
    for place, name in enumerate(node.input):
        zero_state = place in initial and name in arrays and not arrays[name].any()
        if name and place not in fixed and not zero_state:
            yield name


def untie(graph: GraphProto, arrays: dict[str, Array], shared: Container[str] = ()) -> None:
    """Give every node its own copy of merged parameters and of running statistics, in place; not of ``shared`` ones.

    A copy takes the name under which the exporter passed it on (through Identity), or ``<name>.<number>``.
    """
    sources = _aliases(graph, arrays)
    slots: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
    for node in graph.node:
        for place, name in enumerate(node.input):
            source = sources.get(name)
            if source is not None and _reads_parameter(node, place):
                slots[source].append((node, place))
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | set(arrays)
    for source, uses in slots.items():
        readers = {(id(node), _is_running(node, place)) for node, place in uses}
        running = all(_is_running(node, place) for node, place in uses)
        if len(readers) > 1 and source not in shared and (running or _is_uniform_weight(arrays[source])):
            _split(source, uses, arrays, taken)
    kept = [node for node in graph.node if not (node.op_type == "Identity" and node.output[0] in arrays)]
    if len(kept) < len(graph.node):
        set_nodes(graph, kept)


def _aliases(graph: GraphProto, arrays: dict[str, Array]) -> dict[str, str]:
    """The initializer behind each name: itself, or what Identity passes on."""
    sources = {name: name for name in arrays}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
    return sources


def _reads_parameter(node: NodeProto, place: int) -> bool:
    """Whether an input is computed with, rather than moved, measured or joined."""
    cls = class_of(node)
    if cls is None or cls.copies or not cls.differentiable:
        return False
    return place not in static_inputs(cls) and place not in cls.setting_inputs


def _is_running(node: NodeProto, place: int) -> bool:
    cls = class_of(node)
    return cls is not None and place in cls.running_inputs


def _is_uniform_weight(array: Array) -> bool:
    return _is_weight(array) and array.size > 0 and bool((array == array.reshape(-1)[0]).all())


def _split(source: str, uses: list[tuple[NodeProto, int]], arrays: dict[str, Array], taken: set[str]) -> None:
    kept: set[str] = set()
    names: dict[tuple[int, str, bool], str] = {}
    for node, place in uses:
        alias = node.input[place]
        key = (id(node), alias, _is_running(node, place))
        if key not in names:
            names[key] = _own_name(source, alias, kept, taken)
            kept.add(names[key])
        arrays[names[key]] = arrays[source]
        node.input[place] = names[key]


def _own_name(source: str, alias: str, kept: set[str], taken: set[str]) -> str:
    if alias not in kept and alias != source:
        return alias
    if source not in kept:
        return source
    number = 1
    while f"{source}.{number}" in taken | kept:
        number += 1
    return f"{source}.{number}"
