"""Python's search for cycles of objects, stopped where nearly all that is made stays in use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(*, importing: bool = False) -> Iterator[None]:
    """A block, or a function that it decorates, without the search for cycles: to import, to build graphs and to
    compile makes objects that are in use till the end, and looking through them again and again took a sixth of the
    time. Of several threads, whoever has stopped it starts it again.

    ``importing``: what the block has made is not looked at afterwards, either, before the next search through
    everything, unless there are frozen objects: those of modules stay. All others of this moment wait for that search,
    too.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if importing and not gc.get_freeze_count():  # else somebody's would thaw; Python 3.12 has some of its own
            gc.freeze()
            gc.unfreeze()  # among the oldest
        if enabled:
            gc.enable()
