"""Loop nests as LLVM functions.

Of the loops around flat statements one is chosen to run along vector lanes (see
:mod:`glowtrain.backends.cpu.order.analysis`); the others are ordinary loops, those with the longest strides
outermost. A loop that holds loops is a scalar loop around them: a row program. The outermost loops of a kernel that is
one nest are its task loops (see :mod:`glowtrain.backends.cpu.tasks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from glowtrain.backends.cpu.contraction.copies.pack import TransposeTile, transpose_text
from glowtrain.backends.cpu.loop_nest.byte_packs import packs
from glowtrain.backends.cpu.loop_nest.collapse import collapse
from glowtrain.backends.cpu.loop_nest.cut import NOTHING, cut, moved, operations
from glowtrain.backends.cpu.loop_nest.recurrences import carried, recurrence
from glowtrain.backends.cpu.loop_nest.reduction import Reducing
from glowtrain.backends.cpu.loop_nest.saturation import saturation
from glowtrain.backends.cpu.loop_nest.scope import Context
from glowtrain.backends.cpu.loop_nest.statements import StatementWriter
from glowtrain.backends.cpu.loop_nest.transpose_tiles import TransposeTiles, transpose_tiles
from glowtrain.backends.cpu.order.analysis import (
    NestOperations,
    accesses,
    computed,
    expressions_of_value,
    loop_order,
    reductions,
    slope,
    vector_cost,
)
from glowtrain.backends.cpu.order.nest import best_lane, computed_types, reference_lane
from glowtrain.backends.cpu.tasks import ELSEWHERE, TaskRange, Work, plain
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.formats import MEMORY, REGISTER
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, first_lanes
from glowtrain.backends.target import Target
from glowtrain.loops import (
    Accumulate,
    Buffer,
    Cast,
    Const,
    For,
    Index,
    Let,
    Load,
    Statement,
    Store,
    address,
    statements,
    writes,
)

JAM = 4
"""Neighbouring vectors that are computed at once: around a reduction, so that cache lines are used while they are
there; for bytes, so that they are packed together.
"""
FEWEST = 4
"""Lanes of a vector at least. Few neighbours are a small vector: what follows a store of some lanes waits for it if it
reads next to these, as the next trip does that goes through a tensor in place.
"""
PLANES = range(2, 5)
"""How many planes are interleaved into one store."""


class Nests(StatementWriter):
    """Writes statements into a function. ``pointers``: addresses of buffers; ``outer``: outer indices."""

    def __init__(
        self,
        f: LlvmFunction,
        target: Target,
        pointers: dict[Buffer, LlvmValue],
        body: Sequence[Statement],
        outer: dict[Index, LlvmValue] | None = None,
    ) -> None:
        super().__init__(f, target, Reducing(f, target, pointers, writes(body)))
        self.e.free.lets |= {s.ref: s.value for s in statements(body) if isinstance(s, Let)}
        for index, value in (outer or {}).items():
            self.e.bind(index, value)
        self.tiles: dict[TransposeTile, str] = {}
        self.cut = NOTHING
        self.tasks = TaskRange.from_parameters(f)

    def write_tasks(self, body: Sequence[Statement]) -> Work:
        """All statements of a kernel, of whose tasks the range that the function is given is run."""
        if len(body) == 1 and isinstance(body[0], For):
            self._loop(body[0], whole=True)
        else:
            self.write(body)
        cycles = max(operations(body, self.target.width("f32")), moved(body) / ELSEWHERE)
        return Work(self.cut.tasks, cycles / self.cut.tasks)

    def write(self, body: Sequence[Statement]) -> None:
        """All statements, in order."""
        self.e.hoist([s for s in body if not isinstance(s, For)])
        self._statements(body)

    def _statements(self, body: Sequence[Statement]) -> None:
        """Statements in order; before each, reductions of all that can be computed now share their passes."""
        found = list(reductions([s for s in body if not isinstance(s, For)]))
        for statement in body:
            if isinstance(statement, For):
                with self.e.scopes.inner():
                    self._loop(statement)
            else:
                self.e.reduce_together(found)
                self.statement(statement)

    def _loop(self, loop: For, *, whole: bool = False) -> None:
        """A nest; ``whole``: it is the kernel, and its outermost loops are the task loops."""
        if math.prod(index.extent for index in loop.indices) == 0:
            return
        before = carried(loop)
        if before is not None:
            self._chain(loop, before)
            return
        lane = self._lane_of_recurrence(loop)
        if lane is not None:
            self._side_by_side(loop, lane, whole=whole)
            return
        if loop.serial or any(isinstance(statement, For) for statement in loop.body):
            self._cut(loop, loop.indices, whole=whole)
            self.e.hoist(loop.body)
            self._nested(loop.indices, loop.body, lambda: self.write(loop.body))
            return
        loop = collapse(loop, self.e.free)
        with self.e.in_lane(reference_lane(loop, self.e.free)):
            self._flat(loop, whole=whole)

    def _flat(self, loop: For, *, whole: bool) -> None:
        """Loops around statements that have none inside."""
        self.e.hoist(loop.body)
        width = self._width(loop.body)
        tiles = transpose_tiles(loop, width, self.e.free)
        if tiles is not None:
            self._in_transpose_tiles(loop, tiles, width, whole=whole)
            return
        lane = self._lane(loop, width)
        if lane is None:
            order = self._ordered(loop.indices, loop.body)
            self._cut(loop, order, whole=whole)
            self._nested(order, loop.body, lambda: self.write(loop.body))
            return
        width = _vector_of(lane.extent, width)
        planes = self._plane_index(loop, lane)
        others = self._ordered([index for index in loop.indices if index not in (lane, planes)], loop.body)
        self._cut(loop, others, lane, self._lane_trips(lane, loop.body, width, planes is not None), whole=whole)
        if planes is None:
            self._nested(others, loop.body, lambda: self._lanes(lane, loop.body, width))
        else:
            self._nested(others, loop.body, lambda: self._interleaved(lane, planes, loop.body, width))

    def _chain(self, loop: For, before: Load) -> None:
        """A recurrence along a loop: what a trip stores stays in a register for the next one."""
        (index,), store = loop.indices, loop.body[-1]
        assert isinstance(store, Store)
        first = self.e.full(Const(before.fill or 0, before.dtype))
        with self.f.loop(index.extent, [first], hint="chain") as trips, self.e.scopes.inner():
            self.e.bind(index, trips.index)
            self.e.scopes.set(before, trips.carried[0])
            self.write(loop.body)
            trips.next = [self.e.full(store.value)]

    def _lane_of_recurrence(self, loop: For) -> Index | None:
        """The loop to run along the lanes where each point has a recurrence: one that leads to neighbours."""
        inner = recurrence(loop)
        width = 1 if inner is None else self._width(inner.body)
        if inner is None or width == 1:
            return None
        work, free = NestOperations.of(inner.body), self.e.free
        costs = {index: vector_cost(work, index, width, free) for index in loop.indices if index.extent > 1}
        best = min(costs, key=costs.__getitem__)
        apart = [access for access in work.accesses if slope(access.offset, best, free) not in (0, 1)]
        return None if apart else best

    def _side_by_side(self, loop: For, lane: Index, *, whole: bool) -> None:
        """Recurrences in lanes: each is a chain of operations that wait for one another."""
        width = self._width(loop.body)
        others = [index for index in loop.indices if index is not lane]
        self._cut(loop, others, lane, self._lane_trips(lane, loop.body, width, False), whole=whole)
        self._nested(others, loop.body, lambda: self._lanes(lane, loop.body, width))

    def _cut(
        self, loop: For, order: Sequence[Index], lane: Index | None = None, trips: int = 1, *, whole: bool
    ) -> None:
        """Choose the task loops: of those in ``order``, and of ``trips`` along the lanes."""
        if whole:
            levels = [(index, index.extent) for index in order] + ([(lane, trips)] if lane else [])
            self.cut = cut(levels, loop, self.e.levels.keys(), self.e.free)

    def _ordered(self, indices: Sequence[Index], body: Sequence[Statement]) -> Sequence[Index]:
        """Loop order; accumulation into shared elements keeps the order that the program gives."""
        accumulates = any(isinstance(statement, Accumulate) for statement in body)
        return list(indices) if accumulates else loop_order(indices, body, self.e.free)

    def _nested(self, indices: Sequence[Index], body: Sequence[Statement], inner: Callable[[], None]) -> None:
        """Scalar loops over ``indices`` around ``inner``."""
        if not indices:
            inner()
            return
        index, rest = indices[0], indices[1:]
        if index.extent == 1:
            self.e.bind(index, self.f.index(0))
            self._nested(rest, body, inner)
            return
        tasks, each = self.tasks, self.cut.each.get(index)
        begin, end = (0, index.extent) if each is None else tasks.trips(self.f, each).bounds
        with self.f.loop(end, begin=begin) as loop, self.e.scopes.inner():
            trip = loop.index if each is None else plain(self.f, loop.index)
            self.e.bind(index, trip)
            self.tasks = tasks if each is None else tasks.inside(self.f, trip, each)
            self.e.hoist(body)
            self._nested(rest, body, inner)
        self.tasks = tasks

    # The lane loop

    def _width(self, body: Sequence[Statement]) -> int:
        """Lanes of a vector: by the widest float that is computed with (by the widest type if there is none), but at
        most four registers of indices, which are in registers wherever lanes do not lie side by side.
        """
        widths = [self.target.width(dtype.name) for dtype in computed_types(body)]
        most = 4 * self.target.width(self.f.index_type.scalar)
        return min([*widths, most]) if widths and self.target.vector_bits else 1

    def _lane(self, loop: For, width: int) -> Index | None:
        """The loop to run along the lanes, or ``None`` if reductions (or nothing) should."""
        if width == 1 or any(True for _ in reductions(loop.body)):
            return self.e.lane if width > 1 else None
        return best_lane(loop, width, self.e.free)

    def _lanes(self, lane: Index, body: Sequence[Statement], width: int) -> None:
        """Whole vectors (several at a time around reductions, and for bytes), then the rest."""
        runs = self._runs(lane, body, width)
        if lane not in self.cut.each:
            self._vectors(lane, body, 0, runs, width)
            return
        (count, size), *runs = runs
        begin, end = (self.e.times(edge, size) for edge in self.tasks.bounds)
        with self.f.loop(end, begin=begin, step=size) as loop:
            self._at(Context(lane, size), loop.index, body)
        if count * size < lane.extent:
            with self._after(count):
                self._vectors(lane, body, count * size, runs, width)

    def _runs(self, lane: Index, body: Sequence[Statement], width: int) -> list[tuple[int, int]]:
        """(count, lanes) of the vectors one after another."""
        several = self._jams(lane, body, width) or self._packs(lane, body, JAM * width)
        runs, rest = list[tuple[int, int]](), lane.extent
        for jam in (JAM, 2, 1) if several else (1,):
            count, rest = divmod(rest, width * jam)
            runs += [(count, width * jam)] if count else []
        return runs

    def _jams(self, lane: Index, body: Sequence[Statement], width: int) -> bool:
        """Whether vectors are taken several at a time around reductions. Where more elements are read or written lane
        by lane than a reduction has, they take the time, and several vectors of them would only be more code.
        """
        longest = max((math.prod(index.extent for index in found.indices) for found in reductions(body)), default=0)
        apart = (access.trips for access in accesses(body) if slope(access.offset, lane, self.e.free) not in (0, 1))
        return longest > width * sum(apart)

    def _lane_trips(self, lane: Index, body: Sequence[Statement], width: int, interleaved: bool) -> int:
        """Trips of the first loop along the lanes; what is left of them belongs to the last one."""
        if interleaved:
            return lane.extent // width
        return next((count for count, _ in self._runs(lane, body, width)), 0)

    @contextmanager
    def _after(self, trips: int) -> Iterator[None]:
        """What only the range with the last of the trips along the lanes does."""
        last = self.f.compare("eq", self.tasks.end, trips)
        with self.f.when(last, hint="last"), self.e.scopes.inner():
            yield

    def _packs(self, lane: Index, body: Sequence[Statement], width: int) -> bool:
        """Whether so many lanes become one vector of bytes, and lie side by side."""
        parts = (part for s in statements(body) for top in expressions_of_value(s) for part in computed(top))
        casts = [(part, saturation(part)) for part in parts if isinstance(part, Cast)]
        if not any(found and packs(part.dtype.name, width, found.zero, self.target) for part, found in casts):
            return False
        return all(slope(access.offset, lane, self.e.free) in (0, 1) for access in accesses(body))

    def _rest(self, lane: Index, body: Sequence[Statement], start: int, width: int) -> None:
        """What is left of the lanes' loop: less than a vector."""
        rest = lane.extent - start
        if rest and self.target.masked:
            width = _vector_of(rest, width)
            mask = first_lanes(width, rest) if rest < width else None
            self._at(Context(lane, width, mask), self.f.index(start), body)
        elif rest:
            self._scalar_rest(lane, body, start)

    def _vectors(
        self, lane: Index, body: Sequence[Statement], start: int, runs: Sequence[tuple[int, int]], width: int
    ) -> None:
        """Vectors from ``start`` on, and the rest."""
        for count, size in runs:
            if count == 1:
                self._at(Context(lane, size), self.f.index(start), body)
            else:
                with self.f.loop(start + count * size, begin=start, step=size) as loop:
                    self._at(Context(lane, size), loop.index, body)
            start += count * size
        self._rest(lane, body, start, width)

    def _at(self, context: Context, start: LlvmValue, body: Sequence[Statement]) -> None:
        with self.e.along(context):
            self.e.scopes.set(("start", context.index), start)
            self._statements(body)

    def _scalar_rest(self, lane: Index, body: Sequence[Statement], start: int) -> None:
        with self.f.loop(lane.extent, begin=start) as loop, self.e.scopes.inner():
            self.e.bind(lane, loop.index)
            self._statements(body)

    # Tiles that are transposed

    def _in_transpose_tiles(self, loop: For, tiles: TransposeTiles, width: int, *, whole: bool) -> None:
        """Tiles, then what is left along the lanes, and along the other index."""
        lane, across = tiles.lane, tiles.across
        others = self._ordered([index for index in loop.indices if index not in (lane, across)], loop.body)
        count = across.extent // width
        self._cut(loop, others, across, count, whole=whole)
        self._nested(others, loop.body, lambda: self._bands(tiles, loop.body, width, count))

    def _bands(self, tiles: TransposeTiles, body: Sequence[Statement], width: int, count: int) -> None:
        """Bands of as many trips of the other index as there are lanes, then its last trips."""
        across, cut = tiles.across, tiles.across in self.cut.each
        begin, end = self.tasks.bounds if cut else (0, count)
        with self.f.loop(end, begin=begin) as loop, self.e.scopes.inner():
            self._band(tiles, body, width, self.e.times(loop.index, width))
        if count * width < across.extent:
            last = self._after(count) if cut else nullcontext()
            with last, self.f.loop(across.extent, begin=count * width) as loop, self.e.scopes.inner():
                self.e.bind(across, loop.index)
                self._lanes(tiles.lane, body, width)

    def _band(self, tiles: TransposeTiles, body: Sequence[Statement], width: int, first: LlvmValue) -> None:
        """Tiles along the lanes, then what is left of them trip by trip."""
        lane = tiles.lane
        whole = lane.extent // width * width
        with self.f.loop(whole, step=width) as loop, self.e.along(Context(lane, width)):
            self.e.scopes.set(("start", lane), loop.index)
            self._tile(tiles, body, first)
        if whole < lane.extent:
            with self.f.loop(width) as loop, self.e.scopes.inner():
                self.e.bind(tiles.across, self.e.sum(first, loop.index))
                self._rest(lane, body, whole, width)

    def _tile(self, tiles: TransposeTiles, body: Sequence[Statement], first: LlvmValue) -> None:
        copies = tiles.copies(body)
        if copies is not None:
            for store, load in copies:
                self._transposed(tiles, store, load, first)
            return
        rows = tiles.rows(self.e, first)
        for trip in range(self.e.context.width):
            with self.e.scopes.inner():
                self.e.bind(tiles.across, self.e.sum(first, self.f.index(trip)))
                for load, vectors in rows.items():
                    self.e.scopes.set(load, vectors[trip])
                for statement in body:
                    self.statement(statement)

    def _transposed(self, tiles: TransposeTiles, store: Store, load: Load, first: LlvmValue) -> None:
        """A tile that is stored as it is: a function transposes it, which others call as well."""
        e, width, dtype = self.e, self.e.context.width, load.buffer.dtype.name
        source_offset, target_offset = e.offset_of(load), address(store.index, store.buffer.strides)
        target = e.pointer(store.buffer, tiles.corner(e, target_offset, first))
        source = e.pointer(load.buffer, tiles.corner(e, source_offset, first))
        steps = (source_offset.coefficient(tiles.lane), target_offset.coefficient(tiles.across))
        strides = ", ".join(self.f.index(step).typed for step in steps)
        tile = TransposeTile(dtype, width, width, padded=False)
        name = self.tiles.setdefault(tile, f"{self.f.name}.square{len(self.tiles)}")
        self.f.line(f"call void @{name}({target.typed}, {source.typed}, {strides})")

    def parts(self) -> dict[str, str]:
        """The functions that what was written calls, by name."""
        return {
            name: transpose_text(name, tile, scalar.register_type(tile.dtype, tile.wide), self.f.index_type)
            for tile, name in self.tiles.items()
        }

    # Planes that are stored as one

    def _plane_index(self, loop: For, lane: Index) -> Index | None:
        """The index of 2 to 4 neighbours in memory that lie between the elements of neighbouring lanes (the channels of
        an image that is stored channels last), if the body is one store; ``None`` if there is none.
        """
        *lets, store = loop.body
        plain = all(isinstance(statement, Let) for statement in lets) and not any(True for _ in reductions(loop.body))
        if not plain or not isinstance(store, Store):
            return None
        offset, dtype = address(store.index, store.buffer.strides), store.buffer.dtype.name
        step = slope(offset, lane, self.e.free)
        if step not in PLANES or MEMORY[dtype] != REGISTER[dtype]:
            return None
        return next((i for i in loop.indices if i.extent == step and slope(offset, i, self.e.free) == 1), None)

    def _interleaved(self, lane: Index, planes: Index, body: Sequence[Statement], width: int) -> None:
        """Vectors of all planes shuffled into one that is stored at once; the rest plane by plane."""
        whole = lane.extent // width * width
        cut = lane in self.cut.each
        if whole:
            begin, end = (self.e.times(edge, width) for edge in self.tasks.bounds) if cut else (0, whole)
            with self.f.loop(end, begin=begin, step=width) as loop, self.e.along(Context(lane, width)):
                self.e.scopes.set(("start", lane), loop.index)
                self._store_interleaved(lane, planes, body)
        if whole < lane.extent:
            with self._after(whole // width) if cut else nullcontext():
                self._nested([planes], body, lambda: self._rest(lane, body, whole, width))

    def _store_interleaved(self, lane: Index, planes: Index, body: Sequence[Statement]) -> None:
        *lets, store = body
        assert isinstance(store, Store)
        offset, vectors = address(store.index, store.buffer.strides), list[LlvmValue]()
        first: LlvmValue | None = None
        for plane in range(planes.extent):
            with self.e.scopes.inner():
                self.e.bind(planes, self.f.index(plane))
                for statement in lets:
                    self.statement(statement)
                vectors.append(self.e.full(store.value))
                if first is None:  # it may be in terms of names of the body
                    first = self.e.scalar_sum(offset, lane, planes)
        assert first is not None
        start = self.e.sum(first, self.e.times(self.e.start(), len(vectors)))
        pointer = self.e.pointer(store.buffer, start)
        scalar.store(self.f, self.f.interleaved(vectors), pointer, store.buffer.dtype.name, self.target)


def _vector_of(lanes: int, width: int) -> int:
    """Lanes of the smallest vector for so many; at most ``width``."""
    return min(width, max(FEWEST, 1 << (lanes - 1).bit_length()))
