"""``glowtrain inspect``: what every stage of the walk makes of a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.backends.base import Backend, View
from glowtrain.backends.discovery import backend_of
from glowtrain.bundles.updates import propose
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.feed import feed, stored
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_graph, parse_dims
from glowtrain.cli.arguments.targets import TARGETS
from glowtrain.cli.arguments.training import kept_for_updates, optimizer_of, training_step
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.memory import show_memory
from glowtrain.cli.terminal.summary import refusals, shared_parameters, summary
from glowtrain.cli.terminal.updates import show_proposal
from glowtrain.compiler import walk
from glowtrain.compiler.walk import WALK, after, arrive, until
from glowtrain.graph import Graph
from glowtrain.losses import by_name
from glowtrain.memory.budget import budget_of
from glowtrain.profiling.memory import computed_again, memory_report
from glowtrain.profiling.memory import plot as draw
from glowtrain.profiling.memory.page import check_plot
from glowtrain.profiling.memory.table import again_lines
from glowtrain.program.memory.trace import trace
from glowtrain.runtime import HostDevice, partitioned
from glowtrain.runtime.partition.drawing import check_drawing
from glowtrain.runtime.partition.drawing import draw as draw_partition
from glowtrain.stages import Options, Stage
from glowtrain.trainer.graphs import specs_of

MEMORY = "memory"
"""What is in memory from kernel to kernel: of no stage alone."""

LIFETIMES = View("plan", "when each activation is alive, as CSV that MiniMalloc reads", trace)


def views_of(backend: Backend) -> dict[str, View]:
    """Further texts by name: those that every backend has, and its own."""
    return {"lifetimes": LIFETIMES, **backend.views}


def stage_names(backend: Backend) -> tuple[str, ...]:
    """What ``--stage`` takes: the graph, each stage of the backend's walk, further texts, the memory of a step."""
    return ("summary", "graph", *(stage.name for stage in backend.stages(WALK)), *views_of(backend), MEMORY)


STAGES = stage_names(backend_of("cpu"))

StageName = Annotated[
    str, typer.Option(metavar="STAGE", help=f"What to print: {', '.join(STAGES)}.", autocompletion=names(STAGES))
]
ShapesOf = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="D",
        help="Shapes of a built-in model follow this data set; examples of --budget.",
        autocompletion=options.DATA,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="F",
        help="A picture of memory over the step, kernel by kernel, for --stage memory, or of the parts for --devices: "
        "a page (.html), .png or .svg.",
        rich_help_panel=options.OUTPUT,
    ),
]
ProposedBudget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="BYTES",
        help="Propose what to train, with its optimizer and the arena, in so many bytes (256KB); needs --data.",
        rich_help_panel=options.TRAINING,
    ),
]
ProposedTarget = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="T",
        help=f"The processor of --budget: {', '.join(TARGETS)}.",
        autocompletion=names(TARGETS),
        rich_help_panel=options.TRAINING,
    ),
]
Devices = Annotated[
    int | None,
    typer.Option("--devices", metavar="N", min=1, help="How the model is cut into stages for N devices like this one."),
]
DeviceMemory = Annotated[
    str | None, typer.Option("--device-memory", metavar="M", help="What each of --devices can hold: 64MB.")
]
Explain = Annotated[bool, typer.Option("--explain", help="What passes left as it is, and why.")]


@command
def inspect(
    model: options.Model,
    stage: StageName = "summary",
    train: options.WholeStep = False,
    explain: Explain = False,
    backend: options.Backend = "cpu",
    threads: options.Threads = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    open_batch: options.OpenBatch = False,
    dataset: ShapesOf = None,
    data_dir: options.DataDir = None,
    loss: options.Loss = "softmax_cross_entropy",
    labels: options.Labels = None,
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    untie: options.Untie = [],  # noqa: B006
    optimizer: options.OptimizerChoice = "adam",
    momentum: options.Momentum = None,
    memory: options.Memory = None,
    devices: Devices = None,
    device_memory: DeviceMemory = None,
    plot: Plot = None,
    budget: ProposedBudget = None,
    target: ProposedTarget = "host",
    modules: options.Modules = [],  # noqa: B006
) -> None:
    """Print what a stage of the compiler makes of a model, or a summary of all of them.

    Another backend may have other stages after plan.

    Examples:

    glowtrain inspect model.onnx

    glowtrain inspect cnn --train --stage plan

    glowtrain inspect cnn --train --stage lifetimes > cnn.csv

    glowtrain inspect quantized.onnx --explain

    glowtrain inspect cnn --train --stage memory --memory 50% --plot memory.html

    glowtrain inspect cnn --data digits --dims batch=1 --optimizer sgd --budget 64KB

    glowtrain inspect cnn --train --devices 2 --device-memory 1MB --plot stages.svg
    """
    import_modules(modules)
    chosen = backend_of(backend, threads)
    check_stage(stage, chosen)
    check_devices(stage, devices, device_memory)
    check_picture(stage, plot, parts=devices is not None)
    given = Options(facts=chosen.facts, memory=budget_of(memory))
    loaded = stored(dataset, data_dir) if dataset is not None else None
    if budget is not None:
        check_budget(stage, dataset, trainable)
    graph = open_graph(model, parse_dims(dims), loaded.train if loaded else None, untie=untie, open_batch=open_batch)
    if budget is not None and loaded is not None:
        rule, attached = optimizer_of(optimizer, momentum=momentum), by_name(loss, output)
        examples = feed(loaded, specs_of(graph.template or graph), attached, labels).train
        found = propose(graph, examples, budget, loss=attached, optimizer=rule, target=target)
        show_proposal(found, f"a step of {graph.name} with {rule.name}")
        return
    step = training_step(graph, loss, output, trainable, optimizer, momentum) if train else graph
    if explain:
        refusals(step, chosen, given)
        return
    if devices is not None:
        show_parts(step, chosen, devices, device_memory, plot)
        return
    if stage == MEMORY:
        show_step_memory(step, chosen, given, kept_for_updates(step, graph), plot)
        return
    show(step, stage, chosen, given)
    if stage == "summary":
        shared_parameters(graph)


