"""``glowtrain inspect``: what every stage of the walk makes of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.bundles.updates import propose
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.feed import feed, stored
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_graph, parse_dims
from glowtrain.cli.arguments.training import compile_options, kept_for_updates, optimizer_of, step_graphs
from glowtrain.cli.commands.inspect import arguments as given
from glowtrain.cli.commands.inspect.stages import MEMORY, show
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.memory import show_memory
from glowtrain.cli.terminal.summary import refusals, shared_parameters
from glowtrain.cli.terminal.updates import show_proposal
from glowtrain.graph import Graph
from glowtrain.losses import Loss, by_name
from glowtrain.optim import Optimizer
from glowtrain.profiling.memory import memory_report
from glowtrain.profiling.memory import plot as draw
from glowtrain.runtime import HostDevice, partitioned
from glowtrain.runtime.partition.drawing import draw as draw_partition
from glowtrain.stages import Options
from glowtrain.trainer.graphs import specs_of
from glowtrain.trainer.micro_batches.within_budget import proposing
from glowtrain.types import Array


@command
def inspect(
    model: options.Model,
    stage: given.StageName = "summary",
    train: options.WholeStep = False,
    explain: given.Explain = False,
    backend: options.Backend = "cpu",
    threads: options.Threads = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    open_batch: options.OpenBatch = False,
    dataset: given.ShapesOf = None,
    data_dir: options.DataDir = None,
    loss: options.Loss = "softmax_cross_entropy",
    labels: options.Labels = None,
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    untie: options.Untie = [],  # noqa: B006
    optimizer: options.OptimizerChoice = "adam",
    momentum: options.Momentum = None,
    memory: options.Memory = None,
    micro_batches: options.MicroBatchCount = 1,
    residuals: options.Residuals = None,
    devices: given.Devices = None,
    device_memory: given.DeviceMemory = None,
    plot: given.Plot = None,
    budget: given.ProposedBudget = None,
    target: given.ProposedTarget = "host",
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
    given.check_stage(stage, chosen)
    given.check_devices(stage, devices, device_memory)
    given.check_memory(memory, devices, budget)
    given.check_picture(stage, plot, parts=devices is not None)
    given.check_step(micro_batches, residuals, train=train, parts=devices is not None, proposal=budget is not None)
    examples = stored(dataset, data_dir) if dataset is not None else None
    if budget is not None:
        given.check_budget(stage, dataset, trainable)
    shapes = examples.train if examples else None
    graph = open_graph(model, parse_dims(dims), shapes, untie=untie, open_batch=open_batch)
    if budget is not None and examples is not None:
        attached = by_name(loss, output)
        fed = feed(examples, specs_of(graph.template or graph), attached, labels).train
        show_updates(graph, fed, attached, optimizer_of(optimizer, momentum=momentum), budget, target)
        return
    graphs = step_graphs(graph, loss, output, trainable, optimizer, momentum, micro_batches) if train else None
    step = graph if graphs is None else graphs.step_of(graph)
    how = compile_options(step, chosen.facts, memory, residuals)
    if explain:
        refusals(step, chosen, how)
    elif devices is not None:
        show_parts(step, chosen, devices, device_memory, plot)
    else:
        with proposing(graphs, graph.binding, how, chosen):
            show_stage(step, graph, stage, chosen, how, plot)


def show_stage(step: Graph, model: Graph, stage: str, backend: Backend, how: Options, plot: Path | None) -> None:
    """Print what stands at a stage, of a step of a model or of the model itself."""
    if stage == MEMORY:
        show_step_memory(step, backend, how, kept_for_updates(step, model), plot)
        return
    show(step, stage, backend, how)
    if stage == "summary":
        shared_parameters(model)


def show_updates(
    graph: Graph, examples: Mapping[str, Array], loss: Loss, optimizer: Optimizer, budget: str, target: str
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


def show_step_memory(graph: Graph, backend: Backend, given: Options, optimizer: set[str], plot: Path | None) -> None:
    """Print what a graph takes in memory, and write the picture where one is asked for."""
    report = memory_report(graph, backend, given, optimizer)
    show_memory(report)
    if plot is not None:
        draw(report, plot)
        out.print(f"wrote {plot}")
