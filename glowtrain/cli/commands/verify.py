"""``glowtrain verify``: a model up the ladder of ever more compiled forms."""

from __future__ import annotations

from typing import Annotated

import typer

from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_graph, parse_dims
from glowtrain.cli.arguments.training import training_step
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.progress import waiting
from glowtrain.verification import ladder, random_inputs

BATCH = 4


@command
def verify(
    model: options.Model,
    train: options.WholeStep = False,
    backend: options.Backend = "cpu",
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    open_batch: options.OpenBatch = False,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Fixes the inputs, which are drawn.")] = 0,
    loss: options.Loss = "softmax_cross_entropy",
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    untie: options.Untie = [],  # noqa: B006
    optimizer: options.OptimizerChoice = "adam",
    momentum: options.Momentum = None,
    modules: options.Modules = [],  # noqa: B006
) -> None:
    """Run a model in every form that the compiler gives it, and compare each with the reference in double precision.

    Names the first form that differs, and the operator or kernel at which it begins to.

    Examples:

    glowtrain verify model.onnx

    glowtrain verify model.onnx --train --optimizer sgd --momentum 0.9 --dims batch=8
    """
    import_modules(modules)
    graph = open_graph(model, parse_dims(dims), batch=BATCH, open_batch=open_batch, untie=untie)
    if train:
        graph = training_step(graph, loss, output, trainable, optimizer, momentum)
    with waiting("verifying") as progress:
        report = ladder(graph, random_inputs(graph, seed), backend=backend, progress=progress)
    out.print(report)
    report.require()
