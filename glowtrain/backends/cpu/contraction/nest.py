"""Write the function around the kernels: layers of loops, packing, and tiles with what is left over at their ends."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby

from glowtrain.backends.cpu.contraction.choose import ContractionPlan, OperandView, views
from glowtrain.backends.cpu.contraction.copies.pack import (
    PackMove,
    PackSource,
    TransposeTile,
    copy,
    transpose_text,
    transposes,
)
from glowtrain.backends.cpu.contraction.copies.packing import PackingText
from glowtrain.backends.cpu.contraction.copies.prefetch import NextPanel, PrefetchRows, next_panel
from glowtrain.backends.cpu.contraction.copies.window import WindowText
from glowtrain.backends.cpu.contraction.cut import cut
from glowtrain.backends.cpu.contraction.dot_product import Prepared, outer_loops, packing, panels
from glowtrain.backends.cpu.contraction.kernel import Micro
from glowtrain.backends.cpu.contraction.levels import Level, balanced, pattern
from glowtrain.backends.cpu.contraction.matrices import unit
from glowtrain.backends.cpu.contraction.matrices.kernel import MatrixMicro
from glowtrain.backends.cpu.contraction.tile import Pattern, Variant, needed_coordinates
from glowtrain.backends.cpu.epilogue import Epilogue
from glowtrain.backends.cpu.panels import Packing
from glowtrain.backends.cpu.tasks import PARAMS, TaskRange, plain
from glowtrain.backends.llvm.formats import MEMORY
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.text import CALLER, LlvmFunction
from glowtrain.backends.llvm.values import I1, LlvmValue, Number, pointer


@dataclass(frozen=True)
class _Cursor:
    """Where the nest stands: addresses, indices of the output loops, the tasks to run of those in here, and what is
    already fixed of the kernel.
    """

    c: LlvmValue
    a: LlvmValue
    b: LlvmValue
    index: dict[int, Number]
    extents: dict[int, int]
    view_a: OperandView
    view_b: OperandView
    tasks: TaskRange
    sizes: tuple[int, ...] = ()
    patterns: tuple[tuple[Pattern, ...], ...] = ()
    done: tuple[int, ...] = ()
    lanes: int = 0
    first: LlvmValue | None = None
    last: bool = True
    following: NextPanel | None = None


class Nest:
    """Writes the function of a plan and the kernels that it calls."""

    def __init__(
        self, plan: ContractionPlan, name: str, epilogue: Epilogue | None, prepared: Prepared, linkage: str = ""
    ) -> None:
        self.plan, self.problem, self.name, self.epilogue = plan, plan.problem, name, epilogue
        self.prepared = prepared
        params = [
            ("ptr noalias", "c"),
            ("ptr noalias", "a"),
            ("ptr noalias", "b"),
            *(epilogue.params if epilogue else ()),
        ]
        pointers = [param for param in params if param[0].startswith("ptr")]
        params = [*pointers, ("ptr noalias", "workspace"), *params[len(pointers) :], *PARAMS]
        self.index_type = plan.machine.index_type
        self.f = LlvmFunction(name, params, linkage=linkage, index_type=self.index_type, attributes=CALLER)
        self.lanes = Lanes(self.f, self.problem.sums(plan.machine.width))
        self.of = {x: self.lanes.of(MEMORY[self.problem.type_of(x)]) for x in "cab"}
        self.views = views(self.problem, plan.vec, plan.machine.width)
        self.packing, self.prepacked = None, prepared.prepacked or plan.prepacked
        if prepared.dot:
            step = plan.block.step if plan.block else 0
            self.packing = packing(prepared, self.problem, plan.vec, plan.reductions, plan.machine.width, step)
            a = replace(self.views[1], padded=prepared.padded)
            self.views = (self.views[0], a, self._packed_view(self.packing))
        elif plan.prepacked:
            self.packing = panels(self.problem, plan.vec, plan.reductions, plan.machine.width)
            self.views = (*self.views[:2], self._packed_view(self.packing))
        self.coordinates = needed_coordinates(plan, epilogue)
        self.cut = cut(plan, self._copied_cycles())
        self.kernels: dict[Variant, str] = {}
        self.copies: dict[tuple[str, tuple[PackMove, ...], bool], str] = {}
        self.transpose_tiles: dict[TransposeTile, str] = {}
        self.workspace = self.reserved = 0

    def functions(self) -> dict[str, str]:
        """All functions by name, each after those that it calls."""
        extents = {i: loop.extent for i, loop in enumerate(self.problem.loops)}
        offsets = self.problem.offsets
        (a, b), prepared = self._copied_operands(), self._prepared_texts()
        c, a = self.of["c"].shift(pointer("%c"), offsets[0]), self.of["a"].shift(a, offsets[1])
        b = self._packed(b) if self.packing else self.of["b"].shift(b, offsets[2])
        tasks = TaskRange.from_parameters(self.f)
        cursor = _Cursor(c, a, b, dict.fromkeys(extents, 0), extents, self.views[1], self.views[2], tasks)
        if self.plan.block is not None:
            unit.configure(self.f, self.plan.block.shapes)
        self._level(0, cursor)
        if self.plan.block is not None:
            unit.release(self.f)
        kind = Micro if self.plan.block is None else MatrixMicro
        kernels = {name: kind(self.plan, each, name, self.epilogue).text() for each, name in self.kernels.items()}
        copies = {name: self._copy_text(name, *key) for key, name in self.copies.items()}
        types = self.lanes.type, self.index_type
        transpose_tiles = {name: transpose_text(name, each, *types) for each, name in self.transpose_tiles.items()}
        return {**transpose_tiles, **kernels, **copies, **prepared, self.name: self.f.finish()}

    # ---- operands as the kernels read them ---------------------------------------------------------------------------

    def _copied_operands(self) -> tuple[LlvmValue, LlvmValue]:
        """The operands of the problem, after the copies that it wants."""
        found: list[LlvmValue] = []
        for at, (operand, copied) in enumerate(zip("ab", self.prepared.copies, strict=True)):
            source = pointer(f"%{operand}")
            target = source if copied is None else self._reserve(-(-copied.nbytes // self.problem.size))
            if copied is not None:
                self.f.line(f"call void @{self.name}.window{at}(ptr {target}, ptr {source})")
            found.append(target)
        a, b = reversed(found) if self.prepared.turned != self.problem.swapped else found
        return a, b

    def _copied_cycles(self) -> float:
        """About what these copies take, and packing before the first level: a cycle for eight bytes."""
        packed = self.packing.nbytes if self.packing is not None and not self.prepacked else 0
        return (packed + sum(copied.nbytes for copied in self.prepared.copies if copied is not None)) / 8

    def _prepared_texts(self) -> dict[str, str]:
        """The functions that copy and pack."""
        own = 8 * self.problem.size * self.plan.machine.width, self.index_type
        copies = {f"{self.name}.window{at}": each for at, each in enumerate(self.prepared.copies)}
        texts = {name: WindowText(each, name, *own).text() for name, each in copies.items() if each is not None}
        if self.packing is not None and not self.prepacked:
            name = f"{self.name}.pack"
            texts[name] = PackingText(self.packing, name, self.index_type).text()
        return texts

    def _packed_view(self, packing: Packing) -> OperandView:
        strides = [0] * len(self.problem.loops)
        for loops, steps in (
            (outer_loops(self.problem, self.plan.vec), packing.outer_strides),
            (self.plan.reductions, packing.sum_strides),
        ):
            for loop, step in zip(loops, steps, strict=True):
                strides[loop] = step
        return OperandView(tuple(strides), 1, packing.panel, self.problem.type_of("b"), padded=True)

    def _packed(self, source: LlvmValue) -> LlvmValue:
        """The words of the first panel; packed here unless they are prepacked."""
        assert self.packing is not None
        target = source
        if not self.prepacked:
            target = self._reserve(-(-self.packing.nbytes // self.problem.size))
            self.f.line(f"call void @{self.name}.pack(ptr {target}, ptr {source})")
        return self.of["b"].shift(target, self.packing.header)

    def _level(self, depth: int, cursor: _Cursor) -> None:
        if depth == len(self.plan.levels):
            self._call(cursor)
            return
        level = self.plan.levels[depth]
        getattr(self, f"_{level.kind}")(depth, level, cursor)

    def _walk(self, depth: int, loop: int, runs: list[tuple[int, int, int, _Cursor]]) -> None:
        """For each (start, count, size, place): ``count`` times the layers inside, ``size`` steps of ``loop`` apart."""
        if depth in self.cut.each:
            self._walk_tasks(depth, loop, runs)
            return
        if self.cut.columns is not None and depth == self.cut.columns[0]:
            self._walk_columns(depth, loop, runs)
            return
        for start, count, size, cursor in runs:
            if count == 1:
                self._level(depth + 1, self._moved(cursor, loop, start))
                continue
            with self.f.loop(count, hint="tiles") as counted:
                index = self.f.op("mul nuw nsw", counted.index, size) if size > 1 else counted.index
                index = self.f.op("add nuw nsw", index, start) if start else index
                self._level(depth + 1, self._moved(cursor, loop, index))

    def _walk_tasks(self, depth: int, loop: int, runs: list[tuple[int, int, int, _Cursor]]) -> None:
        """The same for those trips that have tasks in the range."""
        each, first = self.cut.each[depth], 0
        trips = runs[0][3].tasks.trips(self.f, each)
        for start, count, size, cursor in runs:
            part = trips.between(self.f, first, first + count if cursor is not runs[-1][3] else None)
            some = self.f.compare("slt", part.begin, part.end) if len(runs) > 1 else None
            with self.f.when(some, hint="some") if some else nullcontext():
                if count == 1:
                    inner = replace(cursor, tasks=cursor.tasks.inside(self.f, first, each))
                    self._level(depth + 1, self._moved(inner, loop, start))
                else:
                    self._tasks(depth, loop, part, size, start - first * size, cursor)
            first += count

    def _tasks(self, depth: int, loop: int, trips: TaskRange, size: int, shift: int, cursor: _Cursor) -> None:
        """Some trips of a task loop; trip n is at ``n * size + shift``."""
        with self.f.loop(trips.end, begin=trips.begin, hint="tasks") as counted:
            trip = plain(self.f, counted.index)
            inner = replace(cursor, tasks=cursor.tasks.inside(self.f, trip, self.cut.each[depth]))
            index = self.f.op("mul nuw nsw", trip, size) if size > 1 else trip
            index = self.f.op("add nuw nsw", index, shift) if shift else index
            self._level(depth + 1, self._moved(inner, loop, index))

    def _walk_columns(self, depth: int, loop: int, runs: list[tuple[int, int, int, _Cursor]]) -> None:
        """The same for all trips; in each those tasks of the range that are of its columns, if there are any."""
        assert self.cut.columns is not None
        first, columns = 0, self.cut.columns[1]
        for start, count, size, cursor in runs:
            with self.f.loop(count, hint="columns") as counted:
                tasks = cursor.tasks.every(self.f, self.f.op("add nuw nsw", counted.index, first), columns)
                with self.f.when(self.f.compare("slt", tasks.begin, tasks.end), hint="some"):
                    index = self.f.op("mul nuw nsw", counted.index, size)
                    index = self.f.op("add nuw nsw", index, start)
                    self._level(depth + 1, self._moved(replace(cursor, tasks=tasks), loop, index))
            first += count

    def _moved(self, cursor: _Cursor, loop: int, by: Number) -> _Cursor:
        """Every address moved by ``by`` steps of a loop; the vector loop moves in whole vectors."""
        width = self.plan.machine.width if loop == self.plan.vec and not self.plan.dots else 1
        views = self.views[0], cursor.view_a, cursor.view_b
        c, a, b = (view.step if width > 1 else view.strides[loop] for view in views)
        addresses = zip(views, (cursor.c, cursor.a, cursor.b), (c, a, b), strict=True)
        moved_to = [self._far(view, address, by, step) for view, address, step in addresses]
        moved = replace(cursor, c=moved_to[0], a=moved_to[1], b=moved_to[2])
        index = self._times(by, width)
        before = cursor.index[loop]
        index = index if before == 0 else self.f.op("add", self.f.index(before), index)
        return replace(moved, index={**cursor.index, loop: index})

    def _times(self, value: Number, factor: int) -> Number:
        if isinstance(value, int):
            return value * factor
        return value if factor == 1 else self.f.op("mul", value, factor)

    def _far(self, view: OperandView, pointer: LlvmValue, by: Number, stride: int) -> LlvmValue:
        lanes = self.lanes.of(MEMORY[view.dtype])
        return lanes.shift(pointer, self._times(by, stride)) if stride else pointer

    # ---- kinds of layers ---------------------------------------------------------------------------------------------

    def _each(self, depth: int, level: Level, cursor: _Cursor) -> None:
        self._walk(depth, level.loop, [(0, cursor.extents[level.loop], 1, cursor)])

    def _block(self, depth: int, level: Level, cursor: _Cursor) -> None:
        extent, loop = cursor.extents[level.loop], level.loop
        full, rest = divmod(extent, level.size)
        runs = [(0, full, level.size, replace(cursor, extents={**cursor.extents, loop: level.size}))]
        if rest:
            runs.append((full * level.size, 1, rest, replace(cursor, extents={**cursor.extents, loop: rest})))
        self._walk(depth, loop, runs)

    def _columns(self, depth: int, level: Level, cursor: _Cursor) -> None:
        loop, lanes = level.loop, level.size * self.plan.machine.width
        full, rest = divmod(cursor.extents[loop], lanes)
        runs = [(0, full, level.size, replace(cursor, extents={**cursor.extents, loop: lanes}))]
        if rest:
            last = replace(cursor, extents={**cursor.extents, loop: rest})
            runs.append((full * level.size, 1, level.size, last))
        self._walk(depth, loop, runs)

    def _chunk(self, depth: int, level: Level, cursor: _Cursor) -> None:
        """Parts of a reduction; the last one is apart if something is done to the sums that it finishes."""
        extent, loop, size = cursor.extents[level.loop], level.loop, level.size
        full, rest = divmod(extent, size)
        alone = not rest and self.epilogue is not None and cursor.last
        runs = [(0, full - alone, size, False), ((full - alone) * size, 1, rest or size, True)]
        for start, count, steps, last in runs if rest or alone else [(0, full, size, True)]:
            inner = replace(cursor, extents={**cursor.extents, loop: steps}, last=last and cursor.last)
            if count == 1:
                first = (cursor.first or LlvmValue("true", I1)) if start == 0 else LlvmValue("false", I1)
                self._level(depth + 1, self._moved(replace(inner, first=first), loop, start))
            elif count:
                with self.f.loop(count, hint="chunk") as counted:
                    first = self.f.compare("eq", counted.index, 0)
                    first = first if cursor.first is None else self.f.op("and", cursor.first, first)
                    index = self._times(counted.index, steps)
                    self._level(depth + 1, self._moved(replace(inner, first=first), loop, index))

    def _inner(self, depth: int, operand: str) -> list[int]:
        """The output loops, other than the vector loop, that move an operand inside a layer."""
        fixed = {outer.loop for outer in self.plan.levels[:depth] if outer.kind == "each"}
        loops = self.problem.loops
        return [i for i in self.problem.outputs if getattr(loops[i], operand) and i not in fixed and i != self.plan.vec]

    def _reserve(self, elements: int) -> LlvmValue:
        """A place in the workspace, from a cache line on."""
        start = self.reserved
        self.reserved += -(-elements // 16) * 16
        self.workspace = max(self.workspace, self.reserved * self.problem.size)
        return self.lanes.shift(pointer("%workspace"), start)

    def _pack_b(self, depth: int, level: Level, cursor: _Cursor) -> None:
        """Copy what the layers inside read of B: vector after vector, in each the reductions, in each the lanes."""
        width, loops, given = self.plan.machine.width, self.problem.loops, cursor.view_b
        strides, step, moves = [0] * len(loops), width, []
        for i in reversed([i for i in self.plan.reductions if loops[i].b]):
            strides[i], step = step, step * cursor.extents[i]
            moves.append(PackMove(cursor.extents[i], given.strides[i], strides[i]))
        vectors, rest = divmod(cursor.lanes or cursor.extents[level.loop], width)
        apart = step
        step *= vectors + bool(rest)
        for i in self._inner(depth, "b"):
            strides[i], step = step, step * cursor.extents[i]
            moves.append(PackMove(cursor.extents[i], given.strides[i], strides[i]))
        before, target = self.reserved, self._reserve(step)
        self._copy(cursor, target, moves, vectors, rest, apart)
        view = OperandView(tuple(strides), 1, apart, self.problem.source.dtype, padded=True)
        following = next_panel(self.plan, self.of["b"], cursor.b, given, cursor.extents, vectors + bool(rest))
        self._level(depth + 1, replace(cursor, b=target, view_b=view, following=following))
        self.reserved = before

    def _pack_a(self, depth: int, level: Level, cursor: _Cursor) -> None:
        """Copy what the layers inside read of A: row after row, in each the reductions one after another."""
        loops, strides, step, moves = self.problem.loops, [0] * len(self.problem.loops), 1, []
        for i in reversed([i for i in self.plan.reductions if loops[i].a]):
            strides[i], step = step, step * cursor.extents[i]
            moves.append(PackMove(cursor.extents[i], loops[i].a, strides[i]))
        step += 16 if step * self.problem.size % 1024 == 0 else 0
        for i in self._inner(depth, "a"):
            strides[i], step = step, step * cursor.extents[i]
            moves.append(PackMove(cursor.extents[i], loops[i].a, strides[i]))
        before, target = self.reserved, self._reserve(step)
        self._copied("a", cursor.a, target, moves)
        view = OperandView(tuple(strides), 0, 0, self.problem.source.dtype)
        self._level(depth + 1, replace(cursor, a=target, view_a=view))
        self.reserved = before

    def _copy(
        self, cursor: _Cursor, target: LlvmValue, moves: list[PackMove], vectors: int, rest: int, step: int
    ) -> None:
        """Copy whole vectors of B, ``step`` apart in the copy, and what is left over."""
        source, given, width = cursor.b, cursor.view_b, self.plan.machine.width
        if vectors:
            moved = [*moves, PackMove(vectors, given.step, step), PackMove(width, given.lane, 1)]
            self._copied("b", source, target, moved)
        if rest:
            source = self.of["b"].shift(source, vectors * given.step)
            target = self.lanes.shift(target, vectors * step)
            self._copied("b", source, target, [*moves, PackMove(rest, given.lane, 1)], padded=True)

    def _copied(
        self, operand: str, source: LlvmValue, target: LlvmValue, moves: list[PackMove], *, padded: bool = False
    ) -> None:
        """Call the function that makes this copy."""
        key = self.problem.type_of(operand), tuple(moves), padded
        name = self.copies.setdefault(key, f"{self.name}.copy{len(self.copies)}")
        self.f.line(f"call void @{name}(ptr {target}, ptr {source})")

    def _copy_text(self, name: str, dtype: str, moves: tuple[PackMove, ...], padded: bool) -> str:
        attributes = CALLER if transposes(moves, self.lanes.width) else "#0"
        params = [("ptr noalias", "target"), ("ptr noalias", "source")]
        f = LlvmFunction(name, params, linkage="internal", index_type=self.index_type, attributes=attributes)
        given = PackSource(Lanes(f, self.lanes.type), dtype)
        copy(given, pointer("%source"), pointer("%target"), moves, self._transpose_tile, padded=padded)
        return f.finish()

    def _transpose_tile(self, tile: TransposeTile) -> str:
        """The name of the function that transposes such blocks."""
        return self.transpose_tiles.setdefault(tile, f"{self.name}.square{len(self.transpose_tiles)}")

    def _tile(self, depth: int, level: Level, cursor: _Cursor) -> None:
        """Tiles of equal size and equal static clips run in one loop."""
        if self.plan.block is not None:
            self._walk(depth, level.loop, self._overlapping(level, cursor))
            return
        tiles = balanced(cursor.extents[level.loop], level.size)
        shapes = [(size, self._patterns(level.loop, start, size)) for start, size in tiles]
        runs, at = [], 0
        for (size, patterns), same in groupby(shapes):
            count = len(list(same))
            inner = replace(cursor, sizes=(*cursor.sizes, size), patterns=(*cursor.patterns, patterns))
            runs.append((tiles[at][0], count, size, inner))
            at += count
        self._walk(depth, level.loop, runs)

    def _overlapping(self, level: Level, cursor: _Cursor) -> list[tuple[int, int, int, _Cursor]]:
        """Tiles of one size, as registers that hold matrices have one shape: the last begins where it ends with the
        loop, and finishes those of its points that the one before it has not."""
        size, extent = level.size, cursor.extents[level.loop]
        full, rest = divmod(extent, size)

        def finishing(done: int) -> _Cursor:
            sizes, patterns = (*cursor.sizes, size), (*cursor.patterns, ((),) * size)
            return replace(cursor, sizes=sizes, patterns=patterns, done=(*cursor.done, done))

        runs = [(0, full, size, finishing(0))] if full else []
        return runs + ([(extent - size, 1, size, finishing(size - rest))] if rest else [])

    def _patterns(self, loop: int, start: int, size: int) -> tuple[Pattern, ...]:
        if not any(self.plan.kinds[clip] == "static" for clip in self.problem.clips_on(loop)):
            return ((),) * size
        return tuple(pattern(self.problem, self.plan.kinds, loop, start + i) for i in range(size))

    def _vectors(self, depth: int, level: Level, cursor: _Cursor) -> None:
        """Groups of vectors; the last one may have fewer lanes."""
        width, extent = self.plan.machine.width, cursor.extents[level.loop]
        groups = balanced(-(-extent // width), level.size)
        shapes = [(size, min(size * width, extent - start * width)) for start, size in groups]
        runs, at = [], 0
        for (size, lanes), same in groupby(shapes):
            count = len(list(same))
            runs.append((groups[at][0], count, size, replace(cursor, lanes=lanes)))
            at += count
        self._walk(depth, level.loop, runs)

    def _call(self, cursor: _Cursor) -> None:
        """Call the kernel for one tile."""
        chunked = cursor.first is not None
        start = "load" if self.problem.source.accumulate else "flag" if chunked else "zero"
        extents = tuple(cursor.extents[i] for i in self.plan.reductions)
        last = cursor.last or self.epilogue is None
        views = self.views[0], cursor.view_a, cursor.view_b
        rows, row = self._prefetched(cursor)
        variant = Variant(cursor.sizes, cursor.patterns, cursor.lanes, extents, start, last, *views, cursor.done, rows)
        name = self.kernels.setdefault(variant, f"{self.name}.tile{len(self.kernels)}")
        arguments = [f"ptr {cursor.c}", f"ptr {cursor.a}", f"ptr {cursor.b}"]
        arguments += [self.f.index(cursor.index[loop]).typed for loop in self.coordinates]
        arguments += [f"i1 {cursor.first}"] if start == "flag" else []
        arguments += [f"ptr {row}"] if rows else []
        if self.epilogue is not None and last:
            arguments += [self.f.parameter(*param).typed for param in self.epilogue.params]
        self.f.line(f"call void @{name}({', '.join(arguments)})")

    def _prefetched(self, cursor: _Cursor) -> tuple[PrefetchRows, LlvmValue] | tuple[None, None]:
        """The rows that a tile prefetches of the columns that are packed next, and the first of them."""
        if cursor.following is None:
            return None, None
        loop = self.plan.levels[-1].loop
        first, size, extent = cursor.index[loop], cursor.sizes[-1], cursor.extents[loop]
        return cursor.following.part(self.f, self.of["b"], first, size, extent)
