"""Gradients as ONNX files: ONNX's own operators only, open dimensions, and ONNX Runtime's numbers are ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import glowtrain as gt
from glowtrain import models, nn
from glowtrain.errors import ModelError
from glowtrain.gradcheck.operators import onnx_runtime
from glowtrain.gradcheck.operators.oracles import check_sample, drawn
from glowtrain.graph import Graph, Input, Node, Operator, Template, Value, Variable, constant, registered
from glowtrain.onnx_io.runtimes import DIFFERENT, OTHERS
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.extrema import Max
from glowtrain.ops.sequence.recurrent import GRU, LSTM, RNN
from tests.onnx_io.onnx_models import in_onnx_runtime

Dims = tuple[int, ...]
LACKS = {"SwiGLU": "it is of an operator set that ONNX Runtime does not know yet"}
"""Operators of which ONNX Runtime runs no gradient, though the file is valid."""


def checked(model: Graph | Template, **options: Any) -> onnx.ModelProto:
    """A saved gradient that is valid ONNX and has nothing but ONNX's own operators."""
    proto = gt.save(model, standard=True, **options)
    assert {node.domain for node in nodes(proto.graph)} <= {"", "ai.onnx.ml"}
    assert not proto.functions
    onnx.checker.check_model(proto)
    return proto


def nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph, and of those in it."""
    inner = (attribute.g for node in graph.node for attribute in node.attribute)
    return [*graph.node, *(node for part in inner for node in nodes(part))]


@pytest.mark.parametrize("operator", tuple(registered(lambda cls: cls.differentiable)), ids=lambda cls: cls.key())
def test_every_operator_s_gradient_runs_elsewhere(operator: type[Operator], monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and gradients of samples as files, against the rules in f64."""
    monkeypatch.setattr(onnx_runtime, "save", checked)
    found = [m for k in range(3) for m in check_sample(drawn(operator, 0, k), ["onnx runtime"])]
    assert [f"{m.status}: {m.detail}" for m in found if m.status == "failed"] == []
    compared = any(m.status == "passed" for m in found)
    excused = operator.domain in OTHERS or operator.key() in DIFFERENT or operator.key() in LACKS
    assert compared or excused or not operator.__module__.startswith("glowtrain.")


def recurrent(cell: Any, gates: int, **options: Any) -> gt.Template:
    """A recurrent layer over any number of steps and examples, and a linear one on its last results."""
    random = np.random.default_rng(5)
    sizes = {"w": (gates * 4, 3), "r": (gates * 4, 4), "b": (2 * gates * 4,)}
    directions = 2 if options.get("direction") == "bidirectional" else 1
    weights = [
        Variable(f"cell.{name}", random.normal(scale=0.3, size=(directions, *shape)).astype(np.float32))
        for name, shape in sizes.items()
    ]

    @gt.model(x=gt.f32["time", "batch", 3])
    def network(x: Value) -> dict[str, Value]:
        every, last, *_ = cell(hidden_size=4, **options)(x, *weights)
        return {"y": nn.linear(last, 2, name="head") + nn.mean(every)}

    return network


@gt.model(x=gt.f32["batch", "time", 6])
def attention(x: Value) -> dict[str, Value]:
    return {"y": nn.mean(nn.attention(nn.layer_norm(x), 2, name="heads"), 1)}


@gt.model(x=gt.f32["batch", 2, "h", "w"])
def images(x: Value) -> dict[str, Value]:
    return {"y": nn.global_average_pool(nn.relu(nn.conv(x, 3, 3, padding=1, name="conv")))}


@gt.model(x=gt.f32["batch", 2, 9, 9])
def strided(x: Value) -> dict[str, Value]:
    return {"y": nn.max_pool(nn.batch_norm(nn.conv(x, 3, 3, stride=2, padding=1, name="conv")), 3, 2, padding=1)}


@gt.model(x=gt.f32["time", "batch", 3])
def loop(x: Value) -> dict[str, Value]:
    """A recurrence of one's own: h' = tanh(h w) + x, and a running maximum."""
    batch = x.shape[1]
    h, top, step = (Input(gt.f32[batch, 3], name) for name in ("h", "top", "step"))
    w = Input(gt.f32[3, 3], "w")
    following = nn.tanh(h @ w) + step
    results = {"h": following, "top": Max()(top, following), "out": following * step}
    body = Graph((h, top, step, w), results, name="body")
    start, matrix = constant(np.zeros((batch, 3), np.float32)), Variable("w", np.eye(3, dtype=np.float32) * 0.7)
    _, top, every = Scan(body, num_scan_inputs=1, num_captured=1)(start, start - 9.0, x, matrix)
    return {"y": top + nn.mean(every, 0)}


@gt.model(x=gt.f32["batch", 5])
def mean_loss(x: Value) -> dict[str, Value]:
    return {"y": nn.mean(nn.sigmoid(nn.linear(x, 3, name="head")))}


