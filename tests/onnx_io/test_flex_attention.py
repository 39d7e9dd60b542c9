"""FlexAttention in a file: its subgraphs read what is around them, and that is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper

import glowtrain as gt
from glowtrain import load
from glowtrain.errors import ModelError
from glowtrain.graph import Graph
from glowtrain.graph.text import arrays_of, parse, to_text
from glowtrain.types import Array
from tests.onnx_io.onnx_models import model, node


def body(name: str, *nodes: NodeProto, inputs: int = 1) -> GraphProto:
    declared = [helper.make_tensor_value_info(f"{name}.x{i}", TensorProto.FLOAT, None) for i in range(inputs)]
    return helper.make_graph(list(nodes), name, declared, [helper.make_empty_tensor_value_info(f"{name}.y")])


def attention(**bodies: GraphProto) -> Graph:
    """Two heads, three queries, four keys; a bias for each head and a gate for all."""
    flex = node("FlexAttention", "q k v", "y", "flex", domain="ai.onnx.preview", **bodies)
    shapes = {"q": [1, 2, 3, 5], "k": [1, 2, 4, 5], "v": [1, 2, 4, 3]}
    constants: dict[str, Array] = {
        "bias": np.array([1.0, -0.5], np.float32).reshape(2, 1, 1),
        "gate": np.ones((3, 4), np.float32) / 2,
    }
    imports = [helper.make_opsetid("ai.onnx.preview", 1)]
    graph = load(model([flex], shapes, ["y"], constants, opset=26, imports=imports))
    assert isinstance(graph, Graph)
    return graph


def both() -> Graph:
    score = body("score", node("Tanh", "score.x0", "t"), node("Mul", "t bias", "score.y"))
    share = body("share", node("Mul", "share.x0 gate", "share.y"))
    return attention(score_mod=score, prob_mod=share)


def expected(q: Array, k: Array, v: Array) -> Array:
    scores = np.tanh(q @ k.swapaxes(2, 3) / np.sqrt(5)) * np.array([1, -0.5]).reshape(2, 1, 1)
    shares = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    return np.asarray(shares / 2 @ v)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_result(backend: str) -> None:
    graph, random = both(), np.random.default_rng(0)
    feeds = {value.name: random.standard_normal(value.shape).astype(np.float32) for value in graph.inputs}
    found = gt.compile(graph, backend=backend)(feeds)["y"]
    np.testing.assert_allclose(found, expected(**feeds), rtol=1e-5, atol=1e-6)


def test_what_a_subgraph_reads_is_trained() -> None:
    graph, random = both(), np.random.default_rng(1)
    assert [value.name for value in graph.variables if value.trainable] == ["bias", "gate"]
    trainer = gt.Trainer(graph, gt.losses.mse("target"), gt.optim.SGD(lr=0.1), backend="cpu")
    feeds = {value.name: random.standard_normal(value.shape).astype(np.float32) for value in graph.inputs}
    losses = [trainer.step(feeds | {"target": np.zeros((1, 2, 3, 3), np.float32)}) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_text_holds_the_subgraphs() -> None:
    graph = both()
    text = to_text(graph)
    assert to_text(parse(text, arrays_of(graph))) == text


def test_saved_file_gives_the_same(tmp_path: object) -> None:
    """It is saved as a function of standard operators."""
    graph, random = both(), np.random.default_rng(2)
    path = f"{tmp_path}/flex.onnx"
    gt.save(graph, path)
    feeds = {value.name: random.standard_normal(value.shape).astype(np.float32) for value in graph.inputs}
    found = gt.compile(gt.load(path), backend="interpreter")(feeds)["y"]
    np.testing.assert_allclose(found, expected(**feeds), rtol=1e-5, atol=1e-6)


def test_a_subgraph_of_another_shape_is_refused() -> None:
    wrong = body("score", node("ReduceMax", "score.x0", "score.y", keepdims=0))
    with pytest.raises(ModelError, match=r"flex.*score_mod must take .*f32\[1,2,3,4\]"):
        attention(score_mod=wrong)
    two = body("score", node("Add", "score.x0 score.x1", "score.y"), inputs=2)
    with pytest.raises(ModelError, match="score_mod must have one input and one output"):
        attention(score_mod=two)


def test_a_saved_attention_leaves_the_batch_open(tmp_path: object) -> None:
    """Grouped heads and a key and value of rank 3, written as a function: no shape in it names the batch."""
    attention = node("Attention", "q k v", "y", q_num_heads=4, kv_num_heads=2, is_causal=1)
    rotary = node("RotaryEmbedding", "q cos sin places", "turned", num_heads=4)
    table = np.random.default_rng(3).standard_normal((5, 1)).astype(np.float32)
    shapes: dict[str, Any] = {
        "q": ["batch", 3, 8],
        "k": ["batch", 5, 4],
        "v": ["batch", 5, 6],
        "places": (TensorProto.INT64, ["batch", 3]),
    }
    proto = model([attention, rotary], shapes, ["y", "turned"], {"cos": table, "sin": table}, opset=23)
    graph = load(proto, {"batch": 2})
    assert isinstance(graph, Graph)
    path = f"{tmp_path}/attention.onnx"
    gt.save(graph, path, opset=18)
    again = load(path)
    assert [spec.symbols for spec in again.inputs.values()] == [("batch",)] * 4  # type: ignore[union-attr]
    random = np.random.default_rng(4)
    feeds: dict[str, Array] = {
        name: random.standard_normal((3, *shape[1:])).astype(np.float32) for name, shape in list(shapes.items())[:3]
    }
    feeds["places"] = random.integers(0, 5, (3, 3))
    expected, found = (gt.compile(source, backend="interpreter")(feeds) for source in (load(proto), again))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)
