"""A version of a network: what it takes, its queue, its placements, and what became of its requests."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from threading import Condition, RLock

from glowtrain.errors import DeadlineError, DeviceError, QueueFullError, UnavailableError
from glowtrain.runtime.observation.metrics import Counts, Metric
from glowtrain.runtime.observation.trace import RuntimeTrace
from glowtrain.runtime.placement.executor import Tell
from glowtrain.runtime.placement.replica import Replica
from glowtrain.runtime.request.batching import Batch, size_for
from glowtrain.runtime.request.call import NetworkCall
from glowtrain.runtime.request.queue import RequestQueue
from glowtrain.runtime.request.request import NetworkRequest, RequestFuture
from glowtrain.runtime.signature import NetworkSignature
from glowtrain.types import Array


@dataclass(frozen=True)
class Service:
    """How a network is served. ``sizes``: rows of the batches that are compiled, ascending; none for a network that
    takes one request at a time. ``max_delay``: seconds that a request may wait for others to share a batch with;
    ``queue``: requests that may wait. ``updates``: whether it has variables that a run updates."""

    sizes: tuple[int, ...] = ()
    max_delay: float = 0.0
    queue: int = 256
    updates: bool = False


class Network:
    """One version of a network, from when it is placed until it is removed."""

    def __init__(
        self, name: str, version: str, signature: NetworkSignature, service: Service, trace: RuntimeTrace | None
    ) -> None:
        self.name = name
        self.version = version
        self.signature = signature
        self.service = service
        self.sizes = service.sizes
        self.max_batch = service.sizes[-1] if service.sizes else 1
        self.max_delay = service.max_delay
        self.updates = service.updates
        self.queue = RequestQueue(name, service.queue)
        self.replicas: tuple[Replica, ...] = ()
        self.counts = Counts()
        self.usual_seconds = 0.0
        """What a batch has taken of late: a moving average, by which a batch leaves in time for a deadline."""
        self._trace = trace
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._open: set[NetworkRequest] = set()
        """Requests that have no answer yet."""
        self._closed: str | None = None
        """Why it takes no more requests, if it takes none."""

    def renew(self, why: str) -> None:
        """In a child of fork, which has no devices."""
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self.counts, self.replicas = Counts(), ()
        self._open, self._closed = set(), self._closed or why

    def __repr__(self) -> str:
        return f"<Network {self.name}, version {self.version}: {self.state}>"

    @property
    def state(self) -> str:
        """``ready``, ``lost`` (no device is left), ``draining`` or ``removed``."""
        if self._closed is not None:
            return "draining" if self._open else "removed"
        return "ready" if any(replica.in_service for replica in self.replicas) else "lost"

    @property
    def ready(self) -> bool:
        """Whether requests are answered: everything is compiled and has run."""
        return self.state == "ready"

    @property
    def pending(self) -> int:
        """Requests that have no answer yet."""
        return len(self._open)

    def size_for(self, rows: int) -> int | None:
        """The smallest compiled batch for so many rows; None for a network without batches."""
        return size_for(rows, self.sizes)

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(self, call: NetworkCall, *, copied: bool) -> NetworkRequest:
        """A call as a request, checked; with ``copied`` it does not change when the arrays do that were given. Raises
        :class:`InputError` for what does not fit the network."""
        arrays, rows = self.signature.checked(call.inputs, copied=copied)
        request = NetworkRequest(arrays, rows, self.signature.requested(call.outputs), call.priority, tell=self._count)
        if call.timeout is not None:
            request.deadline = request.arrival + call.timeout
        return request

    def admit(self, request: NetworkRequest) -> bool:
        """Take a request in, which :meth:`enqueue` or :meth:`run_or_enqueue` is to follow. False where the network
        takes no more."""
        with self._lock:
            if self._closed is not None or not self.replicas:
                return False
            self._open.add(request)
        request.future.add_done_callback(partial(self._settled, request))
        return True

    def enqueue(self, request: NetworkRequest) -> RequestFuture:
        """Have a request wait for a device. Raises :class:`QueueFullError`."""
        try:
            self.queue.put(request)
        except QueueFullError as error:
            request.fail(error)
            raise
        for replica in self.replicas:
            replica.first.wake()
        if not self.replicas:  # the last device was lost meanwhile
            self.fail_queued(self.unavailable())
        return request.future

    def run_or_enqueue(self, request: NetworkRequest) -> RequestFuture:
        """Run a request in this thread, if nothing waits and a device is free and can be used so; else :meth:`enqueue`
        it."""
        if not (self.max_delay or len(self.queue) or request.rows > self.max_batch):
            for replica in self.replicas:
                if replica.alone and replica.run_here(request):
                    return request.future
        return self.enqueue(request)

    def forget(self, request: NetworkRequest, error: BaseException) -> None:
        """The thread that asked was interrupted, wherever it was: nothing waits for the request now, or for the device
        that this thread may have had."""
        request.abandon(error)
        for replica in self.replicas:
            if replica.alone:
                replica.forget(request)
        self._settled(request, request.future)

    def unavailable(self) -> UnavailableError:
        """Why it takes no requests."""
        why = self._closed or "no device that it was on is in service"
        return UnavailableError(f"network {self.name}, version {self.version}, takes no requests: {why}")

    def _count(self, request: NetworkRequest, error: BaseException | None) -> None:
        """A request is about to have its answer."""
        if error is not None:
            self.counts.failed(_reason(error))
            return
        now = time.monotonic()
        began = now if request.began is None else request.began
        self.counts.answered(now - request.arrival, began - request.arrival)
        if self._trace is not None:
            self._trace.answered(self.name, request, now)

    def _settled(self, request: NetworkRequest, future: RequestFuture) -> None:
        """A request has its answer, or was cancelled."""
        self.queue.discard(request)
        if future.cancelled():
            self.counts.failed("CANCELED")
        with self._lock:
            self._open.discard(request)
            if self._closed is not None and not self._open:
                self._changed.notify_all()

    def part_teller(self, batch: Batch) -> Tell | None:
        """Who is told of a batch's parts, by device and name, when they began and ended; none where nobody wants to
        know."""
        trace = self._trace
        return None if trace is None else partial(trace.ran_part, self.name, batch.rows, batch.size)

    def ran(self, batch: Batch, device: str | None, times: tuple[float, float, float, float]) -> None:
        """A batch has run: when it began, was put together, had run, and was answered; on a ``device`` as a whole, or
        in parts that have been told."""
        began, filled, ran, answered = times
        self.usual_seconds = ran - began if not self.usual_seconds else 0.8 * self.usual_seconds + 0.2 * (ran - began)
        self.counts.ran(batch.rows, filled - began, ran - filled, answered - ran)
        if self._trace is not None and device is not None:
            self._trace.ran(device, self.name, batch.rows, began, ran, batch.size)

    # --- its placements -----------------------------------------------------------------------------------------------

    def attach(self, replica: Replica) -> None:
        """Have a placement take requests."""
        self.replicas = (*self.replicas, replica)
        replica.first.attach(replica)

    def replica_beside(self, lost: Replica) -> Replica | None:
        """Another placement that works."""
        others = (replica for replica in self.replicas if replica is not lost and replica.in_service)
        return next(others, None)

    def drop_lost(self) -> tuple[Replica, ...]:
        """Take out placements whose devices are out of service; they have yet to leave the devices that are not. Where
        none is left, requests that wait have no answer to wait for."""
        lost = tuple(replica for replica in self.replicas if not replica.in_service)
        if lost:
            self.replicas = tuple(replica for replica in self.replicas if replica not in lost)
            if not self.replicas:
                self.fail_queued(self.unavailable())
        return lost

    # --- its end ------------------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Take no more requests; those that wait are still answered."""
        with self._lock:
            self._closed = self._closed or why

    def fail_queued(self, error: UnavailableError) -> None:
        """Answer all requests that wait with an error."""
        for request in self.queue.drain():
            request.fail(error)

    def drained(self, timeout: float | None) -> bool:
        """Wait until all requests have their answer; False where that takes longer than ``timeout`` seconds."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._open, timeout)

    def samples(self) -> list[Metric]:
        """What it has done, in numbers."""
        labels = {"model": self.name, "version": self.version}
        return list(self.counts.samples(labels, len(self.queue)))

    def variables(self) -> dict[str, Array]:
        """Its variables as they are now, by name; only its own devices may run it meanwhile.

        Raises :class:`UnavailableError` where no device is left that has them.
        """
        if not self.replicas:
            raise self.unavailable()
        found: dict[str, Array] = {}
        for manager, variables in self.replicas[0].placement.variables.values():
            found |= manager.call(variables.read_all, f"reading variables of {self.name}")
        return found


def _reason(error: BaseException) -> str:
    """Why a request failed, in Triton's words."""
    if isinstance(error, (QueueFullError, DeadlineError)):
        return "REJECTED"
    if isinstance(error, CancelledError):
        return "CANCELED"
    return "BACKEND" if isinstance(error, DeviceError) else "OTHER"
