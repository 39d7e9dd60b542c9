"""The ladder: a graph run in ever more compiled forms, each compared with the one in double precision.

    reference (f64) - interpreter - optimized - lowered - fused - planned (in the arena) - compiled

A result may be as far from the reference as the interpreter's own rounding explains, and a few roundings more for
another order of summation. The report names the first rung that differs, and the node or instruction where it begins
to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from rich.table import Table

from glowtrain.backends import interpreter
from glowtrain.backends.base import State, check_inputs
from glowtrain.backends.cpu.backend import NativeGraph, NativeInstance
from glowtrain.backends.cpu.target import Target
from glowtrain.errors import GlowtrainError, VerificationError
from glowtrain.graph import Graph, Node, Value
from glowtrain.graph.retype import in_f64, widened
from glowtrain.loops import Buffer
from glowtrain.lower.expand import expand
from glowtrain.lower.lower import lower_with_buffers
from glowtrain.optimize.pipeline import optimize
from glowtrain.program.evaluate import evaluate
from glowtrain.program.fuse import fuse
from glowtrain.program.layout import assign_layouts
from glowtrain.program.memory import Memory
from glowtrain.program.plan import ALIGNMENT, Plan, plan
from glowtrain.program.program import Instruction, Program
from glowtrain.program.schedule import schedule
from glowtrain.program.verify import verify, verify_plan
from glowtrain.types import Array, dtype_of

Arrays = Mapping[str, Array]
_Result = TypeVar("_Result")

EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
NATURAL = 8.0
"""Multiples of the interpreter's own rounding error that are allowed."""
ROUNDINGS = 4.0
"""Multiples of epsilon times the largest element, by the square root of the longest reduction, allowed beside that."""
LOCAL = 32.0
"""The same for one node against its reference in f64, on the same operands."""
CLEAR = 1000.0
"""An intermediate value differs where its error is above this, or above the square root of the worst result's error."""


@dataclass(frozen=True)
class Rung:
    """One form of the graph. ``error``: the largest distance of a result from the reference, over what is allowed."""

    name: str
    seconds: float
    error: float = 0.0
    result: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= 1.0 and not self.problem


@dataclass(frozen=True)
class Report:
    """All rungs, in order; ``place`` is the node or instruction at which the first bad one begins to differ."""

    name: str
    results: int
    rungs: tuple[Rung, ...]
    place: str = ""

    @property
    def ok(self) -> bool:
        return self.first_bad is None

    @property
    def first_bad(self) -> Rung | None:
        """The first rung that differs."""
        return next((rung for rung in self.rungs if not rung.ok), None)

    def require(self) -> None:
        """Raise :class:`VerificationError` if any rung differs."""
        bad = self.first_bad
        if bad is not None:
            why = (
                bad.problem
                or f"{bad.result} is {bad.error:.3g} times as far from the f64 reference as rounding explains"
            )
            raise VerificationError(
                f"{self.name}: rung {bad.name} differs: {why}" + (f"; first at {self.place}" if self.place else "")
            )

    def __rich__(self) -> Table:
        title = f"{self.name}: {self.results} results on every rung"
        table = Table("rung", "", "error / allowed", "worst result", "seconds", title=title, caption=self.place or None)
        for rung in self.rungs:
            verdict = "[green]ok[/]" if rung.ok else "[red]differs[/]"
            table.add_row(rung.name, verdict, f"{rung.error:.3g}", rung.problem or rung.result, f"{rung.seconds:.2f}")
        return table


def ladder(graph: Graph, inputs: Arrays, state: Arrays | None = None) -> Report:
    """Run a graph once on every rung, for inputs by name and variables by name (initial values where ``state`` has
    none).

    Every rung's outputs and new variables are compared with those of the reference in f64.
    """
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
class _Known:
    """A graph's values in its own types, and how far each may be from its value in f64."""

    graph: Graph
    values: Mapping[Value, Array]
    exact: Mapping[Value, Array]

    def error(self, value: Value, found: Array) -> float:
        """Distance from f64 over what is allowed: at most 1 is good."""
        return distance(found, self.values[value], self.exact[value], longest_reduction(self.graph))


def run_in_both(graph: Graph, inputs: Arrays, state: Arrays) -> _Known:
    """The interpreter's values, and those of the graph in f64."""
    wide = widened(graph)
    values = interpreter.evaluate(graph, inputs, state)
    feeds = {v.name: _as(inputs[v.name], v) for v in wide.graph.inputs}
    exact = interpreter.evaluate(wide.graph, feeds, {v.name: _as(state[v.name], v) for v in wide.graph.variables})
    return _Known(graph, values, {old: exact[new] for old, new in wide.values.items() if new in exact})


