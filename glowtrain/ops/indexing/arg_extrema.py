"""Positions of extrema along an axis, and running sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator, static
from glowtrain.loops import Expr, For, Let, Ref, Statement, Tensor, call, indices_of, reduce, select
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.reduce.reduction import AlongAxes, limits, reduced_shape, widened
from glowtrain.types import Array, DType, TensorType, i64

Step = Callable[[list[Expr], list[Expr]], Statement]


@dataclass(frozen=True)
class ArgExtremum(AlongAxes):
    """Position of the largest or smallest element along an axis, as i64.

    Of equal elements the first counts, or with ``select_last_index`` the last. A NaN counts as the extremum.
    """

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "positions are integers"
    combine: ClassVar[str] = "max"

    def reduced(self, x: TensorType) -> tuple[int, ...]:
        return (self.axis % x.rank,)

    def neutral(self, dtype: DType) -> Any:
        return limits(dtype.numpy)[0 if self.combine == "max" else 1]

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        if not x.dtype.is_number:
            raise self.fail(f"element type must be a number, not {x.dtype}; cast it first", x)
        axis = normalize_axis(self, self.axis, x)
        if x.shape[axis] == 0:
            raise self.fail(f"axis {axis} has extent 0: there is no element to choose", x)
        return TensorType(i64, reduced_shape(x.shape, (axis,), self.keepdims))

    def reference(self, x: Array) -> Array:
        axis = self.axis % x.ndim
        search = np.argmax if self.combine == "max" else np.argmin
        wide = widened(x)
        if self.select_last_index:
            found = x.shape[axis] - 1 - search(np.flip(wide, axis), axis=axis)
        else:
            found = search(wide, axis=axis)
        return np.asarray(found, np.int64).reshape(reduced_shape(x.shape, (axis,), self.keepdims))

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (y,) = inputs, outputs
        axis, extent = self.axis % len(x.shape), x.shape[self.axis]
        indices = indices_of(y.shape)
        kept = [i for a, i in enumerate(indices) if not (self.keepdims and a == axis)]

        def element(r: Expr) -> Expr:
            return x[[*kept[:axis], r, *kept[axis:]]]

        best = Ref(x.dtype, "best")
        missing, op = (-1, "max") if self.select_last_index else (extent, "min")
        position = reduce(op, (extent,), lambda r: select(_is_extremum(element(r), best), r, missing))
        return [For(indices, (Let(best, reduce(self.combine, (extent,), element)), y.store(indices, position)))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1)
        axis = draw.integer(-len(shape), len(shape) - 1)
        return Sample(cls(axis, draw.boolean(), draw.boolean()), (draw.integers(shape, -2, 2).astype(np.float64),))


def _is_extremum(element: Expr, best: Expr) -> Expr:
    """Where the best is NaN no element equals it: then the NaNs are meant."""
    same = call("eq", element, best)
    return same | call("isnan", element) if element.dtype.is_float else same


@operator
@dataclass(frozen=True)
class ArgMax(ArgExtremum):
    """Position of the largest element."""


@operator
@dataclass(frozen=True)
class ArgMin(ArgExtremum):
    """Position of the smallest element."""

    combine: ClassVar[str] = "min"


@dataclass(frozen=True)
class Cumulative(Operator):
    """Each element combined with those before it along ``axis``; see :class:`CumSum` for the attributes."""

    axis: int = static(1)
    exclusive: bool = False
    reverse: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        if not inputs[0].dtype.is_number:
            raise self.fail(f"element type must be a number, not {inputs[0].dtype}; cast it first", *inputs)
        normalize_axis(self, self.axis, inputs[0])
        return inputs[0]


def running(y: Tensor, axis: int, reverse: bool, step: Step) -> list[Statement]:
    """A nest that goes along ``axis`` in order: ``step(here, before)`` stores an element from the one before it."""
    axis, extent = axis % len(y.shape), y.shape[axis]
    outer = indices_of((*y.shape[:axis], *y.shape[axis + 1 :]))
    (k,) = indices_of((extent,), "k")
    here, before = (extent - 1 - k, extent - k) if reverse else (k, k - 1)
    statement = step(*([*outer[:axis], position, *outer[axis:]] for position in (here, before)))
    loop = For((k,), (statement,), serial=True)
    return [For(outer, (loop,))] if outer else [loop]


@operator
@dataclass(frozen=True)
class CumSum(Cumulative):
    """Running sums along ``axis``: y[k] = x[0] + ... + x[k].

    ``exclusive`` leaves x[k] itself out; ``reverse`` sums from the end. Every partial sum is rounded to the element
    type.
    """

    def reference(self, x: Array) -> Array:
        turned = np.flip(x, self.axis) if self.reverse else x
        sums = np.add.accumulate(turned, axis=self.axis, dtype=x.dtype)
        if self.exclusive:
            sums = np.roll(sums, 1, self.axis)
            np.moveaxis(sums, self.axis, 0)[:1] = 0
        return np.ascontiguousarray(np.flip(sums, self.axis)) if self.reverse else sums

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (self.replace(reverse=not self.reverse)(g),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (y,) = inputs, outputs

        def step(here: list[Expr], before: list[Expr]) -> Statement:
            added = x.load(before, fill=0) if self.exclusive else x[here]
            return y.store(here, y.load(before, fill=0) + added)

        return running(y, self.axis, self.reverse, step)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1)
        axis = draw.integer(-len(shape), len(shape) - 1)
        return Sample(cls(axis, draw.boolean(), draw.boolean()), (draw.floats(shape),))
