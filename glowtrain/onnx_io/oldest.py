"""Models of operator sets 1 to 6 in one form, that of set 6.

What these operator sets have otherwise is told by a node's own form: attributes that later became inputs, got other
names or types, or only helped runtimes to reuse memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from glowtrain.errors import ModelError
from glowtrain.onnx_io.source import describe, is_standard, set_nodes

FORM = 6
"""The operator set whose form the nodes get."""

Step = Callable[[NodeProto, ModelProto], list[NodeProto]]
"""Changes a node; gives new nodes to stand before it."""


def modernize(proto: ModelProto) -> None:
    """Bring the nodes of a model of operator set 1 to 6 into the form of set 6 (Upsample: of set 7), in place.

    Raises :class:`ModelError` naming a node whose old form says nothing that operator set 6 could say.
    """
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        changed = NodeProto()
        changed.CopyFrom(node)
        if is_standard(node.domain):
            take(changed, "consumed_inputs")
            nodes += _STEPS.get(node.op_type, _nothing)(changed, proto)
        nodes.append(changed)
    set_nodes(proto.graph, nodes)
    for entry in proto.opset_import:
        if is_standard(entry.domain):
            entry.version = FORM


def take(node: NodeProto, name: str) -> AttributeProto | None:
    """Remove an attribute from a node and give it, if it is there."""
    for place, attribute in enumerate(node.attribute):
        if attribute.name == name:
            found = AttributeProto()
            found.CopyFrom(attribute)
            del node.attribute[place]
            return found
    return None


def _has(node: NodeProto, name: str) -> bool:
    return any(attribute.name == name for attribute in node.attribute)


def _nothing(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    return []


def _constant(node: NodeProto, name: str, values: list[int]) -> list[NodeProto]:
    """A constant as the node's next input."""
    output = f"{node.output[0]}.{name}"
    node.input.append(output)
    tensor = numpy_helper.from_array(np.array(values, np.int64), output)
    return [helper.make_node("Constant", [], [output], value=tensor)]


def _reshape(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """Set 5 made the shape an input."""
    shape = take(node, "shape")
    return [] if shape is None else _constant(node, "shape", list(shape.ints))


def _concat(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """Until set 4 the axis was 1 unless given."""
    if not _has(node, "axis"):
        node.attribute.append(helper.make_attribute("axis", 1))
    return []


def _cast(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """Until set 6 the type was a name."""
    to = take(node, "to")
    if to is None:
        return []
    name = to.s.decode("ascii", "replace").upper() if to.s else ""
    try:
        code = TensorProto.DataType.Value(name) if name else to.i
    except ValueError:
        raise ModelError(f"{describe(node)}: to: there is no element type {name}") from None
    node.attribute.append(helper.make_attribute("to", int(code)))
    return []


def _pad(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """``paddings`` became ``pads``."""
    paddings = take(node, "paddings")
    if paddings is not None:
        node.attribute.append(helper.make_attribute("pads", list(paddings.ints)))
    return []


def _power(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """The p of a norm was a float; and a pool's window was optional in the schema alone."""
    p = take(node, "p")
    if p is not None:
        exponent = p.f if p.type == AttributeProto.FLOAT else float(p.i)
        if exponent != int(exponent):
            raise ModelError(f"{describe(node)}: p={exponent} is not a whole number")
        node.attribute.append(helper.make_attribute("p", int(exponent)))
    return []


def _split(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """The sizes could be an input instead of an attribute."""
    if len(node.input) < 2:
        return []
    sizes = _initializer(node, node.input[1], "split", proto)
    del node.input[1:]
    node.attribute.append(helper.make_attribute("split", sizes))
    return []


def _tile(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """Only one axis was repeated, the third input."""
    if len(node.input) < 3:
        return []
    (count,), (axis,) = (
        _initializer(node, node.input[place], what, proto) for place, what in ((1, "tiles"), (2, "axis"))
    )
    rank = next((len(v.type.tensor_type.shape.dim) for v in proto.graph.input if v.name == node.input[0]), None)
    if rank is None and axis < 0:
        raise ModelError(f"{describe(node)}: repeats axis {axis} of a tensor of unknown rank")
    del node.input[1:]
    if rank is None:
        raise ModelError(f"{describe(node)}: in this form it is supported for inputs of the model only")
    return _constant(node, "repeats", [count if place == axis % rank else 1 for place in range(rank)])


def _initializer(node: NodeProto, name: str, what: str, proto: ModelProto) -> list[int]:
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            return [int(number) for number in numpy_helper.to_array(tensor).reshape(-1)]
    raise ModelError(f"{describe(node)}: {what} must be an initializer")


def _upsample(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """Two factors, for images."""
    factors = [take(node, name) for name in ("height_scale", "width_scale")]
    if None not in factors:
        scales = [1.0, 1.0, *(factor.f for factor in factors if factor is not None)]
        node.attribute.append(helper.make_attribute("scales", scales))
    return []


def _recurrent(node: NodeProto, proto: ModelProto) -> list[NodeProto]:
    """The default direction was misspelt."""
    for attribute in node.attribute:
        if attribute.name == "direction" and attribute.s == b"foward":
            attribute.s = b"forward"
    return []


_STEPS: dict[str, Step] = {
    "Reshape": _reshape,
    "Concat": _concat,
    "Cast": _cast,
    "Pad": _pad,
    "LpPool": _power,
    "GlobalLpPool": _power,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _upsample,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
}
