"""The command line. One module a command; mistakes end in one message, never in a traceback."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from glowtrain.cli.terminal.encoding import encodable
from glowtrain.cli.terminal.help import Command, Group, paragraphs
from glowtrain.version import __version__

COMMANDS = (
    "demo", "train", "evaluate", "run", "quantize", "serve", "bundle", "size", "inspect", "profile", "verify",
    "gradients", "gradcheck", "conformance", "operators", "fleet", "cache", "doctor",
)  # fmt: skip
"""Each is a function, or an application with commands of its own, in the module of its name in ``commands``."""


def application(*commands: str) -> typer.Typer:
    """The command line with some of its commands: what others need is not imported."""
    made = typer.Typer(
        name="glowtrain",
        cls=Group,
        help="A training compiler: an ONNX model in, one compiled training step, a trained ONNX model out.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        callback=_root,
    )
    for name in commands:
        found = getattr(import_module(f"{__name__}.commands.{name}"), name)
        if isinstance(found, typer.Typer):
            made.add_typer(found)
        else:
            made.command(cls=Command, help=paragraphs(found))(found)
    return made


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glowtrain {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def __getattr__(name: str) -> Any:
    """``app``: the whole command line."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = application(*COMMANDS)
    return globals()[name]


def main() -> None:
    """The entry point ``glowtrain``."""
    encodable()
    called = sys.argv[1:2]
    application(*(called if called and called[0] in COMMANDS else COMMANDS))()
