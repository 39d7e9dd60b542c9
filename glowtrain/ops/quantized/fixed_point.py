"""Rescaling of integer sums without floating point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.loops import Const, Expr, Statement, Tensor, call, cast, pointwise
from glowtrain.ops.core.family import broadcastable
from glowtrain.ops.elementwise.arithmetic import Round
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.quantized.convert import INTEGERS, STEPS, limits, names
from glowtrain.types import SMALL_INTEGERS, Array, TensorType, f64, i8, i32, i64, u8

BITS = 31
"""Bits of a multiplier: factors are kept to 2 ** -31 of their size."""
LARGEST_SHIFT = 62


@operator
@dataclass(frozen=True)
class Rescale(Operator):
    """y = saturate(round(x · multiplier / 2 ** shift) + zero point), for x, multiplier and shift in i32.

    Products are i64; ties round to even, as ONNX's QuantizeLinear has it. Multiplier and shift (1 to 62) broadcast to
    x; the zero point is one number, of the result's type. It is RESCALE of TOSA
    (https://www.mlplatform.org/tosa/tosa_spec.html), after Jacob et al., arXiv:1712.05877, section 2.2, but for ties:
    half a unit, less one place, plus the last bit of the floor carries where that is odd.
    """

    domain: ClassVar[str] = "glowtrain"
    elementwise: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def infer(self, *inputs: Any) -> TensorType:
        if len(inputs) != 4 or any(x is None for x in inputs):
            raise self.fail("takes x, multiplier, shift and zero point", *inputs)
        x, multiplier, shift, zero = inputs
        if not x.dtype == multiplier.dtype == shift.dtype == i32:
            raise self.fail("x, multiplier and shift must be i32", *inputs)
        if zero.dtype not in INTEGERS - SMALL_INTEGERS.keys() or zero.rank:
            raise self.fail(f"the zero point must be one of {names(INTEGERS - SMALL_INTEGERS.keys())}", *inputs)
        for part in (multiplier, shift):
            trailing = x.shape[x.rank - part.rank :] if part.rank <= x.rank else None
            if trailing is None or any(n not in (1, m) for n, m in zip(part.shape, trailing, strict=True)):
                raise self.fail("multiplier and shift must broadcast to x", *inputs)
        result: TensorType = x.with_dtype(zero.dtype)
        return result

    def reference(self, *inputs: Any) -> Array:
        x, multiplier, shift, zero = inputs
        wide, by = x.astype(np.int64) * multiplier, shift.astype(np.int64)
        odd = (wide >> by) & 1
        rounded = (wide + (np.int64(1) << (by - 1)) - 1 + odd) >> by
        info = np.iinfo(zero.dtype)
        return np.asarray(np.clip(rounded + zero.astype(np.int64), info.min, info.max)).astype(zero.dtype)

    def decompose(self, *inputs: Any) -> Value:
        """In f64, which holds every product of up to 53 bits."""
        x, multiplier, shift, zero = inputs
        units = Cast(f64)(x) * Cast(f64)(multiplier) * (constant(2.0, f64) ** -Cast(f64)(shift))
        low, high = (constant(float(end), f64) for end in limits(zero.dtype))
        shifted: Value = Round()(units) + Cast(f64)(zero)
        result: Value = Cast(zero.dtype)(Clip()(shifted, low, high))
        return result

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        x, multiplier, shift, zero = inputs
        low, high = limits(outputs[0].dtype)

        def element(*index: Expr) -> Expr:
            product = cast(x[index], i64) * cast(multiplier.broadcast(index), i64)
            by = cast(shift.broadcast(index), i64)
            half = call("shift_left", Const(1, i64), by - 1)
            odd = call("and", call("shift_right", product, by), Const(1, i64))
            units = call("shift_right", product + half - 1 + odd, by) + cast(zero.broadcast(index), i64)
            return cast(call("min", call("max", units, low), high), outputs[0].dtype)

        return pointwise(outputs[0], element)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        x = draw.integers(shape, -(1 << 20), 1 << 20).astype(np.int32)
        factors = draw.floats(broadcastable(draw, shape), 1e-5, 2e-3)
        dtype = draw.choice((i8, u8))
        zero = draw.integers((), *limits(dtype)).astype(dtype.numpy)
        return Sample(cls(), (x, *fixed_point(factors), zero))


def fixed_point(factors: Array) -> tuple[Array, Array]:
    """Multipliers and shifts in i32 such that factor ≈ multiplier / 2 ** shift, to 31 bits where the factor is above
    2 ** -32, else to as many as 62 binary places give. Factors must be above 0 and below 2 ** 30.

    Raises ``ValueError`` for others.
    """
    factors = np.asarray(factors, np.float64)
    if not ((factors > 0) & (factors < math.ldexp(1, BITS - 1))).all():
        raise ValueError(f"factors must lie between 0 and 2 ** {BITS - 1}")
    exponents = np.frexp(factors)[1]
    shifts = np.minimum(BITS - exponents, LARGEST_SHIFT)
    multipliers = np.rint(np.ldexp(factors, shifts))
    doubled = multipliers >= math.ldexp(1, BITS)
    multipliers, shifts = np.where(doubled, multipliers / 2, multipliers), np.where(doubled, shifts - 1, shifts)
    return multipliers.astype(np.int32), shifts.astype(np.int32)
