"""Steps on several threads: the pool runs every task once, and results have the bits of one thread."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain import models
from glowtrain.backends import thread_count
from glowtrain.backends.cpu.step import Code, generate
from glowtrain.backends.cpu.tasks import Work
from glowtrain.backends.cpu.threads.pool import ThreadPool, pool_of, pool_text
from glowtrain.backends.cpu.threads.share import CHUNKS, Shared, chunk_of
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.backends.thread_count import GRAIN
from glowtrain.compiler.specialisation import IDLE
from glowtrain.compiler.walk import arrive
from glowtrain.errors import BackendError, InputError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Program
from glowtrain.stages import Options
from glowtrain.types import Array
from tests.compiler.instances import taken
from tests.cpu.cpu_kernels import runnable
from tests.cpu.native_program import POISON, Canaries, Native
from tests.cpu.test_tasks import GRAPHS, bits, numbers, plan_of
from tests.program.random_graphs import RandomGraph
from tests.program.random_programs import RandomPrograms

COUNTS = (2, 3, 7)
TARGETS = {target.name: target for target in [Target.host(), *runnable("avx2", "scalar")]}

# ---- the pool: every task once

_COUNTING = """
define void @count(ptr %context, i64 %thread, i64 %begin, i64 %end) #0 {
entry:
  br label %task
task:
  %at = phi i64 [ %begin, %entry ], [ %next, %task ]
  %counter = getelementptr i64, ptr %context, i64 %at
  %old = atomicrmw add ptr %counter, i64 1 monotonic
  %next = add i64 %at, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %task, label %done
done:
  ret void
}

define void @jobs(ptr %pool, ptr %context, i64 %tasks, i64 %each, i64 %wake, i64 %times) #0 {
entry:
  br label %job
job:
  %at = phi i64 [ 0, %entry ], [ %next, %job ]
  %run = load ptr, ptr %pool
  call void %run(ptr %pool, ptr @count, ptr %context, i64 %tasks, i64 %each, i64 %wake)
  %next = add i64 %at, 1
  %more = icmp ult i64 %next, %times
  br i1 %more, label %job, label %done
