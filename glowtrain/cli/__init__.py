"""The command line. One module a command; mistakes end in one message, never in a traceback."""

from __future__ import annotations

from typing import Annotated

import typer

from glowtrain import __version__
from glowtrain.cli.commands.conformance import conformance
from glowtrain.cli.commands.demo import demo
from glowtrain.cli.commands.gradcheck import gradcheck
from glowtrain.cli.commands.inspect import inspect
from glowtrain.cli.commands.operators import operators
from glowtrain.cli.commands.quantize import quantize
from glowtrain.cli.commands.run import run
from glowtrain.cli.commands.train import train
from glowtrain.cli.commands.verify import verify
from glowtrain.cli.terminal.encoding import encodable
from glowtrain.cli.terminal.help import Command, Group, paragraphs

app = typer.Typer(
    name="glowtrain",
    cls=Group,
    help="A training compiler: an ONNX model in, one compiled training step, a trained ONNX model out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for function in (demo, train, quantize, run, inspect, verify, gradcheck, conformance, operators):
    app.command(cls=Command, help=paragraphs(function))(function)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glowtrain {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point ``glowtrain``."""
    encodable()
    app()
