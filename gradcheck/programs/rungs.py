"""A random training step on every rung of the walk: interpreter, optimized, lowered, fused, planned, native code.

Native code takes a few steps, each from the state that the last one left; the other rungs take the first of them.
Expected is the interpreter's result with all floats in f64; how far the interpreter is off in the program's own types
says how much rounding is natural.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain.backends.base import Artifact, Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.interpreter import evaluate
from glowtrain.backends.state import State
from glowtrain.compiler.walk import WALK, after, arrive, walk
from glowtrain.errors import MemoryBudgetError
from glowtrain.gradcheck.operators import ladder
from glowtrain.gradcheck.operators.differences import check_directions, check_gradient, compared
from glowtrain.gradcheck.operators.oracles import MISTAKES, failure
from glowtrain.gradcheck.programs.case import Case
from glowtrain.gradcheck.programs.options import DEFAULTS, Choice, options_for
from glowtrain.gradcheck.report.report import Measure
from glowtrain.graph import Graph, Value
from glowtrain.graph.retype import widened
from glowtrain.program.interpret.evaluate import evaluate as run_program
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Program
from glowtrain.types import Array, f64
from glowtrain.verification.exact import (
    EPSILON,
    ROUNDINGS,
    Arrays,
    ReferenceRun,
    RoundingBound,
    bound,
    coarse_values,
    longest_reduction,
    same_bits,
)
from glowtrain.verification.native import THREADS

STEPS = 3
"""Steps that native code trains: each reads what the last one has left."""
DRIFT = 1600.0
"""How much more than one operator's rounding a whole step in f64 may be off by, where nothing says what is natural."""
DEPTH = 8
"""How many operations back cancellation is allowed for."""

Runner = Callable[[Arrays], dict[str, Array]]
"""A step: results and new state by name, for inputs by name; the state is kept."""


def check_case(case: Case, oracles: Sequence[str], seed: int = 0, choice: Choice = DEFAULTS) -> Iterator[Measure]:
    """The measures of some of :data:`PROGRAM_ORACLES` for a step that is compiled with the options of ``choice``; an
    oracle that raises counts as failed."""
    rungs = Rungs(case, choice)
    for oracle in oracles:
        try:
            yield from PROGRAM_ORACLES[oracle](rungs, np.random.default_rng(seed))
        except MemoryBudgetError as error:
            yield Measure(oracle, detail=str(error), kind="absent")
        except MISTAKES as error:
            yield failure(oracle, error)


class Rungs:
    """The stages of the compiler for a case's step, each made when it is first asked for, and verified."""

    def __init__(self, case: Case, choice: Choice = DEFAULTS, backend: str | Backend = "cpu") -> None:
        self.case = case
        self.backend = backend_of(backend)
        self.options = options_for(choice, case.step, self.backend.facts)
        self._walk = walk(case.step, self.options, self.backend.stages(WALK))
        self._results: dict[str, Any] = {}
        self._error: Exception | None = None

    def at(self, stage: str) -> Any:
        """What stands at a stage. Raises what a stage before it raised."""
        while stage not in self._results:
            if self._error is not None:
                raise self._error
            try:
                arrival = next(self._walk)
            except MISTAKES as error:
                self._error = error
                raise
            self._results[arrival.stage.name] = arrival.result
        return self._results[stage]

    @property
    def graph(self) -> Graph:
        """The step as it is compiled: where something is quantized, in integers. It is what later stages must give."""
        graph: Graph = self.at("integers")
        return graph

    @property
    def plan(self) -> Plan:
        plan: Plan = self.at("plan")
        return plan

    @cached_property
    def expected(self) -> list[ReferenceRun]:
        """Every value after each step, in the program's own types and in f64."""
        own, coarse = interpreted(self.graph, self.case.feeds), coarse_values(self.graph, self.options)
        if all(value.dtype == f64 or not value.dtype.is_float for value in _values(self.graph)):
            return [ReferenceRun(self.graph, values, values, feeds, state, coarse) for values, feeds, state in own]
        wide = widened(self.graph)
        exact = interpreted(wide.graph, {v.name: _as(self.case.feeds[v.name], v) for v in wide.graph.inputs})
        steps = []
        for (values, feeds, state), (reference, _, _) in zip(own, exact, strict=True):
            same = {old: reference[new] for old, new in wide.values.items() if new in reference}
            steps.append(ReferenceRun(self.graph, values, same, feeds, state, coarse))
        return steps

    @cached_property
    def bounds(self) -> list[dict[str, RoundingBound]]:
        """What outputs and new values of variables may be after each step, by name."""
        names, length = named(self.graph), longest_reduction(self.graph)
        coarsest = {name: _coarsest(value) for name, value in names.items()}
        return [
            {
                name: within(value, reference, length, max(coarsest[name], reference.coarsest(value)))
                for name, value in names.items()
            }
            for reference in self.expected
        ]

    @cached_property
    def unplanned(self) -> dict[str, Array]:
        """What a step of the finished program gives, every buffer on its own."""
        return self.evaluated(self.at("program"))

    def evaluated(self, program: Program, planned: Plan | None = None) -> dict[str, Array]:
        """What a step gives in the evaluator, over the plan's arena if there is one."""
        state = {variable.name: variable.initial for variable in self.graph.variables}
        found, after = run_program(program, self.case.feeds, state, planned)
        return {**state, **found, **after}  # a variable that nothing needs is not in the program

    def compare(self, oracle: str, run: Runner, steps: int = 1) -> Iterator[Measure]:
        """What a form gives in each of the steps, against what is expected."""
        names = named(self.graph)
        for number, allowed in enumerate(self.bounds[:steps]):
            found = run(self.case.feeds)
            for name, bounds in allowed.items():
                label = f"step {number}, {name}"
                measure = compared(oracle, found[name], bounds.expected, bounds.tolerance, label)
                if measure.ratio > 1 and self.expected[number].beside_a_kink(names[name], found[name]) <= 1:
                    measure = Measure(oracle, detail=f"{label}: a kink is near", kind="kink")
                yield measure


