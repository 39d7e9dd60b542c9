"""Profiles of steps: what threads note down, what rows say of it, and what backends cannot."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.base import SPAN, WHOLE_CALL, StepProfile
from glowtrain.backends.cpu.events.text import append_event_text
from glowtrain.backends.cpu.limits import measured as limits
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.limits import FUNCTIONS, MachineLimits, MemoryLevel
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import WALK, arrive
from glowtrain.errors import BackendError
from glowtrain.graph import Graph, Input
from glowtrain.profiling.layers import KernelProvenance
from glowtrain.profiling.measure import profile
from glowtrain.profiling.numbers import json_text
from glowtrain.profiling.page import html_page
from glowtrain.profiling.report import ProfileReport, Timing, rows_of, ticks_of
from glowtrain.profiling.table import kernels
from glowtrain.profiling.trace import PROCESS, trace_text
from glowtrain.program.analysis.work_count import WorkCount
from glowtrain.stages import Options
from tests.cpu.cpu_kernels import runnable


def network() -> Graph:
    x = Input(gt.f32[64, 96], "x")
    with gt.nn.build(seed=1):
        hidden = gt.nn.relu(gt.nn.linear(x, 128, name="first"))
        return Graph((x,), {"y": gt.nn.softmax(gt.nn.linear(hidden, 32, name="second"))})


def recurrence() -> Graph:
    x = Input(gt.f32[4, 9, 3], "x")
    with gt.nn.build(seed=1):
        return Graph((x,), {"y": gt.nn.lstm(x, 5, name="memory")})


@pytest.mark.spread(2)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("graph", [network(), recurrence()], ids=["network", "recurrence"])
def test_every_task_of_every_call_is_in_one_range(graph: Graph, threads: int) -> None:
    """With everything shared out that can be: ranges lie in their calls and cover all tasks once."""
    report = profile(graph, gt.Cpu().for_checks(threads), 2)
    spans, calls = report.timing.run.spans, report.timing.run.calls
    assert [row.name for row in report.rows] == list(calls)
    assert len(spans[spans["call"] == len(calls)]) == 1
    own = defaultdict(list)
    for span in spans[spans["thread"] != WHOLE_CALL]:
        assert 0 <= span["thread"] < threads
        own[int(span["call"])].append(span)
    for at, row in enumerate(report.rows):
        whole = [s for s in spans if s["call"] == at and s["thread"] == WHOLE_CALL]
        assert len(whole) == row.calls
        for call in whole:
            inside = [s for s in own[at] if call["begin"] <= s["begin"] and s["end"] <= call["end"]]
            tasks = sorted((int(s["first"]), int(s["behind"])) for s in inside)
            edges = [edge for pair in tasks for edge in pair]
            assert not tasks or (edges[0], edges[-1]) == (0, int(call["behind"]))
            assert edges[1:-1:2] == edges[2:-1:2], "ranges follow each other"
        assert sum(len(ranges) for ranges in own.values()) == 0 or threads > 1
    if threads > 1 and graph.name != "recurrence":
        assert own, "nothing was shared"


def test_counters_change_no_bits() -> None:
    graph = network()
    x = {"x": np.random.default_rng(3).normal(size=(64, 96)).astype(np.float32)}
    found = []
    for counted in (False, True):
        for threads in (1, 2):
            backend = gt.Cpu(threads=threads)
            executable = backend.load(arrive(graph, Options(profile=counted), backend.stages(WALK)))
            state = gt.backends.state.State({v.name: v.initial for v in graph.variables})
            found.append(executable.bind(state).run(x)["y"].tobytes())
    assert len(set(found)) == 1


def test_an_artifact_on_disk_knows_what_it_counts() -> None:
    backend = gt.Cpu(threads=1)
    artifact = arrive(recurrence(), Options(profile=True), backend.stages(WALK))
    assert backend.read(artifact.to_bytes()).calls == artifact.calls
    assert {call.trips for call in artifact.calls} == {1, 9}


@pytest.mark.parametrize(("name", "counter"), [("host", "rdtsc"), ("neon", "cntvct_el0")])
def test_the_counter_is_one_that_programs_may_read(name: str, counter: str) -> None:
    target = Target.named(name)
    if name == "host" and target.architecture != "x86":
        counter = "cntvct_el0"
    text = append_event_text(target).replace("internal", "")
    assert counter in toolchain.assembly(text, target).lower()


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("interpreter", "runs no kernels whose times could be taken"),
        ("evaluator", "no loops|takes no times of kernels"),
    ],
)
def test_backends_without_counters_say_so(backend: str, message: str) -> None:
    with pytest.raises(BackendError, match=f"{message}.*use backend cpu"):
        profile(network(), backend_of(backend), 1)


def test_code_without_counters_gives_the_seconds_of_a_run_alone() -> None:
    backend = gt.Cpu(threads=1)
    graph = network()
    instance = backend.load(arrive(graph, Options(), backend.stages(WALK))).bind(
        gt.backends.state.State({v.name: v.initial for v in graph.variables})
    )
    found = instance.profile({"x": np.zeros((64, 96), np.float32)})
    assert found.seconds > 0
    assert (found.calls, len(found.spans)) == ((), 0)


# ---- what is made of it, with times that are known


def spans(*records: tuple[int, ...]) -> StepProfile:
    return StepProfile(("a", "b"), np.array(list(records), SPAN), 1e-6, 1.0)


RUN = spans(
    (WHOLE_CALL, 0, 100, 300, 0, 8), (WHOLE_CALL, 1, 310, 360, 0, 1), (WHOLE_CALL, 1, 370, 420, 0, 1),
    (WHOLE_CALL, 2, 90, 430, 0, 0), (0, 0, 110, 210, 0, 4), (1, 0, 120, 170, 4, 6), (1, 0, 170, 290, 6, 8),
)  # fmt: skip
LIMITS = MachineLimits(
    2, {"f32": 1e12, FUNCTIONS: 1e10}, (MemoryLevel("L1", 1000, 1e11), MemoryLevel("memory", 0, 1e10))
)
WORK = ((1, WorkCount({"f32": 100_000}, 0, 500, 300)), (2, WorkCount({"f32": 10}, 5, 4000, 1000)))
ORIGINS = (KernelProvenance("a", ("one", "two"), ("Conv one",)), KernelProvenance("b", (), ()))


def report() -> ProfileReport:
    timing = Timing(RUN, 1e-9, (3e-7, 2e-7), (4e-7, 3e-7))
    return ProfileReport("net", "cpu", rows_of(WORK, ORIGINS, RUN, 1e-9, LIMITS), timing, LIMITS)


def test_ticks_are_added_up_for_calls_and_threads() -> None:
    """What nobody else took, the first thread did."""
    assert ticks_of(RUN, 2, 2).tolist() == [[200, 100, 170], [100, 100, 0]]


def test_rows_say_how_much_of_the_machine_was_reached() -> None:
    first, second = report().rows
    assert first.seconds == pytest.approx(200e-9)
    assert first.busy == pytest.approx((0.5, 0.85))
    assert (first.bound, first.roof) == ("f32 arithmetic", pytest.approx(1e-7))
    assert first.reached == pytest.approx(0.5)
    assert (second.bound, second.roof) == ("memory", pytest.approx(5e-7)), "more bytes than L1 holds"
    assert second.reached == pytest.approx(2 * 5e-7 / 1e-7)
    assert (second.operations, second.bytes) == (20, 10_000)


def test_a_report_adds_up_layers_threads_and_the_cost_of_counters() -> None:
    found = report()
    assert found.seconds == pytest.approx(340e-9)
    assert found.layers() == pytest.approx({"one": 200e-9, "(no layer)": 100e-9})
    assert found.busy == pytest.approx((200 / 340, 170 / 340))
    assert found.timing.overhead == pytest.approx(0.5)
    assert "(+50.0%): the fastest of 2 each, on 2 threads" in found.summary()
    assert "1e+03 Gop/s of f32 arithmetic, 10 Gop/s of exp and the like; L1 100 GB/s, memory 10 GB/s" in found.summary()


def test_costly_functions_have_a_roof_of_their_own() -> None:
    assert LIMITS.roof(WorkCount({"f32": 1000}, 1000, 4, 4)) == (pytest.approx(1e-7), "exp and the like")


def test_a_table_has_a_row_for_each_kernel_and_for_the_rest() -> None:
    table = kernels(report())
    listed = [{name: cell for (name, _), cell in zip(table.columns, row, strict=True)} for row in table.rows]
    assert [row["kernel"] for row in listed] == ["a", "b", "between kernels"]
    assert [row["share"] for row in listed] == ["58.8%", "29.4%", "11.8%"]
    assert listed[0]["Gop/s"] == "500.0"
    assert listed[0]["busy"] == "50 85 %"
    assert listed[0]["layer"] == "one, two"


# ---- files


def test_a_trace_follows_the_format() -> None:
    """What Perfetto's importer of JSON asks for: phases, numbers in microseconds, events in a lane that nest."""
    trace = json.loads(trace_text(profile(network(), gt.Cpu().for_checks(3), 3)))
    events = trace["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert named == {0: "thread 0", 1: "thread 1", 2: "thread 2"}
    lanes = defaultdict(list)
    for event in events:
        assert event["pid"] == PROCESS
        assert isinstance(event["args"], dict)
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert {type(event["ts"]), type(event["dur"])} <= {int, float}
            assert min(event["ts"], event["dur"]) >= 0
            assert event["tid"] in named
            lanes[event["tid"]].append(event)
    for lane in lanes.values():
        open_: list[float] = []
        for event in sorted(lane, key=lambda e: (e["ts"], -e["dur"])):
            while open_ and open_[-1] <= event["ts"]:
                open_.pop()
            end = round(event["ts"] + event["dur"], 3)
            assert not open_ or end <= open_[-1], "an event that ends after the one around it"
            open_.append(end)
    (step,) = [event for event in events if event.get("cat") == "step"]
    assert step["ts"] == 0
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert {event["args"]["layer"] for event in kernels} >= {"first", "second"}


def test_a_trace_has_the_times_of_the_spans() -> None:
    events = [event for event in json.loads(trace_text(report()))["traceEvents"] if event["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events] == [
        ("a", 0, 0.01, 0.2), ("b", 0, 0.22, 0.05), ("b", 0, 0.28, 0.05), ("step", 0, 0.0, 0.34),
        ("a [0:4]", 0, 0.02, 0.1), ("a [4:6]", 1, 0.03, 0.05), ("a [6:8]", 1, 0.08, 0.12),
    ]  # fmt: skip


def test_json_has_all_numbers() -> None:
    found = json.loads(json_text(report()))
    assert found["kernels"][0]["operations_per_call"] == {"f32": 100_000}
    assert found["kernels"][1]["bytes_read_per_call"] == 4000
    assert found["machine"]["memory"][0] == {"name": "L1", "bytes": 1000, "bytes_per_second": 1e11}
    assert found["seconds_without_counters"] == [3e-7, 2e-7]


def test_a_page_has_a_plot_and_escapes_names() -> None:
    timing = Timing(RUN, 1e-9, (3e-7,), (4e-7,))
    named = (KernelProvenance("<a>", ("<b>",), ()), ORIGINS[1])
    page = html_page(ProfileReport("<net>", "cpu", rows_of(WORK, named, RUN, 1e-9, LIMITS), timing, LIMITS))
    assert "<svg" in page
    assert "&lt;a&gt;" in page
    assert "<a>" not in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "")


# ---- the machine


@pytest.mark.spread(1)
@pytest.mark.parametrize("target", runnable("scalar", "sse4", "avx2", "avx512"), ids=lambda target: target.name)
def test_the_machine_can_be_measured_on_every_target(target: Target) -> None:
    found = limits(target, 2, ["f32", "f64", "int", "i8", FUNCTIONS])
    assert all(rate > 0 for rate in (*found.rates.values(), *(level.rate for level in found.levels)))
    assert found.levels[-1] == MemoryLevel("memory", 0, found.levels[-1].rate)
    sizes = [level.size for level in found.levels[:-1]]
    assert sizes == sorted(sizes)
