"""The innermost function of a contraction whose sums stay in registers that hold matrices."""

from __future__ import annotations

from itertools import accumulate, product

from glowtrain.backends.cpu.contraction.finish import TileKernel
from glowtrain.backends.cpu.contraction.matrices import unit
from glowtrain.backends.cpu.contraction.matrices.block import MatrixBlock, begins
from glowtrain.backends.cpu.contraction.tile import Cursor
from glowtrain.backends.llvm.values import LlvmValue, pointer

MOST_WRITTEN = 4
"""Steps of a sum that are written one after another; more go into a loop."""


class MatrixMicro(TileKernel):
    """Writes one variant of the kernel of a plan: the sums, which go to memory, and what becomes of them there."""

    def text(self) -> str:
        """The whole function."""
        assert self.plan.block is not None
        self.block: MatrixBlock = self.plan.block
        self._fetch(self._cache_lines())
        for row, column in self._sums:
            unit.clear(self.f, self.block.sums(row, column))
        self._reduce(0, Cursor(pointer("%a"), pointer("%b"), {}))
        if self._plain:
            self._stored()
        else:
            self._finish_spilled(self._spilled())
        return self.f.finish()

    @property
    def _plain(self) -> bool:
        """Whether the sums are the results, and all of them are wanted."""
        whole = self.variant.lanes == self.tile.vectors * self.lanes.width and not any(self.variant.done)
        return whole and self.epilogue is None and not self.whole

    def _stored(self) -> None:
        """The sums in C."""
        stride = self.variant.c.strides[self.plan.tile[-1][0]] * self.lanes.type.size
        for at, column in self._sums:
            offset = self.tile.points[self._first[at]].c + column * self.variant.c.step
            unit.store(self.f, self.block.sums(at, column), self.lanes.shift(pointer("%c"), offset), stride)

    def _reduce(self, depth: int, cursor: Cursor) -> None:
        """All trips of the reduction loops from ``depth`` on."""
        loop = self.plan.reductions[depth]
        if depth == len(self.plan.reductions) - 1:
            self._words(loop, cursor)
            return
        with self.f.loop(self.tile.extents[loop], [cursor.a, cursor.b], hint="sum") as counted:
            here = Cursor(counted.carried[0], counted.carried[1], {})
            self._reduce(depth + 1, here)
            after = self._shifted(here, self.variant.a.strides[loop], self.variant.b.strides[loop])
            counted.next = [after.a, after.b]

    def _words(self, loop: int, cursor: Cursor) -> None:
        """The innermost sum, step by step; the last step may begin before the one before it ends."""
        starts = begins(self.tile.extents[loop], self.block.step)
        regular = sum(start == at * self.block.step for at, start in enumerate(starts))
        if regular > MOST_WRITTEN:
            with self.f.loop(regular, [cursor.a, cursor.b], hint="words") as counted:
                here = Cursor(counted.carried[0], counted.carried[1], {})
                self._step(here)
                after = self._at(here, self.block.step, 1)
                counted.next = [after.a, after.b]
        for at, start in enumerate(starts):
            if regular <= MOST_WRITTEN or at >= regular:
                self._step(self._at(cursor, start, at))

    def _at(self, cursor: Cursor, start: int, step: int) -> Cursor:
        """Moved by so many elements of A, and steps of B."""
        return self._shifted(cursor, start, step * self.block.step * self.lanes.width)

    def _shifted(self, cursor: Cursor, a: int, b: int) -> Cursor:
        return Cursor(self.of["a"].shift(cursor.a, a), self.of["b"].shift(cursor.b, b), {})

    def _step(self, cursor: Cursor) -> None:
        """The products of every matrix of A with every one of B."""
        counts = {"a": len(self.block.rows), "b": self.tile.vectors}
        stationary, dot = self.block.stationary, self.plan.problem.dot
        alternating = "b" if stationary == "a" else "a"
        assert dot is not None
        for at in range(counts[stationary]):
            self._load(stationary, at, cursor)
        for turn in range(counts[alternating]):
            self._load(alternating, turn, cursor)
            for at in range(counts[stationary]):
                row, column = (at, turn) if stationary == "a" else (turn, at)
                a, b = self.block.register("a", row), self.block.register("b", column)
                unit.multiply(self.f, dot, self.block.sums(row, column), a, b)

    def _load(self, operand: str, at: int, cursor: Cursor) -> None:
        """Matrix number ``at`` of an operand."""
        register = self.block.register(operand, at)
        if operand == "a":
            point = self.tile.points[self._first[at]]
            unit.load(self.f, register, self.of["a"].shift(cursor.a, point.a), self._row_stride)
        else:
            address = self.of["b"].shift(cursor.b, at * self.variant.b.step)
            unit.load(self.f, register, address, self.lanes.width * unit.WORD)

    @property
    def _sums(self) -> list[tuple[int, int]]:
        """The matrices of A and of B that are multiplied."""
        return list(product(range(len(self.block.rows)), range(self.tile.vectors)))

    @property
    def _first(self) -> list[int]:
        """The number of the point that each matrix of rows begins with."""
        return list(accumulate(self.block.rows, initial=0))

    @property
    def _row_stride(self) -> int:
        return self.variant.a.strides[self.plan.tile[-1][0]]

    def _spilled(self) -> LlvmValue:
        """All sums in memory, point by point."""
        row, vectors = self.lanes.width * self.lanes.type.size, self.tile.vectors
        memory = self._reserve(len(self.tile.points) * vectors, self.lanes)
        for at, column in self._sums:
            address = self.lanes.shift(memory, (self._first[at] * vectors + column) * self.lanes.width)
            unit.store(self.f, self.block.sums(at, column), address, vectors * row)
        return memory
