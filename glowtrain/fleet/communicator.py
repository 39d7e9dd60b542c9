"""The ranks of a fleet: processes that exchange bytes. What is added, and in which order, is not their business.

A wait ends: with what was waited for, with the error of another rank, or after ``timeout`` seconds with the end of the
whole job, since a rank that was killed, stopped or cut off says nothing.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from glowtrain.errors import FleetError
from glowtrain.types import Array


class Pending(ABC):
    """Messages that are under way."""

    @abstractmethod
    def missing(self) -> list[int]:
        """The ranks whose messages have not arrived, or to which ours have not gone; empty when all is done."""


class Nothing(Pending):
    """No messages: they are with us already."""

    def missing(self) -> list[int]:
        return []


class Communicator(ABC):
    """All ranks of a job, as one of them sees them."""

    rank: int
    size: int

    def __init__(self) -> None:
        self.timeout = 60.0
        self.doing = "starting"
        """What this rank is at, for a person to be told."""
        self.run = 0
        """Which of the runs that all ranks begin together this is: failures of earlier ones are past."""
        self.waited = 0
        """Nanoseconds of all waits."""
        self._hosts: list[tuple[str, list[int]]] = []
        self._unfinished: list[Pending] = []
        """What has begun and was not waited for to its end. MPI still writes into its arrays."""

    def begin(self, doing: str, timeout: float) -> None:
        """Begin a run. Raises :class:`FleetError` after one in which a wait was broken off: its messages would be
        taken for those of this one."""
        self.timeout = timeout
        if self._unfinished:
            message = f"rank {self.rank} on {socket.gethostname()} cannot go on after what failed: start all ranks anew"
            self.failed(message, for_good=True)
            raise FleetError(message)
        self.run += 1
        self.doing = doing

    @property
    def hosts(self) -> list[tuple[str, list[int]]]:
        """Each rank's host, and the cores that it may run on there; gathered when first asked for, by all ranks."""
        self._hosts = self._hosts or self.gathered((socket.gethostname(), sorted(os.sched_getaffinity(0))))
        return self._hosts

    @abstractmethod
    def exchange(self, sent: Sequence[Array | None], received: Sequence[Array | None], tag: int) -> Pending:
        """Send arrays to ranks and receive arrays from them, by rank; None and the own place for no message.

        The arrays are contiguous, and not to be touched until all is done. Messages of one tag arrive in order.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise :class:`FleetError` where another rank says that it has failed."""

    @abstractmethod
    def failed(self, message: str, *, for_good: bool = False) -> None:
        """Tell all others that this rank has failed, in the present run or ``for_good``."""

    @abstractmethod
    def abort(self, message: str) -> NoReturn:
        """End all processes of the job."""

    def track(self, pending: Pending) -> None:
        """Messages have begun, and are waited for later: they go on in other waits, and whoever fails before that
        leaves them unfinished."""
        if pending not in self._unfinished:
            self._unfinished.append(pending)

    def wait(self, pending: Pending) -> None:
        """Wait for messages, while all others go on that have begun. Raises what :meth:`check` does."""
        self.track(pending)
        others = [each for each in self._unfinished if each is not pending]
        began, turns = time.monotonic(), 0
        start = time.perf_counter_ns()
        while missing := pending.missing():
            for other in others:
                other.missing()
            turns += 1
            if turns % 64 == 0:
                self.check()
                waited = time.monotonic() - began
                if waited > self.timeout:
                    self.abort(_late(self, missing, waited))
                time.sleep(0 if waited < 0.002 else 0.0001)
        self.waited += time.perf_counter_ns() - start
        self._unfinished.remove(pending)

    def gathered(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; of any type that can be pickled. For what is small and rare."""
        return [pickle.loads(data) for data in self._gathered_bytes(pickle.dumps(value))]

    def from_first(self, make: Callable[[], Any]) -> Any:
        """What rank 0 makes of something, on all ranks; an error of it is a :class:`FleetError` on the others."""
        value, error = None, None
        try:
            value = make() if self.rank == 0 else None
        except Exception as found:  # noqa: BLE001  (raised below, once the others know)
            error = found
        ((value, text), *_) = self.gathered((value, error and str(error)))
        if text is not None:
            raise error or FleetError(f"rank 0 has failed, {self.doing}: {text}")
        return value

    def _gathered_bytes(self, data: bytes) -> list[bytes]:
        sizes = [np.zeros(1, np.int64) for _ in range(self.size)]
        sizes[self.rank][0] = len(data)
        self.wait(self.exchange([sizes[self.rank]] * self.size, sizes, GATHER))
        parts = [
            np.frombuffer(data, np.uint8) if n == self.rank else np.empty(s[0], np.uint8) for n, s in enumerate(sizes)
        ]
        self.wait(self.exchange([parts[self.rank]] * self.size, parts, GATHER))
        return [part.tobytes() for part in parts]


GATHER, FAILED, NOTES, SLICES, FIRST = 1, 2, 3, 4, 8
"""Tags of messages: of values gathered, of failures, of what is small in a step, of slices of variables, and the first
of those that a step's sums have."""


class SingleProcess(Communicator):
    """One process."""

    rank, size = 0, 1

    def exchange(self, sent: Sequence[Array | None], received: Sequence[Array | None], tag: int) -> Pending:
        return Nothing()

    def check(self) -> None:
        """Nobody else can fail."""

    def failed(self, message: str, *, for_good: bool = False) -> None:
        """Nobody is to be told."""

    def abort(self, message: str) -> NoReturn:
        raise FleetError(message)

    def gathered(self, value: Any) -> list[Any]:
        return [value]


def _late(ranks: Communicator, missing: Sequence[int], waited: float) -> str:
    """That a rank has waited in vain."""
    shown = ", ".join(map(str, sorted(set(missing))[:8]))
    which = f"rank{'s' if len(set(missing)) > 1 else ''} {shown}"
    return (
        f"rank {ranks.rank} on {socket.gethostname()} has waited {waited:.0f} seconds for {which} while "
        f"{ranks.doing}: that process was stopped, cut off or is still at something else (compiling, reading data); "
        f"timeout= (--fleet-timeout) is {ranks.timeout:g} seconds"
    )


def say(message: str) -> None:
    """A line on standard error, whole."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