done:
  ret void
}
"""


@cache
def counting() -> toolchain.Library:
    return toolchain.build(_COUNTING, Target.host(), ["jobs"])


def jobs(pool: ThreadPool, tasks: int, each: int, times: int = 1, wake: int = 1) -> Array:
    """How often each task ran."""
    counters = np.zeros(tasks, np.int64)
    sizes = [ctypes.c_size_t] * 4
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *sizes)(counting().address("jobs"))
    call(pool.address, counters.ctypes.data, tasks, each, wake, times)
    return counters


@given(st.sampled_from((1, *COUNTS)), st.integers(1, 200), st.integers(1, 50), st.integers(1, 50), st.integers(0, 1))
def test_every_task_runs_once(threads: int, tasks: int, each: int, times: int, wake: int) -> None:
    pool = pool_of(threads)
    pool.start()
    assert np.all(jobs(pool, tasks, each, times, wake) == times)


_NOTING = """
define void @note(ptr %context, i64 %thread, i64 %begin, i64 %end) #0 {
  %count = load i64, ptr %context
  %next = add i64 %count, 1
  store i64 %next, ptr %context
  %place = getelementptr i64, ptr %context, i64 %next
  %tasks = sub i64 %end, %begin
  store i64 %tasks, ptr %place
  ret void
}
"""


def test_a_claim_is_half_of_what_is_left() -> None:
    """Few ranges, of which the last ones are small."""
    library, pool, ranges = toolchain.build(_NOTING, Target.host(), ["note"]), pool_of(1), np.zeros(40, np.int64)
    pool.run(library.address("note"), ranges.ctypes.data, 64)
    assert list(ranges[: 2 + ranges[0]]) == [7, 32, 16, 8, 4, 2, 1, 1, 0]


def test_threads_that_sleep_are_woken_or_not_needed() -> None:
    pool = pool_of(3)
    pool.start()
    for wake in (0, 1, 0, 1):
        time.sleep(0.02)
        assert np.all(jobs(pool, 64, 1, 3, wake) == 3)


SLEEPERS = 24
"""Where a pool counts the workers that sleep, in elements of 8 bytes."""


def test_many_small_jobs_in_a_row_wake_threads_that_sleep() -> None:
    """Each alone is not worth it: fifteen of them leave the worker asleep, in the next one it takes part."""
    pool, met = ThreadPool(2), threading.Event()
    pool.start()
    while pool.memory.view(np.int64)[SLEEPERS] == 0:
        time.sleep(0.001)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)
    def body(context: int, thread: int, begin: int, end: int) -> None:
        if thread == 1:
            met.set()
        elif context:
            met.wait(30)

    sizes = [ctypes.c_size_t] * 3
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *sizes)(int(pool.memory.view(np.int64)[0]))
    address = ctypes.cast(body, ctypes.c_void_p).value
    for _ in range(15):
        run(pool.address, address, 0, 2, 1, 0)
    assert not met.is_set()
    run(pool.address, address, 1, 2, 1, 0)
    assert met.is_set()
    pool.stop()


def test_callers_on_several_threads_of_one_pool() -> None:
    """One has the pool, the others do their jobs alone."""
    found: list[Array] = []
    pool = pool_of(3)
    pool.start()
    callers = [threading.Thread(target=lambda: found.append(jobs(pool, 40, 1, 500))) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 5
    assert all(np.all(counters == 500) for counters in found)


def test_a_pool_whose_threads_have_not_started_or_have_left_works() -> None:
    pool = ThreadPool(4)
    assert np.all(jobs(pool, 50, 3, 20) == 20)
    pool.start()
    assert np.all(jobs(pool, 50, 3, 20) == 20)
    pool.stop()
    assert np.all(jobs(pool, 50, 3, 20) == 20)


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system refuses is said; the work is done all the same."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = ThreadPool(3)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.warns(UserWarning, match="1 instead of 3 threads: can't start new thread"):
        pool.start()
    assert np.all(jobs(pool, 50, 3, 20) == 20)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_fork_has_threads_of_its_own() -> None:
    pool = pool_of(2)
    pool.start()
    jobs(pool, 64, 1, 100)
    if (child := os.fork()) == 0:
        early = jobs(pool, 64, 1, 5)
        forgotten = not pool.started
        pool.start()
        os._exit(0 if forgotten and np.all(early == 5) and np.all(jobs(pool, 64, 1, 100) == 100) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.all(jobs(pool, 64, 1, 100) == 100)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_functions_run_in_a_child_of_fork_whose_locks_others_held() -> None:
    f = gt.compile(models.build("mlp", (4,)).bind({"batch": 2}), threads=2)
    special, x = f.specialised({}), np.ones((2, 4), np.float32)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as locks:
            locks.enter_context(f._lock)
            locks.enter_context(f.state.lock.writing())
            for _ in range(IDLE):
                locks.enter_context(taken(special))
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    if (child := os.fork()) == 0:
        signal.alarm(20)  # ends a child that waits for threads which it does not have
        f({"x": x})
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.exhaustive
def test_a_process_ends_while_threads_work() -> None:
    """At exit, also from another thread's step."""
    code = (
        "import threading, time, numpy as np, glowtrain as gt\nfrom glowtrain import models\n"
        "model = models.build('mlp', (1, 28, 28)).bind({'batch': 64})\n"
        "f = gt.compile(model, threads=2)\n"
        "x = np.zeros((64, 1, 28, 28), np.float32)\n"
        "def forever():\n    while True: f({'x': x})\n"
        "threading.Thread(target=forever, daemon=True).start()\n"
        "time.sleep(0.3); f({'x': x}); print('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# ---- the same bits


class Pooled(Native):
    """A program whose every call of two tasks or more is shared out."""

    threads = 1

    def with_threads(self, threads: int) -> Pooled:
        """The same, on so many threads."""
        pool = pool_of(threads)
        pool.start()
        self.threads, self.pool = threads, pool.address
        return self

    def generated(self, target: Target, options: Options) -> Code:
        return generate(self.plan, target, options, Shared(grain=0))

    @property
    def sizes(self) -> list[int]:
        arena, workspace, *slots = super().sizes
        return [arena, workspace * self.threads, *slots]


def different(subject: Program | Plan, feeds: dict[str, Array], target: Target) -> list[str]:
    """What is not the same on several threads, or without a pool in code that could use one."""
    p, plan = (subject.program, subject) if isinstance(subject, Plan) else (subject, None)
    whole, pooled = bits(Native(p, target, plan), feeds), Pooled(p, target, plan)
    runs = {0: bits(pooled, feeds), **{threads: bits(pooled.with_threads(threads), feeds) for threads in COUNTS}}
    return [f"{name} on {threads}" for threads, found in runs.items() for name in whole if found[name] != whole[name]]


@pytest.mark.spread(2)
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_models(name: str, target: str) -> None:
    plan = plan_of(name)
    assert not different(plan, numbers(plan.program), TARGETS[target])


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_random_programs(target: str) -> None:
    for seed in range(20):
        programs = RandomPrograms(ChoiceDraw(7000 + seed + 100 * sorted(TARGETS).index(target)))
        p = programs.program()
        assert not different(p, programs.feeds(p), TARGETS[target]), p


@pytest.mark.spread(1)
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_random_graphs(target: str) -> None:
    for seed in range(8):
        drawing = RandomGraph(ChoiceDraw(900 + seed + 50 * sorted(TARGETS).index(target)))
        plan = arrive(drawing.graph())
        assert not different(plan, drawing.feeds(), TARGETS[target]), plan.program


def c_math() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("m"))


