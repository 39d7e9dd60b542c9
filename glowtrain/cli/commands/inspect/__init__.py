"""``glowtrain inspect``: what every stage of the walk makes of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.bundles.updates import propose
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.feed import DataOptions, feed
from glowtrain.cli.arguments.models import ModelFileOptions, TrainedOn, as_graph
from glowtrain.cli.arguments.training import (
    LossOptions,
    OptimizerOptions,
    compilation_of,
    optimizer_state_names,
    require_train,
)
from glowtrain.cli.commands.inspect import arguments as given
from glowtrain.cli.commands.inspect.stages import MEMORY, show
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.records import From, Given
from glowtrain.cli.terminal.summary import refusals, shared_parameters
from glowtrain.cli.terminal.updates import show_proposal
from glowtrain.datasets.stored import ExampleArray
from glowtrain.graph import Graph
from glowtrain.losses import Loss
from glowtrain.optim import Optimizer
from glowtrain.profiling.memory import memory_report
from glowtrain.profiling.memory import plot as draw
from glowtrain.runtime import HostDevice, partitioned
from glowtrain.runtime.partition.drawing import draw as draw_partition
from glowtrain.stages import Options
from glowtrain.trainer.graphs import specs_of
from glowtrain.trainer.micro_batches.within_budget import proposing
from glowtrain.trainer.settings import TrainingSettings


@command
def inspect(
    context: typer.Context,
    model: options.Model,
    file: ModelFileOptions,
    source: DataOptions,
    loss: LossOptions,
    optimizer: OptimizerOptions,
    settings: Annotated[Given, From(TrainingSettings, but=("metrics",))],
    proposal: given.ProposalOptions,
    parts: given.PartOptions,
    stage: given.StageName = "summary",
    train: options.WholeStep = False,
    explain: given.Explain = False,
    backend: options.Backend = "cpu",
    dataset: given.ShapesOf = None,
    plot: given.Plot = None,
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
    require_train(context, train=train or proposal.requested)
    file.import_modules()
    chosen = backend_of(backend, settings["threads"])
    given.check_stage(stage, chosen)
    parts.check(stage, settings)
    given.check_picture(stage, plot, parts=parts.requested)
    if proposal.requested:
        proposal.check(stage, dataset, settings)
    examples = source.stored(dataset, trained_on=TrainedOn.of(model)) if dataset is not None else None
    graph = as_graph(file.open(model, examples.train if examples else None))
    if proposal.budget is not None and examples is not None:
        fed = feed(examples, specs_of(graph.template or graph), loss.named).train
        show_updates(graph, fed, loss.named, optimizer.rule(), proposal.budget, proposal.target)
        return
    compiled = compilation_of(graph, chosen.facts, loss, optimizer, settings, train=train)
    if explain:
        refusals(compiled.step, chosen, compiled.options)
    elif parts.devices is not None:
        show_parts(compiled.step, chosen, parts.devices, parts.device_memory, plot)
    else:
        with proposing(compiled.graphs, graph.binding, compiled.options, chosen):
            show_stage(compiled.step, graph, stage, chosen, compiled.options, plot)


def show_stage(step: Graph, model: Graph, stage: str, backend: Backend, how: Options, plot: Path | None) -> None:
    """Print what stands at a stage, of a step of a model or of the model itself."""
    if stage == MEMORY:
        show_step_memory(step, backend, how, optimizer_state_names(step, model), plot)
        return
    show(step, stage, backend, how)
    if stage == "summary":
        shared_parameters(model)


def show_updates(
    graph: Graph, examples: Mapping[str, ExampleArray], loss: Loss, optimizer: Optimizer, budget: str, target: str
) -> None:
    """Print which parameters to train within so many bytes, by gradients on examples."""
    found = propose(graph, examples, budget, loss=loss, optimizer=optimizer, target=target)
    show_proposal(found, f"a step of {graph.name} with {optimizer.name}")


def show_parts(graph: Graph, backend: Backend, count: int, memory: str | None, plot: Path | None) -> None:
    """Print how a graph is cut for so many devices, and write the picture where one is asked for."""
    devices = [HostDevice(f"{backend.name}:{number}", backend, memory=memory) for number in range(count)]
    partition = partitioned(graph, devices)
    out.print(str(partition), markup=False, highlight=False, soft_wrap=True)
    if plot is not None:
        draw_partition(partition, plot)
        out.print(f"wrote {plot}")


def show_step_memory(graph: Graph, backend: Backend, options: Options, optimizer: set[str], plot: Path | None) -> None:
    """Print what a graph takes in memory, and write the picture where one is asked for."""
    report = memory_report(graph, backend, options, optimizer)
    out.print(report)
    if plot is not None:
        draw(report, plot)
        out.print(f"wrote {plot}")
