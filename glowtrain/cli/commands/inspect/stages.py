"""What ``glowtrain inspect`` can print, and the texts of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.cli.terminal.summary import summary
from glowtrain.compiler import walk
from glowtrain.compiler.walk import WALK, after, arrive, until
from glowtrain.graph import Graph
from glowtrain.profiling.memory import computed_again
from glowtrain.profiling.memory.table import again_lines
from glowtrain.stages import Options, Stage

MEMORY = "memory"
"""What is in memory from kernel to kernel: of no stage alone."""


def stage_names(backend: Backend) -> tuple[str, ...]:
    """What ``--stage`` takes: the graph, each stage of the backend's walk, further texts, the memory of a step."""
    stages = backend.stages(WALK)
    views = (view.name for stage in stages for view in stage.views)
    return ("summary", "graph", *(stage.name for stage in stages), *views, MEMORY)


STAGES = stage_names(backend_of("cpu"))


def show(graph: Graph, stage: str, backend: Backend, options: Options) -> None:
    """Print one of :func:`stage_names`."""
    if stage == "summary":
        summary(graph, backend, options)
    else:
        sys.stdout.write(text_of(graph, stage, backend, options))


def text_of(graph: Graph, stage: str, backend: Backend, options: Options) -> str:
    """The text of what stands at a stage."""
    if stage == "graph":
        return str(graph)
    stages = backend.stages(WALK)
    if stage == "plan":
        return plan_text(graph, options, until(stage, stages))
    views = ((each.name, view.text) for each in stages for view in each.views if view.name == stage)
    last, text = next(views, (stage, walk.text_of))
    return text(arrive(graph, options, until(last, stages)))


def plan_text(graph: Graph, options: Options, stages: Sequence[Stage]) -> str:
    """The text of a plan, after comments that say what is computed again in it, and why."""
    ordered = arrive(graph, options, until("ordered", stages))
    plan = arrive(ordered, options, after("ordered", stages))
    comments = (f"; {line}\n" for line in again_lines(computed_again(plan, ordered, options)))
    return f"{''.join(comments)}{walk.text_of(plan)}"
