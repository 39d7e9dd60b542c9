"""The ladder: a graph run in ever more compiled forms, each compared with the one in double precision.

    reference (f64) - interpreter - [integers] - optimized - lowered - fused - planned (in the arena) - compiled

Where a quantized graph can be computed in integers, that form is a rung, and the reference of those after it: a sum of
integers is exact, so what is dequantized from a wrong integer is far outside of what rounding explains.

A result may be as far from the reference as the interpreter's own rounding explains, and a few roundings more for
another order of summation. The report names the first rung that differs, and the node or instruction where it begins
to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from glowtrain.compiler import scheduled
from glowtrain.errors import GlowtrainError, InputError
from glowtrain.graph import Graph, Node, Value
from glowtrain.loops import Buffer
from glowtrain.lower.expand import expand
from glowtrain.lower.lower import lower_with_buffers
from glowtrain.modes.variables import unknown_variables
from glowtrain.optimize.integer import in_integers
from glowtrain.optimize.pipeline import optimize
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.interpret.storage import Memory
from glowtrain.program.memory.plan import Plan, plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.program import Instruction, Program
from glowtrain.program.verify import verify
from glowtrain.types import Array
from glowtrain.verification.exact import (
    Arrays,
    Known,
    distance,
    local_error,
    longest_reduction,
    ordered,
    results_of,
    run_in_both,
)
from glowtrain.verification.native import in_arena, run_native, unshared
from glowtrain.verification.report import Report, Rung

_Result = TypeVar("_Result")

CLEAR = 1000.0
"""An intermediate value differs where its error is above this, or above the square root of the worst result's error."""


