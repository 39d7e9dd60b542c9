"""Scatter: elements written, or combined with what is there, at positions that another tensor names.

What is outside: see :mod:`glowtrain.ops.core.index`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.loops import Const, Expr, For, Statement, Tensor, call, indices_of, select
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.core.index import (
    check_element_indices,
    checked,
    coordinates,
    draw_element_indices,
    draw_indices,
    element_positions,
    element_subscripts,
    require_indices,
    within,
    wrapped,
)
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.indexing.gather import Gather, GatherElements, GatherND
from glowtrain.ops.reduce.reduction import as_dtype, filled
from glowtrain.ops.tensor.move import Concat, Expand, reshape
from glowtrain.types import Array, TensorType, i64

REDUCTIONS = ("none", "add", "mul", "max", "min")
_UFUNCS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@operator
@dataclass(frozen=True)
class ScatterAdd(Operator):
    """Zeros of ``shape``, with updates[p.., i.., s..] added at [p.., indices[i..], s..]: the gradient of Gather.

    Where an index repeats the updates add up, in the order of ``indices``.
    """

    shape: tuple[int, ...]
    axis: int = 0

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2:
            raise self.fail(f"takes indices and updates, not {len(inputs)} operands", *inputs)
        indices, updates = inputs
        require_indices(self, indices, *inputs)
        if updates.dtype.is_stored:
            raise self.fail(f"updates must be numbers, not {updates.dtype}; cast them first", *inputs)
        result = TensorType(updates.dtype, self.shape)
        axis = normalize_axis(self, self.axis, result)
        expected = (*self.shape[:axis], *indices.shape, *self.shape[axis + 1 :])
        if updates.shape != expected:
            raise self.fail(f"updates must have shape {list(expected)}", *inputs)
        return result

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        return {0: within(self.shape[self.axis])}

    def reference(self, indices: Array, updates: Array) -> Array:
        axis = self.axis % len(self.shape)
        result = np.zeros(self.shape, updates.dtype)
        positions = checked(self, indices, self.shape[axis])
        where: Any = (*[slice(None)] * axis, positions)
        np.add.at(result, where, updates)
        return result

    def vjp(self, g: Value, y: Value, indices: Value, updates: Value) -> Grads:
        return None, Gather(axis=self.axis)(g, indices)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (indices, updates), (y,) = inputs, outputs
        axis, zero, at = self.axis % len(self.shape), indices_of(self.shape), indices_of(updates.shape)
        end = axis + len(indices.shape)
        position = wrapped(indices[at[axis:end]], self.shape[axis])
        added = y.accumulate("add", [*at[:axis], position, *at[end:]], updates[at])
        return [For(zero, (y.store(zero, Const(0, y.dtype)),)), For(at, (added,))]

    def decompose(self, indices: Value, updates: Value) -> Value:
        """ScatterND with "add" onto zeros: ``indices`` joined to the coordinates of the axes before ``axis``."""
        axis = self.axis % len(self.shape)
        lead = (*self.shape[:axis], *indices.shape)
        tuples: Value = Expand(shape=(*lead, 1))(reshape(as_dtype(indices, i64), (*indices.shape, 1)))
        if axis:
            tuples = Concat(axis=-1)(coordinates(lead, axis), tuples)
        zeros = filled(0, TensorType(updates.dtype, self.shape))
        result: Value = ScatterND(reduction="add")(zeros, tuples, updates)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(0, len(shape) - 1)
        indices = draw_indices(draw, draw.shape(max_rank=2), shape[axis])
        return Sample(cls(shape, axis), (indices, draw.floats((*shape[:axis], *indices.shape, *shape[axis + 1 :]))))


def _draw_both(draw: Draw, first: tuple[int, ...], second: tuple[int, ...], reduction: str) -> tuple[Array, Array]:
    """Data and updates: whole numbers, of which many are equal, for "none"; else no ties within or between them."""
    size = math.prod(first)
    flat = draw.floats((size + math.prod(second),))
    if reduction == "none":
        flat = np.round(flat)
    return flat[:size].reshape(first), flat[size:].reshape(second)


class Scatter(Operator):
    """A copy of ``data`` with ``updates`` written, or combined by ``reduction``, at the positions that ``indices``
    name.

    With "none" the positions must differ (ONNX leaves the rest open; here the last one counts, but all get gradients).
    "max" and "min": values that tie share the gradient evenly. "mul": first-order gradients are right with zeros too.
    """

    reduction: str

    def gather(self, x: Value, indices: Value) -> Value:
        """The elements of ``x`` at the positions."""
        raise NotImplementedError

    def onto(self, data: Value, indices: Value, updates: Value, reduction: str) -> Value:
        """The same scatter with another reduction."""
        raise NotImplementedError

    def positions(self, shape: tuple[int, ...], indices: Array) -> tuple[Any, ...]:
        """NumPy subscripts of the positions; raises for an index outside."""
        raise NotImplementedError

    def subscripts(self, data: Tensor, indices: Tensor, at: Sequence[Expr]) -> list[Expr]:
        """Where the update at ``at`` goes."""
        raise NotImplementedError

    def check(self, *inputs: TensorType) -> None:
        """Operands present, of fitting types; a known reduction."""
        if len(inputs) != 3:
            raise self.fail(f"takes data, indices and updates, not {len(inputs)} operands", *inputs)
        if self.reduction not in REDUCTIONS:
            raise self.fail(f"reduction must be one of {', '.join(REDUCTIONS)}", *inputs)
        if inputs[0].dtype != inputs[2].dtype:
            raise self.fail("data and updates must have one element type", *inputs)
        if not inputs[0].dtype.is_number and self.reduction != "none":
            raise self.fail(f"reduction {self.reduction} needs numbers, not {inputs[0].dtype}", *inputs)

    def reference(self, data: Array, indices: Array, updates: Array) -> Array:
        result = data.copy()
        positions = self.positions(data.shape, indices)
        if self.reduction == "none":
            result[positions] = updates
        else:
            _UFUNCS[self.reduction].at(result, positions, updates)
        return result

    def vjp(self, g: Value, y: Value, data: Value, indices: Value, updates: Value) -> Grads:
        if self.reduction == "none":
            zeros = filled(0, updates.type)
            return self.onto(g, indices, zeros, "none"), None, self.gather(g, indices)
        if self.reduction == "add":
            return g, None, self.gather(g, indices)
        if self.reduction == "mul":
            return self._product_grads(g, data, indices, updates)
        mine = as_dtype(Equal()(data, y), g.dtype)
        theirs = as_dtype(Equal()(updates, self.gather(y, indices)), g.dtype)
        shared = g / self.onto(mine, indices, theirs, "add")
        return mine * shared, None, theirs * self.gather(shared, indices)

    def _product_grads(self, g: Value, data: Value, indices: Value, updates: Value) -> Grads:
        """An update's gradient is the product of the others: of the non-zero ones, where no other is zero."""
        zero = Equal()(updates, 0.0)
        nonzero = Where()(zero, 1.0, updates)
        zeros = self.onto(filled(0, data.type), indices, as_dtype(zero, data.dtype), "add")
        product = self.onto(filled(1, data.type), indices, nonzero, "mul") * g
        other_zeros = self.gather(zeros, indices) - as_dtype(zero, data.dtype)
        others = self.gather(product * data, indices) / nonzero
        d_data = Where()(Equal()(zeros, 0.0), product, 0.0)
        return d_data, None, Where()(Equal()(other_zeros, 0.0), others, 0.0)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (data, indices, updates), (y,) = inputs, outputs
        copy, at = indices_of(y.shape), indices_of(updates.shape)
        position = self.subscripts(data, indices, at)
        start = For(copy, (y.store(copy, data[copy]),))
        if self.reduction != "none":
            return [start, For(at, (y.accumulate(self.reduction, position, updates[at]),))]
        if 0 in y.shape:
            return [start]
        return [start, For(at, (_write_inside(y, position, updates[at]),), serial=True)]


