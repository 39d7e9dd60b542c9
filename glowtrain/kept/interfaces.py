"""Interfaces of graphs, and specs of tensors, as files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from glowtrain.backends.container import pack, unpack
from glowtrain.errors import ArtifactError, ShapeError
from glowtrain.graph import Binding, Graph
from glowtrain.graph.graph import INTERFACE
from glowtrain.graph.specialise.index_ranges import IndexedInput, IndexRange
from glowtrain.kept.origin import GraphOrigin
from glowtrain.types import DTYPES, Array, LazyArray, Spec, TensorType, elements_of, parse_type, type_of

_GRAPH, _SPECS, _NAMES = "graph", "specs", "names"
"""Kinds of files."""

LARGEST = 1 << 20
"""Bytes of initial values in a file: a cache of code is no place for weights."""

_IN_MODEL, _EVEN, _HERE = "in model", "even", "here"
"""Where an initial value is: in the model's files, all of one number, or beside the interface."""

BROKEN = ArtifactError, ShapeError, AttributeError, IndexError, KeyError, TypeError, ValueError
"""What reading a file raises that is not what it should be."""


@dataclass(frozen=True)
class Known:
    """What is known of a graph: its name, the dimensions it is bound to, the attributes of its interface
    (:data:`~glowtrain.graph.graph.INTERFACE`), and its key if that was asked for."""

    name: str
    binding: Binding
    interface: dict[str, Any]
    key: str | None


def graph_bytes(graph: Graph, origin: GraphOrigin) -> bytes | None:
    """The file of what is known of a graph. None for one that is bound by more than dimensions, returns more than
    tensors, has operators from elsewhere, or initial values that are to be found nowhere else and are large."""
    binding = graph.binding
    if graph.results is not None or binding.values or binding.parts or graph.foreign_modules:
        return None
    here: dict[str, Array] = {}
    variables = [
        [name, str(type_of(initial)), name in graph.parameter_names, *_place(origin, name, initial, here)]
        for name, initial in graph.initial_values.items()
    ]
    if sum(array.nbytes for array in here.values()) > LARGEST:
        return None
    facts = {
        "origin": origin.key,
        "name": graph.name,
        "dims": dict(binding.dims),
        "key": graph.__dict__.get("key"),
        "inputs": types_text(graph.input_types),
        "outputs": types_text(graph.output_types),
        "variables": variables,
        "updated": sorted(graph.updated_names),
        "indexed": [
            [use.name, use.allowed.low, use.allowed.high, use.allowed.ignored, use.rearranged, use.fixed]
            for use in graph.indexed_inputs
        ],
    }
    return pack(_GRAPH, here, facts)


def read_graph(data: bytes, origin: GraphOrigin) -> Known | None:
    """What :func:`graph_bytes` wrote; None for anything else."""
    try:
        here, facts = unpack(_GRAPH, data)
        _check_origin(facts, origin)
        initial = {
            name: _initial(origin, name, parse_type(text), where, here) for name, text, _, *where in facts["variables"]
        }
        values = (
            types_of_text(facts["inputs"]),
            types_of_text(facts["outputs"]),
            initial,
            frozenset(name for name, _, trainable, *_ in facts["variables"] if trainable),
            frozenset(facts["updated"]),
            tuple(_indexed(*use) for use in facts["indexed"]),
            frozenset[str](),
        )
        interface = dict(zip(INTERFACE, values, strict=True))
        return Known(as_text(facts["name"]), Binding(dict(facts["dims"])), interface, _key(facts["key"]))
    except BROKEN:
        return None


def _place(origin: GraphOrigin, name: str, initial: Array | LazyArray, here: dict[str, Array]) -> tuple[str, ...]:
    """Where an initial value is found again; it is added to ``here`` where that is nowhere else."""
    if origin.holds(name, initial):
        return (_IN_MODEL,)
    array = elements_of(initial)
    first = array.reshape(-1)[:1].tobytes()
    if array.tobytes() == first * array.size:
        return _EVEN, first.hex()
    here[name] = array
    return (_HERE,)


def _initial(
    origin: GraphOrigin, name: str, type_: TensorType, where: list[str], here: Mapping[str, Array]
) -> Array | LazyArray:
    found: Array | LazyArray
    match where:
        case ["in model"]:
            found = origin.arrays[name]
        case ["even", number]:
            found = LazyArray(type_, partial(_even, bytes.fromhex(number), type_))
        case _:
            found = here[name]
    if not type_.accepts(found):
        raise ArtifactError(f"the initial value of {name} is no {type_}")
    return found


def _even(element: bytes, type_: TensorType) -> Array:
    if not type_.size:
        return np.zeros(type_.shape, type_.dtype.numpy)
    return np.broadcast_to(np.frombuffer(element, type_.dtype.numpy).reshape(()), type_.shape)


def _indexed(name: str, low: Any, high: Any, ignored: int | None, *facts: bool) -> IndexedInput:
    low, high = (tuple(bound) if isinstance(bound, list) else bound for bound in (low, high))
    return IndexedInput(name, IndexRange(low, high, ignored), *facts)


def types_text(types: Mapping[str, TensorType]) -> dict[str, str]:
    """Types by name as JSON can hold them."""
    return {name: str(type_) for name, type_ in types.items()}


def types_of_text(texts: Mapping[str, str]) -> dict[str, TensorType]:
    """What :func:`types_text` wrote. Raises :class:`ShapeError` and others for anything else."""
    return {name: parse_type(text) for name, text in texts.items()}


def specs_text(specs: Mapping[str, Spec]) -> dict[str, Any]:
    """Specs as JSON can hold them."""
    return {name: [spec.dtype.name, *spec.shape] for name, spec in specs.items()}


def specs_of_text(texts: Mapping[str, Any]) -> dict[str, Spec]:
    """What :func:`specs_text` wrote. Raises :class:`KeyError` and others for anything else."""
    return {name: Spec(DTYPES[dtype], tuple(shape)) for name, (dtype, *shape) in texts.items()}


def specs_bytes(specs: Mapping[str, Spec], origin: GraphOrigin) -> bytes:
    """The file of some specs."""
    return pack(_SPECS, {}, {"origin": origin.key, "specs": specs_text(specs)})


def read_specs(data: bytes, origin: GraphOrigin) -> dict[str, Spec] | None:
    """What :func:`specs_bytes` wrote; None for anything else."""
    try:
        facts = unpack(_SPECS, data)[1]
        _check_origin(facts, origin)
        return specs_of_text(facts["specs"])
    except BROKEN:
        return None


def names_bytes(names: tuple[str, ...], origin: GraphOrigin) -> bytes:
    """The file of some names."""
    return pack(_NAMES, {}, {"origin": origin.key, "names": list(names)})


def read_names(data: bytes, origin: GraphOrigin) -> tuple[str, ...] | None:
    """What :func:`names_bytes` wrote; None for anything else."""
    try:
        facts = unpack(_NAMES, data)[1]
        _check_origin(facts, origin)
        return tuple(map(as_text, facts["names"]))
    except BROKEN:
        return None


def as_text(value: Any) -> str:
    """A fact that is a text. Raises :class:`TypeError` for another."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _key(value: Any) -> str | None:
    if value is None:
        return None
    key = as_text(value)
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"{key!r} is no key")
    return key


def _check_origin(facts: Mapping[str, Any], origin: GraphOrigin) -> None:
    """A cache says the same of its keys, but not what lies under them."""
    if facts["origin"] != origin.key:
        raise ArtifactError("what is known is of something else")
