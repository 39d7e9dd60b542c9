"""Prefetch items of an iterator in a thread while the caller does something else."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

POLL = 0.05
"""Seconds after which a wait looks whether it is to end."""
GRACE = 1.0
"""Seconds for the thread to end in, once nobody wants its items."""


class Inline(Generic[T]):
    """The items of a generator in their order, made when they are asked for."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items

    def take(self, most: int) -> list[T]:
        """The next item; none at the end."""
        return list(islice(self._items, 1))

    def close(self) -> None:
        """Close the generator."""
        self._items.close()


class Prefetched(Generic[T]):
    """The items of a generator in their order, of which a thread makes up to ``ahead`` before they are asked for; or
    as many as are asked for at once, up to ``limit``.

    What the generator raises is raised where the item would have been, in the caller's thread. While that waits, it
    calls ``check``, which may raise what ends the wait. :meth:`close` must be called.
    """

    def __init__(self, items: Generator[T, None, None], ahead: int, limit: int, check: Callable[[], None]) -> None:
        self._items = items
        self.ahead = ahead
        self.limit = limit
        self._check = check
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._wanted = self._running = True
        self._error: BaseException | None = None
        work = contextvars.copy_context().run  # settings such as numpy.errstate are those of the caller
        self._thread = threading.Thread(target=work, args=(self._work,), name="glowtrain-prefetch", daemon=True)
        self._thread.start()

    def take(self, most: int) -> list[T]:
        """The next items: as many as are ready, but at least one and at most ``most``; none at the end."""
        with self._changed:
            self.ahead = max(self.ahead, min(most, self.limit))
            while not self._ready and self._running:
                self._changed.wait(POLL)
                self._check()
            if self._ready:
                self._changed.notify_all()
                return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        self._check()
        if self._error is not None:
            raise self._error_once()
        return []

    def _error_once(self) -> BaseException:
        """The error, which is not kept: through its frames it would keep this object, and all that makes items."""
        error, self._error = self._error, None
        assert error is not None
        return error

    def close(self) -> None:
        """End the thread, which closes the generator.

        One that is in the middle of an item cannot be stopped: after a second it is left behind, to end when the item
        is made. It does not keep the process from ending.
        """
        with self._changed:
            self._wanted = False
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(GRACE)

    def _work(self) -> None:
        try:
            with closing(self._items):
                while self._has_room():
                    self._give(next(self._items))
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller's thread raises it
            self._error = error
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Wait until another item may be made; whether one is wanted."""
        with self._changed:
            while self._wanted and len(self._ready) >= self.ahead:
                self._changed.wait()
            return self._wanted

    def _give(self, item: T) -> None:
        with self._changed:
            if self._wanted:
                self._ready.append(item)
            self._changed.notify_all()
