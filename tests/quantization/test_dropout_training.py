"""Dropout in quantization-aware training: it drops rounded numbers in every step, and no exported model has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.graph import Graph, Node, Template, Value
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.ops.random.philox import Dropout, TrainingDropout
from glowtrain.quantization import Recipe, calibrate, convert, finetune, freeze, prepare_training, save_quantized
from glowtrain.types import Array, f32

DRAW = np.random.default_rng(3)
IMAGES = DRAW.standard_normal((16, 2, 6, 6)).astype(np.float32)
LABELS = DRAW.integers(0, 3, 16)
LOSS = gt.losses.softmax_cross_entropy(output="scores")


def net(*, dropout: bool = True) -> Template:
    """Dropout before a move, between layers, before a sum, behind a sum, and of a result."""

    def maybe(x: Value, rate: float) -> Value:
        return nn.dropout(x, rate) if dropout else x

    @gt.model(x=f32["batch", 2, 6, 6])
    def net(x: Value) -> dict[str, Value]:
        x = nn.relu(nn.batch_norm(nn.conv(x, 4, 3, name="conv"), name="norm"))
        x = nn.flatten(maybe(nn.max_pool(x, 2), 0.25))
        x = nn.relu(maybe(nn.linear(x, 8, name="first"), 0.5))
        x = maybe(x + maybe(nn.linear(x, 8, name="second"), 0.5), 0.1)
        return {"scores": maybe(nn.linear(x, 3, name="last"), 0.1), "features": x}

    return net


def prepared(recipe: Recipe | None = None, **dims: bool) -> Template:
    model = net(**dims)
    profile = calibrate(model, {"x": IMAGES}, backend="interpreter")
    result = prepare_training(model, profile, recipe)
    assert isinstance(result, Template)
    return result


def nodes(graph: Graph, kind: type) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.operator, kind)]


def scores(model: Graph | Template, images: Array = IMAGES) -> Array:
    plain = gt.onnx_io.inference(model)
    found: Array = gt.compile(plain.template or plain if isinstance(plain, Graph) else plain, "interpreter")(
        {"x": images}
    )["scores"]
    return found


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(outputs=True), Recipe(keep=["first"])], ids=["", "out", "keep"])
def test_without_training_it_changes_nothing(recipe: Recipe) -> None:
    with_it, without = prepared(recipe), prepared(recipe, dropout=False)
    np.testing.assert_array_equal(scores(with_it), scores(without))
    np.testing.assert_array_equal(scores(convert(with_it)), scores(convert(without)))


def test_rounded_numbers_are_dropped() -> None:
    graph = prepared(Recipe(outputs=True)).bind({"batch": 16})
    drops = nodes(graph, Dropout)
    assert len(drops) == 5
    for node in drops:
        source = node.inputs[0]
        assert source is not None
        assert source.node is not None
        assert isinstance(source.node.operator, FakeQuantize)
    dropped = {node.outputs[0] for node in drops}
    assert not any(node.inputs[0] in dropped for node in nodes(graph, FakeQuantize))  # what is dropped is not cut off


def test_one_dropout_of_several_readers_drops_the_same_elements() -> None:
    @gt.model(x=f32["batch", 8])
    def shared(x: Value) -> Value:
        x = nn.dropout(nn.relu(nn.linear(x, 8, name="first")), 0.5)
        return nn.linear(x, 4, name="left") + nn.linear(x, 4, name="right")

    profile = calibrate(shared, IMAGES.reshape(16, -1)[:, :8], backend="interpreter")
    graph = prepare_training(shared, profile)
    assert isinstance(graph, Template)
    assert len(nodes(graph.bind({"batch": 4}), Dropout)) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_every_step_drops_others_and_no_file_drops(backend: str, tmp_path: Path) -> None:
    trainer = finetune(
        prepared(), {"x": IMAGES, "labels": LABELS}, LOSS, gt.optim.SGD(lr=0.0), epochs=4, frozen_epochs=2,
        batch_size=16, backend=backend, progress=False,
    )  # fmt: skip
    losses = sorted(record["loss"] for record in trainer.history)
    assert np.diff(losses).min() > 1e-4  # nothing is learned: only what is dropped differs, when frozen too
    assert len(nodes(trainer.graph, TrainingDropout)) == 5
    kinds = (Dropout, TrainingDropout)
    exported = convert(trainer.model())
    assert not any(nodes(exported, kind) for kind in kinds)
    save_quantized(exported, tmp_path / "int8.onnx")
    assert b"Dropout" not in (tmp_path / "int8.onnx").read_bytes()


def test_it_stays_when_normalization_is_frozen() -> None:
    frozen = freeze(prepared())
    assert isinstance(frozen, Template)
    assert len(nodes(frozen.bind({"batch": 2}), Dropout)) == 5


def test_gradients_pass_what_was_kept() -> None:
    """Seen from outside: with a ratio of nearly 1 nothing reaches the layers before."""

    @gt.model(x=f32["batch", 8])
    def closed(x: Value) -> dict[str, Value]:
        return {"scores": nn.linear(nn.dropout(nn.relu(nn.linear(x, 8, name="first")), 0.999999), 3, name="last")}

    x = IMAGES.reshape(16, -1)[:, :8]
    model = prepare_training(closed, calibrate(closed, x, backend="interpreter"))
    trainer = gt.Trainer(model, LOSS, gt.optim.SGD(lr=0.1), backend="interpreter")
    gradients = trainer.gradients({"x": x, "labels": LABELS})
    assert not gradients["first.weight"].any()
    assert gradients["last.bias"].any()
