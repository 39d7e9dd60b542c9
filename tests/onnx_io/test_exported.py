"""What PyTorch's dynamo exporter says: which initializers are parameters, and in which modules nodes are."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

import glowtrain as gt
from glowtrain import load, save
from glowtrain.compiler.outline import summary
from glowtrain.graph import Graph
from glowtrain.onnx_io.read.exported import FOLDED, KIND, SCOPES, SIGNATURE, exported
from glowtrain.profiling.measure import profile
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


def scoped(node: NodeProto, scopes: str) -> NodeProto:
    node.metadata_props.add(key=SCOPES, value=scopes)
    return node


def nested() -> ModelProto:
    """An addition, its Relu in a module of its own inside another, and a Tanh that is in no module."""
    nodes = [
        scoped(node("Add", "x stem.fc.bias", "h", "node_add"), "['', 'stem', 'stem.fc', 'add']"),
        scoped(node("Relu", "h", "a", "node_relu"), "['', 'stem', 'stem.act', 'relu']"),
        scoped(node("Tanh", "a", "y", "node_tanh"), "['', 'tanh']"),
    ]
    return model(nodes, {"x": [3]}, ["y"], {"stem.fc.bias": np.ones(3, np.float32)})


def test_nodes_without_parameters_are_called_after_the_module_that_the_file_states() -> None:
    graph = load(nested())
    assert isinstance(graph, Graph)
    assert [node.name for node in graph.nodes] == ["/stem.fc/node_add", "/stem.act/node_relu", "node_tanh"]
    assert [layer.name for layer in summary(graph).layers] == ["stem.fc", "stem.act", "node_tanh"]
    again = load(save(graph))
    assert isinstance(again, Graph)
    assert [layer.name for layer in summary(again).layers] == ["stem.fc", "stem.act", "node_tanh"]


def test_nodes_of_the_torchscript_exporter_are_named_by_their_paths() -> None:
    graph = load(model([node("Relu", "x", "y", "/layers.0/act/Relu")], {"x": [3]}, ["y"]))
    assert isinstance(graph, Graph)
    assert [layer.name for layer in summary(graph).layers] == ["layers.0.act"]


def layers(graph: Graph) -> list[tuple[str, ...]]:
    """Those of each kernel."""
    return [row.origin.layers for row in profile(graph, gt.Cpu(threads=1), 1).rows]


def test_kernels_are_of_the_modules_whose_results_they_write() -> None:
    proto = nested()
    del proto.graph.node[2]
    proto.graph.output[0].name = "a"
    graph = load(proto)
    assert isinstance(graph, Graph)
    assert layers(graph) == [("stem.act", "stem.fc")]
    (kernel,) = layers(graph.with_(outputs={"h": graph.nodes[0].outputs[0]}))
    assert kernel == ("stem.fc",)
