"""Operators without a class: their definitions by ONNX are built in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import glowtrain as gt
from glowtrain import load
from glowtrain.errors import GlowtrainError, ModelError, UnsupportedOperatorError
from glowtrain.graph import Graph, Node, verify
from glowtrain.graph.registry import OPERATORS
from glowtrain.ops.elementwise.activation import Softplus
from glowtrain.types import Array
from tests.onnx_io.onnx_models import in_onnx_runtime, interpreted, model, node, random_inputs

DEFINED: dict[str, Any] = {
    "Celu": node("Celu", "x", "y", alpha=1.5),
    "Clip": node("Clip", "x low _", "y"),
    "Elu": node("Elu", "x", "y"),
    "Gelu": node("Gelu", "x", "y", approximate="tanh"),
    "GroupNormalization": node("GroupNormalization", "x scale bias", "y", num_groups=2),
    "LayerNormalization": node("LayerNormalization", "x row", "y mean deviation", axis=-1),
    "LeakyRelu": node("LeakyRelu", "x", "y"),
    "LogSoftmax": node("LogSoftmax", "x", "y", axis=1),
    "NegativeLogLikelihoodLoss": node("NegativeLogLikelihoodLoss", "x labels", "y", reduction="sum", ignore_index=1),
    "ReduceLogSumExp": node("ReduceLogSumExp", "x axes", "y", keepdims=0),
    "Selu": node("Selu", "x", "y", gamma=1.2),
    "Softplus": node("Softplus", "x", "y"),
    "Swish": node("Swish", "x", "y", alpha=0.7),
    "ThresholdedRelu": node("ThresholdedRelu", "x", "y", alpha=0.3),
}
"""A use of each operator; optional operands, attributes that are stated and attributes that are not."""

CONSTANTS: dict[str, Array] = {
    "low": np.array(-0.3, np.float32),
    "scale": np.arange(4, dtype=np.float32),
    "bias": np.ones(4, np.float32),
    "row": np.arange(3, dtype=np.float32),
    "labels": np.array([[0, 1, 2], [3, 1, 0]]),
    "axes": np.array([0, 2]),
}


def proto_of(key: str) -> Any:
    defined = DEFINED[key]
    constants = {name: CONSTANTS[name] for name in defined.input if name in CONSTANTS}
    return model([defined], {"x": [2, 4, 3]}, list(defined.output), constants, opset=24)


def results(proto: Any, seed: int = 0) -> dict[str, Array]:
    graph = load(proto)
    assert isinstance(graph, Graph)
    verify(graph)
    return interpreted(graph, random_inputs(graph, seed))


@pytest.mark.parametrize("key", DEFINED)
def test_definition_agrees_with_the_class(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = proto_of(key)
    expected = results(proto)
    monkeypatch.delitem(OPERATORS, key)
    found = results(proto)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_gradient_follows_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load(proto_of("Swish"))
    monkeypatch.delitem(OPERATORS, "Swish")
    defined = load(proto_of("Swish"))
    assert isinstance(graph, Graph)
    assert isinstance(defined, Graph)
    inputs = random_inputs(graph)
    pulled = []
    for each in (graph, defined):
        (x,), (y,) = each.inputs, each.outputs.values()
        total = gt.ops.reduce.reduction.ReduceSum(keepdims=False)(y * y)
        (gradient,) = gt.grad.gradients(total, [x])
        pulled.append(interpreted(each.with_(outputs={"gradient": gradient}), inputs)["gradient"])
    np.testing.assert_allclose(pulled[1], pulled[0], rtol=1e-5, atol=1e-6)


def test_inside_of_a_branch_and_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of a body do not meet those of the graphs around it."""
    monkeypatch.delitem(OPERATORS, "Softplus")
    value = helper.make_tensor_value_info("row", TensorProto.FLOAT, [3])
    body = helper.make_graph(
        [node("Softplus", "row", "exp_x"), node("Add", "exp_x exp_x", "twice")],
        "body",
        [value],
        [helper.make_tensor_value_info("twice", TensorProto.FLOAT, [3])],
    )
    proto = model(
        [node("Scan", "x", "s", num_scan_inputs=1, body=body), node("Softplus", "s", "y")], {"x": [2, 3]}, ["y"]
    )
    (found,) = results(proto).values()
    graph = load(proto)
    assert isinstance(graph, Graph)
    (expected,) = in_onnx_runtime(proto, random_inputs(graph)).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_class_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """CenterCropPad has a definition and no class here; once a person registers one, it is used."""
    proto = model(
        [node("CenterCropPad", "x shape", "y", axes=[1, 2])],
        {"x": [2, 4, 3]},
        ["y"],
        {"shape": np.array([3, 5])},
        opset=20,
    )
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    graph = load(proto)
    assert isinstance(graph, Graph)
    (found,) = interpreted(graph, {"x": x}).values()
    np.testing.assert_array_equal(found[:, :, 1:4], x[:, :3])
    assert not found[:, :, [0, 4]].any()

    monkeypatch.setitem(OPERATORS, "CenterCropPad", Softplus)
    with pytest.raises(ModelError, match="axes of Softplus is not supported"):
        load(proto)


def test_what_has_neither_class_nor_definition_is_named() -> None:
    with pytest.raises(UnsupportedOperatorError, match="Concatenate"):
        load(model([node("Concatenate", "x x", "y")], {"x": [2]}, ["y"], opset=20))


def test_an_error_inside_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OPERATORS, "Swish")
    monkeypatch.delitem(OPERATORS, "Sigmoid")
    with pytest.raises(GlowtrainError, match=r"node 'act' \(Swish\), in its definition: node .*Sigmoid"):
        load(model([node("Swish", "x", "y", "act")], {"x": [2]}, ["y"], opset=24))


def test_operands_for_which_there_is_no_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group count that does not divide the channels: the error is ours, not a crash in the onnx package."""
    monkeypatch.delitem(OPERATORS, "GroupNormalization")
    broken = node("GroupNormalization", "x scale bias", "y", "norm", num_groups=3)
    constants = {name: CONSTANTS[name] for name in ("scale", "bias")}
    with pytest.raises(ModelError, match="norm"):
        load(model([broken], {"x": [2, 4, 3]}, ["y"], constants, opset=24))


def test_nodes_of_a_definition_are_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OPERATORS, "Celu")
    graph = load(proto_of("Celu"))
    assert isinstance(graph, Graph)
    assert len(graph.nodes) > 1
    assert all(isinstance(item, Node) for item in graph.nodes)
