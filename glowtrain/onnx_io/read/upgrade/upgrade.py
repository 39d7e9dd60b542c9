"""Models of older operator sets, and with functions of their own, as models of the newest operator set."""

from __future__ import annotations

import math

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, checker, defs, helper, inliner

from glowtrain.errors import ModelError
from glowtrain.onnx_io.read.check import check_operands
from glowtrain.onnx_io.read.source import Model, describe, is_standard, opset_of, set_nodes, subgraphs
from glowtrain.onnx_io.read.upgrade.opset_1_to_6 import FORM, to_set_7
from glowtrain.onnx_io.read.upgrade.opset_7_up import STEPS, UpgradeScope

NEWEST_OPSET = defs.onnx_opset_version()
SMALL = 1024
"""Elements up to which an initializer is shown to steps and to shape inference."""

_FAILURES: tuple[type[Exception], ...] = (RuntimeError, ValueError, TypeError, MemoryError, checker.ValidationError)
"""What the inliner raises on models that it cannot handle."""
_IMPOSSIBLE = (IndexError, ValueError, TypeError, OverflowError)
"""What a step raises on a node that its operator set does not allow."""


def upgrade(model: Model) -> ModelProto:
    """The model at the newest operator set, in place, with its functions inlined and without types between its nodes.

    Raises :class:`ModelError` naming a node that has no form there.
    """
    proto = model.proto
    opset = opset_of(proto) or NEWEST_OPSET
    _upgrade(proto.graph, opset, UpgradeScope(proto.graph), model.title)
    for function in proto.functions:
        _upgrade_function(function, opset, model.title)
    _state_newest(proto)
    proto = without_functions(model)
    del proto.graph.value_info[:]
    check_operands(proto.graph, model.title)
    return proto


def _upgrade(graph: GraphProto, opset: int, scope: UpgradeScope, title: str) -> None:
    """Bring the nodes of a graph and of the graphs in it to the newest operator set, in place."""
    if opset == NEWEST_OPSET:
        return
    nodes: list[NodeProto] = []
    for node in graph.node:
        for body in subgraphs(node):
            _upgrade(body, opset, scope, title)
        what = describe(node)
        try:
            nodes += _upgraded(node, opset, scope)
        except ModelError as error:
            raise ModelError(f"{title}: {error}") from None
        except _IMPOSSIBLE as error:
            raise ModelError(f"{title}: {what} is not as operator set {opset} has it: {error}") from None
    set_nodes(graph, nodes)


def _upgraded(node: NodeProto, opset: int, scope: UpgradeScope) -> list[NodeProto]:
    """A node in today's form, after the nodes that this needs."""
    scope.note(node)
    if not is_standard(node.domain):
        return [node]
    before = to_set_7(node, scope) if opset <= FORM else []
    for last, step in STEPS.get(node.op_type, ()):
        if opset <= last:
            before += step(node, scope)
    return [*before, node]


def _upgrade_function(function: FunctionProto, opset: int, title: str) -> None:
    own = next((entry.version for entry in function.opset_import if is_standard(entry.domain)), opset)
    if not 0 < own <= NEWEST_OPSET:
        raise ModelError(f"{title}: function {function.name} uses ONNX opset {own}; supported are 1 to {NEWEST_OPSET}")
    body = GraphProto(node=function.node)
    scope = UpgradeScope(body)
    scope.names.take(*function.input, *function.output)
    _upgrade(body, own, scope, f"{title}: function {function.name}")
    del function.node[:]
    function.node.extend(body.node)
    _state_newest(function)


def _state_newest(proto: ModelProto | FunctionProto) -> None:
    for entry in proto.opset_import:
        if is_standard(entry.domain):
            entry.version = NEWEST_OPSET


def without_functions(model: Model) -> ModelProto:
    """The model with its functions inlined. Raises :class:`ModelError`."""
    if not model.proto.functions:
        return model.proto
    try:
        return inliner.inline_local_functions(model.proto)
    except _FAILURES as error:
        names = ", ".join(function.name for function in model.proto.functions)
        raise ModelError(f"{model.title}: its functions {names} cannot be inlined: {error}") from None


def light(proto: ModelProto) -> ModelProto:
    """A copy without initializers of more than :data:`SMALL` elements, which become inputs.

    Its nodes are changed and copied, its large tensors never looked into.
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
        if math.prod(tensor.dims) <= SMALL and not tensor.external_data:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return copy
