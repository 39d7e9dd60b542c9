"""What a caller of a graph must know: names, types and initial values, but no node."""

from __future__ import annotations

from collections.abc import Mapping

from glowtrain.deferred import dataclass
from glowtrain.graph.specialise.index_ranges import IndexedInput
from glowtrain.types import Array, LazyArray, TensorType


@dataclass(frozen=True)
class GraphInterface:
    """The types of inputs and outputs by name, the initial values of variables, which of these are parameters and which
    are updated, the inputs that are indices, and the modules outside of Glowtrain that operators come from."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    variables: Mapping[str, Array | LazyArray]
    parameters: frozenset[str]
    updated: frozenset[str]
    indexed: tuple[IndexedInput, ...]
    foreign: frozenset[str] = frozenset()
