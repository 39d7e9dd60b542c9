"""Quantized operators of ONNX Runtime's domain ``com.microsoft``, which its quantizer emits.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. Where a result is quantized,
ONNX Runtime's kernels take short cuts (tables, fixed point), so single numbers may differ by one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.ops import quantization as standard
from glowtrain.ops import quantized_contraction as contraction
from glowtrain.ops.activation import LeakyRelu, Sigmoid
from glowtrain.ops.cast import Cast
from glowtrain.ops.composite import Composite
from glowtrain.ops.logic import Where
from glowtrain.ops.move import Concat, Transpose, reshape
from glowtrain.ops.pooling import AveragePool, draw_pool
from glowtrain.ops.quantization import STEPS
from glowtrain.ops.quantized_contraction import draw_bytes
from glowtrain.ops.reduction import ReduceMean
from glowtrain.ops.softmax import Softmax
from glowtrain.types import Array, DType, Shape, TensorType, i8, i32, u8

DOMAIN = "com.microsoft"


class Microsoft(Composite):
    """An operator of the domain."""

    domain: ClassVar[str] = DOMAIN


class Quantized(Microsoft):
    """An operator whose result is quantized."""

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS


def steps(x: Value, zero: Value | None, wide: DType) -> Value:
    """x - zero point, as a real number: exact."""
    difference: Value = Cast(wide)(x)
    return difference if zero is None else difference - Cast(wide)(reshape(zero, ()))


def real(x: Value, scale: Value, zero: Value | None) -> Value:
    """The real numbers that a quantized tensor stands for."""
    return steps(x, zero, scale.dtype) * reshape(scale, ())


def quantize(x: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    """Real numbers quantized with one scale for all."""
    scale = reshape(scale, ())
    if zero is None:
        result: Value = standard.QuantizeLinear(output_dtype=dtype)(x, scale)
    else:
        result = standard.QuantizeLinear()(x, scale, reshape(zero, ()))
    return result


def draw_scale(draw: Draw, low: float = 0.01, high: float = 0.1) -> Array:
    """One scale."""
    return draw.floats((), low, high)


def draw_tensor(draw: Draw, shape: Shape, dtype: DType | None = None, *, absent: bool = True) -> tuple[Any, Any, Any]:
    """A quantized tensor, its scale and its zero point, which may be absent."""
    dtype = dtype or draw.choice((i8, u8))
    zero = None if absent and draw.boolean() else draw_bytes(draw, (), dtype)
    return draw_bytes(draw, shape, dtype), draw_scale(draw), zero


def draw_result(draw: Draw, dtype: DType) -> tuple[Array, Array]:
    """The scale and the zero point of a result."""
    return draw_scale(draw, 0.05, 0.5), draw_bytes(draw, (), dtype)


@operator
@dataclass(frozen=True)
class MicrosoftQuantizeLinear(Quantized):
    """QuantizeLinear before ONNX had 16 and 4 bits: without ``axis`` there is one scale for all."""

    onnx: ClassVar[str] = "QuantizeLinear"
    takes: ClassVar[tuple[int, int]] = (2, 3)
    axis: int | None = None

    def check(self, *inputs: TensorType | None) -> None:
        _check_axis(self, self.axis, *inputs)

    def define(self, *inputs: Any) -> Value:
        result: Value = standard.QuantizeLinear(axis=1 if self.axis is None else self.axis)(*_present(inputs))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, axis, _, scales = _draw_axis(draw)
        zero = standard.draw_zero(draw, scales, draw.choice(_SIXTEEN)) if draw.boolean() else None
        return Sample(cls(axis), (draw.floats(shape, -6.0, 6.0), draw.floats(scales, 0.01, 1.0), zero))


_SIXTEEN = tuple(sorted(standard.INTEGERS, key=str))


def _present(inputs: Any) -> list[Any]:
    """Operands without absent ones at the end."""
    kept = list(inputs)
    while kept and kept[-1] is None:
        kept.pop()
    return kept


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
    axis: int | None = None

    def check(self, *inputs: TensorType | None) -> None:
        _check_axis(self, self.axis, *inputs)

    def define(self, *inputs: Any) -> Value:
        result: Value = standard.DequantizeLinear(axis=1 if self.axis is None else self.axis)(*_present(inputs))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, axis, _, scales = _draw_axis(draw)
        dtype = draw.choice(_SIXTEEN)
        x = standard.draw_zero(draw, shape, dtype)
        zero = standard.draw_zero(draw, scales, dtype) if draw.boolean() else None
        return Sample(cls(axis), (x, draw.floats(scales, 0.1, 2.0), zero))


class QLinearBinary(Quantized):
    """A function of two quantized tensors, (A, scale, zero point) and (B, scale, zero point), then C's two."""

    takes: ClassVar[tuple[int, int]] = (7, 8)

    def check(self, *inputs: TensorType | None) -> None:
        a, _, _, b = inputs[:4]
        if a is None or b is None or a.dtype != b.dtype:
            raise self.fail("A and B must have one element type", *inputs)

    def define(self, *inputs: Any) -> Value:
        a, sa, za, b, sb, zb, sc, zc = inputs
        return quantize(self.combine(real(a, sa, za), real(b, sb, zb)), sc, zc, a.dtype)

    def combine(self, a: Value, b: Value) -> Value:
        """The function of real numbers."""
        raise NotImplementedError

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, dtype = draw.shape(), draw.choice((i8, u8))
        other = draw.choice((shape, shape[1:], ()))
        left, right = draw_tensor(draw, shape, dtype), draw_tensor(draw, other, dtype)
        return Sample(cls(), (*left, *right, *draw_result(draw, dtype)))


