"""Which initializers of a file are parameters, which are state, and which are constants.

ONNX does not say. The rule was made from what PyTorch's exporters write for known models. An initializer is a
parameter if

- its elements are floats, its rank is at least 1 (scalars are constants of formulas: 0.5, a ratio, a bound),
- all elements are finite and below 1e30 (attention masks are not), and
- some output depends on it differentiably, through other inputs than those that an operator declares as its settings
  or as an initial state that is zero, and those that are fixed when compiling.

Running statistics (``running_inputs``) are state that is not trained. Everything else is a constant, and so is
what PyTorch's dynamo exporter says is not a parameter (:mod:`glowtrain.onnx_io.read.exported`).

Several nodes that read an initializer share it, unless exporters merged equal ones
(:mod:`glowtrain.onnx_io.read.sharing`).

Files that Glowtrain wrote say it: the metadata :data:`METADATA` of a model holds a JSON object from the names of
variables to whether they are trainable. The rule above is for the other initializers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from glowtrain.errors import ModelError
from glowtrain.graph import Operator, Variable, lookup
from glowtrain.onnx_io.read.source import captures, is_standard
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
    own = lookup(key_of(node))
    if own is not None:
        return own
    sized = lookup(f"glowtrain.{node.op_type}")
    return sized if sized is not None and sized.has("data_dependent_sizes") else None


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
    trainable = {name for name, array in arrays.items() if name in live and name not in running and is_weight(array)}
    trained = {name for name, is_trained in stated.items() if is_trained and name in arrays}
    frozen = {name for name in stated if name in arrays} - trained
    return Roles(frozenset(trainable - frozen | trained), frozenset(running - trained | frozen))


def is_weight(array: Array) -> bool:
    """Whether a parameter may look like that: finite floats, of rank 1 at least."""
    if not dtype_of(array.dtype).is_float or array.ndim == 0:
        return False
    if not array.size:
        return True
    with np.errstate(invalid="ignore"):
        return float(array.min()) > -_LARGEST and float(array.max()) < _LARGEST  # NaN is on no side of anything


def _running(node: NodeProto) -> list[str]:
    cls = class_of(node)
    positions = () if cls is None else cls.running_inputs
    return [name for position, name in enumerate(node.input) if name and position in positions]


def is_running(node: NodeProto, position: int) -> bool:
    """Whether an operand is a running statistic."""
    cls = class_of(node)
    return cls is not None and position in cls.running_inputs


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
    for position, name in enumerate(node.input):
        zero_state = position in initial and name in arrays and not arrays[name].any()
        if name and position not in fixed and not zero_state:
            yield name
