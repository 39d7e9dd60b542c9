"""Old forms of operators that depend on the operands' types: rules for the nodes that stand for them while loading.

:mod:`glowtrain.onnx_io.read.upgrade.opset_7_up` and :mod:`glowtrain.onnx_io.read.upgrade.opset_1_to_6` make these
nodes.
"""

from __future__ import annotations

from onnx import NodeProto, helper

from glowtrain.errors import ModelError
from glowtrain.graph import Value
from glowtrain.onnx_io.read.build import Bound, Builder, attributes_of
from glowtrain.ops.tensor.move import Expand, Flatten, Reshape, Unsqueeze


def flattened_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """Until operator set 12 a Softmax ran over all axes from ``axis`` on, taken together."""
    what = builder.what(node)
    kind, axis = node.op_type.removeprefix("Flattened"), attributes_of(builder, node)["axis"]
    x = builder.tensor(node.input[0], what)
    if not -x.rank <= axis <= x.rank:
        raise ModelError(f"{what}: axis={axis} of an operand of rank {x.rank}")
    start = axis + x.rank if axis < 0 else axis
    plain = helper.make_node(kind, list(node.input), list(node.output), node.name, axis=-1)
    if start == x.rank - 1:
        return builder.apply(plain)
    (flat,) = builder.build(Flatten(axis=start), [x], node)
    plain.input[0] = f"{node.output[0]}.flat"
    builder.environment[plain.input[0]] = flat
    (y,) = builder.apply(plain)
    assert isinstance(y, Value)
    return builder.build(Reshape(shape=x.shape, allowzero=True), [y], node)


def group_parameter_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """A scale or bias with one element for each group, as one with one for each channel of the first operand."""
    x, parameter = (builder.tensor(name, builder.what(node)) for name in node.input)
    groups = attributes_of(builder, node)["num_groups"]
    if x.rank < 2 or groups < 1 or x.shape[1] % groups or parameter.shape != (groups,):
        raise ModelError(
            f"{builder.what(node)}: {list(parameter.shape)} is not one element for each of {groups} groups of the "
            f"channels of {x.type}"
        )
    channels = x.shape[1]
    wide = Expand(shape=(groups, channels // groups))(Reshape(shape=(groups, 1))(parameter))
    return builder.build(Reshape(shape=(channels,)), [wide], node)


def aligned_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """The second operand with axes of extent 1 after its own, so that these start at ``axis`` of the first operand."""
    left, right = (builder.tensor(name, builder.what(node)) for name in node.input)
    axis = attributes_of(builder, node)["axis"]
    missing = left.rank - (axis + left.rank if axis < 0 else axis) - right.rank
    if missing <= 0:
        return (right,)
    return builder.build(Unsqueeze(axes=tuple(range(right.rank, right.rank + missing))), [right], node)


def slope_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """A slope of rank 1 has one element for each channel (axis 1): axes of extent 1 are put after it."""
    x, slope = (builder.tensor(name, builder.what(node)) for name in node.input)
    if slope.rank != 1 or x.rank <= 2:
        return (slope,)
    return builder.build(Unsqueeze(axes=tuple(range(1, x.rank - 1))), [slope], node)
