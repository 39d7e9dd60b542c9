"""The ladder: green for models, and a planted mistake in any stage is found on its rung, with its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from glowtrain import models, nn
from glowtrain.backends import interpreter
from glowtrain.backends.base import Backend
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.threads.share import Shared
from glowtrain.compiler.walk import WALK, arrive
from glowtrain.errors import BackendError, InputError, ProgramError, VerificationError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Value, Variable, constant
from glowtrain.graph.retype import widened
from glowtrain.loops import Apply, Expr, For, Statement, Store, rewrite_body
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.logic import Cast, Where
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.sequence.recurrent import GRU
from glowtrain.ops.tensor.move import Reshape
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Kernel, Program
from glowtrain.stages import Options, Pass, Stage
from glowtrain.types import Array, bf16, f16, f32, f64, i64
from glowtrain.verification import Rung, VerificationReport, ladder, random_inputs
from glowtrain.verification.exact import distance, results_of, run_in_both

CHECKED = Options(check=True)
NAMES = ("reference", "interpreter", "optimized", "lowered", "program", "plan", "compiled", "threads", "targets")


def step() -> Graph:
    """Two layers, an output, and an update in place."""
    random = np.random.default_rng(0)
    x, w = Input(f32[4, 6], "x"), Variable("w", random.normal(size=(6, 5)).astype(np.float32))
    v = Variable("v", random.normal(size=(5, 3)).astype(np.float32))
    hidden = Tanh()(x @ w)
    hidden.name = "hidden"
    y = Softmax()(hidden @ v)
    y.name = "y"
    return Graph((x,), {"y": y}, {w: w * 0.9, v: v + 0.5}, name="step")


def run(graph: Graph, backend: str | Backend = "cpu") -> VerificationReport:
    return ladder(graph, random_inputs(graph), backend=backend)


Change = Callable[[Any], Any]


def unchanged(subject: Any) -> Any:
    return subject


def test_progress_is_told() -> None:
    graph, seen = step(), []
    ladder(graph, random_inputs(graph), progress=seen.append)
    assert tuple(name for name in seen if name in NAMES) == NAMES


def test_values_of_unknown_variables_are_refused() -> None:
    graph = step()
    with pytest.raises(InputError, match=r"step has no variable 'ww' \(the nearest is 'w'\)"):
        ladder(graph, random_inputs(graph), {"ww": np.zeros((6, 5), np.float32)})


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_the_models_of_the_package_climb_the_ladder(name: str) -> None:
    template = models.build(name, (1, 8, 8))
    report = run(template.bind({"batch": 3}))
    assert report.ok
    assert {rung.name for rung in report.rungs} >= set(NAMES) - {"optimized"}, "only an optimizer may change nothing"
    assert report.place == ""
    report.require()


@pytest.mark.parametrize("dtype", [f64, f32, f16, bf16])
def test_every_float_type_climbs_the_ladder(dtype: Any) -> None:
    x = Input(dtype[3, 4], "x")
    w = Variable("w", np.linspace(-1, 1, 20).reshape(4, 5).astype(dtype.numpy))
    report = run(Graph((x,), {"y": Softmax()(Relu()(x @ w))}, {w: w * 0.5}))
    assert report.ok, report
    assert report.results == 2


def test_a_scan_climbs_the_ladder() -> None:
    x, start = Input(f32[5, 3], "x"), Input(f32[2, 3], "start")
    state, row = Input(f32[2, 3], "state"), Input(f32[3,], "row")
    after = Tanh()(state + row)
    last, stack = Scan(Graph((state, row), {"after": after, "y": after * 2}), 1)(start, x)
    assert run(Graph((x, start), {"last": last, "stack": stack})).ok


# ---- planted mistakes


@dataclass(frozen=True)
class Wrong:
    """A pass whose subject or result is changed."""

    right: Pass
    before: Change
    after: Change

    def run(self, subject: Any) -> Any:
        return self.after(self.right.run(self.before(subject)))


class Planted(Cpu):
    """The cpu backend with a mistake before or after one stage."""

    def __init__(self, stage: str, after: Change = unchanged, before: Change = unchanged) -> None:
        super().__init__()
        self.planted, self.change = stage, (before, after)

    def stages(self, walk: Sequence[Stage]) -> tuple[Stage, ...]:
        return tuple(self._with_mistake(s) if s.name == self.planted else s for s in super().stages(walk))

    def _with_mistake(self, stage: Stage) -> Stage:
        return replace(stage, make=lambda options: Wrong(stage.make(options), *self.change))


def first_bad(report: VerificationReport) -> tuple[str, str]:
    assert report.first_bad is not None
    return report.first_bad.name, report.place


def test_a_backend_that_makes_no_artifact_does_not_pass() -> None:
    class Unfinished(Cpu):
        def stages(self, walk: Sequence[Stage]) -> tuple[Stage, ...]:
            return super().stages(walk)[:-1]

    with pytest.raises(BackendError, match="backend cpu: its last stage makes no artifact but a Code"):
        run(step(), Unfinished())


def slightly_off(expr: Expr) -> Expr | None:
    """tanh(x) * 1.001."""
    return expr * 1.001 if isinstance(expr, Apply) and expr.function == "tanh" else None


def spoiled(program: Program) -> Program:
    return replace(
        program, instructions=tuple(Kernel(k.name, rewrite_body(k.body, slightly_off)) for k in program.kernels)
    )


def test_a_wrong_reference_is_found_at_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that is not the same function in every type."""

    def reference(self: Any, x: Array) -> Array:
        return np.tanh(x) * np.asarray(1.001 if x.dtype == np.float32 else 1, x.dtype)

    monkeypatch.setattr(Tanh, "reference", reference)
    name, place = first_bad(run(step()))
    assert name == "interpreter"
    assert place == "node Tanh(f32[4,5])"


