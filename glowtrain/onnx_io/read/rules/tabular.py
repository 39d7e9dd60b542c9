"""ai.onnx.ml where it leaves tensors: maps. (Strings: :mod:`glowtrain.onnx_io.read.string_labels`.)

A ZipMap, which exporters of scikit-learn put after a classifier, is the tensor that it reads: column k of it holds the
values of label k. What reads a map is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto

from glowtrain.errors import UnsupportedOperatorError
from glowtrain.onnx_io.read.build import Bound, Builder

DOMAIN = "ai.onnx.ml"
REFUSED = {
    f"{DOMAIN}.CastMap": "it reads a map; give the model a tensor with the map's values",
    f"{DOMAIN}.DictVectorizer": "it reads a map; give the model a tensor with the map's values",
}
"""Operators, by registry key, that will not be supported, and why."""


def zip_map_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """the tensor that it reads: column k holds the values of label k"""
    return (builder.tensor(node.input[0], builder.what(node)),)


@dataclass(frozen=True)
class Refusal:
    """The rule for an operator that will not be supported (a class, so that what is made of files can be pickled)."""

    reason: str

    def __call__(self, builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
        raise UnsupportedOperatorError(f"{builder.what(node)} is not supported: {self.reason}")
