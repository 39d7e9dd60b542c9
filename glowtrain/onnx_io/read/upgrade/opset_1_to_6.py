"""Nodes of operator sets 1 to 6 in the form of set 7.

What these operator sets have otherwise is told by a node's own form: attributes that later became inputs, got other
names or types, or only helped runtimes to reuse memory.
"""

from __future__ import annotations

from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from glowtrain.errors import ModelError
from glowtrain.onnx_io.read.source import describe, is_standard
from glowtrain.onnx_io.read.upgrade.opset_7_up import OWN_DOMAIN, Step, UpgradeScope, default, read_at, take

FORM = 6
"""The operator set whose form the nodes get first."""


def to_set_7(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Bring a node of operator set 1 to 6 into the form of set 7, in place; gives new nodes to stand before it.

    Raises :class:`ModelError` naming a node whose old form says nothing that operator set 7 could say.
    """
    if not is_standard(node.domain):
        return []
    take(node, "consumed_inputs")
    before = _TO_6[node.op_type](node, scope) if node.op_type in _TO_6 else []
    return before + _TO_7[node.op_type](node, scope) if node.op_type in _TO_7 else before


def _constant(node: NodeProto, name: str, values: list[int], scope: UpgradeScope) -> list[NodeProto]:
    """A constant as the node's second input."""
    constant = scope.constant(node, helper.make_attribute(name, values, attr_type=AttributeProto.INTS))
    read_at(node, 1, constant.output[0])
    return [constant]


def _reshape(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Set 5 made the shape an input."""
    shape = take(node, "shape")
    return [] if shape is None else _constant(node, "shape", list(shape.ints), scope)


def _cast(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
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


def _pad(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """``paddings`` became ``pads``."""
    paddings = take(node, "paddings")
    if paddings is not None:
        node.attribute.append(helper.make_attribute("pads", list(paddings.ints)))
    return []


def _power(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """The p of a norm was a float; and a pool's window was optional in the schema alone."""
    p = take(node, "p")
    if p is not None:
        exponent = p.f if p.type == AttributeProto.FLOAT else float(p.i)
        if exponent != int(exponent):
            raise ModelError(f"{describe(node)}: p={exponent} is not a whole number")
        node.attribute.append(helper.make_attribute("p", int(exponent)))
    return []


def _split(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """The sizes could be an input instead of an attribute."""
    if len(node.input) < 2:
        return []
    sizes = _initializer(node, node.input[1], "split", scope)
    del node.input[1:]
    node.attribute.append(helper.make_attribute("split", sizes))
    return []


def _tile(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Only one axis was repeated, the third input."""
    if len(node.input) < 3:
        return []
    (count,), (axis,) = (
        _initializer(node, node.input[position], what, scope) for position, what in ((1, "tiles"), (2, "axis"))
    )
    rank = next((len(v.type.tensor_type.shape.dim) for v in scope.graph.input if v.name == node.input[0]), None)
    if rank is None and axis < 0:
        raise ModelError(f"{describe(node)}: repeats axis {axis} of a tensor of unknown rank")
    del node.input[1:]
    if rank is None:
        raise ModelError(f"{describe(node)}: in this form it is supported for inputs of the model only")
    return _constant(node, "repeats", [count if position == axis % rank else 1 for position in range(rank)], scope)


def _initializer(node: NodeProto, name: str, what: str, scope: UpgradeScope) -> list[int]:
    for tensor in scope.graph.initializer:
        if tensor.name == name:
            return [int(number) for number in numpy_helper.to_array(tensor).reshape(-1)]
    raise ModelError(f"{describe(node)}: {what} must be an initializer")


def _upsample(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Two factors, for images."""
    factors = [take(node, name) for name in ("height_scale", "width_scale")]
    if None not in factors:
        scales = [1.0, 1.0, *(factor.f for factor in factors if factor is not None)]
        node.attribute.append(helper.make_attribute("scales", scales))
    return []


def _recurrent(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """The default direction was misspelt."""
    for attribute in node.attribute:
        if attribute.name == "direction" and attribute.s == b"foward":
            attribute.s = b"forward"
    return []


def _align(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """``axis`` says where the second operand's axes start."""
    take(node, "broadcast")
    axis = take(node, "axis")
    return [] if axis is None else _aligned("AlignedOperand", node, scope, axis)


def _align_slope(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    return _aligned("AlignedSlope", node, scope)


def _aligned(kind: str, node: NodeProto, scope: UpgradeScope, *attributes: AttributeProto) -> list[NodeProto]:
    """The second operand through a rule of :mod:`glowtrain.onnx_io.read.upgrade.typed`."""
    name = scope.fresh(f"{node.output[0]}.aligned")
    aligned = helper.make_node(kind, list(node.input[:2]), [name], node.name, domain=OWN_DOMAIN)
    aligned.attribute.extend(attributes)
    node.input[1] = name
    return [aligned]


def _drop(*names: str) -> Step:
    """Attributes that said nothing about the result."""

    def step(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
        for name in names:
            take(node, name)
        return []

    return step


_TO_6: dict[str, Step] = {
    "Reshape": _reshape,
    "Concat": default("axis", 1),
    "Cast": _cast,
    "Pad": _pad,
    "LpPool": _power,
    "GlobalLpPool": _power,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _upsample,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
}

_TO_7: dict[str, Step] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"), _align),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _drop("output_sequence")),
    "Gemm": _drop("broadcast"),
    "PRelu": _align_slope,
    "BatchNormalization": _drop("is_test"),
    "Dropout": _drop("is_test"),
}