def test_a_wrong_optimization_is_found_by_name() -> None:
    def spoil(graph: Graph) -> Graph:
        y = graph.outputs["y"]
        wrong: Value = y * 1.001
        wrong.name = "y"
        return graph.with_(outputs={"y": wrong})

    name, place = first_bad(run(step(), Planted("optimized", spoil)))
    assert name == "optimized"
    assert place.startswith("value y of node Mul")


def test_a_wrong_lowering_is_found_at_its_instruction() -> None:
    assert first_bad(run(step(), Planted("lowered", spoiled))) == (
        "lowered",
        "kernel tanh, which writes hidden: f32[4,5]",
    )


@pytest.mark.parametrize("stage", ["layout", "inlined", "fused", "program"])
def test_a_wrong_pass_is_found_at_its_instruction(stage: str) -> None:
    """Also one of those that are looked at only where the next rung differs."""
    name, place = first_bad(run(step(), Planted(stage, spoiled)))
    assert name == stage
    assert "which writes hidden: f32[4,5]" in place


def test_a_wrong_update_is_found_too() -> None:
    def spoil(program: Program) -> Program:
        kernels = (_late(k) if [b.kind for b in k.writes] == ["variable"] else k for k in program.kernels)
        return replace(program, instructions=tuple(kernels))

    report = run(step(), Planted("program", spoil))
    assert report.first_bad is not None
    assert report.first_bad.name == "program"
    assert report.first_bad.result.startswith("variable ")


def _late(kernel: Kernel) -> Kernel:
    return Kernel("late", tuple(_doubled(statement) for statement in kernel.body))


def _doubled(statement: Statement) -> Statement:
    if isinstance(statement, For):
        return For(statement.indices, tuple(map(_doubled, statement.body)), statement.serial)
    return Store(statement.buffer, statement.index, statement.value * 2) if isinstance(statement, Store) else statement


def test_a_program_that_is_not_well_formed_is_said_to_be() -> None:
    def spoil(program: Program) -> Program:
        return replace(program, instructions=program.instructions[1:])

    report = run(step(), Planted("fused", spoil))
    bad = report.first_bad
    assert bad is not None
    assert bad.name == "fused"
    assert "is read before it is written" in bad.problem
    with pytest.raises(VerificationError, match="step: rung fused differs: program step is not well formed"):
        report.require()


def at_one_place(planned: Plan) -> Plan:
    return replace(planned, offsets=dict.fromkeys(planned.offsets, 0))


def test_a_wrong_plan_is_found_by_its_verifier() -> None:
    bad = run(step(), Planted("plan", at_one_place)).first_bad
    assert bad is not None
    assert bad.name == "plan"
    assert "share memory" in bad.problem


def test_wrong_code_is_found_at_its_instruction() -> None:
    """Native code made from another program than the evaluator ran."""
    wrong = Planted("llvm", before=lambda planned: replace(planned, program=spoiled(planned.program)))
    name, place = first_bad(run(step(), wrong))
    assert name == "compiled"
    assert "which writes hidden: f32[4,5]" in place


