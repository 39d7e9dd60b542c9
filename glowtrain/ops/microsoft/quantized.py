"""Functions, means and moves of quantized tensors, which the quantizer emits.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. ONNX Runtime's kernels take
short cuts (tables, fixed point), so single numbers may differ by one step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, attribute, constant, operator
from glowtrain.ops.elementwise.activation import LeakyRelu, Sigmoid
from glowtrain.ops.elementwise.arithmetic import FusedMultiplyAdd
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.microsoft.base import (
    QuantizedResult,
    channels_behind,
    channels_first,
    draw_result,
    draw_tensor,
    quantize,
    real,
    steps,
)
from glowtrain.ops.pooling.pooling import AveragePool, draw_pool
from glowtrain.ops.quantized import convert as standard
from glowtrain.ops.quantized.scales import ScaleOperands
from glowtrain.ops.reduce.reduction import ReduceMean, accumulator, as_dtype
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.move import Concat, reshape
from glowtrain.types import Shape, TensorType, i8, u8


class QLinearBinary(QuantizedResult):
    """A function of two quantized tensors, (A, scale, zero point) and (B, scale, zero point), then C's two."""

    takes: ClassVar[tuple[int, int]] = (7, 8)
    scale_operands: ClassVar[ScaleOperands] = {1: 0, 4: 3, 6: None}

    def check(self, *inputs: TensorType | None) -> None:
        a, _, _, b = inputs[:4]
        if a is None or b is None or a.dtype != b.dtype:
            raise self.fail("A and B must have one element type", *inputs)
        self.check_tensors(*inputs, result=a.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, dtype = draw.shape(), draw.choice((i8, u8))
        other = draw.choice((shape, shape[1:], ()))
        left, right = draw_tensor(draw, shape, dtype), draw_tensor(draw, other, dtype)
        return Sample(cls(), (*left, *right, *draw_result(draw, dtype)))


@operator
@dataclass(frozen=True)
class QLinearAdd(QLinearBinary):
    """A + B on quantized tensors, as a linear form in their numbers that is rounded once: two multiply-adds."""

    def define(self, *inputs: Any) -> Value:
        a, sa, za, b, sb, zb, sc, zc = inputs
        sc = reshape(sc, ())
        ra, rb = reshape(sa, ()) / sc, reshape(sb, ()) / sc
        fused = FusedMultiplyAdd()
        start = _number(zc, sc) - fused(ra, _number(za, sc), rb * _number(zb, sc))
        units = fused(Cast(sc.dtype)(a), ra, fused(Cast(sc.dtype)(b), rb, start))
        return standard.quantize_units(units, None, a.dtype)


@operator
@dataclass(frozen=True)
class QLinearMul(QLinearBinary):
    """A · B on quantized tensors: the exact product of their numbers times one factor."""

    def define(self, *inputs: Any) -> Value:
        a, sa, za, b, sb, zb, sc, zc = inputs
        factor = reshape(sa, ()) * reshape(sb, ()) / reshape(sc, ())
        units = steps(a, za, sc.dtype) * steps(b, zb, sc.dtype) * factor + _number(zc, sc)
        return standard.quantize_units(units, None, a.dtype)


def _number(zero: Value | None, scale: Value) -> Value:
    """A zero point as a real number; 0 where it is absent."""
    result: Value = constant(0.0, scale.dtype) if zero is None else Cast(scale.dtype)(reshape(zero, ()))
    return result


class QLinearUnary(QuantizedResult, ABC):
    """A function of a quantized tensor (X, scale, zero point), then Y's scale and zero point."""

    takes: ClassVar[tuple[int, int]] = (4, 5)
    scale_operands: ClassVar[ScaleOperands] = {1: 0, 3: None}

    def check(self, *inputs: TensorType | None) -> None:
        self.check_tensors(*inputs, result=None if inputs[0] is None else inputs[0].dtype)

    def define(self, *inputs: Any) -> Value:
        x, sx, zx, sy, zy = inputs
        return quantize(self.apply(real(x, sx, zx)), sy, zy, x.dtype)

    @abstractmethod
    def apply(self, x: Value) -> Value:
        """The function of real numbers."""

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        dtype = draw.choice((i8, u8))
        return Sample(
            cls.draw_operator(draw), (*draw_tensor(draw, draw.shape(min_rank=1), dtype), *draw_result(draw, dtype))
        )


@operator
@dataclass(frozen=True)
class QLinearSigmoid(QLinearUnary):
    """1 / (1 + exp(-X)) on a quantized tensor."""

    def apply(self, x: Value) -> Value:
        result: Value = Sigmoid()(x)
        return result


@operator
@dataclass(frozen=True)
class QLinearLeakyRelu(QLinearUnary):
    """X where positive, else alpha · X, on a quantized tensor."""

    alpha: float = attribute(0.01, choices=(0.3,))

    def apply(self, x: Value) -> Value:
        result: Value = LeakyRelu(self.alpha)(x)
        return result


@operator
@dataclass(frozen=True)
class QLinearSoftmax(QLinearUnary):
    """Softmax of a quantized tensor, along ``axis``; before ``opset`` 13 along all axes from ``axis`` on."""

    opset: int = attribute(13, choices=(12,))
    axis: int = attribute(-1, choices=(0,))

    def apply(self, x: Value) -> Value:
        if self.opset >= 13:
            result: Value = Softmax(self.axis)(x)
            return result
        axis = self.axis % x.rank
        rows: Value = Softmax()(reshape(x, (*x.shape[:axis], int(np.prod(x.shape[axis:], dtype=np.int64)))))
        return reshape(rows, x.shape)

    def check(self, *inputs: TensorType | None) -> None:
        x = inputs[0]
        assert x is not None
        if not -x.rank <= self.axis < x.rank:
            raise self.fail(f"axis {self.axis} is outside of the operand's {x.rank}", *inputs)
        super().check(*inputs)


class QLinearMean(QLinearUnary):
    """Means over positions of a quantized tensor. The sums are exact; one multiplication turns them to Y's scale.

    Scales narrower than f32 are widened first, as sums are: rounding a mean to them would change results by a step.
    """

    def define(self, *inputs: Any) -> Value:
        x, sx, zx, sy, zy = inputs
        wide = accumulator(sx.dtype)
        units = self.apply(steps(x, zx, wide)) * (reshape(as_dtype(sx, wide), ()) / reshape(as_dtype(sy, wide), ()))
        return standard.quantize_units(units, zy, x.dtype)


class QLinearPool(QLinearMean):
    """Means over positions of a quantized image, [N, D..., C] with ``channels_last``."""

    channels_last: bool

    @abstractmethod
    def pooled(self, x: Value) -> Value:
        """The means of an image [N, C, D...]."""

    def apply(self, x: Value) -> Value:
        return channels_behind(self.pooled(channels_first(x))) if self.channels_last else self.pooled(x)


@operator
@dataclass(frozen=True)
class QLinearAveragePool(QLinearPool):
    """AveragePool of a quantized image."""

    auto_pad: str = "NOTSET"
    ceil_mode: bool = False
    channels_last: bool = False
    count_include_pad: bool = False
    kernel_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    def pooled(self, x: Value) -> Value:
        pool = AveragePool(
            auto_pad=self.auto_pad,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
            kernel_shape=self.kernel_shape,
            pads=self.pads,
            strides=self.strides,
        )
        result: Value = pool(x)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = draw_pool(draw)
        del chosen["dilations"]
        last, dtype = draw.boolean(), draw.choice((i8, u8))
        pads = chosen.get("pads", ())
        chosen["pads"] = (
            tuple(min(p, k - 1) for p, k in zip(pads, chosen["kernel_shape"] * 2, strict=True)) if pads else ()
        )
        chosen["ceil_mode"] = False
        pool = cls(channels_last=last, count_include_pad=draw.boolean(), **chosen)
        x = draw_tensor(draw, (shape[0], *shape[2:], shape[1]) if last else shape, dtype)
        return Sample(pool, (*x, *draw_result(draw, dtype)))


@operator
@dataclass(frozen=True)
class QLinearGlobalAveragePool(QLinearPool):
    """GlobalAveragePool of a quantized image."""

    channels_last: bool = False

    def pooled(self, x: Value) -> Value:
        result: Value = ReduceMean(axes=tuple(range(2, x.rank)))(x)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        dtype = draw.choice((i8, u8))
        x = draw_tensor(draw, draw.shape(min_rank=3), dtype)
        return Sample(cls(draw.boolean()), (*x, *draw_result(draw, dtype)))


@operator
@dataclass(frozen=True)
class QLinearReduceMean(QLinearMean):
    """The mean of a quantized tensor over ``axes``, or over all."""

    axes: Shape = attribute((), choices=((0,), (-1,)))
    keepdims: bool = True

    def apply(self, x: Value) -> Value:
        result: Value = ReduceMean(axes=self.axes or None, keepdims=self.keepdims)(x)
        return result


@operator
@dataclass(frozen=True)
class QLinearConcat(QuantizedResult):
    """Concat of quantized tensors: Y's scale and zero point, then each tensor with its own."""

    takes: ClassVar[tuple[int, int]] = (5, -1)
    axis: int

    def scales_among(self, count: int) -> ScaleOperands:
        return {0: None, **{position: position - 1 for position in range(3, count, 3)}}

    def check(self, *inputs: TensorType | None) -> None:
        if len(inputs) % 3 != 2 or any(x is None for x in inputs):
            raise self.fail("takes the result's scale and zero point, then tensors, each with both", *inputs)
        self.check_tensors(*inputs)

    def _padded(self, inputs: Any) -> tuple[Any, ...]:
        return tuple(inputs)

    def define(self, *inputs: Any) -> Value:
        sy, zy = inputs[:2]
        parts = [quantize(real(*inputs[at : at + 3]), sy, zy, zy.dtype) for at in range(2, len(inputs), 3)]
        result: Value = Concat(axis=self.axis)(*parts)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1)
        axis, dtype = draw.integer(0, len(shape) - 1), draw.choice((i8, u8))
        parts: list[Any] = []
        for _ in range(draw.integer(1, 3)):
            extents = tuple(draw.integer(1, 3) if a == axis else n for a, n in enumerate(shape))
            parts += draw_tensor(draw, extents, dtype, absent=False)
        return Sample(cls(axis), (*draw_result(draw, dtype), *parts))


@operator
@dataclass(frozen=True)
class QLinearWhere(QuantizedResult):
    """Where with quantized tensors: the condition, (X, scale, zero point), (Y, scale, zero point), then Z's two."""

    takes: ClassVar[tuple[int, int]] = (9, 9)
    scale_operands: ClassVar[ScaleOperands] = {2: 1, 5: 4, 7: None}

    def check(self, *inputs: TensorType | None) -> None:
        self.check_tensors(*inputs)

    def define(self, *inputs: Any) -> Value:
        condition, x, sx, zx, y, sy, zy, sz, zz = inputs
        chosen = Where()(
            condition, quantize(real(x, sx, zx), sz, zz, zz.dtype), quantize(real(y, sy, zy), sz, zz, zz.dtype)
        )
        result: Value = chosen
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, dtype = draw.shape(), draw.choice((i8, u8))
        left, right = (draw_tensor(draw, shape, dtype, absent=False) for _ in range(2))
        return Sample(cls(), (draw.booleans(shape), *left, *right, *draw_result(draw, dtype)))