NETWORKS: dict[str, tuple[gt.Template, tuple[str, ...], tuple[Dims, ...]]] = {
    "lstm": (recurrent(LSTM, 4), ("x", "cell.*"), ((1, 1), (5, 2), (3, 7))),
    "gru": (recurrent(GRU, 3), ("x", "cell.*"), ((1, 1), (5, 2), (3, 7))),
    "gru, reset after": (recurrent(GRU, 3, linear_before_reset=1), ("x", "cell.*"), ((1, 1), (4, 3))),
    "lstm, both ways": (recurrent(LSTM, 4, direction="bidirectional"), ("x", "cell.*"), ((1, 1), (5, 2))),
    "rnn, backwards": (recurrent(RNN, 1, direction="reverse"), ("x", "cell.*"), ((2, 1), (5, 2))),
    "loop": (loop, ("x", "w"), ((1, 1), (5, 2), (3, 7))),
    "attention": (attention, ("x", "*.weight"), ((1, 1), (2, 5), (3, 2))),
    "images": (images, ("x",), ((1, 3, 3), (2, 5, 4), (3, 4, 7))),
    "strided": (strided, ("x", "conv.*"), ((1,), (4,))),
    "mean": (mean_loss, ("x", "head.*"), ((1,), (6,))),
    "mlp": (models.build("mlp"), ("x",), ((1,), (3,))),
    "cnn": (models.build("cnn"), ("x",), ((1,), (3,))),
    "transformer": (models.build("transformer"), ("x",), ((1,), (3,))),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize(("model", "by", "bindings"), NETWORKS.values(), ids=NETWORKS)
def test_networks_with_open_dimensions(
    model: gt.Template, by: tuple[str, ...], bindings: tuple[Dims, ...], random: np.random.Generator
) -> None:
    gradient = gt.gradient_model(model, by=by)
    proto = checked(gradient)
    onnx.checker.check_model(proto, full_check=True)
    declared = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.input}
    for name, spec in model.inputs.items():
        assert tuple(dim.dim_param or dim.dim_value for dim in declared[name]) == spec.shape
    function = gt.compile(gradient)
    for extents in bindings:
        bound = gradient.bind(dict(zip(model.symbols, extents, strict=True)))
        feeds = {value.name: random.normal(size=value.shape).astype(np.float32) for value in bound.inputs}
        ours, theirs = function(feeds), in_onnx_runtime(proto, feeds)
        assert list(ours) == list(theirs)
        for name, array in ours.items():
            np.testing.assert_allclose(theirs[name], array, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(array).max()))


def test_the_file_reads_back_as_the_same_gradient(tmp_path: Path, random: np.random.Generator) -> None:
    gradient = gt.gradient_model(NETWORKS["lstm"][0], by="x")
    gt.save(gradient, tmp_path / "gradient.onnx", standard=True)
    again = gt.load(tmp_path / "gradient.onnx")
    assert isinstance(again, Template)
    feeds = {"x": random.normal(size=(5, 2, 3)), "y.cotangent": random.normal(size=(1, 2, 2))}
    arrays = {name: array.astype(np.float32) for name, array in feeds.items()}
    ours, theirs = (gt.compile(each, "interpreter")(arrays)["x.gradient"] for each in (gradient, again))
    np.testing.assert_allclose(theirs, ours, rtol=1e-5)


@pytest.mark.spread(1)
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_a_gradient_at_an_opset(opset: int, random: np.random.Generator) -> None:
    gradient = gt.gradient_model(NETWORKS["cnn"][0])
    proto = checked(gradient, opset=opset)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", opset)]
    x, seed = random.normal(size=(2, 1, 28, 28)).astype(np.float32), np.eye(10, dtype=np.float32)[:2]
    feeds = {"x": x, "scores.cotangent": seed}
    expected = gt.compile(gradient)(feeds)["x.gradient"]
    np.testing.assert_allclose(in_onnx_runtime(proto, feeds)["x.gradient"], expected, rtol=1e-4, atol=1e-6)


def test_a_second_derivative(random: np.random.Generator) -> None:
    first = gt.gradient_model(mean_loss, "y", "x")
    second = gt.gradient_model(first, "x.gradient", "x")
    proto = checked(second)
    for n in (1, 4):
        feeds = {name: random.normal(size=(n, 5)).astype(np.float32) for name in ("x", "x.gradient.cotangent")}
        expected = gt.compile(second, "interpreter")(feeds)
        for name, array in in_onnx_runtime(proto, feeds).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class Tripled(Elementwise):
    """An operator of another package, without a decomposition."""

    domain, onnx = "tests.files", "Tripled"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return 3 * x

    def vjp(self, g: Value, y: Value, x: Value) -> tuple[Value]:
        return (Tripled()(g),)


def test_an_operator_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    x = Input(gt.f32[2], "x")
    gradient = gt.gradient_model(Graph((x,), {"y": Node(Tripled(), [x], "layer/triple").output}, name="net"))
    assert {node.domain for node in gt.save(gradient).graph.node} == {"tests.files"}, "for runtimes that know it"
    with pytest.raises(ModelError, match=r"no decomposition:\n  - tests.files.Tripled\(f32\[2\]\)"):
        gt.save(gradient, tmp_path / "gradient.onnx", standard=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    gradient = gt.gradient_model(mean_loss)
    for path in (tmp_path, tmp_path / "no" / "gradient.onnx"):
        with pytest.raises(ModelError, match="cannot write"):
            gt.save(gradient, path, standard=True)
    assert list(tmp_path.iterdir()) == []
