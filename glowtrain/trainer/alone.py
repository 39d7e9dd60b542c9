"""One run of a trainer at a time."""

from __future__ import annotations

import threading
from types import TracebackType

from glowtrain.errors import InputError
from glowtrain.forks import renew_in_children


class Alone:
    """Lets one caller in (``with``), and refuses every other one meanwhile, by :class:`InputError`: also the same
    thread once more, as from a callback."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._inside: int | None = None
        self._lock = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of fork, only the thread that forked can be inside."""
        self._lock = threading.Lock()
        if self._inside != threading.get_ident():
            self._inside = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside is not None:
                raise InputError(self._refusal)
            self._inside = threading.get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = None