def _as(array: Array, value: Value) -> Array:
    return np.asarray(array).astype(value.dtype.numpy)


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
        optimized = self._try("optimized", lambda: optimize(expand(self.graph), check=True))
        if optimized is None:
            return
        known = run_in_both(optimized, self.inputs, self.state)
        self._compare("optimized", _results(optimized, known.values), lambda clear: self._first_value(known, clear))
        self._programs(optimized, known)

    def _programs(self, graph: Graph, known: _Known) -> None:
        lowered, buffers = lower_with_buffers(graph)
        values = {buffer: value for value, buffer in buffers.items() if value in known.values}
        self._program("lowered", lowered, None, known, values)
        fused = self._try("fused", lambda: schedule(fuse(assign_layouts(lowered))))
        if fused is None:
            return
        self._program("fused", fused, None, known, values)
        planned = plan(fused)
        self._program("planned", fused, planned, known, values)
        native = self._try("compiled", lambda: run_native(graph, planned, self.inputs, self.state)[0])
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
        self, name: str, program: Program, planned: Plan | None, known: _Known, values: Mapping[Buffer, Value]
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
        errors = {result: self.base.error(value, found[result]) for result, value in _results_of(self.graph)}
        worst = max(errors, key=lambda result: _ordered(errors[result]), default="")
        rung = Rung(name, time.perf_counter() - self._started, errors.get(worst, 0.0), worst)
        if not rung.ok and not self.place and all(before.ok for before in self.rungs):
            clear = min(CLEAR, math.sqrt(rung.error)) if rung.error == rung.error else CLEAR
            self.place = locate(clear) or self._writer(worst)
        self.rungs.append(rung)

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

    def _first_value(self, known: _Known, clear: float) -> str:
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
        self, program: Program, planned: Plan | None, known: _Known, values: Mapping[Buffer, Value], clear: float
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

    def _first_native(self, program: Program, known: _Known, values: Mapping[Buffer, Value], clear: float) -> str:
        """Run the native code over an arena in which nothing is overwritten, and look through it in order."""
        _, instance = run_native(known.graph, spread(program), self.inputs, self.state)
        for buffer, (instruction, array) in _final_contents(program, self.inputs, self.state).items():
            native, value = _in_arena(instance, buffer), values.get(buffer)
            length = longest_reduction(known.graph)
            error = distance(native, array, array, length) if value is None else known.error(value, native)
            if not error <= clear:
                return _instruction(instruction, buffer)
        return ""


def _named(outputs: Arrays, variables: Arrays) -> Arrays:
    """Results by what they are called in reports."""
    return {**{f"output {n}": a for n, a in outputs.items()}, **{f"variable {n}": a for n, a in variables.items()}}


def _results_of(graph: Graph) -> Iterator[tuple[str, Value]]:
    yield from ((f"output {name}", value) for name, value in graph.outputs.items())
    yield from ((f"variable {variable.name}", value) for variable, value in graph.updates.items())


def _results(graph: Graph, values: Mapping[Value, Array]) -> Arrays:
    return {name: values[value] for name, value in _results_of(graph)}


def _describe(node: Node) -> str:
    operands = ", ".join("-" if value is None else value.name or str(value.type) for value in node.inputs)
    return f"{node.operator}({operands})" + (f" ({node.name})" if node.name else "")


def _instruction(instruction: Instruction, buffer: Buffer) -> str:
    return f"{type(instruction).__name__.lower()} {instruction.name}, which writes {buffer.name}: {buffer.type}"


# ---- distances


def distance(found: Array, natural: Array, exact: Array, length: float) -> float:
    """How far ``found`` is from ``exact``, over what the rounding of ``natural`` and of sums of ``length`` terms
    explains.

    Integers, and the places of NaN and infinities, must be those of ``natural``. NaN if shapes differ.
    """
    if found.shape != natural.shape or found.dtype != natural.dtype:
        return math.nan
    epsilon = EPSILON.get(dtype_of(natural.dtype).name)
    if epsilon is None:
        return 0.0 if np.array_equal(found, natural) else math.inf
    narrow, wide, got = natural.astype(np.float64), exact.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(narrow)
    if not np.array_equal(got[~finite], narrow[~finite], equal_nan=True):
        return math.inf
    target = np.where(np.isfinite(wide), wide, narrow)[finite]
    rounding = _size(narrow[finite] - target)
    allowed = NATURAL * rounding + ROUNDINGS * math.sqrt(length) * epsilon * _size(target) + float(_smallest(natural))
    error = _size(got[finite] - target)
    return error / allowed if error == error else math.inf


