"""The watch: a thread that answers requests which are late, and takes out devices that have hung."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Condition, RLock, Thread, current_thread

from glowtrain.runtime.deadline import Deadline
from glowtrain.runtime.device.device_manager import DeviceManager
from glowtrain.runtime.registry import Registry
from glowtrain.runtime.retiring import Retiring, leave

TICK = 0.05
"""Seconds between two rounds at most; less where devices may take less than four of them over a run."""


class RuntimeWatch:
    """Rounds over devices, and over all networks that there are then, those that are leaving among them, until it is
    ended: one a tick, and one whenever a request is late."""

    def __init__(
        self, managers: Sequence[DeviceManager], registry: Registry, retiring: Retiring, time_limit: float | None
    ) -> None:
        self._managers = managers
        self._registry = registry
        self._retiring = retiring
        self._tick = TICK if time_limit is None else min(TICK, time_limit / 4)
        self._lock = RLock()  # entered in one step: an interrupt finds it held by nobody, or by a block that leaves it
        self._changed = Condition(self._lock)
        self._next = time.monotonic() + self._tick
        """When the next round is."""
        self._ended = False
        self._thread = Thread(target=self._rounds, name="runtime watch", daemon=True)
        self._thread.start()

    @property
    def on_thread(self) -> bool:
        """Whether this is its thread, which runs callbacks of requests that are late."""
        return current_thread() is self._thread

    def end(self) -> None:
        """No more rounds."""
        with self._lock:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def by(self, moment: float) -> None:
        """Have a round at a moment, if none is before."""
        with self._lock:
            if moment < self._next:
                self._next = moment
                self._changed.notify()

    def _wait(self) -> bool:
        """Wait for the next round; False at the end."""
        with self._lock:
            while not self._ended and (left := self._next - time.monotonic()) > 0:
                self._changed.wait(left)
            self._next = time.monotonic() + self._tick
            return not self._ended

    def _rounds(self) -> None:
        while self._wait():
            now = time.monotonic()
            for manager in self._managers:
                if (error := manager.overdue(now)) is not None:
                    manager.lose(error)
                manager.check(now)
            for network in (*self._registry.networks(), *self._retiring.networks):
                network.queue.expire(now)
                self.by(network.queue.deadline)
                leave(network.drop_lost(), Deadline(now))
