"""The ladder: a graph at ever later stages of the compiler, each compared with the one in double precision.

    reference (f64) - interpreter - [integers] - optimized - lowered - program - plan (in the arena) - compiled
    - threads - targets

The rungs after the second are the stages of the walk (:mod:`glowtrain.compiler.walk`) that change something; minor ones
are looked at where the next one differs. Where a quantized graph can be computed in integers, that graph is a rung, and
the reference of those after it: a sum of integers is exact, so what is dequantized from a wrong integer is far outside
of what rounding explains.

On several threads, over which whatever can be shared out is, code must give the very bits that it gives on one; and so
must code for another kind of processor that runs here (:meth:`Backend.bit_equal`).

A result may be as far from the reference as the interpreter's own rounding explains, and a few roundings more for
another order of summation. The report names the first rung that differs, and the node or instruction where it begins
to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from glowtrain.backends.base import Artifact, Backend, Instance
from glowtrain.backends.discovery import backend_of
from glowtrain.compiler.walk import WALK, Arrival, after, arrive, take
from glowtrain.errors import BackendError, GlowtrainError, InputError, MemoryBudgetError
from glowtrain.graph import Graph, Node, Value
from glowtrain.loops import Buffer
from glowtrain.lower.lower import values_by_buffer
from glowtrain.modes.variables import unknown_variables
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.interpret.storage import Memory
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Instruction, Program
from glowtrain.stages import Options
from glowtrain.types import Array
from glowtrain.verification.exact import (
    Arrays,
    ReferenceRun,
    coarse_values,
    distance,
    local_error,
    longest_reduction,
    ordered,
    results_of,
    run_in_both,
    same_bits,
)
from glowtrain.verification.native import (
    in_arena,
    named,
    other_on_threads,
    results_loaded,
    run_loaded,
    unshared,
)
from glowtrain.verification.report import Rung, VerificationReport

_Result = TypeVar("_Result")

CLEAR = 1000.0
"""An intermediate value differs where its error is above this, or above the square root of the worst result's error."""


def _silent(stage: str) -> None:
    """No progress is told."""


def ladder(
    graph: Graph,
    inputs: Arrays,
    state: Arrays | None = None,
    backend: str | Backend = "cpu",
    *,
    options: Options | None = None,
    progress: Callable[[str], None] = _silent,
) -> VerificationReport:
    """Run a graph once on every rung of a backend's walk, for inputs by name and variables by name (initial values
    where ``state`` has none).

    Every rung's outputs and new variables are compared with those of the reference in f64. ``options``: what it is
    compiled with, by default as :func:`glowtrain.compile` does; with ``residuals``, gradients may be as far off as
    rounding to bf16 explains. ``progress`` is called with the name of each stage when it begins. Raises
    :class:`InputError` for values of variables that there are not, :class:`BackendError` for a backend whose stages do
    not end with an artifact, :class:`MemoryBudgetError` for a budget that cannot be kept.
    """
    if problem := unknown_variables(graph, state or ()):
        raise InputError(f"state is for other variables: {problem}")
    values = {**{v.name: v.initial for v in graph.variables}, **(state or {})}
    resolved = backend_of(backend)
    given = options or Options(facts=resolved.facts, pack_variables=True)
    return _Climb(graph, inputs, values, resolved, replace(given, check=True), progress).report()


