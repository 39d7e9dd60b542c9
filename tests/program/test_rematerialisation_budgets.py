"""Budgets of memory: kept to the byte, with the same bits, and explained."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler.walk import arrive
from glowtrain.errors import InputError, MemoryBudgetError
from glowtrain.graph import Graph, Value
from glowtrain.memory.budget import KEEP, SMALLEST, UNSAID, Budget, Memory, budget_of
from glowtrain.program.analysis.time_estimate import total
from glowtrain.program.memory.plan import plan
from glowtrain.program.parse import parse
from glowtrain.program.passes.rematerialisation import rematerialize as passes
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX
from glowtrain.program.passes.rematerialisation.rematerialize import Rematerialize
from glowtrain.program.passes.reuse import ReuseOperands
from glowtrain.program.program import Plan
from glowtrain.stages import Options
from tests.program.recomputed_programs import random_text


def images(x: Value) -> Value:
    for width in (8, 8, 16):
        x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, width, 3, padding="same")))
    return gt.nn.linear(gt.nn.flatten(gt.nn.max_pool(x, 2)), 4)


def rows(x: Value) -> Value:
    for _ in range(4):
        x = x + gt.nn.linear(gt.nn.gelu(gt.nn.linear(gt.nn.layer_norm(x), 64)), 16)
    return gt.nn.linear(gt.nn.dropout(x, 0.3), 4)


def trainer(kind: str, memory: Memory = None) -> gt.Trainer:
    """A model with what is worth dropping: results of activation functions, normalized and dropped elements."""
    shape, body = (("batch", 3, 12, 12), images) if kind == "images" else (("batch", 16), rows)

    @gt.model(x=gt.f32[shape])
    def net(x: Value) -> Value:
        return body(x)

    return gt.Trainer(net.bind({"batch": 8}), "softmax_cross_entropy", gt.optim.Adam(1e-2), seed=3, memory=memory)


def batch(kind: str, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shape = (8, 3, 12, 12) if kind == "images" else (8, 16)
    return {"x": random.standard_normal(shape, np.float32), "labels": random.integers(0, 4, 8)}


def step_graph(kind: str) -> Graph:
    graph = trainer(kind).graph
    assert isinstance(graph, Graph)
    return graph


def needed(planned: Plan) -> int:
    """The bytes of the arena and of variables."""
    return planned.arena + sum(buffer.type.nbytes for buffer in planned.program.variables.values())


def least_of(error: MemoryBudgetError) -> int:
    """The bytes that an error says are enough."""
    said = re.search(r"found is ([\d,]+), ", str(error))
    assert said is not None
    return int(said[1].replace(",", ""))


KINDS = ("images", "rows")
SMALL = budget_of("small")


# --- budgets


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [1.0, 0.95, 0.9])
def test_a_limit_is_kept_to_the_byte(kind: str, share: float) -> None:
    graph = step_graph(kind)
    whole = needed(arrive(graph, Options(memory=KEEP)))
    limit = int(share * whole)
    found = arrive(graph, Options(memory=Budget(nbytes=limit), check=True))
    assert needed(found) <= limit
    assert needed(arrive(graph, Options(memory=Budget(share=share)))) <= limit


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_the_least_that_an_error_says_is_enough_and_one_byte_less_is_not(kind: str) -> None:
    graph = step_graph(kind)
    variables = sum(variable.type.nbytes for variable in graph.variables)
    with pytest.raises(MemoryBudgetError, match="the least that was found is") as raised:
        arrive(graph, Options(memory=Budget(nbytes=variables + 1000)))
    least = least_of(raised.value)
    assert needed(arrive(graph, Options(memory=Budget(nbytes=least), check=True))) <= least
    with pytest.raises(MemoryBudgetError, match="smaller batches"):
        arrive(graph, Options(memory=Budget(nbytes=least - 1)))


@pytest.mark.exhaustive
def test_a_smaller_limit_never_leads_to_a_larger_arena() -> None:
    """On random programs: every limit is kept or refused, and what errors say is the least is always the same."""
    for seed in (0, 3, 9):
        program = parse(random_text(seed, kernels=8))
        variables = sum(buffer.type.nbytes for buffer in program.variables.values())
        arenas, leasts = [], set()
        for limit in range(plan(program).arena, 1024, -256):
            try:
                changed = Rematerialize(Budget(nbytes=variables + limit)).run(program)
            except MemoryBudgetError as error:
                leasts.add(least_of(error) - variables)
                continue
            arenas.append(plan(ReuseOperands().run(changed)).arena)
            assert arenas[-1] <= limit
        assert arenas == sorted(arenas, reverse=True)
        assert len(leasts) == 1
        assert leasts.pop() <= arenas[-1]


def test_a_search_that_goes_astray_finds_no_more_than_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: with more time to spend nothing good is found."""
    until, graph = passes._Dropping.until, step_graph("images")
    monkeypatch.setattr(passes, "NEAR", 1)
    free = UNSAID.slower * 1.5

    def astray(self: passes._Dropping, goal: int) -> bool:
        spent = self.left / total(self.program.instructions, self.rates)
        return until(self, goal) if spent < free else False

    monkeypatch.setattr(passes._Dropping, "until", astray)
    kept, unsaid, small = (needed(arrive(graph, Options(memory=memory))) for memory in (KEEP, UNSAID, SMALL))
    assert unsaid < kept
    assert small <= unsaid


