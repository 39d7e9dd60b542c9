"""Operators of ONNX Runtime's domain ``com.microsoft`` on real numbers, which its optimizers emit.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Sample, Value, constant, operator
from glowtrain.ops.activation import Elu, Gelu, HardSigmoid, LeakyRelu, Relu, Sigmoid, Swish
from glowtrain.ops.cast import Cast
from glowtrain.ops.composite import Composite
from glowtrain.ops.contraction import Gemm, MatMul, swapped
from glowtrain.ops.convolution import Conv
from glowtrain.ops.extrema import Clip
from glowtrain.ops.index import Gather
from glowtrain.ops.logic import BitShift, BitwiseAnd
from glowtrain.ops.microsoft_quantized import Microsoft
from glowtrain.ops.move import Concat, Expand, Slice, Transpose, reshape
from glowtrain.ops.normalization import LayerNormalization
from glowtrain.ops.quantization import DequantizeLinear
from glowtrain.ops.reduction import ReduceMean, ReduceSum
from glowtrain.ops.softmax import Softmax
from glowtrain.ops.transcendental import Tanh
from glowtrain.types import Array, DType, Shape, TensorType, f32, i32, u8

Parameters = tuple[float, ...]


def activated(x: Value, name: str, parameters: Parameters = ()) -> Value:
    """An activation by the name that fused operators give it, with its parameters in order."""
    result: Value = x
    match name:
        case "Relu":
            result = Relu()(x)
        case "Tanh":
            result = Tanh()(x)
        case "Sigmoid":
            result = Sigmoid()(x)
        case "LeakyRelu":
            result = LeakyRelu(*parameters[:1])(x)
        case "Elu":
            result = Elu(*parameters[:1])(x)
        case "HardSigmoid":
            result = HardSigmoid(*parameters[:2])(x)
        case "Clip":
            result = Clip()(x, *parameters[:2])
    return result


ACTIVATIONS = ("", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "HardSigmoid", "Clip")


def check_activation(op: Composite, name: str, *inputs: TensorType | None) -> None:
    """Raise for activations that fused operators do not have."""
    if name not in ACTIVATIONS:
        raise op.fail(f"activation {name!r} is not one of {', '.join(ACTIVATIONS[1:])}", *inputs)


@operator
@dataclass(frozen=True)
class FusedMatMul(Microsoft):
    """alpha A B; the last two axes of an operand may be swapped, and its row axis may come before its batch axes."""

    takes: ClassVar[tuple[int, int]] = (2, 2)
    alpha: float = 1.0
    transA: bool = False
    transB: bool = False
    transBatchA: bool = False
    transBatchB: bool = False

    def check(self, *inputs: TensorType | None) -> None:
        if any(x is None or x.rank < 1 for x in inputs):
            raise self.fail("A and B need at least one axis", *inputs)

    def define(self, *inputs: Any) -> Value:
        a, b = inputs
        left = _arranged(a, self.transA, self.transBatchA)
        product: Value = MatMul()(left, _arranged(b, self.transB, self.transBatchB))
        return product if self.alpha == 1 else product * self.alpha

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        m, k, n = (draw.integer(1, 4) for _ in range(3))
        batch = draw.shape(max_rank=2, max_extent=3)
        flags = [draw.boolean() for _ in range(4)]
        op = cls(draw.choice((1.0, 0.5)), *flags)
        a = _disarranged(draw, batch, m, k, op.transA, op.transBatchA)
        return Sample(op, (a, _disarranged(draw, batch, k, n, op.transB, op.transBatchB)))


def _arranged(x: Value, swap: bool, batch: bool) -> Value:
    if batch and x.rank > 2:
        x = Transpose((*range(1, x.rank - 1), 0, x.rank - 1))(x)
    return swapped(x) if swap and x.rank > 1 else x


def _disarranged(draw: Draw, batch: Shape, rows: int, columns: int, swap: bool, first: bool) -> Array:
    rows, columns = (columns, rows) if swap else (rows, columns)
    return draw.floats((rows, *batch, columns) if first else (*batch, rows, columns))


@operator
@dataclass(frozen=True)
class TransposeMatMul(Microsoft):
    """alpha A B, where the last two axes of an operand may be swapped (an older name of FusedMatMul)."""

    takes: ClassVar[tuple[int, int]] = (2, 2)
    alpha: float = 1.0
    transA: bool = False
    transB: bool = False

    def define(self, *inputs: Any) -> Value:
        result: Value = FusedMatMul(self.alpha, self.transA, self.transB)(*inputs)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        m, k, n = (draw.integer(1, 4) for _ in range(3))
        op = cls(draw.choice((1.0, 0.5)), draw.boolean(), draw.boolean())
        a = _disarranged(draw, (2,), m, k, op.transA, first=False)
        return Sample(op, (a, _disarranged(draw, (2,), k, n, op.transB, first=False)))


@operator
@dataclass(frozen=True)
class FusedConv(Microsoft):
    """activation(Conv(X, W, B) + Z)"""

    takes: ClassVar[tuple[int, int]] = (2, 4)
    activation: str = ""
    activation_params: Parameters = ()
    auto_pad: str = "NOTSET"
    dilations: Shape = ()
    group: int = 1
    kernel_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    def check(self, *inputs: TensorType | None) -> None:
        check_activation(self, self.activation, *inputs)

    def define(self, *inputs: Any) -> Value:
        x, w, bias, addend = inputs
        conv = Conv(self.auto_pad, self.dilations, self.group, self.kernel_shape, self.pads, self.strides)
        y: Value = conv(x, w, bias)
        return activated(y if addend is None else y + addend, self.activation, self.activation_params)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        plain = Conv.sample(draw)
        name = draw.choice(("", "Tanh", "Sigmoid"))
        return Sample(cls(activation=name, **plain.operator.attributes()), plain.inputs)


@operator
@dataclass(frozen=True)
class FusedGemm(Microsoft):
    """activation(alpha A' B' + beta C)"""

    takes: ClassVar[tuple[int, int]] = (2, 3)
    activation: str = ""
    activation_alpha: float | None = None
    activation_beta: float | None = None
    activation_gamma: float | None = None
    alpha: float = 1.0
    beta: float = 1.0
    transA: bool = False
    transB: bool = False

    def check(self, *inputs: TensorType | None) -> None:
        check_activation(self, self.activation, *inputs)

    def define(self, *inputs: Any) -> Value:
        given = (self.activation_alpha, self.activation_beta)
        parameters = tuple(value for value in given if value is not None)
        y = Gemm(self.alpha, self.beta, self.transA, self.transB)(*inputs)
        return activated(y, self.activation, parameters)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        plain = Gemm.sample(draw)
        alpha = draw.choice((None, 0.3))
        name = draw.choice(("", "Tanh", "Elu"))
        return Sample(cls(activation=name, activation_alpha=alpha, **plain.operator.attributes()), plain.inputs)


class Smooth(Microsoft):
    """A function of each element, after a bias (of the last axis) is added."""

    takes: ClassVar[tuple[int, int]] = (1, 2)

    def define(self, *inputs: Any) -> Value:
        x, bias = inputs
        return self.apply(x if bias is None else x + bias)

    def apply(self, x: Value) -> Value:
        """The function."""
        raise NotImplementedError

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(min_rank=1))
        bias = draw.floats(x.shape[-1:]) if cls.takes[1] > 1 and (cls.takes[0] > 1 or draw.boolean()) else None
        return Sample(cls(), (x,) if bias is None else (x, bias))


@operator
@dataclass(frozen=True)
class MicrosoftGelu(Smooth):
    """x · Φ(x)"""

    onnx: ClassVar[str] = "Gelu"
    takes: ClassVar[tuple[int, int]] = (1, 1)

    def define(self, *inputs: Any) -> Value:
        return self.apply(inputs[0])

    def apply(self, x: Value) -> Value:
        result: Value = Gelu()(x)
        return result


@operator
@dataclass(frozen=True)
class BiasGelu(Smooth):
    """Gelu of A + B"""

    takes: ClassVar[tuple[int, int]] = (2, 2)

    def apply(self, x: Value) -> Value:
        result: Value = Gelu()(x)
        return result


@operator
@dataclass(frozen=True)
class FastGelu(Smooth):
    """Gelu by its approximation with tanh, after an optional bias is added."""

    def apply(self, x: Value) -> Value:
        result: Value = Gelu("tanh")(x)
        return result


@operator
@dataclass(frozen=True)
class QuickGelu(Smooth):
    """x / (1 + exp(-alpha · x))"""

    takes: ClassVar[tuple[int, int]] = (1, 1)
    alpha: float = 1.702

    def define(self, *inputs: Any) -> Value:
        return self.apply(inputs[0])

    def apply(self, x: Value) -> Value:
        result: Value = Swish(self.alpha)(x)
        return result


@operator
@dataclass(frozen=True)
class BiasSoftmax(Microsoft):
    """Softmax over all axes from ``axis`` on of data + bias.

    The bias broadcasts as in NumPy, or (``is_inner_broadcast`` false: over the first axes; true: over the axes between
    the batch axis and ``axis``) has extents of 1 there.
    """

    takes: ClassVar[tuple[int, int]] = (2, 2)
    is_inner_broadcast: bool
    axis: int = 1

    def check(self, *inputs: TensorType | None) -> None:
        x = inputs[0]
        if x is None or not -x.rank <= self.axis < x.rank:
            raise self.fail(f"axis {self.axis} is none of the operand's", *inputs)

    def define(self, *inputs: Any) -> Value:
        x, bias = inputs
        y = x + bias
        axis = self.axis % x.rank
        flat: Value = Softmax()(reshape(y, (*x.shape[:axis], math.prod(x.shape[axis:]))))
        return reshape(flat, x.shape)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=2)
        axis = draw.integer(1, len(shape) - 1)
        inner = draw.boolean()
        bias = tuple(1 if (0 < a < axis if inner else a < axis) else n for a, n in enumerate(shape))
        return Sample(cls(inner, axis), (draw.floats(shape), draw.floats(bias)))


class SkipNormalization(Microsoft):
    """A row normalization of x + skip + bias.

    Results: y, the rows' means, the inverses of their deviations, and the sum that was normalized.
    """

    epsilon: float

    def total(self, x: Value, skip: Value, bias: Value | None) -> Value:
        """What is normalized."""
        total = x + skip
        return total if bias is None else total + bias


@operator
@dataclass(frozen=True)
class SkipLayerNormalization(SkipNormalization):
    """LayerNormalization of input + skip + bias: operands input, skip, gamma, beta, bias."""

    takes: ClassVar[tuple[int, int]] = (3, 5)
    epsilon: float = 1e-12

    def define(self, *inputs: Any) -> tuple[Value, ...]:
        x, skip, gamma, beta, bias = inputs
        total = self.total(x, skip, bias)
        return (*LayerNormalization(epsilon=self.epsilon)(total, gamma, beta), total)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        batch, steps, hidden = (draw.integer(1, 4) for _ in range(3))
        x = draw.floats((batch, steps, hidden + 1))
        skip = draw.floats(draw.choice((x.shape, (1, *x.shape[1:]), x.shape[1:])))
        gamma, beta, bias = (draw.floats(x.shape[2:]) for _ in range(3))
        options = (beta if draw.boolean() else None, bias if draw.boolean() else None)
        return Sample(cls(epsilon=0.1), (x, skip, gamma, *options))


def rms_rows(x: Value, scale: Value, epsilon: float, axis: int = -1) -> tuple[Value, Value]:
    """Rows divided by the roots of their mean squares, and the inverses of those."""
    axes = tuple(range(axis % x.rank, x.rank))
    wide = x if x.dtype.size >= 4 else Cast(f32)(x)
    inverse = (ReduceMean(axes=axes)(wide * wide) + epsilon) ** -0.5
    y = wide * inverse * (scale if scale.dtype == wide.dtype else Cast(wide.dtype)(scale))
    return (y if y.dtype == x.dtype else Cast(x.dtype)(y)), inverse


@operator
@dataclass(frozen=True)
class SkipSimplifiedLayerNormalization(SkipNormalization):
    """RMSNormalization of input + skip + bias: operands input, skip, gamma, bias."""

    takes: ClassVar[tuple[int, int]] = (3, 4)
    epsilon: float = 1e-12

    def define(self, *inputs: Any) -> tuple[Value, ...]:
        x, skip, gamma, bias = inputs
        total = self.total(x, skip, bias)
        y, inverse = rms_rows(total, gamma, self.epsilon)
        return y, ReduceMean(axes=(-1,))(Cast(inverse.dtype)(total)), inverse, total

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats((draw.integer(1, 3), draw.integer(1, 3), draw.integer(2, 5)))
        bias = draw.floats(x.shape[2:]) if draw.boolean() else None
        return Sample(cls(epsilon=0.1), (x, draw.floats(x.shape), draw.floats(x.shape[2:]), bias))


@operator
@dataclass(frozen=True)
class SimplifiedLayerNormalization(Composite):
    """RMSNormalization as ONNX Runtime had it in ONNX's own domain; the second result is 1 / root of mean square."""

    takes: ClassVar[tuple[int, int]] = (2, 2)
    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1

    def check(self, *inputs: TensorType | None) -> None:
        x = inputs[0]
        if x is None or not -x.rank <= self.axis < x.rank:
            raise self.fail(f"axis {self.axis} is none of the operand's", *inputs)

    def define(self, *inputs: Any) -> tuple[Value, ...]:
        return rms_rows(*inputs, self.epsilon, self.axis)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(min_rank=1, min_extent=2))
        axis = draw.integer(-x.ndim, -1)
        return Sample(cls(axis, 0.1), (x, draw.floats(x.shape[axis:])))


