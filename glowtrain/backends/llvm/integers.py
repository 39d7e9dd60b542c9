"""Integer and bool arithmetic with NumPy's results for every input.

LLVM leaves division by zero, the overflow of the smallest integer divided by -1 and too long shifts undefined (x86
ends the process on the first two), so divisors and counts are made safe first and the result is selected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glowtrain.backends.llvm.formats import REGISTER, SIGNED, bits_of
from glowtrain.backends.llvm.text import LlvmFunction, Text, splat_constant, vector


@dataclass(frozen=True)
class Integers:
    """Appends to ``f`` operations on ``width`` lanes of an integer dtype."""

    f: LlvmFunction
    dtype: str
    width: int

    @property
    def signed(self) -> bool:
        return self.dtype in SIGNED

    @property
    def bits(self) -> int:
        return bits_of(self.dtype)

    @property
    def type(self) -> str:
        return vector(REGISTER[self.dtype], self.width)

    @property
    def masks(self) -> str:
        return vector("i1", self.width)

    @property
    def smallest(self) -> int:
        """The smallest signed integer of the size."""
        return -(1 << (self.bits - 1))

    def const(self, value: int) -> Text:
        return splat_constant(str(value), REGISTER[self.dtype], self.width)

    def op(self, operation: str, a: Text, b: Text) -> Text:
        return self.f.value(f"{operation} {self.type} {a}, {b}")

    def both(self, a: Text, b: Text) -> Text:
        return self.f.value(f"and {self.masks} {a}, {b}")

    def either(self, a: Text, b: Text) -> Text:
        return self.f.value(f"or {self.masks} {a}, {b}")

    def select(self, condition: Text, a: Text, b: Text) -> Text:
        return self.f.value(f"select {self.masks} {condition}, {self.type} {a}, {self.type} {b}")

    def any(self, mask: Text) -> Text:
        if self.width == 1:
            return mask
        packed = self.f.value(f"bitcast {self.masks} {mask} to i{self.width}")
        return self.f.value(f"icmp ne i{self.width} {packed}, 0")


Recipe = Callable[..., Text]


def _instruction(signed: str, unsigned: str | None = None) -> Recipe:
    """A recipe of one instruction, which may differ for unsigned types."""

    def emit(m: Integers, a: Text, b: Text) -> Text:
        return m.op(signed if m.signed or unsigned is None else unsigned, a, b)

    return emit


def _divide(m: Integers, a: Text, b: Text, operation: str) -> Text:
    zero = m.op("icmp eq", b, m.const(0))
    unsafe = zero
    if m.signed:
        overflow = m.both(m.op("icmp eq", a, m.const(m.smallest)), m.op("icmp eq", b, m.const(-1)))
        unsafe = m.either(zero, overflow)
    safe = m.select(unsafe, m.const(1), b)
    return m.select(zero, m.const(0), m.op(("s" if m.signed else "u") + operation, a, safe))


def div(m: Integers, a: Text, b: Text) -> Text:
    """Towards zero (ONNX Div); 0 where b is 0; the smallest integer over -1 wraps."""
    return _divide(m, a, b, "div")


def fmod(m: Integers, a: Text, b: Text) -> Text:
    """The remainder with the sign of a; 0 where b is 0."""
    return _divide(m, a, b, "rem")


def mod(m: Integers, a: Text, b: Text) -> Text:
    """The remainder with the sign of b (Python's %); 0 where b is 0."""
    r = fmod(m, a, b)
    if not m.signed:
        return r
    differs = m.op("icmp slt", m.op("xor", r, b), m.const(0))
    moves = m.both(differs, m.op("icmp ne", r, m.const(0)))
    return m.select(moves, m.op("add", r, b), r)


def neg(m: Integers, a: Text) -> Text:
    """0 - a, wrapping."""
    return m.op("sub", m.const(0), a)


def absolute(m: Integers, a: Text) -> Text:
    """The smallest integer stays what it is."""
    return m.select(m.op("icmp slt", a, m.const(0)), neg(m, a), a) if m.signed else a


def sign(m: Integers, a: Text) -> Text:
    """-1, 0 or 1."""
    positive = m.op("icmp sgt" if m.signed else "icmp ugt", a, m.const(0))
    result = m.select(positive, m.const(1), m.const(0))
    return m.select(m.op("icmp slt", a, m.const(0)), m.const(-1), result) if m.signed else result


def _extreme(signed: str, unsigned: str) -> Recipe:
    def emit(m: Integers, a: Text, b: Text) -> Text:
        return m.select(m.op(f"icmp {signed if m.signed else unsigned}", a, b), a, b)

    return emit


def _shift(operation: str) -> Recipe:
    """Counts outside [0, bits) give 0, or -1 where a negative number is shifted right."""

    def emit(m: Integers, a: Text, b: Text) -> Text:
        right = operation == "shift_right"
        instruction = "shl" if not right else "ashr" if m.signed else "lshr"
        inside = m.op("icmp ult", b, m.const(m.bits if m.bits < 128 else 127))
        safe = m.select(inside, b, m.const(m.bits - 1 if right and m.signed else 0))
        shifted = m.op(instruction, a, safe)
        return shifted if right and m.signed else m.select(inside, shifted, m.const(0))

    return emit


def power(m: Integers, base: Text, exponent: Text) -> Text:
    """By repeated squaring, wrapping.

    A negative exponent gives the true power cut to an integer: 0, except for 1 and -1.
    """
    body, done, before = m.f.label("square"), m.f.label("squared"), m.f.block
    negative = m.op("icmp slt", exponent, m.const(0)) if m.signed else None
    left = m.select(negative, m.op("and", exponent, m.const(1)), exponent) if negative else exponent
    m.f.branch(body)
    m.f.start(body)
    names = {name: f"%{body}.{name}" for name in ("result", "factor", "left")}
    result = m.f.value(f"phi {m.type} [ {m.const(1)}, %{before} ], [ {names['result']}, %{body} ]")
    factor = m.f.value(f"phi {m.type} [ {base}, %{before} ], [ {names['factor']}, %{body} ]")
    count = m.f.value(f"phi {m.type} [ {left}, %{before} ], [ {names['left']}, %{body} ]")
    odd = m.op("icmp ne", m.op("and", count, m.const(1)), m.const(0))
    product = m.op("mul", result, factor)
    m.f.line(f"{names['result']} = select {m.masks} {odd}, {m.type} {product}, {m.type} {result}")
    m.f.line(f"{names['factor']} = mul {m.type} {factor}, {factor}")
    m.f.line(f"{names['left']} = lshr {m.type} {count}, {m.const(1)}")
    more = m.any(m.op("icmp ne", names["left"], m.const(0)))
    m.f.line(f"br i1 {more}, label %{body}, label %{done}")
    m.f.start(done)
    if negative is None:
        return names["result"]
    unit = m.either(m.op("icmp eq", base, m.const(1)), m.op("icmp eq", base, m.const(-1)))
    return m.select(negative, m.select(unit, names["result"], m.const(0)), names["result"])


def mulhi_u32(m: Integers, a: Text, b: Text) -> Text:
    """The upper 32 bits of the 64-bit product of two u32: a round of the Philox generator (Salmon et al., SC 2011)."""
    wide = vector("i64", m.width)
    long = [m.f.value(f"zext {m.type} {x} to {wide}") for x in (a, b)]
    product = m.f.value(f"mul nuw {wide} {long[0]}, {long[1]}")
    high = m.f.value(f"lshr {wide} {product}, {splat_constant('32', 'i64', m.width)}")
    return m.f.value(f"trunc {wide} {high} to {m.type}")


INTEGER: Mapping[str, Recipe] = {
    "add": _instruction("add"),
    "sub": _instruction("sub"),
    "mul": _instruction("mul"),
    "div": div,
    "mod": mod,
    "fmod": fmod,
    "pow": power,
    "neg": neg,
    "abs": absolute,
    "sign": sign,
    "min": _extreme("slt", "ult"),
    "max": _extreme("sgt", "ugt"),
    "and": _instruction("and"),
    "or": _instruction("or"),
    "xor": _instruction("xor"),
    "not": lambda m, a: m.op("xor", a, m.const(-1)),
    "shift_left": _shift("shift_left"),
    "shift_right": _shift("shift_right"),
}
"""Recipes for integer lanes."""

BOOL: Mapping[str, Recipe] = {
    "add": _instruction("or"),
    "mul": _instruction("and"),
    "min": _instruction("and"),
    "max": _instruction("or"),
    "and": _instruction("and"),
    "or": _instruction("or"),
    "xor": _instruction("xor"),
    "not": lambda m, a: m.op("xor", a, splat_constant("true", "i1", m.width)),
}
"""Recipes for bool lanes: sum and maximum are "or", product and minimum "and", as in NumPy."""
