"""The innermost function of a contraction: one tile of C kept in registers while all its products are summed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.body import ContractionBody
from glowtrain.backends.cpu.contraction.choose import ContractionPlan
from glowtrain.backends.cpu.contraction.clips import Clipping, affine, extreme
from glowtrain.backends.cpu.contraction.copies.prefetch import PrefetchSchedule, RowStream, streams
from glowtrain.backends.cpu.contraction.finish import TileKernel
from glowtrain.backends.cpu.contraction.tile import Cursor, Point, TileStep, Variant
from glowtrain.backends.cpu.epilogue import CacheLine, Epilogue
from glowtrain.backends.llvm.values import I1, LlvmValue, Number, pointer


class Micro(TileKernel):
    """Writes one variant of the kernel of a plan, with its sums in vector registers."""

    def __init__(self, plan: ContractionPlan, variant: Variant, name: str, epilogue: Epilogue | None) -> None:
        super().__init__(plan, variant, name, epilogue)
        clipping = Clipping(self.lanes, self.tile, self.coordinates)
        self.ranges = clipping.ranges()
        self.body = ContractionBody(self.lanes, self.tile, clipping, set(self.ranges))

    def text(self) -> str:
        """The whole function."""
        self.buffer = self._strided_results()
        self.schedule = self._schedule(self._cache_lines())
        points, begin = list(range(len(self.tile.points))), Cursor(pointer("%a"), pointer("%b"), {})
        self._finish_all(self._sums(points, begin))
        return self.f.finish()

    def _sums(self, points: list[int], begin: Cursor) -> list[LlvmValue]:
        """A sum for each vector of the tile."""
        if self.tile.group:
            return self._reduce(0, points, begin, self._start(), 0)
        if self.plan.problem.blocks is not None:
            return self._combined(self._blocks(self.plan.problem.blocks, points, begin))
        passes = range(self.plan.passes)
        return self._combined([self._reduce(0, points, begin, self._start(), number) for number in passes])

    def _schedule(self, points: list[list[CacheLine]]) -> PrefetchSchedule:
        """What the tile prefetches between its steps: columns that are packed next, with the results that the next tile
        goes on from; or what it finishes the sums of its ``points`` with, if it has steps enough for that."""
        c, size = self.variant.c, self.of["c"].type.one.size
        lines = -(-self.tile.vectors * self.lanes.width * size // rates.LINE)
        if self.variant.prefetched is None and self._has_steps(2 * len(points)) and (found := streams(points, lines)):
            return PrefetchSchedule(len(points), found)
        self._fetch(points)
        if self.variant.prefetched is None:
            return PrefetchSchedule(0, [])
        found = [self.variant.prefetched.stream(pointer("%asked"), self.of["b"].type.one.size)]
        if self.variant.start != "zero" and self.buffer is None:
            row = c.strides[self.plan.tile[0][0]] * size
            following = self.f.shift(pointer("%c"), self.variant.sizes[0] * row, "i8")
            found.append(RowStream(following, row, lines, written=True))
        return PrefetchSchedule(self.variant.prefetched.rows, found)

    def _has_steps(self, trips: int) -> bool:
        """Whether the outermost loop of the sum has so many trips at least, and all points take part in them."""
        apart = self.tile.group or self.plan.passes > 1 or self.plan.problem.blocks is not None
        plain = not self.plan.kinds and not apart
        return plain and bool(self.body.rolled) and self.tile.trips(self.body.rolled[0]) // self._unroll(0) >= trips

    def _start(self) -> list[LlvmValue]:
        """What the sums begin with: 0, what precedes the words of B, or what C holds of them."""
        sums, dot = [self.lanes.zero] * self.tile.sums, self.plan.problem.dot
        if dot is not None and dot.correction:
            for at, (point, vector) in enumerate(self._vectors):
                before = vector * self.variant.b.step - self.lanes.width * dot.group
                address = self.of["b"].shift(pointer("%b"), point.b + before)
                sums[at * self.tile.copies] = self.f.load(self.lanes.type, address, 4)
        if self.plan.dots or self.variant.start == "zero":
            return sums
        return self._continued(sums) if self.variant.start == "load" else self._perhaps_continued(sums)

    def _continued(self, sums: list[LlvmValue]) -> list[LlvmValue]:
        """Sums that go on from what C holds."""
        if self.buffer is not None:
            self._exchange(self.buffer, self._vectors, store=False)
        result = list(sums)
        for number, (point, vector) in enumerate(self._vectors):
            at, held = number * self.tile.copies, self._held(point, vector, number)
            result[at] = held if sums[at] == self.lanes.zero else self.lanes.add(held, sums[at])
        return result

    def _perhaps_continued(self, sums: list[LlvmValue]) -> list[LlvmValue]:
        """The same, but for the first part of the sums: C, which may hold anything then, is not read."""
        go_on, begin, before = self.f.label("go_on"), self.f.label("begin"), self.f.block
        self.f.branch_if(LlvmValue("%first", I1), begin, go_on)
        self.f.start(go_on)
        held = self._continued(sums)
        leave = self.f.block
        self.f.branch(begin)
        self.f.start(begin)
        pairs = zip(sums, held, strict=True)
        return [old if old is new else self.f.phi(old, before, new, leave) for old, new in pairs]

    def _held(self, point: Point, vector: int, at: int) -> LlvmValue:
        """What C holds of a vector of sums."""
        slot = self._slot(self.buffer, at)
        if slot is not None:
            return self.lanes.load(slot, 1, self.lanes.width)
        place = self.of["c"].shift(pointer("%c"), point.c + vector * self.variant.c.step)
        return self.lanes.load(place, 1, self.tile.count(vector))

    # ---- the loops of the sum ----------------------------------------------------------------------------------------

    def _reduce(
        self, depth: int, active: list[int], cursor: Cursor, sums: list[LlvmValue], number: int
    ) -> list[LlvmValue]:
        """The sums after all trips of the reduction loops from ``depth`` on, at the ``active`` points, of one pass."""
        if depth == len(self.body.rolled):
            return self.body.products(active, cursor, sums, [TileStep(0, 0, {}, self.tile.full)])
        loop = self.body.rolled[depth]
        if loop == self.tile.grouped:
            return self._in_groups(depth, active, cursor, sums)
        if loop in self.ranges:
            return self._dynamic(depth, active, cursor, sums, number)
        for low, high, some in self._segments(loop, active):
            sums = self._static(depth, low, high, some, cursor, sums, number)
        return sums

    def _in_groups(self, depth: int, active: list[int], cursor: Cursor, sums: list[LlvmValue]) -> list[LlvmValue]:
        """The sums after all groups of the innermost loop."""
        loop, size = self.body.rolled[depth], self.tile.group
        full, rest = divmod(self.tile.extents[loop], size)
        own = self._of(active)
        if full > 1:
            with self.f.loop(full, [cursor.a, cursor.b, *(sums[at] for at in own)], hint="group") as groups:
                here = replace(cursor, a=groups.carried[0], b=groups.carried[1])
                added = self._group(depth, size, active, here, self._with(sums, own, groups.carried[2:]))
                after = self._shifted(loop, size, here)
                groups.next = [after.a, after.b, *(added[at] for at in own)]
            cursor = replace(cursor, a=groups.results[0], b=groups.results[1])
            sums = self._with(sums, own, groups.results[2:])
        elif full:
            sums, cursor = self._group(depth, size, active, cursor, sums), self._shifted(loop, size, cursor)
        return self._group(depth, rest, active, cursor, sums) if rest else sums

    def _group(
        self, depth: int, count: int, active: list[int], cursor: Cursor, sums: list[LlvmValue]
    ) -> list[LlvmValue]:
        """The sums with one group's own, which begin at 0."""
        zeros, at = [self.lanes.zero] * self.tile.sums, self._of(active)
        passes = range(self.plan.passes)
        own = self._combined([self._static(depth, 0, count, active, cursor, zeros, number) for number in passes])
        return self._with(sums, at, [self.lanes.add(sums[i], own[i]) for i in at])

    def _of(self, active: list[int]) -> list[int]:
        """The numbers of the ``active`` points' sums."""
        each = self.tile.vectors * self.tile.copies
        return [point * each + i for point in active for i in range(each)]

    def _blocks(self, loop: int, points: list[int], begin: Cursor) -> list[list[LlvmValue]]:
        """The partial sums of blocks: block i is added to number i mod n. Several lie on the stack."""
        n, zeros = self.plan.problem.partial_blocks, [self.lanes.zero] * self.tile.sums
        memory = self._cleared(n * len(zeros)) if n > 1 else None
        begun = [] if memory else self._start()
        with self.f.loop(self.tile.trips(loop), [begin.a, begin.b, *begun], hint="block") as trips:
            a, b, *totals = trips.carried
            here, partial = Cursor(a, b, {loop: trips.index}), memory
            if memory is not None:
                number = self.f.op("urem", trips.index, n)
                partial = self.lanes.shift(memory, self.f.op("mul", number, len(zeros) * self.lanes.width))
            block = self._reduce(1, points, here, zeros, 0)
            after = self._shifted(loop, 1, here)
            trips.next = [after.a, after.b, *self._added(totals, block, partial)]
        if memory is None:
            return [trips.results[2:]]
        return [self._kept(self.lanes.shift(memory, at * len(zeros) * self.lanes.width)) for at in range(n)]

    def _cleared(self, vectors: int) -> LlvmValue:
        """Vectors of zeros on the stack."""
        memory = self._reserve(vectors, self.lanes)
        with self.f.loop(vectors, hint="clear") as loop:
            at = self.f.op("mul", loop.index, self.lanes.width)
            self.lanes.store(self.lanes.zero, self.lanes.shift(memory, at), self.lanes.width)
        return memory

    def _kept(self, memory: LlvmValue) -> list[LlvmValue]:
        """A vector for each sum of the tile."""
        width = self.lanes.width
        return [self.lanes.load(self.lanes.shift(memory, at * width), 1, width) for at in range(self.tile.sums)]

    def _added(self, totals: list[LlvmValue], block: list[LlvmValue], memory: LlvmValue | None) -> list[LlvmValue]:
        """The sums of a block added to those that are carried, or to those in memory."""
        held = totals if memory is None else self._kept(memory)
        added = [self.lanes.add(*pair) for pair in zip(held, block, strict=True)]
        if memory is None:
            return added
        for at, value in enumerate(added):
            self.lanes.store(value, self.lanes.shift(memory, at * self.lanes.width), self.lanes.width)
        return []

    def _segments(self, loop: int, active: list[int]) -> list[tuple[int, int, list[int]]]:
        """The loop cut where the set of points changes that have products there."""
        whole = (0, self.tile.extents[loop])
        ranges = {point: self.tile.points[point].ranges.get(loop, whole) for point in active}
        cuts = sorted({0, whole[1], *(edge for low, high in ranges.values() if low < high for edge in (low, high))})
        spans = pairwise(cuts)
        parts = [(low, high, [p for p in active if ranges[p][0] <= low < ranges[p][1]]) for low, high in spans]
        return [part for part in parts if part[2]]

    def _advance(self, loop: int) -> int:
        return self.lanes.width if self.plan.dots and loop == self.plan.vec else self.plan.problem.step(loop)

    def _unroll(self, depth: int) -> int:
        return self.body.unroll if depth == len(self.body.rolled) - 1 else 1

    def _static(
        self, depth: int, low: int, high: int, active: list[int], cursor: Cursor, sums: list[LlvmValue], number: int
    ) -> list[LlvmValue]:
        """Trips ``low`` to ``high``: a loop of unrolled ones, the rest of them, the last lanes of a dot product.

        Of several passes over partial sums each takes its own part of every trip of the loop.
        """
        loop, unroll = self.body.rolled[depth], self._unroll(depth)
        step, chained = self._advance(loop), self.body.chained
        parted = loop == self.tile.along and not chained
        block = unroll * step
        every, low = (block * self.plan.passes, low + number * block) if parted else (block, low)
        trips = (high - low + number * block * parted) // every
        begin = self._shifted(loop, low, cursor)
        if self.schedule.streams and depth == 0 and trips >= 2 * self.schedule.rows:
            done = trips // self.schedule.rows * self.schedule.rows
            begin, sums = self._trips_between(self.schedule, done, active, begin, sums)
            low, trips = low + done * every, trips - done
        end = low + trips * every
        if trips > 1:
            sums = self._trips(depth, low, end, unroll, active, begin, sums, number, every=every)
        elif trips == 1:
            sums = self._straight(depth, unroll, active, self._at(begin, loop, low), sums, number)
        rest, tail = divmod(min(max(high - end, 0), block), step)
        place = self._shifted(loop, end - low, begin)
        if rest:
            sums = self._straight(depth, rest, active, self._at(place, loop, end), sums, number)
        if tail:
            place = self._at(self._shifted(loop, rest * step, place), loop, end + rest * step)
            sums = self.body.products(
                active, place, sums, [TileStep(0, 0, {}, tail, rest % self.tile.copies, number * chained)]
            )
        return sums

    def _trips_between(
        self, schedule: PrefetchSchedule, trips: int, active: list[int], begin: Cursor, sums: list[LlvmValue]
    ) -> tuple[Cursor, list[LlvmValue]]:
        """As many trips of the outermost loop after each row that the tile prefetches: where they have ended, and the
        sums."""
        loop, unroll, pointers = self.body.rolled[0], self._unroll(0), 2 + len(schedule.streams)
        steps = trips // schedule.rows * unroll * self._advance(loop)
        begun = [begin.a, begin.b, *(stream.first for stream in schedule.streams)]
        with self.f.loop(schedule.rows, [*begun, *sums], hint="asked") as counted:
            a, b, *rows = counted.carried[:pointers]
            following = [stream.prefetch(self.f, row) for stream, row in zip(schedule.streams, rows, strict=True)]
            here = Cursor(a, b, begin.index)
            held = self._trips(0, 0, steps, unroll, active, here, counted.carried[pointers:], 0)
            after = self._shifted(loop, steps, here)
            counted.next = [after.a, after.b, *following, *held]
        a, b = counted.results[:2]
        return Cursor(a, b, begin.index), counted.results[pointers:]

    def _at(self, cursor: Cursor, loop: int, index: Number) -> Cursor:
        return replace(cursor, index={**cursor.index, loop: index})

    def _dynamic(
        self, depth: int, active: list[int], cursor: Cursor, sums: list[LlvmValue], number: int
    ) -> list[LlvmValue]:
        """Trips whose bounds are known when the kernel runs: a loop of unrolled trips, then one of single trips."""
        loop, unroll = self.body.rolled[depth], self._unroll(depth)
        low, high = self.ranges[loop]
        if unroll > 1:
            many = extreme(self.f, "smax", self.f.op("sub", self.f.index(high), low), 0)
            whole = self.f.op("sub", many, self.f.op("urem", many, unroll))
            middle = self.f.op("add", self.f.index(low), whole)
            begin = self._shifted(loop, low, cursor)
            sums = self._trips(depth, low, middle, unroll, active, begin, sums, number, guarded=True)
            low = middle
        return self._trips(depth, low, high, 1, active, self._shifted(loop, low, cursor), sums, number, guarded=True)

    def _shifted(self, loop: int, by: Number, cursor: Cursor) -> Cursor:
        """The cursor moved by some trips of a loop."""
        moved = [
            by * stride if isinstance(by, int) else self.f.op("mul", by, stride) if stride else 0
            for stride in (self.variant.a.strides[loop], self.variant.b.strides[loop])
        ]
        return replace(cursor, a=self.of["a"].shift(cursor.a, moved[0]), b=self.of["b"].shift(cursor.b, moved[1]))

    def _trips(
        self, depth: int, low: Number, high: Number, unroll: int, active: list[int], cursor: Cursor,
        sums: list[LlvmValue], number: int, *, every: int = 0, guarded: bool = False,
    ) -> list[LlvmValue]:  # fmt: skip
        """A loop over one reduction, carrying both addresses and the sums of the active points."""
        loop, own = self.body.rolled[depth], self._of(active)
        step = every or unroll * self._advance(loop)
        carried = [cursor.a, cursor.b, *(sums[at] for at in own)]

        def body(at: LlvmValue, values: list[LlvmValue]) -> list[LlvmValue]:
            here = Cursor(values[0], values[1], {**cursor.index, loop: at})
            inner = self._straight(depth, unroll, active, here, self._with(sums, own, values[2:]), number)
            after = self._shifted(loop, step, here)
            return [after.a, after.b, *(inner[at] for at in own)]

        return self._with(sums, own, self._counted(low, high, step, carried, body, guarded)[2:])

    def _with(self, sums: list[LlvmValue], numbers: list[int], values: list[LlvmValue]) -> list[LlvmValue]:
        changed = dict(zip(numbers, values, strict=True))
        return [changed.get(at, old) for at, old in enumerate(sums)]

    def _counted(
        self, low: Number, high: Number, step: int, carried: list[LlvmValue],
        body: Callable[[LlvmValue, list[LlvmValue]], list[LlvmValue]], guarded: bool,
    ) -> list[LlvmValue]:  # fmt: skip
        """``for at in range(low, high, step)``; ``guarded``: perhaps no trip."""
        with self.f.loop(high, carried, begin=low, step=step, hint="sum", guarded=guarded) as loop:
            loop.next = body(loop.index, loop.carried)
        return loop.results

    def _straight(
        self, depth: int, count: int, active: list[int], cursor: Cursor, sums: list[LlvmValue], number: int
    ) -> list[LlvmValue]:
        """``count`` trips of a reduction without a loop."""
        loop = self.body.rolled[depth]
        step = self._advance(loop)
        if depth == len(self.body.rolled) - 1:
            a, b = self.variant.a.strides[loop] * step, self.variant.b.strides[loop] * step
            copies = self.tile.copies if loop == self.tile.along else 1
            own = self.tile.full, number * self.body.chained
            steps = [TileStep(a * i, b * i, {loop: i * step}, own[0], i % copies, own[1]) for i in range(count)]
            return self.body.products(active, cursor, sums, steps)
        for i in range(count):
            here = self._at(self._shifted(loop, i, cursor), loop, affine(self.f, i, [(1, cursor.index[loop])]))
            sums = self._reduce(depth + 1, active, here, sums, number)
        return sums

    def _combined(self, passes: list[list[LlvmValue]]) -> list[LlvmValue]:
        """The partial sums of each vector, which passes have left, added up half with half."""
        result, count = [], self.tile.copies
        for first in range(0, self.tile.sums, count):
            parts = [each for sums in passes for each in sums[first : first + count]]
            while len(parts) > 1:
                halves = zip(parts[: len(parts) // 2], parts[len(parts) // 2 :], strict=True)
                parts = [self.lanes.add(left, right) for left, right in halves]
            result += parts
        return result
