"""Times of the points of one sweep."""

from __future__ import annotations

import tempfile
import time

import glowtrain as gt
from benchmarks.speed.sweep.analysis import Point
from benchmarks.speed.sweep.axes import BASES, Size
from benchmarks.speed.sweep.families import FAMILIES, Arrays

LEAST = 5
"""Steps, at least, of a point."""


def sweep(family: str, axis: str, values: list[int], seconds: float, cores: int) -> list[Point]:
    """Each value in turn, with code compiled anew; the first one twice, as its first compile imports the compiler."""
    base = BASES[family]
    point(family, base.with_(axis, values[0]), values[0], 0.0, cores)
    return [point(family, base.with_(axis, value), value, seconds, cores) for value in values]


def point(family: str, size: Size, value: int, seconds: float, cores: int) -> Point:
    """Compile and time the training step of one size: SGD, cross entropy."""
    kind = FAMILIES[family]
    feeds = kind.feeds(size)
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        backend = gt.Cpu(cache=cache, threads=cores)
        trainer = gt.Trainer(kind.build(size), "softmax_cross_entropy", gt.optim.SGD(lr=1e-3), backend=backend)
        trainer.prepare(feeds)
        compiled = time.perf_counter() - began
    return Point(value, _shortest(trainer, feeds, seconds), compiled, kind.work(size))


def _shortest(trainer: gt.Trainer, feeds: Arrays, seconds: float) -> float:
    """Seconds of the fastest step: nothing is compared in turns here, and other work only slows steps down."""
    trainer.step(feeds)
    times, end = list[float](), time.perf_counter() + seconds
    while len(times) < LEAST or time.perf_counter() < end:
        began = time.perf_counter()
        trainer.step(feeds)
        times.append(time.perf_counter() - began)
    return min(times)
