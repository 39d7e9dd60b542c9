"""Roots, rounding, signs, minimum and maximum, remainders."""

from __future__ import annotations

import math

from glowtrain.backends.llvm.values import LlvmValue
from glowtrain.backends.llvm.vector_math.float_lanes import FloatLanes


def sqrt(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """Correctly rounded."""
    return m.sqrt(x)


def rsqrt(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """1 / sqrt(x), both correctly rounded: 1.5 ulp; inf at 0, NaN below."""
    return m.div(m.number(1.0), m.sqrt(x))


def reciprocal(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """1 / x, correctly rounded."""
    return m.div(m.number(1.0), x)


def floor(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """The largest integer not above x."""
    return m.rounded("floor", x)


def ceil(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """The smallest integer not below x."""
    return m.rounded("ceil", x)


def trunc(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """x without its fraction."""
    return m.rounded("trunc", x)


def round_half_even(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """The nearest integer; halves go to the even one."""
    return m.rounded("roundeven", x)


def absolute(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """x without its sign bit."""
    return m.abs(x)


def negative(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """x with its sign bit flipped."""
    return m.neg(x)


def sign(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """-1, 0 or 1; NaN for NaN."""
    one = m.copysign(m.number(1.0), x)
    usual = m.select(m.compare("oeq", x, m.number(0.0)), m.number(0.0), one)
    return m.select(m.is_nan(x), x, usual)


def _extreme(m: FloatLanes, predicate: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """One compare and select where one side is a constant: x86's min and max instructions do just that, unless it is
    NaN, which is the result."""
    nan = {m.number(each).text for each in (math.nan, -math.nan)}
    if a.text in nan or b.text in nan:
        return a if a.text in nan else b
    if b.is_constant:
        return m.select(m.compare(predicate, b, a), b, a)
    chosen = m.select(m.compare(predicate, a, b), a, b)
    return chosen if a.is_constant else m.select(m.is_nan(a), a, chosen)


def minimum(m: FloatLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """The smaller; NaN where either is NaN."""
    return _extreme(m, "olt", a, b)


def maximum(m: FloatLanes, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """The larger; NaN where either is NaN."""
    return _extreme(m, "ogt", a, b)


def fmod(m: FloatLanes, x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """The exact remainder with the sign of x (C's fmod): long division, as many quotient bits per trip as are exact."""
    divisor, whole = m.abs(y), m.abs(x)
    valid = m.both(m.compare("olt", whole, m.number(math.inf)), m.compare("ogt", divisor, m.number(0.0)))
    start = m.select(valid, whole, m.number(0.0))
    safe = m.select(valid, divisor, m.number(1.0))
    result = m.select(valid, _remainder(m, start, safe), m.number(math.nan))
    result = m.select(m.is_nan(y), m.number(math.nan), result)
    return m.copysign(result, x)


def _remainder(m: FloatLanes, whole: LlvmValue, divisor: LlvmValue) -> LlvmValue:
    """whole mod divisor for non-negative finite whole and positive divisor (which may be infinite)."""
    f, body, done = m.f, m.f.label("divide"), m.f.label("divided")
    before, after = f.block, LlvmValue(f"%{body}.rest", m.type)
    bits = m.format.mantissa - 1
    exponent = _exponent(m, divisor)
    f.branch(body)
    f.start(body)
    left = f.phi(whole, before, after, body)
    excess = m.sub(m.sub(_exponent(m, left), exponent), m.integer(bits))
    excess = m.select(m.compare("sgt", excess, 0), excess, 0)
    part = m.scale(divisor, m.add(excess, m.integer(2 * m.format.bias)))
    quotient = m.rounded("trunc", m.div(left, part))
    rest = m.fused(m.neg(quotient), part, left)
    rest = m.select(m.compare("olt", rest, m.number(0.0)), m.add(rest, part), rest)
    small = m.compare("olt", left, divisor)
    f.line(f"{after} = select {small.typed}, {left.typed}, {rest.typed}")
    f.branch_if(f.any(m.compare("oge", after, divisor)), body, done)
    f.start(done)
    return after


def _exponent(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """The biased exponent of a positive number, as if denormals were normal."""
    power = m.format.mantissa + 2
    small = m.compare("olt", x, m.number(m.format.smallest))
    field = m.shift_right(m.bits(m.select(small, m.mul(x, m.number(2.0**power)), x)), m.format.mantissa)
    return m.sub(field, m.select(small, m.integer(power), m.integer(0)))


def mod(m: FloatLanes, x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """The remainder with the sign of y (Python's and NumPy's %)."""
    r = fmod(m, x, y)
    zero = m.compare("oeq", r, m.number(0.0))
    differs = m.compare("slt", m.f.op("xor", m.bits(r), m.bits(y)), m.integer(0))
    moved = m.select(differs, m.add(r, y), r)
    return m.select(zero, m.copysign(m.number(0.0), y), moved)
