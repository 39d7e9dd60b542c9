"""sin, cos, tan and their inverses.

Arguments are reduced by a three-part pi/2 (Cody and Waite); where a lane is too large for that, by Payne and Hanek's
method ("Radian reduction for trigonometric functions", 1983) in wide integers, off the usual path. The inverses
follow fdlibm's cuts of the range; the polynomials are this project's (see :mod:`coefficients`).
"""

from __future__ import annotations

import math

from glowtrain.backends.llvm.text import Text
from glowtrain.backends.llvm.vector_math import coefficients as c
from glowtrain.backends.llvm.vector_math.lanes import SINGLE, Lanes

_TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d",
    16,
)
"""2/pi * 2**1280."""

_PI = {"float": (3.14159274101257324, -8.74227800037248506e-8), "double": (math.pi, 1.2246467991473532e-16)}
"""pi as a sum of two numbers of the format."""


def _constants(m: Lanes) -> c.Coefficients:
    return c.BY_SCALAR[m.format.scalar]


def _reduce(m: Lanes, x: Text) -> tuple[Text, Text]:
    """The integer k (its low two bits, in a lane's bits) nearest to x / (pi/2), and x - k * pi/2."""
    n, quadrant = m.nearest(x, 2 / math.pi)
    minus_n, r = m.neg(n), x
    for part in _constants(m).half_pi:
        r = m.fused(minus_n, m.number(part), r)
    size = m.abs(x)
    large = m.both(
        m.compare("ogt", size, m.number(_constants(m).trig_limit)), m.compare("olt", size, m.number(math.inf))
    )

    def rare() -> tuple[Text, Text]:
        exact_r, exact_quadrant = _reduce_large(m, x)
        return m.select(large, exact_r, r), m.int_select(large, exact_quadrant, quadrant)

    r, quadrant = m.where_rare(large, [r, quadrant], rare, [m.type, m.integers])
    return quadrant, r


def _reduce_large(m: Lanes, x: Text) -> tuple[Text, Text]:
    """The reduction of :func:`_payne_hanek` for every lane, one after the other."""
    if m.width == 1:
        return _payne_hanek(m, x)
    one = Lanes(m.f, m.format, 1, m.target)
    with m.f.loop(m.width, [(m.type, m.number(0.0)), (m.integers, m.integer(0))], hint="lane") as loop:
        lane = m.f.value(f"extractelement {m.type} {x}, i64 {loop.index}")
        r, quadrant = _payne_hanek(one, lane)
        loop.next = [
            m.f.value(f"insertelement {m.type} {loop.carried[0]}, {one.type} {r}, i64 {loop.index}"),
            m.f.value(f"insertelement {m.integers} {loop.carried[1]}, {one.integers} {quadrant}, i64 {loop.index}"),
        ]
    return loop.results[0], loop.results[1]


def _payne_hanek(m: Lanes, x: Text) -> tuple[Text, Text]:
    """One lane: (x - k*pi/2, k) from the bits of 2/pi that matter at x's exponent.

    With |x| = M * 2**e the product M * (2/pi * 2**e mod 4) is formed in fixed point with ``fraction`` bits after the
    point: enough that the worst cancellation of the format leaves a full mantissa.
    """
    known, fraction = (256, 94) if m.format is SINGLE else (1280, 190)
    wide, long = f"i{known}", f"i{fraction + 2}"
    value, form = m.f.value, m.format
    bits = m.bits(x)
    field = m.int_and(m.shift_right(bits, form.mantissa), m.integer(2 * form.bias + 1))
    significand = m.int_and(bits, m.integer((1 << form.mantissa) - 1))
    significand = value(f"or {form.integer} {significand}, {1 << form.mantissa}")
    shift = m.int_sub(m.integer(known - fraction + form.bias + form.mantissa), field)
    shift = m.int_select(m.int_compare("ult", shift, m.integer(known)), shift, m.integer(0))
    window = value(f"lshr {wide} {_TWO_OVER_PI >> (1280 - known)}, {value(f'zext {form.integer} {shift} to {wide}')}")
    factor = value(f"zext {form.integer} {significand} to {long}")
    product = value(f"mul {long} {value(f'trunc {wide} {window} to {long}')}, {factor}")
    negative = m.int_compare("slt", bits, m.integer(0))
    product = value(f"select i1 {negative}, {long} {value(f'sub {long} 0, {product}')}, {long} {product}")
    turned = value(f"lshr {long} {value(f'add {long} {product}, {1 << (fraction - 1)}')}, {fraction}")
    rest = value(f"sub {long} {product}, {value(f'shl {long} {turned}, {fraction}')}")
    return _fraction_to_angle(m, rest, fraction), value(f"trunc {long} {turned} to {form.integer}")


