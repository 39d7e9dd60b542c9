"""``glowtrain fleet``: what a training on several processes will take."""

from __future__ import annotations

from typing import Annotated

import typer

from glowtrain.backends.discovery import backend_of
from glowtrain.backends.state import State
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.models import ModelFileOptions
from glowtrain.cli.arguments.training import LossOptions, OptimizerOptions
from glowtrain.cli.commands.profile import Runs, model_graph
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.help import Command, Group, paragraphs
from glowtrain.cli.terminal.progress import spinner
from glowtrain.cli.terminal.records import From, Given
from glowtrain.compiler.service import options_for
from glowtrain.errors import InputError
from glowtrain.fleet.communicator import SingleProcess
from glowtrain.fleet.prediction import NETWORKS, FleetPlan, measure, network_of
from glowtrain.fleet.shards import Share
from glowtrain.fleet.spec import FLEET, FleetSpec
from glowtrain.fleet.step import FleetStep
from glowtrain.grad.slices import SlicedUpdate
from glowtrain.profiling.measure import RUNS
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.settings import TrainingSettings, TrainingSpec
from glowtrain.verification import random_inputs

Ranks = Annotated[
    list[int],
    typer.Option("--ranks", metavar="N", min=1, help="A number of ranks (repeatable).", rich_help_panel=FLEET),
]
OverNetwork = Annotated[
    str,
    typer.Option(
        "--network",
        metavar="W",
        help=f"What ranks are connected by: {', '.join(NETWORKS)}, or LATENCY:BANDWIDTH in µs and GB/s.",
        rich_help_panel=FLEET,
    ),
]


@command
def plan(
    model: options.Model,
    file: ModelFileOptions,
    loss: LossOptions,
    optimizer: OptimizerOptions,
    settings: Annotated[Given, From(TrainingSettings, but=("metrics", "micro_batches"))],
    fit: Annotated[Given, From(FitSpec, only=("batch_size",))],
    together: Annotated[Given, From(FleetSpec, but=("timeout", "overlap"))],
    ranks: Ranks = [],  # noqa: B006  (typer copies it)
    network: OverNetwork = "10gbe",
    runs: Runs = RUNS,
) -> None:
    """Say what a step will take on several numbers of ranks, from what its parts take in this process.

    Every rank is taken to be as fast as this one, alone on its host and its link.

    Examples:

    glowtrain fleet plan cnn --batch-size 256 --shards 16 --network 10gbe

    glowtrain fleet plan model.onnx --shards 1000 --ranks 10 --ranks 100 --ranks 1000 --batch-size 8000
    """
    file.import_modules()
    network_of(network)
    fleet = FleetSpec(**together)
    counts = tuple(ranks or [n for n in range(1, fleet.shards + 1) if fleet.shards % n == 0])
    for count in counts:
        Share(fleet.shards, 0, count)
    graph = model_graph(model, file, fit["batch_size"])
    spec = TrainingSpec(graph, loss.named, optimizer.rule(), **settings, fleet=fleet)
    graphs, backend = TrainerGraphs(spec), backend_of("cpu", spec.threads or 1)
    whole = graphs.example_step
    inputs = random_inputs(whole)
    examples = max(len(array) for array in inputs.values() if array.ndim)
    if examples < fleet.shards:
        raise InputError(f"a batch of {examples} has fewer examples than shards={fleet.shards} (--shards)")
    given = options_for(whole, spec, backend.facts)
    shares = Share(fleet.shards), SingleProcess(), fleet.limit
    state = State({**whole.initial_values, **graphs.inference_example.initial_values})
    with spinner("measuring"):
        sharded = graphs.sharded_step(graphs.example)
        sliced = SlicedUpdate(sharded) if fleet.sharded_optimizer else None
        costs = measure(FleetStep(graphs.shard(), sharded, backend, state, given, *shares), inputs, runs, sliced)
    out.print(FleetPlan(graph.name, examples, fleet.shards, network, costs, counts))


def _fleet() -> None:
    """Trainings on several processes and machines: see docs/fleets.md, and --fleet of train."""


fleet = typer.Typer(name="fleet", cls=Group, help=paragraphs(_fleet), no_args_is_help=True)
fleet.command(cls=Command, help=paragraphs(plan))(plan)
