"""What ``inspect`` prints without a stage: the walk in numbers, and the model's inputs, outputs and variables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glowtrain.backends.base import Backend
from glowtrain.cli.terminal.console import out, seconds
from glowtrain.compiler.walk import WALK, arrive, walk
from glowtrain.graph import Graph, Variable
from glowtrain.graph.interface import LISTED, interface
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Program
from glowtrain.stages import Options, Stage

EXAMPLES = 5
"""What is named of all that was left as it is for one reason."""


def summary(graph: Graph, backend: Backend, chosen: Options) -> None:
    """Print the walk of a graph in numbers, then its interface."""
    out.print(stages(graph, backend, chosen))
    out.print()
    for part in interface(graph, "--stage graph lists all"):
        out.print(part)


def shared_parameters(graph: Graph) -> None:
    """Print the nodes that read a parameter, where there are several."""
    for name, nodes in list(_readers(graph).items())[:LISTED]:
        out.print(f"{name} is shared by {', '.join(nodes)}")


def _readers(graph: Graph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {variable.name: [] for variable in graph.variables if variable.trainable}
    for node in graph.nodes:
        for variable in dict.fromkeys(value for value in node.inputs if isinstance(value, Variable)):
            if variable.trainable:
                found[variable.name].append(node.name or node.operator.key())
    return {name: nodes for name, nodes in found.items() if len(nodes) > 1}


def stages(graph: Graph, backend: Backend, chosen: Options) -> Table:
    """One line a stage: what came out, and the seconds that its pass took."""
    rows = [
        (arrival.stage.name, in_numbers(arrival.result, arrival.stage), seconds(arrival.seconds))
        for arrival in walk(graph, chosen, backend.stages(WALK))
    ]
    return Table(("stage", "what came out", "time>"), [("graph", in_numbers(graph), ""), *rows])


def refusals(graph: Graph, backend: Backend, chosen: Options) -> None:
    """Print what the passes left as it is, and why; the reasons that are given most often first."""
    given: dict[tuple[str, str], dict[str, None]] = {}

    def explain(stage: str, what: str, why: str) -> None:
        given.setdefault((stage, why), {})[what] = None

    arrive(graph, replace(chosen, explain=explain), backend.stages(WALK))
    for (stage, why), named in sorted(given.items(), key=lambda entry: -len(entry[1])):
        out.print(f"{stage}: {why} ({plural(len(named), 'time')})")
        for what in list(named)[:EXAMPLES]:
            out.print(f"    {what}")
        if len(named) > EXAMPLES:
            out.print(f"    and {len(named) - EXAMPLES:,} more")
    if not given:
        out.print("the passes left nothing that they might have changed")


def in_numbers(result: Any, stage: Stage | None = None) -> str:
    """What a stage came to."""
    match result:
        case Graph():
            return f"{plural(len(result.nodes), 'operator')}, {plural(len(result.variables), 'variable')}"
        case Program():
            return plural(sum(1 for _ in result.kernels), "kernel")
        case Plan():
            return f"arena {result.arena:,} bytes, {result.overhead:.3f} × the peak of what is alive"
    return "" if stage is None or stage.numbers is None else stage.numbers(result)
