"""FlexAttention: its subgraphs become bodies, what they read of the graph around them becomes operands."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from glowtrain.errors import ModelError
from glowtrain.graph import Graph, Input, Value
from glowtrain.onnx_io.read.build import Bound, Builder, attributes_of
from glowtrain.onnx_io.read.rules.control import BodyBuilder
from glowtrain.onnx_io.schema.tensors import dtype_from_onnx
from glowtrain.ops.attention import flex
from glowtrain.types import TensorType


def flex_attention_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """FlexAttention: its subgraphs change scores and weights."""
    attributes: dict[str, Any] = attributes_of(builder, node)
    what = builder.what(node)
    operands = [builder.tensor(name, what) for name in node.input]
    if len(operands) != 3 or any(value.rank != 4 for value in operands[:2]):
        raise ModelError(f"{what} takes Q, K and V of rank 4")
    if attributes.get("softmax_precision") is not None:
        attributes["softmax_precision"] = dtype_from_onnx(attributes["softmax_precision"], what)
    dtype = flex.FlexAttention(softmax_precision=attributes.get("softmax_precision")).precision(operands[0].dtype)
    scores = TensorType(dtype, (*operands[0].shape[:3], operands[1].shape[2]))
    captured: list[Value] = []
    for name in ("score_mod", "prob_mod"):
        if name in attributes:
            inner = BodyBuilder(builder.recipe, builder.binding, outer=builder)
            attributes[name] = _body(inner, attributes[name], scores, f"{what}: {name}")
            captured += inner.captured
    return builder.build(flex.FlexAttention(**attributes), [*operands, *captured], node)


def _body(inner: BodyBuilder, proto: Any, scores: TensorType, what: str) -> Graph:
    if len(proto.input) != 1 or len(proto.output) != 1:
        raise ModelError(f"{what} must have one input and one output")
    x = Input(scores, proto.input[0].name)
    (y,) = inner.tensors(proto, [x])
    return Graph((x, *inner.captured.values()), {proto.output[0].name: y}, name=proto.name or "body")
