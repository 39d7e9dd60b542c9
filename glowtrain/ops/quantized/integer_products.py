"""Matrix products and convolutions of 8-bit integers, with sums in i32.

Without zero points the integer operators are contractions of bytes that the backends compute as they stand. Zero points
are multiplied out: sum (a - za)(b - zb) = sum a b - za sum b - zb sum a + K za zb. Arithmetic of i32 wraps around, so
every order of these sums gives the same bits.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Operator, Sample, Value, constant, operator
from glowtrain.loops import Statement, Tensor
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.convolution.attributes import ConvWindow
from glowtrain.ops.convolution.convolution import Conv, draw_convolution
from glowtrain.ops.convolution.correlation import convolve
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.quantized.convert import constant_array, limits
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.tensor.move import Expand, reshape
from glowtrain.ops.tensor.pad import Pad
from glowtrain.types import Array, DType, Shape, TensorType, f32, f64, i8, i32, u8

BYTES = frozenset({i8, u8})


def centred(x: Array, zero: Array | None) -> Array:
    """x - zero point, in i64 (``zero`` broadcasts)."""
    wide = x.astype(np.int64)
    return wide if zero is None else wide - zero.astype(np.int64)


def row_zero(zero: Any, rank: int) -> Shape | None:
    """The shape in which zero points (or scales) of the rows of a matrix, or stack of matrices, broadcast with it."""
    if zero is None:
        return None
    shape = tuple(zero.shape)
    return (*shape, 1) if len(shape) == 1 and rank > 1 and shape[0] != 1 else shape


def offset(zero: Value | None) -> Value | None:
    """A zero point in i32; ``None`` where it is known to be 0."""
    array = constant_array(zero)
    if zero is None or array is None:
        return None if zero is None else Cast(i32)(zero)
    return constant(array.astype(np.int32)) if array.any() else None


def recentred(w: Value, zero: Value | None) -> tuple[Value, Value | None]:
    """The same differences w - zero, as i8 with another zero point in i32 where w is known.

    Processors multiply u8 with i8, and a zero point that vanishes costs nothing.
    """
    array, shift = constant_array(w), offset(zero)
    if array is None or (shift is not None and constant_array(shift) is None):
        return w, shift
    differences = centred(array, None if shift is None else constant_array(shift))
    low, high = limits(i8)
    if low <= differences.min(initial=0) and differences.max(initial=0) <= high:
        return Constant(differences.astype(np.int8), w.name), None
    if w.dtype == i8:
        return w, shift
    zeros = np.zeros((), np.int32) if shift is None else constant_array(shift)
    assert zeros is not None
    return Constant((array.astype(np.int64) - 128).astype(np.int8), w.name), constant(zeros - np.int32(128))


def total_of(x: Value, axes: tuple[int, ...], *, keepdims: bool) -> Value:
    """Sums of bytes in i32."""
    array = constant_array(x)
    if array is not None:
        return constant(array.astype(np.int64).sum(axes, keepdims=keepdims).astype(np.int32))
    result: Value = ReduceSum(axes=axes, keepdims=keepdims)(Cast(i32)(x))
    return result


def reshaped_zero(zero: Value | None, shape: Shape | None) -> Value | None:
    """Zero points in another shape; known ones stay known."""
    if zero is None or shape is None:
        return None
    array = constant_array(zero)
    return reshape(zero, shape) if array is None else Constant(array.reshape(shape))


def check_bytes(op: Operator, *types: TensorType | None) -> None:
    """Pairs of tensor and zero point, of i8 or u8."""
    for x, zero in zip(types[::2], types[1::2], strict=True):
        assert x is not None
        if x.dtype not in BYTES:
            raise op.fail("operands must be i8 or u8", *types)
        if zero is not None and zero.dtype != x.dtype:
            raise op.fail(f"a zero point must have its operand's type {x.dtype}", *types)


def check_rows(op: Operator, zero: TensorType | None, operand: TensorType, *, row: bool) -> None:
    """Zero points or scales: one, one for each row (or column), or of the operand's rank with one for each."""
    if zero is None or zero.size == 1:
        return
    count = operand.shape[-2] if row and operand.rank > 1 else operand.shape[-1]
    ones = (*operand.shape[:-1], 1) if row else (*operand.shape[:-2], 1, operand.shape[-1])
    if zero.shape not in ((count,), ones):
        what = "row" if row else "column"
        raise op.fail(f"{list(zero.shape)} is not one number for each {what} of {operand}", zero, operand)


