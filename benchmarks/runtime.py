"""The runtime: what a request costs, what batches of several clients' requests bring, networks in a row, training.

    python benchmarks/runtime.py [--turns 30] [--output FILE]

Everything that is compared runs in turns in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain.graph import Graph, Input, Value
from glowtrain.runtime import HostManager, Part, Partition, cpu_devices
from glowtrain.runtime.pipeline import Link

WIDTH, CLIENTS, REQUESTS = 1024, 8, 32
DELAY = 0.005
"""Seconds that a request may wait for others: a batch is full as soon as every client has asked again."""


@gt.model(x=gt.f32["batch", 4])
def small(x: Value) -> dict[str, Value]:
    """Nothing but overhead."""
    return {"y": x * 2.0}


@gt.model(x=gt.f32["batch", WIDTH])
def wide(x: Value) -> dict[str, Value]:
    """Four products with matrices of 4 MiB: an example alone waits for them to come from memory."""
    for number in range(4):
        x = gt.nn.relu(gt.nn.linear(x, WIDTH, name=f"layer{number}"))
    return {"y": x}


NARROW, ROWS, LAYERS = 256, 64, 8


@gt.model(x=gt.f32["batch", NARROW])
def deep(x: Value) -> dict[str, Value]:
    """Products whose matrices stay in a core's cache, so that two cores do twice as much."""
    for number in range(LAYERS):
        x = gt.nn.relu(gt.nn.linear(x, NARROW, name=f"layer{number}"))
    return {"y": x}


def deep_input() -> dict[str, np.ndarray]:
    """A batch for it."""
    return {"x": np.random.default_rng(0).standard_normal((ROWS, NARROW)).astype(np.float32)}


def seconds_each(call: Callable[[], Any], count: int = 300) -> float:
    """The median of so many calls."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def rate(work: Callable[[], Any], count: int) -> float:
    """Requests a second, for work on so many."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def overhead(turns: int) -> Iterator[str]:
    """What a request costs beside a direct call of the compiled function."""
    function = gt.compile(small.bind({"batch": 1}))
    x = {"x": np.ones((1, 4), np.float32)}
    with HostManager() as host:
        host.add_network("net", small)
        calls: dict[str, Callable[[], Any]] = {
            "a direct call": lambda: function(x),
            "`run_sync`": lambda: host.run_sync("net", x),
            "`run().result()`": lambda: host.run("net", x).result(),
        }
        taken = [{name: seconds_each(call) for name, call in calls.items()} for _ in range(turns)]
    yield "| | µs | more than a direct call |"
    yield "|---|---:|---:|"
    for name in calls:
        own = statistics.median(each[name] for each in taken)
        more = statistics.median(each[name] - each["a direct call"] for each in taken)
        yield f"| {name} | {own * 1e6:.1f} | {more * 1e6:.1f} |"


@contextmanager
def served(max_batch: int) -> Iterator[HostManager]:
    """The wide network with batches up to a size."""
    with HostManager() as host:
        host.add_network("net", wide, max_batch=max_batch, max_delay=DELAY if max_batch > 1 else 0.0)
        yield host


def batching(turns: int) -> Iterator[str]:
    """Requests of eight clients at once, each of one example, with batches and without."""
    examples = np.random.default_rng(0).standard_normal((CLIENTS, 1, WIDTH)).astype(np.float32)

    def client(host: HostManager, number: int) -> None:
        for _ in range(REQUESTS):
            host.run_sync("net", {"x": examples[number]})

    def all_clients(host: HostManager, pool: ThreadPoolExecutor) -> float:
        return rate(lambda: list(pool.map(lambda n: client(host, n), range(CLIENTS))), CLIENTS * REQUESTS)

    with served(1) as alone, served(CLIENTS) as joined, ThreadPoolExecutor(CLIENTS) as pool:
        pairs = [(all_clients(alone, pool), all_clients(joined, pool)) for _ in range(turns)]
        counts = joined.network("net").counts
        rows = counts.rows / counts.batches
    yield from _compared("one request at a time", f"batches of up to {CLIENTS}, {rows:.1f} on average", pairs)


def _compared(first: str, second: str, pairs: list[tuple[float, float]]) -> Iterator[str]:
    """Rates, and the ratio pair by pair: medians and quartiles."""
    yield "| | a second | ratio | quartiles |"
    yield "|---|---:|---:|---:|"
    yield f"| {first} | {statistics.median(one for one, _ in pairs):,.0f} | | |"
    low, ratio, high = statistics.quantiles((other / one for one, other in pairs), n=4)
    yield f"| {second} | {statistics.median(other for _, other in pairs):,.0f} | {ratio:.2f} | {low:.2f}, {high:.2f} |"


