"""The queue in which a network's requests wait: by priority, then by arrival."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from threading import RLock

from glowtrain.errors import DeadlineError, QueueFullError
from glowtrain.presentation.messages import plural
from glowtrain.runtime.request.request import NetworkRequest, Segment


class Ranks:
    """Requests by rank, then by arrival, as long as they are ``alive``. Those that no longer are leave when they come
    first, and all of them whenever they may have become half of what is here."""

    def __init__(self, alive: Callable[[NetworkRequest], bool]) -> None:
        self._alive = alive
        self._entries: list[tuple[float, int, NetworkRequest]] = []
        self._sweep = FEW

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, rank: float, order: int, request: NetworkRequest) -> None:
        """Have a request here. No two have the same ``order``."""
        if len(self._entries) >= self._sweep:
            self._entries = [entry for entry in self._entries if self._alive(entry[2])]
            heapify(self._entries)
            self._sweep = max(FEW, 2 * len(self._entries))
        heappush(self._entries, (rank, order, request))

    def clear(self) -> None:
        """None of them is alive."""
        self._entries.clear()

    def first(self) -> tuple[float, NetworkRequest] | None:
        """The lowest rank that is alive, and whose it is."""
        while self._entries and not self._alive(self._entries[0][2]):
            heappop(self._entries)
        return (self._entries[0][0], self._entries[0][2]) if self._entries else None

    def up_to(self, rank: float) -> list[NetworkRequest]:
        """Take out those that are alive, up to a rank."""
        found = []
        while (first := self.first()) is not None and first[0] <= rank:
            heappop(self._entries)
            found.append(first[1])
        return found


FEW = 64
"""Entries that need no sweeping."""


class RequestQueue:
    """Requests by priority, then by arrival; not more than ``limit`` at once."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.rows = 0
        """Rows that wait."""
        self._lock = RLock()
        self._order = count()
        self._waiting: dict[NetworkRequest, None] = {}
        """In order of arrival."""
        self._ranked = Ranks(self._waiting.__contains__)
        self._urgent = Ranks(self._waiting.__contains__)
        """By deadline."""
        self._deadlines = Ranks(lambda request: not request.future.done())
        """The same of all that have no answer yet, whether they wait or are in a batch."""
        self._overdue: dict[NetworkRequest, None] = {}
        """Those that came first when it was too late: they no longer wait, and :meth:`expire` is to answer them."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: NetworkRequest) -> None:
        """Have a request wait. Raises :class:`QueueFullError` naming the limit."""
        with self._lock:
            if len(self._waiting) >= self.limit:
                raise QueueFullError(
                    f"network {self.name}: {plural(self.limit, 'request')} wait already, which is the limit of its "
                    "queue; ask again later, or add it with a larger queue="
                )
            order = next(self._order)
            self._waiting[request] = None
            self.rows += request.rows
            self._ranked.put(-request.priority, order, request)
            if request.deadline is not None:
                self._urgent.put(request.deadline, order, request)
                self._deadlines.put(request.deadline, order, request)

    def discard(self, request: NetworkRequest) -> None:
        """A request has its answer, or was cancelled: it no longer waits."""
        with self._lock:
            self._drop(request)

    def _drop(self, request: NetworkRequest) -> None:
        self._overdue.pop(request, None)
        if request in self._waiting:
            del self._waiting[request]
            self.rows -= request.queued_rows
        if not self._waiting:
            self._ranked.clear()
            self._urgent.clear()

    def take(self, room: int, now: float) -> list[Segment]:
        """Rows for a batch: as many as wait, but no more than ``room``."""
        found: list[Segment] = []
        with self._lock:
            while room and (request := self._head()) is not None:
                if (late := _late(request, now)) or not request.start(now):
                    self._drop(request)
                    if late:  # expire() answers it: nobody's code runs while locks are held
                        self._overdue[request] = None
                    continue
                rows = min(room, request.queued_rows)
                found.append(Segment(request, request.taken, request.taken + rows))
                request.taken += rows
                self.rows -= rows
                room -= rows
                if not request.queued_rows:
                    self._drop(request)
        return found

    def _head(self) -> NetworkRequest | None:
        """The first of those that wait."""
        first = self._ranked.first()
        return None if first is None else first[1]

    def first(self) -> tuple[int, float, float] | None:
        """The highest priority that waits, the earliest arrival, and the earliest deadline (infinite where there is
        none); None for an empty queue."""
        if not self._waiting:
            return None
        with self._lock:
            if (head := self._head()) is None:
                return None
            oldest, urgent = next(iter(self._waiting)), self._urgent.first()
            return head.priority, oldest.arrival, float("inf") if urgent is None else urgent[0]

    @property
    def deadline(self) -> float:
        """The earliest of those that have no answer yet; infinite where there is none."""
        if not len(self._deadlines):
            return float("inf")
        with self._lock:
            first = self._deadlines.first()
        return float("inf") if first is None else first[0]

    def expire(self, now: float) -> None:
        """Answer requests whose deadline has passed, whether they wait or run."""
        if not len(self._deadlines):
            return
        with self._lock:
            late = self._deadlines.up_to(now)
        for request in late:
            request.fail(DeadlineError(f"network {self.name}: no answer within {request.patience:g} seconds"))

    def drain(self) -> list[NetworkRequest]:
        """All requests that wait, or that nobody has told yet that they are late, taken out."""
        with self._lock:
            waiting = [*self._waiting, *self._overdue]
            for request in waiting:
                self._drop(request)
        return waiting


def _late(request: NetworkRequest, now: float) -> bool:
    return request.deadline is not None and request.deadline <= now
