"""The oracles of gradcheck: what each of them sees, samples at the edges of domains, what a run covers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

from glowtrain.cli import app
from glowtrain.errors import InputError
from glowtrain.gradcheck import check_registry, check_sample, page
from glowtrain.gradcheck.draw import SPECIAL, EdgeDraw
from glowtrain.gradcheck.operators.edges import FINITE, drawn_edge, drawn_example
from glowtrain.gradcheck.operators.onnx_runtime import NotRun, runtime
from glowtrain.gradcheck.operators.oracles import EDGES, SLOPES, drawn, operands_with_gradients
from glowtrain.graph import OPERATORS, Operator, Sample, Value, operator, registered
from glowtrain.loops import For, Store, call, select
from glowtrain.onnx_io.schema.operands import operand_names
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.detection.suppression import NonMaxSuppression
from glowtrain.ops.elementwise.arithmetic import Abs, Mul
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.elementwise.transcendental import Exp, Tanh
from glowtrain.ops.indexing.selection import Unique
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.pooling.regions import MaxRoiPool
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.resample.grid_sample import GridSample
from glowtrain.types import Array, TensorType, f8e4m3fn, f64

Patch = pytest.MonkeyPatch


def statuses(sample: Sample, oracle: str) -> set[str]:
    return {measure.status for measure in check_sample(sample, [oracle])}


def rule(patch: Patch, cls: type[Operator], change: Callable[..., Any]) -> None:
    original = cls.vjp
    patch.setattr(cls, "vjp", lambda self, g, y, *inputs: change(original(self, g, y, *inputs), g, y, *inputs))


POINT = Sample(Tanh(), (np.array([[0.3, -0.7], [1.1, 0.2]]),))


@pytest.mark.parametrize("oracle", ["jacobian", "directions", "complex step", "forward", "second order"])
def test_oracle_passes_a_right_rule(oracle: str) -> None:
    assert statuses(POINT, oracle) == {"passed"}


@pytest.mark.parametrize("oracle", ["jacobian", "directions", "complex step"])
@pytest.mark.parametrize("size", [4, 5000])
def test_oracle_sees_a_wrong_element(oracle: str, size: int, monkeypatch: Patch) -> None:
    """One of many elements, at any size, by one part in a thousand."""
    wrong = np.ones(size)
    wrong[size // 2] = 1.001 if size < 10 else 3.0
    rule(monkeypatch, Tanh, lambda found, g, y, x: (found[0] * wrong,))
    sample = Sample(Tanh(), (np.linspace(-1, 1, size),))
    if (oracle, size) == ("jacobian", 5000):
        monkeypatch.setattr(
            "glowtrain.gradcheck.operators.differences.FULL", 8
        )  # it looks at some elements, and random directions
    assert statuses(sample, oracle) == {"failed"}


def test_complex_step_sees_what_differences_cannot(monkeypatch: Patch) -> None:
    rule(monkeypatch, Tanh, lambda found, g, y, x: (found[0] * (1 + 1e-8),))
    assert statuses(POINT, "jacobian") == {"passed"}
    assert statuses(POINT, "complex step") == {"failed"}


def test_complex_step_stands_back_where_a_function_is_not_analytic() -> None:
    """|x| of complex numbers is real, and x |x| has no complex derivative: neither is compared."""
    assert statuses(Sample(Abs(), (np.array([1.5]),)), "complex step") == {"absent"}


def test_complex_step_is_refused_by_a_reference_for_reals(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Exp, "reference", lambda self, x: x * abs(x) / 2)
    rule(monkeypatch, Exp, lambda found, g, y, x: (g * abs(x),))
    sample = Sample(Exp(), (np.array([1.5, -0.5]),))
    assert statuses(sample, "jacobian") == {"passed"}
    assert statuses(sample, "complex step") == {"absent"}


def test_forward_mode_sees_a_rule_that_is_not_linear(monkeypatch: Patch) -> None:
    rule(monkeypatch, Tanh, lambda found, g, y, x: (found[0] * g,))
    assert statuses(POINT, "forward") == {"failed"}


def test_forward_mode_sees_a_rule_whose_cotangent_is_cut(monkeypatch: Patch) -> None:
    """Right in first order; nothing of second order, or of forward mode, is left."""
    rule(monkeypatch, Tanh, lambda found, g, y, x: (StopGradient()(found[0]),))
    assert statuses(POINT, "jacobian") == {"passed"}
    assert statuses(POINT, "forward") == {"failed"}


def test_second_order_at_a_rule_that_forgets_its_operand(monkeypatch: Patch) -> None:
    def forget(found: Any, g: Value, y: Value, a: Value, b: Value) -> Any:
        return g * StopGradient()(b), found[1]

    sample = Sample(Mul(), (np.array([0.5, 2.0]), np.array([1.5, -0.5])))
    assert statuses(sample, "second order") == {"passed"}
    rule(monkeypatch, Mul, forget)
    assert statuses(sample, "jacobian") == {"passed"}
    assert statuses(sample, "second order") == {"failed", "passed"}


def test_second_order_sees_what_cuts_forward_mode_through_a_gradient(monkeypatch: Patch) -> None:
    """The values of both gradients are right, so no difference of them shows it."""
    rule(monkeypatch, Exp, lambda found, g, y, x: (StopGradient()(g) * Exp()(x),))
    rule(monkeypatch, Tanh, lambda found, g, y, x: (4.0 * g / ((Exp()(x) + Exp()(-x)) ** 2),))
    assert statuses(POINT, "jacobian") == {"passed"}
    assert statuses(POINT, "forward") == {"passed"}
    assert statuses(POINT, "second order") == {"passed", "failed"}


def test_f32_tolerance_grows_with_the_length_of_sums(monkeypatch: Patch) -> None:
    """A long sum of mixed signs passes; the same with one element in a thousand missing does not."""
    random = np.random.default_rng(0)
    for length in (10, 20_000):
        sample = Sample(ReduceSum(axes=(0,), keepdims=False), (random.standard_normal(length),))
        assert statuses(sample, "compiled") == {"passed"}
    reference = ReduceSum.reference
    monkeypatch.setattr(ReduceSum, "reference", lambda self, x: reference(self, x[: len(x) - len(x) // 1000]))
    assert "failed" in statuses(sample, "compiled")


def test_onnx_runtime_agrees_and_disagrees(monkeypatch: Patch) -> None:
    try:
        runtime()
    except NotRun:
        assert statuses(POINT, "onnx runtime") == {"absent"}
        return
    sample = Sample(MatMul(), (np.arange(6.0).reshape(2, 3) / 5, np.arange(12.0).reshape(3, 4) / 7))
    assert statuses(sample, "onnx runtime") == {"passed"}
    reference = MatMul.reference
    monkeypatch.setattr(MatMul, "reference", lambda self, a, b: reference(self, a, b) * a.dtype.type(1.001))
    assert "failed" in statuses(sample, "onnx runtime")


# --- Edges


def test_edges_have_empty_and_single_axes_and_rank_five() -> None:
    shapes = [EdgeDraw(seed).shape() for seed in range(200)]
    assert {len(shape) for shape in shapes} == set(range(6))
    assert sum(0 in shape for shape in shapes) > 20
    assert sum(1 in shape and 0 not in shape for shape in shapes) > 40
    assert all(0 not in EdgeDraw(seed).shape(min_extent=2) for seed in range(50))
    assert all(len(EdgeDraw(seed).shape(min_rank=2, max_rank=3)) in (2, 3) for seed in range(50))


def test_special_values_are_drawn_and_finite_ones_only_where_asked() -> None:
    found = np.concatenate([EdgeDraw(seed, special=True).floats((3, 4)).ravel() for seed in range(200)])
    assert np.isnan(found).any()
    for value in SPECIAL[:-1]:
        assert ((found == value) & (np.signbit(found) == np.signbit(value))).any(), value
    assert all(np.isfinite(EdgeDraw(seed, special=True, finite=True).floats((9,))).all() for seed in range(50))


def test_operators_have_edges() -> None:
    """Most have a use without elements; none is left out."""
    empty, missing = set(), set()
    for cls in registered():
        found = [drawn_edge(cls, 0, example) for example in range(4)]
        arrays = [array for sample in found if sample is not None for array in sample.inputs if array is not None]
        empty |= {cls.key()} if any(np.asarray(array).size == 0 for array in arrays) else set()
        missing |= set() if any(found) else {cls.key()}
    assert not missing
    assert len(empty) > 80
    assert set(FINITE) <= set(OPERATORS)


def plain_zero(self: Any, outputs: Any, *inputs: Any) -> Any:
    """A lowering that gives 1 for zeros of either sign, which are drawn almost never but at edges."""
    (loop,) = ORIGINAL(self, outputs, *inputs)
    assert isinstance(loop, For)
    (store,) = loop.body
    assert isinstance(store, Store)
    x = inputs[0][loop.indices]
    return [replace(loop, body=(replace(store, value=select(call("eq", x, 0.0), 1.0, store.value)),))]


ORIGINAL = Tanh.lower


@pytest.mark.parametrize("oracle", list(EDGES))
def test_edges_show_what_ordinary_samples_do_not(oracle: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Tanh, "lower", plain_zero)
    ordinary = [measure for example in range(20) for measure in check_sample(drawn(Tanh, 0, example), ["evaluator"])]
    assert all(measure.status == "passed" for measure in ordinary)
    report = check_registry(["Tanh"], 30, oracles=[oracle], shrink=False)
    assert [check.oracle for check in report.failures] == [oracle]


def test_floats_that_name_images_are_checked() -> None:
    """The first column of MaxRoiPool's regions is an image's number; the others may be anything."""
    (allowed,) = MaxRoiPool((1, 1)).index_ranges(*_types((2, 1, 3, 3), (2, 5))).values()
    regions: Array = np.array([[1.0, -9.0, 0.0, 1e9, np.inf], [0.0, 0.0, 0.0, 2.0, 2.0]])
    assert not allowed.violations(regions).any()
    regions[1, 0] = 2.0
    assert np.argwhere(allowed.violations(regions)).tolist() == [[1, 0]]


def _types(*shapes: tuple[int, ...]) -> list[Any]:
    return [TensorType(f64, shape) for shape in shapes]


# --- What these oracles found


def test_suppressed_rows_are_the_same_behind_the_last_that_is_kept() -> None:
    boxes, scores = np.array([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.1]]]), np.array([[[0.5, -0.5], [-0.6, -0.5]]])
    sample = Sample(NonMaxSuppression(max_output_boxes_per_class=1, score_threshold=0.0), (boxes, scores))
    assert statuses(sample, "decomposition") == statuses(sample, "evaluator") == {"passed"}


def test_batch_normalization_without_channels_can_be_drawn() -> None:
    assert all(drawn_edge(BatchNormalization, seed, 0) is not None for seed in range(30))


def test_different_elements_are_drawn_with_gradients_only_where_they_differ() -> None:
    samples = [drawn(Unique, 0, example) for example in range(40)]
    floats = [array for sample in samples for array in sample.inputs if array is not None and array.dtype == np.float64]
    assert floats
    assert all(len(np.unique(array)) == array.size for array in floats)
    assert all(statuses(sample, "jacobian") <= {"passed"} for sample in samples)


def test_onnx_runtime_gives_small_floats_as_bytes() -> None:
    assert statuses(Sample(Cast(to=f8e4m3fn), (np.array([352.0, -1.5]),)), "onnx runtime") <= {"passed", "absent"}


# --- Runs


@pytest.mark.exhaustive
def test_processes_find_the_same() -> None:
    names = ["Add", "Gather", "Softmax", "ArgMax"]
    oracles = (*SLOPES, "edges")
    one, two = (check_registry(names, 3, seed=5, programs=4, oracles=oracles, jobs=jobs) for jobs in (1, 2))
    assert one == two
    assert one.subjects == ("Add", "ArgMax", "Gather", "Softmax", "random programs")


def test_what_a_run_covered() -> None:
    report = check_registry(["Gather", "ReduceSum", "Equal"], 6, profile="quick", oracles=("types", "compiled"))
    by = {entry.operator: entry for entry in report.covered}
    assert by["Gather"].gradients == {0}
    assert not by["Equal"].gradients
    assert {"f64", "f32", "i64"} <= by["Gather"].dtypes
    assert len(by["ReduceSum"].uses) > 2
    assert by["ReduceSum"].samples == 6
    assert "3 operators, 2 of them with gradients" in report.summary()
    assert "18 examples" in report.summary()


def test_positions_that_are_no_numbers_are_no_error() -> None:
    """The reference has something to say of any grid; NumPy's subscripts did not."""
    x, grid = np.arange(8.0).reshape(1, 1, 2, 4), np.array([np.nan, np.inf, -np.inf, 0.0]).reshape(1, 1, 2, 2)
    for padding in ("zeros", "border", "reflection"):
        for mode in ("linear", "nearest", "cubic"):
            assert statuses(Sample(GridSample(mode=mode, padding_mode=padding), (x, grid)), "types") == {"passed"}