@operator
@dataclass(frozen=True)
class QLinearAdd(QLinearBinary):
    """A + B on quantized tensors."""

    def combine(self, a: Value, b: Value) -> Value:
        return a + b


@operator
@dataclass(frozen=True)
class QLinearMul(QLinearBinary):
    """A · B on quantized tensors."""

    def combine(self, a: Value, b: Value) -> Value:
        return a * b


class QLinearUnary(Quantized):
    """A function of a quantized tensor (X, scale, zero point), then Y's scale and zero point."""

    takes: ClassVar[tuple[int, int]] = (4, 5)

    def define(self, *inputs: Any) -> Value:
        x, sx, zx, sy, zy = inputs
        return quantize(self.apply(real(x, sx, zx)), sy, zy, x.dtype)

    def apply(self, x: Value) -> Value:
        """The function of real numbers."""
        raise NotImplementedError

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        dtype = draw.choice((i8, u8))
        return Sample(
            cls.draw_operator(draw), (*draw_tensor(draw, draw.shape(min_rank=1), dtype), *draw_result(draw, dtype))
        )

    @classmethod
    def draw_operator(cls, draw: Draw) -> Operator:
        """Draw the attributes."""
        return cls()


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

    alpha: float = 0.01

    def apply(self, x: Value) -> Value:
        result: Value = LeakyRelu(self.alpha)(x)
        return result

    @classmethod
    def draw_operator(cls, draw: Draw) -> Operator:
        return cls(draw.choice((0.01, 0.3)))


@operator
@dataclass(frozen=True)
class QLinearSoftmax(QLinearUnary):
    """Softmax of a quantized tensor, along ``axis``; before ``opset`` 13 along all axes from ``axis`` on."""

    opset: int = 13
    axis: int = -1

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

    @classmethod
    def draw_operator(cls, draw: Draw) -> Operator:
        return cls(draw.choice((12, 13)), draw.choice((0, -1)))


def channels_first(x: Value) -> Value:
    """[N, D..., C] as [N, C, D...]."""
    result: Value = Transpose((0, x.rank - 1, *range(1, x.rank - 1)))(x)
    return result


def channels_behind(x: Value) -> Value:
    """[N, C, D...] as [N, D..., C]."""
    result: Value = Transpose((0, *range(2, x.rank), 1))(x)
    return result


class QLinearPool(QLinearUnary):
    """Means over places of a quantized image. The sums are exact; one multiplication turns them to Y's scale."""

    channels_last: bool

    def mean(self, x: Value) -> Value:
        """The means of an image [N, C, D...]."""
        raise NotImplementedError

    def define(self, *inputs: Any) -> Value:
        x, sx, zx, sy, zy = inputs
        numbers = steps(x, zx, sx.dtype)
        mean = self.mean(channels_first(numbers) if self.channels_last else numbers)
        units = mean * (reshape(sx, ()) / reshape(sy, ()))
        return standard.quantize_units(channels_behind(units) if self.channels_last else units, zy, x.dtype)


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

    def mean(self, x: Value) -> Value:
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

    def mean(self, x: Value) -> Value:
        result: Value = ReduceMean(axes=tuple(range(2, x.rank)))(x)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        dtype = draw.choice((i8, u8))
        x = draw_tensor(draw, draw.shape(min_rank=3), dtype)
        return Sample(cls(draw.boolean()), (*x, *draw_result(draw, dtype)))


