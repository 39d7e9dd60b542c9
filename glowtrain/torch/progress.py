"""Say on a terminal what is being compiled, where that takes a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
        console=Console(file=stream), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
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
