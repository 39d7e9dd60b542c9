"""The walk is one table: who goes through it, what it says, and that nobody writes it out again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.evaluator import Evaluator
from glowtrain.cli import app
from glowtrain.cli.commands.inspect.stages import stage_names, text_of
from glowtrain.compiler.walk import WALK, after, arrive, select, until, walk
from glowtrain.errors import GraphError, InputError
from glowtrain.graph import Graph, Input
from glowtrain.stages import Facts, Options, Stage
from glowtrain.verification import ladder, random_inputs

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path for room in ("glowtrain", "grad", "gradcheck", "optim", "benchmarks") for path in (ROOT / room).rglob("*.py")
]
PASSES = {
    "glowtrain.optimize.integer": {"IntegerArithmetic", "in_integers"},
    "glowtrain.optimize.fixed_point": {"FixedPoint", "in_fixed_point"},
    "glowtrain.optimize.pipeline": {"Optimize", "optimize"},
    "glowtrain.lower.factors": {"RoundFactors"},
    "glowtrain.lower.expand": {"ExpandOperators", "expand"},
    "glowtrain.lower.lower": {"Lower"},
    "glowtrain.program.passes.layout": {"AssignLayouts", "assign_layouts"},
    "glowtrain.program.passes.producer_inlining": {"InlineProducers", "inline"},
    "glowtrain.program.passes.loop_fusion.fuse": {"FuseLoops", "fuse_loops"},
    "glowtrain.program.passes.schedule": {"ScheduleLoops", "schedule"},
    "glowtrain.program.passes.rematerialisation.rematerialize": {"Rematerialize"},
    "glowtrain.program.passes.narrowing": {"Narrow"},
    "glowtrain.program.passes.reuse": {"ReuseOperands"},
    "glowtrain.program.memory.plan": {"PlanMemory", "plan"},
}
"""What takes a model from one stage to the next, by module."""
BELOW = {
    ("glowtrain/lower/factors.py", "expand"),
    ("glowtrain/lower/precision.py", "expand"),
    ("glowtrain/optimize/fixed_point.py", "in_integers"),
    ("glowtrain/optimize/__init__.py", "optimize"),
    ("glowtrain/program/passes/rematerialisation/rematerialize.py", "plan"),
    ("glowtrain/program/passes/residuals/residuals.py", "Rematerialize"),
    ("glowtrain/profiling/memory/report.py", "ReuseOperands"),
    ("glowtrain/bundles/module.py", "in_fixed_point"),
    ("glowtrain/runtime/partition/work.py", "ExpandOperators"),
    ("glowtrain/runtime/partition/work.py", "Lower"),
}
"""A pass that begins with another one, the package's face, and who asks what a pass would do: where results would lie,
what would be alive, whether anything is quantized, how much there is to do."""


def uses(path: Path) -> Iterator[tuple[str, str]]:
    """What a module imports of the passes."""
    name = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in PASSES:
            yield from ((name, alias.name) for alias in node.names if alias.name in PASSES[node.module])


def test_passes_are_composed_in_one_module() -> None:
    found = {use for path in SOURCES for use in uses(path)} - BELOW
    assert {name for name, _ in found} == {"glowtrain/compiler/walk.py"}, sorted(found)
    assert len(found) == len(PASSES), "a pass that is in no stage"


def graph() -> Graph:
    x = Input(gt.f32[4, 8], "x")
    return Graph((x,), {"y": gt.nn.softmax(gt.nn.relu(x) * 2.0)})


def test_every_stage_has_a_result_a_text_and_seconds() -> None:
    cpu = gt.Cpu()
    arrivals = list(walk(graph(), Options(check=True), cpu.stages(WALK)))
    assert [arrival.stage.name for arrival in arrivals] == [s.name for s in (*WALK, *after("plan", cpu.stages(WALK)))]
    assert all(arrival.seconds >= 0 and arrival.stage.says for arrival in arrivals)
    for name in set(stage_names(cpu)) - {"summary", "memory"}:
        assert len(text_of(graph(), name, cpu, Options(facts=cpu.facts))) > 20, name


def test_names_choose_stages() -> None:
    assert [s.name for s in until("lowered")] == ["integers", "rounded", "expanded", "optimized", "lowered"]
    assert [s.name for s in after("fused")] == ["packed", "ordered", "rematerialized", "program", "plan"]
    assert [s.name for s in select("plan", "layout")] == ["layout", "plan"]
    with pytest.raises(KeyError, match="no stage nowhere; there are integers, rounded"):
        until("nowhere")


def test_facts_reach_the_passes() -> None:
    """What a kernel may hold, and layouts."""

    def kernels(**facts: int) -> int:
        return len(arrive(graph(), Options(facts=Facts(**facts)), until("program")).instructions)

    assert kernels() < kernels(max_inlined=0) < kernels(max_inlined=0, max_operands=1)
    assert kernels(max_inlined=0) < kernels(max_inlined=0, max_expressions=1)
    assert kernels(max_inlined=0) < kernels(max_inlined=0, max_statements=1)
    x, w = Input(gt.f32[1, 8, 9, 9], "x"), gt.Variable("w", np.ones((8, 8, 3, 3), np.float32))
    convolution = Graph((x,), {"y": gt.nn.relu(gt.ops.convolution.convolution.Conv()(x, w))})
    for preferred in (True, False):
        plan = arrive(convolution, Options(facts=Facts(preferred_layouts=preferred)))
        assert any(b.layout != tuple(range(b.type.rank)) for b in plan.program.buffers) is preferred


def test_what_decides_about_code_is_part_of_the_key() -> None:
    same = Options(check=True), Options()
    assert len({options.key for options in same}) == 1
    others = Options(fixed_point=True), Options(prefix="a"), Options(profile=True), Options(Facts(max_operands=3))
    assert len({options.key for options in (*same, *others)}) == 5


@pytest.mark.parametrize("prefix", ["1a", "a b", "ä", 5, None])
def test_a_prefix_begins_a_c_identifier(prefix: Any) -> None:
    with pytest.raises(InputError, match="must begin a C identifier"):
        Options(prefix=prefix)


def test_what_are_no_facts() -> None:
    class Odd(Evaluator):
        facts = 5  # type: ignore[assignment]

    with pytest.raises(InputError, match=r"a backend's facts are a Facts, not 5 \(int\)"):
        gt.compile(gt.Graph((), {}), Odd())


def test_a_graph_that_a_stage_broke_is_refused_with_its_name() -> None:
    class Breaks:
        def run(self, subject: Graph) -> Graph:
            unknown = Input(gt.f32[2], "unknown")
            return subject.with_(outputs={"y": unknown + 1.0})

    stage = Stage("broken", "", lambda options: Breaks())
    with pytest.raises(GraphError, match="after stage broken"):
        arrive(graph(), Options(check=True), [stage])


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_every_backend_climbs(backend: str) -> None:
    report = ladder(graph(), random_inputs(graph()), backend=backend)
    report.require()
    assert report.rungs[-1].name == ("targets" if backend == "cpu" else "compiled")


class TestExplain:
    def reasons(self, graph: Graph) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        arrive(graph, Options(explain=lambda stage, what, why: found.add((stage, why)) if what else None))
        return found

    def test_fusion_and_inlining_say_why_not(self) -> None:
        x, w = Input(gt.f32[32, 48], "x"), gt.Variable("w", np.ones((48, 16), np.float32))
        product = gt.nn.exp(x) @ w
        found = self.reasons(Graph((x,), {"y": gt.nn.softmax(product)}))
        assert ("inlined", "it is an operand of a contraction") in found
        assert ("fused", "they run over different numbers of points") in found

    def test_products_say_why_they_are_not_computed_in_integers(self) -> None:
        x, f = Input(gt.u8[4, 8], "x"), Input(gt.f32[8, 3], "f")
        scale = gt.constant(np.float32(0.5))
        real = gt.ops.quantized.convert.DequantizeLinear()(x, scale)
        assert self.reasons(Graph((x, f), {"y": real @ f})) >= {
            ("integers", "operand 1 is not quantized, only operand 0 is")
        }

    def test_nothing_is_said_of_what_no_rule_is_for(self) -> None:
        x = Input(gt.f32[4, 8], "x")
        assert not {
            stage for stage, _ in self.reasons(Graph((x,), {"y": x @ gt.constant(np.ones((8, 2), np.float32))}))
        } & {"integers"}

    @pytest.mark.exhaustive
    def test_the_command_prints_it(self) -> None:
        done = CliRunner().invoke(app, ["inspect", "cnn", "--train", "--explain"], env={"COLUMNS": "100"})
        assert done.exit_code == 0, done.output
        assert "fused: a contraction stands alone at the start of its kernel" in done.output
