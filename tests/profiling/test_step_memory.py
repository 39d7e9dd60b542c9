"""Memory over a step: what is alive at each kernel, of which kind, and the picture of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.discovery import backend_of
from glowtrain.compiler.walk import arrive
from glowtrain.errors import BackendError, InputError
from glowtrain.graph import Graph, Input
from glowtrain.memory.budget import budget_of
from glowtrain.profiling.memory import MemoryReport, memory_report, plot, training_memory
from glowtrain.profiling.memory.contents import contents_of, phases_of
from glowtrain.profiling.memory.page import html_page, layers_of, rendered
from glowtrain.profiling.memory.table import LARGEST, again_lines, listed, peak_line
from glowtrain.program.parse import parse
from glowtrain.program.passes.schedule import live_bytes
from glowtrain.stages import Options
from tests.compiler.networks import cnn, step_of, steps

STEPS = steps()


def report_of(graph: Graph, memory: str | None = None) -> MemoryReport:
    backend = gt.Cpu(threads=2)
    options = Options(facts=backend.facts, memory=budget_of(memory))
    return memory_report(graph, backend, options, {v.name for v in graph.variables if ".adam" in v.name})


def large_step() -> Graph:
    """A step in which something is worth computing again."""
    graph, _ = step_of(cnn, x=np.zeros((256, 1, 12, 12), np.float32), labels=np.zeros(256, np.int64))
    return graph


@pytest.mark.spread(1)
@pytest.mark.parametrize("memory", [None, "small", "keep"])
@pytest.mark.parametrize("name", STEPS)
def test_sums_are_those_of_the_plan_and_of_what_runs(name: str, memory: str | None) -> None:
    graph, _ = STEPS[name]
    report = report_of(graph, memory)
    assert report.plan.peak == report.sums.max() == report.sums[report.peak]
    np.testing.assert_array_equal(sum(report.alive.values()), report.sums)
    assert sum(content.nbytes for content in report.at(report.peak)) == report.plan.peak
    assert report.use.arena == report.plan.arena >= report.plan.peak
    function = gt.compile(graph, threads=2, memory=memory)
    assert (report.use.total, report.use.workspace) == (function.memory().total, function.memory().workspace)
    height = sum(sizes[report.peak] for sizes in layers_of(report).values())
    assert height == report.use.total - report.use.arena + report.plan.peak


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_what_is_alive_at_each_kernel_agrees_with_the_schedule(name: str) -> None:
    """The schedule counts without the planner's intervals; in programs without repeats both mean the same."""
    report = report_of(STEPS[name][0])
    assert report.sums.tolist() == live_bytes(report.plan.program.instructions)


PROGRAM = """program p
  input      x: f32[4]
  output     loss: f32[]
  variable   w: f32[4]
  activation early: f32[]
  activation h: f32[4]
  activation mask: bool[4]
  activation z: f32[4]
  activation h.again: f32[4]
  activation g: f32[4]
  updates w
kernel rate:
  early[] = 0.5
kernel first:
  for i0<4:
    h[i0] = (x[i0] * w[i0])
    mask[i0] = (x[i0] > 0)
kernel second:
  for i1<4: z[i1] = (h[i1] * h[i1])
kernel total:
  loss[] = sum(r0<4: z[r0])
kernel first.again:
  for i2<4: h.again[i2] = (x[i2] * w[i2])
kernel backward:
  for i3<4: g[i3] = (h.again[i3] * 2.0)
kernel masked:
  for i4<4: g[i4] = select(mask[i4], g[i4], 0.0)
kernel update:
  for i5<4: w[i5] = (w[i5] - (g[i5] * early[]))
"""


def test_phases_and_kinds_follow_from_what_leads_to_outputs() -> None:
    program = parse(PROGRAM)
    phases = phases_of(program)
    assert phases == ("backward", "forward", "forward", "forward", "again", "backward", "backward", "update")
    found = [(c.buffer.name, c.kind, c.first, c.last) for c in contents_of(program, phases)]
    assert sorted(found) == [
        ("early", "gradients", 0, 7),
        ("g", "gradients", 5, 5),
        ("g", "gradients", 6, 7),
        ("h", "activations", 1, 2),
        ("h.again", "computed again", 4, 5),
        ("mask", "activations", 1, 6),
        ("z", "activations", 2, 3),
    ]


def test_a_place_that_changes_hands_holds_first_one_kind_then_another() -> None:
    shared = PROGRAM.replace("  activation g: f32[4]\n", "").replace("g[", "z[")
    program = parse(shared)
    found = [(c.kind, c.first, c.last) for c in contents_of(program, phases_of(program)) if c.buffer.name == "z"]
    assert found == [("activations", 2, 4), ("gradients", 5, 5), ("gradients", 6, 7)]


def test_each_phase_of_a_step_is_there_and_ends_with_updates() -> None:
    report = report_of(large_step(), "small")
    assert set(report.phases) == {"forward", "again", "backward", "update"}
    writes = [any(b.kind == "variable" for b in leaf.writes) for leaf in report.plan.program.leaves]
    assert all(written for written, phase in zip(writes, report.phases, strict=True) if phase == "update")
    assert "backward" not in set(phases_of(arrive(cnn.bind({"batch": 4})).program))


