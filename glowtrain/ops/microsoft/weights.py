"""Products with weights of few bits.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Sample, Value, constant, operator
from glowtrain.ops.contraction.products import MatMul, swapped
from glowtrain.ops.elementwise.logic import BitShift, BitwiseAnd
from glowtrain.ops.microsoft.base import (
    Microsoft,
)
from glowtrain.ops.quantized.convert import DequantizeLinear
from glowtrain.ops.quantized.scales import ScaleOperands
from glowtrain.ops.tensor.move import Concat, Expand, Slice, reshape
from glowtrain.types import DType, TensorType, u8


@operator
@dataclass(frozen=True)
class MatMulNBits(Microsoft):
    """A times the transpose of a weight [N, K] of 2, 4 or 8 bits; each block of ``block_size`` along K has a scale.

    Operands: A [..., K], the packed weight u8[N, blocks, bytes of a block], scales [N, blocks], zero points (packed
    u8[N, bytes], or as the scales), a group index that is not supported, a bias [N]. Elements lie in a byte from its
    low end up. Without zero points they are 2 ** (bits - 1).
    """

    takes: ClassVar[tuple[int, int]] = (3, 6)
    scale_operands: ClassVar[ScaleOperands] = {2: 1}
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
        shifted: Value = dequantize(numbers, scales) - shift
        return shifted

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        n, bits, size = draw.integer(1, 4), draw.choice((2, 4, 8)), draw.choice((16, 32))
        op = cls(draw.choice((16, 32, 40)), n, size, bits, accuracy_level=draw.choice((0, 4)))
        weight = draw.integers((n, op.blocks, size * bits // 8), 0, 255).astype(np.uint8)
        scales = draw.floats((n, op.blocks), 0.05, 1.0)
        packed = draw.integers((n, -(-op.blocks * bits // 8)), 0, 255).astype(np.uint8)
        zeros = draw.choice((None, packed, draw.floats((n, op.blocks), 0.0, 8.0)))
        bias = draw.floats((n,)) if draw.boolean() else None
        return Sample(op, (draw.floats((*draw.shape(max_rank=2), op.K)), weight, scales, zeros, None, bias))


def _first(x: Value, count: int) -> Value:
    """The first positions on the last axis."""
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
