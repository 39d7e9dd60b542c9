"""Arithmetic on vectors of one float format: the vocabulary in which the recipes are written.

Only operations that IEEE 754 defines exactly are used (add, multiply, divide, square root, fused multiply-add, integer
operations, selects), so that a lane has the same bits on every target, at every width.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, integer
from glowtrain.backends.target import Target


@dataclass(frozen=True)
class LaneFormat:
    """A binary interchange format of IEEE 754: ``mantissa`` explicit bits, ``bits`` in all, exponent ``bias``."""

    scalar: str
    code: str
    bits: int
    mantissa: int
    bias: int

    @property
    def integer(self) -> str:
        """The integer type of the same size."""
        return f"i{self.bits}"

    @property
    def magic(self) -> float:
        """1.5 * 2**mantissa: adding it rounds to an integer, whose value then stands in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def smallest(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    def bits_of(self, value: float) -> int:
        """The bit pattern of a number as an unsigned integer."""
        packed = struct.pack(">f" if self.bits == 32 else ">d", value)
        return int.from_bytes(packed, "big")


SINGLE = LaneFormat("float", "f32", 32, 23, 127)
DOUBLE = LaneFormat("double", "f64", 64, 52, 1023)
FORMATS = {"float": SINGLE, "double": DOUBLE}


@dataclass(frozen=True)
class FloatLanes(Lanes):
    """Lanes of single or double, and of integers of the same size, on a target."""

    target: Target

    @property
    def format(self) -> LaneFormat:
        return FORMATS[self.type.scalar]

    @property
    def integers(self) -> LlvmType:
        """The type of the lanes' bits."""
        return self.type.of(self.format.integer)

    def wider(self) -> FloatLanes:
        """The same lanes in double."""
        return replace(self, type=self.type.of("double"))

    # -- constants and conversions of representation

    def integer(self, value: int) -> LlvmValue:
        """An integer lane constant, given modulo 2**bits."""
        return integer(value, self.integers)

    def bits(self, x: LlvmValue) -> LlvmValue:
        return self.f.cast("bitcast", x, self.integers)

    def from_bits(self, i: LlvmValue) -> LlvmValue:
        return self.f.cast("bitcast", i, self.type)

    def extend(self, x: LlvmValue) -> LlvmValue:
        """Single to double, exactly."""
        return self.f.convert("fpext", x, "double")

    def narrow(self, x: LlvmValue) -> LlvmValue:
        """Double to single, rounded to nearest even."""
        return self.f.convert("fptrunc", x, "float")

    # -- arithmetic

    def div(self, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        return self.f.op("fdiv", a, b)

    def neg(self, a: LlvmValue) -> LlvmValue:
        return self.f.value(f"fneg {a.typed}", a.type)

    def abs(self, a: LlvmValue) -> LlvmValue:
        return self.f.intrinsic("fabs", a)

    def sqrt(self, a: LlvmValue) -> LlvmValue:
        return self._root(a) if self.format.code in self.target.soft else self.f.intrinsic("sqrt", a)

    def _root(self, a: LlvmValue) -> LlvmValue:
        """The square root in integers, a bit in each trip, rounded correctly: between two numbers is never exactly half
        (fdlibm's way, Sun Microsystems 1993)."""
        form, f = self.format, self.f
        small, far = self.compare("olt", a, self.number(form.smallest)), 2 * (form.mantissa // 2 + 1)
        bits = self.bits(self.select(small, self.mul(a, self.number(2.0**far)), a))
        power = self.sub(self.shift_right(bits, form.mantissa), self.integer(form.bias))
        rest = self.either(self.both(bits, (1 << form.mantissa) - 1), 1 << form.mantissa)
        odd = self.compare("ne", self.both(power, 1), 0)
        rest = self.shift_left(self.select(odd, self.shift_left(rest, 1), rest), 1)
        start = [rest, self.integer(0), self.integer(0), self.integer(2 << form.mantissa)]
        with f.loop(form.mantissa + 2, start, hint="root") as loop:
            rest, root, twice, bit = loop.carried
            tried = self.add(twice, bit)
            fits = self.compare("sle", tried, rest)
            left = self.select(fits, self.sub(rest, tried), rest)
            found = self.select(fits, self.add(root, bit), root)
            doubled = self.select(fits, self.add(tried, bit), twice)
            loop.next = [self.shift_left(left, 1), found, doubled, self.shift_right(bit, 1)]
        root = self.shift_right(self.add(loop.results[1], self.both(loop.results[1], 1)), 1)
        half = self.f.op("ashr", power, 1)
        half = self.select(small, self.sub(half, far // 2), half)
        scaled = self.add(root, self.shift_left(self.add(half, form.bias - 1), form.mantissa))
        usual = self.both(self.compare("ogt", a, self.number(0.0)), self.compare("olt", a, self.number(math.inf)))
        special = self.select(self.compare("olt", a, self.number(0.0)), self.number(math.nan), a)
        return self.select(usual, self.from_bits(scaled), special)

    def copysign(self, magnitude: LlvmValue, sign: LlvmValue) -> LlvmValue:
        return self.f.intrinsic("copysign", magnitude, sign)

    def fma(self, a: LlvmValue, b: LlvmValue, c: LlvmValue) -> LlvmValue:
        """a * b + c, rounded once or twice: as the target says, whatever its processor can."""
        return self.fused(a, b, c) if self.target.fused else self.add(self.mul(a, b), c)

    def fused(self, a: LlvmValue, b: LlvmValue, c: LlvmValue) -> LlvmValue:
        """a * b + c where the product must not be rounded, on every target: for argument reduction and error terms.

        In f64 without fused arithmetic it is emulated on all processors alike: the emulation is not exact where parts
        of it underflow.
        """
        if self.target.fuses(self.format.code) and (self.format is SINGLE or self.target.fused):
            return self.f.intrinsic("fma", a, b, c)
        if self.format is SINGLE:
            wide = self.wider()
            return self.narrow(wide.to_odd(wide.mul(self.extend(a), self.extend(b)), self.extend(c)))
        return self._fused_double(a, b, c)

    def _fused_double(self, a: LlvmValue, b: LlvmValue, c: LlvmValue) -> LlvmValue:
        """Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to
        odd", 2008; large numbers are scaled down meanwhile. What is infinite or NaN is so without."""
        plain, one = self.add(self.mul(a, b), c), self.number(1.0)
        huge = [self.compare("ogt", self.abs(x), self.number(2.0**960)) for x in (self.mul(a, b), c)]
        scaled = self.either(*huge)
        down = self.select(scaled, self.number(2.0**-64), one)
        high, low = self._dekker(self.mul(a, down), b)
        middle, lost = self.sum(self.mul(c, down), low)
        whole, rest = self.sum(high, middle)
        result = self.add(whole, self.to_odd(lost, rest))
        result = self.mul(result, self.select(scaled, self.number(2.0**64), one))
        return self.select(self.is_nan(result), plain, result)

    def to_odd(self, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        """a + b, where it is inexact the neighbour whose last bit is set: rounding that once more to a shorter number
        is as if it had been rounded once."""
        near, error = self.sum(a, b)
        inexact = self.compare("one", error, self.number(0.0))
        bits = self.bits(near)
        outwards = self.compare("sge", self.f.op("xor", self.bits(error), bits), 0)
        even = self.compare("eq", self.both(bits, 1), 0)
        moved = self.select(outwards, self.add(bits, 1), self.sub(bits, 1))
        return self.from_bits(self.select(self.both(inexact, even), moved, bits))

    def _dekker(self, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
        """a * b as an unevaluated sum.

        Dekker, "A floating-point technique for extending the available precision", 1971.
        """
        product = self.mul(a, b)
        (a1, a2), (b1, b2) = self._split(a), self._split(b)
        error = self.sub(self.mul(a1, b1), product)
        error = self.add(error, self.mul(a1, b2))
        error = self.add(error, self.mul(a2, b1))
        return product, self.add(error, self.mul(a2, b2))

    def _split(self, a: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
        """a as a sum of two numbers of half the mantissa each: rounded to the first where its digits are odd in number,
        which leaves one of them to the second's sign; but not up to infinity."""
        bits, dropped = self.bits(a), self.format.mantissa // 2 + 1
        high = self.from_bits(self.both(bits, self.integer(-1 << dropped)))
        if self.format is DOUBLE:
            near = self.from_bits(self.both(self.add(bits, 1 << (dropped - 1)), self.integer(-1 << dropped)))
            high = self.select(self.compare("olt", self.abs(near), self.number(math.inf)), near, high)
        return high, self.sub(a, high)

    def product(self, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
        """a * b as a rounded product and its exact error."""
        if not self.target.fused:
            return self._dekker(a, b)
        high = self.mul(a, b)
        return high, self.fused(a, b, self.neg(high))

    def sum(self, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
        """a + b as a rounded sum and its exact error (Knuth's two-sum)."""
        high = self.add(a, b)
        b_part = self.sub(high, a)
        a_part = self.sub(high, b_part)
        return high, self.add(self.sub(a, a_part), self.sub(b, b_part))

    def polynomial(self, x: LlvmValue, coefficients: Sequence[float]) -> LlvmValue:
        """Horner's rule; coefficients from low to high."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.number(coefficient))
        return result

    def rounded(self, mode: str, x: LlvmValue) -> LlvmValue:
        """x rounded to an integer: ``floor``, ``ceil``, ``trunc`` or ``roundeven``; -0 and the sign are kept."""
        if self.target.rounds(self.format.code):
            return self.f.intrinsic(mode, x)
        bound = self.number(2.0**self.format.mantissa)
        magnitude = self.abs(x)
        near = self.copysign(self.sub(self.add(magnitude, bound), bound), x)
        moved = near if mode == "roundeven" else self._step(mode, x, near)
        return self.select(self.compare("olt", magnitude, bound), self.copysign(moved, x), x)

    def _step(self, mode: str, x: LlvmValue, near: LlvmValue) -> LlvmValue:
        """From the nearest integer to the one that ``mode`` asks for, at most one away."""
        if mode == "trunc":
            too_far = self.compare("ogt", self.abs(near), self.abs(x))
            return self.select(too_far, self.sub(near, self.copysign(self.number(1.0), x)), near)
        predicate, step = ("ogt", -1.0) if mode == "floor" else ("olt", 1.0)
        return self.select(self.compare(predicate, near, x), self.add(near, self.number(step)), near)

    def reduced(
        self, recipe: Callable[[FloatLanes, LlvmValue], tuple[LlvmValue, LlvmValue]], angle: LlvmValue
    ) -> tuple[LlvmValue, LlvmValue]:
        """What is left of a large angle over multiples of pi/2, and their number, by a recipe in wide integers."""
        return recipe(self, angle)

    # -- integers of the same size

    def shift_left(self, a: LlvmValue, count: int) -> LlvmValue:
        return self.f.op("shl", a, count)

    def shift_right(self, a: LlvmValue, count: int) -> LlvmValue:
        """Logical: cheap at every lane size, unlike the arithmetic shift."""
        return self.f.op("lshr", a, count)

    # -- comparisons and choices

    def is_nan(self, x: LlvmValue) -> LlvmValue:
        return self.compare("uno", x, x)

    def where_rare(
        self, mask: LlvmValue, usual: Sequence[LlvmValue], rare: Callable[[], Iterable[LlvmValue]]
    ) -> list[LlvmValue]:
        """``usual`` values, or where any lane of ``mask`` is set those that ``rare`` computes, for all lanes."""
        condition, cold, after = self.f.any(mask), self.f.label("rare"), self.f.label("usual")
        before = self.f.block
        self.f.branch_if(condition, cold, after)
        self.f.start(cold)
        others = list(rare())
        end = self.f.block
        self.f.branch(after)
        self.f.start(after)
        return [self.f.phi(value, before, other, end) for value, other in zip(usual, others, strict=True)]

    # -- exponents

    def nearest(self, x: LlvmValue, factor: float) -> tuple[LlvmValue, LlvmValue]:
        """The integer nearest to x * factor: as a number, and as bits that are the integer plus ``bits_of(magic)``."""
        magic = self.number(self.format.magic)
        shifted = self.fma(x, self.number(factor), magic)
        return self.sub(shifted, magic), self.bits(shifted)

    def nearest_power(self, x: LlvmValue, factor: float, exponent: int) -> tuple[LlvmValue, LlvmValue]:
        """The integer n nearest to x * factor, and 2**(n + exponent), which must be normal: of the sum with the large
        number of :meth:`nearest`, the low bits are its biased exponent. As that is odd, an odd ``exponent`` leaves what
        lies halfway to the same n.
        """
        magic = self.number(self.format.magic + self.format.bias + exponent)
        shifted = self.fma(x, self.number(factor), magic)
        return self.sub(shifted, magic), self.power_of_two(self.bits(shifted))

    def small_integer(self, i: LlvmValue, offset: int = 0) -> LlvmValue:
        """The float of a small integer ``i + offset``, without a conversion instruction."""
        moved = self.add(i, self.integer(self.format.bits_of(self.format.magic) + offset))
        return self.sub(self.from_bits(moved), self.number(self.format.magic))

    def power_of_two(self, biased: LlvmValue) -> LlvmValue:
        """2**(biased - bias) for a biased exponent in the normal range, whatever the bits above it and the sign are."""
        return self.from_bits(self.shift_left(biased, self.format.mantissa))

    def scale(self, x: LlvmValue, doubly_biased: LlvmValue) -> LlvmValue:
        """x * 2**(twice_biased - 2*bias) in two steps, exact also where only the result is denormal or overflows."""
        half = self.shift_right(doubly_biased, 1)
        other = self.sub(doubly_biased, half)
        return self.mul(self.mul(x, self.power_of_two(half)), self.power_of_two(other))