@operator
@dataclass(frozen=True)
class QLinearReduceMean(QLinearPool):
    """The mean of a quantized tensor over ``axes``, or over all."""

    axes: Shape = ()
    keepdims: bool = True
    channels_last: ClassVar[bool] = False  # type: ignore[misc]

    def mean(self, x: Value) -> Value:
        result: Value = ReduceMean(axes=self.axes or None, keepdims=self.keepdims)(x)
        return result

    @classmethod
    def draw_operator(cls, draw: Draw) -> Operator:
        return cls(draw.choice(((), (0,), (-1,))), draw.boolean())


@operator
@dataclass(frozen=True)
class QLinearConcat(Quantized):
    """Concat of quantized tensors: Y's scale and zero point, then each tensor with its own."""

    takes: ClassVar[tuple[int, int]] = (5, -1)
    axis: int

    def check(self, *inputs: TensorType | None) -> None:
        if len(inputs) % 3 != 2 or any(x is None for x in inputs):
            raise self.fail("takes the result's scale and zero point, then tensors, each with both", *inputs)

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
class QLinearWhere(Quantized):
    """Where with quantized tensors: the condition, (X, scale, zero point), (Y, scale, zero point), then Z's two."""

    takes: ClassVar[tuple[int, int]] = (9, 9)

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


@operator
@dataclass(frozen=True)
class MicrosoftQLinearConv(Quantized):
    """QLinearConv; with ``channels_last`` the images (not the weight) are [N, D..., C]."""

    onnx: ClassVar[str] = "QLinearConv"
    takes: ClassVar[tuple[int, int]] = (8, 9)
    auto_pad: str = "NOTSET"
    channels_last: bool = False
    dilations: Shape = ()
    group: int = 1
    kernel_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    def define(self, *inputs: Any) -> Value:
        attributes = {name: value for name, value in self.attributes().items() if name != "channels_last"}
        x, *rest = _present(inputs)
        conv = contraction.QLinearConv(**attributes)
        y: Value = conv(channels_first(x) if self.channels_last else x, *rest)
        return channels_behind(y) if self.channels_last else y

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        plain = contraction.QLinearConv.sample(draw)
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
        total = contraction.MatMulInteger()(a, b, reshape(za, ()), zb)
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
        b, _, _ = draw_tensor(draw, (n, k) if op.transB else (k, n), i8)
        columns = draw.choice(((), (n,)))
        c = draw.integers(draw.choice(((n,), (m, n))), -500, 500).astype(np.int32) if draw.boolean() else None
        result = draw_result(draw, u8) if draw.boolean() else (None, None)
        weights = (b, draw.floats(columns, 0.01, 0.1), draw_bytes(draw, columns, i8))
        return Sample(op, (*a, *weights, c, *result))


def integer_product(a: Value, b: Value, sa: Value, sb: Value, za: Value | None, zb: Value | None) -> Value:
    """The product of quantized matrices as real numbers."""
    total: Value = contraction.MatMulInteger()(a, b, za, zb)
    result: Value = Cast(sa.dtype)(total) * (reshape(sa, ()) * sb)
    return result


@operator
@dataclass(frozen=True)
class MatMulIntegerToFloat(Microsoft):
    """The real product of quantized matrices A and B, plus a bias: operands A, B, both scales, both zero points, bias."""

    takes: ClassVar[tuple[int, int]] = (4, 7)
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
        a, b, za, zb = contraction.draw_product(draw)
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
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def define(self, *inputs: Any) -> Value:
        a, b, sb, zb, bias = inputs
        quantized, scale, zero = standard.DynamicQuantizeLinear()(a)
        y = integer_product(quantized, b, scale, sb, zero, zb)
        return y if bias is None else y + bias

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        a, b, _, zb = contraction.draw_product(draw)
        assert a is not None
        assert b is not None
        sb = draw.floats(() if zb is None else zb.shape, 0.01, 0.1)
        bias = draw.floats(b.shape[-1:]) if draw.boolean() else None
        return Sample(cls(), (draw.floats(a.shape), b, sb, zb, bias))