def test_new_processes_must_know_an_operator() -> None:
    @operator
    @dataclass(frozen=True)
    class Halved(Tanh):
        domain: ClassVar[str] = "com.example.oracles"

    try:
        assert check_registry([Halved.key()], 1, oracles=["jacobian"]).passed
        with pytest.raises(InputError, match="a new process knows no operator com.example.oracles.Halved"):
            check_registry([Halved.key()], 1, oracles=["jacobian"], jobs=2)
    finally:
        del OPERATORS[Halved.key()]


def test_profiles() -> None:
    with pytest.raises(InputError, match="no profile 'slow'; there are: quick, ci, deep"):
        check_registry(["Add"], profile="slow")
    assert check_registry(["Add"], profile="quick", oracles=["types"]).examples == 2


def test_page_lists_operators_and_reasons() -> None:
    report = check_registry(["Conv", "ArgMax", "Tanh"], 2, oracles=(*SLOPES, "edges"))
    lines = page(report, "glowtrain gradcheck").splitlines()
    (conv,) = [line for line in lines if line.startswith("| Conv |")]
    assert "| X, W" in conv
    assert " yes | " in conv
    assert "| ArgMax | positions are integers |" in lines
    assert "FAILED" not in "\n".join(lines)
    assert "2 of them with gradients" in lines[4]
    assert "2 differentiable operators, checked in forward mode and in second order as well." in lines
    assert not any(line.startswith("Except") for line in lines)


