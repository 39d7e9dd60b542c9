"""PyTorch without its warnings, logs and dumps of graphs, while it does what nobody asked it for by name."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

ABOVE_ALL = logging.CRITICAL + 1


@contextmanager
def quiet() -> Iterator[None]:
    """Within, PyTorch says nothing: what fails raises an error, which says it once."""
    # torch.export prints the graph of what it could not trace, besides
    with warnings.catch_warnings(), _without_logs(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


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
