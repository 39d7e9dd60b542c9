"""How far a long command is: bars and spinners on the error stream, which leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from glowtrain.cli.terminal.console import err


@contextmanager
def counting(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar, moved by calls with what is done last, the number of those done, and the number of all."""
    with _shown(TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), _description()) as bar:
        task = bar.add_task("")

        def progress(subject: str, number: int, total: int) -> None:
            bar.update(task, completed=number, total=total, description=subject)

        yield progress


@contextmanager
def spinner(title: str) -> Iterator[Callable[[str], None]]:
    """A spinner, told by calls what is being done."""
    with _shown(SpinnerColumn(), TextColumn(title), TimeElapsedColumn(), _description()) as bar:
        task = bar.add_task("", total=None)

        def progress(subject: str) -> None:
            bar.update(task, description=subject)

        yield progress


def _shown(*columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=err, transient=True)


def _description() -> TextColumn:
    return TextColumn("{task.description}", markup=False)
