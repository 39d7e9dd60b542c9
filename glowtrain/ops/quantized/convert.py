"""Conversion between real numbers and quantized ones: real = (quantized - zero point) · scale.

Semantics: https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html at the newest opset. Rounding is to the nearest,
ties to even; what lies outside of the quantized type is saturated. Where ONNX leaves it open, NaN becomes the least
number of an integer type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Operator, Sample, Value, constant, operator
from glowtrain.loops import Expr, Statement, Tensor, call, cast, pointwise, select
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.elementwise.arithmetic import Div, Round
from glowtrain.ops.elementwise.cast import Cast, cast_float, convert, convert_float
from glowtrain.ops.elementwise.extrema import Clip, Max, Min
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.quantized.scales import ScaleOperands, WithScales, elements, named
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMin, ReduceSum
from glowtrain.ops.tensor.move import Expand, Slice, pad, reshape
from glowtrain.types import (
    SMALL_INTEGERS,
    Array,
    DType,
    Shape,
    TensorType,
    dtype_of,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f32,
    f64,
    i8,
    i16,
    i32,
    u8,
    u16,
)

FLOAT8 = frozenset({f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz})
INTEGERS = frozenset({i8, u8, i16, u16, *SMALL_INTEGERS})
QUANTIZED = INTEGERS | FLOAT8 | {f4e2m1, f6e2m3, f6e3m2}
"""Element types that real numbers are quantized to."""
STEPS = "its result is made of steps"


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    if dtype in SMALL_INTEGERS:
        return SMALL_INTEGERS[dtype]
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def names(dtypes: frozenset[DType]) -> str:
    """Element types as listed in messages."""
    return ", ".join(sorted(map(str, dtypes)))


def quantized(value: Expr, zero: Expr | None, dtype: DType, saturate: bool = True) -> Expr:
    """A number in units of the scale as an element of ``dtype``."""
    wide = value if value.dtype == f64 else cast(value, f32)
    if dtype not in INTEGERS:
        shifted = wide if zero is None or dtype in FLOAT8 else wide + cast(zero, wide.dtype)
        return cast_float(shifted, dtype, saturate)
    low, high = limits(dtype)
    rounded = call("round", wide)
    shifted = rounded if zero is None else rounded + cast(zero, wide.dtype)
    return cast(select(shifted > low, call("min", shifted, high), low), dtype)


def quantized_array(value: Array, zero: Array | None, dtype: DType, saturate: bool = True) -> Array:
    """:func:`quantized` of arrays (``zero`` broadcasts)."""
    wide = value if value.dtype == np.float64 else convert(value, f32)
    if dtype not in INTEGERS:
        shifted = wide if zero is None or dtype in FLOAT8 else wide + convert(zero, f32)
        return convert_float(shifted, dtype, saturate)
    low, high = limits(dtype)
    shifted = np.rint(wide) if zero is None else np.rint(wide) + convert(zero, f32)
    return convert(np.where(shifted > low, np.minimum(shifted, high), low), dtype)


@dataclass(frozen=True)
class Blocks:
    """Which scale belongs to an element: one for all, one for each index along ``axis``, or one for each block on it.

    ``extents`` is the shape of scales, of the tensor's rank; ``size`` says how many indices share one.
    """

    shape: Shape
    extents: Shape
    axis: int
    size: int

    def subscripts(self, index: Sequence[Expr]) -> list[Expr | int]:
        """Subscripts in scales of shape ``extents`` for an element."""
        blocked = [i // self.size if axis == self.axis and self.size > 1 else i for axis, i in enumerate(index)]
        return [0 if extent == 1 else i for extent, i in zip(self.extents, blocked, strict=True)]

    def load(self, scales: Tensor, index: Sequence[Expr]) -> Expr:
        """The scale of an element."""
        subscripts = self.subscripts(index)
        if len(scales.shape) != len(self.extents):
            subscripts = [subscripts[self.axis]] if scales.shape and self.extents else [0] * len(scales.shape)
        return scales.load(subscripts)

    def spread(self, scales: Array) -> Array:
        """An array of scales that broadcasts with the tensor."""
        scales = scales.reshape(self.extents)
        if self.size == 1:
            return scales
        return np.repeat(scales, self.size, self.axis).take(np.arange(self.shape[self.axis]), self.axis)

    def spread_value(self, scales: Value) -> Value:
        """:meth:`spread` in graph code."""
        scales = reshape(scales, self.extents)
        if self.size == 1:
            return scales
        before, after = self.extents[: self.axis + 1], self.extents[self.axis + 1 :]
        repeated: Value = Expand((*before, self.size, *after))(reshape(scales, (*before, 1, *after)))
        flat = reshape(repeated, (*before[:-1], before[-1] * self.size, *after))
        result: Value = Slice((0,), (self.shape[self.axis],), (self.axis,))(flat)
        return result

    def gathered(self, x: Value, shape: Shape) -> Value:
        """Sums over all elements that share a scale, in the scales' own ``shape``."""
        if self.size > 1:
            missing = self.extents[self.axis] * self.size - self.shape[self.axis]
            ends = [missing if axis == self.axis else 0 for axis in range(len(self.shape))]
            x = pad(x, (0,) * len(ends) + tuple(ends))
            rest = self.shape[self.axis + 1 :]
            x = reshape(x, (*self.shape[: self.axis], self.extents[self.axis], self.size, *rest))
            x = ReduceSum(axes=(self.axis + 1,), keepdims=False)(x)
        axes = [axis for axis, extent in enumerate(self.extents) if extent == 1 and x.shape[axis] != 1]
        return reshape(ReduceSum(axes=tuple(axes))(x) if axes else x, shape)


