"""Sequences in a padded batch: reversing each over its own length, writing into a cache at positions of its own.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.loops import Expr, Statement, Tensor, cast, pointwise, select
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.elementwise.arithmetic import Mod
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.reduce.reduction import filled
from glowtrain.ops.tensor.move import Expand, reshape
from glowtrain.types import Array, Shape, TensorType, i32, i64


@operator
@dataclass(frozen=True)
class ReverseSequence(Operator):
    """The first ``sequence_lens[b]`` elements along ``time_axis`` in reverse order; the rest as they are."""

    batch_axis: int = 1
    time_axis: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2:
            raise self.fail(f"takes the input and sequence_lens, not {len(inputs)} operands", *inputs)
        x, lengths = inputs
        if x.rank < 2 or sorted((self.batch_axis, self.time_axis)) != [0, 1]:
            raise self.fail("time_axis and batch_axis must be 0 and 1 in some order, of an input of rank 2 or more", x)
        if lengths.dtype not in (i32, i64) or lengths.shape != (x.shape[self.batch_axis],):
            raise self.fail(f"sequence_lens must be i64[{x.shape[self.batch_axis]}]", *inputs)
        return x

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        return {1: IndexRange(0, inputs[0].shape[self.time_axis])}

    def reference(self, x: Array, lengths: Array) -> Array:
        y = x.copy()
        sources, results = (np.moveaxis(array, self.batch_axis, 0) for array in (x, y))
        for source, result, length in zip(sources, results, lengths.tolist(), strict=True):
            result[:length] = source[:length][::-1]
        return y

    def vjp(self, g: Value, y: Value, x: Value, lengths: Value) -> Grads:
        return self(g, lengths), None

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x, lengths), (y,) = inputs, outputs

        def element(*index: Expr) -> Expr:
            time = index[self.time_axis]
            length = cast(lengths[(index[self.batch_axis],)], i64)
            position = select(time < length, length - 1 - time, time)
            return x.load([position if axis == self.time_axis else i for axis, i in enumerate(index)], fill=0)

        return pointwise(y, element)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(min_rank=2))
        time = draw.integer(0, 1)
        lengths = draw.integers((x.shape[1 - time],), 0, x.shape[time])
        return Sample(cls(1 - time, time), (x, lengths))


@operator
@dataclass(frozen=True)
class TensorScatter(Operator):
    """A cache with ``update`` written along ``axis`` from position ``write_indices[b]`` (0 where absent), for each b.

    In mode "linear" the update must fit in; in "circular" it goes on from the start. Operands: past_cache, update,
    write_indices: i64[batch]; axis 0 is the batch.
    """

    mode: Literal["linear", "circular"] = "linear"
    axis: int = -2

    def infer(self, *inputs: TensorType | None) -> TensorType:
        past, update, starts = self._operands(*inputs)
        if past.dtype != update.dtype:
            raise self.fail("past_cache and update must have one element type", *inputs)
        axis = normalize_axis(self, self.axis, past)
        if axis == 0 or self.mode not in ("linear", "circular"):
            raise self.fail('axis must not be 0 (the batch), and mode "linear" or "circular"', *inputs)
        positions = update.shape[axis] if update.rank == past.rank else 0
        if update.shape != (*past.shape[:axis], positions, *past.shape[axis + 1 :]) or positions > past.shape[axis]:
            raise self.fail(f"update must have past_cache's shape, with at most its extent on axis {axis}", *inputs)
        if starts is not None and (starts.dtype != i64 or starts.shape != past.shape[:1]):
            raise self.fail(f"write_indices must be i64[{past.shape[0]}]", *inputs)
        result: TensorType = past
        return result

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        past, update, starts = self._operands(*inputs)
        if starts is None:
            return {}
        limit = past.shape[self.axis]
        return {2: IndexRange(0, limit - 1 if self.mode == "circular" else limit - update.shape[self.axis])}

    def _operands(self, *inputs: Any) -> tuple[Any, Any, Any]:
        if not 2 <= len(inputs) <= 3 or inputs[0] is None or inputs[1] is None:
            raise self.fail("takes past_cache, update and optional write_indices", *inputs)
        return inputs[0], inputs[1], inputs[2] if len(inputs) == 3 else None

    def reference(self, *inputs: Any) -> Array:
        past, update, starts = self._operands(*inputs)
        y = np.array(past)
        starts = np.zeros(past.shape[0], np.int64) if starts is None else starts
        axis = self.axis % past.ndim - 1
        for result, part, start in zip(y, update, starts.tolist(), strict=True):
            positions = self._places(np.arange(start, start + part.shape[axis]), result.shape[axis])
            np.moveaxis(result, axis, 0)[positions] = np.moveaxis(part, axis, 0)
        return y

    def _places(self, positions: Array, extent: int) -> Array:
        if self.mode == "circular":
            return positions % max(extent, 1)
        if positions.size and (positions[0] < 0 or positions[-1] >= extent):
            raise self.fail(f"writing from place {positions[0]} goes beyond the cache's {extent} places")
        return positions

    def vjp(self, g: Value, y: Value, *inputs: Value | None) -> Grads:
        _, update, starts = self._operands(*inputs)
        operands = (g, filled(0, update.type)) if starts is None else (g, filled(0, update.type), starts)
        d_update = GatherElements(axis=self.axis)(g, self._written(update.shape, g.shape[self.axis], starts))
        return (self(*operands), d_update, None)[: len(inputs)]

    def _written(self, shape: Shape, extent: int, starts: Value | None) -> Value:
        """The position along the axis that each element of an update goes to."""
        axis, rank = self.axis % len(shape), len(shape)
        steps = np.arange(shape[axis]).reshape((-1,) + (1,) * (rank - 1 - axis))
        first = constant(np.zeros(shape[:1], np.int64)) if starts is None else starts
        positions = reshape(first, shape[:1] + (1,) * (rank - 1)) + constant(steps)
        if self.mode == "circular":
            positions = Mod()(positions, constant(np.array(extent)))
        result: Value = Expand(shape)(positions)
        return result

    def decompose(self, *inputs: Value | None) -> Value:
        """For runtimes without the operator."""
        past, update, starts = self._operands(*inputs)
        positions = self._written(update.shape, past.shape[self.axis], starts)
        result: Value = ScatterElements(axis=self.axis)(past, positions, update)
        return result

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        past, update, starts = self._operands(*inputs)
        (y,) = outputs
        axis, extent = self.axis % len(y.shape), y.shape[self.axis]

        def element(*index: Expr) -> Expr:
            position = index[axis] if starts is None else index[axis] - starts[(index[0],)]
            if self.mode == "circular":
                position = position % extent
            inside = (position >= 0) & (position < update.shape[axis])
            written = update.load([*index[:axis], position, *index[axis + 1 :]], fill=0)
            return select(inside, written, past[index])

        return pointwise(y, element)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=2)
        axis = draw.integer(1, len(shape) - 1)
        mode = draw.choice(("linear", "circular"))
        count = draw.integer(1, shape[axis])
        last = shape[axis] - count if mode == "linear" else shape[axis] - 1
        both = draw.floats((math.prod(shape) + math.prod(shape) // shape[axis] * count,))
        past = both[: math.prod(shape)].reshape(shape)
        update = both[math.prod(shape) :].reshape((*shape[:axis], count, *shape[axis + 1 :]))
        starts = draw.integers(shape[:1], 0, last)
        named = draw.choice((axis, axis - len(shape)))
        return Sample(cls(mode, named), (past, update, starts)[: draw.integer(2, 3)])
