"""The thread that makes batches ahead: it runs beside steps, and ends when fit does."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.interpreter import InterpretedInstance
from glowtrain.errors import BatchError
from glowtrain.trainer.fitting.moments import Moment
from glowtrain.trainer.sources import prefetch
from glowtrain.trainer.sources.prefetch import Prefetched
from tests.training.loaders import Batch, bits, cut
from tests.training.trainers import Points, trainer_of


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "glowtrain-prefetch"]


# --- the thread alone ------------------------------------------------------------------------------------------------


def never() -> None:
    """Nothing ends a wait."""


def taken(source: Prefetched[Any], most: int = 1) -> list[Any]:
    found: list[Any] = []
    while items := source.take(most):
        assert len(items) <= most
        found += items
    return found


@pytest.mark.parametrize("most", [1, 3, 100])
def test_items_come_in_their_order(most: int) -> None:
    source = Prefetched((number for number in range(50)), 2, 64, never)
    assert taken(source, most) == [*range(50)]
    assert source.take(1) == []
    source.close()
    assert workers() == []


def test_no_more_items_are_made_than_wanted() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    source = Prefetched(items(), 2, 10, never)  # type: ignore[arg-type]

    def settled(count: int) -> bool:
        until = time.monotonic() + 10
        while len(made) < count and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.02)
        return len(made) == count

    assert settled(2)
    assert source.take(1) == [0]
    assert settled(3)
    assert source.take(100) == [1, 2]
    assert settled(3 + 10)
    source.close()
    assert len(made) == 13


def test_an_error_comes_after_the_items_before_it() -> None:
    error = KeyError("x")

    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise error

    source = Prefetched(items(), 5, 5, never)  # type: ignore[arg-type]
    assert source.take(1) == [1]
    assert source.take(1) == [2]
    with pytest.raises(KeyError) as told:
        source.take(1)
    assert told.value is error
    source.close()


def test_what_ends_a_wait_comes_before_an_error() -> None:
    """An interrupt can be why the generator failed."""

    class Interrupted(Exception):
        pass

    def items() -> Iterator[int]:
        yield 1
        raise KeyError

    def check() -> None:
        raise Interrupted

    source = Prefetched(items(), 5, 5, check)  # type: ignore[arg-type]
    source._thread.join(30)
    assert source.take(1) == [1]
    with pytest.raises(Interrupted):
        source.take(1)
    source.close()


def test_settings_of_the_callers_context_hold_in_the_thread() -> None:
    def items() -> Iterator[Any]:
        yield np.geterr()["over"]
        yield threading.current_thread().name

    with np.errstate(over="raise"):
        source = Prefetched(items(), 1, 1, never)  # type: ignore[arg-type]
    assert taken(source) == ["raise", "glowtrain-prefetch"]
    source.close()


def test_the_generator_is_closed_in_its_thread() -> None:
    closed: list[str] = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    source = Prefetched(items(), 2, 2, never)  # type: ignore[arg-type]
    assert source.take(1) == [1]
    source.close()
    assert closed == ["glowtrain-prefetch"]
    assert workers() == []


# --- beside steps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_are_made_while_a_step_runs(
    mlp: gt.Template, points: Points, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """In the middle of each step, the next batches are there; without the thread this would wait for ever."""
    made, steps, real = list[int](), [0], InterpretedInstance.run

    def source() -> Iterator[Batch]:
        for number, batch in enumerate(cut(points)):
            yield batch
            made.append(number)

    def run(self: InterpretedInstance, inputs: Any) -> Any:
        steps[0] += 1
        until = time.monotonic() + 30
        while len(made) < min(6, steps[0] + ahead - 1):
            assert time.monotonic() < until, "the thread does not run beside a step"
            time.sleep(0.001)
        return real(self, inputs)

    monkeypatch.setattr(InterpretedInstance, "run", run)
    trainer_of(mlp).fit(source, 1, prefetch=ahead, progress=False)
    assert steps == [6]


def test_native_steps_let_other_threads_run(mlp: gt.Template, points: Points) -> None:
    """They hold no lock of Python's, which this thread gives to nobody here unless it waits or is in native code."""
    trainer = trainer_of(mlp, "cpu", threads=1)
    batch = {"x": np.tile(points[0], (500, 1)), "labels": np.tile(points[1], 500)}
    trainer.step(batch)
    ran: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        go = threading.Event()
        thread = threading.Thread(target=lambda: go.wait() and ran.append(1))
        thread.start()
        go.set()
        steps = 0
        while not ran and steps < 20_000:
            trainer.step(batch)
            steps += 1
        found = list(ran)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert found == [1]


