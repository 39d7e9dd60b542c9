"""Ctrl-C between steps, never in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """While active, the first Ctrl-C only asks to stop; :meth:`check` obeys between steps. A second one acts at once.

    Outside the main thread, where signals cannot be caught, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None
        self._active = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._request)
            self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if one was asked for."""
        if self.requested:
            raise KeyboardInterrupt

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._before)
            self._active = False