def _smallest(array: Array) -> float:
    return 2.0**-14 if array.dtype.itemsize == 2 and array.dtype == np.float16 else 1e-30


def _size(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def _ordered(error: float) -> float:
    return math.inf if math.isnan(error) else error


def longest_reduction(graph: Graph) -> float:
    """About how many elements meet in one, at most, in a node of the graph."""
    longest = 1.0
    for node in graph.nodes:
        longest = max(longest, _reduction(node))
    return longest


def _reduction(node: Node) -> float:
    read = max((value.type.size for value in node.inputs if value is not None), default=1)
    return read / max(1, min(output.type.size for output in node.outputs))


def local_error(node: Node, values: Mapping[Value, Array]) -> float:
    """A node's results against its reference in f64 on the very same operands, over what its rounding explains."""
    operands = [None if value is None else values[value] for value in node.inputs]
    wide = [None if array is None else _widest(array) for array in operands]
    results = in_f64(node.operator).reference(*wide)
    exact = results if isinstance(results, tuple) else (results,)
    sizes = sorted(
        (_finite_size(array) for array in wide if array is not None and array.dtype.kind == "f"), reverse=True
    )
    scale = max([*sizes[:1], math.prod(sizes[:2])])
    found = (values[output] for output in node.outputs)
    return max(_local(a, np.asarray(e), scale, _reduction(node)) for a, e in zip(found, exact, strict=True))


def _local(found: Array, exact: Array, scale: float, length: float) -> float:
    epsilon = EPSILON.get(dtype_of(found.dtype).name)
    if epsilon is None:
        return 0.0 if np.array_equal(found, exact) else math.inf
    narrow = found.astype(np.float64)
    both = np.isfinite(narrow) & np.isfinite(exact)
    size = max(scale, _size(exact[both]))
    allowed = LOCAL * math.sqrt(length) * epsilon * size + float(_smallest(found))
    return _size(narrow[both] - exact[both]) / allowed


def _widest(array: Array) -> Array:
    return array.astype(np.float64) if dtype_of(array.dtype).is_float else array


def _finite_size(array: Array) -> float:
    return _size(array[np.isfinite(array)])


# ---- native code


def run_native(graph: Graph, planned: Plan, inputs: Arrays, state: Arrays) -> tuple[Arrays, NativeInstance]:
    """Results of the compiled code, in an instance of its own."""
    executable = NativeGraph(graph, planned, Target.host())
    store = State({name: np.asarray(array) for name, array in state.items()})
    instance = NativeInstance(executable, store)
    outputs = instance.run(check_inputs(graph, inputs))
    return _named(outputs, {v.name: store.read(v.name) for v in graph.updates}), instance


def spread(program: Program) -> Plan:
    """A plan in which no two activations share memory."""
    offsets, end = {}, 0
    for buffer in program.buffers:
        if buffer.kind == "activation":
            offsets[buffer] = end
            end += -(-buffer.type.nbytes // ALIGNMENT) * ALIGNMENT
    return Plan(program, offsets, end, end)


def _in_arena(instance: NativeInstance, buffer: Buffer) -> Array:
    offset = instance.executable.plan.offsets[buffer]
    physical = [buffer.shape[axis] for axis in buffer.layout]
    memory = instance.arena[offset : offset + buffer.type.nbytes].view(buffer.dtype.numpy)
    return np.ascontiguousarray(memory.reshape(physical).transpose(np.argsort(buffer.layout)))


def _final_contents(program: Program, inputs: Arrays, state: Arrays) -> dict[Buffer, tuple[Instruction, Array]]:
    """Each activation as the last instruction that writes it leaves it, and that instruction."""
    contents: dict[Buffer, tuple[Instruction, Array]] = {}

    def watch(instruction: Instruction, memory: Memory) -> None:
        for buffer in instruction.writes:
            if buffer.kind == "activation":
                contents[buffer] = instruction, memory.read(buffer)

    evaluate(program, inputs, state, watch=watch)
    return contents
