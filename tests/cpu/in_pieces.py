"""Runs a program's kernels in ranges of tasks that are told at run time, each over a workspace with nothing in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from glowtrain.backends.cpu.step import ENTRY, Code, generate
from glowtrain.backends.cpu.tasks import Arguments, Invocation
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import I1, I64, POINTER, integer, pointer
from glowtrain.backends.target import Target
from glowtrain.stages import Options
from tests.cpu.native_program import Native

MOST = 8
"""Ranges of one call."""
ROW = 1 + 2 * MOST
Ranges = list[tuple[int, int]]

_SUPPORT = """
@ranges = internal global ptr null

define void @use(ptr %ranges) #0 {
  store ptr %ranges, ptr @ranges
  ret void
}
"""


class Told:
    """The ranges of call n are in row n of a table: their number, then begin and end of each."""

    def __init__(self) -> None:
        self.calls = 0

    def run(self, f: LlvmFunction, call: Invocation, arguments: Arguments) -> int:
        row = f.address(f.load(POINTER, pointer("@ranges")), self.calls * ROW, 8)
        self.calls += 1
        with f.loop(f.load(I64, row)) as loop:
            at = f.address(row, f.op("mul", loop.index, 2), 8)
            begin, end = (f.load(I64, f.address(at, 1 + edge, 8)) for edge in range(2))
            f.line(f"call void @poison(ptr {arguments.workspace}, i64 {loop.index})")
            f.line(f"call void @{call.function}({arguments.over(f, begin, end)})")
        return 0

    def functions(self, workspace: int) -> list[str]:
        return [poison_text(workspace), _SUPPORT]


def poison_text(size: int) -> str:
    """A function that fills a workspace: with bytes 0xFF, or with quiet NaNs in f32."""
    f = LlvmFunction("poison", [("ptr", "workspace"), ("i64", "number")], linkage="internal")
    odd = f.value("trunc i64 %number to i1", I1)
    pattern = f.select(odd, integer(0x7FC000007FC00000, I64), -1)
    if size:
        with f.loop(size, step=8) as loop:
            f.store(pattern, f.address(pointer("%workspace"), loop.index, 1))
    return f.finish()


class InPieces(Native):
    """A program that runs each call as its ``ranges`` say, one after another."""

    def generated(self, target: Target, options: Options) -> Code:
        return generate(self.plan, target, options, Told())

    def loaded(self, target: Target) -> Callable[..., None]:
        library = build(self.code.text, target, [ENTRY, "use"])
        self.table = np.zeros((len(self.code.calls), ROW), np.int64)
        library.function("use", 1)(self.table.ctypes.data)
        return library.function(ENTRY, 1)

    def tell(self, ranges: Callable[[Invocation], Ranges]) -> InPieces:
        """How the next runs cut each call."""
        for row, call in zip(self.table, self.code.calls, strict=True):
            told = np.array(ranges(call)).reshape(-1)
            row[0], row[1 : 1 + len(told)] = len(told) // 2, told
        return self


def shuffled(count: int, generator: np.random.Generator) -> Callable[[Invocation], Ranges]:
    """Cut into at most so many ranges, anywhere, run in any order."""

    def ranges(call: Invocation) -> Ranges:
        tasks = call.work.tasks
        cuts = np.sort(generator.choice(np.arange(1, tasks), min(count, tasks) - 1, replace=False)) if tasks > 1 else []
        edges = [0, *(int(at) for at in cuts), tasks]
        found = list(pairwise(edges))
        return [found[at] for at in generator.permutation(len(found))]

    return ranges


def share(calls: Sequence[Invocation], tasks: int) -> float:
    """The share of the estimated cycles that lies in calls of at least so many tasks."""
    total = sum(call.work.total for call in calls)
    return sum(call.work.total for call in calls if call.work.tasks >= tasks) / total
