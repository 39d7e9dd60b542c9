"""What a compiled step takes in memory: the sum, and what is alive at each of its kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.compiler.memory_use import MemoryUse, memory_use
from glowtrain.compiler.service import enough_memory
from glowtrain.compiler.walk import WALK, walk
from glowtrain.errors import BackendError
from glowtrain.graph import Graph
from glowtrain.memory.budget import KEEP, Budget
from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table
from glowtrain.profiling.layers import KernelProvenance, provenance_of
from glowtrain.profiling.memory.contents import KINDS, Content, Kind, Phase, contents_of, phases_of
from glowtrain.program.analysis.time_estimate import estimate, total
from glowtrain.program.memory.plan import lifetimes
from glowtrain.program.passes.residuals.storing import SUFFIX as ROUNDED
from glowtrain.program.passes.reuse import ReuseOperands
from glowtrain.program.passes.slices.slicing import slices_in
from glowtrain.program.program import Instruction, Plan, Program, Repeat
from glowtrain.stages import Options
from glowtrain.trainer.graphs import optimizer_variables
from glowtrain.trainer.steps import Steps
from glowtrain.types import Array


@dataclass(frozen=True)
class MemoryReport(Displayable):
    """A step's memory. For each kernel, in the order in which they run, ``origins`` says what it computes, ``phases``
    what for; ``contents`` is what buffers hold, ``again`` what was computed once more rather than kept.
    """

    use: MemoryUse
    plan: Plan
    origins: tuple[KernelProvenance, ...]
    phases: tuple[Phase, ...]
    contents: tuple[Content, ...]
    again: ComputedAgain

    def __repr__(self) -> str:
        kernels = plural(len(self.phases), "kernel")
        return f"<Report on {self.use.title}: {byte_text(self.use.total)} of memory, {kernels}>"

    def _contents(self) -> Iterator[str | Table]:
        from glowtrain.profiling.memory.table import again_lines, listed, peak_line  # noqa: PLC0415  (in terms of this)

        yield from self.use._contents()
        yield ""
        yield peak_line(self)
        yield listed(self, self.at(self.peak))
        yield ""
        yield from again_lines(self.again)
        if self.again.contents:
            yield listed(self, self.again.contents)

    @cached_property
    def alive(self) -> dict[Kind, Array]:
        """Bytes of each kind that are alive at each kernel."""
        return {kind: _alive([c for c in self.contents if c.kind == kind], len(self.phases)) for kind in KINDS}

    @cached_property
    def sums(self) -> Array:
        """Bytes that are alive at each kernel."""
        return _alive(self.contents, len(self.phases))

    @property
    def peak(self) -> int:
        """The number of the kernel at which most is alive, from 0."""
        return int(self.sums.argmax()) if self.phases else 0

    def at(self, position: int) -> list[Content]:
        """What is alive at a kernel, the largest first."""
        found = [content for content in self.contents if content.first <= position <= content.last]
        return sorted(found, key=lambda content: -content.nbytes)


@dataclass(frozen=True)
class ComputedAgain:
    """What is computed again rather than kept, ``contents``, for the sake of a ``budget``: the ``seconds`` that this
    takes in a step of so many ``step_seconds``, both as the compiler estimates them, and the most bytes that would be
    alive at once without it. ``slices`` are groups of kernels that run slice by slice; ``rounded`` is what waits for
    the backward part in bf16.
    """

    contents: tuple[Content, ...]
    seconds: float
    step_seconds: float
    peak_without: int
    budget: Budget
    slices: tuple[Repeat, ...] = ()
    rounded: tuple[Content, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of all of it; not all are alive at the same time."""
        return sum(content.nbytes for content in self.contents)

    @property
    def share(self) -> float:
        """The part of the rest of the step's time that it takes."""
        rest = self.step_seconds - self.seconds
        return self.seconds / rest if rest > 0 else 0.0

    @property
    def reason(self) -> str:
        """What the budget asks for, in words."""
        budget = self.budget
        if budget == KEEP:
            return "everything is kept"
        if budget.nbytes is not None:
            return f"variables and arena are to fit {byte_text(budget.nbytes)}"
        if budget.share is not None:
            return f"variables and arena are to take {budget.share:.0%} of what they take with everything kept"
        return f"what costs least may make the step {budget.slower:.0%} longer"


