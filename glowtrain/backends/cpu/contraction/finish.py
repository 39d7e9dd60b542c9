"""Finish a tile: what all kernels of tiles share, their parameters and what becomes of the sums once they are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from math import prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.choose import ContractionPlan
from glowtrain.backends.cpu.contraction.clips import affine
from glowtrain.backends.cpu.contraction.tile import Point, RegisterTile, Variant, needed_coordinates
from glowtrain.backends.cpu.epilogue import CacheLine, Coordinates, Epilogue
from glowtrain.backends.llvm.formats import MEMORY
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.text import INDEX, LlvmFunction
from glowtrain.backends.llvm.values import I1, LlvmValue, Number, pointer, zero

LONGEST_END, LONGEST_LATE_END, LATE = 320, 80, 256
"""Instructions of an epilogue that are written out for all vectors of a tile, at most, and for one that begins only
after so many products of each result; more go into a loop."""


@dataclass(frozen=True)
class _Row:
    """A point of a tile: its index in each tiled loop, and its offset in C."""

    index: Mapping[int, Number]
    c: LlvmValue
    offset: int


class TileKernel:
    """One variant of the kernel of a plan: its function, and how its sums are finished and stored."""

    def __init__(self, plan: ContractionPlan, variant: Variant, name: str, epilogue: Epilogue | None) -> None:
        self.coordinates = needed_coordinates(plan, epilogue)
        self.plan, self.variant, self.epilogue = plan, variant, epilogue if variant.last else None
        self.whole = plan.problem.source.whole
        params = [("ptr noalias", "c"), ("ptr noalias", "a"), ("ptr noalias", "b")]
        params += [(INDEX, f"x{loop}") for loop in self.coordinates]
        params += [("i1", "first")] if variant.start == "flag" else []
        params += [("ptr", "asked")] if variant.prefetched else []
        params += list(self.epilogue.params) if self.epilogue else []
        self.f = LlvmFunction(name, params, linkage="internal", index_type=plan.machine.index_type)
        self.lanes = Lanes(self.f, plan.problem.sums(plan.machine.width))
        self.of = {x: self.lanes.of(MEMORY[getattr(variant, x).dtype]) for x in "cab"}
        self.tile = RegisterTile(plan, variant)
        self.buffer: LlvmValue | None = None

    def _fetch(self, points: list[list[CacheLine]]) -> None:
        """Prefetch the first line of each row of large tensors before the sums are taken: the processor follows.
        With all lines prefetched at once a product whose sums have 64 steps took 1 % longer, one with 256 steps 2 % (on
        an Emerald Rapids).
        """
        for line in chain(*points):
            self.f.prefetch(self.f.address(line.begin, line.offset, 1), write=line.written)

    def _cache_lines(self) -> list[list[CacheLine]]:
        """For each point of the tile, where its results begin and what the epilogue reads and writes beside them, of
        large tensors: they are prefetched while the sums are taken. Stores that wait for their lines hold up whatever
        follows them."""
        if self.plan.dots or self.lanes.width == 1 or self.variant.c.lane != 1 or self._steps < rates.PREFETCHED_STEPS:
            return []
        problem, min_bytes = self.plan.problem, int(rates.PREFETCHED_SHARE * self.plan.machine.l2)
        results = prod(problem.loops[i].extent for i in problem.outputs) * problem.bytes_of("c")
        found = []
        for point in self.tile.points:
            lines = []
            if results >= min_bytes and not self.whole:
                lines.append(CacheLine(pointer("%c"), point.c * problem.bytes_of("c"), written=False))
            if self.epilogue is not None:
                lines += self.epilogue.cache_lines(
                    self.f, partial(self._from_first, point.index), self._lane, min_bytes
                )
            found.append(lines)
        return found

    def _strided_results(self) -> LlvmValue | None:
        """A buffer on the stack for results whose lanes are apart in C."""
        if self.lanes.width == 1 or self.plan.dots or self.variant.c.lane == 1 or self.whole:
            return None
        return self._reserve(len(self.tile.points) * self.tile.vectors, self.of["c"])

    @property
    def _vectors(self) -> list[tuple[Point, int]]:
        """The vectors of the tile."""
        return list(product(self.tile.points, range(self.tile.vectors)))

    # ---- results -----------------------------------------------------------------------------------------------------

    def _finish_all(self, sums: list[LlvmValue]) -> None:
        """Finish every vector of the tile. Lanes with a stride in C go through a buffer on the stack, in a loop."""
        vectors, buffer = self._vectors, self.buffer
        if self._is_long_end():
            self._finish_rows(sums, buffer)
        else:
            for at, point in enumerate(self.tile.points):
                self._finish_row(_Row(point.index, pointer("%c"), point.c), sums, at * self.tile.vectors, buffer)
        if buffer is not None:
            self._exchange(buffer, vectors, store=True)

    def _is_long_end(self) -> bool:
        """Whether the epilogue goes into a loop: then it is written once, and read back what was spilled for it."""
        if self.epilogue is None:
            return False
        products = prod(self.plan.problem.loops[i].extent for i in self.plan.reductions)
        most = LONGEST_LATE_END if products >= LATE else LONGEST_END
        return self.epilogue.length(self._lane, self.lanes.width) * len(self._vectors) > most

    @property
    def _steps(self) -> int:
        """Steps of a sum."""
        return prod(self.tile.trips(i) for i in self.plan.reductions)

    def _finish_row(self, row: _Row, sums: list[LlvmValue], first: int, buffer: LlvmValue | None) -> None:
        """Finish the vectors of one point: several at once where their results fill one vector together."""
        for vector, count in self._groups():
            values = sums[first + vector : first + vector + count]
            while len(values) > 1:
                values = [self.f.joined(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
            self._finish(row, vector, count, values[0], self._slot(buffer, first + vector))

    def _groups(self) -> list[tuple[int, int]]:
        """(first, count) of neighbouring vectors of a point that are finished together."""
        c, vectors = self.of["c"], self.tile.vectors
        joins = self.lanes.width > 1 and self.variant.c.lane == 1 and not self.plan.dots
        most = max(self.lanes.type.size // c.type.size, 1) if joins else 1
        groups, at = [], 0
        while at < vectors:
            count = min(most, 1 << ((vectors - at).bit_length() - 1))
            groups.append((at, count))
            at += count
        return groups

    def _full_groups(self) -> tuple[int, int]:
        """How many vectors the first of these groups has, and how many groups begin the row that are like it and whose
        lanes all exist."""
        groups = self._groups()
        count = groups[0][1]
        full = [size == count and self._outputs(first, size) == size * self.lanes.width for first, size in groups]
        return count, [*full, False].index(False)

    def _outputs(self, vector: Number, vectors: int) -> int:
        """Results in neighbouring vectors of a point; all lanes exist where the first is counted when the code runs."""
        if not isinstance(vector, int):
            return vectors * self.lanes.width
        return sum(self.tile.count(vector + i) for i in range(vectors))

    def _reserve(self, vectors: int, lanes: Lanes) -> LlvmValue:
        return self.f.buffer(vectors, lanes.type)

    def _finish_rows(self, sums: list[LlvmValue], buffer: LlvmValue | None) -> None:
        """Finish the points of the tile in a loop, so that a long epilogue is written once, not for each of them."""
        spilled = self._reserve(len(sums), self.lanes)
        for at, value in enumerate(sums):
            self.lanes.store(value, self.lanes.shift(spilled, at * self.lanes.width), self.lanes.width)
        self._finish_spilled(spilled, buffer)

    def _finish_spilled(self, spilled: LlvmValue, buffer: LlvmValue | None = None) -> None:
        """Finish the vectors of the tile, which lie in memory point by point, in a loop."""

        def finish(row: _Row, number: Number, vector: Number, count: int) -> None:
            """``count`` joined vectors of a point with this number."""
            width = self.lanes.width
            at = affine(self.f, 0, [(self.tile.vectors * width, number), (width, vector)])
            lanes = self.lanes.wide(count * width)
            value = lanes.load(self.lanes.shift(spilled, at), 1, lanes.width)
            self._finish(row, vector, count, value, None if buffer is None else self.of["c"].shift(buffer, at))

        def row(index: dict[int, Number], number: Number, c: LlvmValue) -> None:
            here, (count, full), groups = _Row(index, c, 0), self._full_groups(), self._groups()
            if full > 1:
                with self.f.loop(full, hint="vector") as counted:
                    finish(here, number, affine(self.f, 0, [(count, counted.index)]), count)
            for vector, some in groups[full if full > 1 else 0 :]:
                finish(here, number, vector, some)

        self._rows(0, {}, 0, pointer("%c"), row)

    def _rows(
        self, depth: int, index: dict[int, Number], number: Number, c: LlvmValue,
        row: Callable[[dict[int, Number], Number, LlvmValue], None],
    ) -> None:  # fmt: skip
        """``row(index of each tiled loop, number of the point, its offset in C)`` in loops over the tile."""
        if depth == len(self.plan.tile):
            row(index, number, c)
            return
        loop, size = self.plan.tile[depth][0], self.variant.sizes[depth]
        done = self.variant.done[depth] if self.variant.done else 0
        with self.f.loop(size, begin=done, hint="row") as counted:
            here = self.of["c"].shift(c, affine(self.f, 0, [(self.variant.c.strides[loop], counted.index)]))
            following = affine(self.f, 0, [(size, number), (1, counted.index)])
            self._rows(depth + 1, {**index, loop: counted.index}, following, here, row)

    def _slot(self, buffer: LlvmValue | None, at: int) -> LlvmValue | None:
        return None if buffer is None else self.of["c"].shift(buffer, at * self.lanes.width)

    def _exchange(self, buffer: LlvmValue, vectors: list[tuple[Point, int]], *, store: bool) -> None:
        """Copy the lanes of all vectors from the stack buffer to C, or from C to the buffer."""
        view, lanes = self.variant.c, self.of["c"]
        for count in sorted({self.tile.count(vector) for _, vector in vectors}):
            with self.f.loop(count, [pointer("%c"), buffer], hint="lanes") as loop:
                for at, (point, vector) in enumerate(vectors):
                    if self.tile.count(vector) == count:
                        outer = lanes.shift(loop.carried[0], point.c + vector * view.step)
                        inner = lanes.shift(loop.carried[1], at * lanes.width)
                        source, target = (inner, outer) if store else (outer, inner)
                        self.f.store(self.f.load(lanes.type.one, source), target)
                loop.next = [lanes.shift(loop.carried[0], view.lane), lanes.shift(loop.carried[1], 1)]

    def _finish(self, row: _Row, vector: Number, vectors: int, value: LlvmValue, slot: LlvmValue | None) -> None:
        """Apply the epilogue and store some vectors that are joined (or, in dot form, one number)."""
        lanes, count, c = self.lanes.wide(vectors * self.lanes.width), 1, self.of["c"]
        if self.plan.dots:
            value, lanes = lanes.total(value), lanes.wide(1)
        else:
            count = self._outputs(vector, vectors)
        step = 0 if self.plan.dots else self.variant.c.step
        address = slot or c.shift(row.c, affine(self.f, row.offset, [(step, vector)]))
        exists = count if slot is None else lanes.width
        if self.variant.start != "zero" and self.plan.dots:
            value = lanes.add(self._before(lanes.load(address, 1, exists)), value)
        if self.epilogue is not None:
            value = self._applied(self.epilogue, lanes, row, vector, value, count)
        if not self.whole:
            c.wide(lanes.width).store(value, address, exists)

    def _before(self, held: LlvmValue) -> LlvmValue:
        """What C holds of a single sum; nothing at the first part."""
        first = LlvmValue("%first", I1)
        return self.f.select(first, zero(held.type), held) if self.variant.start == "flag" else held

    @property
    def _lane(self) -> int:
        """The loop of the original contraction along the lanes of the results; -1 if they are single numbers."""
        return -1 if self.plan.dots or self.lanes.width == 1 else self.plan.problem.loops[self.plan.vec].parts[0]

    def _applied(
        self, epilogue: Epilogue, lanes: Lanes, row: _Row, vector: Number, value: LlvmValue, count: int
    ) -> LlvmValue:
        """The epilogue's result."""
        lane = self._lane if lanes.width > 1 else -1
        mask = lanes.mask(count) if count < lanes.width else None
        return epilogue.emit(self.f, value, self._coordinates(row.index, vector), lane, mask)

    def _coordinates(self, row: Mapping[int, Number], vector: Number) -> list[Number]:
        """The index of each loop of the original contraction, for a vector of a point."""
        problem, vec = self.plan.problem, self.plan.vec
        coordinates: list[Number] = [0] * len(problem.source.extents)
        for loop in problem.outputs:
            start = affine(self.f, 0, [(self.lanes.width, vector)]) if loop == vec else row.get(loop, 0)
            index = affine(self.f, 0, [(1, start), (1, self.f.index(f"%x{loop}"))])
            for part in reversed(problem.loops[loop].parts):
                extent = problem.source.extents[part]
                outer = part != problem.loops[loop].parts[0]
                coordinates[part] = self.f.op("urem", self.f.index(index), extent) if outer else index
                index = self.f.op("udiv", self.f.index(index), extent) if outer else index
        return coordinates

    def _from_first(self, row: Mapping[int, int]) -> Coordinates:
        """The coordinates of the tile's first vector, and how much further those of the first one of a point are: so
        that the addresses of all are one, and numbers. Loops that are several of the original contraction are at the
        point already."""
        problem, first, further = self.plan.problem, dict(row), [0] * len(self.plan.problem.source.extents)
        for loop in problem.outputs:
            parts = problem.loops[loop].parts
            if len(parts) == 1:
                further[parts[0]], first[loop] = row.get(loop, 0), 0
        return Coordinates(self._coordinates(first, 0), further)
