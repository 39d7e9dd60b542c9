"""What PyTorch's dynamo exporter says of initializers decides which of them are parameters."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper

from glowtrain.graph import Graph
from glowtrain.onnx_io import load
from glowtrain.onnx_io.read.exported import FOLDED, KIND, SIGNATURE, exported
from tests.onnx_io.onnx_models import model, node, trainable

ARRAYS = {
    name: np.linspace(1, 2, 3, dtype=np.float32)
    for name in ("weight", "table", "val_1", "val_2", "val_3", "weight_bias", "mixed")
}


def marked() -> ModelProto:
    """A sum with a parameter, a buffer, a computed scale, what was folded from each, and what is not marked."""
    sums = [node("Add", f"x{i} {name}", f"x{i + 1}") for i, name in enumerate(ARRAYS)]
    proto = model(sums, {"x0": [3]}, [f"x{len(ARRAYS)}"], ARRAYS)
    signature = "\n# inputs\np_weight: PARAMETER target='weight'\nb_table: BUFFER target='table' persistent=True\n"
    proto.graph.metadata_props.add(key=SIGNATURE, value=signature)
    marks = {
        "table": (KIND, "BUFFER"),
        "val_2": (FOLDED, "['val_9', 'view', 'table']"),
        "val_3": (FOLDED, "['val_2', 'weight']"),
        "mixed": (FOLDED, "['mixed', 'val_3']"),
    }
    for name, (key, text) in marks.items():
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])
        value.metadata_props.add(key=key, value=text)
        proto.graph.value_info.append(value)
    return proto


def test_buffers_and_computed_values_are_constants() -> None:
    assert exported(marked()).constants == {"table", "val_1", "val_2"}
    graph = load(marked())
    assert isinstance(graph, Graph)
    assert trainable(graph) == ["weight", "val_3", "weight_bias", "mixed"]


def test_without_a_signature_nothing_is_said() -> None:
    proto = marked()
    del proto.graph.metadata_props[:]
    assert not exported(proto).constants
    graph = load(proto)
    assert isinstance(graph, Graph)
    assert trainable(graph) == list(ARRAYS)


def test_a_shared_constant_stays_one() -> None:
    """One that several nodes read is not taken for merged parameters."""
    proto = model(
        [node("Mul", "x val_1", "h"), node("Add", "h val_1", "y")], {"x": [3]}, ["y"], {"val_1": np.ones(1, np.float32)}
    )
    proto.graph.metadata_props.add(key=SIGNATURE, value="\n# inputs\n")
    graph = load(proto)
    assert isinstance(graph, Graph)
    assert not graph.variables
