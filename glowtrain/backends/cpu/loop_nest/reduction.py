"""Reductions: several over one box in one pass, with a fixed order of accumulation.

Along lanes of an outer loop each lane sums for itself; otherwise the reduction itself runs along lanes, which are
combined half with half at the end. A few partial accumulators hide the latency of additions. Nothing depends on
addresses or threads, so the bits are the same from run to run; they depend on the width of vectors, unless the
reduction says its number of partial sums: then both ways give the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from glowtrain.backends.cpu.loop_nest.analysis import loop_order, reduction_step_cost, reductions
from glowtrain.backends.cpu.loop_nest.expressions import LlvmExpressions, reached
from glowtrain.backends.cpu.loop_nest.scope import Context
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.values import LlvmValue, first_lanes
from glowtrain.loops import Apply, Expr, Index, Let, Reduce, Ref, Statement, substitute
from glowtrain.types import DType, boolean

UNROLLED = 16
"""Boxes of at most this many points are written out."""
PARTIALS = 4
"""Independent accumulators."""


class Reducing(LlvmExpressions):
    """Expressions that may hold reductions."""

    def reduce(self, group: Sequence[Reduce]) -> list[LlvmValue]:
        job = _Job.of(self, group)
        trips = math.prod(index.extent for index in job.indices)
        if trips == 0:
            return [scalar.constant(identity(r.op, r.dtype), r.dtype.name, 1) for r in group]
        self.hoist(job.statements)
        if self.context.index is None and trips > 1:
            lane = _lane_index(job)
            if lane is not None:
                return job.across_lanes(lane)
        if trips == 1 or (trips <= UNROLLED and not job.partials):
            return job.unrolled()
        return job.looped()

    def hoist(self, body: Sequence[Statement]) -> None:
        self.reduce_together(list(reductions(list(reached(body)))))
        super().hoist(body)

    def reduce_together(self, found: Sequence[Reduce]) -> None:
        """Compute those reductions that can be computed here, equal boxes in one pass, and remember them."""
        ready = [reduction for reduction in dict.fromkeys(found) if self._ready(reduction)]
        inner = {reduction: self._inner(reduction) for reduction in ready}
        groups: dict[tuple[int, ...], list[Reduce]] = {}
        for reduction in ready:
            if not inner[reduction]:
                groups.setdefault((reduction.partials, *(i.extent for i in reduction.indices)), []).append(reduction)
        for group in groups.values():
            for reduction, value in zip(group, self.reduce(group), strict=True):
                self.scopes.set(reduction, value)
        waiting = [reduction for reduction in ready if inner[reduction]]
        if waiting:
            self.reduce_together([*(part for reduction in waiting for part in inner[reduction]), *waiting])

    def _ready(self, reduction: Reduce) -> bool:
        known = self.scopes.get(reduction) is not None
        return not known and self.bound(self.free.of(reduction)) and not self._volatile(reduction)

    def _inner(self, reduction: Reduce) -> list[Reduce]:
        """Reductions inside that do not depend on this one's indices: they come first."""
        if not all(index.extent for index in reduction.indices):
            return []
        return [part for part in reductions([Let(Ref(reduction.dtype), reduction.body)]) if self._ready(part)]


def identity(op: str, dtype: DType) -> bool | int | float:
    """The value that changes nothing under ``op``."""
    if op in ("add", "or"):
        return 0
    if op in ("mul", "and"):
        return 1
    if dtype.is_float:
        return -math.inf if op == "max" else math.inf
    if dtype == boolean:
        return op == "min"
    bits = dtype.size * 8
    low, high = (0, (1 << bits) - 1) if dtype.kind == "uint" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return low if op == "max" else high


