"""Special functions, in double precision whatever the type of the result: sums of large terms stay right in all digits
of a single one.

Sources: M. Abramowitz and I. Stegun, Handbook of Mathematical Functions (1964), 6.1.17, 6.1.41, 6.3.7, 6.3.18, 7.1.14,
9.6.16; S. Winitzki, A handy approximation for the error function and its inverse (2008); M. M. Shepherd and J. G.
Laframboise, Chebyshev approximation of (1 + 2x) exp(x²) erfc x in 0 ≤ x < ∞, Math. Comp. 36 (1981).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from glowtrain.grad.reverse import pullback
from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.arithmetic import Abs, Floor, Round, Sign, Sqrt
from glowtrain.ops.elementwise.logic import Equal, IsInf, Where
from glowtrain.ops.elementwise.transcendental import Atanh, Erf, Exp, Log, Sin, Tan
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import f64

SHIFT = 8
"""Asymptotic series are those of arguments beyond this."""
GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
"""Of log Γ(z), by odd powers of 1/z."""
MIDDLE = 3.75
"""The middle of the half line, for functions that are fitted there."""
NODES, FEW_NODES, ANGLES = 32, 24, 4096
"""Polynomials through so many points, few where more add noise to slopes; integrals over a period by so many."""


def _special(*names: str) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Enter a function of tensors in f64."""

    def enter(function: Callable[..., Value]) -> Callable[..., Value]:
        aten(*names)(lambda call, *operands: call.cast(function(*(as_type(each, f64) for each in operands))))
        return function

    return enter


def _where(condition: Value, x: Any, y: Any) -> Value:
    result: Value = Where()(condition, as_type(x, f64), as_type(y, f64))
    return result


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    total = as_type(coefficients[-1], f64)
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def _halves(x: Value) -> tuple[Value, Value, Value]:
    """Whether x is on the left of 1/2; its mirror image then, else x itself; how far beyond the nearest whole number it
    is, on the left."""
    left = x < 0.5
    return left, _where(left, 1.0 - x, x), _where(left, x - Round()(x), 0.5)


@_special("lgamma.default")
def lgamma(x: Value) -> Value:
    """Stirling's series beyond 8, Γ(z) = Γ(z + 8) / (z ··· (z + 7)) below, and π / (Γ(1 - x) sin πx) on the left;
    infinite at both infinities."""
    left, z, beyond = _halves(x)
    near = z < SHIFT
    far, low = _where(near, z + SHIFT, z), _where(near, z, 1)
    product = low
    for k in range(1, SHIFT):
        product = product * (low + k)
    series = _polynomial(1.0 / (far * far), GAMMA) / far
    stirling = (far - 0.5) * (Log()(far) - 1.0) + (series + 0.5 * math.log(2 * math.pi) - 0.5)
    right = stirling - _where(near, Log()(product), 0)
    mirrored = math.log(math.pi) - Log()(Sin()(Abs()(beyond) * math.pi)) - right
    return _where(IsInf()(x), math.inf, _where(left, mirrored, right))


def _slope(y: Value, x: Value) -> Value:
    """The derivative of an elementwise function."""
    (found,) = pullback([y], [constant(np.ones(x.shape))], [x])
    assert found is not None
    return found


def _digamma(x: Value) -> Value:
    """The derivative of :func:`lgamma`, but at its poles."""
    left, z, beyond = _halves(x)
    near = z < SHIFT
    far, low = _where(near, z + SHIFT, z), _where(near, z, 1)
    below = 1.0 / low
    for k in range(1, SHIFT):
        below = below + 1.0 / (low + k)
    square = 1.0 / (far * far)
    series = _polynomial(square, [(2 * k + 1) * c for k, c in enumerate(GAMMA)]) * square
    right = Log()(far) - 0.5 / far - series - _where(near, below, 0)
    return _where(left, right - math.pi / Tan()(beyond * math.pi), right)


def _is_pole(x: Value) -> Value:
    result: Value = (x < 0.5) & Equal()(Floor()(x), x)
    return result


@_special("digamma.default")
def digamma(x: Value) -> Value:
    """At 0 it is infinite, with the sign that 0 does not have; at other poles it is no number."""
    return _where(Equal()(x, 0.0), -1.0 / x, _digamma(x) + _where(_is_pole(x) & (x < 0.0), math.nan, 0))


