"""Models of older operator sets, and with functions of their own, as models of the newest operator set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    checker,
    defs,
    helper,
    inliner,
    shape_inference,
    version_converter,
)

from glowtrain.errors import ModelError
from glowtrain.graph import lookup
from glowtrain.onnx_io.batched_scan import BATCHED, check_lengths, copied_types, scan_batches
from glowtrain.onnx_io.check import check_operands
from glowtrain.onnx_io.oldest import FORM, modernize, take
from glowtrain.onnx_io.resizes import LAST_WITHOUT_COORDINATES, state_coordinates
from glowtrain.onnx_io.source import Model, is_standard, opset_of, set_nodes, subgraphs
from glowtrain.ops.random_draw import SeededDraw

NEWEST_OPSET = defs.onnx_opset_version()

_LONGEST_SHAPE = 1 << 12
"""Elements of an input up to which it may be a shape."""

_FAILURES: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    MemoryError,
    checker.ValidationError,
    shape_inference.InferenceError,
    version_converter.ConvertError,
)
"""What the converter and the inliner raise on models that they cannot handle."""


def upgrade(model: Model) -> ModelProto:
    """The model at the newest operator set, with its functions inlined and without types of intermediate values.

    Raises :class:`ModelError` naming the operators for which there is no way up.
    """
    long = _forget_lengths(model.proto.graph)
    proto = _inlined(model)
    del proto.graph.value_info[:]
    opset = opset_of(proto) or 0
    if opset <= FORM:
        modernize(proto)
        _from_6_to_7(proto)
    declared = copied_types(proto.graph)
    if opset == BATCHED:
        check_lengths(proto.graph, model.title)
    newest = proto if opset == NEWEST_OPSET else _converted(proto, opset, model.title)
    if opset == BATCHED:
        scan_batches(newest.graph, declared)
    _after_conversion(newest.graph)
    if opset <= LAST_WITHOUT_COORDINATES:
        state_coordinates(_all_nodes(newest.graph), newest.graph)
    for value in newest.graph.input:
        if value.name in long:
            value.CopyFrom(long[value.name])
    check_operands(newest.graph, model.title)
    return newest


def _forget_lengths(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """Make the extents of very long lists of integers unknown; their inputs as they were, by name.

    Shape inference takes them for shapes, and makes as many dimensions.
    """
    forgotten: dict[str, ValueInfoProto] = {}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        is_shape = value.type.tensor_type.elem_type == TensorProto.INT64 and len(dims) == 1
        if is_shape and dims[0].dim_value > _LONGEST_SHAPE:
            forgotten[value.name] = ValueInfoProto()
            forgotten[value.name].CopyFrom(value)
            dims[0].ClearField("dim_value")
    return forgotten


def _converted(proto: ModelProto, opset: int, title: str) -> ModelProto:
    try:
        return version_converter.convert_version(proto, NEWEST_OPSET)
    except _FAILURES as error:
        changed = _changed_operators(proto.graph, opset)
        if not changed:
            return proto
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{title} uses opset {opset} and cannot be converted to {NEWEST_OPSET}: {reason}. "
            f"These operators have changed since: {', '.join(changed)}"
        ) from None


def _after_conversion(graph: GraphProto) -> None:
    """What the converter leaves: a name that was dropped; and seeds, so that random nodes without one differ.

    They are not whole numbers, as given ones are.
    """
    seed = 0.5
    for node in _all_nodes(graph):
        if not is_standard(node.domain):
            continue
        if node.op_type == "Scatter":
            node.op_type = "ScatterElements"
        draws = lookup(node.op_type)
        if draws is not None and issubclass(draws, SeededDraw):
            seed += 1
            if not any(attribute.name == "seed" for attribute in node.attribute):
                node.attribute.append(helper.make_attribute("seed", seed))


def _inlined(model: Model) -> ModelProto:
    if not model.proto.functions:
        return model.proto
    try:
        return inliner.inline_local_functions(model.proto, convert_version=True)
    except _FAILURES as error:
        names = ", ".join(function.name for function in model.proto.functions)
        raise ModelError(f"{model.title}: its functions {names} cannot be inlined: {error}") from None


def _changed_operators(graph: GraphProto, opset: int) -> list[str]:
    """The operators whose signatures differ between ``opset`` and the newest."""
    kinds = {node.op_type for node in _all_nodes(graph) if is_standard(node.domain) and defs.has(node.op_type)}
    return sorted(kind for kind in kinds if _signature(kind, opset) != _signature(kind, NEWEST_OPSET))


def _all_nodes(graph: GraphProto) -> list[NodeProto]:
    nodes = list(graph.node)
    for node in graph.node:
        for body in subgraphs(node):
            nodes += _all_nodes(body)
    return nodes


def _signature(kind: str, opset: int) -> Any:
    try:
        schema = defs.get_schema(kind, opset)
    except defs.SchemaError:
        return None
    attributes = {name: str(attribute.default_value) for name, attribute in schema.attributes.items()}
    return [entry.name for entry in schema.inputs], [entry.name for entry in schema.outputs], attributes


def _from_6_to_7(proto: ModelProto) -> None:
    """Opset 7 made NumPy's broadcasting the only one, and dropped attributes that only training used.

    The converter of the onnx package has no such step for comparisons, logic and recurrent operators.
    """
    ranks = _Ranks(proto)
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        step = _STEPS_6_TO_7.get(node.op_type)
        if step is not None and is_standard(node.domain):
            step(node, ranks, nodes)
        nodes.append(node)
    set_nodes(proto.graph, nodes)
    for entry in proto.opset_import:
        if is_standard(entry.domain):
            entry.version = 7


class _Ranks:
    """Ranks of the values of a graph, as far as shape inference finds them."""

    def __init__(self, proto: ModelProto) -> None:
        self.proto = proto
        self.known: dict[str, int] | None = None

    def __getitem__(self, name: str) -> int | None:
        if self.known is None:
            self.known = {tensor.name: len(tensor.dims) for tensor in self.proto.graph.initializer}
            graph = shape_inference.infer_shapes(self.proto).graph
            for value in (*graph.input, *graph.value_info, *graph.output):
                self.known.setdefault(value.name, len(_shape(value)))
        return self.known.get(name)


def _shape(value: ValueInfoProto) -> list[Any]:
    return list(value.type.tensor_type.shape.dim)


def _align(node: NodeProto, ranks: _Ranks, before: list[NodeProto]) -> None:
    """``axis`` says where the second operand's axes start: axes of extent 1 are put after them."""
    take(node, "broadcast")
    axis = take(node, "axis")
    if axis is None:
        return
    left, right = ranks[node.input[0]], ranks[node.input[1]]
    if left is None or right is None:
        raise ModelError(f"node {node.name!r} ({node.op_type}): axis={axis.i} with operands of unknown rank")
    start = axis.i + left if axis.i < 0 else axis.i
    missing = left - start - right
    if missing > 0:
        name = f"{node.output[0]}.aligned"
        axes = list(range(right, right + missing))
        before.append(helper.make_node("Unsqueeze", [node.input[1]], [name], axes=axes))
        node.input[1] = name


