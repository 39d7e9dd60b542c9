"""Gather: the elements of a tensor at indices that another holds.

What is outside: see :mod:`glowtrain.ops.core.index`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Constant, Draw, Named, Operand, Operator, Ragged, Sample, Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.graph.specialise.ragged import whole
from glowtrain.loops import For, Statement, Tensor, indices_of
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.core.index import (
    check_element_indices,
    checked,
    coordinates,
    draw_element_indices,
    draw_indices,
    element_positions,
    element_subscripts,
    out_of_range_fill,
    require_indices,
    within,
    wrapped,
)
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.reduce.reduction import filled
from glowtrain.ops.tensor.move import Concat, pad, reshape
from glowtrain.types import Array, TensorType, i64


@dataclass(frozen=True)
class GatherAlongAxis(Operator):
    """Elements of ``data`` at indices into one axis."""

    axis: int = 0

    copies: ClassVar[bool] = True

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        return {1: within(inputs[0].shape[self.axis])}

    def pair(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        """The types of data and indices. Raises :class:`ShapeError` for another number of operands."""
        if len(inputs) != 2:
            raise self.fail(f"takes data and indices, not {len(inputs)} operands", *inputs)
        return inputs[0], inputs[1]


def neighbours(indices: Value, extent: int) -> range | None:
    """The elements of an axis that constant indices name one after another, where they do."""
    if not isinstance(indices, Constant) or indices.rank > 1 or not indices.type.size:
        return None
    positions = indices.array.reshape(-1)
    first = int(positions[0]) + (extent if positions[0] < 0 else 0)
    found = range(first, first + len(positions))
    inside = first >= 0 and found.stop <= extent
    return (
        found
        if inside and all(int(position) % extent == at for position, at in zip(positions, found, strict=True))
        else None
    )


@operator
@dataclass(frozen=True)
class Gather(GatherAlongAxis):
    """y[p.., i.., s..] = data[p.., indices[i..], s..]: slices of ``data`` along ``axis``."""

    quantized: ClassVar[Quantized] = "passes"

    def infer(self, *inputs: TensorType) -> TensorType:
        data, indices = self.pair(*inputs)
        require_indices(self, indices, *inputs)
        axis = normalize_axis(self, self.axis, data)
        return data.with_shape((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))

    def reference(self, data: Array, indices: Array) -> Array:
        axis = self.axis % data.ndim
        return np.take(data, checked(self, indices, data.shape[axis]), axis=axis)

    def vjp(self, g: Value, y: Value, data: Value, indices: Value) -> Grads:
        axis = self.axis % data.rank
        found = neighbours(indices, data.shape[axis])
        if found is None:
            return Named("glowtrain.ScatterAdd")(shape=data.shape, axis=axis)(indices, g), None
        before, after = ([0] * data.rank for _ in range(2))
        before[axis], after[axis] = found.start, data.shape[axis] - found.stop
        return pad(reshape(g, (*data.shape[:axis], len(found), *data.shape[axis + 1 :])), (*before, *after)), None

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (data, indices), (y,) = inputs, outputs
        axis, at = self.axis % len(data.shape), indices_of(y.shape)
        end = axis + len(indices.shape)
        position = wrapped(indices[at[axis:end]], data.shape[axis])
        value = data.load([*at[:axis], position, *at[end:]], fill=out_of_range_fill(data.dtype))
        return [For(at, (y.store(at, value),))]

    def counted(self, *operands: Operand) -> list[Value | None]:
        """Negative indices count from the size."""
        (data, _), (values, indices) = operands, map(whole, operands)
        if isinstance(data, Ragged) and indices is not None and data.axis == self.axis % data.value.rank:
            indices = Where()(indices < 0, indices + data.size, indices)
        return [values, indices]

    def follow(self, result: Value, *operands: Operand) -> Value | Ragged:
        (data, indices), (values, positions) = operands, map(whole, operands)
        assert values is not None
        assert positions is not None
        axis = self.axis % values.rank
        if isinstance(indices, Ragged):
            if isinstance(data, Ragged) and data.axis != axis:
                raise ModelError("Gather of a tensor and with indices whose sizes are both found at run time")
            return Ragged(result, axis + indices.axis, indices.size)
        assert isinstance(data, Ragged)
        if data.axis == axis:
            return result
        return Ragged(result, data.axis + (positions.rank - 1 if data.axis > axis else 0), data.size)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(-len(shape), len(shape) - 1)
        return Sample(cls(axis), (draw.floats(shape), draw_indices(draw, draw.shape(max_rank=2), shape[axis])))


@operator
@dataclass(frozen=True)
class GatherElements(GatherAlongAxis):
    """y[i] = data[i with indices[i] on ``axis``]"""

    def infer(self, *inputs: TensorType) -> TensorType:
        data, indices = self.pair(*inputs)
        check_element_indices(self, self.axis, *inputs)
        return data.with_shape(indices.shape)

    def reference(self, data: Array, indices: Array) -> Array:
        axis = self.axis % data.ndim
        return data[element_positions(self, axis, data.shape, indices)]

    def vjp(self, g: Value, y: Value, data: Value, indices: Value) -> Grads:
        return Named("ScatterElements")(axis=self.axis, reduction="add")(filled(0, data.type), indices, g), None

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (data, indices), (y,) = inputs, outputs
        at = indices_of(y.shape)
        position = element_subscripts(self.axis, data, indices, at)
        return [For(at, (y.store(at, data.load(position, fill=out_of_range_fill(data.dtype))),))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape, axis, indices = draw_element_indices(draw, unique=False)
        return Sample(cls(axis), (draw.floats(shape), indices))


@operator
@dataclass(frozen=True)
class GatherND(Operator):
    """Slices of ``data`` at index tuples, the last axis of ``indices``; the first ``batch_dims`` axes go together."""

    batch_dims: int = 0

    copies: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2:
            raise self.fail(f"takes data and indices, not {len(inputs)} operands", *inputs)
        data, indices = inputs
        if indices.dtype != i64:
            raise self.fail(f"indices must be i64, not {indices.dtype}", *inputs)
        b = self.batch_dims
        if not 0 <= b < min(data.rank, indices.rank):
            raise self.fail("batch_dims must be less than both ranks", *inputs)
        if data.shape[:b] != indices.shape[:b]:
            raise self.fail(f"data and indices differ in the first {b} extents", *inputs)
        if not 1 <= indices.shape[-1] <= data.rank - b:
            raise self.fail(f"index tuples must have 1 to {data.rank - b} elements", *inputs)
        return data.with_shape((*indices.shape[:-1], *data.shape[b + indices.shape[-1] :]))

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        data, indices = inputs
        return {1: within(data.shape[self.batch_dims :][: indices.shape[-1]])}

    def reference(self, data: Array, indices: Array) -> Array:
        b, depth = self.batch_dims, indices.shape[-1]
        positions = checked(self, indices, np.asarray(data.shape[b : b + depth]))
        grids: tuple[Array, ...] = np.indices(data.shape[:b], sparse=True)
        batch = [grid.reshape(grid.shape[:b] + (1,) * (indices.ndim - 1 - b)) for grid in grids]
        return np.asarray(data[(*batch, *np.moveaxis(positions, -1, 0))])

    def vjp(self, g: Value, y: Value, data: Value, indices: Value) -> Grads:
        return Named("ScatterND")(reduction="add")(filled(0, data.type), self._full_indices(indices), g), None

    def _full_indices(self, indices: Value) -> Value:
        """Index tuples with the batch coordinates in front."""
        if not self.batch_dims:
            return indices
        result: Value = Concat(axis=-1)(coordinates(indices.shape[:-1], self.batch_dims), indices)
        return result

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (data, indices), (y,) = inputs, outputs
        b, depth, lead = self.batch_dims, indices.shape[-1], len(indices.shape) - 1
        at = indices_of(y.shape)
        positions = [wrapped(indices[(*at[:lead], t)], data.shape[b + t]) for t in range(depth)]
        value = data.load([*at[:b], *positions, *at[lead:]], fill=out_of_range_fill(data.dtype))
        return [For(at, (y.store(at, value),))]

    def follow(self, result: Value, *operands: Operand) -> Ragged:
        data, indices = operands
        if isinstance(data, Ragged) or not isinstance(indices, Ragged) or indices.axis == indices.value.rank - 1:
            raise ModelError("GatherND of a tensor whose size is found at run time")
        return Ragged(result, indices.axis, indices.size)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=4, max_extent=4)
        b = draw.integer(0, len(shape) - 1)
        depth = draw.integer(1, len(shape) - b)
        lead = (*shape[:b], *draw.shape(max_rank=2, max_extent=3))
        columns = [draw_indices(draw, lead, shape[b + t]) for t in range(depth)]
        return Sample(cls(b), (draw.floats(shape), np.stack(columns, axis=-1)))
