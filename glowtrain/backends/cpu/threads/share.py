"""The text of a step whose calls are shared out: what is worth it, in chunks of how many tasks, and how a pool gets it.

A pool is memory that begins with the address of ``void run(pool, body, context, tasks, each, wake)`` (see ``pool.ll``),
which calls ``void body(context, thread, begin, end)`` until all tasks have been in some range, and returns when they
have been done; ``thread`` is below the number of workspaces. Numbers are as wide as pointers. Whoever has no pool
passes a null pointer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from glowtrain.backends.cpu.events.log import FIRST_THREAD
from glowtrain.backends.cpu.events.text import append_event, ticks
from glowtrain.backends.cpu.tasks import PARAMS, Arguments, Invocation, Work
from glowtrain.backends.llvm.text import CALLER, INDEX, LlvmFunction
from glowtrain.backends.llvm.values import NULL, POINTER, LlvmType, pointer
from glowtrain.backends.target import Target
from glowtrain.backends.thread_count import GRAIN

WORTH = 2
"""Chunks of a call, of that size, from which on it is shared: telling another thread and waiting for it takes 0.2 µs
while that one is awake, and what it reads and writes has to come from core to core."""
WAKE = 100_000
"""Cycles of a call, some 30 µs, from which on threads that sleep are woken for it: the caller needs 7 µs for that, and
they begin 30 µs later."""
CHUNKS = 64
"""Chunks of a call at most, so that threads finish at about the same time."""
REPEATED = 10
"""What each chunk takes beside its tasks is at most the tenth part of it, where there are tasks enough."""
SIZES = 8
"""Sizes of chunks that are compared, about."""
LATE = 0.15
"""The part of a chunk for which one thread waits for the other one in the end, as they are not equally fast."""
HALVED = 4
"""What each chunk takes beside its tasks is at most the fourth part of a call that is shared out in two."""


def chunk_of(work: Work, grain: int) -> int:
    """Tasks of a chunk, of so many cycles at least: such that two threads finish early."""
    if not grain:
        return max(1, work.tasks // CHUNKS)
    cycles = max(grain, REPEATED * work.shared, work.total / CHUNKS)
    wanted = max(1, round(cycles / max(work.cycles, 1.0)))
    if 2 * wanted > work.tasks:
        if work.total < max(2 * grain, HALVED * work.shared):
            return work.tasks
        wanted = -(-work.tasks // 2)
    sizes = range(min(work.tasks, wanted + -(-wanted // 2)), wanted - wanted // 4 - 1, -1)
    near: set[int] = {*sizes[:: max(1, len(sizes) // SIZES)], *_multiples(work.together, min(work.tasks, 2 * wanted))}
    halves = {-(-work.tasks // parts) for parts in (2, 4) if work.tasks >= parts * wanted}
    return min(sorted(near | halves, reverse=True), key=lambda each: _of_two(work, each))


def _multiples(together: int, most: int) -> range:
    """The two largest multiples of a number up to ``most``; none of 1, which all are."""
    last = most // together * together
    return range(last, max(0, last - 2 * together), -together) if together > 1 else range(0)


def _of_two(work: Work, each: int) -> float:
    """Cycles until both of two threads are done, where chunks are of so many tasks; the last one may be smaller.
    Chunks that part what is used together need that of two such groups."""
    whole, rest = divmod(work.tasks, each)
    pairs, single = divmod(whole, 2)
    tasks = each * pairs + (each if single else rest)
    parted = each % work.together and work.together % each
    shared = work.shared * (2 if parted else 1)
    return tasks * work.cycles + (pairs + bool(single or rest)) * shared + LATE * (each * work.cycles + shared)


@dataclass
class Shared:
    """A :class:`~glowtrain.backends.cpu.tasks.Runner` that gives a pool the calls that are worth it, in chunks of at
    least ``grain`` cycles; with 0, every call of two tasks or more, whatever its size."""

    grain: int = GRAIN
    target: Target | None = None
    """The processor, where threads note the times of their ranges."""
    used: dict[tuple[int, int], LlvmType] = field(default_factory=dict)
    """How many pointers (without the workspace) and indices the kernels have that are shared out; the indices' type."""

    def run(self, f: LlvmFunction, call: Invocation, arguments: Arguments) -> int:
        work = call.work
        each = chunk_of(work, self.grain)
        if work.total < WORTH * self.grain or each >= work.tasks:
            f.line(f"call void @{call.function}({arguments.over(f, 0, work.tasks)})")
            return 0
        shape = len(arguments.pointers), len(arguments.indices)
        self.used[shape] = f.index_type
        wake = f.index(int(work.total >= WAKE))
        leading = f"ptr @{call.function}, {arguments.over(f, work.tasks, each)}, ptr {arguments.pool}, {wake.typed}"
        log = "".join(f", {value.typed}" for value in arguments.log)
        f.line(f"call void @{_named('shared', *shape)}({leading}{log})")
        return -(-work.tasks // each)

    def functions(self, workspace: int) -> list[str]:
        log_parameters = [] if self.target is None else [("ptr", "log"), (INDEX, "call")]
        return [
            text
            for shape, index_type in self.used.items()
            for text in (
                _body(*shape, log_parameters, index_type, workspace, self.target),
                _shared(*shape, log_parameters, index_type),
            )
        ]


def _named(role: str, pointers: int, indices: int) -> str:
    """One function for all kernels with so many parameters."""
    return f"{role}.p{pointers}.t{indices}"


def _parameters(pointers: int, indices: int) -> list[tuple[str, str]]:
    """The kernel's, without the range."""
    names = [*(f"p{at}" for at in range(pointers)), "workspace"]
    return [*(("ptr", name) for name in names), *((INDEX, f"t{at}") for at in range(indices))]


def _shared(pointers: int, indices: int, log_parameters: list[tuple[str, str]], index_type: LlvmType) -> str:
    """What the step calls: a kernel and its arguments in a context, and the pool's run; without a pool, the kernel."""
    kernel_parameters = _parameters(pointers, indices)
    call_parameters = (INDEX, "tasks"), (INDEX, "each"), ("ptr", "pool"), (INDEX, "wake")
    f = LlvmFunction(
        _named("shared", pointers, indices),
        [("ptr", "kernel"), *kernel_parameters, *call_parameters, *log_parameters],
        linkage="internal",
        index_type=index_type,
        attributes=CALLER,
    )
    arguments = ", ".join(f.parameter(*each).typed for each in kernel_parameters)
    tasks, each, wake = (f.index(name).typed for name in ("%tasks", "%each", "%wake"))
    serial, pooled = f.label("alone"), f.label("together")
    f.branch_if(f.compare("eq", pointer("%pool"), NULL), serial, pooled)
    f.start(serial)
    f.line(f"call void %kernel({arguments}, {f.index(0).typed}, {tasks})")
    f.line("ret void")
    f.start(pooled)
    context_values, size = [("ptr", "kernel"), *kernel_parameters, *log_parameters], index_type.size
    context = f.buffer(len(context_values), index_type)
    for at, one in enumerate(context_values):
        f.store(f.parameter(*one), f.address(context, at, size), size)
    run, body = f.load(POINTER, pointer("%pool"), size), _named("body", pointers, indices)
    f.line(f"call void {run}(ptr %pool, ptr @{body}, ptr {context}, {tasks}, {each}, {wake})")
    return f.finish()


def _body(
    pointers: int,
    indices: int,
    log_parameters: list[tuple[str, str]],
    index_type: LlvmType,
    workspace: int,
    target: Target | None,
) -> str:
    """What the pool calls: the kernel over a range, with the thread's own workspace; its times are noted."""
    f = LlvmFunction(
        _named("body", pointers, indices),
        [("ptr", "context"), (INDEX, "thread"), *PARAMS],
        linkage="internal",
        index_type=index_type,
        attributes=CALLER,
    )
    kernel_parameters, size = _parameters(pointers, indices), index_type.size
    types = [f.parameter(*each).type for each in (("ptr", "kernel"), *kernel_parameters, *log_parameters)]
    context_values = [f.load(type_, f.address(pointer("%context"), at, size), size) for at, type_ in enumerate(types)]
    kernel, *values = context_values
    values[pointers] = f.address(values[pointers], f.op("mul", f.index("%thread"), workspace), 1)
    values, log = values[: len(kernel_parameters)], values[len(kernel_parameters) :]
    arguments = ", ".join(value.typed for value in (*values, *(f.parameter(*each) for each in PARAMS)))
    began = None if target is None else ticks(f, target)
    f.line(f"call void {kernel}({arguments})")
    if began is not None:
        append_event(
            f, log, f.op("add", f.index("%thread"), FIRST_THREAD), began, *(f.parameter(*each) for each in PARAMS)
        )
    return f.finish()
