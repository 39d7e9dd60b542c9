"""Tasks: the pieces of a kernel's work that can run in any order, on any thread, and give the same bits.

A kernel is a function ``(pointers..., workspace, outer indices..., begin, end)`` that runs the tasks from ``begin`` to
before ``end``, at least one; indices are as wide as pointers. Tasks are trips of loops that the kernel has anyway, its
*task loops*: with several, tasks are numbered through all of them, and the trips of an outer one that lie in a range
are cut at both ends. No task reads what another one writes, and sums are cut by shapes alone. The workspace belongs to
whoever runs the range: it holds nothing before, and nothing in it is used after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from glowtrain.backends.llvm.text import INDEX, LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, Number

WANTED = 32
"""Tasks of a kernel from which on no further loop is cut: enough for threads to finish at about the same time."""
ELSEWHERE = 8.0
"""Bytes in a cycle, from another core or from a cache that all share. Alone, a core would have to fetch what others
wrote, or what it read so long ago that its own cache has lost it."""
PARAMS = ((INDEX, "begin"), (INDEX, "end"))
"""The last parameters of every kernel."""


@dataclass(frozen=True)
class Work:
    """What a kernel has to do, for whoever shares it out.

    ``cycles``: about how many one task takes on one core, by the cost models that choose its loops (analytic, for data
    in the second-level cache). ``shared``: those that every range takes beside its tasks, because it packs operands or
    computes what all tasks use. ``together``: so many tasks, from a multiple of that number on, use the same of these,
    so that ranges had better not part them.
    """

    tasks: int = 1
    cycles: float = 0.0
    shared: float = 0.0
    together: int = 1

    @property
    def total(self) -> float:
        """Cycles of all tasks in one range."""
        return self.shared + self.tasks * self.cycles


@dataclass(frozen=True)
class Invocation:
    """One call in the text of a step: the name of the kernel (or of the call of a native function), the function's, and
    what there is to do.
    """

    name: str
    function: str
    work: Work


@dataclass(frozen=True)
class Arguments:
    """What one call passes: pointers, the workspace of the thread that runs the step, indices;
    and the pool that could share the call out, and where threads note their times, as which call, if they do."""

    pointers: tuple[LlvmValue, ...]
    workspace: LlvmValue
    indices: tuple[LlvmValue, ...]
    pool: LlvmValue
    log: tuple[LlvmValue, ...] = ()
    """The log (see :mod:`glowtrain.backends.cpu.events.log`) and the call's number, or nothing."""

    def over(self, f: LlvmFunction, begin: Number, end: Number) -> str:
        """The argument list for a range of tasks."""
        values = *self.pointers, self.workspace, *self.indices, f.index(begin), f.index(end)
        return ", ".join(value.typed for value in values)


class Runner(Protocol):
    """How a step has the tasks of its calls run."""

    def run(self, f: LlvmFunction, call: Invocation, arguments: Arguments) -> int:
        """Write what runs every task of a call once, and has run them all when it is done. Gives the ranges that are
        shared out, at most; 0 where the thread that runs the step does all of it."""

    def functions(self, workspace: int) -> list[str]:
        """The texts of functions that it needs, where each thread has ``workspace`` bytes for itself."""


class Whole:
    """All tasks in one range, by the thread that runs the step."""

    def run(self, f: LlvmFunction, call: Invocation, arguments: Arguments) -> int:
        f.line(f"call void @{call.function}({arguments.over(f, 0, call.work.tasks)})")
        return 0

    def functions(self, workspace: int) -> list[str]:
        return []


@dataclass(frozen=True)
class TaskRange:
    """Tasks from ``begin`` to before ``end``; or trips of a loop."""

    begin: LlvmValue
    end: LlvmValue

    @staticmethod
    def from_parameters(f: LlvmFunction) -> TaskRange:
        """The range that a kernel is called with."""
        return TaskRange(f.index("%begin"), f.index("%end"))

    @property
    def bounds(self) -> tuple[LlvmValue, LlvmValue]:
        """Both ends."""
        return self.begin, self.end

    def trips(self, f: LlvmFunction, each: int) -> TaskRange:
        """The trips, of ``each`` tasks, of which some task is in the range."""
        if each == 1:
            return self
        behind = f.op("add nuw nsw", self.end, each - 1)
        first, last = (f.op("udiv", edge, each) for edge in (self.begin, behind))
        return TaskRange(plain(f, first), plain(f, last))

    def inside(self, f: LlvmFunction, trip: Number, each: int) -> TaskRange:
        """What the range has of one trip's tasks, counted from the first of them."""
        if each == 1:
            return TaskRange(f.index(0), f.index(1))
        first = trip * each if isinstance(trip, int) else f.op("mul nuw nsw", trip, each)
        begin, end = (f.op("sub nsw", edge, first) for edge in (self.begin, self.end))
        low = f.intrinsic("smax", begin, f.index(0))
        return TaskRange(plain(f, low), plain(f, f.intrinsic("smin", end, f.index(each))))

    def every(self, f: LlvmFunction, first: Number, stride: int) -> TaskRange:
        """The trips whose tasks are in the range, of which trip n has task ``first + n * stride``, with ``first`` below
        ``stride``; perhaps none, with begin >= end."""
        behind = f.op("sub", f.index(stride - 1), f.index(first))
        bounds = (f.op("udiv", f.op("add nuw nsw", edge, behind), stride) for edge in self.bounds)
        begin, end = (plain(f, edge) for edge in bounds)
        return TaskRange(begin, end)

    def between(self, f: LlvmFunction, first: int, last: int | None) -> TaskRange:
        """The part from ``first`` to before ``last`` (``None``: to the end); perhaps empty, with begin >= end."""
        low, high = self.bounds
        if first:
            low = plain(f, f.intrinsic("smax", low, f.index(first)))
        if last is not None:
            high = plain(f, f.intrinsic("smin", high, f.index(last)))
        return TaskRange(low, high)


def plain(f: LlvmFunction, number: LlvmValue) -> LlvmValue:
    """The same index, about which analyses of loops know nothing; no instruction. LLVM took longer over how the bounds
    of task loops come about than over what is in them; and over addresses that move with two such loops, whose first
    trips it does not know, several times as long as over all else in a kernel.
    """
    return f.value(f"freeze {number.typed}", number.type)