def _write_inside(y: Tensor, position: Sequence[Expr], value: Expr) -> Statement:
    """Store; where the position is outside, some element of ``y`` is written back to itself instead."""
    near = [call("max", call("min", i, extent - 1), 0) for i, extent in zip(position, y.shape, strict=True)]
    inside: Expr | None = None
    for i, j in zip(position, near, strict=True):
        same = call("eq", i, j)
        inside = same if inside is None else inside & same
    return y.store(near, value if inside is None else select(inside, value, y[near]))


@operator
@dataclass(frozen=True)
class ScatterElements(Scatter):
    """updates[i] go to [i with indices[i] on ``axis``]."""

    axis: int = 0
    reduction: str = "none"

    def infer(self, *inputs: TensorType) -> TensorType:
        self.check(*inputs)
        data, indices, updates = inputs
        check_element_indices(self, self.axis, *inputs)
        if updates.shape != indices.shape:
            raise self.fail("updates must have the shape of indices", *inputs)
        return data

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        return {1: within(inputs[0].shape[self.axis])}

    def gather(self, x: Value, indices: Value) -> Value:
        result: Value = GatherElements(axis=self.axis)(x, indices)
        return result

    def onto(self, data: Value, indices: Value, updates: Value, reduction: str) -> Value:
        result: Value = self.replace(reduction=reduction)(data, indices, updates)
        return result

    def positions(self, shape: tuple[int, ...], indices: Array) -> tuple[Any, ...]:
        return element_positions(self, self.axis % len(shape), shape, indices)

    def subscripts(self, data: Tensor, indices: Tensor, at: Sequence[Expr]) -> list[Expr]:
        return element_subscripts(self.axis, data, indices, at)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        reduction = draw.choice(REDUCTIONS)
        shape, axis, indices = draw_element_indices(draw, unique=reduction == "none")
        data, updates = _draw_both(draw, shape, indices.shape, reduction)
        return Sample(cls(axis, reduction), (data, indices, updates))