@aten("polygamma.default")
def polygamma(call: AtenCall, n: int, x: Value) -> Any:
    """The n-th derivative of digamma."""
    x = as_type(x, f64)
    if not n:
        return call.cast(digamma(x))
    derivative = _digamma(x)
    for _ in range(n):
        derivative = _slope(derivative, x)
    return call.cast(_where(_is_pole(x), math.inf if n % 2 else -math.inf, derivative))


def _winitzki(logarithm: Value) -> Value:
    """About erfinv(x) for x ≥ 0, of log(1 - x²)."""
    a = 0.147
    half = logarithm * 0.5 + 2 / (math.pi * a)
    result: Value = Sqrt()(Sqrt()(half * half - logarithm * (1 / a)) - half)
    return result


@_special("erfinv.default", "special_erfinv.default")
def erfinv(x: Value) -> Value:
    """Winitzki's approximation, and three steps of Halley's, of which two are there for derivatives."""
    inside = Abs()(x) < 1.0
    within = _where(inside, x, 0)
    y = StopGradient()(Sign()(within) * _winitzki(Log()(1.0 - within * within)))
    for _ in range(3):
        step = (Erf()(y) - within) * Exp()(y * y) * (math.sqrt(math.pi) / 2)
        y = y - step / (1.0 + y * step)
    outside = _where(Equal()(x, 1.0), math.inf, _where(Equal()(x, -1.0), -math.inf, math.nan))
    return _where(inside, y, outside)


def _scaled_erfc(x: np.ndarray) -> np.ndarray:
    """exp(x²) erfc(x) for x ≥ 0: beyond 2 by a continued fraction."""
    near, rest = np.minimum(x, 2), np.maximum(x, 2)
    far = rest
    for k in range(300, 0, -1):
        rest = far + 0.5 * k / rest
    values: np.ndarray = np.where(
        x < 2, np.exp(near * near) * np.vectorize(math.erfc)(near), 1 / (rest * math.sqrt(math.pi))
    )
    return values


@cache
def _fitted_erfc() -> list[float]:
    """Chebyshev coefficients of (1 + 2x) exp(x²) erfc(x) in (x - 3.75) / (x + 3.75)."""
    points = np.polynomial.chebyshev.chebpts1(FEW_NODES)
    x = MIDDLE * (1 + points) / (1 - points)
    values = _scaled_erfc(x) * (1 + 2 * x)
    coefficients: list[float] = np.polynomial.chebyshev.chebfit(points, values, FEW_NODES - 1).tolist()
    return coefficients


def _tail(x: Value) -> Value:
    """exp(x²) erfc(x) for x ≥ 0."""
    return _chebyshev(1.0 - 2 * MIDDLE / (x + MIDDLE), _fitted_erfc()) / (2.0 * x + 1.0)


@_special("erfc.default")
def erfc(x: Value) -> Value:
    """1 - erf(x) up to 1/2, beyond what keeps the digits of small results."""
    far = (x > 0.5) & (x < 30.0)
    beyond = _where(far, x, 1)
    return _where(far, _exp(-(beyond * beyond)) * _tail(beyond), 1.0 - Erf()(x))


@_special("special_erfcx.default")
def erfcx(x: Value) -> Value:
    """exp(x²) erfc(x), which is infinite to the left of -27."""
    right, finite = x > 0.0, x > -27.0
    left, beyond = _where(right, 0, _where(finite, x, 0)), _where(finite, 0, x)
    size = _where(finite, _exp(left * left) * (1.0 - Erf()(left)), _exp(-27.0 * beyond))
    return _where(right, _tail(_where(right, x, 0)), size)


@_special("special_log_ndtr.default")
def log_ndtr(x: Value) -> Value:
    """The logarithm of the normal distribution: left of -1 of what erfc is scaled from, else by 2 artanh, which keeps
    the digits of small results."""
    t = x * math.sqrt(0.5)
    left = x < -1.0
    far, near = _where(left, -t, 1), _where(left, 0, t)
    beyond = 0.5 * erfc(near)
    return _where(left, Log()(0.5 * _tail(far)) - far * far, Atanh()(beyond / (beyond - 2.0)) * 2.0)


