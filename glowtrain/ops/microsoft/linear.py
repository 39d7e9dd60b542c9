"""Quantization, dequantization, and products of quantized tensors.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.ops.convolution.attributes import ConvAttributes
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.microsoft.base import (
    Microsoft,
    QuantizedResult,
    channels_behind,
    channels_first,
    draw_result,
    draw_scale,
    draw_tensor,
    integer_product,
    present,
)
from glowtrain.ops.quantized import convert as standard
from glowtrain.ops.quantized.convert import STEPS
from glowtrain.ops.quantized.integer_products import MatMulInteger, draw_bytes, draw_product, draw_weight
from glowtrain.ops.quantized.qlinear import QLinearConv
from glowtrain.ops.quantized.scales import ScaleOperands
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.types import Shape, TensorType, i8, i32, u8


@operator
@dataclass(frozen=True)
class MicrosoftQuantizeLinear(QuantizedResult):
    """QuantizeLinear before ONNX had 16 and 4 bits: without ``axis`` there is one scale for all."""

    onnx: ClassVar[str] = "QuantizeLinear"
    takes: ClassVar[tuple[int, int]] = (2, 3)
    scale_operands: ClassVar[ScaleOperands] = {1: None}
    axis: int | None = None

    def check(self, *inputs: TensorType | None) -> None:
        _check_axis(self, self.axis, *inputs)

    def define(self, *inputs: Any) -> Value:
        result: Value = standard.QuantizeLinear(axis=1 if self.axis is None else self.axis)(*present(inputs))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, axis, _, scales = _draw_axis(draw)
        zero = standard.draw_zero(draw, scales, draw.choice(_SIXTEEN)) if draw.boolean() else None
        return Sample(cls(axis), (draw.floats(shape, -6.0, 6.0), draw.floats(scales, 0.01, 1.0), zero))


_SIXTEEN = tuple(sorted(standard.INTEGERS, key=str))


def _check_axis(op: Operator, axis: int | None, *inputs: TensorType | None) -> None:
    scale = inputs[1]
    assert scale is not None
    if axis is None and scale.size != 1:
        raise op.fail("several scales need an axis", *inputs)


def _draw_axis(draw: Draw) -> tuple[Shape, int | None, int, Shape]:
    shape, axis, block, scales = standard.draw_layout(draw)
    if block:
        scales = (shape[axis],)
    return shape, axis if scales and scales != (1,) else None, 0, scales


@operator
@dataclass(frozen=True)
class MicrosoftDequantizeLinear(Microsoft):
    """DequantizeLinear before ONNX had 16 and 4 bits: without ``axis`` there is one scale for all."""

    onnx: ClassVar[str] = "DequantizeLinear"
    takes: ClassVar[tuple[int, int]] = (2, 3)
    scale_operands: ClassVar[ScaleOperands] = {1: 0}
    axis: int | None = None

    def check(self, *inputs: TensorType | None) -> None:
        _check_axis(self, self.axis, *inputs)

    def define(self, *inputs: Any) -> Value:
        result: Value = standard.DequantizeLinear(axis=1 if self.axis is None else self.axis)(*present(inputs))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, axis, _, scales = _draw_axis(draw)
        dtype = draw.choice(_SIXTEEN)
        x = standard.draw_zero(draw, shape, dtype)
        zero = standard.draw_zero(draw, scales, dtype) if draw.boolean() else None
        return Sample(cls(axis), (x, draw.floats(scales, 0.1, 2.0), zero))


@operator
@dataclass(frozen=True)
class MicrosoftQLinearConv(QuantizedResult, ConvAttributes):
    """QLinearConv; with ``channels_last`` the images (not the weight) are [N, D..., C]."""

    onnx: ClassVar[str] = "QLinearConv"
    takes: ClassVar[tuple[int, int]] = (8, 9)
    scale_operands: ClassVar[ScaleOperands] = {1: 0, 4: 3, 6: None}
    channels_last: bool = False

    def define(self, *inputs: Any) -> Value:
        x, *rest = present(inputs)
        conv = QLinearConv(**self.of_convolution())
        y: Value = conv(channels_first(x) if self.channels_last else x, *rest)
        return channels_behind(y) if self.channels_last else y

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        plain = QLinearConv.sample(draw)
        last, x = draw.boolean(), plain.inputs[0]
        assert x is not None
        conv = cls(channels_last=last, **plain.operator.attributes())
        return Sample(conv, (np.moveaxis(x, 1, -1).copy() if last else x, *plain.inputs[1:]))


@operator
@dataclass(frozen=True)
class QGemm(Microsoft):
    """alpha A' B' + C of quantized matrices (each with scale and zero point) and a C of i32 in units of their scales.

    With a scale and a zero point for Y the result is quantized, else it is real.
    """

    takes: ClassVar[tuple[int, int]] = (6, 9)
    scale_operands: ClassVar[ScaleOperands] = {1: 0, 4: 3, 7: None}
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS
    alpha: float = 1.0
    transA: bool = False
    transB: bool = False

    def check(self, *inputs: TensorType | None) -> None:
        a, _, _, b = inputs[:4]
        c, sy, zy = inputs[6:]
        if a is None or b is None or a.rank != 2 or b.rank != 2:
            raise self.fail("A and B must be matrices", *inputs)
        if c is not None and c.dtype != i32:
            raise self.fail("C must be i32", *inputs)
        if (sy is None) != (zy is None):
            raise self.fail("y_scale and y_zero_point go together", *inputs)

    def define(self, *inputs: Any) -> Value:
        a, sa, za, b, sb, zb, c, sy, zy = inputs
        a = Transpose((1, 0))(a) if self.transA else a
        b = Transpose((1, 0))(b) if self.transB else b
        total = MatMulInteger()(a, b, reshape(za, ()), zb)
        total = total if c is None else total + c
        factor = reshape(sa, ()) * sb * self.alpha
        if zy is None:
            result: Value = Cast(sa.dtype)(total) * factor
            return result
        return standard.quantize_units(Cast(sa.dtype)(total) * (factor / reshape(sy, ())), zy, zy.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        m, k, n = (draw.integer(1, 4) for _ in range(3))
        op = cls(draw.choice((1.0, 0.5)), draw.boolean(), draw.boolean())
        a = draw_tensor(draw, (k, m) if op.transA else (m, k), absent=False)
        b = draw_weight(draw, (n, k) if op.transB else (k, n), i8)
        columns = draw.choice(((), (n,)))
        c = draw.integers(draw.choice(((n,), (m, n))), -500, 500).astype(np.int32) if draw.boolean() else None
        result = draw_result(draw, u8) if draw.boolean() else (None, None)
        weights = (b, draw.floats(columns, 0.01, 0.1), draw_bytes(draw, columns, i8))
        return Sample(op, (*a, *weights, c, *result))


@operator
@dataclass(frozen=True)
class MatMulIntegerToFloat(Microsoft):
    """The real product of quantized matrices, plus a bias: operands A, B, both scales, both zero points, bias."""

    takes: ClassVar[tuple[int, int]] = (4, 7)
    scale_operands: ClassVar[ScaleOperands] = {2: 0, 3: 1}
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "its operands are integers"

    def check(self, *inputs: TensorType | None) -> None:
        if inputs[2] is None or inputs[2].size != 1:
            raise self.fail("A has one scale for all", *inputs)

    def define(self, *inputs: Any) -> Value:
        a, b, sa, sb, za, zb, bias = inputs
        y = integer_product(a, b, sa, sb, za, zb)
        return y if bias is None else y + bias

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        a, b, za, zb = draw_product(draw)
        assert b is not None
        n, za = b.shape[-1], None if za is None else za.reshape(-1)[0]
        sb = draw.floats(() if zb is None or zb.size == 1 else (n,), 0.01, 0.1)
        bias = draw.floats((n,)) if draw.boolean() else None
        return Sample(cls(), (a, b, draw_scale(draw), sb, za, zb, bias))


@operator
@dataclass(frozen=True)
class DynamicQuantizeMatMul(Microsoft):
    """A is quantized to u8 by its range, multiplied with a quantized B, and the product is real: A, B, B's scale and
    zero point, bias.
    """

    takes: ClassVar[tuple[int, int]] = (3, 5)
    scale_operands: ClassVar[ScaleOperands] = {2: 1}
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def define(self, *inputs: Any) -> Value:
        a, b, sb, zb, bias = inputs
        quantized, scale, zero = standard.DynamicQuantizeLinear()(a)
        y = integer_product(quantized, b, scale, sb, zero, zb)
        return y if bias is None else y + bias

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        a, b, _, zb = draw_product(draw)
        assert a is not None
        assert b is not None
        sb = draw.floats(() if zb is None else zb.shape, 0.01, 0.1)
        bias = draw.floats(b.shape[-1:]) if draw.boolean() else None
        return Sample(cls(), (draw.floats(a.shape), b, sb, zb, bias))
