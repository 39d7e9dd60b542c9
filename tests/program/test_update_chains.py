"""Chains of elementwise operators that lead to updates: one kernel each, and what the passes make of it is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_graphs import RandomGraph

import glowtrain as gt
from glowtrain.compiler.walk import arrive, planned, until
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.lower import lower as lowering
from glowtrain.lower.chains import LONGEST, linked
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.optim import OPTIMIZERS, SGD, Adam, Optimizer
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.program import Program
from glowtrain.program.text import plan_text
from glowtrain.types import f16, f32, f64

RULES = [
    *(rule(lr=0.01) for rule in OPTIMIZERS.values()),
    SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
]


def lowered(graph: Graph) -> Program:
    program: Program = arrive(graph, stages=until("lowered"))
    return program


@pytest.fixture
def unchained(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Calls a function where each operator gets a kernel of its own."""

    def call(function: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(lowering, "linked", lambda graph: frozenset())
            return function()

    return call


def step(optimizer: Optimizer) -> Graph:
    @gt.model(x=gt.f32["batch", 6])
    def network(x: Value) -> Value:
        h = gt.nn.relu(gt.nn.layer_norm(gt.nn.linear(x, 5, name="a"), name="norm"))
        return gt.nn.linear(h, 3, name="b")

    graph = gt.Trainer(network.bind({"batch": 4}), gt.losses.softmax_cross_entropy("labels"), optimizer).graph
    assert isinstance(graph, Graph)
    return graph


@pytest.mark.parametrize("optimizer", RULES, ids=repr)
def test_a_step_becomes_the_same_program(optimizer: Optimizer, unchained: Callable[..., Any]) -> None:
    graph = step(optimizer)
    assert plan_text(planned(graph)) == plan_text(unchained(lambda: planned(graph)))


@pytest.mark.parametrize("optimizer", RULES, ids=repr)
def test_a_step_is_lowered_to_fewer_kernels(optimizer: Optimizer, unchained: Callable[..., Any]) -> None:
    graph = step(optimizer)
    parameters = sum(variable.trainable for variable in graph.variables)
    before = len(unchained(lambda: lowered(graph)).instructions)
    assert len(lowered(graph).instructions) <= before - parameters


@pytest.mark.parametrize("seed", range(30))
def test_random_updates_keep_their_bits(seed: int, unchained: Callable[..., Any]) -> None:
    """Of random graphs all results of which are updates; the evaluator takes sums in one order, whatever is inlined."""
    grown = RandomGraph(ChoiceDraw(seed))
    graph = grown.graph()
    values = (*graph.outputs.values(), *graph.updates.values())
    fresh = {Variable(f"u{number}", np.zeros(value.shape)): value for number, value in enumerate(values)}
    changed = Graph(graph.inputs, {}, fresh, name="updates")
    feeds, programs = grown.feeds(), (lowered(changed), unchained(lambda: lowered(changed)))
    (_, updated), (_, expected) = (evaluate(program, feeds) for program in programs)
    for name, array in expected.items():
        np.testing.assert_array_equal(updated[name], array)


def test_the_names_of_what_readers_compute_are_known() -> None:
    graph: Graph = arrive(step(Adam(lr=0.01)), stages=until("optimized"))
    names, nodes = lowering.values_by_buffer(graph), lowering.nodes_by_kernel(graph)
    assert set(names.values()) == {*graph.leaves, *(value for node in graph.nodes for value in node.outputs)}
    assert set(nodes.values()) == set(graph.nodes)


# ---- what is no link


P, X = Variable("p", np.zeros((3, 4), np.float32)), Input(f32[3, 4], "x")


def update(value: Value, **outputs: Value) -> Graph:
    return Graph((X,), outputs, {P: value}, name="update")


def test_what_is_read_once_in_its_shape_is_a_link() -> None:
    moved = P * X
    bent = Tanh()(moved)
    assert linked(update(bent + P)) == {moved, bent}


def test_what_is_read_twice_is_none() -> None:
    moved = P * X
    assert moved not in linked(update(moved * moved))
    assert moved not in linked(update(Tanh()(moved) + moved))


def test_what_is_seen_from_outside_is_none() -> None:
    moved = P * X
    assert moved not in linked(update(moved + P, y=moved))
    other = Variable("q", np.zeros((3, 4), np.float32))
    assert moved not in linked(Graph((X,), {}, {P: moved + P, other: moved}, name="update"))


def test_what_leads_to_other_results_is_none() -> None:
    moved = P * X
    total = gt.nn.total(Tanh()(moved))
    assert linked(update(P + total, loss=total)) == frozenset()


def test_what_its_reader_broadcasts_is_none() -> None:
    row = Variable("row", np.zeros(4, np.float32))
    scaled = row * row
    assert scaled not in linked(update(scaled + P))


def test_what_is_narrowed_is_none() -> None:
    wide = Input(f64[3, 4], "wide")
    half = Variable("half", np.zeros((3, 4), np.float16))
    narrow = Cast(f16)(wide)
    assert narrow not in linked(Graph((wide,), {}, {half: narrow + half}, name="update"))


def test_long_chains_end() -> None:
    value: Value = P
    for _ in range(4 * LONGEST):
        value = Tanh()(value)
    kernels = lowered(update(value)).instructions
    assert len(kernels) > 4
    assert max(len(kernel.survey.loads) for kernel in kernels) == 1
    assert max(kernel.survey.size for kernel in kernels) <= LONGEST + 4
