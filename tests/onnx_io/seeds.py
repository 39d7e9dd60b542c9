"""The models that are mutated: by hand, of gt.save, and of ONNX's own tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from onnx.backend.test import loader

import glowtrain as gt
from glowtrain.graph import Value
from tests.onnx_io.onnx_models import mlp, model, node
from tests.onnx_io.test_host_parts import WORDS, classifier

LARGEST_MODEL = 30_000
"""Bytes of a model of the onnx package's own tests up to which it is mutated."""

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Seed:
    """A model to mutate, and inputs that it takes."""

    name: str
    data: bytes
    inputs: Inputs = field(default_factory=dict)


def handmade() -> Iterator[Seed]:
    """Small models by hand: weights, control flow, functions, older operator sets."""
    yield Seed("mlp", mlp(batch="n").SerializeToString())
    for opset in (6, 9, 13):
        yield Seed(f"mlp{opset}", mlp(opset=opset).SerializeToString())
    double = onnx.helper.make_function(
        "mine", "Double", ["a"], ["r"], [node("Add", "a a", "r")], [onnx.helper.make_opsetid("", 18)]
    )
    call = onnx.helper.make_node("Double", ["x"], ["y"], "call", domain="mine")
    imports = [onnx.helper.make_opsetid("mine", 1)]
    yield Seed("function", model([call], {"x": [3]}, ["y"], functions=[double], imports=imports).SerializeToString())
    yield Seed("control", _control().SerializeToString())
    yield Seed("words", classifier().SerializeToString(), {"word": WORDS})


def _control() -> ModelProto:
    """An If around values of the graph, and a Loop that adds up."""
    values = onnx.helper.make_empty_tensor_value_info
    first = onnx.helper.make_graph([node("Relu", "x", "t")], "first", [], [values("t")])
    second = onnx.helper.make_graph([node("Neg", "x", "e")], "second", [], [values("e")])
    declared = [
        onnx.helper.make_tensor_value_info("i", 7, []),
        onnx.helper.make_tensor_value_info("c", 9, []),
        onnx.helper.make_tensor_value_info("s", 1, [3]),
    ]
    body = onnx.helper.make_graph(
        [node("Identity", "c", "c2"), node("Add", "s x", "s2"), node("Mul", "s2 s2", "q")],
        "body", declared, [values("c2"), values("s2"), values("q")],
    )  # fmt: skip
    nodes = [
        node("If", "k", "a", then_branch=first, else_branch=second),
        node("Loop", "count _ a", "y z", body=body),
    ]
    return model(nodes, {"x": [3], "k": (9, [])}, ["y", "z"], {"count": np.array(3)})


def saved() -> Iterator[Seed]:
    """Models of gt.nn as gt.save writes them."""

    @gt.model(x=gt.f32["batch", 6])
    def perceptron(x: Value) -> Value:
        return gt.nn.softmax(gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 5)), 3))

    @gt.model(x=gt.f32["batch", 2, 8, 8])
    def convolutional(x: Value) -> Value:
        hidden = gt.nn.max_pool(gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 3, 3, padding="same"))), 2)
        return gt.nn.linear(gt.nn.flatten(hidden), 4)

    @gt.model(x=gt.f32["batch", 5, 4])
    def recurrent(x: Value) -> Value:
        return gt.nn.linear(gt.nn.lstm(x, 3), 2)

    @gt.model(x=gt.f32["batch", 5, 8])
    def attentive(x: Value) -> Value:
        return gt.nn.layer_norm(x + gt.nn.attention(x, 2))

    for template in (perceptron, convolutional, recurrent, attentive):
        proto = gt.save(template.bind({"batch": 2}))
        yield Seed(template.name, proto.SerializeToString())


def of_onnx(kind: str) -> Iterator[Seed]:
    """Models of ONNX's own backend tests, with the inputs of the node tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the onnx package overflows on purpose where it makes its tests
        cases = sorted(loader.load_model_tests(kind=kind), key=lambda case: str(case.name))
    for case in cases:
        if case.model_dir is not None:
            data = (Path(case.model_dir) / "model.onnx").read_bytes()
        else:
            data = case.model.SerializeToString() if case.model is not None else b""
        if 0 < len(data) <= LARGEST_MODEL:
            yield Seed(f"{kind}/{case.name}", data, _inputs_of(case))


def _inputs_of(case: Any) -> Inputs:
    if case.model is None or not case.data_sets:
        return {}
    arrays = case.data_sets[0][0]
    names = (value.name for value in case.model.graph.input)
    return {name: array for name, array in zip(names, arrays, strict=False) if isinstance(array, np.ndarray)}


def corpus(*, node_tests: bool = True) -> list[Seed]:
    """The models that are mutated, in a fixed order."""
    kinds = ("simple", "pytorch-operator", *(("node",) if node_tests else ()))
    return [*handmade(), *saved(), *(seed for kind in kinds for seed in of_onnx(kind))]