@pytest.mark.exhaustive
@pytest.mark.skipif(ctypes.util.find_library("m") is None, reason="there is no C library for mathematics")
def test_threads_round_as_the_caller_does() -> None:
    plan = plan_of("transformer")
    feeds = numbers(plan.program)
    pooled = Pooled(plan.program, Target.host(), plan)
    nearest = bits(pooled, feeds)
    upward, before = {"x86_64": 0x800, "aarch64": 0x400000}[Target.host().triple.split("-")[0]], c_math().fegetround()
    try:
        c_math().fesetround(upward)
        alone, together = bits(pooled, feeds), [bits(pooled.with_threads(threads), feeds) for threads in COUNTS]
    finally:
        c_math().fesetround(before)
    assert alone != nearest
    assert all(found == alone for found in together)
    assert bits(pooled, feeds) == nearest


@pytest.mark.parametrize("name", ["generic", "sse4", "avx512", "neon", "riscv64"])
def test_the_pool_compiles_for_processors_with_systems(name: str) -> None:
    target = Target.named(name)
    assert toolchain.compile_text(pool_text(target), target)


_ALL_BY_THREAD_1 = """
define void @run(ptr %pool, ptr %body, ptr %context, i64 %tasks, i64 %each, i64 %wake) #0 {
  call void %body(ptr %context, i64 1, i64 0, i64 %tasks)
  ret void
}
"""


@pytest.mark.exhaustive
def test_each_thread_has_a_workspace_of_its_own() -> None:
    """Whatever is shared out is done by thread 1 here: the memory of thread 0 stays as it was."""
    plan = plan_of("cnn")
    pooled = Pooled(plan.program, Target.host(), plan)
    library = toolchain.build(_ALL_BY_THREAD_1, Target.host(), ["run"])
    pool = np.array([library.address("run")], np.int64)
    pooled.threads, pooled.pool = 2, pool.ctypes.data
    memory = Canaries(pooled.sizes)
    outputs, _ = pooled.run(numbers(plan.program), memory=memory)
    expected, _ = Native(plan.program, Target.host(), plan).run(numbers(plan.program))
    assert all(np.array_equal(outputs[name], expected[name]) for name in expected)
    first, second = np.split(memory.pieces[1], 2)
    assert np.all(first == POISON)
    assert np.any(second != POISON)


# ---- how much at once


