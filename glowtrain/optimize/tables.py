"""Functions of one byte, found in graphs: what an activation is between two quantizations.

A value that depends on one quantized tensor only, element by element, has at most 256 results. Where it costs a
transcendental function or a division, they are computed once (by the references, so that every backend has the same
bits) and looked up: ONNX Runtime and gemmlowp do the same for sigmoid and tanh.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from glowtrain.graph import Constant, Node, Value, constant, rebuild, topological
from glowtrain.loops import FUNCTIONS, Apply, Const, walk
from glowtrain.loops.functions import Cost
from glowtrain.ops.core.evaluate import run_nodes
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear, limits
from glowtrain.ops.quantized.integer_products import BYTES
from glowtrain.ops.quantized.lookup import Lookup
from glowtrain.types import Array

LONGEST = 32
"""Nodes of a function at most."""


def as_table(node: Node) -> Value | None:
    """The output of a node, looked up, if it is a function of one byte that is worth it."""
    nodes = list(_function(node))
    sources = {source for inner in nodes for source in inner.inputs if _is_source(source)}
    if len(sources) != 1 or len(nodes) > LONGEST or not any(_is_costly(inner) for inner in nodes):
        return None
    (source,) = sources
    if source is None or source.shape != node.output.shape or not all(_fits(inner, source) for inner in nodes):
        return None
    result: Value = Lookup()(constant(_table(node, source)), _byte(source))
    return result


def _function(node: Node) -> Iterator[Node]:
    """The node and those that it depends on, down to what was dequantized; longer functions are cut off."""
    seen: set[Node] = set()
    stack = [node]
    while stack and len(seen) <= LONGEST:
        found = stack.pop()
        if found not in seen:
            seen.add(found)
            yield found
            stack += [v.node for v in found.inputs if v is not None and v.node is not None and not _is_source(v)]


def _is_source(value: Value | None) -> bool:
    """Whether a value was dequantized from bytes, with one scale."""
    node = value.node if value is not None else None
    if node is None or not isinstance(node.operator, DequantizeLinear):
        return False
    x, scale, zero = (*node.inputs, None)[:3]
    known = isinstance(scale, Constant) and (zero is None or isinstance(zero, Constant))
    return known and x is not None and x.dtype in BYTES and scale is not None and scale.type.size == 1


def _byte(source: Value) -> Value:
    node = source.node
    assert node is not None
    value = node.inputs[0]
    assert value is not None
    return value


def _fits(node: Node, source: Value) -> bool:
    """Whether each element of the node's results depends on the source's element at its place, and constants."""
    others = [value for value in node.inputs if value is not None and value.node is None]
    if not all(isinstance(value, Constant) and value.type.size == 1 for value in others):
        return False
    shaped = all(output.shape in (source.shape, ()) for output in node.outputs)
    return shaped and not node.operator.random and (node.operator.elementwise or _quantizes(node))


def _quantizes(node: Node) -> bool:
    scale = node.inputs[1] if isinstance(node.operator, QuantizeLinear) else None
    return scale is not None and scale.type.size == 1


def _is_costly(node: Node) -> bool:
    """Whether the function takes more than a few cycles per element."""
    if not isinstance(node.operator, Elementwise):
        return False
    arguments = [None if value is None else Const(1, value.dtype) for value in node.inputs]
    parts = walk(node.operator.scalar(*arguments))
    return any(isinstance(part, Apply) and FUNCTIONS[part.function].cost == Cost.EXPENSIVE for part in parts)


def _table(node: Node, source: Value) -> Array:
    """The node's result for every byte."""
    byte = _byte(source)
    low, high = limits(byte.dtype)
    places = (high - low + 1, *(1,) * (byte.rank - 1))
    every = Constant(np.arange(low, high + 1).astype(byte.dtype.numpy).reshape(places))
    assert source.node is not None
    start: Value = source.node.operator(every, *source.node.inputs[1:])
    (root,) = rebuild([node.output], {source: start})
    known: dict[Value, Array] = {}
    run_nodes(topological([root]), known)
    return known[root].reshape(-1)