def test_page_says_which_gradients_were_not_seen() -> None:
    report = check_registry(["Exp", "Tanh"], 1, oracles=SLOPES)
    by = {entry.operator: entry for entry in report.covered}
    checks = tuple(check for check in report.checks if (check.subject, check.oracle) != ("Tanh", "second order"))
    less = replace(report, checks=checks, covered=(replace(by["Exp"], gradients=frozenset()), by["Tanh"]))
    lines = page(less, "glowtrain gradcheck").splitlines()
    assert "2 operators, 1 of them with gradients" in lines[4]
    start = lines.index("2 differentiable operators, checked in forward mode and in second order as well.")
    assert lines[start + 1 : start + 3] == [
        "Except `Exp`: no example of it has a gradient.",
        "Except `Tanh`: it was not checked in second order.",
    ]


def test_few_examples_show_the_gradient_of_every_differentiable_operator() -> None:
    """One, CastLike, drew two kinds of floats in one example of sixteen, and in none of a run's ten."""
    for cls in registered(lambda cls: cls.differentiable):
        assert any(operands_with_gradients(drawn_example(cls, 0, example)) for example in range(10)), cls.key()


def test_operands_have_onnx_names() -> None:
    """Without those that are known when compiling: the operands are what remains."""
    assert list(operand_names(OPERATORS["Gather"], [0, 1])) == ["data", "indices"]
    assert list(operand_names(OPERATORS["Concat"], [0, 1])) == ["0", "1"]
    assert list(operand_names(OPERATORS["Pad"], [0, 1])) == ["data", "constant_value"]
    assert list(operand_names(OPERATORS["glowtrain.ScatterAdd"], [1])) == ["1"]