def memory_report(
    graph: Graph, backend: Backend, options: Options | None = None, optimizer: Collection[str] = ()
) -> MemoryReport:
    """Compile a graph, and say what it takes in memory; ``optimizer`` names the variables that an optimizer keeps.

    Raises :class:`BackendError` for a backend that plans no memory.
    """
    options = Options(facts=backend.facts) if options is None else options
    stages: dict[str, Any] = {}
    with enough_memory(graph):
        for arrival in walk(graph, options, backend.stages(WALK)):
            stages[arrival.stage.name] = last = arrival.result
        plan = stages.get("plan")
        if not isinstance(plan, Plan):
            raise BackendError(f"backend {backend} has no planned memory; use backend cpu")
        own = backend.load(last).memory
    sizes = {variable.name: variable.type.nbytes for variable in graph.variables}
    parameters = {variable.name for variable in graph.variables if variable.trainable}
    use = memory_use(graph.name, own).with_variables(sizes, parameters, optimizer)
    return _report(use, plan, stages["optimized"], stages["ordered"], options)


def training_memory(trainer: Steps) -> MemoryReport:
    """The memory of a trainer's step, as it was compiled last.

    Raises :class:`InputError` where nothing has been compiled yet, and :class:`BackendError` for a backend that plans
    no memory.
    """
    step = trainer.compiled
    kept = optimizer_variables(step.graph, trainer.graphs.trained(trainer.graphs.example))
    return memory_report(step.graph, backend_of(trainer.backend), step.options, kept)


def _report(use: MemoryUse, plan: Plan, simplified: Graph, ordered: Program, options: Options) -> MemoryReport:
    leaves = tuple(plan.program.leaves)
    outputs = {buffer.name: name for name, buffer in plan.program.outputs.items()}
    phases = phases_of(plan.program)
    contents = contents_of(plan.program, phases)
    origins = tuple(provenance_of(simplified, leaves, outputs))
    return MemoryReport(use, plan, origins, phases, contents, computed_again(plan, ordered, options))


def computed_again(plan: Plan, ordered: Program, options: Options) -> ComputedAgain:
    """What a plan computes again of a program in which everything was kept."""
    program, rates = plan.program, options.facts.rates
    phases = phases_of(program)
    contents = contents_of(program, phases)
    again = tuple(content for content in contents if content.kind == "computed again")
    rounded = tuple(content for content in contents if content.buffer.name.endswith(ROUNDED))
    leaves = zip(_with_trips(program.instructions), phases, strict=True)
    seconds = sum(trips * estimate(leaf, rates) for (leaf, trips), phase in leaves if phase == "again") / 1e9
    step_seconds = total(program.instructions, rates) / 1e9
    without = peak_of(ReuseOperands().run(ordered))
    slices = tuple(slices_in(program))
    return ComputedAgain(again, seconds, step_seconds, without, options.memory, slices, rounded)


def _with_trips(instructions: Sequence[Instruction], trips: int = 1) -> Iterator[tuple[Instruction, int]]:
    """The leaves, each with how often it runs."""
    for instruction in instructions:
        if instruction.is_leaf:
            yield instruction, trips
        yield from _with_trips(instruction.children, trips * instruction.trips)


def peak_of(program: Program) -> int:
    """The most bytes that a plan of a program would have alive at once."""
    contents = [Content(buffer, "activations", *life) for buffer, life in lifetimes(program.instructions).items()]
    return int(_alive(contents, sum(1 for _ in program.leaves)).max(initial=0))


def _alive(contents: Sequence[Content], kernels: int) -> Array:
    """The sum of what is alive at each kernel."""
    changes = np.zeros(kernels + 1, np.int64)
    for content in contents:
        changes[content.first] += content.nbytes
        changes[content.last + 1] -= content.nbytes
    sums: Array = changes.cumsum()[:kernels]
    return sums
