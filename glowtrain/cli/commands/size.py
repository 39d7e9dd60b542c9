"""``glowtrain size``: what a bundle takes on a processor, before it is built."""

from __future__ import annotations

from typing import Annotated

import typer

from glowtrain import bundles
from glowtrain.bundles.request import BundleRequest
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.models import ModelFileOptions
from glowtrain.cli.arguments.training import LossOptions, OptimizerOptions, require_train
from glowtrain.cli.commands.bundle import BundleOptions
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.records import From, Given


@command
def size(
    context: typer.Context,
    model: options.Model,
    what: BundleOptions,
    file: ModelFileOptions,
    settings: Annotated[Given, From(BundleRequest, but=("name", "metrics"))],
    loss: LossOptions,
    optimizer: OptimizerOptions,
) -> None:
    """Say what a bundle of a model takes: flash, RAM, and the arena, stack and multiply-adds of each function.

    Nothing is written. With --ram, more than that is an error that says what would fit: a smaller batch, fewer layers
    that are trained.

    Examples:

    glowtrain size model.onnx --batch 1 --target cortex-m7

    glowtrain size cnn --train --optimizer sgd --batch 4 --trainable "scores.*" --target cortex-m4 --ram 256KB
    """
    require_train(context, train=what.train)
    file.import_modules()
    network = file.open(model, training=what.train)
    for request in what.requests(network, loss, optimizer, settings):
        out.print(str(bundles.bundle_size(network, **request)))
