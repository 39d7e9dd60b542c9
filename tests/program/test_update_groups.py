"""Updates of variables as one nest for each variable and its state, and what the passes make of it is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler.walk import arrive, until
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.lower import lower as lowering
from glowtrain.lower.update_groups import LARGEST, UpdateGroup, update_groups
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.tensor.move import Transpose
from glowtrain.optim import OPTIMIZERS, SGD, Adam, Optimizer
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Program
from glowtrain.types import f16, f32, f64
from tests.program.random_graphs import RandomGraph

RULES = [
    *(rule(lr=0.01) for rule in OPTIMIZERS.values()),
    SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
]


def lowered(graph: Graph) -> Program:
    program: Program = arrive(graph, stages=until("lowered"))
    return program


def shape_of(plan: Plan) -> tuple[object, ...]:
    """Memory, and what each kernel touches: all but names, and the order of what is independent."""
    kernels = Counter(
        (tuple(sorted(str(b.type) for b in each.writes)), frozenset(str(b.type) for b in each.reads))
        for each in plan.program.leaves
    )
    return plan.arena, plan.peak, kernels


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Calls a function where each operator gets a kernel of its own."""

    def call(function: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(lowering, "update_groups", lambda graph: [])
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
def test_a_step_becomes_the_same_program(optimizer: Optimizer, apart: Callable[..., Any]) -> None:
    graph = step(optimizer)
    assert shape_of(arrive(graph)) == shape_of(apart(lambda: arrive(graph)))


@pytest.mark.parametrize("optimizer", RULES, ids=repr)
def test_a_step_is_lowered_to_fewer_kernels(optimizer: Optimizer, apart: Callable[..., Any]) -> None:
    graph = step(optimizer)
    parameters = sum(variable.trainable for variable in graph.variables)
    before = len(apart(lambda: lowered(graph)).instructions)
    assert len(lowered(graph).instructions) <= before - parameters


@pytest.mark.parametrize("optimizer", RULES, ids=repr)
def test_the_state_of_a_variable_lies_as_the_variable(optimizer: Optimizer) -> None:
    """One kernel goes through all of them: what lies otherwise is read and written element by element."""
    x = Input(f32[2, 3, 8, 8], "x")
    weight = Variable("w", np.ones((16, 3, 3, 3), np.float32))
    graph = gt.Trainer(Graph((x,), {"y": Conv()(x, weight)}), gt.losses.mse("target"), optimizer).graph
    assert isinstance(graph, Graph)
    program: Program = arrive(graph, stages=until("layout"))
    layouts = {b.layout for b in program.variables.values() if b.shape == weight.shape}
    assert layouts == {(2, 3, 1, 0)}


@pytest.mark.parametrize("seed", range(30))
def test_random_updates_keep_their_bits(seed: int, apart: Callable[..., Any]) -> None:
    """Of random graphs all results of which are updates; the evaluator takes sums in one order, whatever is inlined."""
    grown = RandomGraph(ChoiceDraw(seed))
    graph = grown.graph()
    values = (*graph.outputs.values(), *graph.updates.values())
    fresh = {Variable(f"u{number}", np.zeros(value.shape)): value for number, value in enumerate(values)}
    changed = Graph(graph.inputs, {}, fresh, name="updates")
    feeds, programs = grown.feeds(), (lowered(changed), apart(lambda: lowered(changed)))
    (_, updated), (_, expected) = (evaluate(program, feeds) for program in programs)
    for name, array in expected.items():
        np.testing.assert_array_equal(updated[name], array)


def test_the_names_of_what_is_inside_are_known() -> None:
    graph: Graph = arrive(step(Adam(lr=0.01)), stages=until("optimized"))
    names, nodes = lowering.values_by_buffer(graph), lowering.nodes_by_kernel(graph)
    assert set(names.values()) == {*graph.leaves, *(value for node in graph.nodes for value in node.outputs)}
    grouped = {node for group in update_groups(graph) for node in group.nodes[:-1]}
    assert set(nodes.values()) == set(graph.nodes) - grouped


# ---- what is in a group


P, X = Variable("p", np.zeros((3, 4), np.float32)), Input(f32[3, 4], "x")
Q, ROW = Variable("q", np.zeros((3, 4), np.float32)), Variable("row", np.zeros(4, np.float32))


def group(updates: dict[Variable, Value], **outputs: Value) -> UpdateGroup:
    (found,) = groups(updates, **outputs)
    return found


def groups(updates: dict[Variable, Value], **outputs: Value) -> list[UpdateGroup]:
    return update_groups(Graph((X,), outputs, updates, name="update"))


def results(found: UpdateGroup) -> set[Value]:
    return {node.output for node in found.nodes}


def test_what_only_an_update_needs_is_in_its_group() -> None:
    moved = P * X
    bent = Tanh()(moved)
    new = bent + moved
    found = group({P: new})
    assert results(found) == {moved, bent, new}
    assert found.variables == (P,)
    assert found.operands == (P, X)


def test_updates_that_share_a_value_are_one_group() -> None:
    moved = P * X
    found = group({P: moved + P, Q: moved})
    assert found.variables == (P, Q)


def test_updates_that_share_nothing_are_groups_of_their_own() -> None:
    assert [found.variables for found in groups({Q: Q + X, P: P * X})] == [(Q,), (P,)]


def test_what_is_seen_from_outside_is_not() -> None:
    moved = P * X
    assert moved not in results(group({P: moved + P}, y=moved))


def test_what_leads_to_other_results_is_not() -> None:
    moved = P * X
    total = gt.nn.total(Tanh()(moved))
    new = P + total
    assert results(group({P: new}, loss=total)) == {new}


def test_what_is_broadcast_is_not() -> None:
    scaled = ROW * ROW
    new = scaled + P
    assert results(group({P: new})) == {new}


def test_what_rounds_a_result_of_others_is_not() -> None:
    wide = Input(f64[3, 4], "wide")
    half = Variable("half", np.zeros((3, 4), np.float16))
    made = MatMul()(wide, Variable("w", np.zeros((4, 4))))
    narrow = Cast(f16)(made)
    new = narrow + half
    (found,) = update_groups(Graph((wide,), {}, {half: new}, name="update"))
    assert results(found) == {new}
    (found,) = update_groups(Graph((wide,), {}, {half: narrow}, name="update"))
    assert results(found) == {narrow}


def test_scalars_are_in_none() -> None:
    count = Variable("count", np.zeros((), np.float32))
    assert groups({count: count + 1.0}) == []


def test_a_group_that_reads_what_another_writes_is_none() -> None:
    """Both take the other's present value: in two loops, one after the other, the second would see a new one."""
    assert [found.variables for found in groups({P: Q + X, Q: P + X})] == [(Q,)]
    assert [found.variables for found in groups({P: Q + X, Q: Q * X})] == [(Q,)]


def test_variables_exchange_their_values() -> None:
    first, second = np.ones((3, 4), np.float32), np.full((3, 4), 2, np.float32)
    p, q = Variable("p", first), Variable("q", second)
    exchange = Graph((), {}, {p: q * 1.5, q: p * 3.0}, name="exchange")
    _, state = evaluate(lowered(exchange), {})
    np.testing.assert_array_equal(state["p"], np.full((3, 4), 3, np.float32))
    np.testing.assert_array_equal(state["q"], np.full((3, 4), 3, np.float32))


def test_variables_of_a_group_exchange_their_values() -> None:
    """In one loop, too, all is read before anything is written."""
    first, second = np.ones((3, 4), np.float32), np.full((3, 4), 2, np.float32)
    p, q = Variable("p", first), Variable("q", second)
    total = p + q
    exchange = Graph((X,), {}, {p: total - p, q: total - q}, name="exchange")
    assert len(update_groups(exchange)) == 1
    _, state = evaluate(lowered(exchange), {"x": np.ones((3, 4), np.float32)})
    np.testing.assert_array_equal(state["p"], second)
    np.testing.assert_array_equal(state["q"], first)


def test_large_groups_are_none() -> None:
    value: Value = P
    for _ in range(LARGEST):
        value = Tanh()(value)
    assert groups({P: value}) == []
    many = [Input(f32[3, 4], f"x{number}") for number in range(40)]
    total = sum(many, start=P)
    assert update_groups(Graph(tuple(many), {}, {P: total}, name="update")) == []


# ---- where a group stands


def test_a_group_stands_behind_all_that_reads_its_variables() -> None:
    """The product takes the weight from before the step, though its update is made of what was there first."""
    weight = Variable("weight", np.eye(4, dtype=np.float32))
    step = Graph((X,), {"y": Tanh()(MatMul()(X, weight))}, {weight: weight * 3.0}, name="step")
    kernels = [kernel.name for kernel in lowered(step).kernels]
    assert kernels.index("matmul") < kernels.index("update") < kernels.index("tanh")
    x = np.ones((3, 4), np.float32)
    outputs, state = evaluate(lowered(step), {"x": x})
    np.testing.assert_array_equal(outputs["y"], np.tanh(x))
    np.testing.assert_array_equal(state["weight"], 3 * np.eye(4, dtype=np.float32))


def test_a_present_value_that_is_kept_elsewhere_is_copied_before() -> None:
    p, before = Variable("p", np.ones((3, 4), np.float32)), Variable("before", np.zeros((3, 4), np.float32))
    step = Graph((X,), {"y": p}, {p: p + X, before: p}, name="step")
    outputs, state = evaluate(lowered(step), {"x": np.ones((3, 4), np.float32)})
    np.testing.assert_array_equal(outputs["y"], np.ones((3, 4), np.float32))
    np.testing.assert_array_equal(state["before"], np.ones((3, 4), np.float32))
    np.testing.assert_array_equal(state["p"], np.full((3, 4), 2, np.float32))


def test_partial_sums_lie_as_the_variable_that_is_updated() -> None:
    """Of a product in the other order: tiles of both are then read and written row by row."""
    weight, x, dy = (
        Variable("weight", np.zeros((48, 96), np.float32)),
        *(Input(f32[640, n], f"in{n}") for n in (96, 48)),
    )
    gradient = MatMul()(Transpose(perm=(1, 0))(x), dy)
    step = Graph((x, dy), {}, {weight: weight - 0.5 * Transpose(perm=(1, 0))(gradient)}, name="step")
    (kernel,) = arrive(step, stages=until("fused")).kernels
    (home,) = (buffer for buffer in kernel.writes if buffer.kind == "activation")
    assert (home.shape, home.layout) == ((96, 48), (1, 0))
