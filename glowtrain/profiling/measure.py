"""Measure a compiled graph with and without counters, and the machine beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from glowtrain.backends.base import Backend, Instance, StepProfile
from glowtrain.backends.limits import FUNCTIONS
from glowtrain.backends.state import State
from glowtrain.compiler.service import build, enough_memory
from glowtrain.compiler.walk import WALK, walk
from glowtrain.errors import BackendError
from glowtrain.graph import Graph
from glowtrain.profiling.layers import KernelProvenance, provenance_of
from glowtrain.profiling.report import ProfileReport, Timing, rows_of
from glowtrain.program.analysis.work_count import WorkCount, trips_of, work_of
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Instruction
from glowtrain.stages import Options
from glowtrain.types import Array
from glowtrain.verification import random_inputs

RUNS = 20

Progress = Callable[[str], None]
"""Called with what is being done."""


def profile(
    graph: Graph, backend: Backend, runs: int = RUNS, inputs: Mapping[str, Array] | None = None,
    progress: Progress = lambda _: None, options: Options | None = None,
) -> ProfileReport:  # fmt: skip
    """Run a graph, on made-up inputs unless some are given, and say where the time of its fastest run goes.

    It is compiled with ``options``, which may hold a budget of memory. Raises :class:`BackendError` for a backend that
    takes no times of kernels, and :class:`MemoryBudgetError` where the budget cannot be kept.
    """
    progress("compiling")
    options = Options(facts=backend.facts) if options is None else options
    options = replace(options, pack_variables=not graph.updates)  # those of a step are shared, those of a model its own
    with enough_memory(graph):
        counted = _counted(graph, backend, options)
        plain = build(graph, backend, options).bind(_state(graph))
        progress("running")
        timing = timed(plain, counted.instance, random_inputs(graph) if inputs is None else inputs, runs)
    progress("measuring the machine")
    limits = backend.limits(sorted(counted.kinds))
    rows = rows_of(counted.work, counted.origins, timing.run, timing.tick, limits)
    return ProfileReport(graph.name, str(backend), rows, timing, limits)


@dataclass(frozen=True)
class _Counted:
    """A graph compiled with counters; for each of its calls, in order, its trips and work, and what it computes."""

    instance: Instance
    work: tuple[tuple[int, WorkCount], ...]
    origins: tuple[KernelProvenance, ...]

    @property
    def kinds(self) -> set[str]:
        """The kinds of operations that there are."""
        found = {kind for _, work in self.work for kind in work.operations}
        return found | ({FUNCTIONS} if any(work.functions for _, work in self.work) else set())


def _counted(graph: Graph, backend: Backend, options: Options) -> _Counted:
    passed = _Passed()
    for arrival in walk(graph, replace(options, profile=True), backend.stages(WALK)):
        passed.take(arrival.result)
    if passed.plan is None or passed.graph is None:
        raise BackendError(f"backend {backend} runs no kernels whose times could be taken; use backend cpu")
    calls = list(trips_of(passed.plan.program))
    leaves: list[Instruction] = [leaf for leaf, _ in calls]
    outputs = {buffer.name: name for name, buffer in passed.plan.program.outputs.items()}
    work = tuple((trips, work_of(leaf)) for leaf, trips in calls)
    instance = backend.load(passed.last).bind(_state(graph))
    return _Counted(instance, work, tuple(provenance_of(passed.graph, leaves, outputs)))


@dataclass
class _Passed:
    """What a walk passed through that is looked at again."""

    graph: Graph | None = None
    plan: Plan | None = None
    last: Any = field(default=None)

    def take(self, result: Any) -> None:
        """The result of a stage."""
        self.last = result
        if isinstance(result, Graph):
            self.graph = result
        elif isinstance(result, Plan):
            self.plan = result


def _state(graph: Graph) -> State:
    return State({variable.name: variable.source for variable in graph.variables})


def timed(plain: Instance, counted: Instance, inputs: Mapping[str, Array], runs: int) -> Timing:
    """The fastest of some runs without and with counters, in turns, so that what else runs slows both alike."""
    plain.profile(inputs)
    first = last = best = counted.profile(inputs)
    without, taken = list[float](), list[float]()
    for _ in range(runs):
        without.append(plain.profile(inputs).seconds)
        last = counted.profile(inputs)
        taken.append(last.seconds)
        best = min(best, last, key=lambda run: run.seconds)
    return Timing(best, _tick(first, last), tuple(without), tuple(taken))


def _tick(first: StepProfile, last: StepProfile) -> float:
    """The seconds of a tick of the counter: by the clock, between the ends of two runs."""
    return (last.ended - first.ended) / float(last.whole["end"] - first.whole["end"])
