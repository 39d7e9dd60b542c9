"""Maps between strings and numbers in ai.onnx.ml, all as LabelEncoder of its latest version.

Classifiers whose labels are strings, CategoryMapper, and LabelEncoder of version 1 are written so, in place.
"""

from __future__ import annotations

from typing import Any

from onnx import ModelProto, NodeProto, helper

from glowtrain.names import Names
from glowtrain.onnx_io.read.parameters import key_of
from glowtrain.onnx_io.read.rules.tabular import DOMAIN
from glowtrain.onnx_io.read.source import change_attributes, set_nodes

CLASSIFIERS = tuple(f"{DOMAIN}.{name}" for name in ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"))
_VERSION = 4
"""The version of the domain that the encoders are of; its other operators mean in it what they did before."""
MAPS = {f"{DOMAIN}.CategoryMapper": "cats_strings", f"{DOMAIN}.LabelEncoder": "classes_strings"}
"""Where operators that map strings to numbers, or back, by the type of their operand, have the strings."""


def number_labels(proto: ModelProto) -> None:
    """Let classifiers give the numbers of labels that are strings, and a LabelEncoder the strings."""
    names = Names(name for node in proto.graph.node for name in (*node.input, *node.output))
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        nodes.append(node)
        strings = _attributes(node).get("classlabels_strings") if key_of(node) in CLASSIFIERS else None
        if strings and node.output[0]:
            label, node.output[0] = node.output[0], names.fresh(f"{node.output[0]}.number")
            integers = "classlabels_int64s" if node.op_type == "TreeEnsembleClassifier" else "classlabels_ints"
            change_attributes(node, {"classlabels_strings"}, {integers: range(len(strings))})
            encoder = {"keys_int64s": range(len(strings)), "values_strings": strings}
            nodes.append(helper.make_node("LabelEncoder", [node.output[0]], [label], domain=DOMAIN, **encoder))
    set_nodes(proto.graph, nodes)
    for entry in proto.opset_import:
        if entry.domain == DOMAIN:
            entry.version = max(entry.version, _VERSION)


def upgrade_map(node: NodeProto, *, from_strings: bool) -> None:
    """Write an older map as LabelEncoder, by whether its operand is of strings."""
    attributes = _attributes(node) if key_of(node) in MAPS else {}
    name = MAPS.get(key_of(node), "")
    if strings := attributes.get(name):
        numbers = attributes.get("cats_int64s", range(len(strings)))
        forth = {"keys_strings": strings, "values_int64s": numbers}
        back = {"keys_int64s": numbers, "values_strings": strings}
        change_attributes(node, {name, "cats_int64s"}, forth if from_strings else back)
        node.op_type = "LabelEncoder"


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}
