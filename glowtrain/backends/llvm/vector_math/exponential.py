"""exp, log, the hyperbolic functions, erf and pow.

The methods are the classical ones (Cody and Waite, "Software Manual for the Elementary Functions", 1980; Tang,
"Table-driven implementation of the exponential function", 1989, for the reduction; fdlibm for the log in s =
f/(2+f)); the polynomials are this project's (see :mod:`coefficients`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from glowtrain.backends.llvm.values import LlvmValue
from glowtrain.backends.llvm.vector_math import coefficients as c
from glowtrain.backends.llvm.vector_math.float_lanes import SINGLE, FloatLanes


def _constants(m: FloatLanes) -> c.Coefficients:
    return c.BY_SCALAR[m.format.scalar]


def clamp(m: FloatLanes, x: LlvmValue, low: float | None, high: float | None) -> LlvmValue:
    """x between constants; NaN stays NaN."""
    if low is not None:
        x = m.select(m.compare("olt", x, m.number(low)), m.number(low), x)
    if high is not None:
        x = m.select(m.compare("ogt", x, m.number(high)), m.number(high), x)
    return x


def _reduce(m: FloatLanes, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """r and the bits of 2*bias + n with x = n*ln2 + r and |r| <= ln2/2 (Cody-Waite)."""
    n, shifted = m.nearest(x, math.log2(math.e))
    exponent = m.sub(shifted, m.integer(m.format.bits_of(m.format.magic) - 2 * m.format.bias))
    return _rest(m, x, n), exponent


def _rest(m: FloatLanes, x: LlvmValue, n: LlvmValue) -> LlvmValue:
    """x - n*ln2."""
    high, low = _constants(m).ln2
    return m.fma(n, m.number(-low), m.fma(n, m.number(-high), x))


def _exp_of_rest(m: FloatLanes, r: LlvmValue) -> LlvmValue:
    tail = m.fma(m.mul(r, r), m.polynomial(r, _constants(m).exp), r)
    return m.add(tail, m.number(1.0))


def _exp_scaled(m: FloatLanes, x: LlvmValue, *, halved: bool = False, extra: LlvmValue | None = None) -> LlvmValue:
    """exp(x + extra), or half of it, for clamped x; ``extra`` is small beside x."""
    r, exponent = _reduce(m, x)
    if extra is not None:
        r = m.add(r, extra)
    if halved:
        exponent = m.add(exponent, m.integer(-1))
    return m.scale(_exp_of_rest(m, r), exponent)


def _exp_times(m: FloatLanes, x: LlvmValue, exponent: int) -> LlvmValue:
    """exp(x) * 2**exponent, which must be normal; with an odd exponent the bits are those of :func:`_exp_scaled`."""
    n, power = m.nearest_power(x, math.log2(math.e), exponent)
    return m.mul(_exp_of_rest(m, _rest(m, x, n)), power)


def exp(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """1.01 ulp in single; denormal results are exact to half a unit of the denormal.

    What underflows to 0 is chosen, not computed: products that underflow take some processors 100 cycles and more, and
    all but few arguments of a masked softmax are such.
    """
    return _unless_it_underflows(m, x, lambda inside: _exp_scaled(m, clamp(m, inside, None, _constants(m).exp_high)))


def _unless_it_underflows(m: FloatLanes, x: LlvmValue, exp: Callable[[LlvmValue], LlvmValue]) -> LlvmValue:
    """``exp`` of x, and 0 where that underflows."""
    low, nothing = m.number(_constants(m).exp_low), m.number(0.0)
    underflows = m.compare("olt", x, low)
    return m.select(underflows, nothing, exp(m.select(underflows, nothing, x)))


def _exp_of_minus(m: FloatLanes, magnitude: LlvmValue) -> LlvmValue:
    """:func:`exp` of a magnitude's negative, with the same bits: nothing overflows, so it takes fewer instructions."""
    up = m.format.bias // 2
    down = m.number(2.0**-up)
    return _unless_it_underflows(m, m.neg(magnitude), lambda inside: m.mul(_exp_times(m, inside, up), down))


