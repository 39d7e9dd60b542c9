"""The innermost function of a contraction: one tile of C kept in registers while all its products are summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from glowtrain.backends.cpu.contraction.choose import Plan, View, clipped
from glowtrain.backends.cpu.contraction.describe import Epilogue
from glowtrain.backends.cpu.contraction.lanes import Lanes
from glowtrain.backends.cpu.emit import Function, Text

Pattern = tuple[tuple[int, int, int], ...]
"""The (reduction loop, low, high) to which static clips restrict the products of one point; others are whole."""


@dataclass(frozen=True)
class Variant:
    """What distinguishes the kernels of one plan.

    ``sizes`` and ``patterns`` (one per point) go with ``plan.tile``; ``lanes`` are the outputs along the vector loop;
    ``extents`` go with ``plan.reductions``; ``start`` is ``zero``, ``load`` (C holds a part of the sum) or ``flag`` (known
    at run time); ``last``: the sums are finished, so the epilogue applies.
    """

    sizes: tuple[int, ...]
    patterns: tuple[tuple[Pattern, ...], ...]
    lanes: int
    extents: tuple[int, ...]
    start: str
    last: bool
    c: View
    a: View
    b: View


@dataclass(frozen=True)
class _Point:
    index: dict[int, int]
    c: int
    a: int
    b: int
    ranges: dict[int, tuple[int, int]]


@dataclass(frozen=True)
class _Step:
    """One trip of the reduction in straight-line code: its offsets in A and B, its place in each reduction loop."""

    a: int
    b: int
    index: dict[int, int]
    count: int


def needed_coordinates(plan: Plan, epilogue: Epilogue | None) -> tuple[int, ...]:
    """The loops whose index at the start of the tile the kernel must be told: outputs, and reductions taken in parts."""
    clips = [k for k, kind in enumerate(plan.kinds) if kind != "static"]
    loops = plan.problem.loops
    clipped_ = [i for i, loop in enumerate(loops) if any(loop.clips[k] for k in clips)]
    parts = [level.loop for level in plan.levels if level.kind == "chunk"]
    outputs = plan.problem.outputs
    return tuple(i for i in range(len(loops)) if (i in outputs and epilogue is not None) or (i in clipped_ and i in (*outputs, *parts)))


class Micro:
    """Writes one variant of the kernel of a plan."""

    def __init__(self, plan: Plan, variant: Variant, name: str, epilogue: Epilogue | None) -> None:
        problem = plan.problem
        self.plan, self.variant, self.epilogue = plan, variant, epilogue if variant.last else None
        self.coordinates = needed_coordinates(plan, epilogue)
        params = [("ptr noalias", "c"), ("ptr noalias", "a"), ("ptr noalias", "b")]
        params += [("i64", f"x{loop}") for loop in self.coordinates]
        params += [("i1", "first")] if variant.start == "flag" else []
        params += list(self.epilogue.params) if self.epilogue else []
        self.f = Function(name, params, linkage="internal")
        self.lanes = Lanes(self.f, problem.scalar, problem.size, plan.machine.width)
        self.vectors = 1 if plan.dots else -(-variant.lanes // plan.machine.width)
        self.points = [self._point(place) for place in product(*(range(size) for size in variant.sizes))]
        self.copies = plan.copies
        self.guards = [k for k, kind in enumerate(plan.kinds) if kind == "guard"]
        self.ranges = self._ranges()
        self.rolled = self._rolled()
        self.unroll = self._unroll()

    def text(self) -> str:
        """The whole function."""
        sums = [self.lanes.zero] * (len(self.points) * self.vectors * self.copies)
        sums = self._reduce(0, list(range(len(self.points))), "%a", "%b", sums, {})
        for at, (point, vector) in enumerate(product(self.points, range(self.vectors))):
            self._finish(point, vector, sums[at * self.copies : (at + 1) * self.copies])
        return self.f.finish()

    def _point(self, place: tuple[int, ...]) -> _Point:
        loops = [loop for loop, _ in self.plan.tile]
        c, a, b = (
            sum(view.strides[loop] * i for loop, i in zip(loops, place, strict=True))
            for view in (self.variant.c, self.variant.a, self.variant.b)
        )
        ranges: dict[int, tuple[int, int]] = {}
        for patterns, i in zip(self.variant.patterns, place, strict=True):
            for reduction, low, high in patterns[i]:
                before = ranges.get(reduction, (low, high))
                ranges[reduction] = (max(low, before[0]), min(high, before[1]))
        return _Point(dict(zip(loops, place, strict=True)), c, a, b, ranges)

    def _extent(self, reduction: int) -> int:
        return self.variant.extents[self.plan.reductions.index(reduction)]

    # ---- clips that depend on the call -------------------------------------------------------------------------------

    def _affine(self, constant: int, terms: Sequence[tuple[int, Text | int]]) -> Text | int:
        """``constant + sum(factor * value)``, folding numbers."""
        constant += sum(factor * value for factor, value in terms if isinstance(value, int))
        total: Text | None = None
        for factor, value in terms:
            if isinstance(value, int) or factor == 0:
                continue
            term = value if factor == 1 else self.f.value(f"mul i64 {value}, {factor}")
            total = term if total is None else self.f.value(f"add i64 {total}, {term}")
        if total is None:
            return constant
        return self.f.value(f"add i64 {total}, {constant}") if constant else total

    def _ranges(self) -> dict[int, tuple[Text | int, Text | int]]:
        """The bounds of reduction loops that clips of kind ``range`` set."""
        ranges: dict[int, tuple[Text | int, Text | int]] = {}
        for clip, kind in enumerate(self.plan.kinds):
            if kind == "range":
                reduction = clipped(self.plan.problem, clip)
                low, high = self._range(clip, reduction)
                before = ranges.get(reduction, (0, self._extent(reduction)))
                ranges[reduction] = self._extreme("smax", before[0], low), self._extreme("smin", before[1], high)
        return ranges

    def _extreme(self, which: str, left: Text | int, right: Text | int) -> Text:
        return self.f.value(f"call i64 @llvm.{which}.i64(i64 {left}, i64 {right})")

    def _range(self, clip: int, reduction: int) -> tuple[Text | int, Text | int]:
        problem = self.plan.problem
        bound, factor = problem.bounds[clip], problem.loops[reduction].clips[clip]
        start = self._affine(bound.offset, [(problem.loops[i].clips[clip], f"%x{i}") for i in self._movers(clip)])
        if factor == 0:
            inside = self.f.value(f"icmp ult i64 {start}, {bound.extent}")
            return 0, self.f.value(f"select i1 {inside}, i64 {self._extent(reduction)}, i64 0")
        if factor > 0:
            to_zero, to_end = self._affine(0, [(-1, start)]), self._affine(bound.extent, [(-1, start)])
            return self._ceil(to_zero, factor), self._ceil(to_end, factor)
        past_end, past_zero = self._affine(1 - bound.extent, [(1, start)]), self._affine(1, [(1, start)])
        return self._ceil(past_end, -factor), self._ceil(past_zero, -factor)

    def _movers(self, clip: int) -> list[int]:
        """The loops of which the kernel is told where they start, as far as they move the clip."""
        return [i for i in self.coordinates if self.plan.problem.loops[i].clips[clip]]

    def _ceil(self, value: Text | int, by: int) -> Text | int:
        """``ceil(value / by)``; negative results may be any negative number (they are clamped to 0)."""
        if by == 1:
            return value
        if isinstance(value, int):
            return -(-value // by)
        return self.f.value(f"sdiv i64 {self._affine(by - 1, [(1, value)])}, {by}")

    def _guard(self, point: _Point, vector: int, index: dict[int, Text | int], step: _Step) -> Text:
        """The lanes (or, for width 1, the truth) of a product that no guarded clip drops."""
        width, problem = self.lanes.width, self.plan.problem
        result = None
        for clip in self.guards:
            factors = [loop.clips[clip] for loop in problem.loops]
            constant = problem.bounds[clip].offset + sum(factors[i] * at for i, at in point.index.items())
            constant += 0 if self.plan.dots else factors[self.plan.vec] * vector * width
            terms: list[tuple[int, Text | int]] = [(factors[i], f"%x{i}") for i in self._movers(clip)]
            terms += [(factors[i], at) for i, at in step.index.items()] + [(factors[i], at) for i, at in index.items()]
            value = self._affine(constant, terms)
            inside = self._inside(value, factors[self.plan.vec], problem.bounds[clip].extent)
            kind = "i1" if width == 1 else f"<{width} x i1>"
            result = inside if result is None else self.f.value(f"and {kind} {result}, {inside}")
        assert result is not None
        count = step.count if self.plan.dots else min(width, self.variant.lanes - vector * width)
        return result if count == width else self.f.value(f"and <{width} x i1> {result}, {self.lanes.mask(count)}")

    def _inside(self, value: Text | int, factor: int, extent: int) -> Text:
        width = self.lanes.width
        if width == 1:
            return self.f.value(f"icmp ult i64 {value}, {extent}")
        narrow = self.f.value(f"trunc i64 {value} to i32")
        steps = "<" + ", ".join(f"i32 {factor * lane}" for lane in range(width)) + ">"
        places = self.f.value(f"add <{width} x i32> {self.f.splat(narrow, 'i32', width)}, {steps}")
        return self.f.value(f"icmp ult <{width} x i32> {places}, splat (i32 {extent})")

    # ---- the loops of the sum ----------------------------------------------------------------------------------------

    def _rolled(self) -> tuple[int, ...]:
        """The reduction loops that stay loops; the ones inside, with few trips, become straight-line code."""
        rolled, steps = list(self.plan.reductions), 1
        size = max(1, len(self.points) * self.vectors)
        while rolled and not self.plan.dots and not self.guards:
            extent = self._extent(rolled[-1])
            if rolled[-1] in self.ranges or extent > 8 or steps * extent > 16 or steps * extent * size > 72:
                break
            if not self._live([(i, self._extent(i)) for i in self.plan.reductions[len(rolled) - 1 :]]):
                break
            steps *= extent
            rolled.pop()
        return tuple(rolled)

    def _live(self, trips: list[tuple[int, int]]) -> bool:
        """Whether values that several steps share can stay in registers if these loops are written out.

        LLVM loads a value once in a block and keeps it; so more shared values than registers would be spilled.
        """
        registers = self.plan.machine.registers - len(self.points) * self.vectors * self.copies - 2
        counts = []
        for view, moved in ((self.variant.a, "a"), (self.variant.b, "b")):
            tile = {getattr(point, moved) for point in self.points}
            vectors = {0} if self.plan.dots else {v * view.step for v in range(self.vectors)}
            steps = {0}
            for loop, extent in trips:
                steps = {at + i * view.strides[loop] for at in steps for i in range(extent)}
            counts.append((len({x + y + z for x in tile for y in vectors for z in steps}), len(tile) * len(vectors)))
        written = prod(extent for _, extent in trips)
        shared = any(distinct < each * written for distinct, each in counts)
        return not shared or min(distinct for distinct, _ in counts) <= registers

    def _unroll(self) -> int:
        written = [(i, self._extent(i)) for i in self.plan.reductions if i not in self.rolled]
        size = max(1, len(self.points) * self.vectors) * prod(extent for _, extent in written)
        if self.guards or not self.rolled:
            return self.copies
        unroll = max(self.copies, min(4, max(1, 32 // size)))
        while unroll > self.copies and not self._live([*written, (self.rolled[-1], unroll)]):
            unroll //= 2
        return max(unroll, self.copies)

    def _reduce(
        self, depth: int, active: list[int], a: Text, b: Text, sums: list[Text], index: dict[int, Text | int]
    ) -> list[Text]:
        if depth == len(self.rolled):
            return self._body(active, a, b, sums, index, [_Step(0, 0, {}, self.lanes.width)])
        reduction = self.rolled[depth]
        if reduction in self.ranges:
            return self._dynamic(depth, active, a, b, sums, index)
        for low, high, some in self._segments(reduction, active):
            sums = self._static(depth, low, high, some, a, b, sums, index)
        return sums

    def _segments(self, reduction: int, active: list[int]) -> list[tuple[int, int, list[int]]]:
        """The loop cut where the set of points changes that have products there."""
        whole = (0, self._extent(reduction))
        ranges = {point: self.points[point].ranges.get(reduction, whole) for point in active}
        cuts = sorted({0, whole[1], *(edge for low, high in ranges.values() if low < high for edge in (low, high))})
        parts = [(low, high, [p for p in active if ranges[p][0] <= low < ranges[p][1]]) for low, high in zip(cuts, cuts[1:])]
        return [part for part in parts if part[2]]

    def _advance(self, reduction: int) -> int:
        return self.lanes.width if self.plan.dots and reduction == self.plan.vec else 1

    def _static(
        self, depth: int, low: int, high: int, active: list[int], a: Text, b: Text, sums: list[Text], index: dict[int, Text | int]
    ) -> list[Text]:
        reduction, advance = self.rolled[depth], self._advance(self.rolled[depth])
        unroll = self.unroll if depth == len(self.rolled) - 1 else 1
        count, tail = divmod(high - low, advance)
        trips, rest = divmod(count, unroll)
        a, b = self._shifted(reduction, low, a, b)
        if trips > 1:
            end = low + trips * unroll * advance
            sums = self._trips(depth, low, end, unroll, active, a, b, sums, index, guarded=False)
        elif trips == 1:
            sums = self._straight(depth, unroll, active, a, b, sums, {**index, reduction: low})
        at = trips * unroll * advance
        if rest:
            shifted = self._shifted(reduction, at, a, b)
            sums = self._straight(depth, rest, active, *shifted, sums, {**index, reduction: low + at})
            at += rest * advance
        if tail:
            shifted = self._shifted(reduction, at, a, b)
            sums = self._body(active, *shifted, sums, {**index, reduction: low + at}, [_Step(0, 0, {}, tail)])
        return sums

    def _dynamic(
        self, depth: int, active: list[int], a: Text, b: Text, sums: list[Text], index: dict[int, Text | int]
    ) -> list[Text]:
        reduction = self.rolled[depth]
        low, high = self.ranges[reduction]
        unroll = self.unroll if depth == len(self.rolled) - 1 else 1
        if unroll > 1:
            many = self._extreme("smax", self.f.value(f"sub i64 {high}, {low}"), 0)
            whole = self.f.value(f"sub i64 {many}, {self.f.value(f'urem i64 {many}, {unroll}')}")
            middle = self.f.value(f"add i64 {low}, {whole}")
            shifted = self._shifted(reduction, low, a, b)
            sums = self._trips(depth, low, middle, unroll, active, *shifted, sums, index, guarded=True)
            low = middle
        a, b = self._shifted(reduction, low, a, b)
        return self._trips(depth, low, high, 1, active, a, b, sums, index, guarded=True)

    def _shifted(self, reduction: int, by: Text | int, a: Text, b: Text) -> tuple[Text, Text]:
        strides = self.variant.a.strides[reduction], self.variant.b.strides[reduction]
        if isinstance(by, int):
            return self.lanes.shift(a, by * strides[0]), self.lanes.shift(b, by * strides[1])
        moved = [self.f.value(f"mul i64 {by}, {stride}") if stride else 0 for stride in strides]
        return self.lanes.shift(a, moved[0]), self.lanes.shift(b, moved[1])

    def _trips(
        self, depth: int, low: Text | int, high: Text | int, unroll: int, active: list[int], a: Text, b: Text,
        sums: list[Text], index: dict[int, Text | int], *, guarded: bool,
    ) -> list[Text]:  # fmt: skip
        """A loop over one reduction, carrying both addresses and the sums of the active points."""
        reduction = self.rolled[depth]
        step = unroll * self._advance(reduction)
        own = [at for at in range(len(sums)) if at // (self.vectors * self.copies) in set(active)]
        carried = [("ptr", a), ("ptr", b), *((self.lanes.type, sums[at]) for at in own)]

        def body(at: Text, values: list[Text]) -> list[Text]:
            inner = list(sums)
            for place, value in zip(own, values[2:], strict=True):
                inner[place] = value
            inner = self._straight(depth, unroll, active, values[0], values[1], inner, {**index, reduction: at})
            return [*self._shifted(reduction, step, values[0], values[1]), *(inner[place] for place in own)]

        results = self._counted(low, high, step, carried, body, guarded)[2:]
        after = list(sums)
        for place, value in zip(own, results, strict=True):
            after[place] = value
        return after

    def _counted(
        self, low: Text | int, high: Text | int, step: int, carried: list[tuple[str, Text]],
        body: Callable[[Text, list[Text]], list[Text]], guarded: bool,
    ) -> list[Text]:  # fmt: skip
        """``for at in range(low, high, step)``; ``guarded``: perhaps no trip."""
        enter, skip, before = self.f.label("enter"), self.f.label("skip"), self.f.block
        if guarded:
            self.f.line(f"br i1 {self.f.value(f'icmp slt i64 {low}, {high}')}, label %{enter}, label %{skip}")
            self.f.start(enter)
        with self.f.loop(high, carried, begin=low, step=step, hint="sum") as loop:
            loop.next = body(loop.index, loop.carried)
        if not guarded:
            return loop.results
        leave = self.f.block
        self.f.branch(skip)
        self.f.start(skip)
        pairs = zip(carried, loop.results, strict=True)
        return [self.f.value(f"phi {type_} [ {old}, %{before} ], [ {new}, %{leave} ]") for (type_, old), new in pairs]

    def _straight(
        self, depth: int, count: int, active: list[int], a: Text, b: Text, sums: list[Text], index: dict[int, Text | int]
    ) -> list[Text]:
        """``count`` trips of a reduction without a loop."""
        reduction = self.rolled[depth]
        advance = self._advance(reduction)
        if depth == len(self.rolled) - 1:
            strides = self.variant.a.strides[reduction] * advance, self.variant.b.strides[reduction] * advance
            steps = [_Step(strides[0] * u, strides[1] * u, {reduction: u * advance}, self.lanes.width) for u in range(count)]
            return self._body(active, a, b, sums, index, steps)
        for u in range(count):
            shifted = self._shifted(reduction, u * advance, a, b)
            inner = {**index, reduction: self._affine(u, [(1, index[reduction])])}
            sums = self._reduce(depth + 1, active, *shifted, sums, inner)
        return sums

    # ---- products ----------------------------------------------------------------------------------------------------

    def _steps(self, steps: list[_Step]) -> list[_Step]:
        """Each step times the trips of the loops that are written out."""
        a, b = self.variant.a.strides, self.variant.b.strides
        for reduction in (i for i in self.plan.reductions if i not in self.rolled):
            steps = [
                _Step(step.a + a[reduction] * at, step.b + b[reduction] * at, {**step.index, reduction: at}, step.count)
                for step in steps
                for at in range(self._extent(reduction))
            ]
        return steps

    def _body(
        self, active: list[int], a: Text, b: Text, sums: list[Text], index: dict[int, Text | int], steps: list[_Step]
    ) -> list[Text]:
        """Straight-line products. Where steps share elements of A they are ordered by address, so that each value dies early."""
        steps, sums = self._steps(steps), list(sums)
        todo = [(s, p) for s, step in enumerate(steps) for p in active if self._has(self.points[p], step)]
        places = {(s, p): steps[s].a + self.points[p].a for s, p in todo}
        if len(set(places.values())) < len({(s, self.points[p].a) for s, p in todo}):
            todo.sort(key=lambda pair: places[pair])
        loaded: dict[tuple[str, int, int], Text] = {}
        masks: dict[tuple[int, int, int], Text] = {}
        for s, p in todo:
            for v in range(self.vectors):
                at = (p * self.vectors + v) * self.copies + s % self.copies
                sums[at] = self._product(self.points[p], v, a, b, sums[at], index, steps[s], loaded, masks)
        return sums

    def _has(self, point: _Point, step: _Step) -> bool:
        inner = [i for i in self.plan.reductions if i not in self.rolled]
        return all(point.ranges[i][0] <= step.index[i] < point.ranges[i][1] for i in inner if i in point.ranges)

    def _product(
        self, point: _Point, vector: int, a: Text, b: Text, total: Text, index: dict[int, Text | int], step: _Step,
        loaded: dict[tuple[str, int, int], Text], masks: dict[tuple[int, int, int], Text],
    ) -> Text:  # fmt: skip
        guard = None
        if self.guards:
            guard = self._guard(point, vector, index, step)
            loaded, masks = {}, {}
        left = self._load("a", a, point.a + step.a, vector, step.count, guard, loaded)
        right = self._load("b", b, point.b + step.b, vector, step.count, guard, loaded)
        result = self.lanes.multiply_add(left, right, total, self.plan.machine.fused)
        if guard is None:
            return result
        kind = "i1" if self.lanes.width == 1 else f"<{self.lanes.width} x i1>"
        return self.f.value(f"select {kind} {guard}, {self.lanes.type} {result}, {self.lanes.type} {total}")

    def _load(
        self, operand: str, base: Text, offset: int, vector: int, count: int, guard: Text | None,
        loaded: dict[tuple[str, int, int], Text],
    ) -> Text:  # fmt: skip
        view = self.variant.a if operand == "a" else self.variant.b
        offset += 0 if self.plan.dots else vector * view.step
        key = (operand, offset, count)
        if key not in loaded:
            exists = count if self.plan.dots else min(self.lanes.width, self.variant.lanes - vector * self.lanes.width)
            place = self.lanes.shift(base, offset)
            if guard is not None and (view.lane == 0 or self.lanes.width == 1):
                place, guard = self._safe(place, guard), None
            value = self.lanes.load(place, view.lane, self.lanes.width if view.padded else exists, guard)
            if self.plan.dots and view.lane == 0 and count < self.lanes.width:
                value = self.lanes.kept(value, count)
            loaded[key] = value
        return loaded[key]

    def _safe(self, place: Text, guard: Text) -> Text:
        """An address that can be read whatever the guard says: that of the tile in C if no lane exists."""
        width = self.lanes.width
        some = guard if width == 1 else self.f.value(f"call i1 @llvm.vector.reduce.or.v{width}i1(<{width} x i1> {guard})")
        return self.f.value(f"select i1 {some}, ptr {place}, ptr %c")

    # ---- results -----------------------------------------------------------------------------------------------------

    def _finish(self, point: _Point, vector: int, parts: list[Text]) -> None:
        """Add up the partial sums, apply the epilogue and store one vector (or, in dot form, one number)."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.f.value(f"fadd {self.lanes.type} {left}, {right}") for left, right in pairs]
        view, lanes, value, count = self.variant.c, self.lanes, parts[0], 1
        if self.plan.dots:
            value = lanes.total(value)
            lanes = Lanes(self.f, lanes.scalar, lanes.size, 1)
        else:
            count = min(lanes.width, self.variant.lanes - vector * lanes.width)
        place = lanes.shift("%c", point.c + (0 if self.plan.dots else vector * view.step))
        lane = 1 if self.plan.dots else view.lane
        if self.variant.start != "zero":
            value = self.f.value(f"fadd {lanes.type} {self._held(lanes, place, lane, count)}, {value}")
        if self.epilogue is not None:
            value = self._applied(self.epilogue, lanes, point, vector, value, count)
        lanes.store(value, place, lane, count)

    def _held(self, lanes: Lanes, place: Text, lane: int, count: int) -> Text:
        """What C holds of the sum; nothing at the first part."""
        held = lanes.load(place, lane, count)
        if self.variant.start != "flag":
            return held
        if lanes.width == 1:
            return self.f.value(f"select i1 %first, {lanes.type} 0.0, {lanes.type} {held}")
        bits = f"i{8 * lanes.size}"
        keep = self.f.splat(self.f.value(f"select i1 %first, {bits} 0, {bits} -1"), bits, lanes.width)
        kind = f"<{lanes.width} x {bits}>"
        masked = self.f.value(f"and {kind} {self.f.value(f'bitcast {lanes.type} {held} to {kind}')}, {keep}")
        return self.f.value(f"bitcast {kind} {masked} to {lanes.type}")

    def _applied(self, epilogue: Epilogue, lanes: Lanes, point: _Point, vector: int, value: Text, count: int) -> Text:
        """The epilogue's result, told the index of each loop of the original contraction."""
        problem, vec = self.plan.problem, self.plan.vec
        coordinates: list[Text | int] = [0] * len(problem.source.extents)
        for loop in problem.outputs:
            start = point.index.get(loop, vector * lanes.width if loop == vec else 0)
            index = self._affine(start, [(1, f"%x{loop}")])
            for part in reversed(problem.loops[loop].parts):
                extent = problem.source.extents[part]
                outer = part != problem.loops[loop].parts[0]
                coordinates[part] = self.f.value(f"urem i64 {index}, {extent}") if outer else index
                index = self.f.value(f"udiv i64 {index}, {extent}") if outer else index
        lane = problem.loops[vec].parts[0] if lanes.width > 1 else -1
        mask = lanes.mask(count) if count < lanes.width else None
        return epilogue.emit(self.f, value, lanes.width, coordinates, lane, mask)
