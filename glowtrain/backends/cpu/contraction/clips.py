"""Zero padding that depends on the call: bounds of reduction loops, and tests of single products."""

from __future__ import annotations

from collections.abc import Sequence

from glowtrain.backends.cpu.contraction.levels import clipped
from glowtrain.backends.cpu.contraction.tile import Cursor, Point, RegisterTile, TileStep
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, Number, mask_of, vector


def affine(f: LlvmFunction, constant: int, terms: Sequence[tuple[int, Number]]) -> Number:
    """``constant + sum(factor * value)``, folding numbers."""
    constant += sum(factor * value for factor, value in terms if isinstance(value, int))
    total: LlvmValue | None = None
    for factor, value in terms:
        if isinstance(value, int) or factor == 0:
            continue
        term = value if factor == 1 else f.op("mul", value, factor)
        total = term if total is None else f.op("add", total, term)
    if total is None:
        return constant
    return f.op("add", total, constant) if constant else total


def extreme(f: LlvmFunction, which: str, left: Number, right: Number) -> LlvmValue:
    """``smin`` or ``smax`` of two numbers."""
    return f.intrinsic(which, f.index(left), f.index(right))


class Clipping:
    """Writes what keeps the clips of kinds ``range`` and ``guard``; loops are told by the parameters ``%x<loop>``."""

    def __init__(self, lanes: Lanes, tile: RegisterTile, coordinates: Sequence[int]) -> None:
        self.f, self.lanes, self.tile, self.coordinates = lanes.f, lanes, tile, coordinates

    def ranges(self) -> dict[int, tuple[Number, Number]]:
        """The bounds of the reduction loops that clips of kind ``range`` cut (empty ones have low >= high)."""
        ranges: dict[int, tuple[Number, Number]] = {}
        for clip, kind in enumerate(self.tile.plan.kinds):
            if kind == "range":
                reduction = clipped(self.tile.problem, clip)
                low, high = self._range(clip, reduction)
                before = ranges.get(reduction, (0, self.tile.extents[reduction]))
                ranges[reduction] = extreme(self.f, "smax", before[0], low), extreme(self.f, "smin", before[1], high)
        return ranges

    def _terms(self, clip: int) -> list[tuple[int, Number]]:
        loops = self.tile.problem.loops
        return [(loops[i].clips[clip], self.f.index(f"%x{i}")) for i in self.coordinates if loops[i].clips[clip]]

    def _range(self, clip: int, reduction: int) -> tuple[Number, Number]:
        """Solve ``0 <= start + factor * r < extent`` for r."""
        bound, factor = self.tile.problem.bounds[clip], self.tile.problem.loops[reduction].clips[clip]
        start = affine(self.f, bound.offset, self._terms(clip))
        if factor == 0:
            inside = self.f.compare("ult", self.f.index(start), bound.extent)
            return 0, self.f.select(inside, self.f.index(self.tile.extents[reduction]), 0)
        if factor > 0:
            to_zero, to_end = affine(self.f, 0, [(-1, start)]), affine(self.f, bound.extent, [(-1, start)])
            return self._ceil(to_zero, factor), self._ceil(to_end, factor)
        past_end, past_zero = affine(self.f, 1 - bound.extent, [(1, start)]), affine(self.f, 1, [(1, start)])
        return self._ceil(past_end, -factor), self._ceil(past_zero, -factor)

    def _ceil(self, value: Number, by: int) -> Number:
        """``ceil(value / by)``; negative results may be any number up to 0 (bounds are held against 0)."""
        if by == 1:
            return value
        if isinstance(value, int):
            return -(-value // by)
        return self.f.op("sdiv", self.f.index(affine(self.f, by - 1, [(1, value)])), by)

    def guard(self, point: Point, vector: int, cursor: Cursor, step: TileStep) -> LlvmValue:
        """The lanes (for width 1, the truth) of a product that no guarded clip drops."""
        width, result = self.lanes.width, None
        for clip in self.tile.guards:
            factors = [loop.clips[clip] for loop in self.tile.problem.loops]
            constant = self.tile.problem.bounds[clip].offset + sum(factors[i] * at for i, at in point.index.items())
            constant += 0 if self.tile.plan.dots else factors[self.tile.plan.vec] * vector * width
            places = [*step.index.items(), *cursor.index.items()]
            value = affine(self.f, constant, self._terms(clip) + [(factors[i], at) for i, at in places])
            inside = self._inside(value, factors[self.tile.plan.vec], self.tile.problem.bounds[clip].extent)
            result = inside if result is None else self.lanes.both(result, inside)
        assert result is not None, "guard without a guarded clip"
        count = step.count if self.tile.plan.dots else self.tile.count(vector)
        return result if count == width else self.lanes.both(result, self.lanes.mask(count))

    def _inside(self, value: Number, factor: int, extent: int) -> LlvmValue:
        width = self.lanes.width
        if width == 1:
            return self.f.compare("ult", self.f.index(value), extent)
        if isinstance(value, int):
            return mask_of([0 <= value + factor * lane < extent for lane in range(width)])
        narrow = self.f.convert("trunc", self.f.index(value), "i32")
        steps = "<" + ", ".join(f"i32 {factor * lane}" for lane in range(width)) + ">"
        places = self.f.op("add", self.f.splat(narrow, width), LlvmValue(steps, vector("i32", width)))
        return self.f.compare("ult", places, extent)
