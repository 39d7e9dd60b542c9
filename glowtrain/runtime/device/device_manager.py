"""The manager of one device: its thread, its queue, its memory, and whether it still works.

The thread takes tasks by priority and, where there are none, asks its sources (networks with requests that wait) for
one. So requests pile up while a device is busy, and a batch is formed of them when it is free, not earlier. Where a
device may be called from any thread, who asks for a result can run the task while nothing else wants the device; that
saves two changes of threads.

A device that raises :class:`DeviceLostError`, or that takes longer over a task than its limit, is out of service: its
tasks fail, its thread is left behind, and the rest of the runtime goes on without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from threading import Condition, RLock, Thread, current_thread, get_ident
from typing import Protocol, TypeVar

from glowtrain.backends.device import Device
from glowtrain.errors import DeviceError, DeviceLostError, ProvisionError

Result = TypeVar("Result")


@dataclass(eq=False)
class Task:
    """Something for a device to do. ``call`` runs on its thread and handles its own errors but for a lost device's;
    ``fail`` is called in its place, or after it, with what became of the device."""

    call: Callable[[], None]
    fail: Callable[[DeviceLostError], None]
    priority: int = 0
    what: str = "a function"


@dataclass(frozen=True, order=True)
class Offer:
    """What a source has: a task at a time (of ``time.monotonic``), for requests of a priority that came at a time."""

    urgency: int
    """The negated priority: the smallest goes first."""
    arrival: float
    at: float


class Source(Protocol):
    """Where a manager finds tasks when it has none."""

    def offer(self, now: float) -> Offer | None:
        """What could be taken now or later, as far as it is known."""

    def take(self, now: float) -> Task | None:
        """A task; none if another device was quicker."""


@dataclass(frozen=True)
class DeviceStatus:
    """A device as it is at a moment. ``lost``: why it is out of service, if it is. ``memory``: bytes that it may hold,
    ``used``: those that are taken. ``queued``: tasks that wait. ``busy``: seconds that it has worked, ``tasks``: on so
    many tasks; ``load``: the part of its time since it began."""

    name: str
    lost: str | None
    memory: int | None
    used: int
    queued: int
    tasks: int
    busy: float
    load: float


class DeviceManager:
    """The thread and the queue of a device; see the module's docstring. ``limit``: seconds that a task may take."""

    def __init__(self, device: Device, limit: float | None = None) -> None:
        self.device = device
        self.name = device.name
        self.limit = limit
        self.lost: DeviceLostError | None = None
        """Why it is out of service, if it is."""
        self.used = 0
        """Bytes of its memory that are set aside."""
        self.sources: tuple[Source, ...] = ()
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._queue: list[tuple[int, int, Task]] = []
        self._order = count()
        self._running: Task | None = None
        self._began = self._since = self._asked = time.monotonic()
        self._busy, self._tasks = 0.0, 0
        self._holder: int | None = None
        """The thread that has the device in place of its own."""
        self._closing = False
        self._wanted = False
        """Whether there is something that its own thread has not looked at yet."""
        self._thread = Thread(target=self._serve, name=f"device {self.name}", daemon=True)
        self._thread.start()

    def renew(self, why: str) -> None:
        """In a child of fork, which does not have its thread: it is out of service."""
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._queue, self._running, self.sources = [], None, ()
        self.lost = self.lost or DeviceLostError(f"device {self.name} is out of service: {why}")

    # --- what others ask of it ----------------------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Have a task done; where the device is out of service, or closed, the task fails here and now."""
        with self._lock:
            if (lost := self.lost) is None and self._closing:
                lost = DeviceLostError(f"device {self.name} is closed")
            if lost is None:
                heappush(self._queue, (-task.priority, next(self._order), task))
                self._changed.notify()
        if lost is not None:
            task.fail(lost)

    def run_here(self, take: Callable[[], Task | None]) -> bool:
        """Have a task done by this thread, if the device allows for it and nothing else wants it now. ``take`` gives
        the task once the device is held. Whether it was done."""
        try:
            if not self._hold() or (task := take()) is None:
                return False
            self._running, self._began = task, time.monotonic()
            self._perform(task)
        finally:
            self.let_go()
        return True

    def let_go(self) -> None:
        """If this thread has the device, it has it no more. Its own thread is woken where there is something to do for
        it, and no other has the device before it has looked: else one that asks again and again would keep it from all
        others."""
        if self._holder != get_ident():
            return
        with self._lock:
            self._end_task()
            self._holder = None
            now = time.monotonic()
            offers = [offer for source in self.sources if (offer := source.offer(now)) is not None]
            self._wanted = self._wanted or any(offer.at <= now for offer in offers)
            if self._queue or self._closing or self._wanted or offers:
                self._changed.notify_all()

    def call(self, function: Callable[[], Result], what: str, timeout: float | None = None) -> Result:
        """What a function returns, or raises, on the device's thread, before whatever else waits.

        Raises :class:`DeviceLostError` where the device is out of service, or goes out of it.
        """
        if self.on_thread:  # in a callback of a request: it would wait for itself
            return function()
        future: Future[Result] = Future()

        def perform() -> None:
            try:
                future.set_result(function())
            except DeviceLostError:
                raise
            except BaseException as error:  # noqa: BLE001 - whoever asked shall know
                _settle(future, error)

        self.submit(Task(perform, lambda lost: _settle(future, lost), URGENT, what))
        return future.result(timeout)

    @property
    def on_thread(self) -> bool:
        """Whether this is the device's own thread."""
        return current_thread() is self._thread

    def wake(self) -> None:
        """Look at the sources again: one of them has something new."""
        with self._lock:
            self._wanted = True
            if self._running is None:
                self._changed.notify()

    def attach(self, source: Source) -> None:
        """Ask a source for tasks, too."""
        with self._lock:
            self.sources = (*self.sources, source)
            self._changed.notify()

    def detach(self, source: Source) -> None:
        """No longer ask a source."""
        with self._lock:
            self.sources = tuple(each for each in self.sources if each is not source)

    def reserve(self, nbytes: int, what: str) -> None:
        """Set bytes of its memory aside. Raises :class:`ProvisionError` where they are more than are left."""
        limit = self.device.facts.memory
        with self._lock:
            left = None if limit is None else limit - self.used
            if left is not None and nbytes > left:
                raise ProvisionError(
                    f"device {self.name} has {left:,} of its {limit:,} bytes left, and {what} needs {nbytes:,}"
                )
            self.used += nbytes

    def give_back(self, nbytes: int) -> None:
        """Bytes that were set aside are free."""
        with self._lock:
            self.used -= nbytes

    @property
    def status(self) -> DeviceStatus:
        """How it is now."""
        with self._lock:
            now = time.monotonic()
            busy = self._busy + (now - self._began if self._running is not None else 0.0)
            lost = None if self.lost is None else str(self.lost)
            memory, queued = self.device.facts.memory, len(self._queue)
            load = busy / max(now - self._since, 1e-9)
            return DeviceStatus(self.name, lost, memory, self.used, queued, self._tasks, busy, load)

    # --- whether it still works ---------------------------------------------------------------------------------------

    def overdue(self, now: float) -> DeviceLostError | None:
        """The error to take it out of service with, if its task has taken longer than the limit."""
        with self._lock:
            running, limit = self._running, self.limit
            if self.lost is not None or running is None or limit is None or now - self._began <= limit:
                return None
        return DeviceLostError(
            f"device {self.name} has hung: {running.what} has not returned within {limit:g} seconds; it is out of "
            "service"
        )

    def check(self, now: float) -> None:
        """Ask a device that has nothing to do whether it still works, unless it was asked lately: whoever comes next
        need not find out."""
        with self._lock:
            idle = self._running is None and not self._queue and self.lost is None and not self._closing
            if not idle or now - max(self._began, self._asked) < PROBE_AFTER:
                return
            self._asked = now
        self.submit(Task(self.device.probe, lambda lost: None, URGENT, "the question whether it works"))

    def lose(self, error: DeviceLostError) -> bool:
        """Take it out of service: everything that it was to do fails. Whether it was in service."""
        with self._lock:
            if self.lost is not None:
                return False
            self.lost = error
            tasks = [task for _, _, task in sorted(self._queue, key=lambda entry: entry[:2])]
            tasks = tasks if self._running is None else [self._running, *tasks]
            self._queue.clear()
            self.sources, self._running = (), None
            self._changed.notify_all()
        for task in tasks:
            task.fail(error)
        return True

    def close(self, timeout: float | None = None) -> None:
        """End the thread after what waits, and close the device. A device that is lost is left as it is."""
        with self._lock:
            self._closing = True
            self.sources = ()
            self._changed.notify_all()
        if self.lost is None and not self.on_thread:
            self._thread.join(timeout)

    # --- its thread ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self.device.begin()
            while (task := self._next()) is not None:
                self._perform(task)
                with self._lock:
                    self._end_task()
            if self.lost is None:
                self.device.close()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the device works no more
            self.lose(_lost(self.name, error))

    def _next(self) -> Task | None:
        """The next task, marked as running; None at the end."""
        with self._lock:
            while True:
                if self.lost is not None or (self._closing and not self._queue and self._running is None):
                    return None
                task, pause = (None, None) if self._running is not None else self._found()
                if task is not None:
                    self._running, self._began = task, time.monotonic()
                    return task
                self._wanted = self._wanted and self._running is not None
                self._changed.wait(pause)

    def _found(self) -> tuple[Task | None, float | None]:
        """A task that can begin; else the seconds until there may be one, if that is known."""
        if self._queue:
            return heappop(self._queue)[2], None
        now = time.monotonic()
        offers = [(offer, source) for source in self.sources if (offer := source.offer(now)) is not None]
        due = sorted(((offer, source) for offer, source in offers if offer.at <= now), key=lambda each: each[0])
        for _, source in due:
            if (task := source.take(now)) is not None:
                return task, None
        later = [offer.at - now for offer, _ in offers if offer.at > now]
        return None, min(later, default=None) if not due else 0.0

    def _hold(self) -> bool:
        """Take the device for this thread, if it is free."""
        with self._lock:
            if not self.device.any_thread or self._running is not None or self._queue or self._wanted:
                return False
            if self.lost is not None or self._closing:
                return False
            self._running, self._began, self._holder = HELD, time.monotonic(), get_ident()
            return True

    def _perform(self, task: Task) -> None:
        try:
            task.call()
        except DeviceLostError as error:
            self.lose(error)
        except Exception as error:  # noqa: BLE001 - tasks handle their own errors: this is the device's
            self.lose(_lost(self.name, error))

    def _end_task(self) -> None:
        if self._running is not None:
            self._busy += time.monotonic() - self._began
            self._tasks += self._running is not HELD
            self._running = None


URGENT = 1 << 30
"""The priority of loading and unloading, before that of any request."""
PROBE_AFTER = 5.0
"""Seconds without a task after which a device is asked whether it still works."""
HELD = Task(lambda: None, lambda lost: None, what="a task that is being taken")
"""What a device runs while a thread that holds it looks for its task."""


def _settle(future: Future[Result], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _lost(name: str, error: BaseException) -> DeviceLostError:
    lost = DeviceLostError(f"device {name} is out of service: {type(error).__name__}: {error}")
    lost.__cause__ = error
    return lost


def failure(device: Device, what: str, error: Exception) -> DeviceError:
    """An error of a device at one call, of whatever kind, after which it goes on."""
    failed = DeviceError(f"{what} failed on device {device.name}: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
