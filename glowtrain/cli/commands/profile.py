"""``glowtrain profile``: where the time of a compiled step goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.backends.discovery import backend_of
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.files import check_reports, write_texts
from glowtrain.cli.arguments.models import ModelFileOptions, as_graph
from glowtrain.cli.arguments.training import LossOptions, OptimizerOptions, compilation_of, require_train
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.progress import spinner
from glowtrain.cli.terminal.records import From, Given
from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.profiling.measure import RUNS
from glowtrain.profiling.measure import profile as measured
from glowtrain.profiling.numbers import json_text
from glowtrain.profiling.page import html_page
from glowtrain.profiling.report import ProfileReport
from glowtrain.profiling.trace import trace_text
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.graphs import DEFAULT_BATCH, fixed_batch, specs_of
from glowtrain.trainer.micro_batches.within_budget import proposing
from glowtrain.trainer.settings import TrainingSettings

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


@dataclass(frozen=True)
class Reports:
    """Where the numbers go."""

    html: Html = None
    trace: Trace = None
    json_path: Json = None

    def write(self, report: ProfileReport) -> Iterator[Path]:
        """Write them; the paths."""
        texts = (self.html, html_page), (self.trace, trace_text), (self.json_path, json_text)
        yield from write_texts(*((path, partial(text, report)) for path, text in texts))


@command
def profile(
    context: typer.Context,
    model: options.Model,
    file: ModelFileOptions,
    loss: LossOptions,
    optimizer: OptimizerOptions,
    settings: Annotated[Given, From(TrainingSettings, but=("metrics",))],
    fit: Annotated[Given, From(FitSpec, only=("batch_size",))],
    reports: Reports,
    train: options.WholeStep = False,
    backend: options.Backend = "cpu",
    runs: Runs = RUNS,
) -> None:
    """Run a compiled model on made-up inputs, and print for each kernel its time, what it did in it beside what this
    machine can do, and which layers it belongs to.

    Examples:

    glowtrain profile cnn --train --batch-size 128

    glowtrain profile model.onnx --train --html profile.html --trace trace.json

    glowtrain profile cnn --train --memory small
    """
    require_train(context, train=train)
    file.import_modules()
    check_reports(reports.trace, reports.json_path, page=reports.html)
    chosen = backend_of(backend, settings["threads"])
    graph = model_graph(model, file, fit["batch_size"])
    compiled = compilation_of(graph, chosen.facts, loss, optimizer, settings, train=train)
    with spinner("profiling") as told, proposing(compiled.graphs, graph.binding, compiled.options, chosen):
        report = measured(compiled.step, chosen, runs, progress=told, options=compiled.options)
    out.print(report)
    for path in reports.write(report):
        out.print(f"wrote {path}")


def model_graph(model: str, file: ModelFileOptions, batch_size: int | None) -> Graph:
    """The model at a size of its batch. Raises :class:`InputError` for another one than it is fixed to."""
    network = file.open(model)
    if isinstance(network, Graph) and batch_size not in (None, fixed_batch(specs_of(network))):
        raise InputError(
            f"{model}: --batch-size {batch_size} is not what its inputs are bound to; bind others with --dims, or open "
            "the batch of a file with --open-batch"
        )
    return as_graph(network, batch_size or DEFAULT_BATCH)
