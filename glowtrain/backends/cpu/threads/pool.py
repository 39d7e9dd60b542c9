"""The threads of this process that run tasks of native code.

``pool.ll`` beside this module is what they do, a fork-join pool with dynamic claiming (cf. Blumofe and Leiserson,
Scheduling Multithreaded Computations by Work Stealing, 1999; here every thread has a span of the chunks and takes from
others' once its own is empty). Python only starts them, as daemons that hold no interpreter lock while they work.
Memory and code of a pool stay until the process ends.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import warnings
from importlib import resources

import numpy as np

from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cpu.routines import begin, loaded
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.state import aligned
from glowtrain.backends.target import Target
from glowtrain.forks import renew_in_children
from glowtrain.types import Array

SPINS = 2000
"""Pauses for which a thread that has nothing to do looks again, some 50 to 100 µs; then it does so some 2 ms longer,
leaving its core to others in between, before it sleeps: through a step whose kernels are mostly too small to be shared,
and until the next one, as waking it takes longer than these."""
_X86 = {
    "PAUSE": "call void @llvm.x86.sse2.pause()",
    "SAVE_MODE": "call void @llvm.x86.sse.stmxcsr(ptr %mode.at)",
    "ADOPT_MODE": "call void @llvm.x86.sse.ldmxcsr(ptr %mode.at)",
}
_AARCH64 = {
    "PAUSE": "call void @llvm.aarch64.hint(i32 1)",
    "SAVE_MODE": "%mode = call i64 @llvm.aarch64.get.fpcr()\n  store i64 %mode, ptr %mode.at",
    "ADOPT_MODE": "%mode = load i64, ptr %mode.at\n  call void @llvm.aarch64.set.fpcr(i64 %mode)",
}
_INSTRUCTIONS = {"x86": _X86, "aarch64": _AARCH64}
"""What ``pool.ll`` leaves to the processor; elsewhere nothing stands in these places."""
_EXPORTS = ("size", "prepare", "work", "stop")


class ThreadPool:
    """A number of threads, one of which is whoever calls. ``address`` is what native code is given."""

    def __init__(self, threads: int, cache: Cache | None = None) -> None:
        self.threads = threads
        library = _library(cache)
        self._prepare, self._work, self._stop = (library.function(name, 3 - at) for at, name in enumerate(_EXPORTS[1:]))
        self.memory: Array = aligned(np.zeros(_size(library, threads), np.uint8))
        self.address = int(self.memory.ctypes.data)
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        self.started = False
        self.forget()

    def start(self) -> None:
        """Start the workers, unless they run. Says so where the system starts no more threads; those that there are
        do all the work then."""
        with self._lock:
            if not self.started:
                self.started = True
                self._start()

    def _start(self) -> None:
        for number in range(1, self.threads):
            name = f"glowtrain-{number}-of-{self.threads}"
            worker = threading.Thread(target=self._work, args=(self.address, number), name=name, daemon=True)
            try:
                worker.start()
            except RuntimeError as error:
                warnings.warn(f"{number} instead of {self.threads} threads: {error}", stacklevel=2)
                return
            self._workers.append(worker)

    def run(self, body: int, context: int, tasks: int) -> None:
        """Run the native function ``void body(context, thread, begin, end)``, both given by address, over all tasks,
        each in a range of its own."""
        self.start()
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
        prototype(int(self.memory[:8].view(np.int64)[0]))(self.address, body, context, tasks, 1, 1)

    def stop(self) -> None:
        """End the workers and wait for them. Whoever calls after that does everything alone."""
        with self._lock:
            if self._workers:
                self._stop(self.address)
            for worker in self._workers:
                worker.join()
            self._workers, self.started = [], True

    def forget(self) -> None:
        """Begin anew without workers, in a process that has none of them."""
        self._lock, self._workers, self.started = threading.Lock(), [], self.threads == 1
        self.memory[:] = 0
        self._prepare(self.address, self.threads, SPINS)


class _Pools:
    """The pools of this process, one for each number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[int, ThreadPool] = {}

    def of(self, threads: int, cache: Cache | None) -> ThreadPool:
        with self._lock:
            if not self._made:
                renew_in_children(self)
                atexit.register(self.stop)
            if threads not in self._made:
                self._made[threads] = ThreadPool(threads, cache)
            return self._made[threads]

    def renew(self) -> None:
        """Begin anew in a child of fork: it has the thread that forked alone, and another one may have held a lock."""
        self._lock = threading.Lock()
        for pool in self._made.values():
            pool.forget()

    def stop(self) -> None:
        for pool in self._made.values():
            pool.stop()


_pools = _Pools()


def pool_of(threads: int, cache: Cache | None = None) -> ThreadPool:
    """The pool of so many threads; functions on the same number share it. A cache may have the pool's code."""
    return _pools.of(threads, cache)


def expect_pool(cache: Cache | None = None) -> None:
    """Begin to compile the code of all pools, unless it is there, for who will soon need the first of them."""
    if not _loaded:
        begin(*_code(), cache)


def _library(cache: Cache | None) -> toolchain.Library:
    """The code of all pools: loaded once, for the first of them."""
    if not _loaded:
        _loaded.append(loaded(*_code(), _EXPORTS, cache))
    return _loaded[0]


def _code() -> tuple[str, str]:
    """What the code is called, and its text."""
    return "pool", pool_text(Target.host())


_loaded: list[toolchain.Library] = []


def pool_text(target: Target) -> str:
    """The functions of a pool, for a processor."""
    text = resources.files(__package__).joinpath("pool.ll").read_text(encoding="utf-8")
    own = _INSTRUCTIONS.get(target.architecture, {})
    for place in _X86:
        text = text.replace(f"  {place}\n", f"  {own[place]}\n" if own else "")
    return text


def _size(library: toolchain.Library, threads: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t)(library.address("size"))(threads))
