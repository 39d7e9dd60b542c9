"""Bundles with a budget of memory: they need less, fit into less RAM, and compute the same bits."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.bundles.contents import contents_of
from glowtrain.bundles.devices.sizes import BundleSize
from glowtrain.compiler.service import in_bytes
from glowtrain.errors import BundleError, InputError, MemoryBudgetError
from glowtrain.graph import Graph, Value
from glowtrain.memory.budget import Budget, Memory, budget_of
from glowtrain.memory.residuals import ResidualType
from glowtrain.trainer.settings import TrainingSettings
from tests.bundles.small_bundles import same


@gt.model(x=gt.f32["batch", 3, 10, 10])
def layers(x: Value) -> Value:
    for width in (6, 6, 8):
        x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, width, 3, padding="same")))
    return gt.nn.linear(gt.nn.flatten(x), 4)


LOSS = "softmax_cross_entropy"


def model() -> Graph:
    return layers.bind({"batch": 4})


def needed(memory: Memory, ram: int | None = None) -> int:
    return gt.bundle_size(model(), loss=LOSS, target="cortex-m7", memory=memory, ram=ram).ram


@pytest.mark.exhaustive
def test_what_does_not_fit_is_computed_again() -> None:
    kept, least = needed("keep"), needed("small")
    assert least < kept
    between = (kept + least) // 2
    assert needed(None, between) <= between
    for memory, ram in ((None, least // 2), ("keep", between)):
        with pytest.raises(BundleError, match=r"more than the .* there are"):
            needed(memory, ram)


@pytest.mark.exhaustive
def test_the_least_ram_is_enough_whatever_recomputing_does_to_the_stack() -> None:
    kept = needed("keep")
    for ram in range(kept - 2000, kept, 333):
        assert needed(None, ram) <= ram


@pytest.mark.exhaustive
def test_steps_have_the_same_bits(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    batches = [(random.standard_normal((4, 3, 10, 10), np.float32), random.integers(0, 4, 4)) for _ in range(3)]
    loaded = []
    for memory in ("keep", "small"):
        gt.bundle(model(), tmp_path / memory, loss=LOSS, memory=memory, shared=True)
        loaded.append(gt.load_bundle(tmp_path / memory))
    losses = [[each.step(x=x, labels=labels) for x, labels in batches] for each in loaded]
    assert losses[0] == losses[1]
    assert same(dict(loaded[0].variables), dict(loaded[1].variables))


@pytest.mark.exhaustive
def test_a_trainer_s_budget_is_its_bundle_s() -> None:
    sizes = [
        gt.bundle_size(gt.Trainer(model(), LOSS, gt.optim.Adam(1e-2), memory=memory), target="cortex-m7").arena
        for memory in ("keep", "small")
    ]
    assert sizes[1] < sizes[0]


@gt.model(x=gt.f32["batch", 1, 8, 8])
def plain(x: Value) -> Value:
    for width in (6, 8):
        x = gt.nn.relu(gt.nn.conv(x, width, 3, padding="same"))
    return gt.nn.linear(gt.nn.flatten(x), 4)


@pytest.mark.exhaustive
def test_a_step_in_parts_of_its_batch_has_a_trainers_bits(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    batches = [(random.standard_normal((8, 1, 8, 8), np.float32), random.integers(0, 4, 8)) for _ in range(2)]
    gt.bundle(plain, tmp_path, loss=LOSS, dims={"batch": 8}, micro_batches=4, shared=True)
    loaded = gt.load_bundle(tmp_path)
    trainer = gt.Trainer(plain, LOSS, gt.optim.Adam(), micro_batches=4, threads=1)
    for x, labels in batches:
        assert loaded.step(x=x, labels=labels) == trainer.step({"x": x, "labels": labels})
    assert same(dict(loaded.variables), trainer.variables())
    whole, parts = (gt.bundle_size(plain, loss=LOSS, dims={"batch": 8}, micro_batches=n).arena for n in (1, 4))
    assert parts < whole


def test_parts_that_a_bundle_cannot_have_are_refused() -> None:
    for wrong, why in ((0, "a whole number of at least 1"), ("auto", "a bundle needs a number")):
        with pytest.raises(BundleError, match=why):
            gt.bundle_size(plain, loss=LOSS, dims={"batch": 8}, micro_batches=wrong)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="a bundle that trains needs a loss"):
        gt.bundle_size(plain, dims={"batch": 8}, micro_batches=2)
    with pytest.raises(InputError, match="cannot be cut into 3 equal micro-batches"):
        gt.bundle_size(plain, loss=LOSS, dims={"batch": 8}, micro_batches=3)


@gt.model(x=gt.f32["batch", 1, 8, 8])
def pooled(x: Value) -> Value:
    for number in range(2):
        x = gt.nn.relu(gt.nn.conv(x, 8, 3, padding="same", name=f"conv{number}"))
    return gt.nn.linear(gt.nn.mean(x, [2, 3]), 4, name="scores")


def pooled_size(memory: Memory, parts: int = 1, trainable: list[str] | None = None) -> BundleSize:
    return gt.bundle_size(
        pooled, loss=LOSS, optimizer=gt.optim.SGD(0.1), dims={"batch": 16}, target="cortex-m7", memory=memory,
        micro_batches=parts, trainable=trainable,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_a_budget_that_is_too_small_says_which_parts_would_keep_it() -> None:
    """With what is not trained in constants, as in the bundle."""
    takes = []
    for trainable in (None, ["conv1.*", "scores.*"]):
        with pytest.raises(MemoryBudgetError, match=r"so would parts of the batch: ") as raised:
            pooled_size("60KB", 1, trainable)
        said = re.search(r"micro_batches=(\d) \(--micro-batches \1\) takes ([\d,]+)", str(raised.value))
        assert said is not None
        takes.append(int(said[2].replace(",", "")))
        assert pooled_size("60KB", int(said[1]), trainable).variables < takes[-1] <= 60 << 10
    frozen = 4 * (8 * 9 + 8)
    assert takes[0] - takes[1] == 2 * frozen  # neither the parameters nor sums of their gradients


@gt.model(x=gt.f32["batch", 12, 8])
def recurrent(x: Value) -> Value:
    states = gt.nn.lstm(gt.nn.lstm(x, 16, name="lower"), 16, name="upper")
    return gt.nn.linear(gt.nn.mean(states, 1), 4, name="scores")


@pytest.mark.exhaustive
def test_parts_are_not_proposed_where_the_prediction_is_too_large() -> None:
    """That of a recurrent network keeps all that one layer says to the next."""
    proposed = {}
    for memory in (92_000, 80_000):
        with pytest.raises(MemoryBudgetError, match=r"recurrent\.step: ") as raised:
            gt.bundle_size(
                recurrent, loss=LOSS, optimizer=gt.optim.SGD(0.1), dims={"batch": 16}, target="cortex-m7", memory=memory
            )
        proposed[memory] = "parts of the batch" in str(raised.value)
    assert proposed == {92_000: True, 80_000: False}


@pytest.mark.exhaustive
def test_a_share_is_of_the_whole_bundle() -> None:
    """Of a prediction alone, which keeps nothing, no part could be had."""
    kept, part = (pooled_size(memory) for memory in ("keep", "80%"))
    assert part.variables + part.arena <= 0.8 * (kept.variables + kept.arena)


def test_a_share_is_of_what_a_bundle_needs_with_nothing_rounded() -> None:
    def limit(residuals: ResidualType) -> Budget:
        step = gt.Trainer(pooled, LOSS, gt.optim.SGD(0.1), residuals=residuals)
        contents = contents_of(step, None, None, TrainingSettings(), {"batch": 16}, None)
        return in_bytes(contents.graphs, replace(step.options, memory=budget_of(0.5))).memory

    assert limit("bf16") == limit(None)
