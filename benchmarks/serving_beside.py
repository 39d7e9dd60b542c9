"""``glowtrain serve`` beside ONNX Runtime behind FastAPI: a small model, asked in JSON by 1, 8 and 64 clients.

    python benchmarks/serving_beside.py --peer PYTHON [--turns 10] [--seconds 2] [--output FILE]

PYTHON has what ``serving_fastapi.py`` needs. Both servers run all the time and are asked in turns, each turn for so
many seconds, by connections that are kept; medians over turns are told, so that what else the machine does hits both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import glowtrain as gt
from glowtrain.graph import Template, Value

HERE = Path(__file__).parent
OURS, PEER = "glowtrain serve", "FastAPI, ONNX Runtime"
IMAGE = {"name": "x", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
BODY = json.dumps({"inputs": [IMAGE]}).encode()
ASKED = (
    b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


def model() -> Template:
    """64-64-10, which runs for some microseconds: what is measured is the serving."""

    @gt.model(x=gt.f32["batch", 1, 8, 8])
    def digits(x: Value) -> dict[str, Value]:
        return {"scores": gt.nn.linear(gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 64)), 10)}

    return digits


async def client(port: int, end: float, taken: list[float]) -> None:
    """Ask on one connection, one request after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (began := time.perf_counter()) < end:
        writer.write(ASKED % len(BODY) + BODY)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(head.decode())
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
        taken.append(time.perf_counter() - began)
    writer.close()


async def turn(port: int, clients: int, seconds: float) -> list[float]:
    """The seconds that answers took."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, end, taken) for _ in range(clients)))
    return taken


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Server:
    """A server that runs, and its process."""

    port: int
    process: int

    def busy(self) -> float:
        """Seconds of processor time that it has taken."""
        user, system = Path(f"/proc/{self.process}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def turn(self, clients: int, seconds: float) -> Turn:
        """Have clients ask."""
        busy = self.busy()
        taken = asyncio.run(turn(self.port, clients, seconds))
        return Turn(taken, (self.busy() - busy) / len(taken))


@dataclass
class Turn:
    """The seconds that answers took, and that the server worked on each."""

    taken: list[float]
    busy: float


def started(command: list[str], port: int, stack: ExitStack) -> Server:
    """Start a server, and wait until it answers."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for _ in range(300):
        try:
            asyncio.run(turn(port, 1, 0.2))
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            time.sleep(0.2)
        else:
            return Server(port, process.pid)
    raise RuntimeError(f"{command} does not answer")


def rows(servers: dict[str, Server], options: argparse.Namespace) -> Iterator[str]:
    """A line of the table for each number of clients and server; the first turn warms up."""
    yield "| clients | server | a second | ratio | p50 | p99 | processor |"
    yield "|---:|---|---:|---:|---:|---:|---:|"
    for clients in (1, 8, 64):
        turns = [
            {name: server.turn(clients, options.seconds) for name, server in servers.items()}
            for _ in range(options.turns + 1)
        ][1:]
        for name in servers:
            rate = statistics.median(len(each[name].taken) for each in turns) / options.seconds
            ratio = statistics.median(len(each[name].taken) / len(each[PEER].taken) for each in turns)
            p50, p99 = np.median([np.percentile(each[name].taken, [50, 99]) for each in turns], axis=0) * 1e3
            busy = statistics.median(each[name].busy for each in turns) * 1e3
            yield f"| {clients} | {name} | {rate:,.0f} | {ratio:.2f} | {p50:.2f} | {p99:.2f} | {busy:.3f} |"


def main() -> None:
    """Print the table, and write it to a file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="a Python that has FastAPI and ONNX Runtime")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = ["# Serving, beside ONNX Runtime behind FastAPI", ""]
    lines += [f"    python benchmarks/serving_beside.py --turns {options.turns} --seconds {options.seconds:g}", ""]
    lines += [
        "An MLP 64-64-10, one example a request, in JSON, on kept connections. Medians of turns, the servers taking"
    ]
    lines += [f"turns; they and the clients share {len(os.sched_getaffinity(0))} cores with other work, load"]
    lines += [f"{os.getloadavg()[0]:.1f} at the start. Milliseconds, as clients see them, and of the server's"]
    lines += ["processor time for a request, which others' work hardly changes.", ""]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "digits.onnx"
        gt.save(model(), path)
        ours, peer = free_port(), free_port()
        serve = [sys.executable, "-m", "glowtrain", "serve", str(path), "--threads", "1", "--grpc-port", "0"]
        servers = {
            OURS: started([*serve, "--port", str(ours)], ours, stack),
            PEER: started([options.peer, str(HERE / "serving_fastapi.py"), str(path), str(peer)], peer, stack),
        }
        lines += rows(servers, options)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
