"""Indices into a tensor: their rules, as subscripts and as arrays.

Indices count from the end where they are negative. One that is still outside is an error in the reference; compiled
code reads NaN (0 for other than floats) for it and drops what would be written there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glowtrain.graph import Draw, Operator, Value, constant
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.loops import Expr, Tensor, cast, select
from glowtrain.ops.core.family import normalize_axis
from glowtrain.types import Array, DType, TensorType, i32, i64


def wrapped(index: Expr, extent: int) -> Expr:
    """An i64 subscript from an index that may count from the end."""
    wide = cast(index, i64)
    return select(wide < 0, wide + extent, wide)


def out_of_range_fill(dtype: DType) -> float | int:
    """What is read at an index outside: NaN, so that the mistake shows, or 0 where there is no NaN."""
    return math.nan if dtype.is_float else 0


def within(extents: int | Sequence[int]) -> IndexRange:
    """The indices into axes of these extents, counted from the front or the end."""
    if isinstance(extents, int):
        return IndexRange(-extents, extents - 1)
    return IndexRange(tuple(-extent for extent in extents), tuple(extent - 1 for extent in extents))


def checked(operator_: Operator, indices: Array, extents: int | Array) -> Array:
    """Non-negative i64 indices. Raises :class:`ShapeError` naming one that is outside [-extent, extent)."""
    wide = indices.astype(np.int64)
    limit = np.broadcast_to(np.asarray(extents, np.int64), wide.shape)
    wrong = (wide < -limit) | (wide >= limit)
    if wrong.any():
        position = tuple(int(i) for i in np.argwhere(wrong)[0])
        extent = int(limit[position])
        raise operator_.fail(f"index {wide[position]} at {list(position)} is outside [{-extent}, {extent - 1}]")
    return np.where(wide < 0, wide + limit, wide)


def require_indices(operator_: Operator, indices: TensorType, *inputs: TensorType) -> None:
    """Indices are i32 or i64. Raises :class:`ShapeError`."""
    if indices.dtype not in (i32, i64):
        raise operator_.fail(f"indices must be i32 or i64, not {indices.dtype}", *inputs)


def draw_indices(draw: Draw, shape: tuple[int, ...], extent: int) -> Array:
    """Indices into an axis, counted from either end."""
    return draw.integers(shape, -extent, extent - 1)


def coordinates(shape: tuple[int, ...], depth: int) -> Value:
    """Each position's first ``depth`` coordinates, as a last axis."""
    return constant(np.moveaxis(np.indices(shape)[:depth], 0, -1).astype(np.int64))


def check_element_indices(operator_: Operator, axis: int, *inputs: TensorType) -> None:
    """One index for each element: as many axes as data, and no more positions on others than ``axis``."""
    data, indices = inputs[:2]
    require_indices(operator_, indices, *inputs)
    axis = normalize_axis(operator_, axis, data)
    if indices.rank != data.rank:
        raise operator_.fail("indices must have the rank of data", *inputs)
    if any(n > m for a, (n, m) in enumerate(zip(indices.shape, data.shape, strict=True)) if a != axis):
        raise operator_.fail(f"indices must not be larger than data on axes other than {axis}", *inputs)


def element_positions(operator_: Operator, axis: int, shape: tuple[int, ...], indices: Array) -> tuple[Array, ...]:
    """NumPy subscripts: each position, with its index on ``axis``."""
    positions: list[Array] = list(np.indices(indices.shape, sparse=True))
    positions[axis] = checked(operator_, indices, shape[axis])
    return tuple(positions)


def element_subscripts(axis: int, data: Tensor, indices: Tensor, at: Sequence[Expr]) -> list[Expr]:
    """The subscripts ``at``, with the index that is there on ``axis``."""
    axis = axis % len(data.shape)
    return [wrapped(indices[at], data.shape[axis]) if a == axis else i for a, i in enumerate(at)]


def draw_element_indices(draw: Draw, unique: bool) -> tuple[tuple[int, ...], int, Array]:
    """A data shape, an axis, and indices; unique ones where writes must not collide."""
    shape = draw.shape(min_rank=1, max_rank=3)
    axis = draw.integer(-len(shape), len(shape) - 1)
    taken = tuple(draw.integer(1, extent) for extent in shape)
    indices = draw_indices(draw, taken, shape[axis])
    if unique:
        start = draw.integer(0, shape[axis] - 1)
        along = (start + np.arange(taken[axis])) % shape[axis]
        indices = np.broadcast_to(np.expand_dims(along, tuple(range(1, len(shape) - axis % len(shape)))), taken).copy()
    return shape, axis, indices