@operator
@dataclass(frozen=True)
class MatMulInteger(Operator):
    """(A - a) (B - b) in i32, with zero points a for all or each row of A, and b for all or each column of B."""

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "its operands are integers"

    def infer(self, *inputs: Any) -> TensorType:
        a, b, za, zb = (*inputs, None, None)[:4]
        check_bytes(self, a, za, b, zb)
        result = MatMul().infer(a.with_dtype(i32), b.with_dtype(i32))
        check_rows(self, za, a, row=True)
        check_rows(self, zb, b, row=False)
        return result

    def reference(self, *inputs: Any) -> Array:
        a, b, za, zb = (*inputs, None, None)[:4]
        left = centred(a, None if za is None else za.reshape(row_zero(za, a.ndim)))
        return np.asarray(np.matmul(left, centred(b, zb))).astype(np.int32)

    def lowers(self, *inputs: Any) -> bool:
        return all(zero is None for zero in inputs[2:])

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        return MatMul().lower(outputs, *inputs[:2])

    def decompose(self, *inputs: Any) -> Value:
        a, b, za, zb = (*inputs, None, None)[:4]
        b, right = recentred(b, zb)
        left = offset(reshaped_zero(za, row_zero(za, a.rank if b.rank > 1 else 1)))
        total: Value = MatMulInteger()(a, b)
        if left is not None:
            total = total - left * total_of(b, (max(b.rank - 2, 0),), keepdims=b.rank > 1 and a.rank > 1)
        if right is not None:
            total = total - total_of(a, (a.rank - 1,), keepdims=b.rank > 1 and a.rank > 1) * right
        if left is not None and right is not None:
            total = total + left * right * a.shape[-1]
        return total

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(), draw_product(draw))


def draw_bytes(draw: Draw, shape: Shape, dtype: DType) -> Array:
    """All numbers of i8 or u8."""
    low, high = limits(dtype)
    return draw.integers(shape, low, high).astype(dtype.numpy)


def draw_weight(draw: Draw, shape: Shape, dtype: DType) -> Array:
    """Numbers of u8, or of i8 below 64 in magnitude.

    ONNX Runtime, with which results are compared, saturates sums of two products u8 · i8 in 16 bits on processors
    without instructions for four.
    """
    return draw.integers(shape, -63, 63).astype(np.int8) if dtype == i8 else draw_bytes(draw, shape, dtype)


def draw_product(draw: Draw) -> tuple[Array | None, ...]:
    """A, B and their zero points, of some granularity, or none."""
    m, k, n = (draw.integer(1, 4) for _ in range(3))
    batch = draw.shape(max_rank=1, max_extent=3)
    left, right = draw.choice((i8, u8)), draw.choice((i8, u8))
    a = draw_bytes(draw, (*batch, m, k), left)
    b = draw_weight(draw, (*(batch if draw.boolean() else ()), k, n), right)
    za = draw_bytes(draw, draw.choice(((), (1,), (m,), (*batch, m, 1))), left) if draw.boolean() else None
    zb = draw_bytes(draw, draw.choice(((), (1,), (n,))), right) if draw.boolean() else None
    return a, b, za, zb