def test_code_that_writes_an_output_wrongly_is_found_too() -> None:
    def late(planned: Plan) -> Plan:
        kernels = (_late(k) if [b.kind for b in k.writes] == ["output"] else k for k in planned.program.kernels)
        return replace(planned, program=replace(planned.program, instructions=tuple(kernels)))

    x = Input(f32[4, 6], "x")
    name, place = first_bad(run(Graph((x,), {"y": Tanh()(x)}), Planted("llvm", before=late)))
    assert name == "compiled"
    assert "which writes y: f32[4,6]" in place


def test_what_threads_leave_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_task_alone(self: Shared, workspace: int, write: Any = Shared.functions) -> list[str]:
        return [text.replace("i64 %begin, i64 %end)\n", "i64 0, i64 1)\n") for text in write(self, workspace)]

    monkeypatch.setattr(Shared, "functions", first_task_alone)
    graph = models.build("mlp", (1, 8, 8)).bind({"batch": 3})
    report = ladder(graph, random_inputs(graph), backend=Cpu(threads=1))
    assert report.first_bad is not None
    assert report.first_bad.name == "threads"
    assert report.first_bad.problem == "output scores has other bits on 2 threads than on one"


def test_an_epilogue_with_a_strided_result_and_a_tail_of_lanes() -> None:
    """Six channels in vectors of eight, kept channels-last and flattened channels-first: the tail is scattered."""
    w = Variable("w", np.random.default_rng(0).normal(size=(6, 6, 3, 3)).astype(np.float32))
    x, same = Input(f32[2, 6, 7, 7], "x"), Conv(pads=(1, 1, 1, 1))
    h = same(x, w)
    run(Graph((x,), {"flat": Reshape(shape=(2, -1))(Relu()(h)), "next": same(h, w)})).require()


# ---- pieces


def test_the_report_prints_as_a_table() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    report = run(step(), Planted("program", spoiled))
    console.print(report)
    text = console.export_text()
    assert "step: 3 results on every rung" in text
    assert all(rung.name in text for rung in report.rungs)
    assert "differs" in text


def test_lists_of_attributes_are_broken_between_words() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    rung = Rung("interpreter", 0.0, 0.1, "Conv{kernel_shape=[3,3],pads=[1,1,1,1],strides=[1,1]}(x, w)")
    console.print(VerificationReport("net", 1, (rung,)))
    assert {"Conv{kernel_shape=[3,", "pads=[1,", "strides=[1,"} <= set(console.export_text().split())


def test_random_inputs_have_the_declared_types() -> None:
    x, rate, labels = Input(f16[2, 3], "x"), Input(f32[()], "rate"), Input(i64[50,], "labels")
    graph = Graph((x, rate, labels), {"y": x})
    arrays = random_inputs(graph, high={"labels": 7})
    assert all(value.type.accepts(arrays[value.name]) for value in graph.inputs)
    assert 0.01 <= arrays["rate"] <= 0.1
    assert set(arrays["labels"]) == set(range(7))
    np.testing.assert_array_equal(random_inputs(graph, 3)["x"], random_inputs(graph, 3)["x"])


def test_widened_graphs_compute_in_f64_throughout() -> None:
    x, n = Input(f32[3, 2], "x"), Input(i64[3, 2], "n")
    state, row = Input(f32[2,], "state"), Input(f32[2,], "row")
    last, stack = Scan(Graph((state, row), {"s": state + row * 0.1, "y": state * row}), 1)(
        constant(np.ones(2, np.float32)), x
    )
    graph = Graph((x, n), {"last": last, "stack": stack, "cast": Cast(to=f16)(n) * 2, "same": Reshape(shape=(6,))(n)})
    wide = widened(graph)
    floats = [value for node in wide.graph.nodes for value in node.outputs if value.dtype.is_float]
    assert {value.dtype for value in floats} == {f64}
    assert wide.graph.outputs["same"].dtype == i64
    feeds = {"x": np.random.default_rng(0).normal(size=(3, 2)), "n": np.arange(6).reshape(3, 2)}
    known = interpreter.evaluate(wide.graph, feeds)
    expected = 1 + (feeds["x"] * float(np.float32(0.1))).sum(axis=0)
    np.testing.assert_allclose(known[wide.graph.outputs["last"]], expected, rtol=1e-14)