def _fraction_to_angle(m: Lanes, rest: Text, fraction: int) -> Text:
    """The signed fixed-point number ``rest`` times pi/2, as a float."""
    long, bits, value = f"i{fraction + 2}", m.format.bits, m.f.value
    negative = value(f"icmp slt {long} {rest}, 0")
    size = value(f"select i1 {negative}, {long} {value(f'sub {long} 0, {rest}')}, {long} {rest}")
    size = value(f"or {long} {size}, 1")
    zeros = value(f"call {long} @llvm.ctlz.{long}({long} {size}, i1 true)")
    aligned = value(f"shl {long} {size}, {zeros}")
    top = value(f"trunc {long} {value(f'lshr {long} {aligned}, {fraction + 3 - bits}')} to {m.format.integer}")
    leading = value(f"sitofp {m.format.integer} {top} to {m.format.scalar}")
    exponent = m.int_sub(m.integer(m.format.bias + 3 - bits), value(f"trunc {long} {zeros} to {m.format.integer}"))
    turns = m.mul(leading, m.power_of_two(exponent))
    high, low, _ = _constants(m).half_pi
    angle = m.fma(turns, m.number(high), m.mul(turns, m.number(low)))
    return m.select(negative, m.neg(angle), angle)


def _sin_cos(m: Lanes, r: Text) -> tuple[Text, Text]:
    """sin and cos of |r| <= pi/4."""
    z = m.mul(r, r)
    sine = m.fma(m.mul(z, r), m.polynomial(z, _constants(m).sin), r)
    half = m.mul(z, m.number(0.5))
    head = m.sub(m.number(1.0), half)
    lost = m.sub(m.sub(m.number(1.0), head), half)
    cosine = m.add(head, m.fma(m.mul(z, z), m.polynomial(z, _constants(m).cos), lost))
    return sine, cosine


def _in_quadrant(m: Lanes, quadrant: Text, even: Text, odd: Text) -> Text:
    """``even`` or ``odd`` by the lowest bit of the quadrant, negated by the next."""
    is_odd = m.int_compare("ne", m.int_and(quadrant, m.integer(1)), m.integer(0))
    sign = m.int_and(m.shift_left(quadrant, m.format.bits - 2), m.integer(1 << (m.format.bits - 1)))
    chosen = m.bits(m.select(is_odd, odd, even))
    return m.from_bits(m.f.value(f"xor {m.integers} {chosen}, {sign}"))


def sin(m: Lanes, x: Text) -> Text:
    """-0 stays -0; NaN for infinities."""
    quadrant, r = _reduce(m, x)
    sine, cosine = _sin_cos(m, r)
    return m.select(m.compare("oeq", x, m.number(0.0)), x, _in_quadrant(m, quadrant, sine, cosine))


def cos(m: Lanes, x: Text) -> Text:
    """The sine a quadrant further; NaN for infinities."""
    quadrant, r = _reduce(m, x)
    sine, cosine = _sin_cos(m, r)
    return _in_quadrant(m, m.int_add(quadrant, m.integer(1)), sine, cosine)


def tan(m: Lanes, x: Text) -> Text:
    """sin(r)/cos(r), or -cos(r)/sin(r) in odd quadrants."""
    quadrant, r = _reduce(m, x)
    sine, cosine = _sin_cos(m, r)
    is_odd = m.int_compare("ne", m.int_and(quadrant, m.integer(1)), m.integer(0))
    result = m.div(m.select(is_odd, cosine, sine), m.select(is_odd, m.neg(sine), cosine))
    return m.select(m.compare("oeq", x, m.number(0.0)), x, result)


def _asin_parts(m: Lanes, magnitude: Text) -> tuple[Text, Text, Text, Text]:
    """s, s**3 * P(s**2), the error of s, and whether |x| < 1/2; s is |x|, or sqrt((1 - |x|)/2) beyond 1/2."""
    below = m.compare("olt", magnitude, m.number(0.5))
    half = m.mul(m.sub(m.number(1.0), magnitude), m.number(0.5))
    z = m.select(below, m.mul(magnitude, magnitude), half)
    root = m.sqrt(half)
    lost = m.div(m.fused(m.neg(root), root, half), m.add(root, root))
    lost = m.select(m.compare("ogt", half, m.number(0.0)), lost, m.number(0.0))
    s = m.select(below, magnitude, root)
    return s, m.mul(m.mul(s, z), m.polynomial(z, _constants(m).asin)), lost, below


def asin(m: Lanes, x: Text) -> Text:
    """x + x**3 P(x**2) below 1/2; pi/2 - 2 asin(sqrt((1 - |x|)/2)) above; NaN outside [-1, 1]."""
    s, tail, lost, below = _asin_parts(m, m.abs(x))
    high, low = _PI[m.format.scalar]
    twice = m.add(s, s)
    rest = m.add(m.add(tail, lost), m.add(tail, lost))
    above = m.sub(m.number(high / 2), m.sub(twice, m.sub(m.number(low / 2), rest)))
    return m.copysign(m.select(below, m.add(s, tail), above), x)


def acos(m: Lanes, x: Text) -> Text:
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


def atan(m: Lanes, x: Text) -> Text:
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
