"""``glowtrain bundle``: a model as an object file with a C interface, for any processor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from glowtrain import bundles, data
from glowtrain.bundles.arguments import folder_of
from glowtrain.bundles.contents import batch_symbol
from glowtrain.bundles.writing import BundleSpec
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.models import ModelFileOptions
from glowtrain.cli.arguments.targets import TARGETS
from glowtrain.cli.arguments.training import LossOptions, OptimizerOptions, require_train
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.records import From, Given
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.settings import setting


@dataclass(frozen=True)
class BundleOptions:
    """What a bundle does, and where."""

    train: bool = setting(False, "A bundle that trains, with --loss and --optimizer.")
    target: Annotated[
        list[str],
        typer.Option(
            metavar="T",
            help=f"Repeatable, each in a folder of its own then: {', '.join(TARGETS)}.",
            autocompletion=names(TARGETS),
        ),
    ] = field(default_factory=lambda: ["host"])
    batch: int | None = setting(None, "Examples in a batch, where the model leaves it open.", metavar="N", least=1)

    def requests(
        self, network: Graph | Template, loss: LossOptions, optimizer: OptimizerOptions, settings: Given
    ) -> Iterator[dict[str, Any]]:
        """What is asked for, for each target."""
        trained = {"loss": loss.named, "optimizer": optimizer.rule()} if self.train else {}
        for each in self.target:
            yield {**settings, **trained, "dims": batch_of(network, self.batch), "target": each}


@command
def bundle(
    context: typer.Context,
    model: options.Model,
    out_path: Annotated[str, typer.Option("--out", metavar="DIR", help="The folder for the files.")],
    what: BundleOptions,
    file: ModelFileOptions,
    settings: Annotated[Given, From(BundleSpec, but=("metrics",))],
    loss: LossOptions,
    optimizer: OptimizerOptions,
) -> None:
    """Write a model as files that run, and with --train also train, without Glowtrain, Python or any library.

    Out come an object file, its C header, a description in JSON, and a program that uses it with what it prints:
    make -C DIR check builds and compares that.

    Examples:

    glowtrain bundle model.onnx --out predicts --batch 1

    glowtrain bundle cnn --train --optimizer sgd --momentum 0.9 --batch 32 --target aarch64 --out trains

    glowtrain bundle cnn --train --batch 32 --target wasm32 --page --out page
    """
    require_train(context, train=what.train)
    file.import_modules()
    examples = data.digits().train if settings["page"] else None
    network = file.open(model, examples, training=what.train)
    folder = folder_of(out_path)
    for request in what.requests(network, loss, optimizer, settings):
        path = folder / request["target"] if len(what.target) > 1 else folder
        out.print(str(bundles.bundle(network, path, **request)))


def batch_of(model: Graph | Template, batch: int | None) -> dict[str, int]:
    """What ``--batch`` binds: the one dimension that is open, the batch. Raises :class:`InputError` for others."""
    if batch is None:
        return {}
    symbol = batch_symbol(model)
    if symbol is None:
        found = ", ".join(model.symbols if isinstance(model, Template) else ()) or "none"
        has = f"{model.name} has {found}"
        raise InputError(f"--batch binds the batch, where nothing else is open; {has}: use --dims NAME=N")
    return {symbol: batch}
