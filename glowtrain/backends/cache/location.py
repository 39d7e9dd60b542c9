"""Where compiled code is kept unless someone says otherwise: in the user's folder for caches."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import platformdirs

from glowtrain.backends.cache.folder import Cache

CacheChoice = Cache | str | os.PathLike[str] | bool | None
"""A folder; True: the user's; False or None: none."""


def user_folder() -> Path:
    """``glowtrain`` in the user's cache directory: ``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux."""
    return platformdirs.user_cache_path("glowtrain", appauthor=False)


@functools.cache
def user_cache() -> Cache:
    """The cache in the user's folder."""
    return Cache(user_folder(), private=True)


def chosen(cache: CacheChoice) -> Cache | None:
    """The cache that was asked for."""
    if isinstance(cache, Cache):
        return cache
    if cache is None or isinstance(cache, bool):
        return user_cache() if cache else None
    return Cache(cache)
