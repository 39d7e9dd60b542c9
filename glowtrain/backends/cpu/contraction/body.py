"""Write the straight-line multiply-adds that the innermost loop of a kernel repeats."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.clips import Clipping
from glowtrain.backends.cpu.contraction.copies.prefetch import prefetches_b
from glowtrain.backends.cpu.contraction.tile import Cursor, Point, RegisterTile, TileStep
from glowtrain.backends.llvm.formats import MEMORY, SIGNED, factors, spread_factor
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.values import I1, I32, LlvmValue, pointer, vector
from glowtrain.backends.llvm.vector_math.float_lanes import FloatLanes

_SIGNS = int("80" * 4, 16) - (1 << 32)
"""The sign bits of four bytes, as an i32."""
MOST_TRIPS = 8
"""Trips of a reduction loop that is written out, at most."""


class ContractionBody:
    """Decides which reduction loops are written out, and writes the products of some trips of the others."""

    def __init__(self, lanes: Lanes, tile: RegisterTile, clipping: Clipping, cut: set[int]) -> None:
        self.f, self.lanes, self.tile, self.clipping = lanes.f, lanes, tile, clipping
        self.rolled = self._rolled(cut)
        self.written = tuple(i for i in tile.plan.reductions if i not in self.rolled)
        self.dot, self.of = tile.problem.dot, {x: lanes.of(MEMORY[getattr(tile.variant, x).dtype]) for x in "ab"}
        self.chained = self.dot is not None and self.dot.chains > 1
        self.unroll = self._unroll()
        inner = tile.plan.reductions[max(0, len(self.rolled) - 1) :]
        self.prefetches = prefetches_b(tile.plan)
        self.apart = not self._live([(i, tile.trips(i)) for i in inner])

    def _rolled(self, cut: set[int]) -> tuple[int, ...]:
        """The reduction loops that stay loops; ``cut`` ones have bounds known at run time only."""
        tile = self.tile
        rolled, size = list(tile.plan.reductions), tile.sums // tile.copies
        while rolled and not tile.plan.dots and not tile.guards:
            inner = [(i, tile.trips(i)) for i in tile.plan.reductions[len(rolled) - 1 :]]
            steps = prod(extent for _, extent in inner)
            long = inner[0][1] > MOST_TRIPS or steps > rates.WRITTEN_STEPS or steps * size > rates.WRITTEN_PRODUCTS
            if rolled[-1] in (*cut, tile.problem.blocks, tile.grouped) or long or not self._live(inner):
                break
            rolled.pop()
        return tuple(rolled)

    def _live(self, trips: list[tuple[int, int]]) -> bool:
        """Whether values that several steps share can stay in registers if these loops are written out.

        LLVM loads a value once in a block and keeps it; so more shared values than registers would be spilled.
        """
        registers = self.tile.plan.machine.registers - self.tile.sums - rates.SPARE_REGISTERS
        written = prod(extent for _, extent in trips)
        counts = [self.tile.distinct(operand, trips) for operand in "ab"]
        shared = any(distinct < each * written for distinct, each in counts)
        return not shared or min(distinct for distinct, _ in counts) <= registers

    def _unroll(self) -> int:
        """Trips of the innermost loop that are written one after another: for two dozen multiply-adds or more."""
        tile, written = self.tile, [(i, self.tile.trips(i)) for i in self.written]
        if tile.guards or not self.rolled or (tile.plan.passes > 1 and not self.chained):
            return tile.copies
        size = tile.sums // tile.copies * prod(extent for _, extent in written)
        unroll = max(tile.copies, min(4, max(1, 32 // size)) // tile.copies * tile.copies)
        while unroll > tile.copies and not self._live([*written, (self.rolled[-1], unroll)]):
            unroll //= 2
        return max(unroll, tile.copies)

    def products(
        self, active: list[int], cursor: Cursor, sums: list[LlvmValue], steps: list[TileStep]
    ) -> list[LlvmValue]:
        """The sums after the products of ``steps`` at the ``active`` points.

        Where steps share values they are ordered by the address of the operand that has more of them, so that each of
        those dies early, if that leaves the order of every sum. The fence, which is no instruction, keeps LLVM from
        holding values for another body that would not fit.
        """
        if self.apart:
            self.f.line('fence syncscope("singlethread") acquire')
        steps, sums = self._all(steps), list(sums)
        todo = [(s, p) for s, step in enumerate(steps) for p in active if self._has(self.tile.points[p], step)]
        loaded: dict[tuple[str, int, int], LlvmValue] = {}
        for s, p in self._ordered(todo, steps):
            for v in range(self.tile.vectors):
                at = (p * self.tile.vectors + v) * self.tile.copies + steps[s].partial
                sums[at] = self._product(self.tile.points[p], v, cursor, sums[at], steps[s], loaded)
        return sums

    def _all(self, steps: list[TileStep]) -> list[TileStep]:
        """Each step times the trips of the loops that are written out."""
        a, b = self.tile.variant.a.strides, self.tile.variant.b.strides
        for loop in self.written:
            extent, size = self.tile.extents[loop], self.tile.problem.step(loop)
            steps = [
                TileStep(
                    step.a + a[loop] * at,
                    step.b + b[loop] * at,
                    {**step.index, loop: at},
                    min(step.count, extent - at) if size > 1 else step.count,
                    at // size % self.tile.copies if loop == self.tile.along else step.partial,
                    step.chain,
                )
                for step in steps
                for at in range(0, extent, size)
            ]
        return steps

    def _ordered(self, todo: list[tuple[int, int]], steps: list[TileStep]) -> list[tuple[int, int]]:
        points = self.tile.points
        offsets = [{(s, p): getattr(steps[s], x) + getattr(points[p], x) for s, p in todo} for x in "ab"]
        of_points = [{(s, getattr(points[p], x)) for s, p in todo} for x in "ab"]
        if all(len(set(at.values())) == len(each) for at, each in zip(offsets, of_points, strict=True)):
            return todo
        window = max(offsets, key=lambda at: len(set(at.values())))
        up, down = sorted(todo, key=lambda pair: window[pair]), sorted(todo, key=lambda pair: -window[pair])
        return next((order for order in (up, down) if _in_steps(order)), todo)

    def _has(self, point: Point, step: TileStep) -> bool:
        return all(low <= step.index[i] < high for i, (low, high) in point.ranges.items() if i in self.written)

    def _product(
        self,
        point: Point,
        vector: int,
        cursor: Cursor,
        total: LlvmValue,
        step: TileStep,
        loaded: dict[tuple[str, int, int], LlvmValue],
    ) -> LlvmValue:
        guard = None
        if self.tile.guards:
            guard, loaded = self.clipping.guard(point, vector, cursor, step), {}
        if self.dot is not None:
            far = vector * self.tile.variant.a.step if self.tile.problem.across else 0
            words = self._words(cursor.a, point.a + step.a + far, vector, step, loaded)
            chain = step.chain * self.dot.word(self.lanes.width).width
            columns = self._columns(cursor.b, point.b + step.b + vector * self.tile.variant.b.step + chain, loaded)
            return self.dot.product(self.f, words, columns, total)
        left = self._load("a", cursor.a, point.a + step.a, vector, step.count, guard, loaded)
        right = self._load("b", cursor.b, point.b + step.b, vector, step.count, guard, loaded)
        result = self._multiply_add(left, right, total)
        if guard is None:
            return result
        return self.f.select(guard, result, total)

    def _multiply_add(self, left: LlvmValue, right: LlvmValue, total: LlvmValue) -> LlvmValue:
        """One product more; integers wrap around."""
        if not total.type.floats:
            return self.lanes.add(self.lanes.mul(left, right), total)
        return FloatLanes(self.f, total.type, self.tile.plan.machine.target).fma(left, right, total)

    def _load(
        self, operand: str, base: LlvmValue, offset: int, vector: int, count: int, guard: LlvmValue | None,
        loaded: dict[tuple[str, int, int], LlvmValue],
    ) -> LlvmValue:  # fmt: skip
        """One vector of an operand, once for all products of a body that use it."""
        view, dots = self.tile.variant.a if operand == "a" else self.tile.variant.b, self.tile.plan.dots
        offset += 0 if dots else vector * view.step
        key = (operand, offset, count)
        if key not in loaded:
            exists = self.lanes.width if view.padded else count if dots else self.tile.count(vector)
            narrow = self.of[operand]
            address = narrow.shift(base, offset)
            if guard is not None and (view.lane == 0 or self.lanes.width == 1):
                address, guard = self._safe(address, guard), None
            if operand == "b" and self.prefetches and offset * narrow.type.one.size % rates.LINE == 0:
                self.f.prefetch(narrow.shift(address, rates.PREFETCH_STEPS * self.lanes.width), write=False)
            if view.lane == 0:
                value = spread_factor(self.lanes, narrow, address, view.dtype)
            else:
                value = factors(self.lanes, narrow.load(address, view.lane, exists, guard), view.dtype)
            partial = dots and view.lane == 0 and count < self.lanes.width
            loaded[key] = self.lanes.first_lanes(value, count) if partial else value
        return loaded[key]

    def _words(
        self, base: LlvmValue, offset: int, vector: int, step: TileStep, loaded: dict[tuple[str, int, int], LlvmValue]
    ) -> LlvmValue:
        """Neighbours of A along the sum as words: the same in all lanes, or of each lane its own."""
        count, key = step.count, ("a", offset, step.count)
        if key in loaded:
            return loaded[key]
        assert self.dot is not None
        if self.dot.chains > 1:
            loaded[key] = self._chain(base, offset, step, loaded)
            return loaded[key]
        address, width = self.of["a"].shift(base, offset), self.lanes.width
        if self.tile.problem.across:
            words = self._gathered(address, count, self.tile.count(vector))
            words = self.f.op("xor", words, _SIGNS) if self.dot.flip else words
        else:
            word = self._word(address, count)
            word = self.f.op("xor", word, _SIGNS) if self.dot.flip else word
            words = self.f.splat(word, width)
        loaded[key] = self.f.cast("bitcast", words, self.dot.word(width))
        return loaded[key]

    def _chain(
        self, base: LlvmValue, offset: int, step: TileStep, loaded: dict[tuple[str, int, int], LlvmValue]
    ) -> LlvmValue:
        """The elements of a word of A that go to one chain, in all lanes."""
        assert self.dot is not None
        dot, width, key = self.dot, self.lanes.width, ("words", offset, step.count)
        if key not in loaded:
            word = self._word(self.of["a"].shift(base, offset), step.count)
            words = self.f.splat(word, width * self.of["a"].type.size * dot.group // word.type.size // dot.chains)
            loaded[key] = self.f.cast("bitcast", words, dot.word(width))
        order = dot.orders[step.chain]
        lanes = [first + order[at] for first in range(0, loaded[key].width, dot.group) for at in range(len(order))]
        return self.f.shuffle(loaded[key], None, lanes * dot.chains)

    def _gathered(self, address: LlvmValue, count: int, exists: int) -> LlvmValue:
        """Words of neighbours that are far apart, ``exists`` lanes of them."""
        assert self.dot is not None
        assert self.tile.problem.words is not None
        view, narrow, words = self.tile.variant.a, self.of["a"], self.lanes.zero
        exists = self.lanes.width if view.padded else exists
        step = view.strides[self.tile.problem.words]
        rows = [narrow.load(narrow.shift(address, at * step), 1, exists) for at in range(count)]
        signed = self.tile.problem.type_of("a") in SIGNED
        if len(rows) == self.dot.group == 2:
            return self._interleaved(rows, signed=signed)
        for at, row in enumerate(rows):
            words = self._placed(words, row, at, signed=signed and at == count - 1)
        return words

    def _interleaved(self, rows: list[LlvmValue], *, signed: bool) -> LlvmValue:
        """Pairs of two rows, widened."""
        assert self.dot is not None
        pairs = self.f.widened(self.f.interleaved(rows), self.dot.element, signed=signed)
        return self.f.cast("bitcast", pairs, self.lanes.type)

    def _placed(self, words: LlvmValue, row: LlvmValue, at: int, *, signed: bool) -> LlvmValue:
        """Words with one more byte in each; the sign of the last one may fill what follows."""
        assert self.dot is not None
        wide = self.f.widened(row, self.lanes.type.scalar, signed=signed)
        return wide if at == 0 else self.lanes.either(words, self.f.op("shl", wide, 32 // self.dot.group * at))

    def _word(self, address: LlvmValue, count: int) -> LlvmValue:
        """A word of A; at the end of a sum only its elements are read, the others are 0."""
        assert self.dot is not None
        a = self.of["a"].type
        type_ = vector(f"i{8 * a.size * self.dot.group}") if self.dot.chains > 1 else I32
        if count == self.dot.group:
            return self.f.load(type_, address, a.size)
        word = LlvmValue("0", type_)
        for at in range(count):
            one = self.f.load(a.one, self.of["a"].shift(address, at))
            moved = self.f.op("shl", self.f.convert("zext", one, type_.scalar), type_.bits // self.dot.group * at)
            word = self.f.op("or", word, moved)
        return word

    def _columns(self, base: LlvmValue, offset: int, loaded: dict[tuple[str, int, int], LlvmValue]) -> LlvmValue:
        """The words of packed columns, which are bytes in memory where the instruction takes i16."""
        key = ("b", offset, 0)
        if key not in loaded:
            assert self.dot is not None
            narrow = self.of["b"].wide(self.dot.word(self.lanes.width).width)
            value = self.f.load(narrow.type, narrow.shift(base, offset), narrow.type.size)
            if self.dot.chains > 1:
                loaded[key] = self.f.cast("bitcast", value, self.dot.word(self.lanes.width))
                return loaded[key]
            signed = self.tile.problem.type_of("b") in SIGNED
            loaded[key] = self.f.widened(value, self.dot.element, signed=signed)
        return loaded[key]

    def _safe(self, address: LlvmValue, guard: LlvmValue) -> LlvmValue:
        """An address that can be read whatever the guard says: that of the tile in C if no lane exists."""
        some = guard if guard.width == 1 else self.f.call(f"llvm.vector.reduce.or.{guard.type.suffix}", I1, guard)
        return self.f.select(some, address, pointer("%c"))


def _in_steps(order: Sequence[tuple[int, int]]) -> bool:
    """Whether the products (step, point) of each point are in the order of the steps."""
    last = dict[int, int]()
    for step, point in order:
        if last.get(point, -1) > step:
            return False
        last[point] = step
    return True
