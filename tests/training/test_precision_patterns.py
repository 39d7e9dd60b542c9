"""Products in bf16 but for those of layers that patterns name: in which layers they are, forward and backward, at every
door; and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.cache.key import key_of
from glowtrain.bundles.writing import BundleSpec
from glowtrain.cli import app
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Input, Node, Value, Variable
from glowtrain.graph.graph import nodes_within
from glowtrain.lower.factors import RoundFactors
from glowtrain.lower.precision import factors_for
from glowtrain.memory.precision import RoundedFactors, precision_in
from glowtrain.ops.contraction.products import MatMul
from glowtrain.stages import Options
from glowtrain.types import bf16, f32
from tests.training.test_micro_batches import images, rows, words
from tests.training.test_training_with_residuals import same, trained

ROWS = {f"{kind}{number}" for kind in ("up", "down") for number in range(3)} | {"scores"}


@gt.model(x=gt.f32["batch", 8])
def nameless(x: Value) -> Value:
    """Parameters that are in no module."""
    first, second = (gt.nn.parameter(name, (8, 8), gt.nn.Normal(1.0)) for name in ("first", "second"))
    return gt.nn.relu(x @ first) @ second


def layers_of(step: Graph, factors: RoundedFactors | None) -> tuple[set[str], set[str]]:
    """The layers with products of rounded factors, and those with others."""
    narrow, wide = set[str](), set[str]()
    for node in nodes_within(RoundFactors(factors).run(step)):
        for at in node.operator.factors(*(None if value is None else value.type for value in node.inputs)):
            value = node.inputs[at]
            assert value is not None
            (narrow if _is_rounded(value) else wide).add(node.layer)
    return narrow, wide


def _is_rounded(value: Value) -> bool:
    """Whether it comes of numbers in bf16, by moves and a cast."""
    while value.node is not None and value.dtype != bf16 and len(value.node.inputs) > 0:
        node: Node = value.node
        if not node.operator.moves and node.operator.onnx != "Cast":
            return False
        (value, *_) = [operand for operand in node.inputs if operand is not None]
    return value.dtype == bf16


@pytest.mark.parametrize(
    ("model", "precision", "narrow"),
    [
        (rows, "bf16", ROWS),
        (rows, {"*": "bf16"}, ROWS),
        (rows, {"*": "bf16", "scores": "f32"}, ROWS - {"scores"}),
        (rows, {"*": "bf16", "scores.weight": "f32"}, ROWS - {"scores"}),
        (rows, {"up*": "bf16"}, {"up0", "up1", "up2"}),
        (rows, {"*": "bf16", "up*": "f32", "up1.*": "bf16"}, ROWS - {"up0", "up2"}),
        (rows, {"scores": "f32", "*": "bf16"}, ROWS),
        (words, {"*": "bf16", "lstm": "f32"}, {"scores"}),
        (words, {"lstm.recurrent": "bf16"}, {"lstm"}),
        (images, {"*": "bf16", "conv1": "f32"}, {"scores"}),
        (nameless, {"*": "bf16", "first": "f32"}, {"second"}),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_the_last_pattern_that_fits_a_layer_counts(model: Any, precision: Any, narrow: set[str]) -> None:
    """In its products forward and backward, and in no others."""
    trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), gt.optim.SGD(0.1), precision=precision)
    step = trainer.graphs.example_step
    whole, _ = layers_of(step, RoundedFactors())
    found, left = layers_of(step, trainer.options.precision)
    assert (found, left - {"conv0"}) == (narrow, whole - narrow)


def test_layers_inside_are_meant_by_the_module_that_they_are_in() -> None:
    graph = gt.model(x=gt.f32["batch", 8])(
        lambda x: gt.nn.linear(gt.nn.linear(x, 8, name="block.inner"), 8, name="blocks")
    ).bind({"batch": 4})
    assert factors_for(graph, {"*": "bf16", "block": "f32"}) == RoundedFactors(("block.inner",))


def test_excepted_products_have_the_bits_of_f32() -> None:
    some, all_, none = (trained(rows, precision=given)[1] for given in ({"*": "bf16", "up*": "f32"}, "bf16", None))
    assert not same(some, all_)
    assert not same(some, none)
    assert same(all_, trained(rows, precision={"*": "bf16"})[1])
    assert same(some, trained(rows, precision={"scores": "bf16", "down*": "bf16"}, threads=2)[1])


EXCEPT = {"*": "bf16", "first": "f32"}


def test_every_door_takes_them(tmp_path: Path) -> None:
    """A compiled model, a trainer and what it evaluates with, and bundles, with weights as constants, too."""
    graph, x = nameless.bind({"batch": 4}), np.ones((4, 8), np.float32)
    outputs = {str(given): gt.compile(graph, precision=given)({"x": x})["output"] for given in (None, "bf16", EXCEPT)}
    assert len({array.tobytes() for array in outputs.values()}) == 3
    trainer = gt.Trainer(nameless, "mse", gt.optim.SGD(0.1), precision=EXCEPT)
    assert np.array_equal(trainer.predict(x)["output"], gt.compile(graph, precision=EXCEPT)({"x": x})["output"])
    for given in (nameless, trainer):
        settings: Mapping[str, Any] = {} if given is trainer else {"precision": EXCEPT}
        for weights in ("object", "file"):
            spec = BundleSpec(given, out=tmp_path, dims={"batch": 4}, weights=weights, **settings)
            module = spec.module()
            assert module.options.precision == RoundedFactors(("first",))
    assert trainer.options.precision == RoundedFactors(("first",))


def test_the_command_line_takes_them() -> None:
    assert precision_in([]) is None
    assert precision_in(["bf16"]) == "bf16"
    assert precision_in(["bf16", "up*:f32", "a:b:bf16"]) == {"*": "bf16", "up*": "f32", "a:b": "bf16"}
    line = ["verify", "mlp", "--train", "--precision", "bf16", "--precision"]
    assert CliRunner().invoke(app, [*line, "scores:f32"]).exit_code == 0
    refused = CliRunner().invoke(app, [*line, "scroes:f32"])
    assert refused.exit_code == 1
    assert "'scroes' (the nearest is 'scores')" in refused.output


def test_a_model_without_the_step_s_products_is_evaluated() -> None:
    """The loss has the only product."""
    model = gt.model(x=gt.f32["batch", 4])(lambda x: x * gt.nn.parameter("gain", (4,), gt.nn.Normal(1.0)))

    def loss(outputs: Mapping[str, Value], inputs: Mapping[str, Value]) -> Value:
        return gt.nn.mean(outputs["output"] @ np.ones((4, 4), np.float32))

    trainer = gt.Trainer(model, loss, gt.optim.SGD(0.1), precision="bf16")
    x = np.ones((4, 4), np.float32)
    assert trainer.predict(x)["output"].shape == (4, 4)


def test_kept_code_follows_layers_where_they_decide() -> None:
    """Of graphs that differ in nothing but the layers of their nodes."""
    x, w = Input(f32[4, 4], "x"), Variable("w", np.ones((4, 4), np.float32))

    def key(layer: str, precision: RoundedFactors | None) -> str | None:
        y = Node(MatMul(), (x, w), layer=layer).output
        return key_of(Graph((x,), {"y": y}), "cpu", Options(precision=precision))

    for precision in (None, RoundedFactors()):
        assert key("one", precision) == key("other", precision)
    kept = RoundedFactors(("one",))
    assert key("one", kept) != key("other", kept)
    assert key("one", kept) == key("one", kept)


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ({"*": "bf16", "scroes": "f32"}, r"there is no layer of products 'scroes' \(the nearest is 'scores'\)"),
        ({"*": "bf16", "zzz*": "f32"}, r"'zzz\*'; those with a matrix product or a convolution of many .* are 'up0'"),
        ({"*": "bf16", "norm1": "f32"}, "there is no layer of products 'norm1'"),
        ({"scores": "f32"}, "nothing is bf16, so nothing would be rounded"),
        ("f32", "nothing is bf16, so nothing would be rounded"),
        ({}, "nothing is bf16, so nothing would be rounded"),
        ({"*": "bf16", "*.weight": "f32"}, "the last pattern of each layer of rows.step has f32"),
        ({"*": "bf16", "scores": "f16"}, "precision 'f16' of 'scores': say bf16"),
        ({"*": "bf16", 3: "f32"}, "precision 'f32' of 3: say bf16"),
        (["bf16"], r"precision \['bf16'\]: say bf16"),
    ],
    ids=str,
)
def test_patterns_that_mean_nothing_are_refused(precision: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gt.Trainer(rows, gt.losses.softmax_cross_entropy(), gt.optim.Adam(), precision=precision)
