"""One-hot encoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator, static
from glowtrain.loops import For, Statement, Tensor, call, indices_of, select
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.core.index import wrapped
from glowtrain.ops.elementwise.cast import convert
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.tensor.move import Concat, reshape
from glowtrain.types import Array, TensorType, i64


@operator
@dataclass(frozen=True)
class OneHot(Operator):
    """values[1] where the new axis' position is the index, values[0] elsewhere; ``depth`` is the new axis' extent.

    Indices of float types are truncated; one outside [-depth, depth) gives only values[0].
    """

    depth: int = static(1)
    axis: int = -1

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2:
            raise self.fail(f"takes indices and values, not {len(inputs)} operands", *inputs)
        indices, values = inputs
        if self.depth < 1:
            raise self.fail("depth must be positive", *inputs)
        if values.shape != (2,):
            raise self.fail("values must have shape [2]: the value for off and for on", *inputs)
        axis = normalize_axis(self, self.axis, indices, extra=1)
        return values.with_shape((*indices.shape[:axis], self.depth, *indices.shape[axis:]))

    def reference(self, indices: Array, values: Array) -> Array:
        axis = self.axis % (indices.ndim + 1)
        wide = np.expand_dims(convert(indices, i64), axis)
        positions = np.arange(self.depth).reshape([-1] + [1] * (indices.ndim - axis))
        on = np.where(wide < 0, wide + self.depth, wide) == positions
        return np.asarray(np.where(on, values[1], values[0]))

    def vjp(self, g: Value, y: Value, indices: Value, values: Value) -> Grads:
        on = self(indices, constant(np.array([0, 1]), g.dtype))
        parts = [ReduceSum(keepdims=False)(g * chosen) for chosen in (1 - on, on)]
        return None, Concat(axis=0)(*(reshape(part, (1,)) for part in parts))

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (indices, values), (y,) = inputs, outputs
        axis, at = self.axis % len(y.shape), indices_of(y.shape)
        position = wrapped(indices[(*at[:axis], *at[axis + 1 :])], self.depth)
        return [For(at, (y.store(at, select(call("eq", position, at[axis]), values[(1,)], values[(0,)])),))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, depth = draw.shape(max_rank=3), draw.integer(1, 5)
        axis = draw.integer(-len(shape) - 1, len(shape))
        return Sample(cls(depth, axis), (draw.integers(shape, -depth - 1, depth), draw.floats((2,))))
