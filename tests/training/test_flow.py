"""Where gradients flow: what is said of the ways is what the reverse walk does, and every cut is named."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given

import glowtrain as gt
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import DifferentiationError
from glowtrain.grad.flow import Flow, GradientCut
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.operators.oracles import applied, drawn
from glowtrain.gradcheck.programs.case import Case
from glowtrain.gradcheck.strategies import cases
from glowtrain.graph import Graph, Input, Operator, Value, constant, registered
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.activation import Gelu
from glowtrain.ops.elementwise.arithmetic import Ceil, Floor, Round
from glowtrain.ops.elementwise.logic import Cast, Greater, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.top_k import TopK
from glowtrain.ops.tensor.shape import Shape


def inputs(*names: str, shape: tuple[int, ...] = (2, 3)) -> list[Input]:
    return [Input(gt.f32[shape], name) for name in names]


def cuts(output: Value, value: Value) -> list[tuple[str, str]]:
    """The operators that cut the ways from a value, and why."""
    return [(cut.node.operator.key(), cut.kind) for cut in Flow([output]).of(value).cuts]


@given(case=cases())
def test_ways_are_those_of_the_reverse_walk(case: Case) -> None:
    """A leaf is reached differentiably where a gradient arrives that is not always zero; else every way has a cut."""
    flow = Flow(case.losses)
    leaves = [value for value in case.inputs if value.dtype.is_float]
    found = pullback(case.losses, [constant(1.0, loss.dtype) for loss in case.losses], leaves)
    zeros = []
    for leaf, gradient in zip(leaves, found, strict=True):
        reach = flow.of(leaf)
        assert gradient is not None or not reach.differentiable, leaf
        assert reach.depends or not (reach.differentiable or reach.cuts), leaf
        assert bool(reach.cuts) or reach.differentiable == reach.depends, leaf
        zeros += [gradient] if gradient is not None and not reach.differentiable else []
    feeds = {value.name: array for value, array in zip(case.inputs, case.arrays, strict=True)}
    values = evaluate(Graph(case.inputs, {f"g{k}": value for k, value in enumerate(zeros)}), feeds)
    assert not any(values[value].any() for value in zeros)


@given(case=cases())
def test_what_is_not_depended_on_changes_nothing(case: Case) -> None:
    flow = Flow(case.losses)
    graph = Graph(case.inputs, {f"y{k}": loss for k, loss in enumerate(case.losses)})
    feeds = {value.name: array for value, array in zip(case.inputs, case.arrays, strict=True)}
    before = evaluate(graph, feeds)
    for value in case.inputs:
        if value.dtype.is_float and not flow.of(value).depends:
            after = evaluate(graph, {**feeds, value.name: feeds[value.name] * 0 + 1})
            for loss in case.losses:
                np.testing.assert_array_equal(before[loss], after[loss])


@pytest.mark.parametrize("operator", tuple(registered()), ids=lambda cls: cls.key())
def test_every_operator_passes_what_its_rule_gives(operator: type[Operator]) -> None:
    for example in range(4):
        sample = drawn(operator, 11, example)
        use = applied(sample).probe
        results = [output for output in use.outputs if output.dtype.is_float]
        leaves = [value for value in use.inputs if value.dtype.is_float]
        seeds = [Input(result.type, "cotangent") for result in results]
        found = dict(zip(leaves, pullback(results, seeds, leaves), strict=True))
        flow = Flow(use.outputs)
        for leaf, gradient in found.items():
            reach = flow.of(leaf)
            assert reach.differentiable == (gradient is not None)
            kinds = {cut.kind for cut in reach.cuts}
            assert "no rule" not in kinds
            assert operator.differentiable or not reach.depends or kinds


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Round(), [("Round", "constant")]),
        (lambda x: gt.stop_gradient(gt.nn.tanh(x)), [("glowtrain.StopGradient", "stopped")]),
        (lambda x: Cast(to=gt.f32)(ArgMax(axis=0)(x)), [("ArgMax", "integer")]),
        (lambda x: Cast(to=gt.f32)(Cast(to=gt.i32)(x)), [("Cast", "integer")]),
        (lambda x: Cast(to=gt.f32)(Shape()(x)), [("Shape", "type")]),
        (lambda x: Where()(Greater()(x, 0.0), x, 0.0), [("Greater", "integer")]),
        (lambda x: TopK(k=2)(x)[0], []),
        (lambda x: Cast(to=gt.f32)(TopK(k=2)(x)[1]), [("TopK", "integer")]),
        (lambda x: Round()(x) + Round()(gt.nn.relu(Round()(x))), [("Round", "constant"), ("Round", "constant")]),
    ],
)
def test_a_cut_is_the_first_on_its_way(make: object, expected: list[tuple[str, str]]) -> None:
    (x,) = inputs("x")
    assert cuts(make(x), x) == expected  # type: ignore[operator]


def test_a_way_beside_a_cut_passes() -> None:
    x, w = inputs("x", "w")
    product = x * w
    flow = Flow([Where()(Greater()(product, 0.0), product, 0.0) + Round()(x)])
    assert (flow.of(w).depends, flow.of(w).differentiable) == (True, True)
    outcomes = [("Mul", "passes"), ("Greater", "cut"), ("Where", "passes"), ("Add", "passes")]
    assert [(step.node.operator.key(), step.outcome) for step in flow.steps([w])] == outcomes
    assert [step.node.operator.key() for step in flow.steps([x])].count("Round") == 1


def test_integers_behind_a_cut_have_nothing_to_pass() -> None:
    (x,) = inputs("x")
    flow = Flow([Cast(to=gt.f32)(ArgMax(axis=0)(x))])
    assert [(step.node.operator.key(), step.outcome) for step in flow.steps([x])] == [
        ("ArgMax", "cut"),
        ("Cast", "constant"),
    ]


def loop(step: object, *states: Value, scanned: Value) -> tuple[Value, ...]:
    """A Scan whose ``step`` gives new states and slices from states and a slice."""
    own = [Input(state.type, f"s{k}") for k, state in enumerate(states)]
    slice_ = Input(scanned.type.with_shape(scanned.shape[1:]), "slice")
    results = step(*own, slice_)  # type: ignore[operator]
    body = Graph((*own, slice_), {f"r{k}": value for k, value in enumerate(results)}, name="body")
    found: tuple[Value, ...] = Scan(body, num_scan_inputs=1)(*states, scanned)
    return found


def test_a_cut_in_a_loop_is_named_with_the_loop() -> None:
    (x,), (h,) = inputs("x"), inputs("h", shape=(3,))
    last, every = loop(lambda s, slice_: (s + Round()(slice_), s * slice_), h, scanned=x)
    (cut,) = Flow([last]).of(x).cuts
    assert (cut.node.operator.key(), [node.operator.key() for node in cut.within]) == ("Round", ["Scan"])
    assert Flow([last]).of(h).cuts == ()
    assert Flow([every]).of(x).differentiable
    inside = [step for step in Flow([last]).steps([x]) if step.within]
    assert [(step.node.operator.key(), step.outcome) for step in inside] == [("Round", "cut"), ("Add", "passes")]


def test_states_are_followed_around_a_loop() -> None:
    """What the first state holds gets into the second one's result only a step later; the third stays apart."""
    x, *states = *inputs("x"), *inputs("a", "b", "c", shape=(3,))
    a, b, c = states
    _, second, third = loop(lambda a, b, c, slice_: (a * slice_, a + slice_, c * 2.0), a, b, c, scanned=x)
    flow = Flow([second])
    assert [flow.of(value).differentiable for value in (x, a, b, c)] == [True, True, False, False]
    assert [flow.of(value).depends for value in (x, a, c)] == [True, True, False]
    assert [Flow([third]).of(value).depends for value in (x, a, b, c)] == [False, False, False, True]


