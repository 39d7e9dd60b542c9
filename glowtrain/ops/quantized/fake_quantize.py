"""Quantization that gradients pass: real numbers rounded to what a quantized type can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.loops import Expr, Statement, Tensor, call, cast, pointwise, select
from glowtrain.ops.core.family import Grads
from glowtrain.ops.elementwise.arithmetic import Round
from glowtrain.ops.elementwise.cast import Cast, convert
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.ops.elementwise.logic import GreaterOrEqual, LessOrEqual, Where
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.quantized.convert import (
    INTEGERS,
    Blocks,
    DequantizeLinear,
    QuantizeLinear,
    blocks,
    draw_layout,
    draw_zero,
    limits,
    names,
)
from glowtrain.types import Array, DType, TensorType, dtype_of, f32, f64


@operator
@dataclass(frozen=True)
class FakeQuantize(Operator):
    """y = (clip(round(x / scale) + zero point, low, high) - zero point) · scale: the bits of DequantizeLinear on
    QuantizeLinear, in one loop.

    Operands: x, the scale (of x's type), and the zero point, whose type is the quantized one and gives low and high.
    Both have one element, one for each position on ``axis``, or one for each block of ``block_size`` positions, as
    those of QuantizeLinear. NaN stays NaN, so that a training that diverges is noticed; an integer cannot hold it.

    The gradient is not that of the steps, which is 0, but of :meth:`surrogate`: rounding is taken for adding a number
    that does not depend on x and scale (the straight-through estimator, Bengio, Léonard and Courville 2013,
    arXiv:1308.3432). With c = x / scale, the nearest step n = round(c), and the bounds l = low - zero point and
    h = high - zero point:

        dy/dx     = 1 where l <= n <= h, else 0
        dy/dscale = n - c there, l below, h above

    which is the rule of learned step size quantization (Esser et al., ICLR 2020, arXiv:1902.08153), but for the half
    step past the bounds, which counts as inside: the largest weight of a channel, from which its scale was made, lies
    at a bound up to rounding. ``step_gradient`` is a factor on the scale's gradient, such as the paper's
    1 / sqrt(N · high) for N elements that share a scale.
    """

    axis: int = 1
    block_size: int = 0
    step_gradient: float = 1.0

    domain: ClassVar[str] = "glowtrain"
    setting_inputs: ClassVar[tuple[int, ...]] = (2,)

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 3 or any(type_ is None for type_ in inputs):
            raise self.fail("takes x, its scale and its zero point", *inputs)
        x, scale, zero = inputs
        if not x.dtype.is_float or scale.dtype != x.dtype:
            raise self.fail("x and its scale must have one floating element type", *inputs)
        if zero.dtype not in INTEGERS:
            raise self.fail(f"the zero point's type must be the quantized one, of {names(INTEGERS)}", *inputs)
        blocks(self, self.axis, self.block_size, *inputs)
        return x

    def layout(self, *inputs: Any) -> Blocks:
        """Which scale belongs to an element, for operands that are arrays, values or tensors."""
        return blocks(self, self.axis, self.block_size, *(TensorType(f32, tuple(x.shape)) for x in inputs))

    def reference(self, *inputs: Array) -> Array:
        x, scale, zero = inputs
        layout, wide = self.layout(*inputs), _wide(dtype_of(x.dtype))
        step, offset = layout.spread(scale), convert(layout.spread(zero), wide)
        low, high = limits(dtype_of(zero.dtype))
        shifted = np.rint(convert(x / step, wide)) + offset
        return convert((np.clip(shifted, low, high) - offset) * convert(step, wide), dtype_of(x.dtype))

    def vjp(self, g: Value, y: Value, *inputs: Value) -> Grads:
        x, scale, _ = inputs
        c, inside, kept = self._in_steps(*inputs)
        slope = Cast(c.dtype)(g) * (kept - Where()(inside, c, 0.0))
        steps = self.layout(*inputs).gathered(slope, scale.shape)
        if self.step_gradient != 1.0:
            steps = steps * self.step_gradient
        return Where()(inside, g, 0.0), Cast(x.dtype)(steps), None

    def surrogate(self, *inputs: Value) -> Value:
        """What :meth:`vjp` gives the gradient of: (c + r) · scale with the rounding r = n - c as it is at the point,
        and l · scale or h · scale where x was outside."""
        x, scale, _ = inputs
        layout, wide = self.layout(*inputs), _wide(x.dtype)
        _, inside, kept = self._in_steps(*inputs)
        held, step = StopGradient()(Cast(wide)(inside)), Cast(wide)(scale)
        followed = layout.spread_value(StopGradient()(step) + self.step_gradient * (step - StopGradient()(step)))
        c = held * (Cast(wide)(x) / followed)
        result: Value = Cast(x.dtype)((c + StopGradient()(kept - c)) * followed)
        return result

    def _in_steps(self, *inputs: Value) -> tuple[Value, Value, Value]:
        """x in units of its scale; whether the nearest step is one of the quantized type's; the step that is taken."""
        x, scale, zero = inputs
        layout, wide = self.layout(*inputs), _wide(x.dtype)
        least, greatest = limits(zero.dtype)
        offset = layout.spread_value(Cast(wide)(zero))
        low, high = least - offset, greatest - offset
        c = Cast(wide)(x / layout.spread_value(scale))
        nearest = Round()(c)
        inside = GreaterOrEqual()(nearest, low) & LessOrEqual()(nearest, high)
        return c, inside, Min()(Max()(nearest, low), high)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        x, scale, zero = inputs
        layout, wide = self.layout(*inputs), _wide(outputs[0].dtype)
        low, high = limits(zero.dtype)

        def element(*index: Expr) -> Expr:
            step, offset = layout.load(scale, index), cast(layout.load(zero, index), wide)
            shifted = call("round", cast(x[index] / step, wide)) + offset
            kept = select(shifted < low, low, select(shifted > high, high, shifted))
            return (kept - offset) * cast(step, wide)

        return pointwise(outputs[0], element)

    def decompose(self, *inputs: Value) -> Value:
        x, scale, zero = inputs
        steps = QuantizeLinear(self.axis, self.block_size)(x, scale, zero)
        result: Value = DequantizeLinear(self.axis, self.block_size)(steps, scale, zero)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Numbers near steps of the range and past its ends, well away from where rounding jumps."""
        shape, axis, block, scales = draw_layout(draw)
        dtype = draw.choice(sorted(INTEGERS, key=str))
        factor = draw.choice((1.0, 0.25))
        zero = draw_zero(draw, scales, dtype)
        use = cls(axis, block, factor)
        scale = draw.floats(scales, 0.05, 0.5)
        layout = use.layout(np.empty(shape), scale, zero)
        offset = layout.spread(zero).astype(np.int64)
        low, high = limits(dtype)
        nearest = np.clip(draw.integers(shape, -20, 20), low - offset - 3, high - offset + 3)
        return Sample(use, ((nearest + draw.floats(shape, -0.3, 0.3)) * layout.spread(scale), scale, zero))


def _wide(dtype: DType) -> DType:
    """The type in which steps are counted: whole numbers of 16 bits are exact in it."""
    return f64 if dtype == f64 else f32
