"""Exponentials, logarithms and angles that are made of others."""

from __future__ import annotations

import math
from typing import Any

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise import activation, arithmetic, logic, transcendental
from glowtrain.ops.elementwise.extrema import Max
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.torch.aten.elementwise.arithmetic import is_negative
from glowtrain.torch.aten.table import AtenCall, aten


@aten("sinc.default")
def sinc(call: AtenCall, x: Value) -> Any:
    """sin(πx) / πx; at 0 it is 1, and its slope 0."""
    angle = call.cast(x) * call.cast(math.pi)
    zero = logic.Equal()(angle, call.cast(0))
    nonzero = logic.Where()(zero, call.cast(1), angle)
    return logic.Where()(zero, call.cast(1), transcendental.Sin()(nonzero) / nonzero)


@aten("exp2.default")
def exp2(call: AtenCall, x: Value) -> Any:
    return arithmetic.Pow()(call.cast(2), call.cast(x))


@aten("expm1.default")
def expm1(call: AtenCall, x: Value) -> Any:
    """2 sinh(x/2) exp(x/2), which keeps the digits of small x."""
    x = call.cast(x)
    is_small = arithmetic.Abs()(x) < 1.0
    half = logic.Where()(is_small, x * 0.5, call.cast(0))
    small = 2.0 * transcendental.Sinh()(half) * transcendental.Exp()(half)
    return logic.Where()(is_small, small, transcendental.Exp()(x) - 1.0)


@aten("log1p.default")
def log1p(call: AtenCall, x: Value) -> Any:
    """2 artanh(x / (x + 2)), which keeps the digits of small x."""
    x = call.cast(x)
    is_small = arithmetic.Abs()(x) < 0.5
    small = logic.Where()(is_small, x, call.cast(0))  # of a large one the slope of artanh is infinite
    return logic.Where()(is_small, 2.0 * transcendental.Atanh()(small / (small + 2.0)), transcendental.Log()(x + 1.0))


@aten("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def xlogy(call: AtenCall, x: Any, y: Any) -> Any:
    """x log(y), and 0 without a slope where x is 0 and the logarithm has no end or is none."""
    x, y, zero = call.cast(x), call.cast(y), call.cast(0)
    endless = logic.Equal()(x, zero) & ((y <= zero) | logic.Equal()(y, call.cast(math.inf)))
    return x * transcendental.Log()(logic.Where()(endless, call.cast(1), y))


@aten("log2.default")
def log2(call: AtenCall, x: Value) -> Any:
    return transcendental.Log()(call.cast(x)) * (1 / math.log(2))


@aten("log10.default")
def log10(call: AtenCall, x: Value) -> Any:
    return transcendental.Log()(call.cast(x)) * (1 / math.log(10))


@aten("logaddexp.default")
def logaddexp(call: AtenCall, x: Value, y: Value) -> Any:
    return log_of_sum(call.cast(x), call.cast(y))


def log_of_sum(x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y))"""
    apart = logic.Where()(logic.Equal()(x, y), constant(0, x.dtype), x - y)  # of equal infinities too
    result: Value = Max()(x, y) + activation.Softplus()(-arithmetic.Abs()(apart))
    return result


@aten("angle.default")
def angle(call: AtenCall, x: Value) -> Any:
    """Of real numbers: π where they are negative."""
    x = call.cast(x)
    return logic.Where()(logic.IsNaN()(x), x, logic.Where()(x < 0.0, call.cast(math.pi), call.cast(0)))


@aten("atan2.default")
def atan2(call: AtenCall, y: Value, x: Value) -> Any:
    """The angle of the point (x, y), from that to the nearer axis; infinite ones are on diagonals."""
    y, x, zero = call.cast(y), call.cast(x), call.cast(0)
    corner = logic.IsInf()(x) & logic.IsInf()(y)
    y, x = (logic.Where()(corner, arithmetic.Sign()(each), each) for each in (y, x))
    steep = arithmetic.Abs()(y) > arithmetic.Abs()(x)
    far = logic.Where()(steep, y, x)
    origin = logic.Equal()(x, zero) & logic.Equal()(y, zero)
    near = logic.Where()(origin, StopGradient()(y), logic.Where()(steep, x, y))
    inner = transcendental.Atan()(near / logic.Where()(origin, call.cast(1), far))
    side = logic.Where()(is_negative(y), call.cast(-math.pi), call.cast(math.pi))
    return logic.Where()(steep, side * 0.5 - inner, logic.Where()(is_negative(x), inner + side, inner))
