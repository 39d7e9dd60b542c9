"""Roots, rounding, signs, minimum and maximum, remainders."""

from __future__ import annotations

import math

from glowtrain.backends.llvm.text import Text
from glowtrain.backends.llvm.vector_math.lanes import Lanes


def sqrt(m: Lanes, x: Text) -> Text:
    """Correctly rounded."""
    return m.sqrt(x)


def rsqrt(m: Lanes, x: Text) -> Text:
    """1 / sqrt(x), both correctly rounded: 1.5 ulp; inf at 0, NaN below."""
    return m.div(m.number(1.0), m.sqrt(x))


def reciprocal(m: Lanes, x: Text) -> Text:
    """1 / x, correctly rounded."""
    return m.div(m.number(1.0), x)


def floor(m: Lanes, x: Text) -> Text:
    """The largest integer not above x."""
    return m.rounded("floor", x)


def ceil(m: Lanes, x: Text) -> Text:
    """The smallest integer not below x."""
    return m.rounded("ceil", x)


def trunc(m: Lanes, x: Text) -> Text:
    """x without its fraction."""
    return m.rounded("trunc", x)


def round_half_even(m: Lanes, x: Text) -> Text:
    """The nearest integer; halves go to the even one."""
    return m.rounded("roundeven", x)


def absolute(m: Lanes, x: Text) -> Text:
    """x without its sign bit."""
    return m.abs(x)


def negative(m: Lanes, x: Text) -> Text:
    """x with its sign bit flipped."""
    return m.neg(x)


def sign(m: Lanes, x: Text) -> Text:
    """-1, 0 or 1; NaN for NaN."""
    one = m.copysign(m.number(1.0), x)
    usual = m.select(m.compare("oeq", x, m.number(0.0)), m.number(0.0), one)
    return m.select(m.is_nan(x), x, usual)


def _extreme(m: Lanes, predicate: str, a: Text, b: Text) -> Text:
    """One compare and select where one side is a constant (not NaN): x86's min and max instructions do just that."""
    if not b.startswith("%"):
        return m.select(m.compare(predicate, b, a), b, a)
    chosen = m.select(m.compare(predicate, a, b), a, b)
    return chosen if not a.startswith("%") else m.select(m.is_nan(a), a, chosen)


def minimum(m: Lanes, a: Text, b: Text) -> Text:
    """The smaller; NaN where either is NaN."""
    return _extreme(m, "olt", a, b)


def maximum(m: Lanes, a: Text, b: Text) -> Text:
    """The larger; NaN where either is NaN."""
    return _extreme(m, "ogt", a, b)


def fmod(m: Lanes, x: Text, y: Text) -> Text:
    """The exact remainder with the sign of x (C's fmod): long division, as many quotient bits per trip as are exact."""
    divisor, whole = m.abs(y), m.abs(x)
    valid = m.both(m.compare("olt", whole, m.number(math.inf)), m.compare("ogt", divisor, m.number(0.0)))
    start = m.select(valid, whole, m.number(0.0))
    safe = m.select(valid, divisor, m.number(1.0))
    result = m.select(valid, _remainder(m, start, safe), m.number(math.nan))
    result = m.select(m.is_nan(y), m.number(math.nan), result)
    return m.copysign(result, x)


def _remainder(m: Lanes, whole: Text, divisor: Text) -> Text:
    """whole mod divisor for non-negative finite whole and positive divisor (which may be infinite)."""
    body, done = m.f.label("divide"), m.f.label("divided")
    before = m.f.block
    bits = m.format.mantissa - 1
    exponent = _exponent(m, divisor)
    m.f.branch(body)
    m.f.start(body)
    left = m.f.value(f"phi {m.type} [ {whole}, %{before} ], [ %{body}.rest, %{body} ]")
    excess = m.int_sub(m.int_sub(_exponent(m, left), exponent), m.integer(bits))
    excess = m.int_select(m.int_compare("sgt", excess, m.integer(0)), excess, m.integer(0))
    part = m.scale(divisor, m.int_add(excess, m.integer(2 * m.format.bias)))
    quotient = m.rounded("trunc", m.div(left, part))
    rest = m.fused(m.neg(quotient), part, left)
    rest = m.select(m.compare("olt", rest, m.number(0.0)), m.add(rest, part), rest)
    small = m.compare("olt", left, divisor)
    m.f.line(f"%{body}.rest = select {m.masks} {small}, {m.type} {left}, {m.type} {rest}")
    rest = f"%{body}.rest"
    more = m.any(m.compare("oge", rest, divisor))
    m.f.line(f"br i1 {more}, label %{body}, label %{done}")
    m.f.start(done)
    return rest


def _exponent(m: Lanes, x: Text) -> Text:
    """The biased exponent of a positive number, as if denormals were normal."""
    power = m.format.mantissa + 2
    small = m.compare("olt", x, m.number(m.format.smallest))
    field = m.shift_right(m.bits(m.select(small, m.mul(x, m.number(2.0**power)), x)), m.format.mantissa)
    return m.int_sub(field, m.int_select(small, m.integer(power), m.integer(0)))


def mod(m: Lanes, x: Text, y: Text) -> Text:
    """The remainder with the sign of y (Python's and NumPy's %)."""
    r = fmod(m, x, y)
    zero = m.compare("oeq", r, m.number(0.0))
    differs = m.int_compare("slt", m.f.value(f"xor {m.integers} {m.bits(r)}, {m.bits(y)}"), m.integer(0))
    moved = m.select(differs, m.add(r, y), r)
    return m.select(zero, m.copysign(m.number(0.0), y), moved)