@operator
@dataclass(frozen=True)
class ScatterND(Scatter):
    """Slices of ``updates`` go to index tuples, the last axis of ``indices``."""

    reduction: str = "none"

    def infer(self, *inputs: TensorType) -> TensorType:
        self.check(*inputs)
        data, indices, updates = inputs
        if indices.dtype != i64:
            raise self.fail(f"indices must be i64, not {indices.dtype}", *inputs)
        if not indices.rank or not 1 <= indices.shape[-1] <= data.rank:
            raise self.fail(f"index tuples (the last axis of indices) must have 1 to {data.rank} elements", *inputs)
        expected = (*indices.shape[:-1], *data.shape[indices.shape[-1] :])
        if updates.shape != expected:
            raise self.fail(f"updates must have shape {list(expected)}", *inputs)
        return data

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        data, indices, _ = inputs
        return {1: within(data.shape[: indices.shape[-1]])}

    def gather(self, x: Value, indices: Value) -> Value:
        result: Value = GatherND()(x, indices)
        return result

    def onto(self, data: Value, indices: Value, updates: Value, reduction: str) -> Value:
        result: Value = self.replace(reduction=reduction)(data, indices, updates)
        return result

    def positions(self, shape: tuple[int, ...], indices: Array) -> tuple[Any, ...]:
        return tuple(np.moveaxis(checked(self, indices, np.asarray(shape[: indices.shape[-1]])), -1, 0))

    def subscripts(self, data: Tensor, indices: Tensor, at: Sequence[Expr]) -> list[Expr]:
        lead = len(indices.shape) - 1
        positions = [wrapped(indices[(*at[:lead], t)], data.shape[t]) for t in range(indices.shape[-1])]
        return [*positions, *at[lead:]]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        reduction = draw.choice(REDUCTIONS)
        shape = draw.shape(min_rank=1, max_rank=3)
        depth = draw.integer(1, len(shape))
        if reduction == "none":
            taken = draw.integer(1, math.prod(shape[:depth]))
            flat = (draw.integer(0, 99) + np.arange(taken)) % math.prod(shape[:depth])
            indices = np.stack(np.unravel_index(flat, shape[:depth]), axis=-1).astype(np.int64)
        else:
            lead = draw.shape(max_rank=2)
            indices = np.stack([draw_indices(draw, lead, shape[t]) for t in range(depth)], axis=-1)
        data, updates = _draw_both(draw, shape, (*indices.shape[:-1], *shape[depth:]), reduction)
        return Sample(cls(reduction), (data, indices, updates))
