"""Locks in a child of fork: the thread that forked is alone there, and others may have held them."""

from __future__ import annotations

import functools
import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something with locks."""

    def renew(self) -> None:
        """Make the locks anew, free of threads that this process does not have."""


_renewable: WeakSet[Renewable] = WeakSet()


def renew_in_children(owner: Renewable) -> None:
    """Have an object, as long as it lives, make its locks anew in children of fork."""
    _watch_forks()
    _renewable.add(owner)


@functools.cache
def _watch_forks() -> None:
    """Once, for the first object that needs it: who only imports Glowtrain forks as before."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew)


def _renew() -> None:
    for owner in list(_renewable):
        owner.renew()
