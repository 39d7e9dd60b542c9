"""Scan as it was in operator set 8: with a batch axis in front of every state and every scanned tensor.

ONNX's converter gives such nodes their newer signature and takes the batch axis away from the types of what they read.
Here each becomes a Scan over the batch whose body is the Scan over time, and inputs and outputs keep their types.
Source: https://onnx.ai/onnx/operators/onnx__Scan.html (version 8).
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, NodeProto, TypeProto, ValueInfoProto, helper

from glowtrain.errors import ModelError
from glowtrain.onnx_io.source import describe, is_standard, subgraphs

BATCHED = 8
"""The operator set whose Scan has a batch axis."""


def check_lengths(graph: GraphProto, title: str) -> None:
    """Raise :class:`ModelError` for a Scan of operator set 8 whose sequences have lengths of their own."""
    for node in graph.node:
        if _is_scan(node) and node.input[0]:
            raise ModelError(
                f"{title}: {describe(node)}: sequence_lens, which only operator set 8 has, is not supported; "
                "export the model with opset 9 or later"
            )
        for body in subgraphs(node):
            check_lengths(body, title)


def copied_types(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """Copies of what a graph declares of its inputs and outputs."""
    copies = {value.name: ValueInfoProto() for value in (*graph.input, *graph.output)}
    for value in (*graph.input, *graph.output):
        copies[value.name].CopyFrom(value)
    return copies


def scan_batches(graph: GraphProto, declared: Mapping[str, ValueInfoProto]) -> None:
    """Put every Scan that was converted from operator set 8 into a Scan over its batch axis, in place.

    ``declared``: the inputs and outputs as they were before.
    """
    for value in (*graph.input, *graph.output):
        if value.name in declared:
            value.CopyFrom(declared[value.name])
    for place, node in enumerate(graph.node):
        for body in subgraphs(node):
            scan_batches(body, {})
        if _is_scan(node):
            graph.node[place].CopyFrom(_over_batch(node, f"batch{place}"))


def _is_scan(node: NodeProto) -> bool:
    return node.op_type == "Scan" and is_standard(node.domain)


def _over_batch(node: NodeProto, prefix: str) -> NodeProto:
    """The Scan over the batch: all operands are scanned along axis 0, all results are stacked along it."""
    one = NodeProto()
    one.CopyFrom(node)
    del one.input[:], one.output[:]
    one.input.extend(f"{prefix}.in{k}" for k in range(len(node.input)))
    one.output.extend(f"{prefix}.out{k}" if name else "" for k, name in enumerate(node.output))
    untyped = [helper.make_value_info(name, TypeProto()) for name in (*one.input, *filter(None, one.output))]
    count = len(node.input)
    body = helper.make_graph([one], prefix, untyped[:count], untyped[count:])
    kept = [name for name in node.output if name]
    return helper.make_node("Scan", list(node.input), kept, node.name, body=body, num_scan_inputs=count)
