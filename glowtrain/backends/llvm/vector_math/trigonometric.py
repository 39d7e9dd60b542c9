"""sin, cos, tan and their inverses.

Arguments are reduced by a three-part pi/2 (Cody and Waite); where a lane is too large for that, by Payne and Hanek's
method ("Radian reduction for trigonometric functions", 1983) in wide integers, off the usual path. The inverses
follow fdlibm's cuts of the range; the polynomials are this project's (see :mod:`coefficients`).
"""

from __future__ import annotations

import math

from glowtrain.backends.llvm.conversions import to_float
from glowtrain.backends.llvm.values import LlvmValue, vector
from glowtrain.backends.llvm.vector_math import coefficients as c
from glowtrain.backends.llvm.vector_math.float_lanes import SINGLE, FloatLanes

_TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d",
    16,
)
"""2/pi * 2**1280."""

_PI = {"float": (3.14159274101257324, -8.74227800037248506e-8), "double": (math.pi, 1.2246467991473532e-16)}
"""pi as a sum of two numbers of the format."""


def _constants(m: FloatLanes) -> c.Coefficients:
    return c.BY_SCALAR[m.format.scalar]


def _reduce(m: FloatLanes, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """The integer k (its low two bits, in a lane's bits) nearest to x / (pi/2), and x - k * pi/2."""
    n, quadrant = m.nearest(x, 2 / math.pi)
    minus_n, r = m.neg(n), x
    for part in _constants(m).half_pi:
        r = m.fused(minus_n, m.number(part), r)
    size = m.abs(x)
    large = m.both(
        m.compare("ogt", size, m.number(_constants(m).trig_limit)), m.compare("olt", size, m.number(math.inf))
    )

    def rare() -> tuple[LlvmValue, LlvmValue]:
        exact_r, exact_quadrant = m.reduced(_reduce_large, x)
        return m.select(large, exact_r, r), m.select(large, exact_quadrant, quadrant)

    r, quadrant = m.where_rare(large, [r, quadrant], rare)
    return quadrant, r


def _reduce_large(m: FloatLanes, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """The reduction of :func:`_payne_hanek` for every lane, one after the other."""
    if m.width == 1:
        return _payne_hanek(m, x)
    one = FloatLanes(m.f, m.type.one, m.target)
    with m.f.loop(m.width, [m.number(0.0), m.integer(0)], hint="lane") as loop:
        r, quadrant = _payne_hanek(one, m.f.extract(x, loop.index))
        loop.next = [m.f.insert(loop.carried[0], r, loop.index), m.f.insert(loop.carried[1], quadrant, loop.index)]
    return loop.results[0], loop.results[1]


def _payne_hanek(m: FloatLanes, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """One lane: (x - k*pi/2, k) from the bits of 2/pi that matter at x's exponent.

    With |x| = M * 2**e the product M * (2/pi * 2**e mod 4) is formed in fixed point with ``fraction`` bits after the
    point: enough that the worst cancellation of the format leaves a full mantissa.
    """
    known, fraction = (256, 94) if m.format is SINGLE else (1280, 190)
    f, form, long = m.f, m.format, f"i{fraction + 2}"
    bits = m.bits(x)
    field = m.both(m.shift_right(bits, form.mantissa), m.integer(2 * form.bias + 1))
    significand = m.either(m.both(bits, m.integer((1 << form.mantissa) - 1)), 1 << form.mantissa)
    shift = m.sub(m.integer(known - fraction + form.bias + form.mantissa), field)
    shift = m.select(m.compare("ult", shift, m.integer(known)), shift, 0)
    digits = LlvmValue(str(_TWO_OVER_PI >> (1280 - known)), vector(f"i{known}"))
    product = _product(m, _window(m, digits, shift, fraction + 2), significand, long)
    product = _negated_where(m, m.compare("slt", bits, 0), product)
    turned = f.op("lshr", f.op("add", product, 1 << (fraction - 1)), fraction)
    rest = f.op("sub", product, f.op("shl", turned, fraction))
    return _fraction_to_angle(m, rest, fraction), f.convert("trunc", turned, form.integer)


def _window(m: FloatLanes, digits: LlvmValue, shift: LlvmValue, bits: int) -> LlvmValue:
    """So many bits of a long constant from ``shift`` on: moved by powers of two, of which each leaves fewer bits that
    may be wanted."""
    f = m.f
    for power in reversed(range((digits.type.bits - 1).bit_length())):
        far = m.compare("ne", m.both(shift, 1 << power), 0)
        moved = f.select(far, f.op("lshr", digits, 1 << power), digits)
        digits = f.convert("trunc", moved, f"i{min(digits.type.bits, bits + (1 << power) - 1)}")
    return digits


def _product(m: FloatLanes, window: LlvmValue, significand: LlvmValue, long: str) -> LlvmValue:
    """The product modulo the size of ``long``, of words of 32 bits: no processor multiplies numbers so wide."""
    f, word = m.f, 32
    factors = [_word(m, significand, at) for at in range(0, m.format.mantissa, word)]
    total = LlvmValue("0", vector(long))
    for at in range(0, total.type.bits, word):
        part = _word(m, window, at)
        for place, factor in enumerate(factors[: (total.type.bits - at) // word]):
            term = f.convert("zext", f.op("mul", part, factor), long)
            total = f.op("add", total, f.op("shl", term, at + place * word))
    return total


def _word(m: FloatLanes, number: LlvmValue, at: int) -> LlvmValue:
    """The 32 bits from ``at`` on, as an i64."""
    return m.f.convert("zext", m.f.convert("trunc", m.f.op("lshr", number, at), "i32"), "i64")


def _negated_where(m: FloatLanes, negative: LlvmValue, number: LlvmValue) -> LlvmValue:
    return m.select(negative, m.sub(LlvmValue("0", number.type), number), number)


def _fraction_to_angle(m: FloatLanes, rest: LlvmValue, fraction: int) -> LlvmValue:
    """The signed fixed-point number ``rest`` times pi/2, as a float."""
    f, bits, integer = m.f, m.format.bits, m.format.integer
    negative = m.compare("slt", rest, 0)
    size = m.either(_negated_where(m, negative, rest), 1)
    aligned, zeros = _aligned(m, size)
    top = f.convert("trunc", f.op("lshr", aligned, fraction + 3 - bits), integer)
    leading = to_float(f, top, m.format.scalar, m.target, signed=True)
    exponent = m.sub(m.integer(m.format.bias + 3 - bits), zeros)
    turns = m.mul(leading, m.power_of_two(exponent))
    high, low, _ = _constants(m).half_pi
    angle = m.fma(turns, m.number(high), m.mul(turns, m.number(low)))
    return m.select(negative, m.neg(angle), angle)


def _aligned(m: FloatLanes, size: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """A number that is not 0 moved until its first bit is set, and by how much."""
    f, zeros = m.f, m.integer(0)
    for power in reversed(range((size.type.bits - 1).bit_length())):
        small = m.compare("ult", size, 1 << (size.type.bits - (1 << power)))
        size = f.select(small, f.op("shl", size, 1 << power), size)
        zeros = m.add(zeros, f.select(small, m.integer(1 << power), m.integer(0)))
    return size, zeros


def _sin_cos(m: FloatLanes, r: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """sin and cos of |r| <= pi/4."""
    z = m.mul(r, r)
    sine = m.fma(m.mul(z, r), m.polynomial(z, _constants(m).sin), r)
    half = m.mul(z, m.number(0.5))
    head = m.sub(m.number(1.0), half)
    lost = m.sub(m.sub(m.number(1.0), head), half)
    cosine = m.add(head, m.fma(m.mul(z, z), m.polynomial(z, _constants(m).cos), lost))
    return sine, cosine


def _in_quadrant(m: FloatLanes, quadrant: LlvmValue, even: LlvmValue, odd: LlvmValue) -> LlvmValue:
    """``even`` or ``odd`` by the lowest bit of the quadrant, negated by the next."""
    is_odd = m.compare("ne", m.both(quadrant, m.integer(1)), m.integer(0))
    sign = m.both(m.shift_left(quadrant, m.format.bits - 2), m.integer(1 << (m.format.bits - 1)))
    chosen = m.bits(m.select(is_odd, odd, even))
    return m.from_bits(m.f.op("xor", chosen, sign))


def sin(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """-0 stays -0; NaN for infinities."""
    quadrant, r = _reduce(m, x)
    sine, cosine = _sin_cos(m, r)
    return m.select(m.compare("oeq", x, m.number(0.0)), x, _in_quadrant(m, quadrant, sine, cosine))


def cos(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """The sine a quadrant further; NaN for infinities."""
    quadrant, r = _reduce(m, x)
    sine, cosine = _sin_cos(m, r)
    return _in_quadrant(m, m.add(quadrant, m.integer(1)), sine, cosine)


def tan(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """sin(r)/cos(r), or -cos(r)/sin(r) in odd quadrants."""
    quadrant, r = _reduce(m, x)
    sine, cosine = _sin_cos(m, r)
    is_odd = m.compare("ne", m.both(quadrant, m.integer(1)), m.integer(0))
    result = m.div(m.select(is_odd, cosine, sine), m.select(is_odd, m.neg(sine), cosine))
    return m.select(m.compare("oeq", x, m.number(0.0)), x, result)


def _asin_parts(m: FloatLanes, magnitude: LlvmValue) -> tuple[LlvmValue, LlvmValue, LlvmValue, LlvmValue]:
    """s, s**3 * P(s**2), the error of s, and whether |x| < 1/2; s is |x|, or sqrt((1 - |x|)/2) beyond 1/2."""
    below = m.compare("olt", magnitude, m.number(0.5))
    half = m.mul(m.sub(m.number(1.0), magnitude), m.number(0.5))
    z = m.select(below, m.mul(magnitude, magnitude), half)
    root = m.sqrt(half)
    lost = m.div(m.fused(m.neg(root), root, half), m.add(root, root))
    lost = m.select(m.compare("ogt", half, m.number(0.0)), lost, m.number(0.0))
    s = m.select(below, magnitude, root)
    return s, m.mul(m.mul(s, z), m.polynomial(z, _constants(m).asin)), lost, below


def asin(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """x + x**3 P(x**2) below 1/2; pi/2 - 2 asin(sqrt((1 - |x|)/2)) above; NaN outside [-1, 1]."""
    s, tail, lost, below = _asin_parts(m, m.abs(x))
    high, low = _PI[m.format.scalar]
    twice = m.add(s, s)
    rest = m.add(m.add(tail, lost), m.add(tail, lost))
    above = m.sub(m.number(high / 2), m.sub(twice, m.sub(m.number(low / 2), rest)))
    return m.copysign(m.select(below, m.add(s, tail), above), x)


def acos(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """pi/2 - asin(x) below 1/2; 2 asin(sqrt((1 - |x|)/2)) above, from pi for negative x."""
    s, tail, lost, below = _asin_parts(m, m.abs(x))
    high, low = _PI[m.format.scalar]
    signed, signed_tail = m.copysign(s, x), m.copysign(tail, x)
    near = m.sub(m.number(high / 2), m.sub(signed, m.sub(m.number(low / 2), signed_tail)))
    half = m.add(s, m.add(tail, lost))
    positive = m.add(half, half)
    negative = m.sub(m.number(high), m.sub(positive, m.number(low)))
    far = m.select(m.compare("olt", x, m.number(0.0)), negative, positive)
    return m.select(below, near, far)


def atan(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """pi/2 + atan(-1/t) above tan(3 pi/8), pi/4 + atan((t-1)/(t+1)) above tan(pi/8), one division for both."""
    t = m.abs(x)
    high, low = _PI[m.format.scalar]
    one, zero = m.number(1.0), m.number(0.0)
    upper = m.compare("ogt", t, m.number(2.414213562373095))
    middle = m.compare("ogt", t, m.number(0.4142135623730951))
    numerator = m.select(upper, m.number(-1.0), m.select(middle, m.sub(t, one), t))
    denominator = m.select(upper, t, m.select(middle, m.add(t, one), one))
    y = m.div(numerator, denominator)
    z = m.mul(y, y)
    tail = m.mul(m.mul(y, z), m.polynomial(z, _constants(m).atan))
    base = m.select(upper, m.number(high / 2), m.select(middle, m.number(high / 4), zero))
    base_low = m.select(upper, m.number(low / 2), m.select(middle, m.number(low / 4), zero))
    return m.copysign(m.add(base, m.add(y, m.add(tail, base_low))), x)