class IntegerWindow(ConvWindow):
    """A convolution of integers."""

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "its operands are integers"

    @property
    def conv(self) -> Conv:
        """The convolution of real numbers with these attributes."""
        return Conv(**self.attributes())

    def window_type(self, x: TensorType, w: TensorType, *zeros: TensorType | None) -> TensorType:
        """The result's type in i32. Raises :class:`ShapeError`."""
        check_bytes(self, x, zeros[0], w, zeros[1])
        if zeros[0] is not None and zeros[0].size != 1:
            raise self.fail("the input has one zero point for all", x, w, *zeros)
        if zeros[1] is not None and zeros[1].size != 1 and zeros[1].shape != w.shape[:1]:
            raise self.fail("the weight has one zero point for all, or one for each output channel", x, w, *zeros)
        return self.conv.infer(x.with_dtype(f32), w.with_dtype(f32)).with_dtype(i32)

    def sums(self, x: Array, w: Array, zx: Array | None, zw: Array | None) -> Array:
        """The sums in i64; what lies outside of the input counts as its zero point."""
        left = centred(x, None if zx is None else zx.reshape(()))
        right = centred(w, None if zw is None else zw.reshape(channel_shape(zw.shape, w.ndim)))
        return np.rint(convolve(left.astype(f64.numpy), right.astype(f64.numpy), self.geometry(x, w), self.group))

    def contraction(self, x: Value, w: Value, zx: Value | None, zw: Value | None) -> Value:
        """The sums in i32, without zero points of the operator's own."""
        zw = None if zw is None else reshaped_zero(zw, channel_shape(zw.shape, w.rank))
        (w, right), left, conv = recentred(w, zw), offset(reshaped_zero(zx, ())), self.conv
        if zx is not None and left is not None:
            x, conv = _margined(conv, x, w, zx)
        inner = ConvInteger(**conv.attributes())
        total: Value = inner(x, w)
        ones, axes = (1,) * (x.rank - 2), tuple(range(1, w.rank))
        if left is not None:
            total = total - left * reshape(total_of(w, axes, keepdims=False), (w.shape[0], *ones))
        if right is None:
            return total
        each = right if right.type.size == 1 else reshape(right, (w.shape[0], *ones))
        windows = _windows(inner, x, w)
        total = total - windows * each
        return total if left is None else total + left * each * math.prod(w.shape[1:])


def _margined(conv: Conv, x: Value, w: Value, zero: Value) -> tuple[Value, Conv]:
    """The input with its zero point around it, and the convolution without padding that reads it."""
    begins, ends = np.split(np.array(conv.geometry(x, w).exact_pads), 2)
    pads = (0, 0, *begins.tolist(), 0, 0, *ends.tolist())
    bare = conv.replace(auto_pad="NOTSET", pads=())
    return Pad(pads)(x, reshape(zero, ())) if any(pads) else x, bare


def _windows(conv: ConvInteger, x: Value, w: Value) -> Value:
    """The sum of the input under each window, [N, M, out...]: one for each group, repeated for its channels."""
    ones = constant(np.ones((conv.group, *w.shape[1:]), np.int8))
    sums: Value = conv(x, ones)
    if conv.group in (1, w.shape[0]):
        return sums
    grouped = reshape(sums, (sums.shape[0], conv.group, 1, *sums.shape[2:]))
    shape = (sums.shape[0], conv.group, w.shape[0] // conv.group, *sums.shape[2:])
    return reshape(Expand(shape)(grouped), (sums.shape[0], w.shape[0], *sums.shape[2:]))


def channel_shape(shape: Shape, rank: int) -> Shape:
    """The shape in which one number for all, or for each output channel, broadcasts with a weight."""
    return () if math.prod(shape) == 1 else (*shape, *(1,) * (rank - 1))


@operator
@dataclass(frozen=True)
class ConvInteger(IntegerWindow):
    """(x - zero point) correlated with (w - zero point), in i32; padding counts as the zero point."""

    def infer(self, *inputs: Any) -> TensorType:
        x, w, zx, zw = (*inputs, None, None)[:4]
        return self.window_type(x, w, zx, zw)

    def reference(self, *inputs: Any) -> Array:
        x, w, zx, zw = (*inputs, None, None)[:4]
        return self.sums(x, w, zx, zw).astype(np.int64).astype(np.int32)

    def lowers(self, *inputs: Any) -> bool:
        return all(zero is None for zero in inputs[2:])

    def layouts(self, *inputs: Any) -> tuple[Shape | None, ...]:
        return self.conv.layouts(*inputs)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        return self.conv.lower(outputs, *inputs[:2])

    def decompose(self, *inputs: Any) -> Value:
        x, w, zx, zw = (*inputs, None, None)[:4]
        return self.contraction(x, w, zx, zw)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        conv, x, w, zx, zw = draw_window(draw)
        return Sample(cls(**conv.attributes()), (x, w, zx, zw))


def draw_window(draw: Draw) -> tuple[Conv, Array, Array, Array | None, Array | None]:
    """A convolution, its operands in bytes, and their zero points."""
    conv, real_x, real_w = draw_convolution(draw)
    left, right = draw.choice((i8, u8)), draw.choice((i8, u8))
    x, w = draw_bytes(draw, real_x.shape, left), draw_weight(draw, real_w.shape, right)
    zx = draw_bytes(draw, (), left) if draw.boolean() else None
    zw = draw_bytes(draw, draw.choice(((), w.shape[:1])), right) if draw.boolean() else None
    return conv, x, w, zx, zw