@pytest.mark.exhaustive
def test_what_is_computed_again_is_counted_and_explained() -> None:
    graph = large_step()
    kept, small = report_of(graph, "keep"), report_of(graph, "small")
    assert kept.again.contents == ()
    assert list(again_lines(kept.again)) == ["nothing is computed again (everything is kept)"]
    assert kept.again.peak_without == small.again.peak_without == kept.plan.peak > small.plan.peak
    assert 0 < small.again.seconds < small.again.step_seconds
    assert small.again.nbytes == sum(c.nbytes for c in small.contents if c.kind == "computed again") > 0
    *_, first, second = again_lines(small.again)
    assert re.match(
        r"computed again rather than kept: \d+ results?, .* \(what costs least may make the step 25% ", first
    )
    assert "with everything kept the peak would be" in second


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        ("64MB", "variables and arena are to fit 64.0 MiB"),
        ("90%", "variables and arena are to take 90% of what they take with everything kept"),
        (None, "what costs least may make the step 2% longer"),
        ("keep", "everything is kept"),
    ],
)
def test_reasons_say_what_the_budget_asked_for(memory: str | None, reason: str) -> None:
    assert report_of(large_step(), memory).again.reason == reason


@pytest.mark.exhaustive
def test_tables_list_the_largest_and_add_up_the_rest() -> None:
    report = report_of(STEPS["gpt"][0], "keep")
    alive = report.at(report.peak)
    table = listed(report, alive)
    assert len(alive) > LARGEST
    assert len(table.rows) == LARGEST + 1
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert sum(int(str(row[0]).replace(",", "")) for row in table.rows) == report.plan.peak
    assert f"kernel {report.peak} of {len(report.phases)}" in peak_line(report)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STEPS)
def test_the_picture_names_peak_parts_and_phases(name: str) -> None:
    report = report_of(STEPS[name][0])
    drawn = rendered(report, Path("x.svg")).decode()
    for shown in ("peak: ", "the largest there: ", "allocated: ", "parameters", "gradients", "forward", "kernel"):
        assert shown in drawn
    assert "_nolegend_" not in drawn
    assert rendered(report, Path("again.SVG")).decode() == drawn
    assert rendered(report, Path("x.png")).startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_the_page_has_the_picture_and_all_kernels() -> None:
    report = report_of(large_step(), "small")
    page = html_page(report)
    for heading in ("Memory over the step", "Taken in all", "Alive at the peak", "Computed again", "Kernels"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg") == 1
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert page.count('<td class="number">') > len(report.phases)
    assert rendered(report, Path("x.html")).decode() == page


def test_names_that_are_markup_are_shown_as_they_are() -> None:
    x = Input(gt.f32[64, 64], "x")
    with gt.nn.build(seed=1):
        graph = Graph((x,), {"<y>": gt.nn.softmax(gt.nn.linear(x, 64, name="<b>$a$"))}, name="<net>")
    page = html_page(report_of(graph))
    assert "&lt;net&gt;: memory" in page
    assert "<b>$a$" not in page


def test_a_graph_that_keeps_nothing_has_a_picture_too() -> None:
    x = Input(gt.f32[4], "x")
    report = report_of(Graph((x,), {"y": x}))
    assert report.plan.peak == 0
    assert "nothing" in peak_line(report)
    assert rendered(report, Path("x.png")).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["memory.pdf", "memory", "memory.htm"])
def test_other_endings_are_refused(name: str) -> None:
    report = report_of(STEPS["mlp"][0])
    with pytest.raises(InputError, match=r"ends in one of \.html, \.png, \.svg"):
        plot(report, name)


def test_a_trainer_s_step_is_that_of_its_budget_and_of_its_first_batch(tmp_path: Path) -> None:
    for memory in ("keep", "small"):
        trainer = gt.Trainer(cnn, gt.losses.softmax_cross_entropy(), gt.optim.Adam(1e-2), threads=2, memory=memory)
        trainer.step({"x": np.ones((256, 1, 12, 12), np.float32), "labels": np.zeros(256, np.int64)})
        report, said = training_memory(trainer), trainer.memory()
        assert replace(report.use, title="") == replace(said, title="")
        assert report.use.optimizer > 2 * report.use.parameters
        assert bool(report.again.contents) == (memory == "small")
    plot(report, tmp_path / "memory.html")
    assert "Alive at the peak" in (tmp_path / "memory.html").read_text(encoding="utf-8")


@pytest.mark.spread(1)
@pytest.mark.parametrize(("memory", "micro_batches"), [(None, 4), (0.6, "auto")])
def test_a_trainer_s_step_is_shown_in_the_parts_of_its_batch(memory: float | None, micro_batches: int | str) -> None:
    @gt.model(x=gt.f32["batch", 64])
    def rows(x: gt.Value) -> gt.Value:
        for number in range(3):
            x = gt.nn.tanh(gt.nn.linear(x, 64, name=f"layer{number}"))
        return gt.nn.linear(x, 3)

    trainer = gt.Trainer(
        rows, gt.losses.softmax_cross_entropy(), gt.optim.SGD(0.1), memory=memory,
        micro_batches=micro_batches,  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(InputError, match="has not been compiled yet"):
        training_memory(trainer)
    said = trainer.memory(256)
    report = training_memory(trainer)
    assert "parts" in str(report.plan.program)
    assert replace(report.use, title="") == replace(said, title="")


def test_only_planned_memory_can_be_shown() -> None:
    graph, _ = STEPS["mlp"]
    with pytest.raises(BackendError, match="backend interpreter has no planned memory; use backend cpu"):
        memory_report(graph, backend_of("interpreter"))
    assert memory_report(graph, backend_of("evaluator")).use.workspace == 0