def test_cuts_of_what_is_not_wanted_are_not_told() -> None:
    """The first state is rounded, the second floored; the third is read by the second one, a step later."""
    (x,), (a, b, c) = inputs("x"), inputs("a", "b", "c", shape=(3,))
    _, second, _ = loop(
        lambda a, b, c, slice_: (Round()(slice_), Floor()(slice_ + c), Ceil()(slice_)), a, b, c, scanned=x
    )
    assert [cut.node.operator.key() for cut in Flow([second]).of(x).cuts] == ["Floor", "Ceil"]
    assert [step.node.operator.key() for step in Flow([second]).steps([x])] == ["Scan", "Add", "Floor", "Ceil"]


def test_what_a_cut_s_result_does_not_reach_is_not_told() -> None:
    """The mask is an operand of a loop, but of a result that nothing reads."""
    (x,), (a, b) = inputs("x"), inputs("a", "b", shape=(3,))
    mask = Cast(to=gt.f32)(Greater()(x, 0.0))
    first, _ = loop(lambda a, b, slice_: (a * 2.0, b + slice_), a, b, scanned=mask)
    reach = Flow([first]).of(x)
    assert (reach.depends, reach.differentiable, reach.cuts) == (False, False, ())
    assert list(Flow([first]).steps([x])) == []


