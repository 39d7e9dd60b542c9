"""Operators' references, run over arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from glowtrain.graph import Constant, Node, Operator, Value
from glowtrain.graph.operator import as_tuple
from glowtrain.types import Array


def results_of(operator: Operator, operands: Iterable[Array | None]) -> tuple[Array, ...]:
    """What an operator's reference gives, however many results, as row-major arrays: NumPy sums in another order where
    the axes lie otherwise.

    Floating-point warnings are off: infinities and NaN are data.
    """
    with np.errstate(all="ignore"):
        results: Any = operator.reference(*operands)
    return tuple(np.asarray(result, order="C") for result in as_tuple(results))


def run_node(node: Node, environment: Mapping[Value, Array]) -> tuple[Array, ...]:
    """The node's outputs for its operands' values in ``environment``; constants that are not in it have their own.

    Raises :class:`KeyError` for an operand that is neither.
    """
    return results_of(node.operator, (None if value is None else _array(value, environment) for value in node.inputs))


def run_nodes(nodes: Iterable[Node], environment: dict[Value, Array]) -> None:
    """Add the outputs of nodes, which are in order, to the environment (see :func:`run_node`)."""
    for node in nodes:
        environment.update(zip(node.outputs, run_node(node, environment), strict=True))


def _array(value: Value, environment: Mapping[Value, Array]) -> Array:
    return value.array if isinstance(value, Constant) and value not in environment else environment[value]
