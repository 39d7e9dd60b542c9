"""What ``inspect`` prints without a stage: the walk in numbers, and the model's inputs, outputs and variables."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from rich.table import Table

from glowtrain.backends.cpu.step import Code, generate
from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.toolchain import compile_text
from glowtrain.cli.console import nbytes, out, seconds, table
from glowtrain.compiler import planned
from glowtrain.graph import Graph
from glowtrain.lower.expand import expand
from glowtrain.lower.lower import lower
from glowtrain.optimize.pipeline import optimize
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Program
from glowtrain.words import plural

Result = TypeVar("Result")
LISTED = 40
"""Variables that are listed at most."""


@dataclass
class Walk:
    """Every stage's result for one graph, and the seconds that each took."""

    graph: Graph
    optimized: Graph
    lowered: Program
    plan: Plan
    code: Code
    object_bytes: int
    spent: dict[str, float] = field(default_factory=dict)


def walk(graph: Graph) -> Walk:
    """Take a graph through all stages."""
    spent: dict[str, float] = {}

    def timed(stage: str, function: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        result = function()
        spent[stage] = time.perf_counter() - began
        return result

    target = Target.host()
    optimized = timed("optimized", lambda: optimize(expand(graph)))
    lowered = timed("lowered", lambda: lower(optimized))
    plan = timed("plan", lambda: planned(optimized))
    code = timed("llvm", lambda: generate(plan, target))
    size = len(timed("object", lambda: compile_text(code.text, target)))
    return Walk(graph, optimized, lowered, plan, code, size, spent)


def summary(graph: Graph) -> None:
    """Print the walk of a graph in numbers, then its interface."""
    out.print(stages(walk(graph)))
    out.print()
    _interface(graph)


def stages(walk: Walk) -> Table:
    """One line a stage."""
    listed = table("stage", "what came out", "time>")
    for stage, text in rows(walk).items():
        spent = walk.spent.get(stage)
        listed.add_row(stage, text, "" if spent is None else seconds(spent))
    return listed


def rows(walk: Walk) -> dict[str, str]:
    """What each stage came to."""
    plan = walk.plan
    kernels, loops = sum(1 for _ in plan.program.kernels), sum(1 for _ in walk.lowered.kernels)
    arena = f"arena {plan.arena:,} bytes, {plan.overhead:.3f} × the peak of what is alive"
    return {
        "graph": f"{plural(len(walk.graph.nodes), 'operator')}, {plural(len(walk.graph.variables), 'variable')}",
        "optimized": f"{plural(len(walk.optimized.nodes), 'operator')}, composites written out",
        "lowered": f"{plural(loops, 'kernel')} of loop nests",
        "plan": f"{plural(kernels, 'kernel')} after fusion; {arena}",
        "llvm": f"{plural(len(walk.code.functions), 'function')}, {plural(len(walk.code.text.splitlines()), 'line')}",
        "object": f"{nbytes(walk.object_bytes)} of machine code for {Target.host().cpu}",
    }


def _interface(graph: Graph) -> None:
    listed = table("", "name", "type", "bytes>")
    for given in graph.inputs:
        listed.add_row("input", given.name, str(given.type), f"{given.type.nbytes:,}")
    for name, value in graph.outputs.items():
        listed.add_row("output", name, str(value.type), f"{value.type.nbytes:,}")
    for variable in graph.variables[:LISTED]:
        kind = "parameter" if variable.trainable else "state"
        listed.add_row(kind, variable.name, str(variable.type), f"{variable.type.nbytes:,}")
    out.print(listed)
    if len(graph.variables) > LISTED:
        out.print(f"and {plural(len(graph.variables) - LISTED, 'more variable')} (--stage graph lists all)")
    parameters = [variable.type for variable in graph.variables if variable.trainable]
    state = sum(variable.type.nbytes for variable in graph.variables)
    out.print(f"{plural(sum(type_.size for type_ in parameters), 'parameter')}; {nbytes(state)} of state in all")