def blocks(op: Operator, axis: int, block_size: int, *types: Any) -> Blocks:
    """How the scales of a tensor are laid out: types of tensor, scales and zero points. Raises ``ShapeError``."""
    x, scale = types[:2]
    zero = types[2] if len(types) > 2 else None
    if zero is not None and zero.shape != scale.shape and not zero.size == scale.size == 1:
        raise op.fail("scale and zero point must have one shape", *types)
    if scale.size == 1 and scale.rank <= 1 and not block_size:
        return Blocks(x.shape, (1,) * x.rank, 0, 1)
    axis = normalize_axis(op, axis, x)
    if scale.rank == 1 and not block_size:
        if scale.shape[0] != x.shape[axis]:
            raise op.fail(f"{scale.shape[0]} scales for the {x.shape[axis]} positions on axis {axis}", *types)
        extents = tuple(scale.shape[0] if a == axis else 1 for a in range(x.rank))
        return Blocks(x.shape, extents, axis, 1)
    if not block_size:
        raise op.fail(f"scales of rank {scale.rank} are for blocks: say block_size, or give one for each place", *types)
    wanted = tuple(-(-n // block_size) if a == axis and block_size > 0 else n for a, n in enumerate(x.shape))
    if block_size < 1 or scale.shape != wanted:
        rule = f"with block_size={block_size} on axis {axis} the scales must have shape {list(wanted)}"
        raise op.fail(f"{rule}, without blocks one element or as many as positions on the axis", *types)
    return Blocks(x.shape, scale.shape, axis, block_size)


def check_float_zeros(op: WithScales, inputs: Sequence[Value | None], positions: Sequence[int]) -> None:
    """Zero points of 8-bit floats say the type only: ONNX's reference refuses others. Raises ``ShapeError``."""
    for zero in (inputs[position] for position in positions if position < len(inputs)):
        array = elements(zero) if zero is not None and zero.dtype in FLOAT8 else None
        if zero is not None and array is not None and array.any():
            raise op.refused(named(zero, "zero point", array, array != 0), f"that of {zero.dtype} must be 0", inputs)


@dataclass(frozen=True)
class ScaledConversion(WithScales):
    """Real numbers and quantized ones, with one scale for all, for each index along ``axis``, or for each block."""

    axis: int = 1
    block_size: int = 0
    output_dtype: DType | None = None

    setting_inputs: ClassVar[tuple[int, ...]] = (1,)

    def check_constants(self, inputs: Sequence[Value | None]) -> None:
        super().check_constants(inputs)
        check_float_zeros(self, inputs, (2,))

    def layout(self, *inputs: Any) -> Blocks:
        """Which scale belongs to an element, for operands that are arrays, values or tensors."""
        shapes = [None if x is None else TensorType(f32, tuple(x.shape)) for x in inputs[:3]]
        return blocks(self, self.axis, self.block_size, *shapes)


@operator
@dataclass(frozen=True)
class QuantizeLinear(ScaledConversion):
    """saturate(round(x / scale) + zero point), with one scale for all, each index along ``axis``, or each block.

    The zero point's type is the result's; without one it is ``output_dtype``, else u8. The quotient is computed in
    ``precision``, else in the scale's type.
    """

    precision: DType | None = None
    saturate: bool = True

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS
    scale_operands: ClassVar[ScaleOperands] = {1: None}

    def infer(self, *inputs: Any) -> TensorType:
        x, scale, zero = (*inputs, None)[:3]
        if not x.dtype.is_float and x.dtype != i32:
            raise self.fail("what is quantized must be floating or i32", *inputs)
        if not scale.dtype.is_float and scale.dtype not in (i32, f8e8m0):
            raise self.fail("scales must be floating, i32 or f8e8m0", *inputs)
        if self.output_dtype and zero is not None and zero.dtype != self.output_dtype:
            raise self.fail(f"output_dtype differs from the zero point's type {zero.dtype}", *inputs)
        result = self.result_dtype(None if zero is None else zero.dtype)
        if result not in QUANTIZED:
            raise self.fail(f"{result} is none of the quantized types {names(QUANTIZED)}", *inputs)
        blocks(self, self.axis, self.block_size, *inputs)
        quantized_type: TensorType = x.with_dtype(result)
        return quantized_type

    def result_dtype(self, zero: DType | None) -> DType:
        """The quantized type, given that of the zero point."""
        return zero or self.output_dtype or u8

    def _division(self, scale: DType) -> DType:
        return self.precision or (scale if scale.is_float else f32)

    def reference(self, *inputs: Any) -> Array:
        x, scale, zero = (*inputs, None)[:3]
        dtype = self.result_dtype(None if zero is None else dtype_of(zero.dtype))
        layout = self.layout(*inputs)
        division = self._division(dtype_of(scale.dtype))
        quotient = convert(x, division) / layout.spread(convert(scale, division))
        return quantized_array(quotient, None if zero is None else layout.spread(zero), dtype, self.saturate)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        x, scale, zero = (*inputs, None)[:3]
        layout, division = self.layout(*inputs), self._division(scale.dtype)

        def element(*index: Expr) -> Expr:
            quotient = cast(x[index], division)
            if not _is_known(scale, 1):
                quotient = quotient / cast(layout.load(scale, index), division)
            absent = zero is None or (outputs[0].dtype in INTEGERS and _is_known(zero, 0))
            offset = None if absent else layout.load(zero, index)
            return quantized(quotient, offset, outputs[0].dtype, self.saturate)

        return pointwise(outputs[0], element)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, axis, block, scales = draw_layout(draw)
        x = draw.floats(shape, -6.0, 6.0)
        scale = draw.floats(scales, 0.01, 1.0)
        dtype = draw.choice(sorted(QUANTIZED, key=str))
        if draw.boolean():
            return Sample(cls(axis, block, dtype, draw.choice((None, f32)), draw.boolean()), (x, scale))
        zero = draw_zero(draw, scales, dtype)
        return Sample(cls(axis, block, saturate=draw.boolean()), (x, scale, zero))


def _is_known(tensor: Tensor, number: int) -> bool:
    """Whether all elements are known to be one number: dividing by 1 and adding 0 change nothing."""
    constant = tensor.buffer.constant_array
    return constant is not None and bool((constant == number).all())


def draw_layout(draw: Draw) -> tuple[Shape, int, int, Shape]:
    """A shape, an axis, a block size (0: none) and the shape of scales."""
    shape = draw.shape(min_rank=1)
    axis = draw.integer(-len(shape), len(shape) - 1)
    kind = draw.choice(("one", "axis", "block"))
    if kind == "one":
        return shape, axis, 0, draw.choice(((), (1,)))
    if kind == "axis":
        return shape, axis, 0, (shape[axis],)
    size, position = draw.integer(1, 3), axis % len(shape)
    return shape, axis, size, tuple(-(-n // size) if a == position else n for a, n in enumerate(shape))


def draw_zero(draw: Draw, shape: Shape, dtype: DType) -> Array:
    """Zero points: numbers of an integer type, 0 of an 8-bit float."""
    if dtype in FLOAT8:
        return np.zeros(shape, np.float32).astype(dtype.numpy)
    low, high = limits(dtype) if dtype in INTEGERS else (0, 1)
    return convert(draw.integers(shape, max(low, -300), min(high, 300)), dtype)


@operator
@dataclass(frozen=True)
class DequantizeLinear(ScaledConversion):
    """(x - zero point) · scale, in ``output_dtype`` or the scale's type; differentiable in the scale."""

    scale_operands: ClassVar[ScaleOperands] = {1: 0}

    def infer(self, *inputs: Any) -> TensorType:
        x, scale, zero = (*inputs, None)[:3]
        if x.dtype not in QUANTIZED | {i32}:
            raise self.fail(f"what is dequantized must be i32 or one of {names(QUANTIZED)}", *inputs)
        if zero is not None and zero.dtype != x.dtype:
            raise self.fail(
                f"operand and zero point must have one element type, not {x.dtype} and {zero.dtype}", *inputs
            )
        result = self.output_dtype or scale.dtype
        if not result.is_float or not (scale.dtype.is_float or scale.dtype == f8e8m0):
            raise self.fail("scales must be floating, or f8e8m0 with a floating output_dtype", *inputs)
        blocks(self, self.axis, self.block_size, *inputs)
        real: TensorType = x.with_dtype(result)
        return real

    def reference(self, *inputs: Any) -> Array:
        x, scale, zero = (*inputs, None)[:3]
        result = self.output_dtype or dtype_of(scale.dtype)
        wide = f64 if f64 in (result, dtype_of(scale.dtype)) else f32
        layout = self.layout(*inputs)
        difference = convert(x, wide)
        if zero is not None:
            difference = difference - convert(layout.spread(zero), wide)
        return convert(difference * layout.spread(convert(scale, wide)), result)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        x, scale, zero = (*inputs, None)[:3]
        rest = (None,) * (len(inputs) - 2)
        if not scale.dtype.is_float:
            return None, None, *rest
        layout = self.layout(*inputs)
        wide = f64 if f64 in (y.dtype, scale.dtype) else f32
        difference = Cast(wide)(x)
        if zero is not None:
            difference = difference - layout.spread_value(Cast(wide)(zero))
        return None, Cast(scale.dtype)(layout.gathered(Cast(wide)(g) * difference, scale.shape)), *rest

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        x, scale, zero = (*inputs, None)[:3]
        layout = self.layout(*inputs)
        wide = f64 if f64 in (outputs[0].dtype, scale.dtype) else f32

        def element(*index: Expr) -> Expr:
            difference = cast(x[index], wide)
            if zero is not None:
                difference = difference - cast(layout.load(zero, index), wide)
            return difference * cast(layout.load(scale, index), wide)

        return pointwise(outputs[0], element)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, axis, block, scales = draw_layout(draw)
        dtype = draw.choice(sorted({*QUANTIZED, i32}, key=str))
        low, high = limits(dtype) if dtype in INTEGERS | {i32} else (0, 3)
        x = convert(draw.integers(shape, max(low, -200), min(high, 200)), dtype)
        zero = draw_zero(draw, scales, dtype) if dtype != i32 and draw.boolean() else None
        return Sample(cls(axis, block), (x, draw.floats(scales, 0.1, 2.0), zero))


@operator
@dataclass(frozen=True)
class DynamicQuantizeLinear(Operator):
    """x quantized to u8 so that its range, and 0, just fit: the numbers, their scale and their zero point.

    As in ONNX Runtime the scale of a tensor of zeros is 1; ONNX's formula has 0 / 0 there.
    """

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = inputs
        if not x.dtype.is_float:
            raise self.fail("the operand must be floating", x)
        if x.size == 0:
            raise self.fail("a tensor without elements has no range", x)
        return x.with_dtype(u8), TensorType(x.dtype), TensorType(u8)

    def reference(self, x: Array) -> tuple[Array, ...]:
        wide = x if x.dtype == np.float64 else convert(x, f32)
        low, high = np.minimum(wide.min(), 0), np.maximum(wide.max(), 0)
        scale = np.asarray(np.where(high == low, 1.0, (high - low) / 255)).astype(wide.dtype)
        scale = scale.astype(x.dtype).astype(wide.dtype)
        zero = np.rint(np.clip(-low / scale, 0, 255))
        return quantized_array(np.asarray(wide / scale), zero, u8), scale.astype(x.dtype), convert(zero, u8)

    def decompose(self, x: Value) -> tuple[Value, ...]:
        wide = x if x.dtype == f64 else Cast(f32)(x)
        nothing = constant(0.0, wide.dtype)
        low = Min()(ReduceMin(keepdims=False)(wide), nothing)
        high = Max()(ReduceMax(keepdims=False)(wide), nothing)
        scale = Cast(x.dtype)(Where()(Equal()(high, low), constant(1.0, wide.dtype), Div()(high - low, 255.0)))
        exact = Cast(wide.dtype)(scale)
        zero = Cast(u8)(Round()(Clip()(-low / exact, nothing, constant(255.0, wide.dtype))))
        return QuantizeLinear()(wide, exact, zero), scale, zero

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        low = draw.choice((-3.0, 0.5, -9.0))
        return Sample(cls(), (draw.floats(draw.shape(), low, draw.choice((low + 0.25, 4.0))),))


def quantize_units(x: Value, zero: Value | None, dtype: DType) -> Value:
    """A tensor in units of the scale, rounded, shifted by a zero point for all, and saturated."""
    one = constant(1.0, x.dtype)
    if zero is None:
        result: Value = QuantizeLinear(output_dtype=dtype)(x, one)
    else:
        result = QuantizeLinear()(x, one, reshape(zero, ()))
    return result


def constant_array(value: Value | None) -> Array | None:
    """The elements of a constant."""
    return value.array if isinstance(value, Constant) else None
