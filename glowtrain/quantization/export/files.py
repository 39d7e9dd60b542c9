"""Quantized models as ONNX files: in QDQ form, or with operators on quantized tensors (QOperator form)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Literal

from glowtrain.errors import QuantizationError
from glowtrain.graph import Constant, Graph, Model, Node, Replacements, Value, no_graph, topological, translate
from glowtrain.onnx_io import save
from glowtrain.ops.quantized.convert import DequantizeLinear, ScaledConversion
from glowtrain.quantization.checks import check_model
from glowtrain.quantization.export.constants import Arrays
from glowtrain.quantization.export.qoperator import DOMAIN, qoperator
from glowtrain.types import SMALL_INTEGERS, DType, byte_of, i16, u16

Format = Literal["qdq", "qoperator"]
FORMATS: tuple[Format, ...] = ("qdq", "qoperator")
FIRST_PER_CHANNEL, FIRST_WITH_ALL = 13, 21
"""The first operator sets with scales per channel, and with blocks, 4 bits and 16 bits."""


def save_quantized(
    graph: Graph,
    path: str | os.PathLike[str] | None = None,
    *,
    form: str = "qdq",
    opset: int | None = None,
    as_bytes: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write a quantized graph (QDQ form) as an ONNX model, as ``gt.save`` does, and return its size in bytes.

    ``form`` "qoperator" writes operators on quantized tensors where there are any: those of ONNX, and of ONNX Runtime's
    domain com.microsoft. ``as_bytes`` writes weights :func:`in_bytes`; ``metadata``: further entries of the
    model's metadata. Raises :class:`QuantizationError` for a graph that is not quantized, an unknown form, and an
    operator set that is too old for per-channel scales, blocks, 4 or 16 bits.
    """
    if form not in FORMATS:
        raise QuantizationError(f"there is no form {form!r} of quantized models; choose from {', '.join(FORMATS)}")
    if not isinstance(graph, Graph):
        raise QuantizationError(f"what is saved is a Graph, {no_graph(graph)}")
    graph = in_bytes(graph) if as_bytes else graph
    nodes = [node for node in graph.nodes if isinstance(node.operator, ScaledConversion)]
    if not nodes:
        raise QuantizationError(f"{graph.name} is not quantized: it has no DequantizeLinear; see gt.quantize")
    if opset is not None:
        for node in nodes:
            _check(node, opset)
    if form == "qdq":
        return int(save(graph, path, opset=opset, metadata=metadata).ByteSize())
    return int(save(qoperator(graph), path, opset=opset, domains=[DOMAIN], metadata=metadata).ByteSize())


def in_bytes(model: Model) -> Model:
    """The model with the constant i4, u4, i2 and u2 that DequantizeLinear reads, and zero points, stored as i8 and u8.

    The numbers are the same, so results are. Runtimes that multiply only bytes as integers then do so (ONNX Runtime
    multiplies i4 in floats), and opset 13 can say what 4 bits need opset 21 for; 4 bits take twice the room. Weights
    with a scale for each block stay as they are: they need opset 21 in any case, and ONNX Runtime 1.31 takes bytes with
    such scales for bytes without. Raises :class:`QuantizationError` for what is no model.
    """
    check_model(model)
    return model.map(_in_bytes)


def _in_bytes(graph: Graph) -> Graph:
    arrays = Arrays()

    @cache
    def stored(value: Value) -> Constant | None:
        array = arrays.of(value) if _of_constants(value) else None
        return None if array is None else Constant(array.astype(byte_of(value.dtype).numpy), value.name)

    def change(node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        if not isinstance(node.operator, DequantizeLinear) or node.operator.block_size:
            return None
        small = {value for value in node.inputs if value is not None and value.dtype in SMALL_INTEGERS}
        wide = {value: byte for value in small if (byte := stored(value)) is not None}
        if not small or len(wide) < len(small):
            return None
        return Replacements({**replacements.values, **wide}).refreshed(node).outputs

    return translate(graph, change)


def _of_constants(value: Value) -> bool:
    """Whether a value is computed from constants alone; variables may be written to."""
    operands = (value, *(operand for node in topological([value]) for operand in node.inputs))
    return all(leaf is None or leaf.node is not None or isinstance(leaf, Constant) for leaf in operands)


def _check(node: Node, opset: int) -> None:
    """Raise :class:`QuantizationError` if an operator set cannot say what a node does."""
    operator, first, what = node.operator, 0, ""
    assert isinstance(operator, ScaledConversion)
    integers = _integers(node)
    if operator.block_size:
        first, what = FIRST_WITH_ALL, "a scale for each block of weights"
    elif integers in SMALL_INTEGERS or integers in (i16, u16):
        first, what = FIRST_WITH_ALL, f"numbers of {integers}"
    elif node.inputs[1] is not None and node.inputs[1].type.size > 1:
        first, what = FIRST_PER_CHANNEL, "a scale for each channel"
    if opset < first:
        name = node.outputs[0].name or str(node)
        raise QuantizationError(f"{name} has {what}, which opset {opset} cannot say: it needs opset {first} or newer")


def _integers(node: Node) -> DType:
    value = node.inputs[0]
    assert value is not None
    return node.outputs[0].dtype if value.dtype.is_float else value.dtype
