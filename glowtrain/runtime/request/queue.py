"""The queue in which a network's requests wait: by priority, then by arrival."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from threading import RLock

from glowtrain.errors import DeadlineError, QueueFullError
from glowtrain.presentation.words import plural
from glowtrain.runtime.request.request import Request, Segment


class RequestQueue:
    """Requests by priority, then by arrival; not more than ``limit`` at once."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.rows = 0
        """Rows that wait."""
        self._lock = RLock()
        self._order = count()
        self._ranked: list[tuple[int, int, Request]] = []
        self._waiting: dict[Request, None] = {}
        """In order of arrival."""
        self._deadlines: list[tuple[float, int, Request]] = []
        """Of those that have no answer yet, whether they wait or are in a batch."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: Request) -> None:
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
            heappush(self._ranked, (-request.priority, order, request))
            if request.deadline is not None:
                heappush(self._deadlines, (request.deadline, order, request))

    def discard(self, request: Request) -> None:
        """A request has its answer, or was cancelled: it no longer waits."""
        with self._lock:
            self._drop(request)

    def _drop(self, request: Request) -> None:
        if request in self._waiting:
            del self._waiting[request]
            self.rows -= request.waiting

    def take(self, room: int, now: float) -> list[Segment]:
        """Rows for a batch: as many as wait, but no more than ``room``."""
        found: list[Segment] = []
        with self._lock:
            while room and (request := self._head()) is not None:
                if _late(request, now) or not request.start(now):
                    self._drop(request)  # expire() answers it: nobody's code runs while locks are held
                    continue
                rows = min(room, request.waiting)
                found.append(Segment(request, request.taken, request.taken + rows))
                request.taken += rows
                self.rows -= rows
                room -= rows
                if not request.waiting:
                    self._drop(request)
        return found

    def _head(self) -> Request | None:
        """The first of those that wait."""
        while self._ranked and self._ranked[0][2] not in self._waiting:
            heappop(self._ranked)
        return self._ranked[0][2] if self._ranked else None

    def first(self) -> tuple[int, float, float] | None:
        """The highest priority that waits, the earliest arrival, and the earliest deadline (infinite where there is
        none); None for an empty queue."""
        if not self._waiting:
            return None
        with self._lock:
            if (head := self._head()) is None:
                return None
            oldest = next(iter(self._waiting))
            return head.priority, oldest.arrival, self._earliest() if self._deadlines else float("inf")

    def _earliest(self) -> float:
        limits = (request.deadline for request in self._waiting if request.deadline is not None)
        return min(limits, default=float("inf"))

    def expire(self, now: float) -> float:
        """Answer requests whose deadline has passed, whether they wait or run; the next deadline after them."""
        late = []
        with self._lock:
            while self._deadlines and (self._deadlines[0][2].future.done() or self._deadlines[0][0] <= now):
                late.append(heappop(self._deadlines)[2])
            following = self._deadlines[0][0] if self._deadlines else float("inf")
        for request in late:
            request.fail(DeadlineError(f"network {self.name}: no answer within {request.patience:g} seconds"))
        return following

    def drain(self) -> list[Request]:
        """All requests that wait, taken out."""
        with self._lock:
            waiting = list(self._waiting)
            for request in waiting:
                self._drop(request)
        return waiting


def _late(request: Request, now: float) -> bool:
    return request.deadline is not None and request.deadline <= now
