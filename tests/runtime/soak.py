"""A soak of the runtime: three networks on two devices, clients with all priorities, cancellations, deadlines that are
too short, queues that are full, and networks that are replaced meanwhile.

    python -m tests.runtime.soak [--seconds 600] [--clients 4] [--pause 5] [--seed 0]

Every answer is checked against what a version of its network says that was there while the request was; none may be
lost, given twice, or be somebody else's. Memory and threads are to be as many at the end as after the first tenth.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain.errors import DeadlineError, QueueFullError
from glowtrain.graph import Graph, Input, Value
from glowtrain.runtime import HostManager, Network, Part, Partition, cpu_devices
from glowtrain.runtime.request.request import NetworkRequest
from glowtrain.types import Array

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
LARGEST = 20_000
"""Inputs are whole numbers below it: with factors below 50 all results are exact."""
GROWTH = 1.1
"""Resident memory at the end, as a multiple of that after the first tenth, that counts as flat. LLVM keeps some 16 KiB
of each function that was compiled and let go, so networks are not replaced all the time."""


def scaled(factor: float) -> dict[str, Any]:
    """A network in batches."""

    @gt.model(x=gt.f32["batch", 3])
    def model(x: Value) -> dict[str, Value]:
        return {"y": x * factor, "z": x + factor}

    return {"model": model, "batch_sizes": [1, 4, 8], "max_delay": 0.001, "replicas": 2}


def product(factor: float) -> dict[str, Any]:
    """A network with parameters."""

    @gt.model(x=gt.f32["batch", 3])
    def model(x: Value) -> dict[str, Value]:
        return {"y": gt.ops.MatMul()(x, gt.constant(WEIGHTS * np.float32(factor)))}

    return {"model": model, "batch_sizes": [2, 6]}


def parted(factor: float) -> dict[str, Any]:
    """A network on two devices."""

    @gt.model(x=gt.f32["batch", 3])
    def model(x: Value) -> dict[str, Value]:
        return {"y": x * factor + 1.0}

    def cut(graph: Graph) -> Partition:
        type_ = graph.inputs[0].type
        x, h = Input(type_, "x"), Input(type_, "h")
        parts = (Part("first", Graph((x,), {"h": x * factor}), 0), Part("second", Graph((h,), {"y": h + 1.0}), 1))
        return Partition(graph.name, parts, {"x": type_}, {"y": "y"})

    return {"model": model, "batch_sizes": [1, 5], "partition": cut}


NETWORKS: dict[str, tuple[Callable[[float], dict[str, Any]], Callable[[Array, float], Array]]] = {
    "scaled": (scaled, lambda x, factor: x * np.float32(factor)),
    "product": (product, lambda x, factor: x @ (WEIGHTS * np.float32(factor))),
    "parted": (parted, lambda x, factor: x * np.float32(factor) + np.float32(1)),
}
QUEUE = 24


@dataclass
class Report:
    """What became of all requests, by kind; what was wrong, in words; and what was used, at ten moments."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    swaps: int = 0
    left: int = 0
    """Requests that are still somewhere in memory, after all, and were not before."""

    @property
    def flat(self) -> bool:
        """Whether memory and threads stayed as they were after the first tenth."""
        return self.memory[-1] <= GROWTH * self.memory[0] and max(self.threads) <= self.threads[0] + BRIEF

    def __str__(self) -> str:
        total = sum(self.outcomes.values())
        told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        memory = " ".join(f"{nbytes / 2**20:.0f}" for nbytes in self.memory)
        return (
            f"{total:,} requests: {told}; {self.swaps:,} networks replaced\n"
            f"wrong: {len(self.wrong)}{''.join(f'{chr(10)}  {each}' for each in self.wrong[:20])}\n"
            f"memory in MiB: {memory}; threads: {' '.join(map(str, self.threads))}; requests left: {self.left}\n"
        )


BRIEF = 4
"""Threads that are there for a moment: those that compile, and those that take networks out."""


class Soak:
    """One run of it."""

    def __init__(self, clients: int, pause: float, seed: int) -> None:
        """``pause``: seconds between two networks that are replaced."""
        self.report = Report()
        self.before = frozenset(map(id, _requests()))
        self.clients, self.pause, self.seed = clients, pause, seed
        self.stop = threading.Event()
        self.host = HostManager(cpu_devices(2, threads=1), time_limit=None)
        self.factors: dict[str, list[float]] = {name: [2.0] for name in NETWORKS}
        """Of all versions that there have been, and will be in a moment."""
        self.present = dict.fromkeys(NETWORKS, 0)
        """The index of the oldest one that may still answer new requests."""
        self.networks: list[Network] = []
        self.lock = threading.Lock()

    def run(self, seconds: float) -> Report:
        """All clients, for so long."""
        for name, (made, _) in NETWORKS.items():
            self.networks.append(self.host.add_network(name, queue=QUEUE, **made(2.0)))
        with ThreadPoolExecutor(self.clients + 1) as pool:
            working = [pool.submit(Client(self, number).work) for number in range(self.clients)]
            working.append(pool.submit(self._swap))
            self._watch(seconds)
            self.stop.set()
            for each in working:
                each.result()
        self._check_counts()
        self.host.close()
        self._check_end()
        return self.report

    def _watch(self, seconds: float) -> None:
        for _ in range(10):
            self.stop.wait(seconds / 10)
            self.report.memory.append(_resident_bytes())
            self.report.threads.append(threading.active_count())

    def _swap(self) -> None:
        """Put others in the networks' places, one after the other."""
        while not self.stop.is_set():
            for name, (made, _) in NETWORKS.items():
                factor = 2.0 + (self.report.swaps * 7) % 47
                self.factors[name].append(factor)
                self.networks.append(self.host.replace_network(name, queue=QUEUE, **made(factor)))
                self.present[name] = len(self.factors[name]) - 1
                self.report.swaps += 1
                if self.stop.wait(self.pause):
                    return

    def _check_counts(self) -> None:
        """The runtime counted what its clients saw."""
        for outcome, counted in (
            ("answered", sum(network.counts.success for network in self.networks)),
            ("cancelled", sum(network.counts.failures["CANCELED"] for network in self.networks)),
            ("refused or late", sum(network.counts.failures["REJECTED"] for network in self.networks)),
        ):
            if counted != self.report.outcomes[outcome]:
                self.report.wrong.append(f"{counted} were {outcome}, but clients saw {self.report.outcomes[outcome]}")

    def _check_end(self) -> None:
        if any(status.used or status.queued or status.lost for status in self.host.status()):
            self.report.wrong.append(f"left on devices: {self.host.status()}")
        if pending := sum(network.pending for network in self.networks):
            self.report.wrong.append(f"{pending} requests are pending")
        self.networks.clear()
        self.report.left = sum(id(each) not in self.before for each in _requests())