def test_a_loop_of_no_steps_gives_its_states_back() -> None:
    (x,), (a, b) = inputs("x", shape=(0, 3)), inputs("a", "b", shape=(3,))
    first, _ = loop(lambda a, b, slice_: (Round()(b), b + slice_), a, b, scanned=x)
    assert [Flow([first]).of(value).differentiable for value in (a, b)] == [True, False]
    assert not Flow([first]).of(b).depends


def test_a_state_that_is_cut_in_a_loop_has_no_gradient_though_the_rule_gives_zeros() -> None:
    (x,), (a, b) = inputs("x"), inputs("a", "b", shape=(3,))
    _, second = loop(lambda a, b, slice_: (a * 2.0, Round()(a) + slice_), a, b, scanned=x)
    reach = Flow([second]).of(a)
    assert (reach.depends, reach.differentiable) == (True, False)
    assert [cut.node.operator.key() for cut in reach.cuts] == ["Round"]


def test_a_cut_in_a_decomposition_is_named_with_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    (x,) = inputs("x")
    monkeypatch.setattr(Gelu, "vjp", Operator.vjp)
    monkeypatch.setattr(Gelu, "decompose", lambda self, x: Round()(x) * 2.0)
    (cut,) = Flow([Gelu()(x)]).of(x).cuts
    assert (cut.node.operator.key(), [node.operator.key() for node in cut.within]) == ("Round", ["Gelu"])


@dataclass(frozen=True)
class Ruleless(Elementwise):
    domain, onnx = "tests.flow", "Ruleless"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x


def test_an_operator_without_a_rule_is_a_cut_that_says_what_to_write() -> None:
    (x,) = inputs("x")
    loss = gt.nn.total(Ruleless()(x))
    (cut,) = Flow([loss]).of(x).cuts
    assert cut.kind == "no rule"
    assert "give the class Ruleless a vjp" in cut.why
    with pytest.raises(DifferentiationError):
        gt.gradients(loss, [x])


def test_an_operand_without_a_rule_is_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = inputs("x", "w")
    product = x * w
    monkeypatch.setattr(type(product.node.operator), "vjp", lambda self, g, y, a, b: (g * b, None))  # type: ignore[union-attr]
    flow = Flow([product])
    assert flow.of(x).cuts == ()
    (cut,) = flow.of(w).cuts
    assert isinstance(cut, GradientCut)
    assert (cut.kind, cut.why) == ("operand", "it has no gradient for operand 1")