def random_inputs(graph: Graph, seed: int = 0, high: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Inputs to verify with: normally distributed floats, integers from 0 to ``high`` - 1 (by name; 2 unless given).

    Single floats, which are rates of one kind or another, lie between 0.01 and 0.1.
    """
    random = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for value in graph.inputs:
        if value.dtype.is_float:
            drawn = random.normal(size=value.shape) if value.rank else random.uniform(0.01, 0.1)
            arrays[value.name] = np.asarray(drawn).astype(value.dtype.numpy)
        else:
            top = (high or {}).get(value.name, 2)
            arrays[value.name] = np.asarray(random.integers(0, top, value.shape)).astype(value.dtype.numpy)
    return arrays


@dataclass
class _Climb:
    graph: Graph
    inputs: Arrays
    state: Arrays
    backend: Backend
    options: Options
    begins: Callable[[str], None]
    rungs: list[Rung] = field(default_factory=list)
    place: str = ""
    passed: list[Arrival] = field(default_factory=list)
    """Minor stages since the last rung."""
    program: Program | None = None
    plan: Plan | None = None
    """What the present rung runs, from the lowered one on."""
    values: dict[str, Value] = field(default_factory=dict)
    """The value of the latest graph that each buffer of the lowered program holds, by the buffer's name."""

    def report(self) -> VerificationReport:
        with np.errstate(all="ignore"):
            self._climb()
        return VerificationReport(
            self.graph.name, len(self.graph.outputs) + len(self.graph.updates), tuple(self.rungs), self.place
        )

    def _climb(self) -> None:
        start = time.perf_counter()
        self.begins("reference")
        self.base = self.reference = self._reference(self.graph)
        self.rungs.append(Rung("reference", time.perf_counter() - start))
        self._interpreter()
        subject: Any = self.graph
        for stage in self.backend.stages(WALK):
            self.begins(stage.name)
            arrival = self._try(stage.name, partial(take, subject, self.options, stage))
            if arrival is None:
                return
            if arrival.result is not subject or (self.passed and not stage.minor):
                self._arrived(arrival)
            subject = arrival.result
        if not isinstance(subject, Artifact):
            raise BackendError(
                f"backend {self.backend.name}: its last stage makes no artifact but a {type(subject).__name__}, which "
                "nothing runs"
            )

    def _reference(self, graph: Graph) -> ReferenceRun:
        reference = run_in_both(graph, self.inputs, self.state)
        return replace(reference, coarse=coarse_values(graph, self.options))

    def _arrived(self, arrival: Arrival) -> None:
        """A rung; where it differs, the minor stages before it as well."""
        if arrival.stage.minor:
            self.passed.append(arrival)
            return
        before, number = list(self.rungs), self.place
        self._rung(arrival)
        if self.passed and not self.rungs[-1].ok and all(rung.ok for rung in before):
            self.rungs, self.place = before, number
            for each in (*self.passed, arrival):
                self._rung(each)
        self.passed = []

    # ---- rungs

    def _interpreter(self) -> None:
        """Node by node, on the interpreter's own operands, so that no earlier rounding counts."""
        start, worst, at = time.perf_counter(), 0.0, ""
        self.begins("interpreter")
        for node in self.graph.nodes:
            error = local_error(node, self.base.values)
            if error > 1 and not self.place:
                self.place = f"node {_describe(node)}"
            if error > worst or not error <= 1:
                worst, at = error, _describe(node)
        self.rungs.append(Rung("interpreter", time.perf_counter() - start, worst, at))

    def _rung(self, arrival: Arrival) -> None:
        self._started = time.perf_counter()
        match arrival.result:
            case Graph():
                self._graph(arrival)
            case Program() | Plan():
                self._program(arrival)
            case Artifact():
                self._compiled(arrival)

    def _graph(self, arrival: Arrival) -> None:
        reference = self._reference(arrival.result)
        results = _results(arrival.result, reference.values)
        self._compare(arrival.stage.name, results, partial(self._first_value, reference))
        self.reference = reference
        if not arrival.stage.exact:
            self.graph, self.base = arrival.result, reference

    def _program(self, arrival: Arrival) -> None:
        if self.program is None:
            self._lowered()
        result = arrival.result
        self.program, self.plan = (result.program, result) if isinstance(result, Plan) else (result, None)
        found = self._try(arrival.stage.name, self._evaluated)
        if found is not None:
            self._compare(arrival.stage.name, found, self._first_instruction)

    def _lowered(self) -> None:
        """From here on buffers hold the values of the latest graph, which a minor stage may have made."""
        graphs = [each.result for each in self.passed if isinstance(each.result, Graph)]
        if graphs:
            self.reference = self._reference(graphs[-1])
        self.values = values_by_buffer(self.reference.graph)

    def _evaluated(self) -> Arrays:
        assert self.program is not None
        outputs, state = evaluate(self.program, self.inputs, self.state, plan=self.plan)
        return named(outputs, {variable: state[variable] for variable in self.program.updates})

    def _compiled(self, arrival: Arrival) -> None:
        given = self.backend, arrival.result, self.graph, self.inputs, self.state
        found = self._try(arrival.stage.name, lambda: run_loaded(*given))
        if found is not None:
            outputs, variables, instance = found
            self._compare(arrival.stage.name, named(outputs, variables), partial(self._first_native, instance))
        if self.backend.threaded and self.rungs[-1].ok:
            self._threads()
        if self.rungs[-1].ok:
            for words, other in list(self.backend.bit_equal().items())[-1:]:
                self._target(words, other)

    def _threads(self) -> None:
        """The same code on one thread and on several."""
        self.begins("threads")
        started = time.perf_counter()
        alone = self.backend.for_checks(1)
        artifact = self._try("threads", lambda: self._artifact(alone))
        if artifact is None:
            return
        problem = other_on_threads(alone, artifact, self.graph, self.inputs, self.state)
        self.rungs.append(Rung("threads", time.perf_counter() - started, problem=problem))

    def _target(self, words: str, other: Backend) -> None:
        """Code for another kind of processor."""
        self.begins("targets")
        started = time.perf_counter()
        found = self._try("targets", lambda: (self._run(self.backend), self._run(other)))
        if found is None:
            return
        own, others = found
        differs = [name for name in own if not same_bits(own[name], others[name])]
        problem = f"{differs[0]} has other bits in code for {words}" if differs else ""
        self.rungs.append(Rung("targets", time.perf_counter() - started, problem=problem))

    def _run(self, backend: Backend) -> Arrays:
        """What a backend's code leaves."""
        return results_loaded(backend, self._artifact(backend), self.graph, self.inputs, self.state)

    def _artifact(self, backend: Backend) -> Artifact:
        """What a backend makes of the plan, or of the graph where there is none."""
        stages = backend.stages(WALK)
        subject = self.graph if self.plan is None else self.plan
        artifact: Artifact = arrive(subject, self.options, stages if self.plan is None else after("plan", stages))
        return artifact

    def _try(self, name: str, run: Callable[[], _Result]) -> _Result | None:
        """The result, or a bad rung that says what is not well formed."""
        started = time.perf_counter()
        try:
            return run()
        except MemoryBudgetError:
            raise
        except GlowtrainError as error:
            self.rungs.append(Rung(name, time.perf_counter() - started, math.inf, problem=str(error)))
            return None

    def _compare(self, name: str, found: Arrays, locate: Callable[[float], str]) -> None:
        errors = {result: self._error(value, found[result]) for result, value in results_of(self.graph)}
        worst = max(errors, key=lambda result: ordered(errors[result]), default="")
        rung = Rung(name, time.perf_counter() - self._started, errors.get(worst, 0.0), worst)
        if not rung.ok and not self.place and all(before.ok for before in self.rungs):
            clear = min(CLEAR, math.sqrt(rung.error)) if rung.error == rung.error else CLEAR
            self.place = locate(clear) or self._writer(worst)
        self.rungs.append(rung)

    def _error(self, value: Value, found: Array) -> float:
        error = self.base.error(value, found)
        return error if error <= 1 else min(error, self.base.beside_a_kink(value, found), key=ordered)

    def _writer(self, result: str) -> str:
        """The instruction that writes a result, where nothing before it differs."""
        kind, _, name = result.partition(" ")
        program = self.program
        if program is None:
            return ""
        buffer = (program.outputs if kind == "output" else program.variables)[name]
        writers = [instruction for instruction in program.instructions if buffer in instruction.writes]
        return _instruction(writers[-1], buffer) if writers else ""

    # ---- where a rung begins to differ (``clear``: the error of an intermediate value that counts)

    def _first_value(self, reference: ReferenceRun, clear: float) -> str:
        """The first value of a later graph that differs from the one of its name."""
        named = {value.name: value for node in self.graph.nodes for value in node.outputs if value.name}
        for node in reference.graph.nodes:
            for value in node.outputs:
                old = named.get(value.name)
                if old is None or old.type != value.type:
                    continue
                if not self.base.error(old, reference.values[value]) <= clear:
                    return f"value {value.name} of node {_describe(node)}"
        return ""

    def _first_instruction(self, clear: float) -> str:
        assert self.program is not None
        found: list[str] = []

        def watch(instruction: Instruction, memory: Memory) -> None:
            for buffer in () if found else instruction.writes:
                value = self._value(buffer)
                if value is not None and not self.reference.error(value, memory.read(buffer)) <= clear:
                    found.append(_instruction(instruction, buffer))

        evaluate(self.program, self.inputs, self.state, plan=self.plan, watch=watch)
        return found[0] if found else ""

    def _first_native(self, instance: Instance, clear: float) -> str:
        """Run the native code over an arena in which nothing is overwritten, and look through it in order."""
        if self.program is None or self.plan is None or instance.arena is None:
            return ""
        plan = unshared(self.program)
        artifact = arrive(plan, self.options, after("plan", self.backend.stages(WALK)))
        _, _, apart = run_loaded(self.backend, artifact, self.graph, self.inputs, self.state)
        assert apart.arena is not None
        length = longest_reduction(self.reference.graph)
        for buffer, (instruction, array) in _final_contents(self.program, self.inputs, self.state).items():
            native, value = in_arena(apart.arena, plan, buffer), self._value(buffer)
            error = distance(native, array, array, length) if value is None else self.reference.error(value, native)
            if not error <= clear:
                return _instruction(instruction, buffer)
        return ""

    def _value(self, buffer: Buffer) -> Value | None:
        """The value that an activation holds, if it is one of the graph's."""
        value = self.values.get(buffer.name) if buffer.kind == "activation" else None
        return value if value in self.reference.values else None


def _results(graph: Graph, values: Mapping[Value, Array]) -> Arrays:
    return {name: values[value] for name, value in results_of(graph)}


def _describe(node: Node) -> str:
    operands = ", ".join("-" if value is None else value.name or str(value.type) for value in node.inputs)
    return f"{node.operator}({operands})" + (f" ({node.name})" if node.name else "")


def _instruction(instruction: Instruction, buffer: Buffer) -> str:
    return f"{type(instruction).__name__.lower()} {instruction.name}, which writes {buffer.name}: {buffer.type}"


def _final_contents(program: Program, inputs: Arrays, state: Arrays) -> dict[Buffer, tuple[Instruction, Array]]:
    """Each activation as the last instruction that writes it leaves it, and that instruction."""
    contents: dict[Buffer, tuple[Instruction, Array]] = {}

    def watch(instruction: Instruction, memory: Memory) -> None:
        for buffer in instruction.writes:
            if buffer.kind == "activation":
                contents[buffer] = instruction, memory.read(buffer)

    evaluate(program, inputs, state, watch=watch)
    return contents
