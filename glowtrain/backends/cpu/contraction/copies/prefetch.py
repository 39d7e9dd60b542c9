"""Prefetch the cache lines that a contraction's kernels will read or update.

Lines of B that follow each other, of what a tile reads, are prefetched from the second level.

Where B is larger than that level and its rows are far apart, the copy of some columns stalls on each row: no hardware
prefetcher follows it. So each tile of rows prefetches some of what the next copy reads, row by row between its steps.
Prefetched all at once, the lines would evict those that the tile itself is waiting for.

The same goes for what a tile finishes its sums with, above all weights and optimizer state that are updated: it
prefetches a row of that after each of as many parts of its steps as it has rows. The hardware prefetcher does not
follow rows that are far apart and short: the update of 784 times 512 weights after products of 64 steps took 850 µs
with the first line of each row prefetched at once, and takes 550 (on a Zen 4, with SGD and momentum).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.choose import ContractionPlan, OperandView
from glowtrain.backends.cpu.epilogue import CacheLine
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, Number


def prefetches_b(plan: ContractionPlan) -> bool:
    """Whether tiles prefetch lines of B before their own steps come to them: of floats that lie one behind the other,
    packed or as they are, where a tile reads more of them than the first level holds (of what is prepacked: where
    all are more)."""
    if plan.dots or plan.machine.compact or plan.machine.width == 1 or plan.problem.holds_integers:
        return False
    moves = [loop.extent for i, loop in enumerate(plan.problem.loops) if loop.b and i != plan.vec]
    if plan.prepacked and not plan.problem.widens("b"):
        read = prod(moves) * plan.problem.loops[plan.vec].extent
    elif "b" in plan.packing or (not plan.prepacked and _rows_follow(plan)):
        read = _steps(plan) * plan.vectors * plan.machine.width
    else:
        return False
    return read * plan.problem.size > plan.machine.l1 // 2


def _steps(plan: ContractionPlan) -> int:
    """Rows of B that a tile goes through."""
    parts = {level.loop: level.size for level in plan.levels if level.kind == "chunk"}
    return prod(parts.get(i, plan.problem.loops[i].extent) for i in plan.reductions if plan.problem.loops[i].b)


def _rows_follow(plan: ContractionPlan) -> bool:
    """Whether the rows of a tile's columns lie one behind the other as B is."""
    loops, behind = plan.problem.loops, plan.vectors * plan.machine.width
    if loops[plan.vec].b != 1:
        return False
    for i in reversed(plan.reductions):
        if loops[i].b != behind:
            return False
        behind *= loops[i].extent
    return True


@dataclass(frozen=True)
class PrefetchRows:
    """What one tile prefetches: so many ``rows``, ``stride`` elements apart, of so many cache ``lines`` each."""

    rows: int
    stride: int
    lines: int

    def stream(self, first: LlvmValue, size: int) -> RowStream:
        """These rows of elements of so many bytes, from the first one on; the second level is near enough."""
        return RowStream(first, self.stride * size, self.lines, written=False, level=2)


@dataclass(frozen=True)
class RowStream:
    """Rows that a tile prefetches between its steps, one after another: where the first one is, how many bytes further
    the next, of how many cache ``lines`` each; whether they are ``written``, and the cache that they are to be in."""

    first: LlvmValue
    stride: int
    lines: int
    written: bool
    level: int = 1

    def prefetch(self, f: LlvmFunction, row: LlvmValue) -> LlvmValue:
        """Prefetch a row; returns the one after it."""
        for line in range(self.lines):
            f.prefetch(f.shift(row, line * rates.LINE, "i8"), write=self.written, level=self.level)
        return f.shift(row, self.stride, "i8")


@dataclass(frozen=True)
class PrefetchSchedule:
    """What a tile prefetches between its steps: each of so many ``rows`` of each stream after as many steps."""

    rows: int
    streams: list[RowStream]


def streams(points: Sequence[Sequence[CacheLine]], lines: int) -> list[RowStream]:
    """The lines of all points of a tile as rows of so many lines each, if all have one stride; else none."""
    found = [_stream(along, lines) for along in zip(*points, strict=True)] if len(points) > 1 else []
    return [stream for stream in found if stream] if all(found) else []


def _stream(along: Sequence[CacheLine], lines: int) -> RowStream | None:
    first, stride = along[0], along[1].offset - along[0].offset
    even = all(line == (first.begin, first.offset + at * stride, first.written) for at, line in enumerate(along))
    return RowStream(first.begin, stride, lines, first.written) if even and not first.offset else None


@dataclass(frozen=True)
class NextPanel:
    """The columns that are packed after those of a tile: where their first row is, how many rows, and what each has."""

    begin: LlvmValue
    rows: int
    stride: int
    lines: int

    def part(
        self, f: LlvmFunction, stored: Lanes, first: Number, size: int, extent: int
    ) -> tuple[PrefetchRows, LlvmValue]:
        """What a tile prefetches that has ``size`` of ``extent`` points from the ``first`` one on, and its first row:
        all tiles together prefetch every row."""
        row = f.op("udiv", f.op("mul nuw", f.index(first), self.rows), extent)
        rows = PrefetchRows(-(-size * self.rows // extent), self.stride, self.lines)
        return rows, stored.shift(self.begin, f.op("mul nuw", row, self.stride))


def next_panel(
    plan: ContractionPlan, stored: Lanes, panel: LlvmValue, b: OperandView, extents: Mapping[int, int], vectors: int
) -> NextPanel | None:
    """What comes after so many ``vectors`` of columns at ``panel``; nothing where tiles do not prefetch it."""
    if not _prefetches_panels(plan):
        return None
    (loop,) = plan.reductions
    run, stride = vectors * plan.machine.width * stored.type.size, b.strides[loop] * stored.type.size
    lines = -(-run // rates.LINE) + bool(stride % rates.LINE)
    return NextPanel(stored.shift(panel, vectors * b.step), extents[loop], b.strides[loop], lines)


def _prefetches_panels(plan: ContractionPlan) -> bool:
    """Whether columns of B, which is larger than the second level, are packed again and again, each time for many tiles
    of rows; in which nothing but the tile's own loop of one sum is between the steps."""
    if [level.kind for level in plan.levels[-3:]] != ["vectors", "pack_b", "tile"] or plan.machine.compact:
        return False
    if len(plan.reductions) > 1 or plan.kinds or plan.passes > 1 or plan.problem.blocks is not None:
        return False
    moves = [loop.extent for loop in plan.problem.loops if loop.b]
    beyond_l2 = prod(moves) * plan.problem.bytes_of("b") > rates.ONE_IN_L2 * plan.machine.l2
    return beyond_l2 and abs(plan.problem.loops[plan.reductions[0]].b) * plan.problem.bytes_of("b") > rates.LINE