@pytest.mark.exhaustive
def test_command_writes_page_and_json(tmp_path: Any) -> None:
    markdown, data = tmp_path / "gradients.md", tmp_path / "report.json"
    command = ["gradcheck", "--op", "Add", "--profile", "quick", "--markdown", str(markdown)]
    done = CliRunner().invoke(app, [*command, "--json", str(data)])
    assert done.exit_code == 0, done.output
    assert "all passed" in done.output
    text = markdown.read_text(encoding="utf-8")
    assert f"Written by `glowtrain {' '.join(command)}`, which checks 1 operator on drawn examples:" in text
    assert "| Add | A, B |" in text
    assert "ArgMax" not in text
    assert "ImageDecoder" not in text
    assert json.loads(data.read_text())["passed"]
    refused = CliRunner().invoke(app, ["gradcheck", "mlp", "--markdown", str(markdown)])
    assert refused.exit_code == 1
    assert CliRunner().invoke(app, ["gradcheck", "--op", "Add", "--profile", "slow"]).exit_code == 1


def test_documented_page_names_every_operator() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "gradients.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    advice = "run: glowtrain gradcheck --markdown docs/gradients.md"
    assert {cls.key() for cls in registered()} <= set(rows), advice
    for cls in registered(lambda cls: not cls.differentiable):
        assert rows[cls.key()] == f"| {cls.key()} | {cls.reason} |", advice
    assert "FAILED" not in text
    assert all(oracle in text for oracle in SLOPES)