@dataclass
class _Job:
    """Reductions over one box: the bodies are in terms of the first one's indices."""

    e: LlvmExpressions
    group: Sequence[Reduce]
    indices: tuple[Index, ...]
    bodies: list[Expr]

    @staticmethod
    def of(e: LlvmExpressions, group: Sequence[Reduce]) -> _Job:
        indices = group[0].indices
        bodies = [group[0].body]
        bodies += [substitute(r.body, dict(zip(r.indices, indices, strict=True))) for r in group[1:]]
        return _Job(e, group, indices, bodies)

    @property
    def partials(self) -> int:
        """The number of partial sums, where the program says it."""
        return self.group[0].partials

    @property
    def statements(self) -> list[Statement]:
        return [Let(Ref(body.dtype), body) for body in self.bodies]

    def identities(self, width: int) -> list[LlvmValue]:
        return [scalar.constant(identity(r.op, r.dtype), r.dtype.name, width) for r in self.group]

    def point(self, sums: Sequence[LlvmValue], mask: LlvmValue | None = None) -> list[LlvmValue]:
        """One more element of each reduction, at what the indices are bound to."""
        return [
            self._accumulate(r, body, total, mask) for r, body, total in zip(self.group, self.bodies, sums, strict=True)
        ]

    def _accumulate(self, reduction: Reduce, body: Expr, total: LlvmValue, mask: LlvmValue | None) -> LlvmValue:
        e, dtype = self.e, reduction.dtype.name
        if self.partials:
            fused = dtype == "f32"  # where there is no such instruction in f64: the same bits, but slow
        else:
            fused = dtype in ("f32", "f64") and e.target.fuses(dtype) and e.scopes.get(body) is None
        if fused and reduction.op == "add" and isinstance(body, Apply) and body.function == "mul":
            operation, operands = "fma", [*(e.full(argument) for argument in body.arguments), total]
        else:
            operation, operands = reduction.op, [total, e.full(body)]
        new = scalar.apply(e.f, operation, operands, dtype, e.target)
        return new if mask is None else e.f.select(mask, new, total)

    def unrolled(self) -> list[LlvmValue]:
        """Every point written out."""
        e, sums = self.e, self.identities(self.e.context.width)
        for point in itertools.product(*(range(index.extent) for index in self.indices)):
            with e.scopes.inner():
                for index, at in zip(self.indices, point, strict=True):
                    e.bind(index, e.f.index(at))
                sums = self.point(sums)
        return sums

    def looped(self) -> list[LlvmValue]:
        """Loops over the box; with an outer loop along the lanes each lane reduces for itself."""
        e, width = self.e, self.e.context.width
        order = loop_order([i for i in self.indices if i.extent > 1], self.statements, e.free)
        count = self.partials or (PARTIALS if order[-1].extent >= 2 * PARTIALS else 1)
        sums = self._nest(order, self.identities(width) * count, count)
        return self._combined(sums, count)

    def across_lanes(self, lane: Index) -> list[LlvmValue]:
        """The index ``lane`` runs along vector lanes, the others in loops around it."""
        e = self.e
        width = lane_width(e, [r.dtype for r in self.group])
        others = [i for i in self.indices if i is not lane and i.extent > 1]
        order = loop_order(others, self.statements, e.free)
        count = PARTIALS if lane.extent >= PARTIALS * width else 1
        if self.partials:
            width = min(width, self.partials)
            count = self.partials // width
        sums = self._lanes_nest(order, lane, self.identities(width) * count, count, width)
        return [self._horizontal(r, v) for r, v in zip(self.group, self._combined(sums, count), strict=True)]

    def _combined(self, sums: list[LlvmValue], count: int) -> list[LlvmValue]:
        """Partial accumulators combined half with half."""
        e, n = self.e, len(self.group)
        parts = [sums[k * n : (k + 1) * n] for k in range(count)]
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [
                [
                    scalar.apply(e.f, r.op, [a, b], r.dtype.name, e.target)
                    for r, a, b in zip(self.group, x, y, strict=True)
                ]
                for x, y in pairs
            ]
        return parts[0]

    def _horizontal(self, reduction: Reduce, value: LlvmValue) -> LlvmValue:
        """The lanes of a vector combined, halves with halves."""
        f = self.e.f
        while value.width > 1:
            half = value.width // 2
            halves = [f.part(value, start, half) for start in (0, half)]
            value = scalar.apply(f, reduction.op, halves, reduction.dtype.name, self.e.target)
        return value

    def _nest(self, order: Sequence[Index], sums: list[LlvmValue], count: int) -> list[LlvmValue]:
        e, width = self.e, self.e.context.width
        index, rest = order[0], order[1:]
        if not rest:
            return self._steps(index, sums, count, width, 1)
        with e.f.loop(index.extent, sums) as loop, e.scopes.inner():
            e.bind(index, loop.index)
            e.hoist(self.statements)
            loop.next = self._nest(rest, loop.carried, count)
        return loop.results

    def _lanes_nest(
        self, order: Sequence[Index], lane: Index, sums: list[LlvmValue], count: int, width: int
    ) -> list[LlvmValue]:
        e = self.e
        if not order:
            return self._lane_steps(lane, sums, count, width)
        index, rest = order[0], order[1:]
        with e.f.loop(index.extent, sums) as loop, e.scopes.inner():
            e.bind(index, loop.index)
            e.hoist(self.statements)
            loop.next = self._lanes_nest(rest, lane, loop.carried, count, width)
        return loop.results

    def _lane_steps(self, lane: Index, sums: list[LlvmValue], count: int, width: int) -> list[LlvmValue]:
        """Whole vectors, then a masked rest (or one by one where masks are expensive)."""
        e = self.e
        whole = lane.extent // width * width
        if whole:
            sums = self._steps(lane, sums, count, width, width, whole)
        rest = lane.extent - whole
        if not rest:
            return sums
        at, n = whole // width % count, len(self.group)  # the accumulator whose turn it is
        tail = self._masked_rest if e.target.masked else self._scalar_rest
        sums[at * n : (at + 1) * n] = tail(lane, sums[at * n : (at + 1) * n], whole, width, rest)
        return sums

    def _masked_rest(self, lane: Index, sums: list[LlvmValue], start: int, width: int, rest: int) -> list[LlvmValue]:
        mask = first_lanes(width, rest)
        with self.e.along(Context(lane, width, mask)):
            self.e.scopes.set(("start", lane), self.e.f.index(start))
            return self.point(sums, mask)

    def _scalar_rest(self, lane: Index, sums: list[LlvmValue], start: int, width: int, rest: int) -> list[LlvmValue]:
        """The last elements one after another, into a vector's lanes 0, 1, ..."""
        e = self.e
        for at in range(rest):
            with e.along(Context()):
                e.bind(lane, e.f.index(start + at))
                old = [e.f.extract(total, at) for total in sums]
                new = self.point(old)
            sums = [e.f.insert(total, value, at) for total, value in zip(sums, new, strict=True)]
        return sums

    def _steps(
        self, index: Index, sums: list[LlvmValue], count: int, width: int, stride: int, extent: int | None = None
    ) -> list[LlvmValue]:
        """Steps of ``stride`` along ``index`` up to ``extent``, ``count`` of them a trip."""
        e = self.e
        extent = index.extent if extent is None else extent
        step = stride * count
        whole = extent // step * step
        if whole == step:
            sums = self._trip(index, sums, e.f.index(0), count, width, stride)
        elif whole:
            with e.f.loop(whole, sums, step=step) as loop:
                loop.next = self._trip(index, loop.carried, loop.index, count, width, stride)
            sums = loop.results
        rest = (extent - whole) // stride
        if rest:
            part = self._trip(index, sums[: rest * len(self.group)], e.f.index(whole), rest, width, stride)
            sums = [*part, *sums[len(part) :]]
        return sums

    def _trip(
        self, index: Index, sums: Sequence[LlvmValue], start: LlvmValue, count: int, width: int, stride: int
    ) -> list[LlvmValue]:
        e, n = self.e, len(self.group)
        result: list[LlvmValue] = []
        for k in range(count):
            context = Context(index, width) if stride > 1 else e.context
            with e.along(context):
                at = e.sum(start, e.f.index(k * stride))
                if stride > 1:
                    e.scopes.set(("start", index), at)
                else:
                    e.bind(index, at)
                result += self.point(sums[k * n : (k + 1) * n])
        return result


def lane_width(e: LlvmExpressions, dtypes: Sequence[DType]) -> int:
    """Lanes for computing in these element types: those of the widest float, or of the widest type without floats."""
    floats = [dtype for dtype in dtypes if dtype.is_float] or list(dtypes)
    return min(e.target.width(dtype.name) for dtype in floats)


def _lane_index(job: _Job) -> Index | None:
    """The reduction index that is best run along the lanes; ``None`` where scalar code is as good."""
    e = job.e
    width = lane_width(e, [r.dtype for r in job.group])
    candidates = [index for index in job.indices if index.extent > 1]
    if width == 1 or not candidates:
        return None
    return min(candidates, key=lambda index: reduction_step_cost(job.bodies, index, width, e.free))
