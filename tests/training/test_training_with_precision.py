"""Training with products in bf16: the same bits on any threads and processors, gradients within rounding, and as much
learnt as in f32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import models
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import arrive, until
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Input, Node, Value
from glowtrain.lower.factors import RoundFactors
from glowtrain.memory.precision import RoundedFactors
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.tensor.move import Transpose
from glowtrain.program.program import Repeat
from glowtrain.stages import Options
from glowtrain.types import bf16, f32
from glowtrain.verification import ladder, random_inputs
from tests.cpu.cpu_kernels import runnable
from tests.training.test_micro_batches import images, rows, words
from tests.training.test_training_with_residuals import UNIT, gradients_of, residual, same, trained

ALL = pytest.mark.parametrize("model", [images, rows, words, residual], ids=lambda model: model.name)


@gt.model(x=gt.f32["batch", 6, 16])
def recurrent(x: Value) -> Value:
    """An LSTM, whose weights are read in every step."""
    return gt.nn.linear(gt.nn.lstm(x, 24)[:, -1], 4)


@ALL
def test_threads_and_processors_change_no_bit(model: Any) -> None:
    alone = trained(model, precision="bf16")
    assert not same(alone[1], trained(model)[1])
    assert same(alone[1], trained(model, precision="bf16", threads=3)[1])
    for target in runnable("avx2", "scalar"):
        other = trained(model, precision="bf16", backend=gt.Cpu(target, fused=Target.host().fused), threads=None)
        assert same(alone[1], other[1])


@ALL
def test_gradients_are_within_rounding(model: Any) -> None:
    one, other = gradients_of(model), gradients_of(model, precision="bf16")
    off = np.sqrt(sum(np.sum((one[name] - other[name]) ** 2) for name in one))
    assert 0 < off < 8 * UNIT * np.sqrt(sum(np.sum(array**2) for array in one.values()))


@ALL
def test_budgets_of_memory_change_no_bit(model: Any) -> None:
    usual, small = (trained(model, precision="bf16", memory=memory) for memory in (None, "small"))
    assert same(usual[1], small[1])
    assert small[2].memory().arena <= usual[2].memory().arena


@pytest.mark.parametrize("settings", [{"residuals": "bf16"}, {"micro_batches": 2}], ids=str)
def test_it_goes_together_with(settings: dict[str, Any]) -> None:
    """With what saves memory: gradients are as near as rounding lets them be."""
    one, other = (gradients_of(images, precision="bf16", **more) for more in ({}, settings))
    off = np.sqrt(sum(np.sum((one[name] - other[name]) ** 2) for name in one))
    assert off < 8 * UNIT * np.sqrt(sum(np.sum(array**2) for array in one.values()))


def test_the_interpreter_rounds_as_well() -> None:
    step = trained(rows, 1, precision="bf16")
    other = trained(rows, 1, precision="bf16", backend="interpreter", threads=None)
    assert step[0][0] == pytest.approx(other[0][0], rel=1e-5)
    plain = trained(rows, 1)
    assert abs(step[0][0] - other[0][0]) < abs(step[0][0] - plain[0][0])


def test_every_factor_is_rounded_once_and_nothing_else() -> None:
    """Parameters, norms, softmax and the loss stay in f32."""
    step = trained(residual, 1)[2].graph
    found = RoundFactors(RoundedFactors()).run(step)
    casts = [node for node in found.nodes if isinstance(node.operator, Cast) and node.operator.to == bf16]
    assert len({node.inputs[0] for node in casts}) == len(casts)
    for node in found.nodes:
        types = [None if value is None else value.type for value in node.inputs]
        for at in node.operator.factors(*types):
            value = node.inputs[at]
            assert value is not None
            assert value.node is not None
            assert value.node.inputs[0] is not None
            assert value.node.inputs[0].dtype == bf16
            assert value.dtype == f32
    assert all(variable.dtype != bf16 for variable in found.variables)
    assert RoundFactors(RoundedFactors()).run(found) is not step
    assert RoundFactors().run(step) is step


def test_moved_factors_are_those_of_others_and_parts_are_rounded_alone() -> None:
    """So a product and one that reads the same transposed read one array in 16 bits."""
    x = Input(f32[6, 8], "x")
    whole = Graph((x,), {"y": x @ Transpose()(x)})
    assert [node.output.shape for node in _casts(whole)] == [(6, 8)]
    part = Graph((x,), {"y": x[:2] @ np.ones((8, 3), np.float32)})
    assert (2, 8) in [node.output.shape for node in _casts(part)]
    plain, narrow = (
        gt.compile(whole, precision=given)({"x": np.full((6, 8), 1.001, np.float32)})["y"] for given in (None, "bf16")
    )
    assert np.allclose(plain, 8 * 1.001**2)
    assert np.array_equal(narrow, np.full((6, 6), 8.0))


def _casts(graph: Graph) -> list[Node]:
    """Those to bf16 where factors are rounded."""
    found = RoundFactors(RoundedFactors()).run(graph)
    return [node for node in found.nodes if isinstance(node.operator, Cast) and node.operator.to == bf16]


def test_numbers_that_are_too_small_become_0() -> None:
    """So that no sum of products is denormal; NaN and infinities stay."""
    model = gt.model(x=gt.f32["batch", 8])(lambda x: gt.nn.linear(x, 16, bias=False))
    graph = model.bind({"batch": 4})
    weight = np.zeros((8, 16), np.float32)
    weight[np.arange(8), np.arange(8)] = 1
    x = np.full((4, 8), 1.0, np.float32)
    x[0], x[1, 0], x[2, 0] = 2.0**-57, np.inf, np.nan
    function = gt.compile(graph, precision="bf16", state=gt.backends.state.State({graph.variables[0].name: weight}))
    found = next(iter(function({"x": x}).values()))
    assert not found[0].any()
    assert np.isnan(found[1:3]).any(1).all()
    assert np.array_equal(found[3, :8], x[3])


def test_weights_of_a_recurrent_layer_are_rounded_before_its_steps() -> None:
    trainer = gt.Trainer(recurrent, gt.losses.softmax_cross_entropy(), gt.optim.SGD(0.1), precision="bf16")
    trainer.step({"x": np.zeros((4, 6, 16), np.float32), "labels": np.zeros(4, np.int64)})
    program = arrive(trainer.graph, replace(trainer.options, check=True), until("program"))
    repeats = [instruction for instruction in program.instructions if isinstance(instruction, Repeat)]
    assert repeats
    for repeat in repeats:
        written = {buffer for child in repeat.body for buffer in child.writes}
        for child in repeat.body:
            if child.kernel is not None and all(buffer.dtype == bf16 for buffer in child.writes):
                assert written & set(child.reads)


@pytest.mark.parametrize("model", [rows, residual, recurrent], ids=lambda model: model.name)
def test_the_ladder_holds(model: Any) -> None:
    graph = trained(model, 1)[2].graph if model is not recurrent else recurrent.bind({"batch": 4})
    report = ladder(graph, random_inputs(graph), options=Options(facts=gt.Cpu().facts, precision=RoundedFactors()))
    assert report.ok, report


@pytest.mark.exhaustive
def test_as_much_is_learnt() -> None:
    digits = gt.data.load("digits")

    def right(precision: Any) -> float:
        model = models.build("cnn", digits.train["x"].shape[1:], seed=0)
        trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), gt.optim.Adam(1e-3), precision=precision, seed=0)
        trainer.fit(digits, epochs=6, batch_size=64, progress=False)
        return float(trainer.evaluate(digits)["accuracy"])

    assert right("bf16") > right(None) - 0.02 > 0.9


@pytest.mark.parametrize("given", ["f16", "bfloat16", 16, True])
def test_other_precisions_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"precision .*: say bf16"):
        gt.Trainer(rows, gt.losses.softmax_cross_entropy(), gt.optim.Adam(), precision=given)


def test_models_without_products_of_f32_are_refused() -> None:
    doubled = gt.model(x=gt.f32["batch", 4])(gt.nn.relu)
    with pytest.raises(InputError, match="no matrix product and no convolution of many channels in f32"):
        gt.compile(doubled.bind({"batch": 2}), precision="bf16")
    wide = gt.model(x=gt.f64["batch", 4])(lambda x: x @ gt.nn.parameter("w", (4, 4), gt.nn.Normal(1.0), dtype=gt.f64))
    with pytest.raises(InputError, match="in f32, so nothing would be rounded"):
        gt.compile(wide.bind({"batch": 2}), precision="bf16")