def ladder(graph: Graph, inputs: Arrays, state: Arrays | None = None) -> Report:
    """Run a graph once on every rung, for inputs by name and variables by name (initial values where ``state`` has
    none).

    Every rung's outputs and new variables are compared with those of the reference in f64. Raises
    :class:`InputError` for values of variables that there are not.
    """
    if problem := unknown_variables(graph, state or ()):
        raise InputError(f"state is for other variables: {problem}")
    climb = _Climb(graph, inputs, {**{v.name: v.initial for v in graph.variables}, **(state or {})})
    return climb.report()


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
    rungs: list[Rung] = field(default_factory=list)
    place: str = ""
    program: Program | None = None
    """What the present rung runs, from the lowered one on."""

    def report(self) -> Report:
        with np.errstate(all="ignore"):
            self._climb()
        return Report(self.graph.name, len(self.graph.outputs) + len(self.graph.updates), tuple(self.rungs), self.place)

    def _climb(self) -> None:
        start = time.perf_counter()
        self.base = run_in_both(self.graph, self.inputs, self.state)
        self.rungs.append(Rung("reference", time.perf_counter() - start))
        self._interpreter()
        self._integers()
        optimized = self._try("optimized", lambda: optimize(expand(self.graph), check=True))
        if optimized is None:
            return
        known = run_in_both(optimized, self.inputs, self.state)
        self._compare("optimized", _results(optimized, known.values), lambda clear: self._first_value(known, clear))
        self._programs(optimized, known)

    def _integers(self) -> None:
        """The graph as backends get it; where it differs from the one given, it is what they are compared with."""
        integers = in_integers(self.graph)
        if integers is self.graph:
            return
        self._started = time.perf_counter()
        known = run_in_both(integers, self.inputs, self.state)
        self._compare("integers", _results(integers, known.values), lambda clear: self._first_value(known, clear))
        self.graph, self.base = integers, known

    def _programs(self, graph: Graph, known: Known) -> None:
        lowered, buffers = lower_with_buffers(graph)
        values = {buffer: value for value, buffer in buffers.items() if value in known.values}
        self._program("lowered", lowered, None, known, values)
        fused = self._try("fused", lambda: scheduled(lowered, check=True))
        if fused is None:
            return
        self._program("fused", fused, None, known, values)
        planned = plan(fused)
        self._program("planned", fused, planned, known, values)
        native = self._try("compiled", lambda: _native(graph, planned, self.inputs, self.state))
        if native is not None:
            self._compare("compiled", native, lambda clear: self._first_native(fused, known, values, clear))

    # ---- rungs

    def _interpreter(self) -> None:
        """Node by node, on the interpreter's own operands, so that no earlier rounding counts."""
        start, worst, at = time.perf_counter(), 0.0, ""
        for node in self.graph.nodes:
            error = local_error(node, self.base.values)
            if error > 1 and not self.place:
                self.place = f"node {_describe(node)}"
            if error > worst or not error <= 1:
                worst, at = error, _describe(node)
        self.rungs.append(Rung("interpreter", time.perf_counter() - start, worst, at))

    def _program(
        self, name: str, program: Program, planned: Plan | None, known: Known, values: Mapping[Buffer, Value]
    ) -> None:
        self.program = program

        def run() -> Arrays:
            if planned is None:
                verify(program)
            else:
                verify_plan(planned)
            outputs, state = evaluate(program, self.inputs, self.state, plan=planned)
            return _named(outputs, {variable: state[variable] for variable in program.updates})

        found = self._try(name, run)
        if found is not None:
            self._compare(name, found, lambda clear: self._first_instruction(program, planned, known, values, clear))

    def _try(self, name: str, run: Callable[[], _Result]) -> _Result | None:
        """The result, or a bad rung that says what is not well formed."""
        self._started = time.perf_counter()
        try:
            return run()
        except GlowtrainError as error:
            self.rungs.append(Rung(name, time.perf_counter() - self._started, math.inf, problem=str(error)))
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

    def _first_value(self, known: Known, clear: float) -> str:
        """The first value of the optimized graph that differs from the one of its name."""
        named = {value.name: value for node in self.graph.nodes for value in node.outputs if value.name}
        for node in known.graph.nodes:
            for value in node.outputs:
                old = named.get(value.name)
                if (
                    old is not None
                    and old.type == value.type
                    and not self.base.error(old, known.values[value]) <= clear
                ):
                    return f"value {value.name} of node {_describe(node)}"
        return ""

    def _first_instruction(
        self, program: Program, planned: Plan | None, known: Known, values: Mapping[Buffer, Value], clear: float
    ) -> str:
        found: list[str] = []

        def watch(instruction: Instruction, memory: Memory) -> None:
            for buffer in () if found else instruction.writes:
                value = values.get(buffer)
                if (
                    value is not None
                    and buffer.kind == "activation"
                    and not known.error(value, memory.read(buffer)) <= clear
                ):
                    found.append(_instruction(instruction, buffer))

        evaluate(program, self.inputs, self.state, plan=planned, watch=watch)
        return found[0] if found else ""

    def _first_native(self, program: Program, known: Known, values: Mapping[Buffer, Value], clear: float) -> str:
        """Run the native code over an arena in which nothing is overwritten, and look through it in order."""
        _, _, instance = run_native(known.graph, unshared(program), self.inputs, self.state)
        for buffer, (instruction, array) in _final_contents(program, self.inputs, self.state).items():
            native, value = in_arena(instance, buffer), values.get(buffer)
            length = longest_reduction(known.graph)
            error = distance(native, array, array, length) if value is None else known.error(value, native)
            if not error <= clear:
                return _instruction(instruction, buffer)
        return ""


def _named(outputs: Arrays, variables: Arrays) -> Arrays:
    """Results by what they are called in reports."""
    return {**{f"output {n}": a for n, a in outputs.items()}, **{f"variable {n}": a for n, a in variables.items()}}


def _native(graph: Graph, planned: Plan, inputs: Arrays, state: Arrays) -> Arrays:
    outputs, variables, _ = run_native(graph, planned, inputs, state)
    return _named(outputs, variables)


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
