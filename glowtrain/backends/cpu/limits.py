"""Small loops that measure what a processor can do: operations on registers, and bytes from each cache and memory.

Every loop is ``void NAME(context, thread, begin, end)`` over tasks, as threads run them (see
:mod:`glowtrain.backends.cpu.threads.share`). A task goes ``trips`` times through its instructions or
its ``bytes`` of the ``data``; ``thread`` and ``task`` say how far apart these are.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.backends.caches import CpuCache, caches
from glowtrain.backends.cpu.contraction.dot import Dot, dot_of
from glowtrain.backends.cpu.contraction.matrices import unit
from glowtrain.backends.cpu.threads.pool import pool_of
from glowtrain.backends.limits import FUNCTIONS, MachineLimits, MemoryLevel
from glowtrain.backends.llvm import toolchain, vector_math
from glowtrain.backends.llvm.text import INDEX, LlvmFunction
from glowtrain.backends.llvm.values import (
    POINTER,
    LlvmType,
    LlvmValue,
    in_all_lanes,
    number,
    pointer,
    vector,
)
from glowtrain.backends.state import aligned
from glowtrain.backends.target import Target
from glowtrain.program.analysis.work_count import BYTES, DOUBLES, FLOATS
from glowtrain.types import Array

CHAINS = 12
"""Results that are computed beside each other, more than any processor has under way."""
UNROLLED = 4
"""Operations on each in a trip; loads of a stream in a trip."""
TASKS = 8
"""Tasks for each thread: one that is held up does fewer."""
DURATION, ROUNDS = 1e-3, 8
"""Seconds of one run about, and runs, of which the fastest counts."""
CACHE_PART, MOST_CACHE = 0.5, 16 << 20
"""Of a cache's bytes, what is streamed through to measure it; and bytes at most."""
MEMORY, MOST_MEMORY = 64 << 20, 128 << 20
"""Bytes that are streamed through to measure memory, at least and at most; between these, twice the largest cache."""
FIELDS = "trips", "sink", "data", "thread", "task", "bytes"
"""What the context holds."""
BLOCK = 4096
"""Bytes of which a task's are a whole number."""
SINK = 128
"""Bytes for what a thread leaves."""
PARAMS = ("ptr", "context"), (INDEX, "thread"), (INDEX, "begin"), (INDEX, "end")


@dataclass(frozen=True)
class RegisterLoop:
    """What a loop on registers repeats: from one vector (``type``) to the next, with so many operations a lane."""

    name: str
    type: LlvmType
    operations: int
    step: Callable[[LlvmFunction, LlvmValue], LlvmValue]

    @property
    def each(self) -> int:
        """Operations of a trip."""
        return CHAINS * UNROLLED * self.operations * self.type.width

    def text(self) -> str:
        """Its function."""
        f, count = _begun(self.name)
        start = number(0.5, self.type) if self.type.floats else in_all_lanes("1", self.type)
        with f.loop(count, [start] * CHAINS) as trip:
            values = trip.carried
            for _ in range(UNROLLED):
                values = [self.step(f, value) for value in values]
            trip.next = values
        for value in trip.results:
            f.store(value, _sink(f), 4)
        return f.finish()


