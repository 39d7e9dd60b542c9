"""Reductions: several over one box in one pass, with a fixed order of accumulation.

The order is that of :mod:`glowtrain.backends.cpu.order.nest`. Partial results are accumulators: for each lane of a
loop around them, or the lanes of a few vectors, which are combined half with half at the end. Where there are too many
for the registers they lie on the stack.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from glowtrain.backends.cpu.loop_nest.expressions import LlvmExpressions, reached
from glowtrain.backends.cpu.loop_nest.partial_results import PartialResults
from glowtrain.backends.cpu.loop_nest.scope import Context
from glowtrain.backends.cpu.order.analysis import reductions
from glowtrain.backends.cpu.order.nest import PARTIALS, UNROLLED, ReductionOrder, reduction_order
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.text import LlvmFunction, Loop
from glowtrain.backends.llvm.values import LlvmValue, first_lanes
from glowtrain.backends.target import Target
from glowtrain.loops import Apply, Buffer, Expr, Index, Let, Reduce, Ref, Statement, substitute
from glowtrain.types import DType, boolean


class Reducing(LlvmExpressions):
    """Expressions that may hold reductions. ``lane``: the loop around them that vectors of the reference size would run
    along, whether or not this target has any.
    """

    def __init__(
        self, f: LlvmFunction, target: Target, pointers: dict[Buffer, LlvmValue], written: Iterable[Buffer]
    ) -> None:
        super().__init__(f, target, pointers, written)
        self.lane: Index | None = None

    @contextmanager
    def in_lane(self, lane: Index | None) -> Iterator[None]:
        """Write what a loop along the lanes has inside, or with ``None`` what there is none around."""
        self.lane, before = lane, self.lane
        yield
        self.lane = before

    def reduce(self, group: Sequence[Reduce]) -> list[LlvmValue]:
        job = _Job.of(self, group)
        trips = math.prod(index.extent for index in job.indices)
        if trips == 0:
            return [scalar.constant(identity(r.op, r.dtype), r.dtype.name, 1) for r in group]
        self.hoist(job.statements)
        if trips == 1 or (trips <= UNROLLED and job.order.partials == 1):
            return job.unrolled()
        if not job.order.lanes:
            return job.looped(self.context.width)
        with self.in_lane(job.last):
            return job.looped(self.context.width) if self.context.index is not None else job.along_lanes()

    def hoist(self, body: Sequence[Statement]) -> None:
        self.reduce_together(list(reductions(list(reached(body)))))
        super().hoist(body)

    def reduce_together(self, reductions_here: Sequence[Reduce]) -> None:
        """Compute those reductions that can be computed here, equal boxes in one pass, and remember them."""
        ready = [reduction for reduction in dict.fromkeys(reductions_here) if self._ready(reduction)]
        inner = {reduction: self._inner(reduction) for reduction in ready}
        groups: dict[tuple[ReductionOrder, tuple[int, ...]], list[Reduce]] = {}
        for reduction in ready:
            if not inner[reduction]:
                key = reduction_order(reduction, self.lane, self.free), tuple(i.extent for i in reduction.indices)
                groups.setdefault(key, []).append(reduction)
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


@dataclass(frozen=True)
class _Pass:
    """The pass ``number`` of so many ``passes``, for ``together`` accumulators: elements ``passes`` apart, from
    ``number`` on. ``left``: those of them that are left at the end, where not each accumulator has one more.
    """

    number: LlvmValue
    together: int
    passes: int
    left: int


@dataclass
class _Job:
    """Reductions over one box in one order: the bodies are in terms of the first one's indices."""

    e: Reducing
    group: Sequence[Reduce]
    indices: tuple[Index, ...]
    bodies: list[Expr]
    order: ReductionOrder

    @staticmethod
    def of(e: Reducing, group: Sequence[Reduce]) -> _Job:
        indices = group[0].indices
        bodies = [group[0].body]
        bodies += [substitute(r.body, dict(zip(r.indices, indices, strict=True))) for r in group[1:]]
        return _Job(e, group, indices, bodies, reduction_order(group[0], e.lane, e.free))

    @property
    def last(self) -> Index:
        """The index that partial results divide."""
        return self.indices[self.order.axes[-1]]

    @property
    def outer(self) -> list[Index]:
        """The loops around it."""
        return [self.indices[axis] for axis in self.order.axes[:-1]]

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
        fused = dtype == "f32" if reduction.partials else dtype in ("f32", "f64") and e.target.fused
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

    def looped(self, width: int) -> list[LlvmValue]:
        """Loops over the box, for each lane of a loop around it or for a single result."""
        count = self._used(1)
        if self._held(count):
            return self._combined(self._nest(self.outer, self.identities(width) * count, count, width, 1), count)
        return self._in_passes(count, width)

    def along_lanes(self) -> list[LlvmValue]:
        """The last index runs along vector lanes, as many as there are; the others in loops around it."""
        width = min(lane_width(self.e, [r.dtype for r in self.group]), self.order.partials)
        if width == 1:
            return self.looped(1)
        count = self._used(width)
        if self._held(count):
            sums = self._nest(self.outer, self.identities(width) * count, count, width, width)
            values = self._combined(sums, count)
        else:
            values = self._on_stack(count, width)
        return [self._horizontal(r, v) for r, v in zip(self.group, values, strict=True)]

    def _used(self, stride: int) -> int:
        """Vectors of partial results. Those that no element goes into would change nothing, and are left out: as many
        are left as are combined half with half.
        """
        vectors = -(-self.last.extent // stride)
        return min(self.order.partials // stride, 1 << (vectors - 1).bit_length())

    def _held(self, count: int) -> bool:
        """Whether so many vectors for each reduction are kept in registers, and the steps written out."""
        return count <= PARTIALS or count * len(self.group) <= self.e.target.vector_registers // 2

    def _in_passes(self, count: int, width: int) -> list[LlvmValue]:
        """The same for more accumulators than there are registers: one pass after another over the elements takes those
        that are combined with each other first, and leaves one result of them.
        """
        e, together = self.e, PARTIALS if len(self.group) > 1 else 2 * PARTIALS
        passes = count // together
        memory = PartialResults(e, self.identities(width), passes)
        further, odd = divmod(self.last.extent % count, passes)
        for begin, end, left in ((0, odd, further + 1), (odd, passes, further)):
            if begin < end:
                with e.f.loop(end, begin=begin) as loop:
                    one = _Pass(loop.index, together, passes, left)
                    sums = self._pass_nest(self.outer, self.identities(width) * together, one)
                    memory.store(loop.index, self._combined(sums, together))
        return self._combined(memory.load(e.f.index(0), passes), passes)

    def _pass_nest(self, order: Sequence[Index], sums: list[LlvmValue], one: _Pass) -> list[LlvmValue]:
        if not order:
            return self._pass_steps(sums, one)
        with self._opened(order[0], sums) as loop:
            loop.next = self._pass_nest(order[1:], loop.carried, one)
        return loop.results

    def _pass_steps(self, sums: list[LlvmValue], one: _Pass) -> list[LlvmValue]:
        """Trips that have an element for each accumulator of the pass; then those that are left."""
        e, n, every = self.e, len(self.group), one.together * one.passes
        whole = self.last.extent // every * every
        if whole == every:
            sums = self._trip(self.last, sums, one.number, one.together, 1, one.passes)
        elif whole:
            with e.f.loop(whole, sums, step=every) as loop:
                start = e.sum(loop.index, one.number)
                loop.next = self._trip(self.last, loop.carried, start, one.together, 1, one.passes)
            sums = loop.results
        if not one.left:
            return sums
        start, mine = e.sum(e.f.index(whole), one.number), one.left * n
        return [*self._trip(self.last, sums[:mine], start, one.left, 1, one.passes), *sums[mine:]]

    def _on_stack(self, count: int, width: int) -> list[LlvmValue]:
        """The same with vectors of accumulators on the stack: several at a time, in loops."""
        memory = PartialResults(self.e, self.identities(width), count)
        if self.outer or self.last.extent < width * count:
            memory.clear()
        self._stack_nest(self.outer, memory, width)
        return self._combined(memory.folded(self._both, PARTIALS), PARTIALS)

    def _stack_nest(self, order: Sequence[Index], memory: PartialResults, stride: int) -> None:
        if not order:
            self._stack_steps(memory, stride)
            return
        with self._opened(order[0]):
            self._stack_nest(order[1:], memory, stride)

    def _stack_steps(self, memory: PartialResults, stride: int) -> None:
        """Rounds over all accumulators, the first of them from nothing; then over those for which there are elements
        left.
        """
        e, index, n = self.e, self.last, len(self.group)
        every = stride * memory.count
        whole = index.extent // every * every
        begin = 0 if self.outer else every
        if begin and whole:
            self._round(memory, e.f.index(0), stride, [*memory.identities] * PARTIALS)
        if begin < whole:
            with e.f.loop(whole, begin=begin, step=every) as trips:
                self._round(memory, trips.index, stride)
        vectors, rest = divmod(index.extent - whole, stride)
        if vectors:
            with e.f.loop(vectors) as loop:
                sums = memory.load(loop.index, 1)
                start = e.sum(e.f.index(whole), e.times(loop.index, stride))
                memory.store(loop.index, self._trip(index, sums, start, 1, stride))
        if rest:
            sums = memory.load(e.f.index(vectors), 1)
            memory.store(e.f.index(vectors), self._rest(index, sums[:n], whole + vectors * stride, stride, rest))

    def _round(
        self, memory: PartialResults, first: LlvmValue, stride: int, begun: list[LlvmValue] | None = None
    ) -> None:
        """A step for every accumulator, from what it holds or from what they all begin with."""
        e = self.e
        with e.f.loop(memory.count, step=PARTIALS) as loop:
            sums = begun or memory.load(loop.index, PARTIALS)
            start = e.sum(first, e.times(loop.index, stride))
            memory.store(loop.index, self._trip(self.last, sums, start, PARTIALS, stride))

    @contextmanager
    def _opened(self, index: Index, sums: Sequence[LlvmValue] = ()) -> Iterator[Loop]:
        """A loop over one of the indices."""
        e = self.e
        with e.f.loop(index.extent, sums) as loop, e.scopes.inner():
            e.bind(index, loop.index)
            e.hoist(self.statements)
            yield loop

    def _combined(self, sums: list[LlvmValue], count: int) -> list[LlvmValue]:
        """Partial accumulators combined half with half."""
        n = len(self.group)
        parts = [sums[k * n : (k + 1) * n] for k in range(count)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._both(x, y) for x, y in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    def _both(self, left: Sequence[LlvmValue], right: Sequence[LlvmValue]) -> list[LlvmValue]:
        """One partial result of each reduction, combined with another one."""
        f, target = self.e.f, self.e.target
        triples = zip(self.group, left, right, strict=True)
        return [scalar.apply(f, r.op, [a, b], r.dtype.name, target) for r, a, b in triples]

    def _horizontal(self, reduction: Reduce, value: LlvmValue) -> LlvmValue:
        """The lanes of a vector combined, halves with halves."""
        f = self.e.f
        while value.width > 1:
            half = value.width // 2
            halves = [f.part(value, start, half) for start in (0, half)]
            value = scalar.apply(f, reduction.op, halves, reduction.dtype.name, self.e.target)
        return value

    def _nest(
        self, order: Sequence[Index], sums: list[LlvmValue], count: int, width: int, stride: int
    ) -> list[LlvmValue]:
        if not order:
            return self._steps(sums, count, width, stride)
        with self._opened(order[0], sums) as loop:
            loop.next = self._nest(order[1:], loop.carried, count, width, stride)
        return loop.results

    def _steps(self, sums: list[LlvmValue], count: int, width: int, stride: int) -> list[LlvmValue]:
        """Steps of ``stride`` along the last index, ``count`` of them a trip; then what is left."""
        e, index, n = self.e, self.last, len(self.group)
        step = stride * count
        whole = index.extent // step * step
        if whole == step:
            sums = self._trip(index, sums, e.f.index(0), count, stride)
        elif whole:
            with e.f.loop(whole, sums, step=step) as loop:
                loop.next = self._trip(index, loop.carried, loop.index, count, stride)
            sums = loop.results
        vectors, rest = divmod(index.extent - whole, stride)
        if vectors:
            sums = [
                *self._trip(index, sums[: vectors * n], e.f.index(whole), vectors, stride),
                *sums[vectors * n :],
            ]
        if rest:
            mine = slice(vectors * n, (vectors + 1) * n)
            sums[mine] = self._rest(index, sums[mine], whole + vectors * stride, width, rest)
        return sums

    def _rest(self, lane: Index, sums: list[LlvmValue], start: int, width: int, rest: int) -> list[LlvmValue]:
        """The last elements: a masked vector, or one by one where masks are expensive."""
        tail = self._masked_rest if self.e.target.masked else self._scalar_rest
        return tail(lane, sums, start, width, rest)

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

    def _trip(
        self, index: Index, sums: Sequence[LlvmValue], start: LlvmValue, count: int, stride: int, apart: int = 0
    ) -> list[LlvmValue]:
        """``count`` steps, each for accumulators of its own; ``apart`` elements lie between two, or ``stride``."""
        e, n = self.e, len(self.group)
        result: list[LlvmValue] = []
        for k in range(count):
            context = Context(index, stride) if stride > 1 else e.context
            with e.along(context):
                at = e.sum(start, e.f.index(k * (apart or stride)))
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