@_special("special_ndtri.default")
def ndtri(p: Value) -> Value:
    """The quantile of the normal distribution: on the left half, which the right mirrors, Winitzki's approximation and
    four steps of Newton's for the logarithm of the distribution, of which two are there for derivatives."""
    inside = (p > 0.0) & (p < 1.0)
    left = p < 0.5
    q = _where(inside, _where(left, p, 1.0 - p), 0.5)
    wanted = Log()(q)
    x = _winitzki(Log()(4.0 * q * (1.0 - q))) * -math.sqrt(2)
    for step in range(4):
        if step < 2:
            x = StopGradient()(x)
        distribution = 0.5 * erfc(x * -math.sqrt(0.5))
        density = _exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        x = x - (Log()(distribution) - wanted) * distribution / density
    end = _where(inside, 0.5, p)
    return _where(inside, _where(left, x, -x), _where(left, Log()(end), -Log()(1.0 - end)))


@_special("special_spherical_bessel_j0.default")
def spherical_bessel_j0(x: Value) -> Value:
    """sin(x) / x"""
    zero = Equal()(x, 0.0)
    quotient = Sin()(x) / _where(zero, 1, x)
    return _where(zero, 1, _where(IsInf()(x), 0, quotient))


# --- modified Bessel functions ----------------------------------------------------------------------------------------


def _scaled_i0(x: np.ndarray) -> np.ndarray:
    """exp(-x) I₀(x) for x ≥ 0: the mean of exp(x (cos θ - 1)) over a period."""
    angles = np.arange(ANGLES) * (2 * np.pi / ANGLES)
    mean: np.ndarray = np.exp(x[:, None] * (np.cos(angles) - 1)).mean(axis=1)
    return mean


@cache
def _fitted() -> tuple[list[float], list[float]]:
    """Chebyshev coefficients: of :func:`_scaled_i0` in x/4 - 1 up to 8; of its product with √x in 16/x - 1 beyond."""
    points = np.polynomial.chebyshev.chebpts1(NODES)
    near, far = 4 * (points + 1), 16 / (points + 1)
    values = _scaled_i0(near), _scaled_i0(far) * np.sqrt(far)
    low, high = (np.polynomial.chebyshev.chebfit(points, each, NODES - 1).tolist() for each in values)
    return low, high


def _chebyshev(t: Value, coefficients: Sequence[float]) -> Value:
    """A sum of Chebyshev polynomials, by Clenshaw's recurrence."""
    twice, last, before = t * 2.0, as_type(0, f64), as_type(0, f64)
    for coefficient in coefficients[:0:-1]:
        last, before = twice * last - before + coefficient, last
    return t * last - before + coefficients[0]


def _scaled(size: Value) -> Value:
    """exp(-x) I₀(x) for x ≥ 0."""
    low, high = _fitted()
    near = size <= SHIFT
    below, beyond = _where(near, size, 0), _where(near, SHIFT, size)
    return _where(near, _chebyshev(below * 0.25 - 1.0, low), _chebyshev(16.0 / beyond - 1.0, high) / Sqrt()(beyond))


def _size(x: Value) -> tuple[Value, Value]:
    """The sign, 1 for zeros, and the absolute value, whose slope it is."""
    sign = _where(x < 0.0, -1, 1)
    return sign, sign * x


def _exp(x: Value) -> Value:
    result: Value = Exp()(x)
    return result


@_special("i0.default", "special_i0.default", "special_modified_bessel_i0.default")
def i0(x: Value) -> Value:
    _, size = _size(x)
    return _exp(size) * _scaled(size)


@_special("special_i0e.default")
def i0e(x: Value) -> Value:
    return _scaled(Abs()(x))


@_special("special_i1e.default")
def i1e(x: Value) -> Value:
    """exp(-|x|) I₁(x), where I₁ is the derivative of I₀."""
    sign, size = _size(x)
    scaled = _scaled(size)
    return sign * (_slope(scaled, size) + scaled)


@_special("special_i1.default", "special_modified_bessel_i1.default")
def i1(x: Value) -> Value:
    return _exp(_size(x)[1]) * i1e(x)
