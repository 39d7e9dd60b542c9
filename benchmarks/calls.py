"""Calls of one inference function from several threads: how many more a second than from one.

    python benchmarks/calls.py [--threads 8] [--turns 9]

The function itself runs each call on one thread.
One and several threads in turns, medians of the ratio pair by pair. Native code runs without Python's lock, in an
instance of its own for each call.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import glowtrain as gt
from glowtrain import models


def rate(function: gt.compiler.Function, feeds: dict[str, np.ndarray], threads: int, calls: int) -> float:
    """Calls a second."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: function(feeds), range(threads)))
        began = time.perf_counter()
        list(pool.map(lambda _: function(feeds), range(calls)))
        return calls / (time.perf_counter() - began)


def compared(name: str, threads: int, turns: int) -> str:
    """A line about one model."""
    function = gt.compile(models.build(name).bind({"batch": 64}), threads=1)
    feeds = {"x": np.random.default_rng(0).standard_normal((64, 1, 28, 28)).astype(np.float32)}
    pairs = [(rate(function, feeds, threads, 60), rate(function, feeds, 1, 60)) for _ in range(turns)]
    one, ratio = statistics.median(one for _, one in pairs), statistics.median(many / one for many, one in pairs)
    return f"{name:10} {one:8.1f} calls/s from one thread, {ratio:.2f} times as many"


def main() -> None:
    """Print a line for each of three models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, {arguments.threads} threads against one")
    for name in ("mlp", "cnn", "mobilenet"):
        print(compared(name, arguments.threads, arguments.turns), flush=True)


if __name__ == "__main__":
    main()
