"""A fleet that this process is a rank of: what its ranks agree on."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from glowtrain.backends.base import Backend
from glowtrain.backends.state import State
from glowtrain.errors import FleetError
from glowtrain.fleet.communicator import Communicator
from glowtrain.fleet.shards import Share
from glowtrain.fleet.slices import SlicedState, slices_of
from glowtrain.fleet.spec import FleetSpec
from glowtrain.fleet.step import FleetStep
from glowtrain.fleet.world import mpi_ranks
from glowtrain.grad.shards import ShardedStep
from glowtrain.grad.slices import SlicedUpdate
from glowtrain.graph import Graph, Template
from glowtrain.presentation.messages import listed
from glowtrain.stages import Options
from glowtrain.types import Array, LazyArray


@dataclass
class Fleet:
    """This process among the others, and the step that they make together."""

    spec: FleetSpec
    ranks: Communicator
    share: Share
    threads: int | None
    """This rank's part of the cores that it may use, where others on its host may use the same; None alone."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and reports."""
        return self.ranks.rank == 0

    def sliced(self, step: ShardedStep) -> SlicedUpdate | None:
        """The update in slices, where it is to be. Raises :class:`InputError` for an optimizer that has none."""
        sliced = SlicedUpdate(step) if self.spec.sharded_optimizer else None
        return None if self.ranks.size == 1 else sliced

    def state(self, initial: Mapping[str, Array | LazyArray], sliced: SlicedUpdate | None) -> State:
        """This rank's variables."""
        if sliced is None:
            return State(initial)
        slices = slices_of(sliced.step.gradients, self.spec.limit, self.ranks.size)
        return SlicedState(initial, sliced.slots, slices, self.ranks)

    def function(
        self, shard: Graph | Template, step: ShardedStep, backend: Backend, state: State, options: Options,
        sliced: SlicedUpdate | None,
    ) -> FleetStep:  # fmt: skip
        """A training step of all ranks."""
        shared = self.share, self.ranks, self.spec.limit
        return FleetStep(shard, step, backend, state, options, *shared, sliced, overlap=self.spec.overlap)

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Raise :class:`FleetError`, on all ranks, which names what is not the same on all of them."""
        (_, first), *others = self.ranks.gathered((socket.gethostname(), dict(facts)))
        for rank, (host, theirs) in enumerate(others, 1):
            if wrong := [name for name in first.keys() | theirs.keys() if first.get(name) != theirs.get(name)]:
                shown = "; ".join(f"{name}: {first.get(name)} and {theirs.get(name)}" for name in sorted(wrong))
                raise FleetError(f"rank {rank} on {host} differs from rank 0 in {listed(sorted(wrong))} ({shown})")


def join(spec: FleetSpec) -> Fleet:
    """Find the other ranks. Raises :class:`InputError` where they cannot share the shards out,
    :class:`MissingExtraError` without mpi4py."""
    ranks = mpi_ranks()
    ranks.timeout = spec.timeout
    share = Share(spec.shards, ranks.rank, ranks.size)
    return Fleet(spec, ranks, share, None if ranks.size == 1 else _threads(ranks))


def _threads(ranks: Communicator) -> int:
    own = ranks.hosts[ranks.rank]
    return max(1, len(own[1]) // ranks.hosts.count(own))
