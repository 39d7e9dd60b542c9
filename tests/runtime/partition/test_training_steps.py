"""Training steps in parts: which parts there are, where variables are, and the bits of the whole after some steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.runtime.partition.partition import Partition
from glowtrain.runtime.partition.running import PartitionFunction, run_parts
from glowtrain.runtime.partition.storage import Storage
from glowtrain.runtime.partition.verify import verify
from tests.compiler.networks import cnn, gpt, lstm, mlp, step_of
from tests.runtime.partition import cutting_models
from tests.runtime.partition.cutting_models import cut_at, differing

BACKENDS = ["interpreter", "cpu"]
OPTIMIZERS = {
    "sgd": gt.optim.SGD(lr=0.1, momentum=0.9, schedule=gt.optim.Warmup(4) * gt.optim.Cosine(9)),
    "adamw": gt.optim.AdamW(lr=0.02, clip_norm=1.0),
    "accumulate": gt.optim.Adam(lr=0.02, accumulate=2, clip_value=0.5),
}


def images(random: np.random.Generator, size: int) -> dict[str, Any]:
    return {"x": random.normal(size=(4, 1, size, size)).astype(np.float32), "labels": random.integers(0, 10, 4)}


def kinds(partition: Partition) -> list[str]:
    """The names of parts, in order."""
    return [part.name for part in partition.parts]


def homes(partition: Partition) -> dict[str, set[int]]:
    """The stages in which each variable is."""
    found: dict[str, set[int]] = {}
    for part in partition.parts:
        for variable in part.graph.variables:
            found.setdefault(variable.name, set()).add(part.stage)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_bits_after_several_steps(optimizer: Any, backend: str, random: np.random.Generator) -> None:
    """Batch normalization, dropout, clipping over all parameters, accumulation and schedules."""
    graph, inputs = step_of(cnn, optimizer, **images(random, 12))
    for bounds in ([3], [2, 5], [1, 3, 6]):
        partition = cut_at(graph, bounds, backend)
        verify(partition)
        assert not differing(graph, partition, inputs, backend, steps=4)


@pytest.mark.exhaustive
def test_values_that_pass_in_another_order_than_in_the_whole_give_other_bits(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over the images are taken as these lie in memory: the tests see that."""
    graph, inputs = step_of(cnn, **images(random, 12))
    monkeypatch.setattr(Storage, "layout", lambda self, value: tuple(range(value.rank)))
    assert differing(graph, cut_at(graph, [14], "cpu"), inputs, "cpu", steps=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_recurrences_and_attention(backend: str, random: np.random.Generator) -> None:
    labels = random.integers(0, 10, 4)
    sequences = random.normal(size=(4, 7, 6)).astype(np.float32)
    for model, x in ((lstm, sequences), (gpt, random.integers(0, 11, (4, 9)))):
        graph, inputs = step_of(model, x=x, labels=labels)
        for bounds in ([3], [2, 5]):
            assert not differing(graph, cut_at(graph, bounds, backend), inputs, backend, steps=2)


def test_forward_and_backward_of_a_stage_and_one_part_where_it_turns(random: np.random.Generator) -> None:
    graph, _ = step_of(gpt, x=random.integers(0, 11, (4, 9)), labels=random.integers(0, 10, 4))
    assert kinds(cut_at(graph, [], "interpreter")) == ["stage0"]
    assert kinds(cut_at(graph, [15], "interpreter")) == ["stage0.1", "stage1", "stage0.2"]
    three = cut_at(graph, [10, 20], "interpreter")
    assert kinds(three) == ["stage0.1", "stage1.1", "stage2", "stage1.2", "stage0.2"]
    assert not any(part.graph.updates for part in three.parts[:2])
    assert all(part.graph.updates for part in three.parts[2:])


def test_a_norm_over_all_gradients_adds_a_part_to_all_stages_but_the_first(random: np.random.Generator) -> None:
    """It is known when the first stage has its gradients; then the others update."""
    optimizer = gt.optim.SGD(0.1, clip_norm=1.0)
    graph, _ = step_of(gpt, optimizer, x=random.integers(0, 11, (4, 9)), labels=random.integers(0, 10, 4))
    partition = cut_at(graph, [10, 20], "interpreter")
    assert Counter(part.stage for part in partition.parts) == {0: 2, 1: 3, 2: 2}


def test_every_variable_is_of_one_stage_with_what_the_optimizer_keeps_for_it(random: np.random.Generator) -> None:
    graph, _ = step_of(gpt, x=random.integers(0, 11, (4, 9)), labels=random.integers(0, 10, 4))
    found = homes(cut_at(graph, [10, 20], "interpreter"))
    assert found.keys() == {variable.name for variable in graph.variables}
    assert all(len(stages) == 1 for stages in found.values())
    for name in found:
        for slot in (".adam.m", ".adam.v"):
            assert found.get(name + slot, found[name]) == found[name]
    assert {min(stages) for stages in found.values()} == {0, 1, 2}


def test_activations_cross_and_gradients_come_back(random: np.random.Generator) -> None:
    """Between the stages of an MLP there is one activation on the way forward; back come its gradient, whether the loss
    is finite, and what the optimizer computes for all."""
    graph, _ = step_of(mlp, gt.optim.SGD(0.1), **images(random, 8))
    first, last, back = cut_at(graph, [2], "interpreter").parts
    assert [str(last.graph.input(name).type) for name in last.takes if name in first.gives] == ["f32[4,24]"]
    passed = sorted(str(back.graph.input(name).type) for name in back.takes if name in last.gives)
    assert passed == ["bool[]", "f32[4,24]"]
    assert "hyper.lr" in last.takes
    assert "hyper.lr" in back.takes


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_tied_weights_are_of_the_first_stage(backend: str, random: np.random.Generator) -> None:
    """The head takes the embedding's weight as a value; its gradient's two parts meet in the first stage."""
    model = cutting_models.gpt(1, 16, tied=True)
    graph, inputs = step_of(
        model, gt.optim.Adam(1e-2), x=random.integers(0, 17, (2, 12)), labels=random.integers(0, 17, (2, 12))
    )
    partition = cut_at(graph, [12], backend)
    verify(partition)
    assert homes(partition)["tokens.weight"] == {0}
    assert "tokens.weight" in {v.name for v in partition.parts[-1].graph.updates}
    assert not differing(graph, partition, inputs, backend, steps=3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_that_is_not_finite_changes_nothing_in_any_stage(backend: str, random: np.random.Generator) -> None:
    graph, inputs = step_of(cnn, **images(random, 12))
    inputs["x"][0, 0, 0, 0] = np.nan
    parts = PartitionFunction(cut_at(graph, [2, 5], backend), backend)
    before = {name: array.tobytes() for name, array in parts.variables().items()}
    assert np.isnan(parts(inputs)["loss"])
    assert {name: array.tobytes() for name, array in parts.variables().items()} == before


def test_each_call_of_run_parts_begins_anew(random: np.random.Generator) -> None:
    graph, inputs = step_of(mlp, **images(random, 8))
    partition = cut_at(graph, [2], "interpreter")
    first, second = (run_parts(partition, inputs, "interpreter")["loss"] for _ in range(2))
    assert first.tobytes() == second.tobytes()
