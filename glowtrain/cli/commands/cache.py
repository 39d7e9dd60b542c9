"""``glowtrain cache``: what is kept of compiled code, and how to be rid of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.backends.cache.folder import LIMIT, Cache
from glowtrain.backends.cache.location import user_folder
from glowtrain.cli.terminal.console import command, out, seconds
from glowtrain.cli.terminal.help import Command, Group, paragraphs
from glowtrain.errors import InputError
from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.messages import plural

Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="Another folder than the user's: one that --cache named."),
]


@command
def show(context: typer.Context, folder: Folder = None) -> None:
    """Show where compiled code is kept, how much there is and how much there may be.

    What was used longest ago goes first. All of it can be deleted at any time: it is compiled again.

    Examples:

    glowtrain cache

    glowtrain cache clear
    """
    if context.invoked_subcommand is None:
        cache = cache_in(folder)
        found = cache.entries()
        rows = [
            ("folder", str(cache.folder)),
            ("files", f"{len(found):,}"),
            ("size", f"{byte_text(sum(entry.nbytes for entry in found))} of {byte_text(LIMIT)} at most"),
        ]
        if found:
            rows.append(("oldest", f"last used {seconds(max(0.0, time.time() - found[0].used))} ago"))
        for name, value in rows:
            out.print(f"{name:<8}{value}")


@command
def clear(folder: Folder = None) -> None:
    """Delete all compiled code that is kept."""
    cache = cache_in(folder)
    found = cache.clear()
    freed = byte_text(sum(entry.nbytes for entry in found))
    out.print(f"removed {plural(len(found), 'file')}, {freed}, from {cache.folder}")


@command
def path() -> None:
    """Print the folder in which compiled code is kept, and nothing else."""
    typer.echo(user_folder())


def cache_in(folder: Path | None) -> Cache:
    """The cache in a folder, or the user's. Raises :class:`InputError` for what is no folder."""
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    return Cache(user_folder() if folder is None else folder, private=folder is None)


cache = typer.Typer(name="cache", cls=Group, help=paragraphs(show), invoke_without_command=True, callback=show)
for function in (clear, path):
    cache.command(cls=Command, help=paragraphs(function))(function)
