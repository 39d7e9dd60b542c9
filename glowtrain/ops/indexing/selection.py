"""Operators that select elements by their values: the size of what they give is found at run time.

Each gives tensors of the greatest possible size and, as its last result, the size that was found (i64[]). Places past
that size repeat the first element. :mod:`glowtrain.graph.specialise.ragged` says what becomes of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.ops.core.family import normalize_axis
from glowtrain.ops.elementwise.logic import And, Cast, Equal, IsNaN, Not, Or, Where
from glowtrain.ops.indexing.arg_extrema import ArgMax, CumSum
from glowtrain.ops.indexing.gather import Gather, GatherElements
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceSum
from glowtrain.ops.tensor.move import Concat, Transpose, Unsqueeze, reshape
from glowtrain.types import Array, TensorType, boolean, i64

SIZE = TensorType(i64)


def positions(extent: int) -> Value:
    """0, 1, ... below ``extent``."""
    return constant(np.arange(extent, dtype=np.int64))


def compacted(mask: Value) -> tuple[Value, Value]:
    """The positions where ``mask`` (bool[n]) holds, in order, followed by zeros (i64[n]); and how many they are."""
    (extent,) = mask.shape
    ones = Cast(to=i64)(mask)
    target = Where()(mask, CumSum(axis=0, exclusive=True)(ones), 0)
    source = Where()(mask, positions(extent), 0)
    order = ScatterElements(reduction="add")(constant(np.zeros(extent, np.int64)), target, source)
    return order, ReduceSum(axes=(0,), keepdims=False)(ones)


def compacted_reference(mask: Array) -> tuple[Array, Array]:
    """:func:`compacted` with NumPy."""
    found = np.flatnonzero(mask)
    order = np.zeros(mask.shape, np.int64)
    order[: found.size] = found
    return order, np.asarray(found.size, np.int64)


@operator
@dataclass(frozen=True)
class NonZero(Operator):
    """Indices of the elements that are not zero, in row-major order: one column each.

    Results: i64[rank, elements], and how many there are.
    """

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "indices are integers"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        return i64[inputs[0].rank, inputs[0].size], SIZE

    def reference(self, x: Array) -> tuple[Array, ...]:
        order, size = compacted_reference(x.reshape(-1) != 0)
        if not x.ndim or not x.size:
            return np.zeros((x.ndim, x.size), np.int64), size
        return np.stack(np.unravel_index(order, x.shape)).astype(np.int64), size

    def decompose(self, x: Value) -> Any:
        if not x.type.size or not x.rank:
            mask = Cast(to=boolean)(reshape(x, (x.type.size,)))
            return constant(np.zeros((x.rank, x.type.size), np.int64)), compacted(mask)[1]
        order, size = compacted(Cast(to=boolean)(reshape(x, (x.type.size,))))
        strides = [math.prod(x.shape[axis + 1 :]) for axis in range(x.rank)]
        pairs = zip(strides, x.shape, strict=True)
        rows = [order / stride - order / (stride * extent) * extent for stride, extent in pairs]
        return Concat(axis=0)(*(Unsqueeze(axes=(0,))(row) for row in rows)), size

    def data_dependent_sizes(self, *inputs: TensorType | None) -> dict[int, int]:
        return {0: 1}

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(max_rank=3)
        return Sample(cls(), (draw.floats(shape) * draw.integers(shape, 0, 1),))


@operator
@dataclass(frozen=True)
class Compress(Operator):
    """The slices along ``axis`` (elements of the flattened tensor without one) at which ``condition`` holds.

    Results: the slices, and how many there are. ``condition`` is bool[n], n at most the extent.
    """

    axis: int | None = None

    domain: ClassVar[str] = "glowtrain"

    def along(self, x: TensorType) -> int:
        """The axis of the result that is selected from."""
        return 0 if self.axis is None else normalize_axis(self, self.axis, x)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        if len(inputs) != 2:
            raise self.fail(f"takes 2 operands, not {len(inputs)}", *inputs)
        x, condition = inputs
        shape = (x.size,) if self.axis is None else x.shape
        axis = self.along(x)
        if condition.dtype != boolean or condition.rank != 1 or condition.shape[0] > shape[axis]:
            raise self.fail(f"condition must be bool[n] with n at most {shape[axis]}", *inputs)
        return x.with_shape((*shape[:axis], condition.shape[0], *shape[axis + 1 :])), SIZE

    def reference(self, x: Array, condition: Array) -> tuple[Array, ...]:
        flat = x.reshape(-1) if self.axis is None else x
        order, size = compacted_reference(condition)
        return np.take(flat, order, axis=self.axis or 0), size

    def decompose(self, x: Value, condition: Value) -> Any:
        flat = reshape(x, (x.type.size,)) if self.axis is None else x
        order, size = compacted(condition)
        return Gather(axis=self.axis or 0)(flat, order), size

    def data_dependent_sizes(self, *inputs: TensorType | None) -> dict[int, int]:
        assert inputs[0] is not None
        return {0: self.along(inputs[0])}

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.choice((None, *range(-len(shape), len(shape))))
        extent = math.prod(shape) if axis is None else shape[axis]
        condition = draw.integers((draw.integer(min(1, extent), extent),), 0, 1).astype(np.bool_)
        return Sample(cls(axis), (draw.floats(shape), condition))


@operator
@dataclass(frozen=True)
class Unique(Operator):
    """The different elements, or slices along ``axis``; sorted, or in the order in which they first appear.

    Results: those, the place of the first of each, for every element the place of its equal among them, how often each
    appears, and how many there are. NaNs are equal to each other and sorted last.
    """

    axis: int | None = None
    sorted: bool = True

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        if not x.size:
            raise self.fail("the operand must not be empty", *inputs)
        whole = x.with_shape((x.size,)) if self.axis is None else x
        count = whole.shape[self._along(whole)]
        return whole, i64[count], i64[count], i64[count], SIZE

    def _along(self, x: TensorType) -> int:
        return 0 if self.axis is None else normalize_axis(self, self.axis, x)

    def data_dependent_sizes(self, *inputs: TensorType | None) -> dict[int, int]:
        assert inputs[0] is not None
        return {0: self._along(inputs[0]), 1: 0, 3: 0}

    def reference(self, x: Array) -> tuple[Array, ...]:
        axis = (self.axis or 0) % max(x.ndim, 1)
        whole = x.reshape(-1) if self.axis is None else x
        rows = np.moveaxis(whole, axis, 0).reshape(whole.shape[axis], -1)
        positions = _groups(rows, ordered=self.sorted)
        firsts = [group[0] for group in positions]
        order, inverse, counts = (np.zeros(len(rows), np.int64) for _ in range(3))
        order[: len(positions)], counts[: len(positions)] = firsts, [len(group) for group in positions]
        for rank, group in enumerate(positions):
            inverse[group] = rank
        return np.take(whole, order, axis), order, inverse, counts, np.asarray(len(positions), np.int64)

    def decompose(self, x: Value) -> Any:
        whole = reshape(x, (x.type.size,)) if self.axis is None else x
        axis = self._along(whole.type)
        count = whole.shape[axis]
        moved = whole if axis == 0 else Transpose(perm=(axis, *(k for k in range(whole.rank) if k != axis)))(whole)
        rows = reshape(moved, (count, moved.type.size // count))
        same, less = _compared(rows)
        leader = ArgMax(axis=1, keepdims=False)(Cast(to=i64)(same))
        leads = Equal()(leader, positions(count))
        if self.sorted:
            before = Where()(less, Cast(to=i64)(Unsqueeze(axes=(0,))(leads)), 0)
            inverse = ReduceSum(axes=(1,), keepdims=False)(before)
        else:
            inverse = Gather(axis=0)(CumSum(axis=0, exclusive=True)(Cast(to=i64)(leads)), leader)
        add, zeros = ScatterElements(reduction="add"), constant(np.zeros(count, np.int64))
        order = add(zeros, inverse, Where()(leads, positions(count), 0))
        counts = add(zeros, inverse, constant(np.ones(count, np.int64)))
        size = ReduceSum(axes=(0,), keepdims=False)(Cast(to=i64)(leads))
        return Gather(axis=axis)(whole, order), order, inverse, counts, size

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3, max_extent=4)
        axis = draw.choice((None, *range(-len(shape), len(shape))))
        # Integers repeat; floats differ, for where they are equal is a position without a gradient.
        values = draw.integers(shape, 0, 2) if draw.boolean() else draw.floats(shape)
        return Sample(cls(axis, draw.boolean()), (values,))


def _groups(rows: Array, *, ordered: bool) -> list[list[int]]:
    """The positions of equal rows, in the order of the rows or of first appearance."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for position, row in enumerate(rows.tolist()):
        found.setdefault(tuple((item != item, 0 if item != item else item) for item in row), []).append(position)
    return [found[key] for key in (sorted(found) if ordered else found)]


def _compared(rows: Value) -> tuple[Value, Value]:
    """For rows i and j: whether they are equal (bool[n, n]), and whether j comes before i in lexicographic order."""
    left, right = Unsqueeze(axes=(1,))(rows), Unsqueeze(axes=(0,))(rows)
    equal, before = Equal()(left, right), right < left
    if rows.dtype.is_float:
        nan, other = IsNaN()(left), IsNaN()(right)
        equal = Or()(equal, And()(nan, other))
        before = Or()(before, And()(nan, Not()(other)))
    differs = Cast(to=i64)(Not()(equal))
    first = ArgMax(axis=2, keepdims=True)(differs)
    less = GatherElements(axis=2)(Cast(to=i64)(before), first)
    same = Equal()(ReduceMax(axes=(2,), keepdims=False)(differs), 0)
    return same, Cast(to=boolean)(reshape(less, less.shape[:2]))
