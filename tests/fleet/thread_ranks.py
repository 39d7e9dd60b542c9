"""Ranks that are threads of this process, so that trainings of many ranks run in a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

from glowtrain.errors import FleetError
from glowtrain.fleet.communicator import Communicator, Pending
from glowtrain.types import Array

T = TypeVar("T")


class Channel:
    """Messages of a tag from one rank to another: the first is that of the first receive, whenever it is looked for."""

    def __init__(self) -> None:
        self.messages: list[tuple[Array, threading.Event]] = []
        self.receives = 0

    def send(self, array: Array) -> threading.Event:
        """Send an array; what is returned is set when it was received."""
        self.messages.append((array, threading.Event()))
        return self.messages[-1][1]

    def receive(self) -> int:
        """The number of the message that the next receive gets."""
        self.receives += 1
        return self.receives - 1


class Threads:
    """What threads send each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.channels: dict[tuple[int, int, int], Channel] = {}
        self.failures: dict[int, list[tuple[int | None, str]]] = {rank: [] for rank in range(size)}

    def channel(self, sender: int, receiver: int, tag: int) -> Channel:
        with self.lock:
            return self.channels.setdefault((sender, receiver, tag), Channel())


class Exchange(Pending):
    """Messages are read from the sender's memory as late as they are received, as MPI may do with large ones: what is
    touched too early arrives with wrong bytes."""

    def __init__(
        self, sent: list[tuple[int, threading.Event]], received: list[tuple[int, Channel, int, Array]]
    ) -> None:
        self.sent, self.received = sent, received

    def missing(self) -> list[int]:
        left = []
        for rank, channel, number, array in self.received:
            if number < len(channel.messages):
                theirs, taken = channel.messages[number]
                array[...] = theirs.view(array.dtype).reshape(array.shape)
                taken.set()
            else:
                left.append((rank, channel, number, array))
        self.received = left
        self.sent = [(rank, taken) for rank, taken in self.sent if not taken.is_set()]
        return [rank for rank, *_ in left] + [rank for rank, _ in self.sent]


class ThreadCommunicator(Communicator):
    """One of the threads."""

    def __init__(self, threads: Threads, rank: int) -> None:
        super().__init__()
        self.threads, self.rank, self.size = threads, rank, threads.size

    def exchange(self, sent: Sequence[Array | None], received: Sequence[Array | None], tag: int) -> Pending:
        others = [rank for rank in range(self.size) if rank != self.rank]
        assert all(sent[rank] is None or sent[rank].flags.c_contiguous for rank in others)
        to = [(rank, self.threads.channel(self.rank, rank, tag), sent[rank]) for rank in others]
        own = [(rank, self.threads.channel(rank, self.rank, tag), received[rank]) for rank in others]
        return Exchange(
            [(rank, channel.send(array)) for rank, channel, array in to if array is not None],
            [(rank, channel, channel.receive(), array) for rank, channel, array in own if array is not None],
        )

    def check(self) -> None:
        for run, message in self.threads.failures[self.rank]:
            if run in (self.run, None):
                raise FleetError(message)

    def failed(self, message: str, *, for_good: bool = False) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                self.threads.failures[rank].append((None if for_good else self.run, message))

    def abort(self, message: str) -> NoReturn:
        raise FleetError(message)


local = threading.local()


def on_ranks(count: int, function: Callable[[int], T]) -> list[T]:
    """What a function gives on each of so many ranks, by its number; the first error that is one of its own."""
    threads = Threads(count)

    def run(rank: int) -> T:
        local.ranks = ThreadCommunicator(threads, rank)
        return function(rank)

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(run, rank) for rank in range(count)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, FleetError)), errors[0])
    return [future.result() for future in futures]


def present_ranks() -> Any:
    """In place of :func:`glowtrain.fleet.world.mpi_ranks`."""
    return local.ranks
