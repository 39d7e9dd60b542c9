"""Python's search for cycles of objects, stopped where nearly all that is made stays in use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """A block, or a function that it decorates, without the search for cycles: to import, to build graphs and to
    compile makes objects that are in use till the end, and looking through them again and again took a sixth of the
    time. Of several threads, whoever has stopped it starts it again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
