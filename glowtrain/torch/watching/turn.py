"""Whose turn it is to run a step: one thread's at a time, by Python or by native code."""

from __future__ import annotations

import ctypes
from threading import Condition, get_ident
from types import TracebackType

BUSY, WAITING, TELL = range(3)
"""The words that native code looks at: whether it is somebody's turn, how many threads wait for theirs, and the
function of Python that it calls then, when it is done."""


class Turn:
    """A lock, which the thread that has it may take again. Native code takes it, only if it is free, by a word.

    All changes are made by who holds Python's global lock.
    """

    def __init__(self) -> None:
        self._words = (ctypes.c_uint64 * 3)()
        self._tell = self.tell
        self._words[TELL] = id(self._tell)
        self.address = ctypes.addressof(self._words)
        self.renew()

    def renew(self) -> None:
        """It is nobody's turn, and nobody waits."""
        self._given_back, self._owner, self._depth = Condition(), 0, 0
        self._words[BUSY] = self._words[WAITING] = 0

    def __enter__(self) -> None:
        own = get_ident()
        if self._owner != own:
            self._wait(own)
        self._depth += 1

    def _wait(self, own: int) -> None:
        with self._given_back:
            self._words[WAITING] += 1  # said before looking: who is done looks at it afterwards
            try:
                while self._words[BUSY]:
                    self._given_back.wait()
            finally:
                self._words[WAITING] -= 1
            self._words[BUSY], self._owner = 1, own

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = self._words[BUSY] = 0
            self.tell()

    def tell(self) -> None:
        """Whoever waits looks again."""
        with self._given_back:
            self._given_back.notify_all()
