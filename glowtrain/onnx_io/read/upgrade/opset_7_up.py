"""What operators of the operator sets 7 to the newest had otherwise, and each old form in today's.

A table from operators to steps, each with the last operator set that has the old form. Most are attributes that became
inputs: those become constants. What depends on the operands' types is left to rules that are applied when a node is
built (:mod:`glowtrain.onnx_io.read.upgrade.typed`), where all types are known.
Source: the versions of each operator in https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from glowtrain.errors import ModelError
from glowtrain.names import Names
from glowtrain.onnx_io.read.source import describe, subgraphs
from glowtrain.types import Array

OWN_DOMAIN = "glowtrain"
"""The domain of the nodes that wait for their operands' types."""

_CONSTANTS = {
    AttributeProto.FLOAT: "value_float",
    AttributeProto.FLOATS: "value_floats",
    AttributeProto.INT: "value_int",
    AttributeProto.INTS: "value_ints",
}
_DTYPES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


@dataclass
class UpgradeScope:
    """What a step needs of its model: unused names, and the constants before a node."""

    graph: GraphProto
    constants: dict[str, TensorProto | AttributeProto] = field(default_factory=dict)
    names: Names = field(init=False)

    def __post_init__(self) -> None:
        self.names = Names(_names(self.graph), separator=".")
        self.constants.update((tensor.name, tensor) for tensor in self.graph.initializer)

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        return self.names.fresh(stem)

    def constant(self, node: NodeProto, attribute: AttributeProto) -> NodeProto:
        """A Constant that holds (or, in a function, refers to) the value of an attribute that ``node`` had."""
        made = helper.make_node("Constant", [], [self.fresh(f"{_stem(node)}.{attribute.name}")])
        made.attribute.add().CopyFrom(attribute)
        made.attribute[0].name = _CONSTANTS[attribute.type]
        self.note(made)
        return made

    def note(self, node: NodeProto) -> None:
        """Remember a node if it is a constant."""
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.output:
            attribute = node.attribute[0]
            if attribute.type == AttributeProto.TENSOR or attribute.name in _DTYPES:
                self.constants[node.output[0]] = attribute

    def array(self, name: str) -> Array | None:
        """The elements of a constant; ``None`` for what is none, or lies outside of the model."""
        found = self.constants.get(name)
        if isinstance(found, AttributeProto):
            if found.type != AttributeProto.TENSOR:
                return np.array(helper.get_attribute_value(found), _DTYPES[found.name])
            found = found.t
        return None if found is None or found.external_data else numpy_helper.to_array(found)


Step = Callable[[NodeProto, UpgradeScope], list[NodeProto]]
"""Changes a node in place; gives new nodes to stand before it."""