def _align_slope(node: NodeProto, ranks: _Ranks, before: list[NodeProto]) -> None:
    """A slope of rank 1 has one element for each channel (axis 1): axes of extent 1 are put after it."""
    x, slope = ranks[node.input[0]], ranks[node.input[1]]
    if x is not None and slope == 1 and x > 2:
        name = f"{node.output[0]}.aligned"
        before.append(helper.make_node("Unsqueeze", [node.input[1]], [name], axes=list(range(1, x - 1))))
        node.input[1] = name


def _drop(*names: str) -> Callable[[NodeProto, _Ranks, list[NodeProto]], None]:
    def step(node: NodeProto, ranks: _Ranks, before: list[NodeProto]) -> None:
        for name in names:
            take(node, name)

    return step


_STEPS_6_TO_7: dict[str, Callable[[NodeProto, _Ranks, list[NodeProto]], None]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"), _align),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _drop("output_sequence")),
    "Gemm": _drop("broadcast"),
    "PRelu": _align_slope,
    "BatchNormalization": _drop("is_test", "consumed_inputs"),
    "Dropout": _drop("is_test"),
}


def light(proto: ModelProto, elements: int) -> ModelProto:
    """A copy without initializers of more than ``elements`` elements, which become inputs.

    Conversion copies a model several times; it never looks into large tensors.
    """
    copy = ModelProto(ir_version=max(proto.ir_version, 4))
    copy.opset_import.extend(proto.opset_import)
    copy.functions.extend(proto.functions)
    graph, listed = copy.graph, {value.name for value in proto.graph.input}
    graph.name = proto.graph.name or "graph"
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    for sparse in proto.graph.sparse_initializer:
        values = sparse.values
        graph.input.append(helper.make_tensor_value_info(values.name, values.data_type, list(sparse.dims)))
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= elements and not tensor.external_data:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return copy
