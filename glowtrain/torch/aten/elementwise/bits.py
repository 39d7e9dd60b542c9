"""Parts and neighbours of floats, by their bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.bitcast import BitCast
from glowtrain.ops.elementwise.logic import Equal, IsInf, IsNaN, Where
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import f64, i16, i32, i64

FRACTION, BIAS = 2**52, 1023
"""Of f64: how many fractions an exponent has, and what is added to it."""
LIFT = 54
"""By so many powers of 2 a number without leading bit gets one."""


@aten("frexp.Tensor")
def frexp(call: AtenCall, x: Value) -> Any:
    """A number in [1/2, 1), with the sign of x, and the power of 2 that it is multiplied with; x and 0 of what is 0 or
    not finite."""
    wide = as_type(x, f64)
    size = Abs()(wide)
    has_parts = ~(Equal()(wide, 0.0) | IsInf()(wide) | IsNaN()(wide))
    is_small = size < float(np.finfo(np.float64).tiny)
    lifted = BitCast(to=i64)(Where()(is_small, size * 2.0**LIFT, size)) / FRACTION - (BIAS - 1)
    exponent = Where()(has_parts, Where()(is_small, lifted - LIFT, lifted), 0)
    half = exponent / 2  # of the least number the whole power would be infinite
    return as_type(wide * _power(-half) * _power(half - exponent), x.dtype), as_type(exponent, i32)


def _power(exponent: Value) -> Value:
    """That of 2."""
    result: Value = BitCast(to=f64)((exponent + BIAS) * FRACTION)
    return result


@aten("nextafter.default")
def nextafter(call: AtenCall, x: Value, y: Value) -> Any:
    """The next number towards y: bits count away from 0. Where there is a step, the gradient is that of x."""
    x, y = call.cast(x), StopGradient()(call.cast(y))
    given = StopGradient()(x)
    bits = BitCast(to={2: i16, 4: i32, 8: i64}[x.dtype.size])(given)
    next_ = BitCast(to=x.dtype)(Where()(Equal()(given > 0, y > given), bits + 1, bits - 1))
    least = BitCast(to=x.dtype)(constant(1, bits.dtype))
    there = Where()(Equal()(given, 0), Where()(y < 0, -least, least), next_)
    there = Where()(IsNaN()(given) | IsNaN()(y), given + y, there)
    finite = Where()(IsInf()(given) | IsNaN()(given), 0, x)
    return Where()(Equal()(given, y), y, there - (StopGradient()(finite) - finite))
