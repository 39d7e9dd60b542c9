"""Resize and Upsample as they were before operator set 11, in today's attributes.

They had no attributes for coordinates. Runtimes agree on place / scale; for the nearest neighbour they round down
where an axis grows and up where it shrinks. The converter of the onnx package leaves today's defaults instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from glowtrain.errors import ModelError
from glowtrain.onnx_io.source import describe
from glowtrain.types import Array

LAST_WITHOUT_COORDINATES = 10
"""The last operator set in which a resize had no attributes for coordinates."""


def state_coordinates(nodes: Sequence[NodeProto], graph: GraphProto) -> None:
    """Give converted nodes of operator set 10 or older the attributes that they mean, in place.

    Raises :class:`ModelError` for a nearest-neighbour resize that shrinks one axis and stretches another.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants.update(
        {node.output[0]: attribute.t for node in nodes if node.op_type == "Constant" for attribute in node.attribute}
    )
    for node in nodes:
        if node.op_type == "Resize":
            _state(node, constants)


def _state(node: NodeProto, constants: dict[str, TensorProto]) -> None:
    mode = next((attribute for attribute in node.attribute if attribute.name == "mode"), None)
    if mode is not None and mode.s == b"bilinear":
        mode.s = b"linear"
    scales = _scales(node, constants)
    shrinks, grows = bool((scales < 1).any()), bool((scales > 1).any())
    if shrinks and grows and (mode is None or mode.s == b"nearest"):
        raise ModelError(f"{describe(node)}: nearest neighbours of axes that shrink and axes that grow at once")
    stated = {
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "ceil" if shrinks else "floor",
    }
    present = {attribute.name for attribute in node.attribute}
    node.attribute.extend(helper.make_attribute(name, text) for name, text in stated.items() if name not in present)


def _scales(node: NodeProto, constants: dict[str, TensorProto]) -> Array:
    """The scales where they are constants; else none."""
    found = constants.get(node.input[2]) if len(node.input) > 2 else None
    return np.ones(0) if found is None else numpy_helper.to_array(found)