@operator
@dataclass(frozen=True)
class EmbedLayerNormalization(Microsoft):
    """LayerNormalization of the sum of a word's, a position's and a segment's embedding.

    Operands: words [B, S], segments, the tables of words, positions and segments, gamma, beta, a mask of words [B, S]
    and positions (default 0, 1, ...). Results: the rows, the number of words of each row, and the sums.
    """

    takes: ClassVar[tuple[int, int]] = (7, 9)
    epsilon: float = 1e-12
    mask_index_type: int = 1

    def check(self, *inputs: TensorType | None) -> None:
        words, segments, table, positions, segment_table, *_ = inputs
        if words is None or table is None or positions is None or words.rank != 2:
            raise self.fail("takes words [batch, positions] and tables of words and positions", *inputs)
        if (segments is None) != (segment_table is None):
            raise self.fail("segments and their table go together", *inputs)
        if words.shape[1] > positions.shape[0] and inputs[8] is None:
            raise self.fail(f"{words.shape[1]} positions, but a table of {positions.shape[0]}", *inputs)

    def define(self, *inputs: Any) -> tuple[Value, ...]:
        words, segments, table, positions, segment_table, gamma, beta, mask, places = inputs
        total = Gather(axis=0)(table, words)
        if places is None:
            total = total + Slice((0,), (words.shape[1],), (0,))(positions)
        else:
            total = total + Gather(axis=0)(positions, places)
        if segments is not None:
            total = total + Gather(axis=0)(segment_table, segments)
        if mask is None:
            count: Value = constant(np.zeros(words.shape[0], np.int32))
        else:
            count = ReduceSum(axes=(1,), keepdims=False)(Cast(i32)(mask))
        return LayerNormalization(epsilon=self.epsilon)(total, gamma, beta)[0], count, total

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        batch, steps, hidden = draw.integer(1, 3), draw.integer(1, 4), draw.integer(2, 5)
        ids = [draw.integers((batch, steps), 0, most).astype(np.int32) for most in (5, 1, 1, 3)]
        segments = draw.boolean()
        tables = [draw.floats((rows, hidden)) for rows in (6, 4, 2)]
        words = (ids[0], ids[1] if segments else None, *tables[:2], tables[2] if segments else None)
        options = (ids[2] if draw.boolean() else None, ids[3] if draw.boolean() else None)
        return Sample(cls(epsilon=0.1), (*words, draw.floats((hidden,)), draw.floats((hidden,)), *options))