def test_variables_that_are_larger_than_the_limit_are_named() -> None:
    with pytest.raises(MemoryBudgetError, match="variables .* alone take"):
        trainer("rows", memory="1KB")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_computed_again_where_all_is_to_be_kept(kind: str) -> None:
    kept = arrive(step_graph(kind), Options(memory=KEEP)).program
    assert not [buffer for buffer in kept.buffers if buffer.name.endswith(SUFFIX)]
    small = arrive(step_graph(kind), Options(memory=SMALLEST)).program
    assert [buffer for buffer in small.buffers if buffer.name.endswith(SUFFIX)]


def test_what_is_small_is_left_alone_where_nobody_asked() -> None:
    graph = step_graph("rows")
    plain, unsaid = (arrive(graph, Options(memory=budget)) for budget in (KEEP, UNSAID))
    assert str(plain.program) == str(unsaid.program)


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        (None, UNSAID), ("keep", KEEP), ("small", budget_of("small")), (KEEP, KEEP), (65536, Budget(nbytes=65536)),
        ("64MiB", Budget(nbytes=64 << 20)), ("64 MB", Budget(nbytes=64 << 20)), (6.4e7, Budget(nbytes=64_000_000)),
        (0.5, Budget(share=0.5)), ("50%", Budget(share=0.5)), (1.0, Budget(share=1.0)),
        (np.float32(0.25), Budget(share=0.25)), ("0.5", Budget(share=0.5)), ("6.4e7", Budget(nbytes=64_000_000)),
    ],
)  # fmt: skip
def test_budgets_are_understood(given: Memory, budget: Budget) -> None:
    assert budget_of(given) == budget


@pytest.mark.parametrize(
    "given",
    [
        0,
        -5,
        "",
        "much",
        "0 MB",
        "-3MB",
        0.0,
        -0.5,
        1.5,
        "1.5",
        "150%",
        "0%",
        "%",
        float("nan"),
        float("inf"),
        True,
        [64],
    ],
)
def test_what_is_no_budget_is_an_error(given: Memory) -> None:
    with pytest.raises(InputError, match="memory"):
        budget_of(given)


# --- bits


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_training_has_the_same_bits_with_any_budget(kind: str) -> None:
    """Compiled, dropout and running statistics included."""
    whole = needed(arrive(step_graph(kind), Options(memory=KEEP)))
    budgets: tuple[Memory, ...] = ("keep", None, "small", 0.9, whole - 2000, SMALLEST)
    trainers = [trainer(kind, memory) for memory in budgets]
    losses = [[each.step(batch(kind, seed)) for seed in range(5)] for each in trainers]
    assert losses[1:] == losses[:1] * (len(budgets) - 1)
    states = [each.variables() for each in trainers]
    for state in states[1:]:
        assert all(np.array_equal(state[name], array) for name, array in states[0].items())


def test_a_copy_of_a_trainer_has_its_budget() -> None:

    assert copy.deepcopy(trainer("rows", "small")).spec.budget == budget_of("small")


def test_what_was_dropped_is_explained() -> None:
    told: list[tuple[str, str, str]] = []
    options = Options(memory=SMALLEST, explain=lambda *said: told.append(said))
    arrive(step_graph("images"), options)
    found = [(what, why) for stage, what, why in told if stage == "rematerialized"]
    assert found
    assert all("bytes are not kept" in why for _, why in found)
