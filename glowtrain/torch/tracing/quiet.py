"""Silence PyTorch's warnings, logs and dumps of graphs while it does what nobody asked it for by name."""

from __future__ import annotations

import io
import logging
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from glowtrain.torch.tracing.source_locations import LIBRARY

CALLERS = tuple(os.path.join(LIBRARY, folder, "") for folder in ("nn", "_export"))
"""Where functions are called that warn of their operands: PyTorch's layers, and its tracer on behalf of a module."""
ABOUT_TRACE = "assigned during export"
STANDARD = sysconfig.get_path("stdlib")
ABOVE_ALL = logging.CRITICAL + 1


@contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Within, PyTorch says nothing of what it does; what fails raises an error, which says it once.

    What a module warns of or prints itself is heard afterwards, and what PyTorch's layers and functions say of their
    operands. Gives the list of all warnings, as it grows.
    """
    printed = io.StringIO()  # torch.export prints the graph of what it could not trace, besides
    with warnings.catch_warnings(record=True) as said, _without_logs(), redirect_stderr(printed):
        warnings.simplefilter("always")
        yield said
    sys.stderr.write(printed.getvalue())
    for each in said:
        if _is_heard(each):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _is_heard(warning: warnings.WarningMessage) -> bool:
    """Whether a warning is on the module: not on what PyTorch and Python do inside for a trace."""
    file = warning.filename
    if file.startswith(LIBRARY):
        return file.startswith(CALLERS) and ABOUT_TRACE not in str(warning.message)
    return not file.startswith(STANDARD) or "site-packages" in file


@contextmanager
def _without_logs() -> Iterator[None]:
    """Loggers that are made within, as modules are imported late, have the level of their parent."""
    parent = logging.getLogger("torch")
    level = parent.level
    made = [each for name, each in logging.root.manager.loggerDict.items() if name.startswith("torch.")]
    heard = [logger for logger in made if isinstance(logger, logging.Logger) and not logger.disabled]
    parent.setLevel(ABOVE_ALL)
    for logger in heard:
        logger.disabled = True
    try:
        yield
    finally:
        parent.setLevel(level)
        for logger in heard:
            logger.disabled = False
