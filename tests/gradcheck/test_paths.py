"""Reports on the ways of gradients: who gets one, what cuts the others, and what to do; before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from rich.console import Console

import glowtrain as gt
from glowtrain import models
from glowtrain.errors import BindingError, DifferentiationError, InputError, ModelError, ShapeError
from glowtrain.gradcheck import GradientPaths, paths
from glowtrain.gradcheck.operators.oracles import drawn, operands_with_gradients
from glowtrain.gradcheck.operators.registry import verified
from glowtrain.gradcheck.programs.case import Case
from glowtrain.gradcheck.report.paths import LeafOnPath
from glowtrain.gradcheck.strategies import cases
from glowtrain.graph import OPERATORS, Constant, Graph, Input, Node, Value, Variable, class_of, constant, registered
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.arithmetic import Round
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear

X = Input(gt.f32[2, 4], "x")


def weight(name: str, *shape: int, seed: int = 0) -> Variable:
    return Variable(name, np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def network() -> Graph:
    """Two layers of which one is rounded, a gate that is chosen, a teacher, and what another output alone reads."""
    hidden = gt.nn.relu(X @ weight("fc1.weight", 4, 5) + weight("fc1.bias", 5))
    rounded = Node(Round(), [hidden], "/fc1/round").output @ weight("fc2.weight", 5, 3)
    gate = Cast(to=gt.f32)(ArgMax(axis=1, keepdims=True)(X @ weight("gate.weight", 4, 3)))
    teacher = gt.stop_gradient(X @ weight("teacher.weight", 4, 3))
    return Graph((X,), {"y": rounded * gate + teacher, "aux": X * weight("other.weight", 4)}, name="net")


def leaf(report: GradientPaths, name: str) -> LeafOnPath:
    (found,) = [entry for entry in report.leaves if entry.name == name]
    return found


def shown(report: GradientPaths) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(report)
    return console.export_text()


def test_who_gets_a_gradient_and_why_not() -> None:
    report = paths(network(), of=["y"])
    assert {entry.name: entry.standing for entry in report.leaves} == {
        "fc1.weight": "cut",
        "fc1.bias": "cut",
        "fc2.weight": "gradient",
        "gate.weight": "cut",
        "teacher.weight": "cut",
        "other.weight": "unreached",
        "x": "cut",
    }
    assert leaf(report, "fc1.bias").cut_by == ("Round '/fc1/round'",)
    assert leaf(report, "gate.weight").cut_by[0].startswith("ArgMax")
    assert leaf(report, "x").cut_by[0].startswith("Round")
    assert not report.passed
    assert {entry.name for entry in report.missing} == {
        entry.name for entry in report.leaves if entry.standing != "gradient" and entry.role == "parameter"
    }
    assert paths(network()).summary().startswith("gradients reach 2 of 6 parameters, 1 of 1 inputs; ")


def test_operators_and_what_they_pass() -> None:
    report = paths(network(), of=["y"])
    found = {entry.operator: (entry.uses, entry.gradient) for entry in report.operators}
    assert found["Round"] == (1, "cut")
    assert found["ArgMax"] == (1, "cut")
    assert found["Cast"] == (1, "constant")
    assert found["glowtrain.StopGradient"] == (1, "cut")
    assert found["MatMul"] == (4, "verified")
    assert {entry.layers for entry in report.operators if entry.operator == "Round"} == {("fc1",)}


def test_cuts_say_where_why_what_it_costs_and_what_to_do() -> None:
    report = paths(network(), of=["y"])
    found = {cut.operator: cut for cut in report.cuts}
    assert set(found) == {"Round", "ArgMax", "glowtrain.StopGradient"}
    assert found["Round"].nodes == ("/fc1/round",)
    assert found["Round"].layers == ("fc1",)
    assert found["Round"].blocks == ("fc1.weight", "fc1.bias", "x")
    assert "piecewise constant" in found["Round"].why
    assert "x + gt.stop_gradient(f(x) - x)" in found["Round"].advice
    assert "Softmax for ArgMax" in found["ArgMax"].advice
    assert "leave it if that is meant" in found["glowtrain.StopGradient"].advice


def test_the_advice_works() -> None:
    """The network, straight-through where it rounds: everything before it gets a gradient, and results are the same."""

    def straight(x: Value) -> Value:
        return x + gt.stop_gradient(Round()(x) - x)

    made: dict[str, Graph] = {}
    for name, rounded in (("hard", Round()), ("straight", straight)):
        made[name] = Graph((X,), {"y": rounded(X @ weight("w", 4, 3))}, name=name)
    assert not paths(made["hard"]).passed
    assert paths(made["straight"]).passed
    batch = {"x": np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)}
    results = [gt.compile(graph, "interpreter")(batch)["y"] for graph in made.values()]
    np.testing.assert_allclose(*results, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda h: DequantizeLinear()(QuantizeLinear()(h, np.float32(0.1)), np.float32(0.1)), "before it is quantized"),
        (
            lambda h: Gather(axis=0)(constant(np.eye(3, dtype=np.float32)), Cast(to=gt.i64)(h)),
            "soft + gt.stop_gradient",
        ),
    ],
)
def test_advice_fits_the_operator(make: Any, advice: str) -> None:
    report = paths(Graph((X,), {"y": make(gt.nn.sigmoid(X @ weight("w", 4, 3)))}))
    with pytest.raises(DifferentiationError, match="no gradient reaches 1 parameter:\n  1 parameter w: cut by"):
        report.raise_if_missing()
    assert any(advice in cut.advice for cut in report.cuts)


def test_findings_of_a_kind_stand_together() -> None:
    value: Value = X
    for k in range(30):
        value = Node(Round(), [value * weight(f"block{k}.scale", 4)], f"/block{k}/round").output
    report = paths(Graph((X,), {"y": value}))
    (cut,) = report.cuts
    assert (len(cut.nodes), len(cut.blocks)) == (30, 31)
    text = shown(report)
    assert "/block7/round and 22 more" in text
    assert "no gradient for block0.scale, block1.scale" in text
    assert len(text.splitlines()) < 14
    with pytest.raises(DifferentiationError, match="and 22 more"):
        report.raise_if_missing()


def test_a_cut_that_costs_nothing_is_told_last_and_without_advice() -> None:
    hidden = X @ weight("w", 4, 3)
    report = paths(Graph((X,), {"y": gt.nn.where(hidden > 0.0, hidden, 0.0) + Round()(weight("lost", 3))}))
    assert [(cut.operator, cut.blocks) for cut in report.cuts] == [("Round", ("lost",)), ("Greater", ())]
    text = shown(report)
    assert "nothing: what is behind it has other ways" in text
    assert "Sigmoid" not in text


def test_a_model_whose_parameters_all_get_one_passes() -> None:
    report = paths(models.build("mobilenet"))
    assert report.passed
    assert report.cuts == ()
    assert {entry.gradient for entry in report.operators} == {"verified"}
    assert len(report.frozen) == 34
    report.raise_if_missing()


def test_extents_that_fit_are_found() -> None:
    """A network that takes no images smaller than 16 by 16."""

    @gt.model(x=gt.f32["batch", 1, "h", "w"])
    def network(x: Value) -> Value:
        for name in ("a", "b", "c"):
            x = gt.nn.max_pool(gt.nn.conv(x, 2, 3, name=name), 2)
        return gt.nn.linear(gt.nn.global_average_pool(x), 3, name="head")

    assert len(paths(network).of_role("parameter")) == 8
    assert paths(network, dims={"h": 30, "batch": 1}).passed
    with pytest.raises(ShapeError, match="MaxPool|Conv"):
        paths(network, dims={"h": 2})
    with pytest.raises(BindingError, match="there is no dimension 'height'"):
        paths(network, dims={"height": 2})


def test_the_loss_is_what_is_differentiated() -> None:
    report = paths(network(), "mse")
    assert report.of == ("the loss",)
    assert "ReduceMean" in {entry.operator for entry in report.operators}
    assert {entry.name for entry in report.leaves} == {entry.name for entry in paths(network()).leaves}
    assert leaf(report, "other.weight").standing == "unreached"


def test_patterns_choose_who_must_get_one() -> None:
    assert paths(network(), by=["fc2.*", "x"]).passed
    report = paths(network(), by=["fc*"])
    assert [entry.name for entry in report.missing] == ["fc1.weight", "fc1.bias"]
    assert not paths(network(), of=["y"], by=["x"]).passed


def test_initializers_that_cannot_be_parameters_are_told(tmp_path: Path) -> None:
    """A weight before an ArgMax loads as a constant: nobody would miss its gradient otherwise."""
    gate = Cast(to=gt.f32)(ArgMax(axis=1, keepdims=True)(X @ weight("gate.weight", 4, 3)))
    table = Variable("table", np.arange(3, dtype=np.int64), trainable=False)
    model = Graph((X,), {"y": gate * (X @ weight("w", 4, 3)) + Cast(to=gt.f32)(table)})
    proto = gt.save(model)
    del proto.metadata_props[:]
    report = paths(gt.load(proto))
    assert leaf(report, "gate.weight").role == "constant"
    assert leaf(report, "gate.weight").standing == "cut"
    assert [entry.name for entry in report.missing] == ["gate.weight"]
    assert "table" not in {entry.name for entry in report.leaves}
    assert paths(gt.load(proto), by=["w"]).passed


def test_constants_that_are_no_weights_are_left_alone() -> None:
    """One that a gradient could reach is meant to be constant; a mask and a table of integers are no parameters."""
    scale, mask = Constant(np.float32([1, 2, 3, 4]), "scale"), Constant(np.float32([0, 0, 0, -np.inf]), "mask")
    lost = Constant(np.float32([1, 2, 3, 4]), "lost")
    chosen = gt.nn.where(constant(np.float32(0)) > mask, X * scale, Round()(lost))
    report = paths(Graph((X,), {"y": chosen}))
    assert {entry.name: entry.role for entry in report.leaves} == {"x": "input", "lost": "constant"}


def test_trainable_integers_are_told() -> None:
    count = Variable("count", np.arange(4), trainable=True)
    report = paths(Graph((X,), {"y": X * Cast(to=gt.f32)(count)}))
    assert leaf(report, "count").standing == "integer"
    with pytest.raises(DifferentiationError, match="not of a float type; make it trainable=False"):
        report.raise_if_missing()


@dataclass(frozen=True)
class Doubled(Elementwise):
    domain, onnx = "tests.paths", "Doubled"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return 2 * x

    def vjp(self, g: Value, y: Value, x: Value) -> tuple[Value]:
        return (g * 2.0,)

    def scalar(self, x: Any) -> Any:
        return x * 2.0


@pytest.fixture
def doubled() -> Iterator[None]:
    """The operator is registered, until the end of the test."""
    gt.operator(Doubled)
    yield
    del OPERATORS[Doubled.key()]


@pytest.mark.usefixtures("doubled")
def test_operators_of_others_are_not_verified() -> None:
    report = paths(Graph((X,), {"y": Doubled()(X * weight("w", 4))}))
    assert report.passed
    assert {entry.operator: entry.gradient for entry in report.operators} == {
        "Mul": "verified",
        "tests.paths.Doubled": "unverified",
    }
    assert "glowtrain gradcheck --op tests.paths.Doubled" in shown(report)


def test_verified_operators_are_those_that_come_along_and_are_checked() -> None:
    own = {cls.key() for cls in registered() if cls.__module__.startswith("glowtrain.")}
    assert verified() <= own
    assert {key for key in own - verified() if class_of(key).differentiable} == set()
    unseen = {key for key in verified() if not any(_has_gradient(key, example) for example in range(10))}
    assert unseen == set(), "no example of it has a gradient to check"


def _has_gradient(key: str, example: int) -> bool:
    return bool(operands_with_gradients(drawn(class_of(key), 0, example)))


@given(case=cases())
def test_reports_on_any_program(case: Case) -> None:
    step = case.step
    report = paths(step)
    trained = [v.name for v in step.variables if v.trainable]
    assert [entry.name for entry in report.of_role("parameter")] == trained
    assert report.passed == (not report.missing)
    for entry in report.leaves:
        assert (entry.standing == "cut") == bool(entry.cut_by)
        cutting = [cut for cut in report.cuts if entry.name in cut.blocks]
        assert bool(cutting) == (entry.standing == "cut")
    for cut in report.cuts:
        assert cut.nodes
        assert cut.why
        assert cut.advice
    told = json.loads(report.to_json())
    assert told["passed"] == report.passed
    assert len(told["leaves"]) == len(report.leaves)
    assert report.summary() in shown(report)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"of": ["z"]}, InputError, "net has no output 'z'; it has 'y', 'aux'"),
        ({"of": ["auy"]}, InputError, r"net has no output 'auy' \(the nearest is 'aux'\)"),
        ({"by": ["fc1.wieght"]}, InputError, r"net has no parameter or input 'fc1.wieght' \(the nearest is 'fc1.wei"),
        ({"by": ["fc9.*"]}, InputError, "net has no parameter or input 'fc9"),
        ({"loss": "mse", "of": ["y"]}, InputError, "give a loss or outputs, not both"),
        ({"loss": "msee"}, InputError, "there is no loss 'msee'"),
        ({"loss": "y"}, DifferentiationError, "must be a scalar to be a loss"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        paths(network(), **arguments)


def test_integers_have_no_gradient() -> None:
    ids = Input(gt.i64[2], "ids")
    model = Graph((ids,), {"y": Gather(axis=0)(weight("table", 5, 3), ids), "best": ids + 1}, name="tokens")
    assert [entry.name for entry in paths(model).leaves] == ["table"]
    with pytest.raises(InputError, match=r"tokens: ids \(i64\[2\]\): not of a float type, so there is no gradient"):
        paths(model, by=["ids"])
    with pytest.raises(InputError, match=r"tokens: 'best' \(i64\[2\]\) is not of a float type"):
        paths(model, of=["best"])
    with pytest.raises(InputError, match="has no float output; give a loss"):
        paths(Graph((ids,), {"best": ids + 1}))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="takes a graph, a template or a path"):
        paths(3)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="nowhere.onnx"):
        paths("nowhere.onnx")