def named(graph: Graph) -> dict[str, Value]:
    """Outputs and new values of variables, by name."""
    return {**graph.outputs, **{variable.name: value for variable, value in graph.updates.items()}}


def within(value: Value, reference: ReferenceRun, length: float, coarsest: float) -> RoundingBound:
    """How far a result may be from its value in f64. ``coarsest``: the largest epsilon of what it is computed from."""
    natural, exact = reference.values[value], reference.exact[value]
    size = ladder.scale(value, reference.exact, DEPTH)
    allowed = bound(natural, exact, length, size)
    if coarsest == EPSILON["f64"]:
        return RoundingBound(allowed.expected, DRIFT * bound(natural, exact, length, size + 1e-6).tolerance)
    if coarsest <= EPSILON.get(value.dtype.name, 1.0):
        return allowed
    return RoundingBound(allowed.expected, allowed.tolerance + ROUNDINGS * math.sqrt(length) * coarsest * size)


def _coarsest(value: Value) -> float:
    """The largest epsilon of a value and of all that it is computed from."""
    floats = (part.dtype.name for part in _values(Graph((), {"y": value})) if part.dtype.is_float)
    return max((EPSILON[name] for name in floats), default=0.0)


def interpreted(graph: Graph, feeds: Arrays) -> Iterator[tuple[dict[Value, Array], Arrays, Arrays]]:
    """Every value in each of the steps in the interpreter, with the inputs and the state before it."""
    state = {variable.name: variable.initial for variable in graph.variables}
    for _ in range(STEPS):
        reference, before = evaluate(graph, feeds, state), dict(state)
        state.update({variable.name: reference[value] for variable, value in graph.updates.items()})
        yield reference, feeds, before


def _values(graph: Graph) -> Iterator[Value]:
    """All values, those in bodies too."""
    yield from graph.leaves
    for node in graph.nodes:
        yield from node.outputs
        for body in node.operator.attributes().values():
            if isinstance(body, Graph):
                yield from _values(body)


def _as(array: Array, value: Value) -> Array:
    return np.asarray(array).astype(value.dtype.numpy)


