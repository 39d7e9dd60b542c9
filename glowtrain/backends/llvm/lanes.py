"""The one vocabulary of vectors: constants, arithmetic, loads, stores and shuffles of so many lanes of one type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, Number, first_lanes, integer, number, vector, zero

STRIP_BITS = 128


@dataclass(frozen=True)
class Lanes:
    """Writes vector instructions for lanes of one scalar type into ``f``; width 1 is the scalar itself.

    Operands may be of other types where that makes sense (the bits of floats, for example): a result's type follows
    from them, and what does not go together raises :class:`CodegenError`.
    """

    f: LlvmFunction
    type: LlvmType

    @property
    def width(self) -> int:
        return self.type.width

    def of(self, scalar: str) -> Lanes:
        """As many lanes of another scalar type."""
        return Lanes(self.f, self.type.of(scalar))

    def wide(self, width: int) -> Lanes:
        """Another number of lanes of this type."""
        return Lanes(self.f, vector(self.type.scalar, width))

    # -- constants

    @property
    def zero(self) -> LlvmValue:
        return zero(self.type)

    def number(self, value: float) -> LlvmValue:
        """A float in all lanes."""
        return number(value, self.type)

    def mask(self, count: int) -> LlvmValue:
        """The constant mask of the first ``count`` lanes."""
        return first_lanes(self.width, count)

    # -- arithmetic

    def add(self, a: LlvmValue, b: Number) -> LlvmValue:
        """``a + b``; integers wrap around."""
        return self.f.op("fadd" if a.type.floats else "add", a, b)

    def sub(self, a: LlvmValue, b: Number) -> LlvmValue:
        return self.f.op("fsub" if a.type.floats else "sub", a, b)

    def mul(self, a: LlvmValue, b: Number) -> LlvmValue:
        return self.f.op("fmul" if a.type.floats else "mul", a, b)

    def total(self, value: LlvmValue) -> LlvmValue:
        """The sum of all lanes, halves first: a fixed order."""
        while value.width > 1:
            half = value.width // 2
            value = self.add(self.f.part(value, 0, half), self.f.part(value, half, half))
        return value

    # -- bits, comparisons, choices

    def both(self, a: LlvmValue, b: Number) -> LlvmValue:
        return self.f.op("and", a, b)

    def either(self, a: LlvmValue, b: Number) -> LlvmValue:
        return self.f.op("or", a, b)

    def compare(self, predicate: str, a: LlvmValue, b: Number) -> LlvmValue:
        return self.f.compare(predicate, a, b)

    def select(self, condition: LlvmValue, a: Number, b: Number) -> LlvmValue:
        return self.f.select(condition, a, b)

    def first_lanes(self, value: LlvmValue, count: int) -> LlvmValue:
        """``value`` with 0 in the lanes from ``count`` on."""
        return self.f.select(self.mask(count), value, self.zero)

    def widened(self, value: LlvmValue, *, signed: bool) -> LlvmValue:
        """Integers as lanes of this type that hold them exactly; what has this type already stays as it is."""
        if value.type.scalar == self.type.scalar or not self.type.floats:
            return self.f.widened(value, self.type.scalar, signed=signed)
        return self.f.convert("sitofp", self.f.widened(value, "i32", signed=signed), self.type.scalar)

    # -- memory

    def shift(self, pointer: LlvmValue, offset: Number) -> LlvmValue:
        """``pointer`` moved by elements; it may pass outside the buffer (a clipped index), so not ``inbounds``."""
        return self.f.shift(pointer, offset, self.type.scalar)

    def load(self, pointer: LlvmValue, lane: int, count: int, mask: LlvmValue | None = None) -> LlvmValue:
        """Load lanes ``pointer[lane * l]``; lanes from ``count`` on, or where ``mask`` is off, are 0 and not touched.

        ``lane`` 0 gives one element in all lanes and takes no mask.
        """
        type_, width = self.type, self.type.width
        if width == 1:
            return self.f.load(type_, pointer)
        if lane == 0:
            return self.f.load_splat(type_, pointer)
        if abs(lane) != 1:
            return self._gather(pointer, lane, count, mask)
        if mask is None and count < width:
            mask = self.mask(count)
        if lane == 1:
            return self.f.load(type_, pointer, type_.size, mask)
        mask = None if mask is None else self._reversed(mask)
        return self._reversed(self.f.load(type_, self.shift(pointer, 1 - width), type_.size, mask))

    def _reversed(self, value: LlvmValue) -> LlvmValue:
        return self.f.shuffle(value, None, reversed(range(self.width)))

    def _gather(self, pointer: LlvmValue, lane: int, count: int, mask: LlvmValue | None) -> LlvmValue:
        value = self.zero
        for at in range(count):
            place = self.shift(pointer, lane * at)
            if mask is None:
                value = self.f.insert(value, self.f.load(self.type.one, place), at)
            else:
                value = self._gather_one(value, place, at, mask)
        return value

    def _gather_one(self, value: LlvmValue, place: LlvmValue, at: int, mask: LlvmValue) -> LlvmValue:
        on = self.f.extract(mask, at)
        load, done, before = self.f.label("lane"), self.f.label("next"), self.f.block
        self.f.branch_if(on, load, done)
        self.f.start(load)
        one = self.f.insert(value, self.f.load(self.type.one, place), at)
        self.f.branch(done)
        self.f.start(done)
        return self.f.phi(value, before, one, load)

    def store(self, value: LlvmValue, pointer: LlvmValue, count: int) -> None:
        """Store the first ``count`` lanes one after another; in pieces of powers of two if some are missing."""
        if value.type is not self.type:
            raise self.f.mismatch(f"store as {self.type}", value)
        at = 0
        while at < min(count, self.width):
            piece = 1 << ((count - at).bit_length() - 1)
            part = self.f.part(value, at, piece)
            self.f.store(part, self.shift(pointer, at), self.type.size)
            at += piece

    # -- shuffles

    @property
    def strip(self) -> int:
        """Lanes in 128 bits, within which shuffles cost least on every processor."""
        return max(min(self.width, STRIP_BITS // self.type.bits), 1)

    def joined_strips(self, strips: Sequence[LlvmValue]) -> list[LlvmValue]:
        """Vectors of the strips of ``width`` rows: the first has strips 0, n, 2 n, ..., where n is a strip's lanes."""
        return [self._joined(strips[at :: self.strip]) for at in range(self.strip)]

    def _joined(self, parts: Sequence[LlvmValue]) -> LlvmValue:
        while len(parts) > 1:
            parts = [self.f.joined(low, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def transpose_strips(self, rows: Sequence[LlvmValue]) -> list[LlvmValue]:
        """The transposes of all strips of as many vectors as a strip has lanes, by interleaving halves."""
        half, rows = self.strip // 2, list(rows)
        starts = range(0, self.width, self.strip)
        low = [start + at + side for start in starts for at in range(half) for side in (0, self.width)]
        high = [lane + half for lane in low]
        for _ in range(self.strip.bit_length() - 1):
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [self.f.shuffle(*pair, order) for pair in pairs for order in (low, high)]
        return rows

    def transpose(self, rows: Sequence[LlvmValue]) -> list[LlvmValue]:
        """The transpose of ``width`` vectors: rounds of two-operand shuffles that exchange ever larger blocks."""
        span, rows = 1, list(rows)
        while span < self.width:
            low = [lane if not lane & span else self.width + (lane ^ span) for lane in range(self.width)]
            high = [lane | span if not lane & span else self.width + lane for lane in range(self.width)]
            result = list(rows)
            for row in range(self.width):
                if not row & span:
                    result[row] = self.f.shuffle(rows[row], rows[row | span], low)
                    result[row | span] = self.f.shuffle(rows[row], rows[row | span], high)
            rows, span = result, span * 2
        return rows


@dataclass(frozen=True)
class IntegerLanes(Lanes):
    """Lanes of integers, whose sign LLVM's types do not tell; ``widest`` are those that the processor divides."""

    signed: bool
    widest: int = 64

    @property
    def smallest(self) -> int:
        """The smallest signed integer of the size."""
        return -(1 << (self.type.bits - 1))

    def constant(self, value: int) -> LlvmValue:
        return integer(value, self.type)