def _names(graph: GraphProto) -> Iterable[str]:
    """All names in a graph and the graphs in it."""
    yield from (value.name for value in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        yield from (*node.input, *node.output)
        for body in subgraphs(node):
            yield from _names(body)


def _stem(node: NodeProto) -> str:
    return next((name for name in node.output if name), node.op_type)


def take(node: NodeProto, name: str) -> AttributeProto | None:
    """Remove an attribute from a node and give it, if it is there."""
    for position, attribute in enumerate(node.attribute):
        if attribute.name == name:
            found = AttributeProto()
            found.CopyFrom(attribute)
            del node.attribute[position]
            return found
    return None


def has(node: NodeProto, name: str) -> bool:
    """Whether a node has an attribute."""
    return any(attribute.name == name for attribute in node.attribute)


def read_at(node: NodeProto, position: int, name: str) -> None:
    """Make a value the node's input at a place; those before it that are not there are absent."""
    node.input.extend([""] * (position + 1 - len(node.input)))
    node.input[position] = name


def to_inputs(*names: str, of_input_type: tuple[str, ...] = (), first: int = 1) -> Step:
    """Attributes that became inputs, in this order from place ``first``; some have the type of the first input."""

    def step(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
        before: list[NodeProto] = []
        for position, name in enumerate(names, first):
            attribute = take(node, name)
            if attribute is None:
                continue
            before.append(scope.constant(node, attribute))
            if name in of_input_type:
                cast = scope.fresh(f"{_stem(node)}.{name}")
                before.append(helper.make_node("CastLike", [before[-1].output[0], node.input[0]], [cast]))
            read_at(node, position, before[-1].output[0])
        return before

    return step


def _axes(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """No axes meant what an empty list of them came to mean: all."""
    axes = take(node, "axes")
    if axes is not None and (axes.ints or axes.ref_attr_name):
        node.attribute.append(axes)
    return _AXES(node, scope)


_AXES = to_inputs("axes")


def default(name: str, value: int | float | str) -> Step:
    """An attribute whose default is another one, or that is new and whose default is not what was done before."""

    def step(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
        if not has(node, name):
            node.attribute.append(helper.make_attribute(name, value))
        return []

    return step


def _renamed(name: str) -> Step:
    """The operator has another name."""

    def step(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
        node.op_type = name
        return []

    return step


def _all(*steps: Step) -> Step:
    """Steps one after another."""

    def step(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
        return [new for one in steps for new in one(node, scope)]

    return step


def _by_types(prefix: str) -> Step:
    """Leave a node to the rule of :data:`OWN_DOMAIN` that is called ``prefix`` and its operator."""

    def step(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
        node.domain, node.op_type = OWN_DOMAIN, f"{prefix}{node.op_type}"
        return []

    return step


def _parts(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """As many equal parts as outputs, where no sizes are given."""
    if len(node.input) < 2 or not node.input[1]:
        node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
    return []


def _per_channel(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Scale and bias had one element for each group."""
    before: list[NodeProto] = []
    groups = [attribute for attribute in node.attribute if attribute.name == "num_groups"]
    for position, what in ((1, "scale"), (2, "bias")):
        name = scope.fresh(f"{_stem(node)}.{what}")
        before.append(
            helper.make_node("GroupParameter", [node.input[0], node.input[position]], [name], domain=OWN_DOMAIN)
        )
        before[-1].attribute.extend(groups)
        node.input[position] = name
    return before


def _spatial(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Statistics for each channel only, or for each element of it, which no other operator set had."""
    spatial = take(node, "spatial")
    if spatial is not None and not spatial.i:
        raise ModelError(f"{describe(node)}: spatial=0, which only operator sets up to 8 have, is not supported")
    return []


def _training(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Its number of outputs said whether it trains. The saved statistics helped one runtime."""
    if any(node.output[1:]):
        node.attribute.append(helper.make_attribute("training_mode", 1))
        del node.output[3:]
    return []


def _modes(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Modes were named for images."""
    for attribute in node.attribute:
        if attribute.name == "mode":
            attribute.s = {b"bilinear": b"linear", b"bicubic": b"cubic"}.get(attribute.s, attribute.s)
    return []


def _coordinates(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Resize and Upsample had no attributes for coordinates.

    Runtimes agree on place / scale; for the nearest neighbour they round down where an axis grows and up where it
    shrinks. Raises :class:`ModelError` for one that shrinks one axis and stretches another.
    """
    node.op_type = "Resize"
    scales = node.input[1] if len(node.input) > 1 else ""
    del node.input[1:]
    read_at(node, 2, scales)
    mode = next((attribute.s for attribute in node.attribute if attribute.name == "mode"), b"nearest")
    known = scope.array(scales)
    shrinks, grows = known is not None and bool((known < 1).any()), known is not None and bool((known > 1).any())
    if shrinks and grows and mode == b"nearest":
        raise ModelError(f"{describe(node)}: nearest neighbours of axes that shrink and axes that grow at once")
    for name, text in (
        ("coordinate_transformation_mode", "asymmetric"),
        ("nearest_mode", "ceil" if shrinks else "floor"),
    ):
        default(name, text)(node, scope)
    return _modes(node, scope)


def _batches(node: NodeProto, scope: UpgradeScope) -> list[NodeProto]:
    """Scan had a batch axis in front of every state and every scanned tensor: it becomes a Scan over the batch.

    The body of that is the Scan over time. Source: https://onnx.ai/onnx/operators/onnx__Scan.html (version 8).
    """
    if node.input[0]:
        raise ModelError(
            f"{describe(node)}: sequence_lens, which only operator set 8 has, is not supported; "
            "export the model with opset 9 or later"
        )
    one, prefix = NodeProto(), scope.fresh(f"{_stem(node)}.batch")
    one.CopyFrom(node)
    del one.input[:], one.output[:]
    for attribute in one.attribute:
        attribute.name = "scan_input_directions" if attribute.name == "directions" else attribute.name
    operands, kept = list(node.input[1:]), [name for name in node.output if name]
    one.input.extend(scope.fresh(f"{prefix}.in") for _ in operands)
    one.output.extend(scope.fresh(f"{prefix}.out") if name else "" for name in node.output)
    declared = [helper.make_empty_tensor_value_info(name) for name in (*one.input, *filter(None, one.output))]
    body = helper.make_graph([one], prefix, declared[: len(operands)], declared[len(operands) :])
    node.CopyFrom(helper.make_node("Scan", operands, kept, node.name, body=body, num_scan_inputs=len(operands)))
    return []


_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip

STEPS: dict[str, tuple[tuple[int, Step], ...]] = {
    "BatchNormalization": ((8, _spatial), (13, _training)),
    "Clip": ((10, to_inputs("min", "max", of_input_type=("min", "max"))),),
    "DFT": ((19, _all(default("axis", 1), to_inputs("axis", first=2))),),
    "Dropout": ((11, to_inputs("ratio")),),
    "GridSample": ((19, _modes),),
    "GroupNormalization": ((20, _per_channel),),
    "Pad": ((10, to_inputs("pads", "value", of_input_type=("value",))),),
    "Resize": ((10, _coordinates),),
    "RoiAlign": ((15, default("coordinate_transformation_mode", "output_half_pixel")),),
    "Scan": ((8, _batches),),
    "Scatter": ((10, _renamed("ScatterElements")),),
    "Slice": ((9, to_inputs("starts", "ends", "axes")),),
    "Split": ((12, to_inputs("split")), (17, _parts)),
    "TopK": ((9, to_inputs("k")),),
    "Upsample": ((8, to_inputs("scales")), (9, _coordinates)),
    "Unsqueeze": ((12, _AXES),),
    **dict.fromkeys(("Squeeze", "ReduceSum"), ((12, _axes),)),
    **dict.fromkeys(_REDUCTIONS, ((17, _axes),)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), ((12, _all(default("axis", 1), _by_types("Flattened"))),)),
}
"""For each operator its steps: the last operator set that has an old form, and how to leave it."""
