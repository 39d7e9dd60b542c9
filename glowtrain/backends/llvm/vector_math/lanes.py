"""Arithmetic on vectors of one float format: the vocabulary in which the recipes are written.

Only operations that IEEE 754 defines exactly are used (add, multiply, divide, square root, fused multiply-add, integer
operations, selects), so that a lane has the same bits on every target, at every width.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.text import LlvmFunction, Text, float_constant, splat_constant, vector


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
class Lanes:
    """Appends to ``f`` operations on ``width`` lanes of a format; operands and results are operand texts."""

    f: LlvmFunction
    format: LaneFormat
    width: int
    target: Target

    @property
    def type(self) -> str:
        return vector(self.format.scalar, self.width)

    @property
    def integers(self) -> str:
        """The type of the lanes' bits."""
        return vector(self.format.integer, self.width)

    @property
    def masks(self) -> str:
        return vector("i1", self.width)

    def wider(self) -> Lanes:
        """The same lanes in double."""
        return replace(self, format=DOUBLE)

    # -- constants and conversions of representation

    def number(self, value: float) -> Text:
        return splat_constant(float_constant(value, self.format.scalar), self.format.scalar, self.width)

    def integer(self, value: int) -> Text:
        """An integer lane constant, given modulo 2**bits."""
        half = 1 << (self.format.bits - 1)
        return splat_constant(str((value + half) % (2 * half) - half), self.format.integer, self.width)

    def bits(self, x: Text) -> Text:
        return self.f.value(f"bitcast {self.type} {x} to {self.integers}")

    def from_bits(self, i: Text) -> Text:
        return self.f.value(f"bitcast {self.integers} {i} to {self.type}")

    def extend(self, x: Text) -> Text:
        """Single to double, exactly."""
        return self.f.value(f"fpext {vector('float', self.width)} {x} to {vector('double', self.width)}")

    def narrow(self, x: Text) -> Text:
        """Double to single, rounded to nearest even."""
        return self.f.value(f"fptrunc {vector('double', self.width)} {x} to {vector('float', self.width)}")

    # -- arithmetic

    def _float(self, operation: str, a: Text, b: Text) -> Text:
        return self.f.value(f"{operation} {self.type} {a}, {b}")

    def add(self, a: Text, b: Text) -> Text:
        return self._float("fadd", a, b)

    def sub(self, a: Text, b: Text) -> Text:
        return self._float("fsub", a, b)

    def mul(self, a: Text, b: Text) -> Text:
        return self._float("fmul", a, b)

    def div(self, a: Text, b: Text) -> Text:
        return self._float("fdiv", a, b)

    def neg(self, a: Text) -> Text:
        return self.f.value(f"fneg {self.type} {a}")

    def call(self, name: str, *args: Text) -> Text:
        """An LLVM intrinsic from this type to itself."""
        suffix = f"v{self.width}{self.format.code}" if self.width > 1 else self.format.code
        return self.f.value(f"call {self.type} @llvm.{name}.{suffix}({', '.join(f'{self.type} {a}' for a in args)})")

    def abs(self, a: Text) -> Text:
        return self.call("fabs", a)

    def sqrt(self, a: Text) -> Text:
        return self.call("sqrt", a)

    def copysign(self, magnitude: Text, sign: Text) -> Text:
        return self.call("copysign", magnitude, sign)

    def fma(self, a: Text, b: Text, c: Text) -> Text:
        """a * b + c, rounded once where the target can, else twice (other bits there, at most 1 ulp of each term)."""
        if self.target.has_fma:
            return self.call("fma", a, b, c)
        return self.add(self.mul(a, b), c)

    def fused(self, a: Text, b: Text, c: Text) -> Text:
        """a * b + c where the product must not be rounded, on every target: for argument reduction and error terms."""
        if self.target.has_fma:
            return self.call("fma", a, b, c)
        if self.format is SINGLE:
            wide = self.wider()
            return self.narrow(wide.add(wide.mul(self.extend(a), self.extend(b)), self.extend(c)))
        product, error = self._dekker(a, b)
        return self.add(self.add(product, c), error)

    def _dekker(self, a: Text, b: Text) -> tuple[Text, Text]:
        """a * b as an unevaluated sum.

        Dekker, "A floating-point technique for extending the available precision", 1971.
        """
        product = self.mul(a, b)
        (a1, a2), (b1, b2) = self._split(a), self._split(b)
        error = self.sub(self.mul(a1, b1), product)
        error = self.add(error, self.mul(a1, b2))
        error = self.add(error, self.mul(a2, b1))
        return product, self.add(error, self.mul(a2, b2))

    def _split(self, a: Text) -> tuple[Text, Text]:
        """a as a sum of two numbers of half the mantissa each."""
        mask = -1 << (self.format.mantissa // 2 + 1)
        high = self.from_bits(self.int_and(self.bits(a), self.integer(mask)))
        return high, self.sub(a, high)

    def product(self, a: Text, b: Text) -> tuple[Text, Text]:
        """a * b as a rounded product and its exact error."""
        if not self.target.has_fma:
            return self._dekker(a, b)
        high = self.mul(a, b)
        return high, self.fma(a, b, self.neg(high))

    def sum(self, a: Text, b: Text) -> tuple[Text, Text]:
        """a + b as a rounded sum and its exact error (Knuth's two-sum)."""
        high = self.add(a, b)
        b_part = self.sub(high, a)
        a_part = self.sub(high, b_part)
        return high, self.add(self.sub(a, a_part), self.sub(b, b_part))

    def polynomial(self, x: Text, coefficients: Sequence[float]) -> Text:
        """Horner's rule; coefficients from low to high."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.number(coefficient))
        return result

    def rounded(self, mode: str, x: Text) -> Text:
        """x rounded to an integer: ``floor``, ``ceil``, ``trunc`` or ``roundeven``; -0 and the sign are kept."""
        if self.target.has_rounding:
            return self.call(mode, x)
        bound = self.number(2.0**self.format.mantissa)
        magnitude = self.abs(x)
        near = self.copysign(self.sub(self.add(magnitude, bound), bound), x)
        moved = near if mode == "roundeven" else self._step(mode, x, near)
        return self.select(self.compare("olt", magnitude, bound), self.copysign(moved, x), x)

    def _step(self, mode: str, x: Text, near: Text) -> Text:
        """From the nearest integer to the one that ``mode`` asks for, at most one away."""
        if mode == "trunc":
            too_far = self.compare("ogt", self.abs(near), self.abs(x))
            return self.select(too_far, self.sub(near, self.copysign(self.number(1.0), x)), near)
        predicate, step = ("ogt", -1.0) if mode == "floor" else ("olt", 1.0)
        return self.select(self.compare(predicate, near, x), self.add(near, self.number(step)), near)

    # -- integers of the same size

    def _integer(self, operation: str, a: Text, b: Text) -> Text:
        return self.f.value(f"{operation} {self.integers} {a}, {b}")

    def int_add(self, a: Text, b: Text) -> Text:
        return self._integer("add", a, b)

    def int_sub(self, a: Text, b: Text) -> Text:
        return self._integer("sub", a, b)

    def int_and(self, a: Text, b: Text) -> Text:
        return self._integer("and", a, b)

    def shift_left(self, a: Text, count: int) -> Text:
        return self._integer("shl", a, self.integer(count))

    def shift_right(self, a: Text, count: int) -> Text:
        """Logical: cheap at every lane size, unlike the arithmetic shift."""
        return self._integer("lshr", a, self.integer(count))

    # -- comparisons and choices

    def compare(self, predicate: str, a: Text, b: Text) -> Text:
        return self.f.value(f"fcmp {predicate} {self.type} {a}, {b}")

    def int_compare(self, predicate: str, a: Text, b: Text) -> Text:
        return self.f.value(f"icmp {predicate} {self.integers} {a}, {b}")

    def both(self, a: Text, b: Text) -> Text:
        return self.f.value(f"and {self.masks} {a}, {b}")

    def either(self, a: Text, b: Text) -> Text:
        return self.f.value(f"or {self.masks} {a}, {b}")

    def select(self, condition: Text, a: Text, b: Text) -> Text:
        return self.f.value(f"select {self.masks} {condition}, {self.type} {a}, {self.type} {b}")

    def int_select(self, condition: Text, a: Text, b: Text) -> Text:
        return self.f.value(f"select {self.masks} {condition}, {self.integers} {a}, {self.integers} {b}")

    def any(self, mask: Text) -> Text:
        """One i1: whether any lane of the mask is set."""
        if self.width == 1:
            return mask
        packed = self.f.value(f"bitcast {self.masks} {mask} to i{self.width}")
        return self.f.value(f"icmp ne i{self.width} {packed}, 0")

    def is_nan(self, x: Text) -> Text:
        return self.compare("uno", x, x)

    def where_rare(
        self, mask: Text, usual: Sequence[Text], rare: Callable[[], Iterable[Text]], types: Sequence[str]
    ) -> list[Text]:
        """``usual`` values, or where any lane of ``mask`` is set those that ``rare`` computes, for all lanes."""
        condition, cold, after = self.any(mask), self.f.label("rare"), self.f.label("usual")
        before = self.f.block
        self.f.line(f"br i1 {condition}, label %{cold}, label %{after}")
        self.f.start(cold)
        others = list(rare())
        end = self.f.block
        self.f.branch(after)
        self.f.start(after)
        return [
            self.f.value(f"phi {type_} [ {value}, %{before} ], [ {other}, %{end} ]")
            for type_, value, other in zip(types, usual, others, strict=True)
        ]

    # -- exponents

    def nearest(self, x: Text, factor: float) -> tuple[Text, Text]:
        """The integer nearest to x * factor: as a number, and as bits that are the integer plus ``bits_of(magic)``."""
        magic = self.number(self.format.magic)
        shifted = self.fma(x, self.number(factor), magic)
        return self.sub(shifted, magic), self.bits(shifted)

    def small_integer(self, i: Text, offset: int = 0) -> Text:
        """The float of a small integer ``i + offset``, without a conversion instruction."""
        moved = self.int_add(i, self.integer(self.format.bits_of(self.format.magic) + offset))
        return self.sub(self.from_bits(moved), self.number(self.format.magic))

    def power_of_two(self, biased: Text) -> Text:
        """2**(biased - bias) for a biased exponent in the normal range."""
        return self.from_bits(self.shift_left(biased, self.format.mantissa))

    def scale(self, x: Text, twice_biased: Text) -> Text:
        """x * 2**(twice_biased - 2*bias) in two steps, exact also where only the result is denormal or overflows."""
        half = self.shift_right(twice_biased, 1)
        other = self.int_sub(twice_biased, half)
        return self.mul(self.mul(x, self.power_of_two(half)), self.power_of_two(other))
