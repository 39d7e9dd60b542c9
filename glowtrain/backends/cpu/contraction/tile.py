"""The register tile that one call of a kernel computes: its points, and the steps of its sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from glowtrain.backends.cpu.contraction.choose import ContractionPlan, OperandView
from glowtrain.backends.cpu.contraction.copies.prefetch import PrefetchRows
from glowtrain.backends.cpu.epilogue import Epilogue
from glowtrain.backends.llvm.values import LlvmValue, Number

Pattern = tuple[tuple[int, int, int], ...]
"""The (reduction loop, low, high) to which static clips restrict the products of one point; others are whole."""


@dataclass(frozen=True)
class Variant:
    """What distinguishes the kernels of one plan.

    ``sizes`` and ``patterns`` (one per point) go with ``plan.tile``; ``lanes`` are the outputs along the vector loop;
    ``extents`` go with ``plan.reductions``; ``start`` is ``zero``, ``load`` (C holds a part of the sum) or ``flag``
    (known at run time); ``last``: the sums are finished, so the epilogue applies. ``done``: how many of the first
    points along each loop of the tile another call finishes; ``prefetched``: rows of the columns that are
    packed next.
    """

    sizes: tuple[int, ...]
    patterns: tuple[tuple[Pattern, ...], ...]
    lanes: int
    extents: tuple[int, ...]
    start: str
    last: bool
    c: OperandView
    a: OperandView
    b: OperandView
    done: tuple[int, ...] = ()
    prefetched: PrefetchRows | None = None


@dataclass(frozen=True)
class Point:
    """One point of a tile: its index in each tiled loop, its offsets, what static clips leave of each reduction."""

    index: Mapping[int, int]
    c: int
    a: int
    b: int
    ranges: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class TileStep:
    """One trip of straight-line code: offsets in A and B, place in each reduction loop, lanes that exist (of words:
    elements that exist), the number of the partial sum that its products go to, and which ``chain`` of words it takes.
    """

    a: int
    b: int
    index: Mapping[int, int]
    count: int
    partial: int = 0
    chain: int = 0


@dataclass(frozen=True)
class Cursor:
    """Where the reduction stands: addresses in A and B, index of each reduction loop entered."""

    a: LlvmValue
    b: LlvmValue
    index: Mapping[int, Number]


class RegisterTile:
    """A variant of a plan's kernel, with what follows from the two."""

    def __init__(self, plan: ContractionPlan, variant: Variant) -> None:
        self.plan, self.variant = plan, variant
        self.problem, self.width, self.copies = plan.problem, plan.machine.width, plan.copies
        self.vectors = 1 if plan.dots else -(-variant.lanes // self.width)
        self.points = [self._point(index) for index in product(*(range(size) for size in variant.sizes))]
        self.extents = dict(zip(plan.reductions, variant.extents, strict=True))
        self.full = plan.problem.dot.group if plan.problem.dot else self.width
        order = plan.problem.order
        self.along = plan.reductions[-1] if order is None else order.along
        self.group = 0 if order is None else order.group
        self.grouped = self.along if self.group else None
        self.guards = [k for k, kind in enumerate(plan.kinds) if kind == "guard"]

    def _point(self, index: tuple[int, ...]) -> Point:
        loops = [loop for loop, _ in self.plan.tile]
        c, a, b = (
            sum(view.strides[loop] * i for loop, i in zip(loops, index, strict=True))
            for view in (self.variant.c, self.variant.a, self.variant.b)
        )
        ranges: dict[int, tuple[int, int]] = {}
        for patterns, i in zip(self.variant.patterns, index, strict=True):
            for reduction, low, high in patterns[i]:
                before = ranges.get(reduction, (low, high))
                ranges[reduction] = (max(low, before[0]), min(high, before[1]))
        return Point(dict(zip(loops, index, strict=True)), c, a, b, ranges)

    def trips(self, loop: int) -> int:
        """Steps of a reduction."""
        return -(-self.extents[loop] // self.problem.step(loop))

    @property
    def sums(self) -> int:
        """Accumulators."""
        return len(self.points) * self.vectors * self.copies

    def count(self, vector: int) -> int:
        """Outputs in one vector of the tile."""
        return min(self.width, self.variant.lanes - vector * self.width)

    def distinct(self, operand: str, trips: list[tuple[int, int]]) -> tuple[int, int]:
        """Values of an operand that so many trips of reduction loops use, and that one trip uses."""
        view = self.variant.a if operand == "a" else self.variant.b
        one = {getattr(point, operand) for point in self.points}
        if not self.plan.dots:
            one = {at + vector * view.step for at in one for vector in range(self.vectors)}
        steps = {0}
        for loop, count in trips:
            stride = view.strides[loop] * self.problem.step(loop)
            steps = {at + i * stride for at in steps for i in range(count)}
        return len({x + y for x in one for y in steps}), len(one)


def needed_coordinates(plan: ContractionPlan, epilogue: Epilogue | None) -> tuple[int, ...]:
    """The loops whose start the kernel must be told: outputs, and reductions that are taken in parts."""
    clips = [k for k, kind in enumerate(plan.kinds) if kind != "static"]
    parts = {level.loop for level in plan.levels if level.kind == "chunk"}
    needed = []
    for i, loop in enumerate(plan.problem.loops):
        moves = any(loop.clips[k] for k in clips)
        if (loop.c and (moves or epilogue is not None)) or (i in parts and moves):
            needed.append(i)
    return tuple(needed)