def _requests() -> list[NetworkRequest]:
    """All that are in memory and something refers to."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, NetworkRequest)]


@dataclass
class Asked:
    """A request under way; ``since``: the index of the oldest version that may answer it."""

    name: str
    x: Array
    since: int
    future: Future[Any]
    seen: list[int] = field(default_factory=list)
    """One entry for each time that it was answered."""


class Client:
    """One of the threads that ask."""

    def __init__(self, soak: Soak, number: int) -> None:
        self.soak, self.number = soak, number
        self.random = np.random.default_rng([soak.seed, number])
        self.asked: deque[Asked] = deque()
        self.outcomes: Counter[str] = Counter()
        self.count = 0

    def work(self) -> None:
        """Ask until it is over, and check all answers."""
        while not self.soak.stop.is_set():
            self._ask()
            while len(self.asked) > 20:
                self._settle(self.asked.popleft())
        while self.asked:
            self._settle(self.asked.popleft())
        with self.soak.lock:
            self.soak.report.outcomes.update(self.outcomes)

    def _ask(self) -> None:
        random, host = self.random, self.soak.host
        name = list(NETWORKS)[random.integers(len(NETWORKS))]
        x, since = self._numbers(int(random.integers(1, 14))), self.soak.present[name]
        priority, kind = int(random.integers(-2, 3)), random.random()
        try:
            if kind < 0.3:
                self._check(name, x, since, host.run_sync(name, {"x": x}, priority=priority))
                self.outcomes["answered"] += 1
                return
            timeout = float(random.uniform(0.0005, 0.02)) if kind > 0.9 else None
            asked = Asked(name, x, since, host.run(name, {"x": x}, priority=priority, timeout=timeout))
        except (QueueFullError, DeadlineError):
            self.outcomes["refused or late"] += 1
            return
        asked.future.add_done_callback(lambda _: asked.seen.append(1))
        self.asked.append(asked)
        if 0.3 < kind < 0.4:
            self.asked[int(random.integers(len(self.asked)))].future.cancel()

    def _numbers(self, rows: int) -> Array:
        """Rows that no other request of this client has for long, nor another client's beside it."""
        self.count += 1
        first = (self.count * 53 + self.number * LARGEST // 7) % (LARGEST - 3 * rows)
        return (np.arange(3 * rows, dtype=np.float32) + first).reshape(rows, 3)

    def _settle(self, asked: Asked) -> None:
        try:
            answer = asked.future.result(60)
        except CancelledError:
            self.outcomes["cancelled"] += 1
        except DeadlineError:
            self.outcomes["refused or late"] += 1
        except TimeoutError:
            self.soak.report.wrong.append(f"{asked.name}: a request is lost: {asked.future}")
        except Exception as error:  # noqa: BLE001 - any other one is what is looked for
            self.soak.report.wrong.append(f"{asked.name}: {type(error).__name__}: {error}")
        else:
            self.outcomes["answered"] += 1
            self._check(asked.name, asked.x, asked.since, answer)
        if len(asked.seen) > 1:
            self.soak.report.wrong.append(f"{asked.name}: a request was answered {len(asked.seen)} times")

    def _check(self, name: str, x: Array, since: int, answer: dict[str, Array]) -> None:
        expected = NETWORKS[name][1]
        factors = self.soak.factors[name][since:]
        if not any(np.array_equal(answer["y"], expected(x, factor)) for factor in factors):
            self.soak.report.wrong.append(f"{name}: {x.tolist()} gave {answer['y'].tolist()}, of factors {factors}")


def _resident_bytes() -> int:
    """What this process has in memory; where the system does not say, nothing."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main() -> int:
    """Soak, and say what came of it; 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two networks that are replaced")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    report = Soak(arguments.clients, arguments.pause, arguments.seed).run(arguments.seconds)
    print(f"{time.monotonic() - began:.0f} s, seed {arguments.seed}: {report}", end="")
    return int(bool(report.wrong or report.left or not report.flat))


if __name__ == "__main__":
    sys.exit(main())
