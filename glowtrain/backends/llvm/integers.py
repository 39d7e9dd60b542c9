"""Integer and bool arithmetic with NumPy's results for every input.

LLVM leaves division by zero, the overflow of the smallest integer divided by -1 and too long shifts undefined (x86
ends the process on the first two), so divisors and counts are made safe first and the result is selected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from glowtrain.backends.llvm.conversions import divided
from glowtrain.backends.llvm.lanes import IntegerLanes
from glowtrain.backends.llvm.values import LlvmValue, in_all_lanes

Recipe = Callable[..., LlvmValue]


def _instruction(signed: str, unsigned: str | None = None) -> Recipe:
    """A recipe of one instruction, which may differ for unsigned types."""

    def emit(m: IntegerLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        return m.f.op(signed if m.signed or unsigned is None else unsigned, a, b)

    return emit


def _divide(m: IntegerLanes, a: LlvmValue, b: LlvmValue, operation: str) -> LlvmValue:
    zero = m.compare("eq", b, 0)
    unsafe = zero
    if m.signed:
        overflow = m.both(m.compare("eq", a, m.smallest), m.compare("eq", b, -1))
        unsafe = m.either(zero, overflow)
    safe = m.select(unsafe, m.constant(1), b)
    return m.select(zero, m.constant(0), divided(m.f, ("s" if m.signed else "u") + operation, a, safe, m.widest))


def div(m: IntegerLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """Towards zero (ONNX Div); 0 where b is 0; the smallest integer over -1 wraps."""
    return _divide(m, a, b, "div")


def fmod(m: IntegerLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """The remainder with the sign of a; 0 where b is 0."""
    return _divide(m, a, b, "rem")


def mod(m: IntegerLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """The remainder with the sign of b (Python's %); 0 where b is 0."""
    r = fmod(m, a, b)
    if not m.signed:
        return r
    differs = m.compare("slt", m.f.op("xor", r, b), 0)
    moves = m.both(differs, m.compare("ne", r, 0))
    return m.select(moves, m.add(r, b), r)


def neg(m: IntegerLanes, a: LlvmValue) -> LlvmValue:
    """0 - a, wrapping."""
    return m.sub(m.constant(0), a)


def absolute(m: IntegerLanes, a: LlvmValue) -> LlvmValue:
    """The smallest integer stays what it is."""
    return m.select(m.compare("slt", a, 0), neg(m, a), a) if m.signed else a


def sign(m: IntegerLanes, a: LlvmValue) -> LlvmValue:
    """-1, 0 or 1."""
    positive = m.compare("sgt" if m.signed else "ugt", a, 0)
    result = m.select(positive, m.constant(1), 0)
    return m.select(m.compare("slt", a, 0), m.constant(-1), result) if m.signed else result


def _extreme(signed: str, unsigned: str) -> Recipe:
    def emit(m: IntegerLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        return m.select(m.compare(signed if m.signed else unsigned, a, b), a, b)

    return emit


def _shift(operation: str) -> Recipe:
    """Counts outside [0, bits) give 0, or -1 where a negative number is shifted right."""

    def emit(m: IntegerLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        right = operation == "shift_right"
        instruction = "shl" if not right else "ashr" if m.signed else "lshr"
        inside = m.compare("ult", b, m.type.bits if m.type.bits < 128 else 127)
        safe = m.select(inside, b, m.type.bits - 1 if right and m.signed else 0)
        shifted = m.f.op(instruction, a, safe)
        return shifted if right and m.signed else m.select(inside, shifted, 0)

    return emit


def power(m: IntegerLanes, base: LlvmValue, exponent: LlvmValue) -> LlvmValue:
    """By repeated squaring, wrapping.

    A negative exponent gives the true power cut to an integer: 0, except for 1 and -1.
    """
    f, body, done, before = m.f, m.f.label("square"), m.f.label("squared"), m.f.block
    negative = m.compare("slt", exponent, 0) if m.signed else None
    left = m.select(negative, m.both(exponent, 1), exponent) if negative else exponent
    f.branch(body)
    f.start(body)
    after = {name: LlvmValue(f"%{body}.{name}", m.type) for name in ("result", "factor", "left")}
    result = f.phi(m.constant(1), before, after["result"], body)
    factor = f.phi(base, before, after["factor"], body)
    count = f.phi(left, before, after["left"], body)
    odd = m.compare("ne", m.both(count, 1), 0)
    product = m.mul(result, factor)
    f.line(f"{after['result']} = select {odd.typed}, {product.typed}, {result.typed}")
    f.line(f"{after['factor']} = mul {factor.typed}, {factor}")
    f.line(f"{after['left']} = lshr {count.typed}, {m.constant(1)}")
    f.branch_if(f.any(m.compare("ne", after["left"], 0)), body, done)
    f.start(done)
    if negative is None:
        return after["result"]
    unit = m.either(m.compare("eq", base, 1), m.compare("eq", base, -1))
    return m.select(negative, m.select(unit, after["result"], 0), after["result"])


def mulhi_u32(m: IntegerLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """The upper 32 bits of the 64-bit product of two u32: a round of the Philox generator (Salmon et al., SC 2011)."""
    long = [m.f.convert("zext", x, "i64") for x in (a, b)]
    product = m.f.op("mul nuw", *long)
    return m.f.convert("trunc", m.f.op("lshr", product, 32), m.type.scalar)


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
    "not": lambda m, a: m.f.op("xor", a, -1),
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
    "not": lambda m, a: m.f.op("xor", a, in_all_lanes("true", m.type)),
}
"""Recipes for bool lanes: sum and maximum are "or", product and minimum "and", as in NumPy."""
