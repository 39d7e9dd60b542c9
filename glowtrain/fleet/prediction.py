"""What a step of a fleet will take on any number of ranks, from what its parts take on this machine.

    step = shards of a rank + partial sums + messages + sums of the own slice + update

Every rank is taken to be as fast as this process, and the network to be free of other traffic. Messages of a phase are
under way at once: each costs the processor :data:`MESSAGE` seconds, a phase the latency, and bytes what the bandwidth
says. Nothing of it is hidden behind computing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from glowtrain.errors import InputError
from glowtrain.fleet.shards import Share
from glowtrain.fleet.step import FleetStep
from glowtrain.grad.slices import SlicedUpdate
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import listed, plural
from glowtrain.presentation.tables import Table

MESSAGE = 4e-6
"""Processor time of sending and receiving a message from Python: an estimate."""


@dataclass(frozen=True)
class Interconnect:
    """``latency`` in seconds, ``bandwidth`` of each rank and direction in bytes a second."""

    latency: float
    bandwidth: float


NETWORKS = {
    "memory": Interconnect(1e-6, 4e9),
    "1gbe": Interconnect(50e-6, 0.117e9),
    "10gbe": Interconnect(20e-6, 1.17e9),
    "25gbe": Interconnect(15e-6, 2.9e9),
    "100gbe": Interconnect(5e-6, 11.5e9),
}
"""By name: ranks of one host, and Ethernet with one rank a host. Usual figures, which nobody measured here."""


def network_of(text: str) -> Interconnect:
    """A network by name, or ``LATENCY:BANDWIDTH`` in µs and GB/s (``20:1.17``). Raises :class:`InputError`."""
    if text in NETWORKS:
        return NETWORKS[text]
    found = re.fullmatch(r"([0-9.]+):([0-9.]+)", text)
    try:
        latency, bandwidth = (float(number) for number in found.groups()) if found else (0.0, 0.0)
    except ValueError:
        latency = bandwidth = 0.0
    if bandwidth <= 0:
        raise InputError(
            f"a network is {listed(NETWORKS)}, or LATENCY:BANDWIDTH in µs and GB/s (20:1.17), not {text!r}"
        )
    return Interconnect(latency / 1e6, bandwidth * 1e9)


@dataclass(frozen=True)
class SlicedCosts:
    """What an optimizer in slices changes: the bytes of its ``slots``, of which a rank has its part, and whether ranks
    need all gradients beside those of their slices, for a norm."""

    slots: int
    whole_gradients: bool


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a ``shard``, of adding two shards' gradients, of an ``update``; bytes of all gradients, in so many
    buckets. With ``sliced`` a rank makes its part of the update, whose time is taken to be that of the whole by the
    number of ranks."""

    shard: float
    add: float
    update: float
    nbytes: int
    buckets: int
    sliced: SlicedCosts | None = None

    def messages(self, share: Share, examples: int, network: Interconnect) -> float:
        """Seconds in which the gradients' sums meet, adding them included."""
        ranks = share.ranks
        if ranks == 1:
            return 0.0
        nodes = [len(share.nodes(rank, examples)) for rank in range(ranks)]
        gathers = 2 if self.sliced is not None and self.sliced.whole_gradients else 1
        sent = self.nbytes * (ranks - 1) / ranks * (max(nodes) + gathers)
        count = (ranks - 1) * (self.buckets * (max(nodes) + gathers) + 1)
        slices = self.add * (sum(nodes) - 1) / ranks
        return (1 + gathers) * network.latency + count * MESSAGE + sent / network.bandwidth + slices

    def step(self, share: Share, examples: int, network: Interconnect) -> float:
        """Seconds of a step."""
        present = len(share.present(examples, share.of(0)))
        own = present * self.shard + (present - len(share.nodes(0, examples))) * self.add
        update = self.update if self.sliced is None else self.update / share.ranks
        return own + self.messages(share, examples, network) + update


def measure(
    step: FleetStep, inputs: Mapping[str, Any], runs: int, sliced: SlicedUpdate | None = None
) -> StepCosts:  # fmt: skip
    """The costs of a step's parts on a whole batch, in one process: medians over ``runs``; of a step whose ranks are to
    make ``sliced`` updates, too."""
    shards, memory = step.first_shard(inputs), [step.sums.memory() for _ in range(2)]
    step(inputs)

    def shard() -> None:
        step.write(shards, memory[0])

    def add() -> None:
        step.sums.add(memory[0], memory[1])

    def update() -> None:
        step.updated(inputs, step.sums.sums, step.notes.shards)

    flats = memory[0].flats
    return StepCosts(
        _median(shard, runs), _median(add, runs), _median(update, runs), sum(flat.nbytes for flat in flats), len(flats),
        None if sliced is None else _sliced_costs(sliced),
    )  # fmt: skip


def _sliced_costs(sliced: SlicedUpdate) -> SlicedCosts:
    return SlicedCosts(sum(slot.type.nbytes for slot, _ in sliced.slots.values()), sliced.needs_whole_gradients)


def _median(call: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


@dataclass(frozen=True)
class FleetPlan(Displayable):
    """What a step takes on several numbers of ranks."""

    name: str
    examples: int
    shards: int
    network: str
    costs: StepCosts
    ranks: tuple[int, ...]

    def _contents(self) -> Iterable[str | Table]:
        costs = self.costs
        yield (
            f"{self.name}, batches of {self.examples} in {plural(self.shards, 'shard')} over {self.network}: a shard "
            f"{costs.shard * 1e3:.3g} ms, the update {costs.update * 1e3:.3g} ms, "
            f"{costs.nbytes / 1e6:.3g} MB of gradients{self._slots}"
        )
        rows = [self._row(count) for count in self.ranks]
        columns = ("ranks>", "step, ms>", "messages, ms>", "examples/s>", "times one>", "efficiency>")
        yield Table(columns if costs.sliced is None else (*columns, "slots, MB>"), rows)

    def __str__(self) -> str:
        return self._as_text()

    @property
    def _slots(self) -> str:
        sliced = self.costs.sliced
        return "" if sliced is None else f", {sliced.slots / 1e6:.3g} MB of the optimizer's slots"

    def _row(self, count: int) -> tuple[str, ...]:
        network = network_of(self.network)
        share = Share(self.shards, 0, count)
        took = self.costs.step(share, self.examples, network)
        faster = self.costs.step(Share(self.shards), self.examples, network) / took
        messages = self.costs.messages(share, self.examples, network)
        return (
            f"{count:,}", f"{took * 1e3:.3g}", f"{messages * 1e3:.3g}", f"{self.examples / took:,.0f}",
            f"{faster:.3g}", f"{faster / count:.0%}",
            *([] if self.costs.sliced is None else [f"{self.costs.sliced.slots / count / 1e6:.3g}"]),
        )  # fmt: skip
