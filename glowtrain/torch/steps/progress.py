"""Say on a terminal what is being compiled, where that takes a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

PATIENCE = 0.5
"""Seconds after which something is said."""


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """A spinner on the error stream, from half a second on, that leaves nothing behind; nothing unless that is a
    terminal."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield
        return
    # a trace redirects the streams itself: rich must neither look them up nor replace them meanwhile
    told = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    elapsed = TimeElapsedColumn(Column(min_width=len("0:00:00")))
    console = Console(file=stream)
    bar = Progress(
        SpinnerColumn(), elapsed, told, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    bar.add_task(title, total=None)
    timer = Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
