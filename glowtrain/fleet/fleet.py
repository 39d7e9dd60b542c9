"""A fleet that this process is a rank of: what its ranks agree on."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.backends.state import State
from glowtrain.errors import FleetError
from glowtrain.fleet.mpi import mpi_ranks
from glowtrain.fleet.ranks import Ranks
from glowtrain.fleet.shards import Share
from glowtrain.fleet.spec import FleetSpec
from glowtrain.fleet.step import FleetStep
from glowtrain.grad.shards import ShardedStep
from glowtrain.graph import Graph, Template
from glowtrain.presentation.messages import listed
from glowtrain.stages import Options
from glowtrain.types import Array

T = TypeVar("T")


@dataclass
class Fleet:
    """This process among the others, and the step that they make together."""

    spec: FleetSpec
    ranks: Ranks
    share: Share

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and reports."""
        return self.ranks.rank == 0

    def function(
        self, shard: Graph | Template, step: ShardedStep, backend: Backend, state: State, options: Options
    ) -> FleetStep:
        """A training step of all ranks."""
        return FleetStep(shard, step, backend, state, options, self.share, self.ranks, self.spec.limit)

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Raise :class:`FleetError`, on all ranks, which names what is not the same on all of them."""
        hosts = self.ranks.gathered((socket.gethostname(), dict(facts)))
        (_, first), *others = hosts
        for rank, (host, theirs) in enumerate(others, 1):
            if wrong := [name for name in first.keys() | theirs.keys() if first.get(name) != theirs.get(name)]:
                shown = "; ".join(f"{name}: {first.get(name)} and {theirs.get(name)}" for name in sorted(wrong))
                raise FleetError(f"rank {rank} on {host} differs from rank 0 in {listed(sorted(wrong))} ({shown})")

    def agreed(self, value: T, choose: Callable[[list[T]], T]) -> T:
        """What all ranks take, of what each of them has."""
        return choose(self.ranks.gathered(value))


def join(spec: FleetSpec) -> Fleet:
    """Find the other ranks. Raises :class:`InputError` where they cannot share the shards out, and without mpi4py."""
    ranks = mpi_ranks(spec.timeout)
    return Fleet(spec, ranks, Share(spec.shards, ranks.rank, ranks.size))


def digest(arrays: Mapping[str, Array], most: int | None = None) -> str:
    """What tells arrays apart: their types and bytes, of ``most`` rows at most where they have more."""
    found = 0
    for name, array in arrays.items():
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), found)
        if most is not None and array.ndim and len(array) > most:
            array = array[np.linspace(0, len(array) - 1, most).astype(np.int64)]
        found = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"", found)
    return f"{found:08x}"
