"""Loads, stores and shuffles of vectors of which all, some or strided lanes exist."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glowtrain.backends.llvm.formats import REGISTER, SIZE
from glowtrain.backends.llvm.text import LlvmFunction, Text, lane_mask, vector


@dataclass(frozen=True)
class Lanes:
    """Writes vector instructions for ``width`` lanes of one scalar type (``size`` bytes each) into ``f``."""

    f: LlvmFunction
    scalar: str
    size: int
    width: int

    @property
    def type(self) -> str:
        return vector(self.scalar, self.width)

    @property
    def suffix(self) -> str:
        """The suffix of intrinsics on this type, e.g. ``v8f32``."""
        kind = f"{'f' if self.floats else 'i'}{8 * self.size}"
        return f"v{self.width}{kind}" if self.width > 1 else kind

    @property
    def floats(self) -> bool:
        return self.scalar in ("float", "double")

    @property
    def truth(self) -> str:
        """The type of a comparison of such vectors."""
        return vector("i1", self.width)

    @property
    def zero(self) -> Text:
        return "zeroinitializer" if self.width > 1 else "0.0" if self.floats else "0"

    def shift(self, pointer: Text, offset: int | Text) -> Text:
        """``pointer`` moved by elements; it may pass outside the buffer (a clipped index), so not ``inbounds``."""
        if offset == 0:
            return pointer
        return self.f.value(f"getelementptr {self.scalar}, ptr {pointer}, i64 {offset}")

    def of(self, dtype: str) -> Lanes:
        """As many lanes of an element type."""
        return Lanes(self.f, REGISTER[dtype], SIZE[dtype], self.width)

    def widened(self, value: Text, lanes: Lanes, *, signed: bool) -> Text:
        """A value of ``lanes``, in this type."""
        if lanes.scalar == self.scalar:
            return value
        return self.f.value(f"{'sext' if signed else 'zext'} {lanes.type} {value} to {self.type}")

    def mask(self, count: int) -> Text:
        """The constant mask of the first ``count`` lanes."""
        return lane_mask(self.width, count)

    def kept(self, value: Text, count: int) -> Text:
        """``value`` with 0 in the lanes from ``count`` on."""
        mask = f"<{self.width} x i1> {self.mask(count)}"
        return self.f.value(f"select {mask}, {self.type} {value}, {self.type} {self.zero}")

    def load(self, pointer: Text, lane: int, count: int, mask: Text | None = None) -> Text:
        """Load lanes ``pointer[lane * l]``; lanes from ``count`` on, or where ``mask`` is off, are 0 and not touched.

        ``lane`` 0 gives one element in all lanes and takes no mask.
        """
        if lane == 0 or self.width == 1:
            return self.f.splat(self.f.value(f"load {self.scalar}, ptr {pointer}"), self.scalar, self.width)
        if abs(lane) != 1:
            return self._gather(pointer, lane, count, mask)
        if lane == -1:
            mask = self._reversed(mask or self.mask(count), "i1") if mask or count < self.width else None
            return self._reversed(self._contiguous(self.shift(pointer, 1 - self.width), mask), self.scalar)
        if mask is None and count < self.width:
            mask = self.mask(count)
        return self._contiguous(pointer, mask)

    def _contiguous(self, pointer: Text, mask: Text | None) -> Text:
        if mask is None:
            return self.f.value(f"load {self.type}, ptr {pointer}, align {self.size}")
        arguments = f"ptr align {self.size} {pointer}, <{self.width} x i1> {mask}, {self.type} {self.zero}"
        return self.f.value(f"call {self.type} @llvm.masked.load.{self.suffix}.p0({arguments})")

    def _reversed(self, value: Text, scalar: str) -> Text:
        order = ", ".join(f"i32 {lane}" for lane in reversed(range(self.width)))
        kind = f"<{self.width} x {scalar}>"
        return self.f.value(f"shufflevector {kind} {value}, {kind} poison, <{self.width} x i32> <{order}>")

    def _gather(self, pointer: Text, lane: int, count: int, mask: Text | None) -> Text:
        value = self.zero
        for at in range(count):
            place = self.shift(pointer, lane * at)
            if mask is not None:
                value = self._gather_one(value, place, at, mask)
                continue
            one = self.f.value(f"load {self.scalar}, ptr {place}")
            value = self.insert(value, one, at)
        return value

    def _gather_one(self, value: Text, place: Text, at: int, mask: Text) -> Text:
        on = self.f.value(f"extractelement <{self.width} x i1> {mask}, i64 {at}")
        load, done, before = self.f.label("lane"), self.f.label("next"), self.f.block
        self.f.line(f"br i1 {on}, label %{load}, label %{done}")
        self.f.start(load)
        one = self.insert(value, self.f.value(f"load {self.scalar}, ptr {place}"), at)
        self.f.branch(done)
        self.f.start(done)
        return self.f.value(f"phi {self.type} [ {value}, %{before} ], [ {one}, %{load} ]")

    def insert(self, value: Text, one: Text, at: int) -> Text:
        return self.f.value(f"insertelement {self.type} {value}, {self.scalar} {one}, i64 {at}")

    def store(self, value: Text, pointer: Text, count: int) -> None:
        """Store the first ``count`` lanes one after another; in pieces of powers of two if some are missing."""
        at = 0
        while at < min(count, self.width):
            piece = 1 << ((count - at).bit_length() - 1)
            part = value if piece == self.width else self.part(value, at, piece)
            place = self.shift(pointer, at)
            self.f.line(f"store {vector(self.scalar, piece)} {part}, ptr {place}, align {self.size}")
            at += piece

    def part(self, value: Text, at: int, count: int) -> Text:
        """Lanes ``at`` to ``at + count`` of a vector (a scalar for one)."""
        if self.width == 1:
            return value
        if count == 1:
            return self.f.value(f"extractelement {self.type} {value}, i64 {at}")
        order = ", ".join(f"i32 {lane}" for lane in range(at, at + count))
        return self.f.value(f"shufflevector {self.type} {value}, {self.type} poison, <{count} x i32> <{order}>")

    def shuffle(self, left: Text, right: Text, order: list[int]) -> Text:
        indices = ", ".join(f"i32 {lane}" for lane in order)
        return self.f.value(f"shufflevector {self.type} {left}, {self.type} {right}, <{self.width} x i32> <{indices}>")

    def transpose(self, rows: list[Text]) -> list[Text]:
        """The transpose of ``width`` vectors: rounds of two-operand shuffles that exchange ever larger blocks."""
        span = 1
        while span < self.width:
            low = [lane if not lane & span else self.width + (lane ^ span) for lane in range(self.width)]
            high = [lane | span if not lane & span else self.width + lane for lane in range(self.width)]
            result = list(rows)
            for row in range(self.width):
                if not row & span:
                    result[row] = self.shuffle(rows[row], rows[row | span], low)
                    result[row | span] = self.shuffle(rows[row], rows[row | span], high)
            rows, span = result, span * 2
        return rows

    def total(self, value: Text) -> Text:
        """The sum of all lanes, halves first: a fixed order."""
        whole = self
        while whole.width > 1:
            half = replace(whole, width=whole.width // 2)
            value = half.add(whole.part(value, 0, half.width), whole.part(value, half.width, half.width))
            whole = half
        return value

    def add(self, a: Text, b: Text) -> Text:
        """``a + b``; integers wrap around."""
        return self.f.value(f"{'fadd' if self.floats else 'add'} {self.type} {a}, {b}")

    def multiply_add(self, a: Text, b: Text, c: Text, fused: bool) -> Text:
        """``a * b + c``, of floats rounded once where the machine can."""
        if fused and self.floats:
            return self.f.value(
                f"call {self.type} @llvm.fma.{self.suffix}({self.type} {a}, {self.type} {b}, {self.type} {c})"
            )
        return self.add(self.f.value(f"{'fmul' if self.floats else 'mul'} {self.type} {a}, {b}"), c)