@given(st.integers(1, 10**6), st.floats(1, 1e7), st.floats(0, 1e6))
def test_chunks_are_neither_too_many_nor_too_small(tasks: int, cycles: float, shared: float) -> None:
    work = Work(tasks, cycles, shared)
    each = chunk_of(work, GRAIN)
    assert 1 <= each <= tasks
    assert -(-tasks // each) <= CHUNKS * 1.5 + 1
    assert each == tasks or (each + 1) * cycles >= min(GRAIN, work.total / CHUNKS)


def test_chunks_do_not_part_what_is_packed_together() -> None:
    assert chunk_of(Work(48, 6800.0, 7350.0, together=8), GRAIN) == 8
    assert chunk_of(Work(48, 6800.0, 100.0, together=8), GRAIN) < 8, "there is little to save"
    assert chunk_of(Work(15, 158e3, 134e3, together=14), GRAIN) in (7, 8), (
        "one chunk of 14 would leave one task to the other"
    )
    plan = arrive(models.build("mlp", (1, 28, 28)).bind({"batch": 64}))
    assert [call.work.together for call in generate(plan, Target.named("avx512")).calls] == [8, 8, 1]


def test_few_large_tasks_are_halved() -> None:
    """In chunks that what each takes beside its tasks would allow, one of two threads would do 12 of 22 tasks."""
    assert chunk_of(Work(22, 773e3, 202e3), GRAIN) == 11


def test_small_calls_are_not_shared() -> None:
    assert "shared." not in generate(plan_of("lstm"), Target.host(), runner=Shared()).text


# ---- how many


def test_one_thread_has_no_pool() -> None:
    function = gt.compile(models.build("mlp", (4,)).bind({"batch": 2}), threads=1)
    with taken(function.specialised({})) as instance:
        assert instance.pool is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        (0, "threads must be from 1 to 1024, not 0; 1 runs on the calling thread alone"),
        (-2, "threads must be from 1 to 1024, not -2"),
        (5000, "threads must be from 1 to 1024, not 5000"),
        (1.5, "threads must be a whole number, not"),
        ("two", "threads must be a whole number, not"),
        (True, "threads must be a whole number, not"),
    ],
)
def test_what_is_no_number_of_threads(threads: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gt.compile(models.build("mlp", (4,)), threads=threads)
    with pytest.raises(InputError, match=message):
        gt.Cpu(threads=threads)


def test_backends_with_one_thread() -> None:
    model = models.build("mlp", (4,)).bind({"batch": 2})
    gt.compile(model, "interpreter", threads=1)
    with pytest.raises(BackendError, match="backend interpreter runs on one thread, not on 2; use backend cpu"):
        gt.compile(model, "interpreter", threads=2)


def test_more_threads_than_cores_are_allowed_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_count, "cores", lambda: 2)
    thread_count._say_once.cache_clear()
    with pytest.warns(UserWarning, match="5 threads share 2 cores: more are not faster") as said:
        assert [thread_count.checked(5), thread_count.checked(5), thread_count.checked(2)] == [5, 5, 2]
    assert len(said) == 1
    thread_count._say_once.cache_clear()


def test_cores_are_those_of_the_affinity_mask_and_the_control_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    quotas: list[float] = []
    monkeypatch.setattr(thread_count, "_quotas", lambda: quotas)
    assert thread_count.cores() == 8
    quotas.append(2.5)
    assert thread_count.cores() == 3
    quotas.append(0.2)
    assert thread_count.cores() == 1


def test_quotas_of_all_control_groups_above_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path
    (root / "a" / "b").mkdir(parents=True)
    (root / "cpu.max").write_text("800000 100000\n")
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (root / "cgroup").write_text("0::/a/b\n")
    monkeypatch.setattr(thread_count, "CGROUPS", root)
    monkeypatch.setattr(thread_count, "OWN", root / "cgroup")
    assert sorted(thread_count._quotas()) == [1.5, 8.0]
    (root / "a" / "cpu.max").write_text("what\n")
    assert thread_count._quotas() == [8.0]
    (root / "cgroup").write_text("12:cpu:/x\n")
    assert thread_count._quotas() == []


def test_a_system_without_pthreads_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_count, "POSIX", False)
    assert thread_count.default() == 1
    assert thread_count.checked(1) == 1
    with pytest.raises(InputError, match="2 threads need a POSIX system"):
        thread_count.checked(2)


def test_pytorch_s_setting_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        @staticmethod
        def get_num_threads() -> int:
            return 1

    monkeypatch.setattr(thread_count, "cores", lambda: 4)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert thread_count.default() == 4
    monkeypatch.setitem(sys.modules, "torch", Torch)  # type: ignore[arg-type]
    assert thread_count.default() == 1
