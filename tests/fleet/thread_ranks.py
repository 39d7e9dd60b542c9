"""Ranks that are threads of this process, so that trainings of many ranks run in a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

import numpy as np

from glowtrain.errors import FleetError
from glowtrain.fleet.communicator import Communicator, Pending
from glowtrain.types import Array

T = TypeVar("T")


class Threads:
    """What threads send each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.queues: dict[tuple[int, int, int], SimpleQueue[Array]] = {}
        self.failures: dict[int, list[tuple[int | None, str]]] = {rank: [] for rank in range(size)}
        self.bytes = 0

    def queue(self, sender: int, receiver: int, tag: int) -> SimpleQueue[Array]:
        with self.lock:
            return self.queues.setdefault((sender, receiver, tag), SimpleQueue())


class Arriving(Pending):
    def __init__(self, waiting: list[tuple[int, SimpleQueue[Array], Array]]) -> None:
        self.waiting = waiting

    def missing(self) -> list[int]:
        left = []
        for rank, queue, array in self.waiting:
            if queue.empty():
                left.append((rank, queue, array))
            else:
                array[...] = queue.get().view(array.dtype).reshape(array.shape)
        self.waiting = left
        return [rank for rank, _, _ in left]


class ThreadCommunicator(Communicator):
    """One of the threads."""

    def __init__(self, threads: Threads, rank: int) -> None:
        super().__init__()
        self.threads, self.rank, self.size = threads, rank, threads.size

    def exchange(self, sent: Sequence[Array | None], received: Sequence[Array | None], tag: int) -> Pending:
        for rank, array in enumerate(sent):
            if array is not None and rank != self.rank:
                assert array.flags.c_contiguous
                self.threads.queue(self.rank, rank, tag).put(np.array(array))
        waiting = [
            (rank, self.threads.queue(rank, self.rank, tag), array)
            for rank, array in enumerate(received)
            if array is not None and rank != self.rank
        ]
        return Arriving(waiting)

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