def check_stage(stage: str, backend: Backend) -> None:
    """End as wrong usage for what is none of :func:`stage_names`."""
    known = stage_names(backend)
    if stage not in known:
        raise typer.BadParameter(f"there is no stage {stage!r}; choose from {', '.join(known)}", param_hint="--stage")


def check_budget(stage: str, dataset: str | None, trainable: Sequence[str]) -> None:
    """End as wrong usage where nothing can be proposed, or it would not be what was asked for."""
    if dataset is None:
        raise typer.BadParameter("--budget takes gradients on examples: name them with --data", param_hint="--budget")
    if stage != "summary":
        raise typer.BadParameter(f"--budget proposes what to train, and prints no {stage}", param_hint="--budget")
    if trainable:
        raise typer.BadParameter("--budget proposes what --trainable says: give one of them", param_hint="--budget")


def check_devices(stage: str, devices: int | None, memory: str | None) -> None:
    """End as wrong usage for a limit of nothing, and for a stage that is not shown."""
    if memory is not None and devices is None:
        raise typer.BadParameter("--device-memory is that of --devices", param_hint="--device-memory")
    if devices is not None and stage != "summary":
        raise typer.BadParameter(f"--devices shows parts, and nothing of --stage {stage}", param_hint="--devices")


def check_picture(stage: str, plot: Path | None, *, parts: bool) -> None:
    """Raise now for a picture that could not be drawn or written later; end as wrong usage where nobody draws it."""
    if plot is None:
        return
    if stage != MEMORY and not parts:
        text = f"--plot draws --stage {MEMORY}, and nothing of {stage}; or the parts of --devices"
        raise typer.BadParameter(text, param_hint="--plot")
    (check_drawing if parts else check_plot)(plot)


def show_parts(graph: Graph, backend: Backend, count: int, memory: str | None, plot: Path | None) -> None:
    """Print how a graph is cut for so many devices, and write the picture where one is asked for."""
    devices = [HostDevice(f"{backend.name}:{number}", backend, memory=memory) for number in range(count)]
    partition = partitioned(graph, devices)
    out.print(str(partition), markup=False, highlight=False, soft_wrap=True)
    if plot is not None:
        draw_partition(partition, plot)
        out.print(f"wrote {plot}")


def show_step_memory(graph: Graph, backend: Backend, given: Options, optimizer: set[str], plot: Path | None) -> None:
    """Print what a graph takes in memory, and write the picture where one is asked for."""
    report = memory_report(graph, backend, given, optimizer)
    show_memory(report)
    if plot is not None:
        draw(report, plot)
        out.print(f"wrote {plot}")


def show(graph: Graph, stage: str, backend: Backend, given: Options) -> None:
    """Print one of :func:`stage_names`."""
    if stage == "summary":
        summary(graph, backend, given)
    else:
        sys.stdout.write(text_of(graph, stage, backend, given))


def text_of(graph: Graph, stage: str, backend: Backend, given: Options) -> str:
    """The text of what stands at a stage."""
    if stage == "graph":
        return str(graph)
    view = views_of(backend).get(stage)
    stages = until(stage if view is None else view.stage, backend.stages(WALK))
    if stage == "plan":
        return plan_text(graph, given, stages)
    result = arrive(graph, given, stages)
    return walk.text_of(result) if view is None else view.text(result)


def plan_text(graph: Graph, given: Options, stages: Sequence[Stage]) -> str:
    """The text of a plan, after comments that say what is computed again in it, and why."""
    ordered = arrive(graph, given, until("ordered", stages))
    plan = arrive(ordered, given, after("ordered", stages))
    comments = (f"; {line}\n" for line in again_lines(computed_again(plan, ordered, given)))
    return f"{''.join(comments)}{walk.text_of(plan)}"
