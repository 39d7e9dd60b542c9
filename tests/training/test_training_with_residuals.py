"""Training with residuals in bf16: the loss keeps its bits, gradients are those at rounded values, whatever the budget,
the threads and the processor."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import arrive
from glowtrain.errors import BundleError, InputError, MemoryBudgetError
from glowtrain.grad.training import MICRO, STEP
from glowtrain.graph import Graph, Value
from glowtrain.lower.forward_updates import forward_updates, residuals_for
from glowtrain.ops.reduce.reduction import ReduceMax
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.passes.residuals.storing import SUFFIX
from glowtrain.program.program import Plan
from glowtrain.stages import Options
from glowtrain.types import Array
from tests.cpu.cpu_kernels import runnable
from tests.training.test_micro_batches import batch_of, images, rows, words

UNIT = 2.0**-8
"""Half of the distance of neighbours in bf16, over the smaller one: rounding is off by no more."""
MODELS = {model.name: model for model in (images, rows, words)}


@gt.model(x=gt.f32["batch", 3, 12, 12])
def residual(x: Value) -> Value:
    """BatchNormalization, which has a state of its own, and a sum that goes around."""
    x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 8, 3, padding="same", name="stem"), name="norm"))
    for number in range(2):
        y = gt.nn.relu(
            gt.nn.batch_norm(gt.nn.conv(x, 8, 3, padding="same", name=f"conv{number}"), name=f"norm{number}")
        )
        x = gt.nn.relu(x + gt.nn.dropout(gt.nn.conv(y, 8, 3, padding="same", name=f"back{number}"), 0.2))
    return gt.nn.linear(gt.nn.mean(x, [2, 3]), 4, name="scores")


def batch_for(model: Any, seed: int = 0, size: int = 24) -> dict[str, Array]:
    return batch_of(images if model is residual else model, seed, size)


def trained(model: Any, steps: int = 2, **settings: Any) -> tuple[list[float], dict[str, Array], gt.Trainer]:
    """Losses, the state, and the trainer, after some steps."""
    settings = {"optimizer": gt.optim.SGD(lr=0.1, momentum=0.9), "backend": "cpu", "threads": 1, **settings}
    trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), **settings)
    losses = [trainer.step(batch_for(model, seed)) for seed in range(steps)]
    return losses, trainer.variables(), trainer


def same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def gradients_of(model: Any, **settings: Any) -> dict[str, Array]:
    """Gradients, as the updates of plain descent make them visible, in f64."""
    settings = {"optimizer": gt.optim.SGD(lr=1.0), **settings}
    trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), backend="cpu", threads=1, **settings)
    before = trainer.parameters()
    trainer.step(batch_for(model))
    return {name: before[name].astype(np.float64) - array for name, array in trainer.parameters().items()}


ALL = pytest.mark.parametrize("model", [images, rows, words, residual], ids=lambda model: model.name)


@pytest.mark.exhaustive
@ALL
def test_the_loss_and_statistics_keep_their_bits_and_gradients_are_near(model: Any) -> None:
    exact, rounded = (trained(model, 1, residuals=given, optimizer=gt.optim.SGD(lr=1.0)) for given in (None, "bf16"))
    assert exact[0] == rounded[0]
    parameters = exact[2].parameters().keys()
    for name in exact[1].keys() - parameters:
        assert exact[1][name].tobytes() == rounded[1][name].tobytes(), name
    one, other = gradients_of(model), gradients_of(model, residuals="bf16")
    off = np.sqrt(sum(np.sum((one[name] - other[name]) ** 2) for name in one))
    assert 0 < off < 4 * UNIT * np.sqrt(sum(np.sum(array**2) for array in one.values()))


@pytest.mark.exhaustive
@ALL
def test_budgets_of_memory_change_no_bit_while_what_waits_is_the_same(model: Any) -> None:
    usual, kept = (trained(model, residuals="bf16", memory=memory) for memory in (None, "keep"))
    use = usual[2].memory()
    limit = trained(model, residuals="bf16", memory=use.variables + use.arena)
    assert same(usual[1], kept[1])
    assert same(usual[1], limit[1])
    assert limit[2].memory().arena <= use.arena


@pytest.mark.exhaustive
@ALL
def test_threads_and_processors_change_no_bit(model: Any) -> None:
    alone = trained(model, residuals="bf16")
    assert same(alone[1], trained(model, residuals="bf16", threads=3)[1])
    for target in runnable("avx2", "scalar"):
        other = trained(model, residuals="bf16", backend=gt.Cpu(target, fused=Target.host().fused), threads=None)
        assert same(alone[1], other[1])


@pytest.mark.exhaustive
@ALL
def test_small_takes_no_more_than_no_budget_and_learns_the_same(model: Any) -> None:
    usual, small = (trained(model, 1, residuals="bf16", memory=memory) for memory in (None, "small"))
    assert small[2].memory().arena <= usual[2].memory().arena
    assert small[0] == usual[0]


@pytest.mark.exhaustive
def test_less_memory_is_taken() -> None:
    for model in (rows, residual):
        exact, rounded = (trained(model, 1, residuals=given)[2].memory().arena for given in (None, "bf16"))
        assert rounded < 0.85 * exact


@settings(max_examples=6, deadline=None)
@given(
    depth=st.integers(1, 4), width=st.sampled_from([8, 24, 40]), batch=st.sampled_from([3, 16]),
    between=st.lists(
        st.sampled_from(["relu", "gelu", "tanh", "sigmoid", "layer_norm", "softmax"]), min_size=1, max_size=3
    ),
    memory=st.sampled_from([None, "keep", "small"]), parts=st.sampled_from([1, 3]), seed=st.integers(0, 99),
)  # fmt: skip
def test_random_models(
    depth: int, width: int, batch: int, between: list[str], memory: Any, parts: int, seed: int
) -> None:
    """The loss keeps its bits; the evaluator computes what compiled code does, but for the order of sums: an element
    near the middle between two of 16 bits may be rounded to the other one, which is little of what rounding changes."""

    @gt.model(x=gt.f32["batch", 16])
    def network(x: Value) -> Value:
        for _ in range(depth):
            y = gt.nn.linear(x, width)
            for name in between:
                y = getattr(gt.nn, name)(y)
            x = x + gt.nn.linear(y, 16)
        return gt.nn.linear(x, 4)

    random = np.random.default_rng(seed)
    fed = {
        "x": random.standard_normal((batch * parts, 16), np.float32),
        "labels": random.integers(0, 4, batch * parts),
    }
    trainers = [
        gt.Trainer(
            network, gt.losses.softmax_cross_entropy(), gt.optim.SGD(lr=0.5), backend="cpu", threads=1, memory=memory,
            residuals=given, micro_batches=parts, seed=seed,
        ) for given in (None, "bf16")
    ]  # fmt: skip
    state = trainers[1].variables()
    exact, rounded = (trainer.step(fed) for trainer in trainers)
    assert exact == rounded
    step = trainers[1]._step.specialised(trainers[1].signature.checked(fed)).graph
    plan = arrive(step, trainers[1].options)
    with np.errstate(all="ignore"):
        _, found = evaluate(plan.program, {**fed, **trainers[1].hyper.inputs}, state, plan=plan)
    kept = trainers[0].variables()
    for name, array in trainers[1].variables().items():
        apart, effect = (np.linalg.norm(other.astype(np.float64) - array) for other in (found[name], kept[name]))
        assert apart <= 0.3 * effect + 1e-5, name


@pytest.mark.exhaustive
def test_the_evaluator_rounds_the_same_results() -> None:
    """What is stored in bf16 in compiled code and in the plan that is evaluated: gradients of both are nearer to each
    other than rounding is to none."""
    _, state, trainer = trained(rows, 1, residuals="bf16", optimizer=gt.optim.SGD(lr=1.0))
    fresh = gt.Trainer(
        rows, gt.losses.softmax_cross_entropy(), gt.optim.SGD(lr=1.0), residuals="bf16", backend="interpreter"
    )
    plan = plan_of(trainer, batch_for(rows))
    _, found = evaluate(plan.program, {**batch_for(rows), **trainer.hyper.inputs}, fresh.variables(), plan=plan)
    exact = trained(rows, 1, optimizer=gt.optim.SGD(lr=1.0))[1]
    for name in trainer.parameters():
        rounding = np.abs(state[name] - exact[name]).max()
        if rounding > 1e-5:
            assert np.abs(found[name] - state[name]).max() < 0.05 * rounding, name


def plan_of(trainer: gt.Trainer, batch: dict[str, Array]) -> Plan:
    step: Graph = trainer._step.specialised(trainer.signature.checked(batch)).graph
    return arrive(step, trainer.options)


def narrow_in(plan: Plan) -> set[str]:
    return {buffer.name for buffer in plan.program.buffers if buffer.name.endswith(SUFFIX)}


@pytest.mark.exhaustive
def test_parts_of_a_batch_are_rounded_within_their_loop() -> None:
    losses, state, trainer = trained(rows, residuals="bf16", micro_batches=4)
    plain = trained(rows, micro_batches=4)
    assert losses[0] == plain[0][0]
    assert not same(state, plain[1])
    assert trainer.memory().arena < plain[2].memory().arena
    assert same(state, trained(rows, residuals="bf16", micro_batches=4, memory="keep")[1])


def test_the_updates_of_a_model_itself_are_told_from_those_of_an_optimizer() -> None:
    for optimizer in (gt.optim.SGD(lr=0.1, momentum=0.9), gt.optim.Adam(), gt.optim.Adam(accumulate=2)):
        trainer = gt.Trainer(residual, gt.losses.softmax_cross_entropy(), optimizer, backend="cpu")
        step = trainer.graphs.whole_step_of(trainer.graphs.example)
        own = {variable.name for variable in forward_updates(step)} - {STEP, MICRO}
        model = trainer.graphs.trained(trainer.graphs.example)
        assert own == {variable.name for variable in model.updates}
    assert residuals_for(step, None) is None


@pytest.mark.exhaustive
def test_maxima_are_not_rounded() -> None:
    """The gradient of a maximum goes to the element that equals it."""

    @gt.model(x=gt.f32["batch", 16])
    def pooled(x: Value) -> Value:
        wide = gt.nn.linear(x, 64)
        most = ReduceMax(axes=(2,), keepdims=False)(gt.nn.reshape(wide, (x.shape[0], 8, 8)))
        return gt.nn.linear(gt.nn.tanh(gt.nn.linear(gt.nn.tanh(gt.nn.linear(most, 32)), 32)), 4)

    one, other = gradients_of_rows(pooled, None), gradients_of_rows(pooled, "bf16")
    off = np.sqrt(sum(np.sum((one[name] - other[name]) ** 2) for name in one))
    assert 0 < off < 4 * UNIT * np.sqrt(sum(np.sum(array**2) for array in one.values()))


def gradients_of_rows(model: Any, residuals: Any) -> dict[str, Array]:
    trainer = gt.Trainer(
        model, gt.losses.softmax_cross_entropy(), gt.optim.SGD(lr=1.0), backend="cpu", threads=1, residuals=residuals
    )
    before = trainer.parameters()
    trainer.step(batch_for(rows, size=96))
    return {name: before[name].astype(np.float64) - array for name, array in trainer.parameters().items()}


@pytest.mark.exhaustive
def test_a_compiled_step_takes_it_too() -> None:
    trainer = gt.Trainer(rows, gt.losses.softmax_cross_entropy(), gt.optim.SGD(lr=0.1), backend="cpu", threads=1)
    trainer.prepare(batch_for(rows))
    state = trainer.variables()
    step = trainer._step.specialised(trainer.signature.checked(batch_for(rows))).graph
    compiled = gt.compile(step, residuals="bf16", threads=1)
    loss = compiled({**batch_for(rows), **trainer.hyper.inputs})["loss"]
    assert loss == trainer.step(batch_for(rows))
    other = gt.Trainer(
        rows, gt.losses.softmax_cross_entropy(), gt.optim.SGD(lr=0.1), backend="cpu", threads=1, residuals="bf16"
    )
    other.step(batch_for(rows))
    for name in state:
        assert compiled.state.read(name).tobytes() == other.variables()[name].tobytes()


def test_a_model_that_only_predicts_is_compiled_as_without() -> None:
    graph = rows.bind({"batch": 8})
    x = batch_for(rows, size=8)["x"]
    plain, narrow = (gt.compile(graph, residuals=given)({"x": x}) for given in (None, "bf16"))
    assert all(plain[name].tobytes() == narrow[name].tobytes() for name in plain)


@pytest.mark.exhaustive
def test_copies_keep_it() -> None:
    _, _, trainer = trained(rows, residuals="bf16")
    twin = copy.deepcopy(trainer)
    assert twin.options.residuals == trainer.options.residuals
    assert twin.step(batch_for(rows, 7)) == trainer.step(batch_for(rows, 7))
    assert same(twin.variables(), trainer.variables())


def test_what_it_says(tmp_path: Any) -> None:
    told: list[tuple[str, str, str]] = []
    trainer = trained(rows, 1, residuals="bf16")[2]
    step = trainer._step.specialised(trainer.signature.checked(batch_for(rows))).graph
    options = Options(
        facts=trainer.options.facts, residuals=trainer.options.residuals, explain=lambda *a: told.append(a)
    )
    plan = arrive(step, options)
    waits = {what for stage, what, why in told if re.search(r"bytes wait in [\d,]+, as bf16", why)}
    assert {f"{what}{SUFFIX}" for what in waits} >= narrow_in(plan)
    assert narrow_in(plan)


@pytest.mark.parametrize("given", ["f16", "bfloat16", 16, True, ""])
def test_other_types_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"residuals .*: say bf16"):
        gt.Trainer(rows, gt.losses.softmax_cross_entropy(), gt.optim.Adam(), residuals=given)
    with pytest.raises(InputError, match=r"residuals .*: say bf16"):
        gt.compile(rows, residuals=given)


@pytest.mark.exhaustive
def test_a_limit_that_cannot_be_kept_says_the_least(tmp_path: Any) -> None:
    trainer = gt.Trainer(
        rows, gt.losses.softmax_cross_entropy(), gt.optim.SGD(lr=0.1), backend="cpu", memory="32KB", residuals="bf16"
    )
    with pytest.raises(MemoryBudgetError, match="the least that was found is"):
        trainer.step(batch_for(rows, size=512))


def test_a_bundle_that_predicts_has_none(tmp_path: Any) -> None:
    with pytest.raises(BundleError, match="a bundle that trains needs a loss"):
        gt.bundle(rows, tmp_path, residuals="bf16", dims={"batch": 2})
