"""``glowtrain profile``: where the time of a compiled step goes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.backends.discovery import backend_of
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.files import check_reports, write_texts
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import as_graph, open_model, parse_dims
from glowtrain.cli.arguments.training import compile_options, step_graphs, step_options
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.progress import waiting
from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.profiling import table
from glowtrain.profiling.measure import RUNS
from glowtrain.profiling.measure import profile as measured
from glowtrain.profiling.numbers import json_text
from glowtrain.profiling.page import html_page
from glowtrain.profiling.report import ProfileReport
from glowtrain.profiling.trace import trace_text
from glowtrain.trainer.graphs import DEFAULT_BATCH, fixed_batch, specs_of
from glowtrain.trainer.micro_batches.within_budget import proposing

Runs = Annotated[int, typer.Option(min=1, metavar="N", help="Runs, of which the fastest counts.")]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="F", help="A page with a roofline plot.", rich_help_panel=options.OUTPUT),
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="F", help="A trace for Perfetto.", rich_help_panel=options.OUTPUT),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="F", help="The numbers.", rich_help_panel=options.OUTPUT)]


@command
def profile(
    model: options.Model,
    train: options.WholeStep = False,
    backend: options.Backend = "cpu",
    threads: options.Threads = None,
    memory: options.Memory = None,
    micro_batches: options.MicroBatchCount = 1,
    residuals: options.Residuals = None,
    batch_size: options.BatchSize = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    open_batch: options.OpenBatch = False,
    runs: Runs = RUNS,
    loss: options.Loss = "softmax_cross_entropy",
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    untie: options.Untie = [],  # noqa: B006
    optimizer: options.OptimizerChoice = "adam",
    momentum: options.Momentum = None,
    html: Html = None,
    trace: Trace = None,
    json_path: Json = None,
    modules: options.Modules = [],  # noqa: B006
) -> None:
    """Run a compiled model on made-up inputs, and print for each kernel its time, what it did in it beside what this
    machine can do, and which layers it belongs to.

    Examples:

    glowtrain profile cnn --train --batch-size 128

    glowtrain profile model.onnx --train --html profile.html --trace trace.json

    glowtrain profile cnn --train --memory small
    """
    import_modules(modules)
    check_reports(trace, json_path, page=html)
    step_options(micro_batches, residuals, train=train)
    chosen = backend_of(backend, threads)
    graph = model_graph(model, dims, batch_size, open_batch=open_batch, untie=untie)
    graphs = step_graphs(graph, loss, output, trainable, optimizer, momentum, micro_batches) if train else None
    step = graph if graphs is None else graphs.step_of(graph)
    how = compile_options(step, chosen.facts, memory, residuals)
    with waiting("profiling") as told, proposing(graphs, graph.binding, how, chosen):
        report = measured(step, chosen, runs, told=told, options=how)
    show(report)
    texts = (html, html_page), (trace, trace_text), (json_path, json_text)
    for path in write_texts(*((path, partial(text, report)) for path, text in texts)):
        out.print(f"wrote {path}")


def model_graph(model: str, dims: list[str], batch_size: int | None, *, open_batch: bool, untie: list[str]) -> Graph:
    """The model at a size of its batch. Raises :class:`InputError` for another one than it is fixed to."""
    network = open_model(model, parse_dims(dims), open_batch=open_batch, untie=untie)
    if isinstance(network, Graph) and batch_size not in (None, fixed_batch(specs_of(network))):
        raise InputError(
            f"{model}: --batch-size {batch_size} is not what its inputs are bound to; bind others with --dims, or open "
            "the batch of a file with --open-batch"
        )
    return as_graph(network, batch_size or DEFAULT_BATCH)


def show(report: ProfileReport) -> None:
    """Print the kernels, the layers, and what all of it took."""
    out.print(table.kernels(report))
    out.print()
    out.print(table.layers(report))
    out.print()
    out.print(f"threads were busy for {table.busy(report.busy)} of the step; {report.reached:.0%} of the roofs in all")
    out.print(report.summary())
