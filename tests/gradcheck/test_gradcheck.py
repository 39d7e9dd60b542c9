"""The checks themselves: they catch planted mistakes, are deterministic, and say what they found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glowtrain import losses
from glowtrain.errors import InputError, VerificationError
from glowtrain.gradcheck import ChoiceDraw, GradcheckReport, check, check_registry
from glowtrain.gradcheck.draw import MARGIN, map_into
from glowtrain.gradcheck.operators.differences import compared
from glowtrain.gradcheck.operators.oracles import check_sample
from glowtrain.gradcheck.report.report import merged
from glowtrain.gradcheck.strategies import samples, smallest
from glowtrain.graph import Binding, Graph, Input, Operator, Sample, Template, Value, Variable
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Add, Mul
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.types import f32

Patch = pytest.MonkeyPatch


# --- Wrong rules, to see what is told about them (test_mutations.py plants many more)


def changed_vjp(cls: type[Operator], change: Callable[..., Any]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        original = cls.vjp
        patch.setattr(cls, "vjp", lambda self, g, y, *inputs: change(self, original, g, y, *inputs))

    return plant


def sign(self: Any, rule: Any, g: Value, y: Value, x: Value) -> Any:
    return (-rule(self, g, y, x)[0],)


def swapped_arguments(self: Any, rule: Any, g: Value, y: Value, a: Value, b: Value) -> Any:
    return tuple(reversed(rule(self, g, y, a, b)))


def missing_mask(self: Any, rule: Any, g: Value, y: Value, x: Value) -> Any:
    return (g,)


# --- Reports


@pytest.mark.exhaustive
def test_same_seed_gives_the_same_report() -> None:
    names = ["Softmax", "Gather", "MaxPool"]
    first, second = (check_registry(names, 4, seed=7, programs=2) for _ in range(2))
    assert first == second
    other = check_registry(names, 4, seed=8, programs=2)
    assert first.checks != other.checks
    assert first.passed
    assert first.subjects == ("Gather", "MaxPool", "Softmax", "random programs")


def test_report_as_json_and_table(tmp_path: Any, monkeypatch: Patch) -> None:
    changed_vjp(Tanh, sign)(monkeypatch)
    report = check_registry(["Exp", "Tanh"], 3, oracles=["types", "jacobian"], shrink=False)
    path = tmp_path / "report.json"
    data = json.loads(report.to_json(path))
    assert json.loads(path.read_text()) == data
    assert (data["passed"], data["seed"], data["examples"]) == (False, 0, 3)
    statuses = {(c["subject"], c["oracle"]): c["status"] for c in data["checks"]}
    passed, failed = "passed", "failed"
    tanh = {("Tanh", "types"): passed, ("Tanh", "jacobian"): failed}
    assert statuses == {("Exp", "types"): passed, ("Exp", "jacobian"): passed, **tanh}
    assert len(report.table().rows) == 1
    assert len(report.table(all_subjects=True).rows) == 2
    assert "1 failed" in report.summary()
    with pytest.raises(VerificationError, match=r"Tanh, jacobian: example 0, Tanh\(f64"):
        report.raise_if_failed()


def test_json_has_no_infinity(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Tanh, "reference", lambda self, x: np.full_like(x, np.nan))
    report = check_registry(["Tanh"], 1, oracles=["jacobian"], shrink=False)
    (failure,) = report.failures
    assert math.isinf(failure.error)
    assert json.loads(report.to_json())["checks"][0]["error"] is None


def test_operator_that_raises_is_a_failure(monkeypatch: Patch) -> None:
    changed_vjp(Tanh, lambda self, rule, g, y, x: (g.shape[99],))(monkeypatch)
    report = check_registry(["Tanh"], 2, oracles=["jacobian"], shrink=False)
    assert "IndexError" in report.failures[0].detail


def test_failure_comes_with_the_smallest_example(monkeypatch: Patch) -> None:
    changed_vjp(Mul, swapped_arguments)(monkeypatch)
    (failure,) = check_registry(["Mul"], 3, oracles=["jacobian"]).failures
    assert failure.detail.startswith("smallest: Mul(f64[], f64[])")


def test_progress_and_unknown_names() -> None:
    seen: list[tuple[str, int, int]] = []
    check_registry(["Add", "Sub"], 1, oracles=["types"], progress=lambda *args: seen.append(args), programs=1)
    assert seen == [("Add", 1, 3), ("Sub", 2, 3), ("random programs", 3, 3)]
    with pytest.raises(InputError, match="no operator Banana"):
        check_registry(["Banana"])


# --- Drawing


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (5, 5, 5, 5)])
def test_drawn_floats_are_distinct_and_keep_away(shape: tuple[int, ...]) -> None:
    draw = ChoiceDraw(0)
    avoid = (-1.0, 0.0, 1.5)
    first, second = (draw.floats(shape, -1.0, 2.0, avoid) for _ in range(2))
    together = np.concatenate([first.ravel(), second.ravel()])
    assert len(np.unique(together)) == together.size
    assert ((together > -1.0) & (together < 2.0)).all()
    assert min(np.abs(together - place).min() for place in avoid) >= MARGIN - 1e-12


def test_shapes_with_tails_have_long_axes_and_up_to_five() -> None:
    shapes = [ChoiceDraw(seed, tails=True).shape() for seed in range(300)]
    assert {len(shape) for shape in shapes} == set(range(6))
    assert sum(max(shape, default=0) > 8 for shape in shapes) > 50
    assert all(math.prod(shape) <= 700 for shape in shapes)
    assert max(len(ChoiceDraw(seed, tails=True).shape(max_rank=3)) for seed in range(100)) == 3
    assert max(max(ChoiceDraw(seed).shape(), default=0) for seed in range(100)) == 5


def test_placed_covers_every_piece() -> None:
    values = map_into(np.linspace(0.01, 0.99, 99), -1.0, 1.0, (0.0,))
    assert (np.diff(values) > 0).all()
    assert values[0] < -0.9 < 0.9 < values[-1]


def test_hypothesis_shrinks_samples_to_plain_ones() -> None:
    sample = smallest(samples(Add), lambda drawn: all(array is not None and array.size > 2 for array in drawn.inputs))
    assert sample is not None
    assert [array.shape for array in sample.inputs if array is not None] == [(3,), (3,)]
    assert all((np.diff(array) > 0).all() for array in sample.inputs if array is not None)


# --- Kinks


def kink_at(x: float) -> list[str]:
    sample = Sample(Relu(), (np.array([x, 1.0]),))
    return [measure.status for measure in check_sample(sample, ["jacobian"])]


def test_kink_is_no_failure_and_no_pass() -> None:
    assert kink_at(0.0) == ["kink"]
    assert kink_at(1e-7) == ["kink"]
    assert kink_at(5e-5) == ["passed"]
    assert kink_at(0.5) == ["passed"]


@pytest.mark.parametrize("seed", range(10))
def test_kinks_that_a_large_step_crosses_hide_none_at_the_point(seed: int) -> None:
    """As in images: many elements exactly on a kink, more of them near one; the gaps of both add up and cancel."""
    random = np.random.default_rng(seed)
    x = np.where(random.random(4000) < 0.25, 0.0, random.uniform(-2e-4, 2e-4, 4000))
    statuses = [measure.status for measure in check_sample(Sample(Relu(), (x,)), ["jacobian", "directions"])]
    assert set(statuses) <= {"kink", "passed"}


def test_nan_must_be_where_it_is_expected() -> None:
    good = np.array([1.0, np.nan, np.inf])
    assert compared("o", good.copy(), good, 1e-9).status == "passed"
    for wrong in ([1.0, 2.0, np.inf], [1.0, np.nan, -np.inf], [np.nan, np.nan, np.inf]):
        assert compared("o", np.array(wrong), good, 1e-9).status == "failed"
    assert compared("o", good[:2], good, 1e-9).status == "failed"
    (merged_check,) = merged("s", [("here", compared("o", np.array([np.nan]), np.array([1.0]), 1.0))])
    assert merged_check.status == "failed"


# --- A person's own model


def classifier(slope: float = 1.0) -> Graph:
    random = np.random.default_rng(3)
    x = Input(f32[4, 6], "x")
    w1 = Variable("w1", random.standard_normal((6, 8)).astype(np.float32))
    b1 = Variable("b1", random.standard_normal(8).astype(np.float32))
    w2 = Variable("w2", random.standard_normal((8, 3)).astype(np.float32))
    fixed = Variable("fixed", np.full(3, slope, np.float32), trainable=False)
    return Graph((x,), {"logits": Relu()(x @ w1 + b1) @ w2 * fixed}, name="classifier")


def statuses(report: GradcheckReport) -> dict[tuple[str, str], str]:
    return {(check.subject, check.oracle): check.status for check in report.checks}


@pytest.mark.parametrize("loss", [None, losses.softmax_cross_entropy(labels="labels"), losses.mse()])
def test_model_passes(loss: Any) -> None:
    report = check(classifier(), loss=loss)
    assert report.passed
    names = ["w1", "b1", "w2", "x"]
    assert [subject for subject in report.subjects if subject != "target"] == names
    assert all(statuses(report)[name, oracle] == "passed" for name in names for oracle in ("gradient", "compiled"))


def test_model_failure_names_parameter_and_node(monkeypatch: Patch) -> None:
    changed_vjp(Relu, missing_mask)(monkeypatch)
    report = check(classifier(), compiled=False)
    assert {check.subject for check in report.failures} == {"w1", "b1", "x"}
    assert all("the rule of Relu(f64[4,8]) is wrong" in check.detail for check in report.failures)


def test_model_at_a_kink() -> None:
    report = check(classifier().with_(), {"x": np.zeros((4, 6), np.float32)})
    assert report.passed
    random = np.random.default_rng(0)
    w = Variable("w", random.standard_normal((6, 8)).astype(np.float32))
    x = Input(f32[4, 6], "x")
    flat = check(Graph((x,), {"y": Relu()(x @ w)}, name="flat"), {"x": np.zeros((4, 6), np.float32)})
    assert flat.passed
    assert statuses(flat)["x", "gradient"] == "kink"
    assert "slopes" in flat.of("x")[0].detail


def test_model_native_code_is_checked(monkeypatch: Patch) -> None:
    original = Relu.scalar
    monkeypatch.setattr(Relu, "scalar", lambda self, x: original(self, x) * 1.001)
    report = check(classifier())
    assert {check.oracle for check in report.failures} == {"compiled"}


def test_template_and_given_data() -> None:
    def build(binding: Binding) -> Graph:
        x = Input(f32[binding.dims["n"], 2], "x")
        return Graph((x,), {"y": ReduceSum(axes=(1,))(Tanh()(x * weight))})

    weight = Variable("weight", np.array([0.5, 2.0], np.float32))
    template = Template("t", {"x": f32["n", 2]}, build)
    assert check(template).passed
    assert check(template, {"x": np.ones((7, 2), np.float32)}).passed
    with pytest.raises(InputError, match="no input 'z'"):
        check(build(Binding({"n": 2})), {"z": np.ones(2)})
    with pytest.raises(InputError):
        check(build(Binding({"n": 2})), {"x": np.ones((3, 2), np.float32)})


def test_model_check_is_deterministic() -> None:
    assert check(classifier(), seed=4) == check(classifier(), seed=4)


def test_a_large_parameter_is_probed_in_a_few_directions() -> None:
    """A square matrix over its elements would take 320 GB."""
    random = np.random.default_rng(0)
    w = Variable("w", random.standard_normal((200_000, 1)).astype(np.float32))
    report = check(Graph((), {"y": Tanh()(w)}), compiled=False)
    assert report.passed
    assert report.subjects == ("w",)