def _gradient(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """The gradient of the losses against differences: along random directions of all inputs, and where those do not
    agree, or meet a kink, for each input."""
    probe = rungs.case.probe
    found = list(check_directions(probe, random, "gradient"))
    if any(measure.status != "passed" for measure in found):
        found = list(check_gradient(probe, random, "gradient", full=8))
    yield from found


def _integers(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """A step with what is quantized in integers, against the step as it was given."""
    given, graph = rungs.case.step, rungs.graph
    if graph is given or rungs.options.fixed_point:  # which may be one unit off
        return
    found, reference = evaluate(graph, rungs.case.feeds), evaluate(given, rungs.case.feeds)
    for name, value in named(given).items():
        tolerance = ladder.exact_tolerance(value, reference, given)
        yield compared("integers", found[named(graph)[name]], reference[value], tolerance, name)


def _optimized(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """A step of the optimized graph in the interpreter."""
    graph: Graph = rungs.at("optimized")
    reference, names = evaluate(graph, rungs.case.feeds), named(graph)
    yield from rungs.compare("optimized", lambda feeds: {name: reference[value] for name, value in names.items()})


def _lowered(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """A step of the program as it is lowered, in the evaluator."""
    found = rungs.evaluated(rungs.at("lowered"))
    yield from rungs.compare("lowered", lambda feeds: found)


def _program(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """A step of the program as it is laid out, fused and scheduled, every buffer on its own."""
    yield from rungs.compare("program", lambda feeds: rungs.unplanned)


def _planned(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """A step of the planned program in its arena: the same bits as without the plan."""
    found = rungs.evaluated(rungs.plan.program, rungs.plan)
    yield from rungs.compare("plan", lambda feeds: found)
    for name, array in rungs.unplanned.items():
        if found[name].tobytes() != array.tobytes():
            yield Measure("plan", np.inf, np.inf, f"{name}: other bits in the arena than without")


def _compiled(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """Steps of what the backend compiled; one where gradients are rounded, of which the next begins elsewhere."""
    steps = STEPS if rungs.options.residuals is None else 1
    yield from rungs.compare("compiled", _stepping(rungs.backend, rungs.at("compiled"), rungs), steps)


def _stepping(backend: Backend, artifact: Artifact, rungs: Rungs) -> Runner:
    state = State({variable.name: variable.initial for variable in rungs.graph.variables})
    instance = backend.load(artifact).bind(state)

    def run(feeds: Arrays) -> dict[str, Array]:
        arrays = {name: np.asarray(array, order="C") for name, array in feeds.items()}
        return {**instance.run(arrays), **{name: state.read(name) for name in state.names}}

    return run


def _threads(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """Steps of native code on several threads, which share out whatever can be: the same bits as on one."""
    alone = rungs.backend.for_checks(1)
    artifact = arrive(rungs.plan, rungs.options, after("plan", alone.stages(WALK)))
    wanted = _steps(alone, artifact, rungs)
    for threads in THREADS:
        found = _steps(rungs.backend.for_checks(threads), artifact, rungs)
        for number, (one, several) in enumerate(zip(wanted, found, strict=True), 1):
            for name, array in one.items():
                error = 0.0 if several[name].tobytes() == array.tobytes() else np.inf
                yield Measure("threads", 0.0, error, f"{name} after step {number} on {threads} threads")


def _targets(rungs: Rungs, random: np.random.Generator) -> Iterator[Measure]:
    """Steps of native code for other kinds of processors that run here: the same bits."""
    wanted = _steps(rungs.backend, rungs.at("compiled"), rungs)
    for words, other in rungs.backend.bit_equal().items():
        artifact = arrive(rungs.plan, rungs.options, after("plan", other.stages(WALK)))
        for number, (own, others) in enumerate(zip(wanted, _steps(other, artifact, rungs), strict=True), 1):
            for name, array in own.items():
                error = 0.0 if same_bits(others[name], array) else np.inf
                yield Measure("targets", 0.0, error, f"{name} after step {number} in code for {words}")


def _steps(backend: Backend, artifact: Artifact, rungs: Rungs) -> list[dict[str, Array]]:
    """What each of some steps gives, and leaves in the variables."""
    run = _stepping(backend, artifact, rungs)
    return [{name: array.copy() for name, array in run(rungs.case.feeds).items()} for _ in range(STEPS)]


PROGRAM_ORACLES: dict[str, Callable[[Rungs, np.random.Generator], Iterator[Measure]]] = {
    "gradient": _gradient,
    "integers": _integers,
    "optimized": _optimized,
    "lowered": _lowered,
    "program": _program,
    "plan": _planned,
    "compiled": _compiled,
    "threads": _threads,
    "targets": _targets,
}
"""The oracles for random programs: the gradient, and every rung."""
