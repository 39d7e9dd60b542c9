"""``--cache`` and ``--no-cache``: where a command keeps compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.cli.arguments import options
from glowtrain.errors import InputError
from glowtrain.settings import setting


@dataclass(frozen=True)
class BackendOptions:
    """A backend, and where it keeps compiled code."""

    backend: options.Backend = "cpu"
    cache: Path | None = setting(None, "Keep compiled code in this folder and not in the user's.", metavar="DIR")
    no_cache: bool = setting(False, "Keep no compiled code, and take none that is there.")

    @property
    def chosen(self) -> str | Backend:
        """The backend with a folder for compiled code: its own, the one that was named, or none.

        Raises :class:`InputError` for a backend that makes no code, and for both options at once.
        """
        if self.cache is None and not self.no_cache:
            return self.backend
        if self.cache is not None and self.no_cache:
            raise InputError("give --cache or --no-cache, not both")
        named = backend_of(self.backend)
        if named.target is None:
            option = "--cache" if self.cache else "--no-cache"
            raise InputError(f"{option} is about native code, which the backend {self.backend} does not make")
        return named.with_cache(self.cache)