def expm1(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """exp(x) - 1 without cancellation: 2 * (2**(n-1) * (exp(r) - 1) + (2**(n-1) - 1/2)); -0 stays -0."""
    inside = clamp(m, x, _constants(m).expm1_low, _constants(m).expm1_high)
    r, exponent = _reduce(m, inside)
    p = m.fma(m.mul(r, r), m.polynomial(r, _constants(m).expm1), r)
    scale = m.power_of_two(m.sub(exponent, m.integer(m.format.bias + 1)))
    half = m.fma(scale, p, m.sub(scale, m.number(0.5)))
    return m.copysign(m.add(half, half), x)


def _log_split(m: FloatLanes, x: LlvmValue) -> tuple[LlvmValue, LlvmValue, LlvmValue]:
    """k (a float), the bits of m, and m - 1 with x = 2**k * m, m in [sqrt(1/2), sqrt(2)), for normal positive x."""
    form, root = m.format, _constants(m).sqrt_half
    moved = m.sub(m.bits(x), m.integer(root - (form.bias << form.mantissa)))
    k = m.small_integer(m.shift_right(moved, form.mantissa), -form.bias)
    significand = m.add(m.both(moved, m.integer((1 << form.mantissa) - 1)), m.integer(root))
    return k, significand, m.sub(m.from_bits(significand), m.number(1.0))


def _log_of(m: FloatLanes, k: LlvmValue, r: LlvmValue) -> LlvmValue:
    """k*ln2 + log(1 + r)."""
    high, low = (m.number(part) for part in _constants(m).ln2)
    if m.format is SINGLE:
        square = m.mul(r, r)
        tail = m.fma(square, m.number(-0.5), m.mul(m.mul(square, r), m.polynomial(r, c.LOG_SINGLE)))
        return m.fma(k, high, m.add(m.fma(k, low, tail), r))
    s = m.div(r, m.add(r, m.number(2.0)))
    z = m.mul(s, s)
    half_square = m.mul(m.mul(r, r), m.number(0.5))
    tail = m.mul(s, m.fma(z, m.polynomial(z, c.LOG_DOUBLE), half_square))
    inner = m.sub(half_square, m.fma(k, low, tail))
    return m.fma(k, high, m.sub(r, inner))


def _log_normal(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    k, _, r = _log_split(m, x)
    return _log_of(m, k, r)


def _log_split_any(m: FloatLanes, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """k and m - 1 of :func:`_log_split` for positive x that may be denormal: those are scaled up first."""
    power = m.format.mantissa + 2
    small = m.compare("olt", x, m.number(m.format.smallest))
    k, _, r = _log_split(m, m.select(small, m.mul(x, m.number(2.0**power)), x))
    return m.select(small, m.sub(k, m.number(float(power))), k), r


def _log_any(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """log of any number."""
    return _log_specials(m, x, _log_of(m, *_log_split_any(m, x)))


def _log_specials(m: FloatLanes, x: LlvmValue, result: LlvmValue) -> LlvmValue:
    """log(inf) = inf, log(0) = -inf, NaN for negative numbers and NaN."""
    result = m.select(m.compare("oeq", x, m.number(math.inf)), x, result)
    result = m.select(m.compare("oeq", x, m.number(0.0)), m.number(-math.inf), result)
    return m.select(m.compare("ult", x, m.number(0.0)), m.number(math.nan), result)


def log(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """0.85 ulp in single. Only where a lane is zero, negative, denormal, infinite or NaN is the full version run."""
    first = m.format.bits_of(m.format.smallest)
    span = m.format.bits_of(math.inf) - first
    rare = m.compare("uge", m.sub(m.bits(x), m.integer(first)), m.integer(span))
    return m.where_rare(rare, [_log_normal(m, x)], lambda: [_log_any(m, x)])[0]


def log1p(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """log(1 + x): the rounding error of 1 + x is added to the reduced argument (exact where 1 + x loses x's bits)."""
    outside = m.either(m.compare("ule", x, m.number(-1.0)), m.compare("uge", x, m.number(2.0 ** (m.format.bias - 1))))

    def rare() -> list[LlvmValue]:
        large = m.compare("oge", x, m.number(2.0 ** (m.format.bias - 1)))
        bounded = m.select(large, m.number(1.0), x)
        special = m.select(m.compare("oeq", x, m.number(-1.0)), m.number(-math.inf), m.number(math.nan))
        special = m.select(large, _log_any(m, x), special)
        return [m.select(outside, special, _log1p_inside(m, bounded))]

    result = m.where_rare(outside, [_log1p_inside(m, x)], rare)[0]
    return m.select(m.compare("oeq", x, m.number(0.0)), x, result)


def _log1p_inside(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    form = m.format
    u, error = m.sum(m.number(1.0), x)
    k, significand, r = _log_split(m, u)
    power = m.sub(m.integer(form.bias << form.mantissa), m.sub(m.bits(u), significand))
    return _log_of(m, k, m.fma(error, m.from_bits(power), r))


def sigmoid(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """1 / (1 + exp(-x)), written with exp(-|x|) so that nothing overflows."""
    e = _exp_of_minus(m, m.abs(x))
    numerator = m.select(m.compare("oge", x, m.number(0.0)), m.number(1.0), e)
    return m.div(numerator, m.add(e, m.number(1.0)))


def softplus(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    tail = _log1p_inside(m, _exp_of_minus(m, m.abs(x)))
    return m.add(m.select(m.compare("ogt", x, m.number(0.0)), x, m.number(0.0)), tail)


def tanh(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """1.3 ulp in single, 2.5 in double, where it is -t / (t + 2) with t = expm1(-2|x|)."""
    magnitude = m.abs(x)
    return m.copysign(_tanh_single(m, x, magnitude) if m.format is SINGLE else _tanh_double(m, magnitude), x)


def _tanh_single(m: FloatLanes, x: LlvmValue, magnitude: LlvmValue) -> LlvmValue:
    """A polynomial below 0.625, 1 - 1/(exp(2|x|)/2 + 1/2) above: 1.32 ulp."""
    z = m.mul(x, x)
    small = m.fma(m.mul(z, magnitude), m.polynomial(z, c.TANH_SINGLE), magnitude)
    bounded = clamp(m, magnitude, None, 9.1)
    half = _exp_times(m, m.add(bounded, bounded), -1)
    large = m.sub(m.number(1.0), m.div(m.number(1.0), m.add(half, m.number(0.5))))
    return m.select(m.compare("olt", magnitude, m.number(0.625)), small, large)


def _tanh_double(m: FloatLanes, magnitude: LlvmValue) -> LlvmValue:
    t = expm1(m, m.mul(magnitude, m.number(-2.0)))
    return m.div(m.neg(t), m.add(t, m.number(2.0)))


def sinh(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """With t = expm1(|x|): (t + t/(t+1)) / 2, and exp(|x|)/2 where the second term no longer matters."""
    magnitude = m.abs(x)
    t = expm1(m, magnitude)
    small = m.mul(m.add(t, m.div(t, m.add(t, m.number(1.0)))), m.number(0.5))
    large = _exp_scaled(m, clamp(m, magnitude, None, _constants(m).exp_high), halved=True)
    return m.copysign(m.select(m.compare("olt", magnitude, m.number(_constants(m).sinh_large)), small, large), x)


def cosh(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """e + 1/(4e) with e = exp(|x|)/2."""
    e = _exp_scaled(m, clamp(m, m.abs(x), None, _constants(m).exp_high), halved=True)
    return m.add(e, m.div(m.number(0.25), e))


def _log1p_or_log2x(m: FloatLanes, magnitude: LlvmValue, argument: LlvmValue) -> LlvmValue:
    """log1p(argument), or log(2 * magnitude) where the magnitude is so large that squares overflow."""
    large = m.compare("oge", magnitude, m.number(_constants(m).asinh_large))
    shift = m.select(large, m.number(math.log(2.0)), m.number(0.0))
    return m.add(log1p(m, m.select(large, magnitude, argument)), shift)


def asinh(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """sign(x) * log1p(|x| + x**2 / (1 + sqrt(x**2 + 1)))."""
    magnitude, square = m.abs(x), m.mul(x, x)
    root = m.sqrt(m.add(square, m.number(1.0)))
    argument = m.add(magnitude, m.div(square, m.add(root, m.number(1.0))))
    return m.copysign(_log1p_or_log2x(m, magnitude, argument), x)


def acosh(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """log1p(t + sqrt(2t + t**2)) with t = x - 1; NaN below 1."""
    t = m.sub(x, m.number(1.0))
    root = m.sqrt(m.fma(t, t, m.add(t, t)))
    result = _log1p_or_log2x(m, x, m.add(t, root))
    return m.select(m.compare("ult", x, m.number(1.0)), m.number(math.nan), result)


def atanh(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """log1p(2|x| / (1 - |x|)) / 2."""
    magnitude = m.abs(x)
    argument = m.div(m.add(magnitude, magnitude), m.sub(m.number(1.0), magnitude))
    return m.copysign(m.mul(log1p(m, argument), m.number(0.5)), x)


def erf(m: FloatLanes, x: LlvmValue) -> LlvmValue:
    """x + x*P(x**2) near zero, 1 - exp(Q(|x|)) beyond (the form of N. Juffa's erff)."""
    magnitude = m.abs(x)
    if m.format is SINGLE:
        edge, small, t = 0.927734375, c.ERF_SMALL_SINGLE, clamp(m, magnitude, None, 4.0)
        exponent = m.fma(t, m.polynomial(t, c.ERF_LARGE_SINGLE), m.neg(t))
    else:
        edge, small, t = 1.0, c.ERF_SMALL_DOUBLE, clamp(m, magnitude, None, 5.95)
        exponent = m.polynomial(m.sub(t, m.number(2.0)), c.ERF_LARGE_DOUBLE)
    near = m.fma(m.polynomial(m.mul(x, x), small), x, x)
    far = m.fma(_exp_times(m, exponent, 1), m.number(-0.5), m.number(1.0))
    chosen = m.select(m.compare("ole", magnitude, m.number(edge)), near, far)
    return m.copysign(chosen, x)


def pow(m: FloatLanes, x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """x**y with IEEE 754's special cases, which are looked at only where a lane needs them.

    Single is computed in double (0.51 ulp), double with a logarithm of twice the precision.
    """
    first = m.format.bits_of(m.format.smallest)
    span = m.format.bits_of(math.inf) - first
    unusual = m.compare("uge", m.sub(m.bits(x), m.integer(first)), m.integer(span))
    unusual = m.either(unusual, m.compare("uge", m.abs(y), m.number(math.inf)))

    def rare() -> list[LlvmValue]:
        magnitude = m.abs(x)
        return [_pow_specials(m, x, y, magnitude, _pow_positive(m, magnitude, y, usual=False))]

    return m.where_rare(unusual, [_pow_positive(m, x, y, usual=True)], rare)[0]


def _pow_positive(m: FloatLanes, x: LlvmValue, y: LlvmValue, *, usual: bool) -> LlvmValue:
    """exp(y * log(x)) for positive x, which is normal if ``usual``."""
    if m.format is SINGLE:
        wide = m.wider()
        logarithm = (_log_normal if usual else _log_any)(wide, m.extend(x))
        return m.narrow(exp(wide, wide.mul(m.extend(y), logarithm)))
    high, low = _log_twofold(m, *(_log_split(m, x)[::2] if usual else _log_split_any(m, x)))
    product, error = m.product(y, high)
    error = m.fma(y, low, error)
    inside = clamp(m, product, _constants(m).exp_low, _constants(m).exp_high)
    finite = m.compare("oeq", inside, product)
    return _exp_scaled(m, inside, extra=m.select(finite, error, m.number(0.0)))


def _log_twofold(m: FloatLanes, k: LlvmValue, f: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """k*ln2 + log(1 + f) as an unevaluated sum, relative error about 2**-65.

    The leading terms of 2*atanh(f/(2+f)) are computed twofold.
    """
    s, s_low = _quotient(m, f)
    z, z_error = m.product(s, s)
    z_low = m.fma(m.add(s, s), s_low, z_error)
    third, third_low = 1 / 3, 1.850371707708594e-17
    t, t_error = m.product(z, m.number(third))
    t_low = m.fma(z, m.number(third_low), m.fma(z_low, m.number(third), t_error))
    t_low = m.fma(m.mul(z, z), m.polynomial(z, c.LOG_TAIL_DOUBLE), t_low)
    u, u_error = m.product(s, t)
    u_low = m.fma(s, t_low, m.fma(s_low, t, u_error))
    a, a_low = m.sum(s, u)
    a_low = m.add(a_low, m.add(u_low, s_low))
    return _add_exponent(m, k, m.add(a, a), m.add(a_low, a_low))


def _quotient(m: FloatLanes, f: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """f / (2 + f) as an unevaluated sum."""
    d, d_low = m.sum(m.number(2.0), f)
    s = m.div(f, d)
    remainder = m.fused(m.neg(s), d, f)
    return s, m.div(m.fma(m.neg(s), d_low, remainder), d)


def _add_exponent(m: FloatLanes, k: LlvmValue, a: LlvmValue, a_low: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """k*ln2 + (a + a_low); k times the head of ln2 is exact."""
    head, middle, tail = 0.6931471803691238, 1.9082149292705877e-10, 1.1612227229362532e-26
    b, b_error = m.product(k, m.number(middle))
    high, low = m.sum(m.mul(k, m.number(head)), a)
    high2, low2 = m.sum(high, b)
    low = m.add(low, m.add(low2, m.add(a_low, m.fma(k, m.number(tail), b_error))))
    return m.sum(high2, low)


def _pow_specials(m: FloatLanes, x: LlvmValue, y: LlvmValue, magnitude: LlvmValue, power: LlvmValue) -> LlvmValue:
    """The cases of IEEE 754-2019 section 9.2.1 that log and exp do not give.

    Signs, 1**y, x**0, zeros and infinities.
    """
    one, zero, infinity = m.number(1.0), m.number(0.0), m.number(math.inf)
    y_size = m.abs(y)
    whole = m.compare("oeq", m.rounded("trunc", y), y)
    half = m.mul(y, m.number(0.5))
    odd = m.both(whole, m.compare("one", m.rounded("trunc", half), half))
    grows = m.compare("ogt", y, zero)
    at_zero = m.select(grows, zero, infinity)
    at_infinity = m.select(grows, infinity, zero)
    result = m.select(m.compare("oeq", magnitude, zero), at_zero, power)
    result = m.select(m.compare("oeq", magnitude, infinity), at_infinity, result)
    larger = m.compare("ogt", magnitude, one)
    to_infinity = m.select(larger, at_infinity, m.select(grows, zero, infinity))
    to_infinity = m.select(m.compare("oeq", magnitude, one), one, to_infinity)
    result = m.select(m.compare("oeq", y_size, infinity), to_infinity, result)
    negative = m.compare("slt", m.bits(x), m.integer(0))
    result = m.select(m.both(negative, odd), m.neg(result), result)
    finite_negative = m.both(m.compare("olt", x, zero), m.compare("olt", magnitude, infinity))
    result = m.select(m.both(finite_negative, m.compare("one", m.rounded("trunc", y), y)), m.number(math.nan), result)
    result = m.select(m.either(m.is_nan(x), m.is_nan(y)), m.number(math.nan), result)
    return m.select(m.either(m.compare("oeq", x, one), m.compare("oeq", y, zero)), one, result)
