"""``glowtrain inspect``: what every stage of the walk makes of a model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from glowtrain import losses
from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.feed import stored
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_graph, parse_dims
from glowtrain.cli.arguments.training import optimizer_of
from glowtrain.cli.commands.profile import profile
from glowtrain.cli.commands.summary import refusals, shared_parameters, summary
from glowtrain.cli.terminal.console import command
from glowtrain.compiler import walk
from glowtrain.compiler.walk import WALK, arrive, until
from glowtrain.graph import Graph
from glowtrain.stages import Options
from glowtrain.trainer.forms import Forms


def stage_names(backend: Backend) -> tuple[str, ...]:
    """What ``--stage`` takes: the graph, each stage of the backend's walk, its further texts, and what looks across."""
    return ("summary", "graph", *(stage.name for stage in backend.stages(WALK)), *backend.views, "profile")


STAGES = stage_names(backend_of("cpu"))


@command
def inspect(
    model: options.Model,
    stage: Annotated[
        str, typer.Option(metavar="STAGE", help=f"What to print: {', '.join(STAGES)}.", autocompletion=names(STAGES))
    ] = "summary",
    train: Annotated[bool, typer.Option("--train", help="The whole training step instead of the model.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="What passes left as it is, and why.")] = False,
    backend: options.Backend = "cpu",
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    open_batch: options.OpenBatch = False,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="D",
            help="Shapes of a built-in model follow this data set.",
            autocompletion=options.DATA,
        ),
    ] = None,
    data_dir: options.DataDir = None,
    loss: options.Loss = "softmax_cross_entropy",
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    untie: options.Untie = [],  # noqa: B006
    optimizer: options.OptimizerChoice = "adam",
    momentum: options.Momentum = None,
    modules: options.Modules = [],  # noqa: B006
) -> None:
    """Print what a stage of the compiler makes of a model, or a summary of all of them.

    Another backend may have other stages after plan. The stage profile runs the compiled step and counts the
    processor's cycles in each kernel.

    Examples:

    glowtrain inspect model.onnx

    glowtrain inspect cnn --train --stage plan

    glowtrain inspect model.onnx --train --stage profile --dims batch=128

    glowtrain inspect quantized.onnx --explain
    """
    import_modules(modules)
    chosen = backend_of(backend)
    if stage not in stage_names(chosen):
        raise typer.BadParameter(
            f"there is no stage {stage!r}; choose from {', '.join(stage_names(chosen))}", param_hint="--stage"
        )
    loaded = stored(dataset, data_dir).train if dataset is not None else None
    graph = open_graph(model, parse_dims(dims), loaded, untie=untie, open_batch=open_batch)
    step = training_step(graph, loss, output, trainable, optimizer, momentum) if train else graph
    if explain:
        refusals(step, chosen)
        return
    show(step, stage, chosen)
    if stage == "summary":
        shared_parameters(graph)


def show(graph: Graph, stage: str, backend: Backend) -> None:
    """Print one of :func:`stage_names`."""
    if stage == "summary":
        summary(graph, backend)
    elif stage == "profile":
        profile(graph, backend)
    else:
        sys.stdout.write(text_of(graph, stage, backend))


def training_step(
    graph: Graph, loss: str, output: str | None, trainable: list[str], optimizer: str, momentum: float | None
) -> Graph:
    """The training step that ``train`` would compile for a graph."""
    rule = optimizer_of(optimizer, momentum=momentum)
    return Forms(graph, losses.by_name(loss, output), rule, trainable or None, 0, unbiased=False).step_of(graph)


def text_of(graph: Graph, stage: str, backend: Backend) -> str:
    """The text of what stands at a stage."""
    if stage == "graph":
        return str(graph)
    view = backend.views.get(stage)
    stages = until(stage if view is None else view.stage, backend.stages(WALK))
    result = arrive(graph, Options(facts=backend.facts), stages)
    return walk.text_of(result) if view is None else view.text(result)
