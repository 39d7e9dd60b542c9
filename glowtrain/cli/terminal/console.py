"""What all commands share in talking to people: two consoles, numbers with units, and errors without tracebacks."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from glowtrain.cli.terminal.records import expanded
from glowtrain.errors import GlowtrainError

FAILED, INTERRUPTED = 1, 130
"""Exit statuses; 2 (wrong usage) is typer's."""

PACKAGE = Path(__file__).parents[2]
WIDTH = 118
"""Columns of tables where the output is not a terminal."""


def _console(*, stderr: bool) -> Console:
    """A terminal's lines are broken between words, a file's are left whole. Nothing that is printed is markup."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal else WIDTH
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=not terminal, width=width)


out = _console(stderr=False)
err = _console(stderr=True)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: mistakes that a person can act on end the command with one message and no traceback. A parameter that
    is a record stands for the options of its fields (:mod:`glowtrain.cli.terminal.records`)."""
    options = expanded(function)

    @functools.wraps(function)
    def guarded(**values: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _shown(warnings.showwarning)
                function(**options.arguments(values))
            sys.stdout.flush()
        except KeyboardInterrupt:
            err.print("interrupted", style="red")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            silence_stdout()
            raise typer.Exit(FAILED) from None
        except GlowtrainError as error:
            fail(str(error))
        except MemoryError as error:
            fail(f"there is not enough memory{f': {error}' if str(error) else ''}")
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))

    guarded.__signature__ = options.signature  # type: ignore[attr-defined]
    guarded.__annotations__ = {name: each.annotation for name, each in options.signature.parameters.items()}
    return guarded


def _shown(otherwise: Callable[..., None]) -> Callable[..., None]:
    """How warnings are shown: those of Glowtrain's own lines are remarks, which say nothing of a line of Python."""

    def show(message: Warning | str, category: type[Warning], filename: str, *args: Any, **kwargs: Any) -> None:
        if issubclass(category, UserWarning) and PACKAGE in Path(filename).parents:
            note(f"warning: {message}")
        else:
            otherwise(message, category, filename, *args, **kwargs)

    return show


def fail(message: str) -> NoReturn:
    """Print an error and leave."""
    if (world := sys.modules.get("glowtrain.fleet.world")) is None or world.speaks(message):
        err.quiet = False
        err.print(Text.assemble(("error: ", "bold red"), (message, "red")))
    raise typer.Exit(FAILED) from None


def note(message: str) -> None:
    """A remark beside the output (on the error stream, so that output can be piped)."""
    err.print(message, style="dim")


def silence_stdout() -> None:
    """The reader of our output went away: nothing more can be written, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def seconds(duration: float) -> str:
    """``85 µs``, ``3.1 ms``, ``12.4 s`` or ``2 min 05 s``"""
    if duration < 1e-3:
        return f"{duration * 1e6:.0f} µs"
    if duration < 1:
        return f"{duration * 1e3:.1f} ms"
    if duration < 60:
        return f"{duration:.1f} s"
    return f"{int(duration) // 60} min {int(duration) % 60:02d} s"
