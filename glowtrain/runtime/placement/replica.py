"""One placement of a network: its functions on devices, taking requests from the network's queue.

The device on which a run begins asks for batches (:class:`~glowtrain.runtime.device.device_manager.Source`). A batch is
due when it is full, or when the request that came first has waited as long as the network may delay it; so a device
that is free, and a network without delay, never wait. A network that is on several devices has as many batches under
way as it has stages, and one more, so that every device has something to do while values pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Condition, Lock
from typing import TYPE_CHECKING

from glowtrain.backends.device import ResidentVariables
from glowtrain.errors import DeviceLostError, UnavailableError
from glowtrain.runtime.device.device_manager import DeviceManager, Offer, Task
from glowtrain.runtime.placement.executor import Executor
from glowtrain.runtime.request.batching import Batch
from glowtrain.runtime.request.request import NetworkRequest, Segment
from glowtrain.types import Array

if TYPE_CHECKING:
    from glowtrain.runtime.network import Network


@dataclass(frozen=True)
class NetworkPlacement:
    """What the provisioner made: executors by the size of the batch (``None`` for a network without batches), the
    variables of each stage, the bytes taken of each device, and how to give all of it back."""

    executors: Mapping[int | None, Executor]
    variables: Mapping[int, tuple[DeviceManager, ResidentVariables]]
    used: Mapping[DeviceManager, int]
    release: Callable[[], None]

    @property
    def managers(self) -> tuple[DeviceManager, ...]:
        """The devices that it needs."""
        return tuple(self.used)


class Flight:
    """A batch under way. It ends once: a device that hung may come back with results that others have given."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._open = Lock()

    def ends(self) -> bool:
        """Whether it ends by this call."""
        return self._open.acquire(blocking=False)


class Replica:
    """A placement at work for a network."""

    def __init__(self, network: Network, placement: NetworkPlacement) -> None:
        self.network = network
        self.placement = placement
        executor = next(iter(placement.executors.values()))
        self.first = executor.first
        self.alone = len(executor.parts) == 1
        """Whether a run is one call of one device."""
        self.depth = 1 if self.alone or network.updates else len(placement.managers) + 1
        """Batches under way at once."""
        self._flights: set[Flight] = set()
        """Batches under way."""
        self._gone = False
        self.problem: Exception | None = None
        """What went wrong when it left."""
        self._lock = Lock()
        self._changed = Condition(self._lock)

    @property
    def in_service(self) -> bool:
        """Whether all of its devices are."""
        return all(manager.lost is None for manager in self.placement.managers)

    def forget(self, request: NetworkRequest) -> None:
        """A request that this thread was to run is no longer under way."""
        self.first.let_go()
        with self._lock:
            self._flights = {flight for flight in self._flights if request not in flight.batch.requests}
            self._changed.notify_all()

    def leave(self) -> None:
        """Take no more batches, wait until those under way have ended, and give the devices' memory back."""
        self.first.detach(self)
        with self._lock:
            self._gone = True
            self._changed.wait_for(lambda: not self._flights)
        try:
            self.placement.release()
        except Exception as error:  # noqa: BLE001 - whoever had it leave is told
            self.problem = error

    # --- what its first device asks -----------------------------------------------------------------------------------

    def offer(self, now: float) -> Offer | None:
        """The batch that could leave, and when: at once if it is full, else when the first has waited long enough."""
        network = self.network
        if len(self._flights) >= self.depth or (first := network.queue.first()) is None:
            return None
        priority, arrival, deadline = first
        full = network.queue.rows >= network.max_batch
        at = arrival if full else min(arrival + network.max_delay, deadline - network.usual_seconds)
        return Offer(-priority, arrival, at)

    def take(self, now: float) -> Task | None:
        """The batch that leaves now; none if another replica was quicker."""
        return self._departure(lambda: self.network.queue.take(self.network.max_batch, now))

    def run_here(self, request: NetworkRequest) -> bool:
        """Run one request in this thread, if the first device is free for it. Whether it was."""
        return self.first.run_here(lambda: self._departure(lambda: self._only(request)))

    def _only(self, request: NetworkRequest) -> list[Segment]:
        """A request by itself, while the device is held."""
        if len(self.network.queue) or not request.start(time.monotonic()):
            return []
        return [Segment(request, 0, request.rows)]

    def _departure(self, take: Callable[[], list[Segment]]) -> Task | None:
        """A batch of what is there to be taken, if one more may be under way."""
        with self._lock:
            if self._gone or len(self._flights) >= self.depth or not (segments := take()):
                return None
            size = self.network.size_for(sum(segment.rows for segment in segments))
            flight = Flight(Batch(tuple(segments), size))
            self._flights.add(flight)
        return self._task(flight)

    def submit(self, batch: Batch) -> None:
        """Run a batch that was taken elsewhere."""
        flight = Flight(batch)
        with self._lock:
            if not (gone := self._gone):
                self._flights.add(flight)
        if gone:
            _fail(batch, UnavailableError(f"network {self.network.name} has left device {self.first.name}"))
        else:
            self.first.submit(self._task(flight))

    def _task(self, flight: Flight) -> Task:
        run, fail = partial(self._run, flight), partial(self._failed, flight)
        return Task(run, fail, flight.batch.priority, f"network {self.network.name}")

    def _landed(self, flight: Flight) -> None:
        with self._lock:
            self._flights.discard(flight)
            if self._gone:
                self._changed.notify_all()

    # --- a run --------------------------------------------------------------------------------------------------------

    def _run(self, flight: Flight) -> None:
        batch, began = flight.batch, time.monotonic()
        executor = self.placement.executors[batch.size]
        try:
            inputs = batch.inputs()
            filled = time.monotonic()
            if not self.alone:
                ended, tell = partial(self._ended, flight, began, filled), self.network.part_teller(batch)
                executor.start(inputs, batch.priority, ended, tell)
                return
            self._answer(flight, executor.run(inputs), began, filled)
        except DeviceLostError:
            raise  # the manager hands it on to _failed
        except Exception as error:  # noqa: BLE001 - it is these requests', whatever it is
            self._failed(flight, error)

    def _ended(
        self, flight: Flight, began: float, filled: float, outputs: dict[str, Array] | None, error: Exception | None
    ) -> None:
        try:
            if outputs is None:
                self._failed(flight, error or RuntimeError("a run gave nothing"))
            else:
                self._answer(flight, outputs, began, filled)
        except Exception as wrong:  # noqa: BLE001 - it is these requests', whatever it is
            self._failed(flight, wrong)
        self.first.wake()

    def _answer(self, flight: Flight, outputs: Mapping[str, Array], began: float, filled: float) -> None:
        ran, shares = time.monotonic(), flight.batch.shares(outputs)
        if not flight.ends():
            return
        self._landed(flight)
        self.network.ran(flight.batch, self.first.name if self.alone else None, (began, filled, ran, time.monotonic()))
        flight.batch.answer(shares)

    def _failed(self, flight: Flight, error: Exception) -> None:
        """What a batch's requests get where it failed: another try, each alone, where one of them may be to blame; a
        try on another device, if this one is lost; else the error."""
        if not flight.ends():
            return
        batch, network = flight.batch, self.network
        lost = isinstance(error, DeviceLostError)
        elsewhere = network.replica_beside(self) if lost else self
        if batch.again or network.updates or elsewhere is None or (len(batch.segments) == 1 and not lost):
            _fail(batch, error)
        else:
            for alone in batch.one_by_one(network.sizes):
                elsewhere.submit(alone)
        self._landed(flight)


def _fail(batch: Batch, error: BaseException) -> None:
    for request in batch.requests:
        request.fail(error)
