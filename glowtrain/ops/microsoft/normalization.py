"""Normalizations with what is added before them, which the optimizers emit.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, constant, operator
from glowtrain.ops.core.composite import Composite
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.microsoft.base import (
    Microsoft,
)
from glowtrain.ops.normalize.batch_and_layer import LayerNormalization
from glowtrain.ops.reduce.reduction import ReduceMean, ReduceSum
from glowtrain.ops.tensor.move import Slice
from glowtrain.types import TensorType, f32, i32


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
        batch, steps, hidden = (max(extent, 1) for extent in draw.shape(3, 3, max_extent=4))
        x = draw.floats((batch, steps, hidden + 1))
        skip = draw.floats(draw.choice((x.shape, (1, *x.shape[1:]), x.shape[1:])))
        gamma, beta, bias = (draw.floats(x.shape[2:]) for _ in range(3))
        options = (beta if draw.boolean() else None, bias if draw.boolean() else None)
        return Sample(cls(draw.choice((1e-3, 0.1))), (x, skip, gamma, *options))


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
        x = draw.floats((draw.integer(1, 3), draw.integer(1, 3), *draw.shape(1, 1, min_extent=2)))
        bias = draw.floats(x.shape[2:]) if draw.boolean() else None
        op = cls(draw.choice((1e-3, 0.1)))
        return Sample(op, (x, draw.floats(x.shape), draw.floats(x.shape[2:]), bias))


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
        if x is None or not x.dtype.is_float or not -x.rank <= self.axis < x.rank:
            raise self.fail(f"the operand must be floating and have axis {self.axis}", *inputs)

    def define(self, *inputs: Any) -> tuple[Value, ...]:
        x, scale = inputs
        return rms_rows(x, scale, self.epsilon, self.axis)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(min_rank=1, min_extent=2))
        axis = draw.integer(-x.ndim, -1)
        return Sample(cls(axis, draw.choice((1e-5, 0.1)), draw.choice((1, 16))), (x, draw.floats(x.shape[axis:])))


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
        words, segments, table, positions, segment_table, gamma, beta, mask, indices = inputs
        total = Gather(axis=0)(table, words)
        if indices is None:
            total = total + Slice((0,), (words.shape[1],), (0,))(positions)
        else:
            total = total + Gather(axis=0)(positions, indices)
        if segments is not None:
            total = total + Gather(axis=0)(segment_table, segments)
        if mask is None:
            count: Value = constant(np.zeros(words.shape[0], np.int32))
        else:
            count = ReduceSum(axes=(1,), keepdims=False)(Cast(i32)(mask))
        return LayerNormalization(epsilon=self.epsilon)(total, gamma, beta)[0], count, total

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        batch, steps, (hidden,) = draw.integer(1, 3), draw.integer(1, 4), draw.shape(1, 1, min_extent=2)
        ids = [draw.integers((batch, steps), 0, most).astype(np.int32) for most in (5, 1, 1, 3)]
        segments = draw.boolean()
        tables = [draw.floats((rows, hidden)) for rows in (6, 4, 2)]
        words = (ids[0], ids[1] if segments else None, *tables[:2], tables[2] if segments else None)
        options = (ids[2] if draw.boolean() else None, ids[3] if draw.boolean() else None)
        op = cls(draw.choice((1e-3, 0.1)), draw.choice((0, 1)))
        return Sample(op, (*words, draw.floats((hidden,)), draw.floats((hidden,)), *options))
