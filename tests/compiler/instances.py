"""Instances of a compiled graph, taken as a call takes one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from glowtrain.backends.base import Instance
from glowtrain.compiler import Specialisation


@contextmanager
def taken(special: Specialisation) -> Iterator[Instance]:
    """An instance that nobody else uses meanwhile; waits where as many as there are cores are in use."""
    instance = special._take()
    try:
        yield instance
    finally:
        special._give_back(instance)
