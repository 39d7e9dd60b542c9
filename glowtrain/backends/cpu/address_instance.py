"""Native instances over memory that each call names by address: nothing is copied, in or out."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

import numpy as np

from glowtrain.backends.base import AddressInstance
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.threads.pool import ThreadPool
from glowtrain.backends.state import zeros
from glowtrain.backends.table import ARENA, FIRST_SLOT, POOL, WORKSPACES
from glowtrain.errors import BackendError
from glowtrain.types import Array

FIXED = "constant", "unused"
"""Kinds of slots that no call fills."""


class NativeAddressInstance(AddressInstance):
    """Arena, workspaces and pointer table of its own; a call fills in the table at once."""

    def __init__(
        self,
        artifact: NativeArtifact,
        step: Callable[..., None],
        pool: ThreadPool | None,
        threads: int,
        names: Sequence[str],
    ) -> None:
        if artifact.calls:
            raise BackendError("code that takes the times of its kernels runs over a state only")
        self._step, self._pool = step, pool
        arena, workspaces = zeros(artifact.arena, np.uint8), zeros(artifact.workspace * threads, np.uint8)
        self._memory: tuple[Array, ...] = (arena, workspaces, *artifact.constants.values())
        self._own = tuple(_own(artifact, self._memory, pool))
        position = {name: number for number, name in enumerate(names)}
        entries = [len(names) + number for number in range(FIRST_SLOT)]
        rest = iter(range(len(names) + FIRST_SLOT, len(names) + len(self._own)))
        slots = artifact.slots
        entries.extend(next(rest) if slot.kind in FIXED else position[slot.name] for slot in slots)
        entries.extend(rest)
        self._arranged = itemgetter(*entries)
        self._table = (ctypes.c_uint64 * len(entries))()
        self._address = ctypes.addressof(self._table)
        self._fill = struct.Struct(f"={len(entries)}Q").pack_into

    def run(self, addresses: Sequence[int]) -> None:
        if self._pool is not None and not self._pool.started:
            self._pool.start()
        self._fill(self._table, 0, *self._arranged((*addresses, *self._own)))
        self._step(self._address)


def _own(artifact: NativeArtifact, memory: Sequence[Array], pool: ThreadPool | None) -> Iterator[int]:
    """The addresses that do not change: arena, workspaces and pool, then those of the slots that no call fills."""
    first = {ARENA: memory[0].ctypes.data, WORKSPACES: memory[1].ctypes.data, POOL: pool.address if pool else 0}
    yield from (first[number] for number in range(FIRST_SLOT))
    for slot in artifact.slots:
        if slot.kind == "constant":
            yield artifact.constants[slot.name].ctypes.data
        elif slot.kind in FIXED:
            yield 0
    yield from (function.address for function in artifact.natives)
