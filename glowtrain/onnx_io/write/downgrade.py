"""Downgrading: the attributes of operators in earlier operator sets, where the current ones are not there yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onnx import defs

from glowtrain.graph import Graph, Input, Node, Operator, Value, rewrite
from glowtrain.graph.operator import as_tuple
from glowtrain.onnx_io.write import tabular
from glowtrain.ops.resample.grid_sample import GridSample
from glowtrain.ops.resample.resize import Resize
from glowtrain.ops.tensor.pad import Pad
from glowtrain.ops.tensor.split import Split
from glowtrain.types import TensorType

Types = Sequence[TensorType | None]


def downgraded(operator: Operator, types: Types, schema: defs.OpSchema) -> Operator | None:
    """The same operator in the attributes that a definition has; ``None`` if it cannot say it."""
    rule = _RULES.get(operator.key())
    if rule is not None:
        return rule(operator, types, schema)
    return tabular.with_explicit_attributes(operator, types, schema) if operator.domain == "ai.onnx.ml" else operator


def decomposed(node: Node) -> Graph:
    """A node's operator in simpler ones, as a graph: inputs x0, x1, ... and outputs y0, y1, ..."""
    inputs = [None if value is None else Input(value.type, f"x{k}") for k, value in enumerate(node.inputs)]
    results = node.operator.decompose(*inputs)
    outputs = {f"y{k}": value for k, value in enumerate(as_tuple(results))}
    return Graph(tuple(value for value in inputs if value is not None), outputs)


def inlined(graph: Graph, is_written: Callable[[Node], bool]) -> Graph:
    """The graph with operators that are not written by decompositions in their place, those of the results too."""
    while (simpler := rewrite(graph, partial(_decomposition, is_written=is_written))) is not graph:
        graph = simpler
    return graph


def _decomposition(node: Node, *, is_written: Callable[[Node], bool]) -> Sequence[Value] | None:
    if is_written(node) or not node.operator.has("decompose"):
        return None
    return as_tuple(node.operator.decompose(*node.inputs))


def _split_by_sizes(operator: Operator, types: Types, schema: defs.OpSchema) -> Operator:
    """Opset 18 added ``num_outputs``; sizes say the same everywhere, and unequal ones without doubt."""
    assert isinstance(operator, Split)
    (x,) = types
    if x is None or operator.num_outputs is None:
        return operator
    sizes = operator.sizes(x)
    if "num_outputs" in schema.attributes and len(set(sizes)) == 1:
        return operator
    return Split(split=sizes, axis=operator.axis)


def _pad_every_axis(operator: Operator, types: Types, schema: defs.OpSchema) -> Operator:
    """Opset 18 added ``axes``."""
    assert isinstance(operator, Pad)
    x = types[0]
    if x is None or operator.axes is None or len(schema.inputs) > 3:
        return operator
    before, after = zip(*operator.margins(x), strict=True)
    return operator.replace(pads=(*before, *after), axes=None)


def _with_hidden_size(operator: Operator, types: Types, schema: defs.OpSchema) -> Operator:
    """Other runtimes want ``hidden_size`` though it follows from the recurrent weights [directions, ..., hidden]."""
    recurrent = types[2]
    return operator if recurrent is None else operator.replace(hidden_size=recurrent.shape[-1])


def _sampled_images(operator: Operator, types: Types, schema: defs.OpSchema) -> Operator | None:
    """Opset 20 named the modes by what they do in any number of dimensions; before there were images only."""
    assert isinstance(operator, GridSample)
    x = types[0]
    if schema.since_version >= 20:
        return operator.replace(mode=operator.kernel)
    if x is None or x.rank != 4:
        return None
    return operator.replace(mode={"linear": "bilinear", "cubic": "bicubic"}.get(operator.kernel, operator.kernel))


def _resized(operator: Operator, types: Types, schema: defs.OpSchema) -> Operator | None:
    """Opset 13 dropped a coordinate transformation, opset 19 added one."""
    assert isinstance(operator, Resize)
    mode, version = operator.coordinate_transformation_mode, schema.since_version
    known = version >= 19 if mode == "half_pixel_symmetric" else version < 13 or mode != "tf_half_pixel_for_nn"
    return operator if known else None


_RULES: dict[str, Callable[[Operator, Types, defs.OpSchema], Operator | None]] = {
    "Split": _split_by_sizes,
    "Pad": _pad_every_axis,
    "GridSample": _sampled_images,
    "Resize": _resized,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _with_hidden_size),
}
