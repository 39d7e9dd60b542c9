"""Steps in parts of a batch: the bits of accumulated gradients, less memory, one copy of the code, clear refusals."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.backends.discovery import backend_of
from glowtrain.compiler.walk import arrive
from glowtrain.errors import DifferentiationError, InputError, MemoryBudgetError, ModelError, NonFiniteError
from glowtrain.grad import gradients
from glowtrain.graph import Template, Value
from glowtrain.loops import Index, Tensor
from glowtrain.lower import lower
from glowtrain.memory.budget import KEEP, SMALLEST, Memory, budget_of
from glowtrain.ops.indexing.arg_extrema import CumSum
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX
from glowtrain.program.program import Plan
from glowtrain.stages import Options
from glowtrain.trainer.micro_batches.within_budget import PartsOfBatches
from tests.training.trainers import trainer_of

BATCH = 24


@gt.model(x=gt.f32["batch", 3, 12, 12])
def images(x: Value) -> Value:
    for number, width in enumerate((8, 16)):
        x = gt.nn.relu(gt.nn.conv(x, width, 3, padding="same", name=f"conv{number}"))
    return gt.nn.linear(gt.nn.flatten(gt.nn.max_pool(x, 2)), 4, name="scores")


@gt.model(x=gt.f32["batch", 16])
def rows(x: Value) -> Value:
    for number in range(3):
        wide = gt.nn.gelu(gt.nn.linear(gt.nn.layer_norm(x, name=f"norm{number}"), 64, name=f"up{number}"))
        x = x + gt.nn.linear(gt.nn.dropout(wide, 0.3), 16, name=f"down{number}")
    return gt.nn.linear(x, 4, name="scores")


@gt.model(ids=gt.i64["batch", 6])
def words(ids: Value) -> Value:
    x = gt.nn.lstm(gt.nn.embedding(ids, 20, 12, name="words"), 16, name="lstm")
    return gt.nn.linear(gt.nn.mean(x, [1]), 4, name="scores")


def batch_of(model: Template, seed: int, size: int = BATCH) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, size)
    if model is words:
        return {"ids": random.integers(0, 20, (size, 6)), "labels": labels}
    shape = (3, 12, 12) if model is images else (16,)
    return {"x": random.standard_normal((size, *shape), np.float32), "labels": labels}


def in_parts(batch: dict[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    size = len(batch["labels"]) // count
    return [{name: array[k * size : (k + 1) * size] for name, array in batch.items()} for k in range(count)]


def trainers(model: Template, count: int, memory: Memory = None, **hyper: Any) -> tuple[gt.Trainer, gt.Trainer]:
    """One that splits its batches, and one that accumulates gradients of as many."""
    plain = {"lr": 0.02, **hyper}
    split = trainer_of(model, "cpu", optimizer=gt.optim.Adam(**plain), micro_batches=count, memory=memory)
    return split, trainer_of(model, "cpu", optimizer=gt.optim.Adam(**plain, accumulate=count))


def same_bits(split: gt.Trainer, whole: gt.Trainer) -> bool:
    """Whether all variables are equal that both trainers have."""
    found, wanted = split.variables(), whole.variables()
    return all(np.array_equal(array, wanted[name]) for name, array in found.items())


def step_plan(model: Template, count: int, memory: Memory, size: int = BATCH) -> Plan:
    step = trainer_of(model, "cpu", micro_batches=count).graphs.step()
    assert isinstance(step, Template)
    return arrive(step.bind({"batch": size}), Options(memory=budget_of(memory), check=True))


MODELS = (images, rows, words)


# --- bits


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("model", "count"), [(images, 2), (images, 4), (rows, 4), (rows, BATCH), (words, 2), (words, BATCH)]
)
def test_an_update_is_that_of_accumulated_gradients_to_the_bit(model: Template, count: int) -> None:
    split, whole = trainers(model, count, clip_norm=1.0, weight_decay=0.01)
    for seed in range(3):
        batch = batch_of(model, seed)
        loss = split.step(batch)
        losses = [whole.step(part) for part in in_parts(batch, count)]
        assert loss == pytest.approx(np.mean(losses), rel=1e-6)
        assert same_bits(split, whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", MODELS)
def test_bits_are_the_same_with_any_budget(model: Template) -> None:
    made = [trainers(model, 3, memory)[0] for memory in ("keep", None, "small", SMALLEST)]
    for seed in range(2):
        losses = {trainer.step(batch_of(model, seed)) for trainer in made}
        assert len(losses) == 1
    assert all(same_bits(made[0], other) for other in made[1:])


@pytest.mark.exhaustive
@given(count=st.integers(1, 6), size=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None)
def test_any_number_of_parts_of_any_size(count: int, size: int, seed: int) -> None:
    split, whole = trainers(rows, count)
    batch = batch_of(rows, seed, count * size)
    split.step(batch)
    for part in in_parts(batch, count):
        whole.step(part)
    assert same_bits(split, whole)


@pytest.mark.spread(1)
@pytest.mark.parametrize("model", [images, words])
def test_a_step_is_near_that_of_the_whole_batch(model: Template) -> None:
    split, whole = (trainer_of(model, "cpu", micro_batches=n, optimizer=gt.optim.SGD(0.1)) for n in (4, 1))
    for seed in range(3):
        assert split.step(batch_of(model, seed)) == pytest.approx(whole.step(batch_of(model, seed)), rel=1e-5)
    for name, array in whole.variables().items():
        np.testing.assert_allclose(split.variables()[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.exhaustive
def test_a_loss_that_is_a_sum_is_added_up() -> None:
    loss = gt.losses.softmax_cross_entropy(reduction="sum")
    split, whole = (trainer_of(images, "cpu", loss=loss, micro_batches=n, optimizer=gt.optim.SGD(1e-3)) for n in (4, 1))
    assert split.step(batch_of(images, 0)) == pytest.approx(whole.step(batch_of(images, 0)), rel=1e-5)
    for name, array in whole.parameters().items():
        np.testing.assert_allclose(split.parameters()[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_metrics_are_means_over_the_parts() -> None:
    split, whole = (trainer_of(images, "cpu", micro_batches=n, metrics=True) for n in (4, 1))
    for trainer in (split, whole):
        trainer.step(batch_of(images, 1))
    assert split.measured["accuracy"] == pytest.approx(whole.measured["accuracy"])


def test_the_interpreter_computes_the_same() -> None:
    native, reference = (trainer_of(rows, backend, micro_batches=3) for backend in ("cpu", "interpreter"))
    assert native.step(batch_of(rows, 2)) == pytest.approx(reference.step(batch_of(rows, 2)), rel=1e-5)
    for name, array in reference.parameters().items():
        np.testing.assert_allclose(native.parameters()[name], array, rtol=1e-3, atol=1e-5)


@pytest.mark.exhaustive
def test_parts_of_parameters_are_trained_alone() -> None:
    """With the rest of a tensor as it was."""
    chosen = ["scores.*", "conv1.weight[:4]"]
    split, whole = (trainer_of(images, "cpu", micro_batches=n, trainable=chosen) for n in (4, 1))
    before = split.parameters()
    for trainer in (split, whole):
        trainer.step(batch_of(images, 3))
    after = split.parameters()
    assert np.array_equal(before["conv1.weight"][4:], after["conv1.weight"][4:])
    for name, array in whole.parameters().items():
        np.testing.assert_allclose(after[name], array, rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
def test_parts_taken_one_row_too_late_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = lower._slice

    def late(whole: Tensor, time: Index, direction: int, part: Value | None) -> Tensor:
        return taken(whole, time, direction, part) if part is None else taken(whole, 0 * time, direction, part)

    monkeypatch.setattr(lower, "_slice", late)
    split, whole = trainers(images, 2)
    batch = batch_of(images, 5)
    split.step(batch)
    for part in in_parts(batch, 2):
        whole.step(part)
    assert not same_bits(split, whole)


# --- memory and code


@pytest.mark.spread(1)
@pytest.mark.parametrize("model", MODELS)
def test_activations_are_those_of_one_part(model: Template) -> None:
    """Beside them are sums of gradients, and the gradients of a part that are added to them."""
    whole, small = (step_plan(model, count, KEEP) for count in (1, 6))
    part = step_plan(model, 1, KEEP, BATCH // 6)
    gradients = sum(array.nbytes for array in trainer_of(model, "cpu").parameters().values())
    assert small.arena < whole.arena
    assert small.arena <= part.arena + 2 * gradients + 4096


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", [images, rows])
def test_within_parts_results_are_computed_again_too(model: Template) -> None:
    kept, least = (step_plan(model, 2, memory, 256) for memory in ("keep", SMALLEST))
    assert least.arena < kept.arena
    assert any(buffer.name.endswith(SUFFIX) for buffer in least.program.buffers)
    needed = sum(buffer.type.nbytes for buffer in least.program.variables.values())
    for arena in range(least.arena, kept.arena, (kept.arena - least.arena) // 4 + 1):
        assert step_plan(model, 2, needed + arena, 256).arena <= arena


@pytest.mark.exhaustive
def test_code_does_not_grow_with_the_number_of_parts() -> None:
    counts = {len(list(step_plan(images, count, None, 8 * count).program.leaves)) for count in (2, 3, 9)}
    assert len(counts) == 1


# --- what cannot be split


def test_a_batch_that_does_not_divide_is_refused() -> None:
    trainer = trainer_of(rows, "cpu", micro_batches=5)
    with pytest.raises(InputError, match="a batch of 24 cannot be cut into 5 equal micro-batches"):
        trainer.step(batch_of(rows, 0))


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "many"])
def test_what_is_no_number_of_parts_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="micro_batches must be a whole number of at least 1"):
        trainer_of(rows, "cpu", micro_batches=wrong)


def test_a_fixed_batch_is_refused() -> None:
    fixed = rows.bind({"batch": 8}).with_(template=None)
    with pytest.raises(InputError, match="must be one symbolic batch dimension .* --open-batch"):
        trainer_of(fixed, "cpu", micro_batches=2)


DEPENDENT: dict[str, Callable[[Value], Value]] = {
    "the examples beside it": lambda x: x - gt.nn.mean(x, 0),
    "where in its batch it is": lambda x: x + CumSum(axis=0)(x * 0.0 + 1.0),
    "how many there are in its batch": lambda x: x * gt.nn.total(x * 0.0 + 1.0, 0),
}


@pytest.mark.parametrize("what", DEPENDENT)
def test_examples_that_depend_on_their_batch_are_refused(what: str) -> None:
    @gt.model(x=gt.f32["n", 3])
    def dependent(x: Value) -> Value:
        return gt.nn.linear(DEPENDENT[what](x), 2)

    trainer = gt.Trainer(dependent, "softmax_cross_entropy", gt.optim.SGD(0.1), micro_batches=2)
    batch = {"x": np.ones((4, 3), np.float32), "labels": np.zeros(4, np.int64)}
    with pytest.raises(InputError, match=f"in micro-batches: output 'output' of an example depends on {what}"):
        trainer.step(batch)


def test_statistics_of_a_batch_are_refused_unless_frozen() -> None:
    @gt.model(x=gt.f32["batch", 1, 6, 6])
    def normalised(x: Value) -> Value:
        x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 4, 3, name="conv"), name="norm"))
        return gt.nn.linear(gt.nn.flatten(x), 4, name="scores")

    batch = {"x": np.ones((8, 1, 6, 6), np.float32), "labels": np.zeros(8, np.int64)}
    with pytest.raises(DifferentiationError, match=r"norm.mean takes in statistics of each batch .*freeze_statistics"):
        trainer_of(normalised, "cpu", micro_batches=2).step(batch)
    frozen = trainer_of(normalised, "cpu", micro_batches=2, trainable=["scores.*"], freeze_statistics=True)
    assert np.isfinite(frozen.step(batch))


@pytest.mark.parametrize(
    "loss",
    [
        gt.losses.softmax_cross_entropy(ignore_index=-1),
        gt.losses.custom(lambda outputs, inputs: gt.nn.mean(outputs["output"])),
    ],
)
def test_a_loss_of_which_nobody_knows_that_it_is_a_mean_over_examples_is_refused(loss: Any) -> None:
    with pytest.raises(InputError, match="nothing says that its loss is a mean or a sum over examples"):
        trainer_of(rows, "cpu", loss=loss, micro_batches=2).memory(4)


def test_indices_out_of_range_are_refused_in_any_part() -> None:
    trainer = trainer_of(words, "cpu", micro_batches=4)
    batch = batch_of(words, 0)
    batch["ids"][-1, -1] = 20
    with pytest.raises(InputError, match=r"'ids' must hold numbers from -20 to 19 .* but has 20 at \[23, 5\]"):
        trainer.step(batch)


def test_a_part_that_is_not_finite_updates_nothing() -> None:
    trainer = trainer_of(images, "cpu", micro_batches=4)
    before, batch = trainer.variables(), batch_of(images, 0)
    batch["x"][-1] = np.inf
    with pytest.raises(NonFiniteError):
        trainer.step(batch)
    assert all(np.array_equal(array, before[name]) for name, array in trainer.variables().items())


def test_files_hold_the_step_of_a_whole_batch(tmp_path: Path) -> None:
    """As ONNX has no loop over parts."""
    trainer = trainer_of(images, "cpu", micro_batches=4)
    trainer.step(batch_of(images, 0))
    gt.save(trainer.graph, tmp_path / "step.onnx")
    step = trainer.graphs.step()
    assert isinstance(step, Template)
    with pytest.raises(ModelError, match="a step in parts of a batch has no form in ONNX"):
        gt.save(step.bind({"batch": BATCH}), tmp_path / "parts.onnx")


def test_a_loop_over_parts_has_no_gradient() -> None:
    step = trainer_of(images, "cpu", micro_batches=4).graphs.step()
    assert isinstance(step, Template)
    bound = step.bind({"batch": BATCH})
    with pytest.raises(DifferentiationError, match="a loop over parts of a batch has no gradient"):
        gradients(bound.outputs["loss"], [bound.variable("scores.bias")])


def test_a_copy_of_a_trainer_has_its_parts() -> None:
    assert copy.deepcopy(trainer_of(rows, "cpu", micro_batches=4)).spec.micro_batches == 4


# --- budgets


def needed(count: int, memory: Memory) -> int:
    """The bytes of variables and arena of a step of :data:`rows` with 256 examples."""
    plan = step_plan(rows, count, memory, 256)
    return plan.arena + sum(buffer.type.nbytes for buffer in plan.program.variables.values())


@pytest.mark.exhaustive
def test_an_error_says_how_many_parts_would_do() -> None:
    """As few as it takes, with their bytes; that many keep the budget, and one part fewer does not."""
    limit = needed(4, SMALLEST)
    trainer = trainer_of(rows, "cpu", memory=limit)
    with pytest.raises(MemoryBudgetError, match=r"the least that was found is") as raised:
        trainer.memory(256)
    said = re.search(r"micro_batches=(\d+) \(--micro-batches \d+\) takes ([\d,]+)", str(raised.value))
    assert said is not None
    assert int(said[2].replace(",", "")) <= limit
    count = int(said[1])
    assert count in (2, 4)
    use = trainer_of(rows, "cpu", memory=limit, micro_batches=count).memory(256)
    assert use.arena + use.variables <= limit
    with pytest.raises(MemoryBudgetError, match="the least that was found"):
        trainer_of(rows, "cpu", memory=limit, micro_batches=count // 2).memory(256)


@pytest.mark.exhaustive
def test_nothing_is_proposed_that_would_not_do() -> None:
    """Neither where no parts are small enough, nor where a batch cannot be split."""
    variables = sum(array.nbytes for array in trainer_of(rows, "cpu").variables().values())
    with pytest.raises(MemoryBudgetError) as raised:
        trainer_of(rows, "cpu", memory=variables + 100).memory(256)
    assert "micro_batches" not in str(raised.value)
    loss = gt.losses.softmax_cross_entropy(ignore_index=-1)
    with pytest.raises(MemoryBudgetError) as raised:
        trainer_of(rows, "cpu", memory=needed(4, SMALLEST), loss=loss).memory(256)
    assert "micro_batches" not in str(raised.value)


@pytest.mark.exhaustive
def test_with_auto_a_batch_is_split_where_a_budget_asks_for_it() -> None:
    limit = needed(4, SMALLEST)
    auto = trainer_of(rows, "cpu", memory=limit, micro_batches="auto")
    use = auto.memory(256)
    assert use.arena + use.variables <= limit
    auto.memory(8)
    counts = [
        len([i for i in auto._step.specialised(batch_of(rows, 0, n)).graph.nodes if i.operator.control])
        for n in (256, 8)
    ]
    assert counts == [1, 0]
    split, _ = trainers(rows, 4)
    batch = batch_of(rows, 1, 256)
    auto.step(batch)
    split.step(batch)
    assert same_bits(split, auto)


@pytest.mark.exhaustive
def test_fit_takes_every_batch_in_parts() -> None:
    """And refuses a last one that does not divide before it trains."""
    arrays = batch_of(rows, 4, 60)
    split, whole = trainers(rows, 4)
    before = split.variables()
    with pytest.raises(InputError, match="fit: a batch of 28 cannot be cut into 8 equal micro-batches"):
        trainer_of(rows, "cpu", micro_batches=8).fit(arrays, 1, 32, progress=False)
    assert all(np.array_equal(array, before[name]) for name, array in split.variables().items())
    split.fit(arrays, 1, 32, progress=False, shuffle=False)
    for first, last in ((0, 32), (32, 60)):
        for part in in_parts({name: array[first:last] for name, array in arrays.items()}, 4):
            whole.step(part)
    assert same_bits(split, whole)


@pytest.mark.exhaustive
def test_a_share_is_of_the_whole_batch() -> None:
    trainer = trainer_of(images, "cpu", memory=0.3, micro_batches="auto")
    kept = trainer_of(images, "cpu", memory="keep").memory(64)
    use = trainer.memory(64)
    assert use.arena + use.variables <= 0.3 * (kept.arena + kept.variables)


def test_a_share_is_of_what_is_needed_with_nothing_rounded() -> None:
    trainers = [trainer_of(images, "cpu", memory=0.5, residuals=asked) for asked in (None, "bf16")]
    limits = {
        PartsOfBatches(each.graphs, each.graphs.example, each.options, backend_of(each.backend)).within().options.memory
        for each in trainers
    }
    assert len(limits) == 1