@pytest.mark.parametrize(
    "end",
    ["done", "fails", "callback raises", "source raises", "evaluate", "evaluate fails", "predict", "steps"],
)
def test_no_thread_is_left(mlp: gt.Template, points: Points, end: str) -> None:
    class Enough(Exception):
        pass

    def stop(moment: Moment) -> None:
        raise Enough

    def endless() -> Iterator[Batch]:
        while True:
            yield from cut(points)

    def failing() -> Iterator[Batch]:
        yield cut(points)[0]
        raise Enough

    def doubled() -> Iterator[Batch]:
        yield from cut(points)[:2]
        while True:
            yield points[0].astype(np.float64), points[1]

    trainer = trainer_of(mlp)
    use: dict[str, Callable[[], Any]] = {
        "done": lambda: trainer.fit(cut(points), 2, validation=lambda: cut(points), progress=False),
        "fails": lambda: trainer.fit(doubled, 1, progress=False),
        "callback raises": lambda: trainer.fit(endless, 1, callbacks=[stop], progress=False),
        "source raises": lambda: trainer.fit(failing, 1, progress=False),
        "evaluate": lambda: trainer.evaluate(cut(points)),
        "evaluate fails": lambda: trainer.evaluate(doubled),
        "predict": lambda: trainer.predict(cut(points)),
        "steps": lambda: trainer.fit(endless, 3, steps_per_epoch=4, progress=False),
    }
    try:
        use[end]()
    except (Enough, BatchError):
        assert end not in ("done", "evaluate", "predict", "steps")
    else:
        assert end in ("done", "evaluate", "predict", "steps")
    assert workers() == []


def test_a_generator_of_fits_own_is_closed_and_let_go(mlp: gt.Template, points: Points) -> None:
    """What it holds (files, processes) is free when fit has failed; a generator of the caller's stays open."""
    closed: list[str] = []

    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def source(name: str) -> Iterator[Batch]:
        mine = Held()
        held.append(weakref.ref(mine))
        try:
            while True:
                yield from cut(points)
        finally:
            closed.append(name)

    def stop(moment: Moment) -> None:
        raise ZeroDivisionError

    trainer, own = trainer_of(mlp), source("the caller's")
    for data in (lambda: source("fit's"), own):
        with pytest.raises(ZeroDivisionError):
            trainer.fit(data, 1, callbacks=[stop], progress=False)
    assert closed == ["fit's"]
    assert held[0]() is None
    assert len(next(own)[0]) in (2, 4)


def test_a_loader_that_raised_is_let_go_with_its_error(mlp: gt.Template, points: Points) -> None:
    """At once, without waiting for the garbage collector: processes of a loader end with its iterator."""

    class Reading:
        left = 2

        def __iter__(self) -> Reading:
            return self

        def __next__(self) -> Batch:
            self.left -= 1
            if not self.left:
                raise OSError("no file")
            return cut(points)[0]

    held: list[weakref.ref[Reading]] = []

    class Loader:
        def __iter__(self) -> Reading:
            reading = Reading()
            held.append(weakref.ref(reading))
            return reading

    gc.disable()
    try:
        for prefetch in (0, None):
            with contextlib.suppress(BatchError):
                trainer_of(mlp).fit(Loader(), 1, prefetch=prefetch, progress=False)
            assert held[-1]() is None
    finally:
        gc.enable()