@dataclass(frozen=True)
class MatrixLoop:
    """The same of products of whole matrices, which add to the sums of all registers but two."""

    name: str
    dot: Dot

    @property
    def each(self) -> int:
        """Operations of a trip."""
        return UNROLLED * (unit.REGISTERS - 2) * 2 * unit.ROWS * unit.ROW * (unit.ROW // unit.WORD)

    def text(self) -> str:
        """Its function."""
        f, count = _begun(self.name)
        unit.configure(f, [(unit.ROWS, unit.ROW)] * unit.REGISTERS)
        a, b = unit.REGISTERS - 2, unit.REGISTERS - 1
        with f.loop(count):
            for sums in (*range(a),) * UNROLLED:
                unit.multiply(f, self.dot, sums, a, b)
        unit.release(f)
        return f.finish()


def measured(target: Target, threads: int, kinds: Collection[str]) -> MachineLimits:
    """What so many threads of this processor do in a second, of these kinds of operations.

    A kind's rate is that of code for ``target``, which need not use all that the processor has.
    """
    loops = {kind: tuple(_loops(target, kind)) for kind in kinds}
    levels = tuple(_levels(target, threads))
    distinct = {loop.name: loop for each in loops.values() for loop in each}
    rates = _Bench(target, threads, tuple(distinct.values()), levels).rates()
    operations = {kind: max(rates[loop.name, ""] for loop in each) for kind, each in loops.items()}
    streamed = {level: max(rates[stream, level.name] for stream in STREAMS) for level in levels}
    found = tuple(MemoryLevel(level.name, level.size, rate) for level, rate in streamed.items())
    return MachineLimits(threads, operations, found)


def _loops(target: Target, kind: str) -> Iterator[RegisterLoop | MatrixLoop]:
    """The loops on registers for a kind; the fastest of them counts."""
    match kind:
        case _ if kind == FUNCTIONS:
            type_ = vector("float", target.width("f32"))
            yield from (_function(target, type_, name) for name in ("exp", "reciprocal"))
        case _ if kind in (FLOATS, DOUBLES):
            yield _floats(target, kind, "float" if kind == FLOATS else "double")
        case _:
            yield _integers(vector("i32", target.width("i32")))
    if kind == BYTES and (dot := dot_of(target, "u8", "i8")) is not None:
        yield _bytes(dot, vector("i32", target.width("i32")))
    if kind == BYTES and (matrices := unit.matrix_dot(target, "u8", "i8")) is not None:
        yield MatrixLoop("products_of_matrices", matrices)


def _floats(target: Target, kind: str, scalar: str) -> RegisterLoop:
    type_ = vector(scalar, target.width(kind))
    half = number(0.5, type_)

    def step(f: LlvmFunction, x: LlvmValue) -> LlvmValue:
        return f.intrinsic("fma", x, half, half) if target.has_fma else f.op("fadd", f.op("fmul", x, half), half)

    return RegisterLoop(f"arithmetic_{kind}", type_, 2, step)


def _integers(type_: LlvmType) -> RegisterLoop:
    return RegisterLoop("arithmetic_i32", type_, 2, lambda f, x: f.op("add", f.op("mul", x, x), 1))


def _bytes(dot: Dot, sums: LlvmType) -> RegisterLoop:
    word = dot.word(sums.width)

    def step(f: LlvmFunction, x: LlvmValue) -> LlvmValue:
        return dot.product(f, f.cast("bitcast", x, word), in_all_lanes("1", word), x)

    return RegisterLoop("products", sums, 2 * dot.group, step)


def _function(target: Target, type_: LlvmType, name: str) -> RegisterLoop:
    return RegisterLoop(f"function_{name}", type_, 1, lambda f, x: vector_math.emit(f, name, [x], target))


# -- their text


def _begun(name: str) -> tuple[LlvmFunction, LlvmValue]:
    """A loop's function, and the trips of all its tasks."""
    f = LlvmFunction(name, PARAMS)
    trips = _field(f, "trips", f.index_type)
    return f, f.op("mul", f.op("sub", f.index("%end"), f.index("%begin")), trips)


def _read(f: LlvmFunction, type_: LlvmType, data: LlvmValue, nbytes: LlvmValue) -> None:
    """Add up every vector of the data."""
    size = type_.width * 4
    with f.loop(nbytes, [number(0.0, type_)] * UNROLLED, step=size * UNROLLED) as loop:
        at = f.address(data, loop.index, 1)
        loaded = [f.load(type_, f.address(at, size * k, 1), 4) for k in range(UNROLLED)]
        loop.next = [f.op("fadd", total, value) for total, value in zip(loop.carried, loaded, strict=True)]
    for total in loop.results:
        f.store(total, _sink(f), 4)


def _update(f: LlvmFunction, type_: LlvmType, data: LlvmValue, nbytes: LlvmValue) -> None:
    """Load, scale and store every vector of the data."""
    size = type_.width * 4
    with f.loop(nbytes, step=size * UNROLLED) as loop:
        at = f.address(data, loop.index, 1)
        for k in range(UNROLLED):
            place = f.address(at, size * k, 1)
            f.store(f.op("fmul", f.load(type_, place, 4), number(0.5, type_)), place, 4)


STREAMS = {"read": (_read, 1), "update": (_update, 2)}
"""Loops over data, and how often each moves every byte."""


def _stream_text(name: str, type_: LlvmType) -> str:
    """One of :data:`STREAMS` over the parts of some tasks."""
    f = LlvmFunction(name, PARAMS)
    base = f.address(_field(f, "data", POINTER), f.op("mul", f.index("%thread"), _field(f, "thread", f.index_type)), 1)
    with f.loop(f.index("%end"), begin=f.index("%begin")) as task:
        data = f.address(base, f.op("mul", task.index, _field(f, "task", f.index_type)), 1)
        with f.loop(_field(f, "trips", f.index_type)):
            STREAMS[name][0](f, type_, data, _field(f, "bytes", f.index_type))
    return f.finish()


def _field(f: LlvmFunction, name: str, type_: LlvmType) -> LlvmValue:
    return f.load(type_, f.address(pointer("%context"), FIELDS.index(name), 8), 8)


def _sink(f: LlvmFunction) -> LlvmValue:
    """Where a thread leaves results that nobody wants, so that they are computed."""
    return f.address(_field(f, "sink", POINTER), f.op("mul", f.index("%thread"), SINK), 1)


# -- running them


@dataclass(frozen=True)
class Footprint:
    """What is streamed through for one level of memory: bytes of a task, and how far apart those of threads and of
    tasks are; ``size`` is what the level holds for all threads together, 0 for any number."""

    name: str = ""
    size: int = 0
    nbytes: int = 0
    thread: int = 0
    task: int = 0


def _levels(target: Target, threads: int) -> Iterator[Footprint]:
    """Caches and memory; which is not told from a cache that is larger than all that is streamed through."""
    found = caches() or (CpuCache(1, target.l1, 1), CpuCache(2, target.l2, 1))
    for cache in found:
        sharing = min(threads, cache.cores)
        part = _whole(int(min(CACHE_PART * cache.size, MOST_CACHE) / sharing))
        yield Footprint(f"L{cache.level}", cache.size * threads // sharing, part, thread=part)
    total = min(max(MEMORY, 2 * found[-1].size), MOST_MEMORY)
    part = _whole(total // (TASKS * threads))
    yield Footprint("memory", 0, part, task=part)


def _whole(nbytes: int) -> int:
    """Down to what every loop goes through in whole trips."""
    return max(nbytes // BLOCK, 1) * BLOCK


@dataclass
class _Job:
    """A loop over data; how much a trip of a task does, the trips, and the seconds of the fastest run so far."""

    loop: str
    data: Footprint
    amount: int
    trips: int = 1
    best: float = math.inf


class _Bench:
    """The loops of a processor, loaded, and memory for them."""

    def __init__(
        self, target: Target, threads: int, loops: Sequence[RegisterLoop | MatrixLoop], levels: Sequence[Footprint]
    ) -> None:
        self.pool, self.tasks = pool_of(threads), TASKS * threads
        type_ = vector("float", target.width("f32"))
        texts = [*(loop.text() for loop in loops), *(_stream_text(name, type_) for name in STREAMS)]
        self.library = toolchain.build("\n".join(texts), target, [*(loop.name for loop in loops), *STREAMS])
        self.sink: Array = aligned(np.zeros(SINK * threads, np.uint8))
        self.data = _ones(max(max(level.thread * threads, level.task * self.tasks) for level in levels))
        self.jobs = [_Job(loop.name, Footprint(), loop.each) for loop in loops]
        for name, (_, times) in STREAMS.items():
            self.jobs += [_Job(name, level, times * level.nbytes) for level in levels]

    def rates(self) -> dict[tuple[str, str], float]:
        """What each loop does in a second, by its name and the level's: in the fastest of some runs, taken in turns, as
        other programs may hold them up for a while."""
        for job in self.jobs:
            self._run(job)  # threads start, pages are mapped
            while min(self._run(job) for _ in range(3)) < DURATION / 4:
                job.trips, job.best = 4 * job.trips, math.inf
        for _ in range(ROUNDS):
            for job in self.jobs:
                self._run(job)
        return {(job.loop, job.data.name): job.amount * job.trips * self.tasks / job.best for job in self.jobs}

    def _run(self, job: _Job) -> float:
        data = job.data
        fields = job.trips, self.sink.ctypes.data, self.data.ctypes.data, data.thread, data.task, data.nbytes
        context = (ctypes.c_int64 * len(fields))(*fields)
        began = time.perf_counter()
        self.pool.run(self.library.address(job.loop), ctypes.addressof(context), self.tasks)
        seconds = time.perf_counter() - began
        job.best = min(job.best, seconds)
        return seconds


def _ones(nbytes: int) -> Array:
    """So many bytes, aligned to pages, of f32 1."""
    memory = np.empty(nbytes + BLOCK, np.uint8)
    start = -memory.ctypes.data % BLOCK
    result: Array = memory[start : start + nbytes].view(np.float32)
    result.fill(1)
    return result
