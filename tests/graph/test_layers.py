"""The layer of a node: whose parameters it reads, what it was made for, where its operands come from."""

from __future__ import annotations

from collections import Counter

import numpy as np

import glowtrain as gt
from glowtrain.compiler.walk import arrive, until
from glowtrain.graph import Graph, Input, Variable, parse
from glowtrain.graph.graph import bodies_of
from glowtrain.graph.value import Node, layers
from glowtrain.losses import by_name
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.settings import TrainingSpec


@gt.model(x=gt.f32[4, 2, 6, 6])
def model(x: gt.Value) -> gt.Value:
    x = gt.nn.conv(x, 3, 3, padding="same", bias=False, name="first.conv")
    x = gt.nn.max_pool(gt.nn.relu(gt.nn.batch_norm(x, name="first.norm")), 2)
    return gt.nn.linear(gt.nn.flatten(x), 5, name="scores")


def step() -> Graph:
    graphs = TrainerGraphs(TrainingSpec(model, by_name("softmax_cross_entropy"), gt.optim.Adam()))
    return graphs.step_of(graphs.example)


def found_layers(graph: Graph) -> dict[str, Counter[str]]:
    """How many nodes of each operator there are in each layer."""
    found: dict[str, Counter[str]] = {}
    for node in graph.nodes:
        found.setdefault(node.layer, Counter())[node.operator.onnx] += 1
    return found


def test_nodes_of_a_model_belong_to_modules() -> None:
    graph = TrainerGraphs(TrainingSpec(model, by_name("mse"), gt.optim.SGD())).example
    assert [(node.operator.onnx, node.layer) for node in graph.nodes] == [
        ("Conv", "first.conv"),
        ("BatchNormalization", "first.norm"),
        ("Relu", "first.norm"),
        ("MaxPool", "first.norm"),
        ("Flatten", "first.norm"),
        ("Gemm", "scores"),
    ]


def test_decompositions_gradients_and_updates_keep_the_layer() -> None:
    found = found_layers(arrive(step(), stages=until("optimized")))
    assert found["first.conv"]["Conv"] == 1
    assert found["first.conv"]["ConvWeightGradient"] == 1
    assert found["first.norm"]["ReduceMean"] == 2, "BatchNormalization, written out: not the convolution's"
    assert found["first.norm"]["MaxPoolGradient"] == 1
    assert found["scores"]["Gemm"] == 3, "the product and its two gradients"
    assert found["scores"]["LogSoftmax"] == 1
    assert found["first.conv"]["Where"] == 3, "the update of its weight and two moments, of which a scalar decides"


def test_a_path_names_the_layer_of_a_node_without_parameters() -> None:
    x = Input(gt.f32[3], "x")
    assert Node(Tanh(), [x], "/block/act/Tanh").layer == "block.act"
    assert Node(Tanh(), [x]).layer == ""


def test_a_parameter_of_no_module_is_a_layer() -> None:
    x, w = Input(gt.f32[3], "x"), Variable("own", np.ones(3, np.float32))
    before = Node(Tanh(), [x], "/block/Tanh").output
    assert (before * w).node.layer == "own"


def test_the_largest_operand_decides() -> None:
    small, large = (Node(Tanh(), [Input(gt.f32[n], "x")], f"/{name}/Tanh") for n, name in ((1, "small"), (9, "large")))
    assert (small.output + large.output).node.layer == "large"
    assert (large.output + small.output).node.layer == "large"


def test_what_is_made_for_a_node_belongs_to_its_layer_and_nothing_after() -> None:
    x, w = Input(gt.f32[3], "x"), Variable("own.weight", np.ones(3, np.float32))
    whole = Node(Tanh(), [x], "/block/Tanh")
    with layers() as enter:
        assert (x * w).node.layer == "own"
        enter(whole.layer)
        assert (x * w).node.layer == "block"
        with layers() as inner:
            inner("inside")
            assert (x * w).node.layer == "inside"
        assert (x * w).node.layer == "block"
    assert (x * w).node.layer == "own"


def test_layers_change_neither_text_nor_key() -> None:
    graph = step()
    again = parse(str(graph), gt.graph.arrays_of(graph))
    assert str(again) == str(graph)
    assert again.key == graph.key


def test_nodes_in_the_body_of_a_loop_belong_to_its_layer() -> None:
    x = Input(gt.f32[5, 2, 3], "x")
    with gt.nn.build(seed=0):
        y = gt.nn.lstm(x, 4, name="memory")
    graph = arrive(Graph((x,), {"y": y}), stages=until("optimized"))
    (scan,) = (node for node in graph.nodes if bodies_of(node.operator))
    (body,) = bodies_of(scan.operator).values()
    assert {scan.layer, *(node.layer for node in body.nodes)} == {"memory"}
