"""``glowtrain serve`` under load: clients that ask at the same time, with dynamic batching and without.

    python benchmarks/serving.py [--turns 10] [--seconds 4] [--clients 8] [--threads N] [--output FILE]

Two servers on this machine's own address have the same model, one of them with batches of one example; each has
clients by gRPC and by HTTP in processes of their own (``serving_clients.py``, Triton's client: ``pip install
'tritonclient[all]'``). They are asked in turns. Queue times and batch sizes are from the servers' metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

import glowtrain as gt
from glowtrain.graph import Template, Value

HERE, MODEL = Path(__file__).parent, "wide"
WAYS = {"grpc": "gRPC", "http": "HTTP, tensors as bytes"}


def model(width: int, layers: int) -> Template:
    """Products with large matrices: an example alone waits for all of them to come from memory."""

    @gt.model(x=gt.f32["batch", width])
    def wide(x: Value) -> dict[str, Value]:
        for number in range(layers):
            x = gt.nn.relu(gt.nn.linear(x, width, name=f"layer{number}"))
        return {"y": x}

    return wide


@dataclass
class Metrics:
    """What a server has counted, of which differences are taken."""

    requests: float
    rows: float
    batches: float
    waited: float
    ran: float

    def __sub__(self, before: Metrics) -> Metrics:
        own, other = vars(self).values(), vars(before).values()
        return Metrics(*(a - b for a, b in zip(own, other, strict=True)))

    def __add__(self, more: Metrics) -> Metrics:
        own, other = vars(self).values(), vars(more).values()
        return Metrics(*(a + b for a, b in zip(own, other, strict=True)))


COUNTED = ("request_success", "count", "exec_count", "queue_duration_us", "compute_infer_duration_us")


class Served:
    """A server of the model in a process of its own, and its clients."""

    def __init__(self, path: Path, options: list[str], stack: ExitStack) -> None:
        command = [sys.executable, "-m", "glowtrain", "serve", str(path), "--port", "0", "--grpc-port", "0"]
        self.process = subprocess.Popen([*command, "--log-format", "json", *options], stderr=subprocess.PIPE, text=True)
        stack.callback(self.process.wait)
        stack.callback(self.process.terminate)
        events = self._events()
        listening = next(event for event in events if event["event"] == "listening")
        self.http, self.grpc = listening["http"], listening["grpc"]
        next(event for event in events if event["event"] == "ready")

    def _events(self) -> Iterator[dict[str, Any]]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            yield json.loads(line)
        raise RuntimeError("the server has ended")

    def address(self, way: str) -> str:
        found: str = self.grpc if way == "grpc" else self.http.removeprefix("http://")
        return found

    def metrics(self) -> Metrics:
        """As they are now."""
        with urlopen(f"{self.http}/metrics") as answer:
            text = answer.read().decode()
        found = [re.search(rf"^nv_inference_{name}{{.*}} (\S+)$", text, re.MULTILINE) for name in COUNTED]
        return Metrics(*(float(each[1]) for each in found if each is not None))

    def busy(self) -> float:
        """Seconds of processor time that it has taken."""
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@dataclass
class Load:
    """One server asked in one way: what its clients and its metrics say of all turns."""

    served: Served
    clients: subprocess.Popen[str]
    rates: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    counted: Metrics = field(default_factory=lambda: Metrics(0, 0, 0, 0, 0))
    busy: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Processor time of the server, and of the clients."""

    def turn(self, seconds: float, *, counts: bool = True) -> None:
        """Have the clients ask for so many seconds."""
        assert self.clients.stdin is not None
        assert self.clients.stdout is not None
        before, busy = self.served.metrics(), self.served.busy()
        self.clients.stdin.write(f"{seconds}\n")
        self.clients.stdin.flush()
        said = json.loads(self.clients.stdout.readline())
        if counts:
            self.rates.append(len(said["taken"]) / seconds)
            self.taken += said["taken"]
            self.counted += self.served.metrics() - before
            self.busy = [self.busy[0] + self.served.busy() - busy, self.busy[1] + said["busy"]]

    def row(self, name: str, other: Load | None) -> str:
        """A line of the table, beside another load."""
        ratio = "| |"
        if other is not None:
            each = [own / before for own, before in zip(self.rates, other.rates, strict=True)]
            low, middle, high = statistics.quantiles(each, n=4)
            ratio = f"{middle:.2f} | {low:.2f}, {high:.2f} |"
        p50, p99 = np.percentile(self.taken, [50, 99]) * 1e3
        counted, (server, clients) = self.counted, (1e3 * each / len(self.taken) for each in self.busy)
        return (
            f"| {name} | {statistics.median(self.rates):,.0f} | {ratio} {p50:.1f} | {p99:.1f} | "
            f"{counted.waited / counted.requests / 1e3:.1f} | {counted.rows / counted.batches:.2f} | "
            f"{counted.ran / counted.batches / 1e3:.2f} | {server:.2f} | {clients:.2f} |"
        )