def test_a_source_that_never_gives_its_batch(
    mlp: gt.Template, points: Points, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C ends the wait, with a checkpoint; the thread, which nothing can stop, is left until the source returns."""
    monkeypatch.setattr(prefetch, "GRACE", 0.05)
    waiting, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def source() -> Iterator[Batch]:
        try:
            yield from cut(points)[:3]
            waiting.set()
            go_on.wait(60)
            yield cut(points)[3]
        finally:
            closed.set()

    def strike() -> None:
        waiting.wait(30)
        while trainer.position.batch < 3:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGINT)

    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    threading.Thread(target=strike).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(source, 1, checkpoint=path, progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert trainer.history.stopped == "interrupted in epoch 1 after batch 3"
    restored = trainer_of(mlp)
    restored.restore(path)
    assert bits(restored) == bits(trainer)
    (left,) = workers()
    assert left.daemon
    assert not closed.is_set()
    go_on.set()
    left.join(30)
    assert closed.is_set()
    assert workers() == []


ENDS = """
import sys, threading, time, numpy as np, glowtrain as gt
from glowtrain.trainer.sources import prefetch
prefetch.GRACE = 0.05
@gt.model(x=gt.f32["batch", 2])
def net(x):
    return gt.nn.linear(x, 1)
def blocked():
    yield np.ones((4, 2), "f4"), np.ones((4, 1), "f4")
    time.sleep(600)
def stop(moment):
    raise SystemExit(7)
trainer = gt.Trainer(net, "mse", gt.optim.SGD(), backend="interpreter")
trainer.fit(blocked, 1, callbacks=[stop], progress=False)
"""


@pytest.mark.exhaustive
def test_a_thread_that_is_left_does_not_keep_the_process() -> None:
    found = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (7, "")


def test_an_interrupt_wins_over_what_it_does_to_the_source(mlp: gt.Template, points: Points) -> None:
    """Ctrl-C in a terminal also ends a loader's processes, and the loader then raises."""

    def source() -> Iterator[Batch]:
        yield from cut(points)[:2]
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("DataLoader worker exited unexpectedly")

    trainer = trainer_of(mlp)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(source, 1, progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert trainer.position.batch <= 2


def test_a_systemexit_of_the_source_ends_fit(mlp: gt.Template, points: Points) -> None:
    def source() -> Iterator[Batch]:
        yield cut(points)[0]
        sys.exit(3)

    with pytest.raises(SystemExit) as told:
        trainer_of(mlp).fit(source, 1, progress=False)
    assert told.value.code == 3


def _sleep(began: Connection) -> None:
    began.send(None)
    time.sleep(600)


@pytest.mark.parametrize("inline", [0, None])
def test_processes_that_a_source_forks_can_be_ended(mlp: gt.Template, points: Points, inline: int | None) -> None:
    """They do not inherit that fit only notes the first SIGTERM: ``terminate`` and ``join`` would wait for ever.

    It is sent once they have begun: Python forgets signals that come while a child of fork is being set up.
    """
    statuses: list[int | None] = []

    def source() -> Iterator[Batch]:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=_sleep, args=(there,), daemon=True)
        process.start()
        here.recv()
        yield from cut(points)
        process.terminate()
        process.join(30)
        statuses.append(process.exitcode)
        process.kill()

    trainer_of(mlp).fit(source, 1, prefetch=inline, progress=False)
    assert statuses == [-signal.SIGTERM]


# --- bounded ---------------------------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.exhaustive
def test_memory_stays_where_it_is(mlp: gt.Template) -> None:
    """Steps from a generator of new arrays, of which the first are not counted: 20,000 leave no more than 4 MiB."""
    trainer, rng = trainer_of(mlp, "cpu", threads=1), np.random.default_rng(0)
    sizes: list[int] = []

    def source(epoch: int) -> Iterator[Batch]:
        for _ in range(10_000):
            yield rng.standard_normal((16, 6), np.float32), rng.integers(0, 3, 16)
        sizes.append(resident())

    trainer.fit(source, 3, progress=False)
    assert int(trainer.state.read("optimizer.step")) == 30_000
    assert sizes[2] - sizes[0] < 4 << 20


@pytest.mark.exhaustive
def test_many_batch_sizes_keep_a_bounded_number_of_compiled_steps(mlp: gt.Template) -> None:
    trainer, rng = trainer_of(mlp), np.random.default_rng(0)
    batches = [(rng.standard_normal((size, 6), np.float32), rng.integers(0, 3, size)) for size in range(1, 201)]
    trainer.fit(batches, 1, progress=False)
    assert len(trainer._step._kept) == trainer._step.limit == 32
    assert trainer.position.epoch == 1
