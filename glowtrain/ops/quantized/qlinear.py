"""Matrix products and convolutions of quantized real numbers, quantized: sums in i32, scaled once.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.elementwise.cast import Cast, convert, convert_float
from glowtrain.ops.quantized.convert import FLOAT8, STEPS, check_float_zeros, names, quantize_units, quantized_array
from glowtrain.ops.quantized.integer_products import (
    BYTES,
    IntegerWindow,
    MatMulInteger,
    centred,
    check_rows,
    draw_bytes,
    draw_product,
    draw_window,
    row_zero,
)
from glowtrain.ops.quantized.scales import ScaleOperands, WithScales
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, TensorType, dtype_of, f32, f64, i8, i32, u8


@operator
@dataclass(frozen=True)
class QLinearMatMul(WithScales):
    """The product of two quantized matrices, quantized: operands are (A, scale, zero point) of both, then y's two.

    The sums are exact; they are multiplied by a_scale · b_scale / y_scale in f32 (or in the scales' type, if wider).
    """

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS
    scale_operands: ClassVar[ScaleOperands] = {1: 0, 4: 3, 6: None}

    def check_constants(self, inputs: Sequence[Value | None]) -> None:
        super().check_constants(inputs)
        check_float_zeros(self, inputs, (2, 5, 7))

    def infer(self, *inputs: Any) -> TensorType:
        if len(inputs) != 8 or any(x is None for x in inputs):
            raise self.fail(
                "takes A, B, each with scale and zero point, and the result's scale and zero point", *inputs
            )
        a, sa, za, b, sb, zb, sy, zy = inputs
        if len({sa.dtype, sb.dtype, sy.dtype}) > 1 or not sa.dtype.is_float:
            raise self.fail("scales must have one floating element type", *inputs)
        if not {a.dtype, b.dtype, zy.dtype} <= BYTES | FLOAT8 or za.dtype != a.dtype or zb.dtype != b.dtype:
            raise self.fail(f"operands and zero points must be of {names(BYTES | FLOAT8)}, in pairs", *inputs)
        if (a.dtype in FLOAT8) != (b.dtype in FLOAT8):
            raise self.fail("integers do not multiply with 8-bit floats", *inputs)
        for part, operand, row in ((sa, a, True), (za, a, True), (sb, b, False), (zb, b, False)):
            check_rows(self, part, operand, row=row)
        if sy.size != 1 or zy.size != 1:
            raise self.fail("the result has one scale and one zero point", *inputs)
        return MatMul().infer(a.with_dtype(i32), b.with_dtype(i32)).with_dtype(zy.dtype)

    def reference(self, *inputs: Any) -> Array:
        a, sa, za, b, sb, zb, sy, zy = inputs
        if dtype_of(a.dtype) in FLOAT8:
            total = np.matmul(convert(a, f64), convert(b, f64))
        else:
            left = centred(a, za.reshape(row_zero(za, a.ndim)))
            total = np.matmul(left, centred(b, zb)).astype(np.int32)
        wide = f64 if sa.dtype == np.float64 else f32
        rows = convert(sa.reshape(row_zero(sa, a.ndim)), wide)
        factor = rows * convert(sb, wide) / convert(sy.reshape(()), wide)
        units = np.asarray(convert(total, wide) * factor)
        if dtype_of(zy.dtype) in FLOAT8:
            return convert_float(units, dtype_of(zy.dtype), saturate=True)
        return quantized_array(units, zy.reshape(()), dtype_of(zy.dtype))

    def decompose(self, *inputs: Any) -> Value:
        a, sa, za, b, sb, zb, sy, zy = inputs
        wide = f64 if sa.dtype == f64 else f32
        if a.dtype in FLOAT8:
            total: Value = MatMul()(Cast(f64)(a), Cast(f64)(b))
        else:
            total = MatMulInteger()(a, b, za, zb)
        rows = Cast(wide)(reshape(sa, row_zero(sa, a.rank) or ()))
        factor = rows * Cast(wide)(sb) / Cast(wide)(reshape(sy, ()))
        return quantize_units(Cast(wide)(total) * factor, zy, zy.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        a, b, za, zb = draw_product(draw)
        assert a is not None
        assert b is not None
        za = np.zeros((), a.dtype) if za is None else za
        zb = np.zeros((), b.dtype) if zb is None else zb
        sa, sb = draw.floats(za.shape, 0.01, 0.1), draw.floats(zb.shape, 0.01, 0.1)
        zy = draw_bytes(draw, (), draw.choice((i8, u8)))
        return Sample(cls(), (a, sa, za, b, sb, zb, draw.floats((), 0.5, 3.0), zy))


@operator
@dataclass(frozen=True)
class QLinearConv(IntegerWindow, WithScales):
    """A convolution of quantized tensors, quantized: operands are (x, scale, zero point), (w, scale, zero point), y's
    scale and zero point, and a bias of i32 in units of x_scale · w_scale. Weights may have a scale for each channel.
    """

    reason: ClassVar[str] = STEPS
    scale_operands: ClassVar[ScaleOperands] = {1: 0, 4: 3, 6: None}

    def infer(self, *inputs: Any) -> TensorType:
        if len(inputs) not in (8, 9) or any(x is None for x in inputs[:8]):
            raise self.fail("takes x, w, each with scale and zero point, y's scale and zero point, and a bias", *inputs)
        x, sx, zx, w, sw, zw, sy, zy = inputs[:8]
        bias = inputs[8] if len(inputs) > 8 else None
        if len({sx.dtype, sw.dtype, sy.dtype}) > 1 or not sx.dtype.is_float or zy.dtype not in BYTES:
            raise self.fail("scales must have one floating element type, y's zero point must be i8 or u8", *inputs)
        if sx.size != 1 or sy.size != 1 or zy.size != 1 or (sw.size != 1 and sw.shape != w.shape[:1]):
            raise self.fail("there is one scale for x, one for y, and one or one for each channel for w", *inputs)
        if bias is not None and bias != TensorType(i32, w.shape[:1]):
            raise self.fail(f"the bias must be i32[{w.shape[0]}], one element per output channel", *inputs)
        return self.window_type(x, w, zx, zw).with_dtype(zy.dtype)

    def reference(self, *inputs: Any) -> Array:
        x, sx, zx, w, sw, zw, sy, zy = inputs[:8]
        bias = inputs[8] if len(inputs) > 8 else None
        wide = f64 if sx.dtype == np.float64 else f32
        ones = (1,) * (x.ndim - 2)
        total = self.sums(x, w, zx, zw).astype(np.int64)
        if bias is not None:
            total = total + bias.reshape(-1, *ones)
        factor = convert(sx.reshape(()), wide) * convert(sw, wide) / convert(sy.reshape(()), wide)
        units = convert(total.astype(np.int32), wide) * (factor if factor.size == 1 else factor.reshape(-1, *ones))
        return quantized_array(np.asarray(units), zy.reshape(()), dtype_of(zy.dtype))

    def decompose(self, *inputs: Any) -> Value:
        x, sx, zx, w, sw, zw, sy, zy = inputs[:8]
        bias = inputs[8] if len(inputs) > 8 else None
        wide = f64 if sx.dtype == f64 else f32
        ones = (1,) * (x.rank - 2)
        total = self.contraction(x, w, zx, zw)
        if bias is not None:
            total = total + reshape(bias, (*bias.shape, *ones))
        channels = reshape(sw, () if sw.type.size == 1 else (*sw.shape, *ones))
        factor = Cast(wide)(reshape(sx, ())) * Cast(wide)(channels) / Cast(wide)(reshape(sy, ()))
        return quantize_units(Cast(wide)(total) * factor, zy, zy.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        conv, x, w, zx, zw = draw_window(draw)
        zx = np.zeros((), x.dtype) if zx is None else zx
        zw = np.zeros((), w.dtype) if zw is None else zw
        sx, sw, sy = draw.floats((), 0.01, 0.1), draw.floats(zw.shape, 0.01, 0.1), draw.floats((), 0.5, 3.0)
        bias = draw.integers(w.shape[:1], -5000, 5000).astype(np.int32) if draw.boolean() else None
        zy = draw_bytes(draw, (), draw.choice((i8, u8)))
        return Sample(cls(**conv.attributes()), (x, sx, zx, w, sw, zw, sy, zy, bias))
