"""Rotary position embedding (Su et al. 2021) and the SwiGLU gate (Shazeer 2020) of transformer blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.loops import Expr
from glowtrain.ops.attention.attention import inner_reshaped
from glowtrain.ops.core.family import Elementwise, Grads
from glowtrain.ops.core.index import require_indices
from glowtrain.ops.elementwise.activation import Sigmoid, Swish, sigmoid
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, widened
from glowtrain.ops.tensor.move import Concat, Slice, Unsqueeze
from glowtrain.types import Array, Shape, TensorType


@operator
@dataclass(frozen=True)
class RotaryEmbedding(Operator):
    """Rotates pairs (a, b) of each head's first R elements: (a cos - b sin, a sin + b cos).

    Operands: X [B, H, S, D] or [B, S, H D] (which needs ``num_heads``), cosines and sines [B, S, R / 2], or tables
    [positions, R / 2] with the positions i64[B, S]. Pairs are the elements i and i + R / 2, or neighbours where
    ``interleaved``; R is ``rotary_embedding_dim``, or D where that is 0. The other elements are passed on.
    """

    interleaved: bool = False
    num_heads: int | None = None
    rotary_embedding_dim: int = 0

    def infer(self, *inputs: Any) -> TensorType:
        if len(inputs) not in (3, 4) or any(type_ is None for type_ in inputs[:3]):
            raise self.fail("takes X, cos_cache, sin_cache and optionally position_ids", *inputs)
        x, cos, sin = inputs[:3]
        positions = inputs[3] if len(inputs) > 3 else None
        if not x.dtype.is_float or (cos.dtype, sin.dtype) != (x.dtype, x.dtype):
            raise self.fail("X, cosines and sines must be of one float type", *inputs)
        if x.rank not in (3, 4) or (x.rank == 3 and (not self.num_heads or x.shape[2] % self.num_heads)):
            raise self.fail("X must have rank 4, or rank 3 with num_heads that divide its last axis", *inputs)
        batch, count, _, size = self._split(x.shape)
        rotated = self.rotary_embedding_dim or size
        if rotated % 2 or not 0 <= rotated <= size:
            raise self.fail(f"{rotated} elements of {size} cannot be rotated in pairs", *inputs)
        if positions is not None and (positions.shape != (batch, count) or not positions.dtype.is_integer):
            raise self.fail(f"position_ids must be integers of shape [{batch}, {count}]", *inputs)
        if positions is not None:
            require_indices(self, positions, *inputs)
        leading = (batch, count) if positions is None else cos.shape[:1]
        if cos.shape != (*leading, rotated // 2) or sin.shape != cos.shape:
            wanted = f"[{batch}, {count}, {rotated // 2}]" if positions is None else f"[positions, {rotated // 2}]"
            raise self.fail(f"cosines and sines must have shape {wanted}", *inputs)
        result: TensorType = x
        return result

    def _split(self, shape: Shape) -> tuple[int, int, int, int]:
        """Batch, positions, heads and size of a head."""
        if len(shape) == 4:
            return shape[0], shape[2], shape[1], shape[3]
        heads = self.num_heads or 1
        return shape[0], shape[1], heads, shape[2] // heads

    def reference(self, x: Array, cos: Array, sin: Array, positions: Array | None = None) -> Array:
        batch, count, heads, size = self._split(x.shape)
        wide = widened(x).transpose(0, 2, 1, 3) if x.ndim == 4 else widened(x)
        y: Array = wide.reshape(batch, count, heads, size).copy()
        table = (cos, sin) if positions is None else (cos[positions], sin[positions])
        c, s = (widened(numbers)[:, :, None] for numbers in table)
        rotated = self.rotary_embedding_dim or size
        first = np.arange(0, rotated, 2) if self.interleaved else np.arange(rotated // 2)
        second = first + (1 if self.interleaved else rotated // 2)
        a, b = y[..., first], y[..., second]
        y[..., first], y[..., second] = a * c - b * s, b * c + a * s
        y = y.transpose(0, 2, 1, 3) if x.ndim == 4 else y.reshape(x.shape)
        return np.ascontiguousarray(y, x.dtype)

    def decompose(self, x: Value, cos: Value, sin: Value, positions: Value | None = None) -> Value:
        _, _, heads, size = self._split(x.shape)
        split = x if x.rank == 4 else inner_reshaped(x, 2, (heads, size))
        wide = as_dtype(split, accumulator(x.dtype))
        rotated = self.rotary_embedding_dim or size
        if positions is not None:
            cos, sin = Gather(axis=0)(cos, positions), Gather(axis=0)(sin, positions)
        spread = Unsqueeze(axes=(1,) if x.rank == 4 else (2,))
        c, s = (as_dtype(spread(table), wide.dtype) for table in (cos, sin))
        a, b = (self._part(wide, position, rotated) for position in (0, 1))
        turned: tuple[Value, ...] = (a * c - b * s, a * s + b * c)
        if self.interleaved:
            pairs = Concat(axis=-1)(*(Unsqueeze(axes=(-1,))(value) for value in turned))
            turned = (inner_reshaped(pairs, 3, (rotated,)),)
        rest = () if rotated == size else (_cut(wide, rotated, size, 1),)
        parts = (*turned, *rest)
        y = Concat(axis=-1)(*parts) if len(parts) > 1 else parts[0]
        return inner_reshaped(as_dtype(y, x.dtype), 2, x.shape[2:])

    def _part(self, x: Value, position: int, rotated: int) -> Value:
        """The first or the second elements of all pairs."""
        if self.interleaved:
            return _cut(x, position, rotated, 2)
        return _cut(x, position * rotated // 2, (position + 1) * rotated // 2, 1)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        batch, heads, count, half = (draw.integer(1, 3) for _ in range(4))
        four, extra = draw.boolean(), draw.integer(0, 2)
        size = 2 * half + extra
        rotary = cls(
            interleaved=draw.boolean(),
            num_heads=None if four and draw.boolean() else heads,
            rotary_embedding_dim=2 * half if extra or draw.boolean() else 0,
        )
        x = draw.floats((batch, heads, count, size) if four else (batch, count, heads * size))
        if draw.boolean():
            return Sample(rotary, (x, draw.floats((batch, count, half)), draw.floats((batch, count, half))))
        table = draw.integer(1, 4)
        positions = draw.integers((batch, count), 0, table - 1)
        return Sample(rotary, (x, draw.floats((table, half)), draw.floats((table, half)), positions))


def _cut(x: Value, start: int, end: int, step: int) -> Value:
    result: Value = Slice(starts=(start,), ends=(end,), axes=(x.rank - 1,), steps=(step,))(x)
    return result


@operator
@dataclass(frozen=True)
class SwiGLU(Elementwise):
    """y = a sigmoid(alpha a) b, of a gate and a value of equal shapes."""

    alpha: float = 1.0

    arity: ClassVar[int] = 2
    broadcasts: ClassVar[bool] = False

    def infer(self, *inputs: TensorType) -> TensorType:
        if len({type_.shape for type_ in inputs}) > 1:
            raise self.fail("gate and value must have one shape; they are not broadcast", *inputs)
        return super().infer(*inputs)

    def reference(self, a: Array, b: Array) -> Array:
        gate = widened(a)
        return np.asarray((gate * sigmoid(self.alpha * gate) * widened(b)).astype(a.dtype))

    def vjp(self, g: Value, y: Value, a: Value, b: Value) -> Grads:
        open_, swished = Sigmoid()(a * self.alpha), Swish(alpha=self.alpha)(a)
        slope = open_ + swished * (1.0 - open_) * self.alpha
        return g * b * slope, g * swished

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return Swish(alpha=self.alpha).scalar(a) * b

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        return Sample(cls(alpha=draw.choice((1.0, 1.702, -0.5))), (draw.floats(shape), draw.floats(shape)))