@operator
@dataclass(frozen=True)
class MatMulNBits(Microsoft):
    """A times the transpose of a weight [N, K] of 2, 4 or 8 bits, in blocks of ``block_size`` along K with a scale each.

    Operands: A [..., K], the packed weight u8[N, blocks, bytes of a block], scales [N, blocks], zero points (packed
    u8[N, bytes], or as the scales), a group index that is not supported, a bias [N]. Elements lie in a byte from its
    low end up. Without zero points they are 2 ** (bits - 1).
    """

    takes: ClassVar[tuple[int, int]] = (3, 6)
    K: int
    N: int
    block_size: int
    bits: int = 4
    accuracy_level: int = 0
    weight_prepacked: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of one row."""
        return -(-self.K // self.block_size)

    def check(self, *inputs: TensorType | None) -> None:
        a, weight, scales, zeros, group, _ = inputs
        if self.bits not in (2, 4, 8) or self.weight_prepacked or group is not None:
            raise self.fail("weights must have 2, 4 or 8 bits, not be prepacked, and have no group index", *inputs)
        size = self.block_size * self.bits // 8
        if a is None or a.shape[-1:] != (self.K,) or weight != TensorType(u8, (self.N, self.blocks, size)):
            raise self.fail(f"A must be [..., {self.K}] and the weight u8[{self.N},{self.blocks},{size}]", *inputs)
        if scales is None or scales.size != self.N * self.blocks:
            raise self.fail(f"there must be {self.N * self.blocks} scales", *inputs)
        if zeros is not None and zeros.size != self._zero_count(zeros.dtype):
            raise self.fail(f"there must be {self._zero_count(zeros.dtype)} elements of zero points", *inputs)

    def _zero_count(self, dtype: DType) -> int:
        return self.N * (-(-self.blocks * self.bits // 8) if dtype == u8 else self.blocks)

    def define(self, *inputs: Any) -> Value:
        a, weight, scales, zeros, _, bias = inputs
        whole = self.blocks * self.block_size
        numbers = reshape(unpacked(weight, self.bits), (self.N, whole))
        scales = reshape(scales, (self.N, self.blocks))
        if zeros is not None and zeros.dtype == u8:
            width = -(-self.blocks * self.bits // 8)
            rows = unpacked(reshape(zeros, (self.N, width)), self.bits)
            zeros = _first(rows, self.blocks)
        elif zeros is None:
            zeros = constant(np.full((self.N, self.blocks), 1 << (self.bits - 1), np.uint8))
        product: Value = MatMul()(a, swapped(self._real(_first(numbers, self.K), scales, zeros)))
        return product if bias is None else product + bias

    def _real(self, numbers: Value, scales: Value, zeros: Value) -> Value:
        """The weight [N, K]."""
        dequantize = DequantizeLinear(axis=1, block_size=self.block_size)
        if zeros.dtype == u8:
            result: Value = dequantize(numbers, scales, zeros)
            return result
        zeros = reshape(zeros, (self.N, self.blocks))
        shifts = Expand((self.N, self.blocks, self.block_size))(reshape(zeros * scales, (self.N, self.blocks, 1)))
        shift = _first(reshape(shifts, (self.N, self.blocks * self.block_size)), self.K)
        return dequantize(numbers, scales) - shift

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        n, bits, size = draw.integer(1, 4), draw.choice((2, 4, 8)), 16
        op = cls(draw.choice((16, 32, 40)), n, size, bits)
        weight = draw.integers((n, op.blocks, size * bits // 8), 0, 255).astype(np.uint8)
        scales = draw.floats((n, op.blocks), 0.05, 1.0)
        packed = draw.integers((n, -(-op.blocks * bits // 8)), 0, 255).astype(np.uint8)
        zeros = draw.choice((None, packed, draw.floats((n, op.blocks), 0.0, 8.0)))
        bias = draw.floats((n,)) if draw.boolean() else None
        return Sample(op, (draw.floats((*draw.shape(max_rank=2), op.K)), weight, scales, zeros, None, bias))


def _first(x: Value, count: int) -> Value:
    """The first places on the last axis."""
    if x.shape[-1] == count:
        return x
    if isinstance(x, Constant):
        return Constant(np.ascontiguousarray(x.array[..., :count]))
    result: Value = Slice((0,), (count,), (x.rank - 1,))(x)
    return result


def unpacked(x: Value, bits: int) -> Value:
    """Elements of u8 taken apart into fields of ``bits`` bits, low ones first; constants at once."""
    if bits == 8:
        return x
    parts, mask = 8 // bits, (1 << bits) - 1
    shape = (*x.shape[:-1], x.shape[-1] * parts)
    if isinstance(x, Constant):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return Constant((x.array[..., None] >> shifts & np.uint8(mask)).reshape(shape))
    whole = reshape(x, (*x.shape, 1))
    shifted = [BitShift("RIGHT")(whole, constant(bits * part, u8)) if part else whole for part in range(parts)]
    fields = [BitwiseAnd()(part, constant(mask, u8)) for part in shifted]
    return reshape(Concat(axis=-1)(*fields), shape)