def in_a_row(turns: int) -> Iterator[str]:
    """Two networks, each on a device with a core of its own: the second takes what the first gives."""
    x = deep_input()
    with HostManager(cpu_devices(2, pinned=True)) as host:
        for name, device in (("first", "cpu:0"), ("second", "cpu:1")):
            host.add_network(name, deep, batch_sizes=[ROWS], devices=[device])
        host.add_pipeline("both", [Link("first"), Link("second", {"x": "first.y"})], {"y": "second.y"})

        def in_turn() -> None:
            for _ in range(REQUESTS):
                host.run_sync("second", {"x": host.run_sync("first", x)["y"]})

        pairs = [(rate(in_turn, REQUESTS), rate(lambda: flowing(host, "both", x), REQUESTS)) for _ in range(turns)]
    yield from _compared("one after the other", "as a pipeline", pairs)


def flowing(host: HostManager, name: str, x: dict[str, np.ndarray]) -> None:
    """Requests of which a few are always under way."""
    waiting: deque[Any] = deque()
    for _ in range(REQUESTS):
        waiting.append(host.run(name, x))
        if len(waiting) > 4:
            waiting.popleft().result()
    for future in waiting:
        future.result()


def halves(graph: Graph) -> Partition:
    """The first half of the layers, and the other one."""
    random, type_ = np.random.default_rng(0), graph.inputs[0].type
    parts = []
    for stage, (takes, gives) in enumerate((("x", "h"), ("h", "y"))):
        value = start = Input(type_, takes)
        for _ in range(LAYERS // 2):
            weight = random.standard_normal((NARROW, NARROW)).astype(np.float32) * np.float32((2 / NARROW) ** 0.5)
            value = gt.nn.relu(gt.ops.MatMul()(value, gt.constant(weight)))
        parts.append(Part(f"half{stage}", Graph((start,), {gives: value}, name=f"half{stage}"), stage))
    return Partition("halves", tuple(parts), graph.input_types, {"y": "y"})


def in_parts(turns: int) -> Iterator[str]:
    """One network in two parts, each on a device with a core of its own; one request under way, or several."""
    x = deep_input()
    with HostManager(cpu_devices(2, pinned=True)) as host:
        host.add_network("net", deep, batch_sizes=[ROWS], partition=halves)

        def in_turn() -> None:
            for _ in range(REQUESTS):
                host.run_sync("net", x)

        pairs = [(rate(in_turn, REQUESTS), rate(lambda: flowing(host, "net", x), REQUESTS)) for _ in range(turns)]
    yield from _compared("one request under way", "several", pairs)


BATCH, STEPS = 64, 8


@gt.model(x=gt.f32["batch", 16, 24, 24])
def convolutions(x: Value) -> dict[str, Value]:
    """Work that grows with the batch; few parameters."""
    for number in range(4):
        x = gt.nn.relu(gt.nn.conv(x, 32, 3, padding=1, name=f"conv{number}"))
    return {"scores": gt.nn.linear(gt.nn.flatten(gt.nn.max_pool(x, 4)), 10, name="head")}


def training(turns: int) -> Iterator[str]:
    """Steps on a batch in two parts, on one device and on two, each with a core of its own: the same bits."""
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((BATCH, 16, 24, 24)).astype(np.float32), random.integers(0, 10, BATCH)
    batches = [{"x": x, "labels": labels}] * STEPS
    with HostManager(cpu_devices(2, pinned=True)) as host:
        runs = []
        for devices in (["cpu:0"], ["cpu:0", "cpu:1"]):
            loss = gt.losses.softmax_cross_entropy("labels", "scores")
            trainer = gt.Trainer(convolutions, loss, gt.optim.Adam(1e-3), threads=1)
            runs.append(host.add_training("net", trainer, batch_size=BATCH, parts=2, devices=devices))
        one, two = runs
        pairs = [(rate(lambda: one.fit(batches), STEPS), rate(lambda: two.fit(batches), STEPS)) for _ in range(turns)]
    yield from _compared("one device", "two devices", pairs)


PARTS: dict[str, Callable[[int], Iterator[str]]] = {
    "Overhead of a request": overhead,
    f"Dynamic batching: {CLIENTS} clients, four products of {WIDTH}x{WIDTH}": batching,
    "Two networks in a row, on two pinned devices": in_a_row,
    "One network in two parts, on two pinned devices": in_parts,
    f"Training: four convolutions, Adam, batches of {BATCH} in two parts, on pinned devices": training,
}


def main() -> None:
    """Print a table for each part, and write them to a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    lines = ["# The runtime", ""]
    lines += [f"    python benchmarks/runtime.py --turns {arguments.turns}", ""]
    lines += [f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start.", ""]
    for title, part in PARTS.items():
        table = [f"## {title}", "", *part(arguments.turns), ""]
        lines += table
        print("\n".join(table), flush=True)
    if arguments.output is not None:
        arguments.output.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