HEAD = (
    "| | a second | ratio | quartiles | p50 | p99 | in the queue | batch | a run | server | clients |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)


def load(served: Served, way: str, width: int, clients: int, stack: ExitStack) -> Load:
    """Clients of a server."""
    command = [sys.executable, str(HERE / "serving_clients.py"), way, served.address(way), MODEL]
    process = subprocess.Popen(
        [*command, str(width), str(clients)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    stack.callback(process.wait)
    stack.callback(process.stdin.close)
    return Load(served, process)


def table(alone: Load, joined: Load, turns: int, seconds: float, clients: int) -> Iterator[str]:
    """Both loads in turns; the first turn of each warms up."""
    for turn in range(turns + 1):
        for each in (alone, joined):
            each.turn(seconds, counts=turn > 0)
    yield from HEAD
    yield alone.row("one example a run", None)
    yield joined.row(f"batches of up to {clients}", alone)


def report(options: argparse.Namespace, tell: Callable[[str], None]) -> None:
    """All tables."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / f"{MODEL}.onnx"
        gt.save(model(options.width, options.layers), path)
        threads = [] if options.threads is None else ["--threads", str(options.threads)]
        alone = Served(path, ["--max-batch", "1", *threads], stack)
        batches = ["--max-batch", str(options.clients), "--max-delay", str(options.delay), *threads]
        joined = Served(path, batches, stack)
        for way, words in WAYS.items():
            loads = [load(each, way, options.width, options.clients, stack) for each in (alone, joined)]
            tell(f"## {words}\n")
            for line in table(*loads, options.turns, options.seconds, options.clients):
                tell(line)
            tell("")


def head(options: argparse.Namespace) -> Iterator[str]:
    """What was measured, and where."""
    width, layers, mebibytes = options.width, options.layers, options.layers * options.width**2 * 4 / 2**20
    yield from ("# Serving", "")
    threads = "" if options.threads is None else f" --threads {options.threads}"
    yield from (f"    python benchmarks/serving.py --turns {options.turns} --seconds {options.seconds:g}{threads}", "")
    yield f"{options.clients} clients at once, each with one example a request; {layers} products with matrices of"
    yield f"{width}x{width}, {mebibytes:,.0f} MiB in all. A request waits {options.delay:g} ms at most for others."
    yield f"Servers and clients share {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start."
    yield ""
    yield "Milliseconds: p50 and p99 as clients see them, means in the queue and of a batch's run, and processor time"
    yield from ("of the server and of the clients for a request.", "")


def main() -> None:
    """Print the tables, and write them to a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--delay", type=float, default=25.0, help="milliseconds that a request waits for others at most"
    )
    parser.add_argument("--threads", type=int, help="of each server's kernels; by default all cores")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [*head(options)]
    print("\n".join(lines), flush=True)

    def tell(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    report(options, tell)
    if options.output is not None:
        options.output.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