def test_values_of_the_graph_have_counterparts() -> None:
    graph = step()
    wide = widened(graph)
    assert {wide.values[value] for value in graph.outputs.values()} == set(wide.graph.outputs.values())
    assert [variable.initial.dtype for variable in wide.graph.variables] == [np.float64, np.float64]


def test_distance_wants_the_same_places_of_nan_and_infinity() -> None:
    natural = np.array([1.0, np.nan, np.inf], np.float32)
    exact = natural.astype(np.float64)
    assert distance(natural, natural, exact, 1) == 0
    assert distance(np.array([1.0, np.nan, -np.inf], np.float32), natural, exact, 1) == np.inf
    assert distance(np.array([np.nan, np.nan, np.inf], np.float32), natural, exact, 1) == np.inf
    assert distance(np.array([1.0001, np.nan, np.inf], np.float32), natural, exact, 1) > 1
    assert np.isnan(distance(natural[:2], natural, exact, 1))
    ones = np.array([1, 2])
    assert distance(ones + 1, ones, ones, 1) == np.inf
    assert distance(ones, ones, ones, 1) == 0


def test_an_element_on_a_kink_may_fall_to_either_side() -> None:
    a, b = Input(f32[2], "a"), Input(f32[2], "b")
    y = Where()(a - b > 0, constant(np.float32(1)), constant(np.float32(0)))
    equal_then_apart = {"a": np.array([0.3, 0.9], np.float32), "b": np.array([0.3, 0.1], np.float32)}
    known = run_in_both(Graph((a, b), {"y": y}), equal_then_apart, {})
    np.testing.assert_array_equal(known.exact[y], [0, 1])
    assert known.beside_a_kink(y, np.array([1, 1], np.float32)) <= 1
    assert known.beside_a_kink(y, np.array([0, 8], np.float32)) > 1
    smooth = run_in_both(Graph((a, b), {"y": a - b}), equal_then_apart, {})
    ((_, value),) = results_of(smooth.graph)
    assert smooth.beside_a_kink(value, np.array([0.001, 0.8], np.float32)) > 1


def test_a_sum_that_is_zero_is_as_far_off_as_its_rounding_for_nearby_inputs() -> None:
    x = Input(f32[2000], "x")
    deviations = nn.sum(x - nn.mean(x))
    y = deviations * deviations
    numbers = np.random.default_rng(5).normal(size=2000).astype(np.float32)
    known = run_in_both(Graph((x,), {"y": y}), {"x": numbers}, {})
    in_order = np.cumsum(numbers - numbers.mean(), dtype=np.float32)[-1] ** 2
    assert known.error(y, in_order) > 1
    assert known.beside_a_kink(y, in_order) < 0.5
    assert known.beside_a_kink(y, 100 * in_order) > 1


# --- verifiers after every stage


def with_a_gap(program: Program) -> Program:
    """The program without its first instruction: what that wrote is read before it is written."""
    return replace(program, instructions=program.instructions[1:])


@pytest.mark.parametrize("stage", ["lowered", "layout", "inlined", "fused", "program"])
def test_a_broken_stage_is_found_when_plans_are_checked(stage: str) -> None:
    x = Input(f32[4, 4], "x")
    graph = Graph((x,), {"y": MatMul()(MatMul()(x, x), MatMul()(x, x * 2))})
    assert arrive(graph, CHECKED)
    with pytest.raises(ProgramError, match=f"not well formed after {stage}"):
        arrive(graph, CHECKED, Planted(stage, with_a_gap).stages(WALK))


def test_a_broken_plan_is_found_when_plans_are_checked() -> None:
    x = Input(f32[4, 4], "x")
    graph = Graph((x,), {"y": MatMul()(MatMul()(x, x), MatMul()(Tanh()(x), x))})
    with pytest.raises(ProgramError, match="memory plan"):
        arrive(graph, CHECKED, Planted("plan", at_one_place).stages(WALK))


def test_what_several_kernels_write_together_ends_a_life() -> None:
    """In the gradient of a GRU, two kernels write the halves of a buffer: it does not live on in the next step."""
    x, w, r = (Input(f64[shape], name) for name, shape in (("x", (2, 1, 1)), ("w", (1, 3, 1)), ("r", (1, 3, 1))))
    _, last = GRU(hidden_size=1)(x, w, r)
    (gradient,) = pullback([last], [constant(np.ones(last.shape))], [r])
    assert gradient is not None
    assert arrive(Graph((x, w, r), {"d": gradient}), CHECKED).offsets
