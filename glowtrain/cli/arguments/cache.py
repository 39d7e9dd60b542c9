"""``--cache`` and ``--no-cache``: where a command keeps compiled code."""

from __future__ import annotations

from pathlib import Path

from glowtrain.backends.base import Backend
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.errors import InputError


def kept(backend: str, cache: Path | None, *, no_cache: bool) -> str | Backend:
    """The backend with a folder for compiled code: its own, the one that was named, or none.

    Raises :class:`InputError` for a backend that makes no code, and for both options at once.
    """
    if cache is None and not no_cache:
        return backend
    if cache is not None and no_cache:
        raise InputError("give --cache or --no-cache, not both")
    if backend != Cpu.name:
        option = "--cache" if cache else "--no-cache"
        raise InputError(f"{option} is about native code, which the backend {backend} does not make")
    return Cpu(cache=cache)
