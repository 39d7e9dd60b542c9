"""Reading a tensor at real positions that are only known at run time, by interpolation between neighbours.

The weights are polynomials in the position's fraction, so gradients flow to the positions. Cubic convolution: R. Keys,
"Cubic convolution interpolation for digital image processing", IEEE Trans. ASSP 29 (1981), with slope -3/4.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.arithmetic import Abs, Floor, Round
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, filled, widened
from glowtrain.ops.resample.resize import keys
from glowtrain.ops.resample.weighted_points import GatherSum
from glowtrain.ops.tensor.move import Expand, reshape
from glowtrain.types import Array, i64

Padding = Literal["zeros", "border", "reflection"]
_A = -0.75


@dataclass(frozen=True)
class InterpolationKernel:
    """Neighbours ``first``, ``first + 1``, ... of a position's floor; row t of ``polynomials`` has the coefficients of
    neighbour t's weight in the position's fraction, lowest power first."""

    first: int
    polynomials: tuple[tuple[float, ...], ...]

    @property
    def taps(self) -> int:
        return len(self.polynomials)


KERNELS = {
    "nearest": InterpolationKernel(0, ((1.0,),)),
    "linear": InterpolationKernel(0, ((1.0, -1.0), (0.0, 1.0))),
    "cubic": InterpolationKernel(
        -1,
        (
            (0.0, _A, -2 * _A, _A),
            (1.0, 0.0, -_A - 3, _A + 2),
            (0.0, -_A, 2 * _A + 3, -_A - 2),
            (0.0, 0.0, _A, -_A),
        ),
    ),
}


@dataclass(frozen=True)
class Border:
    """The ends of an axis: what lies outside of [low, high] is padded."""

    extent: int
    padding: Padding
    low: float
    high: float

    @staticmethod
    def of(extent: int, padding: Padding, *, corners: bool) -> Border:
        """An axis that ends in the middle of its outermost elements (``corners``), or half an element further out."""
        margin = 0.0 if corners else 0.5
        return Border(extent, padding, -margin, extent - 1 + margin)

    def moved(self, position: Value, taps: int) -> Value:
        """The position that is read for one that may be far outside, even infinitely; its neighbours may be outside."""
        if self.padding == "reflection":
            return self.reflected(position)
        reach = taps // 2
        return clip(position, -reach, self.extent - 1 + reach)

    def reflected(self, position: Value) -> Value:
        """A triangular wave between the ends."""
        span = self.high - self.low
        if span == 0:
            return filled(self.low, position.type)
        distance: Value = Abs()(position - self.low)
        distance = distance - Floor()(distance / (2 * span)) * (2 * span)
        from_middle: Value = Abs()(distance - span)
        return (self.low + span) - from_middle

    def padded(self, positions: Value, weights: Value) -> tuple[Value, Value]:
        """Indices within the axis, and weights, of neighbours at whole positions."""
        if self.padding == "zeros":
            weights = Where()((positions >= 0.0) & (positions <= self.extent - 1.0), weights, 0.0)
        elif self.padding == "reflection":
            positions = self.reflected(positions)
        return as_dtype(clip(positions, 0.0, self.extent - 1.0), i64), weights


@dataclass(frozen=True)
class Neighbours:
    """Elements to read and their weights: ``indices`` (i64) and ``weights``, both [N, taps, P]."""

    indices: Value
    weights: Value

    @staticmethod
    def along(position: Value, border: Border, mode: str) -> Neighbours:
        """Those of positions[N, P] on one axis."""
        kernel, (n, p) = KERNELS[mode], position.shape
        if mode == "nearest":
            position = Round()(position)
        position = border.moved(position, max(kernel.taps, 2))
        floor: Value = Round()(position) if mode == "nearest" else Floor()(position)
        shape, column = (n, 1, p), (1, kernel.taps, 1)
        offsets = np.arange(kernel.taps).reshape(column) + kernel.first
        weights = _polynomials(kernel, reshape(position - floor, shape))
        positions = reshape(floor, shape) + constant(offsets, position.dtype)
        return Neighbours(*border.padded(positions, Expand((n, kernel.taps, p))(weights)))

    def times(self, other: Neighbours, extent: int) -> Neighbours:
        """All pairs, ``other`` on the next axis, which has ``extent`` elements; taps in row-major order."""
        (n, a, p), b = self.indices.shape, other.indices.shape[1]

        def pairs(one: Value, two: Value, join: Callable[[Value, Value], Value]) -> Value:
            return reshape(join(reshape(one, (n, a, 1, p)), reshape(two, (n, 1, b, p))), (n, a * b, p))

        indices = pairs(self.indices, other.indices, lambda one, two: one * extent + two)
        return Neighbours(indices, pairs(self.weights, other.weights, lambda one, two: one * two))

    def sums(self, x: Value) -> Value:
        """The weighted sums of elements of x[N, C, S], as [N, C, P] in the element type in which they are summed."""
        wide = accumulator(x.dtype)
        result: Value = GatherSum()(as_dtype(x, wide), self.indices, as_dtype(self.weights, wide))
        return result


def neighbours(positions: Sequence[Value], borders: Sequence[Border], mode: str) -> Neighbours:
    """The neighbours of points: one positions[N, P] for each axis; indices count in the flattened axes."""
    axes = [Neighbours.along(*pair, mode) for pair in zip(positions, borders, strict=True)]
    pairs = zip(axes[1:], borders[1:], strict=True)
    return functools.reduce(lambda done, pair: done.times(pair[0], pair[1].extent), pairs, axes[0])


def interpolated(x: Value, positions: Sequence[Value], borders: Sequence[Border], mode: str) -> Value:
    """x[N, C, D...] at points, as [N, C, P] in the element type in which x is summed."""
    n, c, *spatial = x.shape
    return neighbours(positions, borders, mode).sums(reshape(x, (n, c, math.prod(spatial))))


def clip(x: Value, low: float, high: float) -> Value:
    """``x`` within bounds."""
    result: Value = Clip()(x, constant(low, x.dtype), constant(high, x.dtype))
    return result


def _polynomials(kernel: InterpolationKernel, fraction: Value) -> Value:
    """[N, taps, P] (or [1, taps, 1]) from [N, 1, P], by Horner's scheme."""
    columns = np.array(kernel.polynomials).T.reshape(-1, 1, kernel.taps, 1)
    weights: Value = constant(columns[-1], fraction.dtype)
    for column in columns[-2::-1]:
        weights = weights * fraction + constant(column, fraction.dtype)
    return weights


def interpolated_array(x: Array, positions: Sequence[Array], borders: Sequence[Border], mode: str) -> Array:
    """The reference of :func:`interpolated`: weights from the distances to all neighbours in turn."""
    columns = [list(_neighbours_array(*pair, mode)) for pair in zip(positions, borders, strict=True)]
    batch, result = np.arange(x.shape[0])[:, None], np.zeros((), widened(x).dtype)
    for taps in itertools.product(*columns):
        weight = functools.reduce(np.multiply, (weight for _, weight in taps))
        offsets: Any = (batch, slice(None), *(index for index, _ in taps))
        values = widened(x)[offsets]
        result = result + values * weight[..., None].astype(result.dtype)
    return np.moveaxis(result, 2, 1)


def _neighbours_array(position: Array, border: Border, mode: str) -> list[tuple[Array, Array]]:
    """Index and weight of each neighbour on one axis, as arrays of the positions' shape."""
    position = np.round(position) if mode == "nearest" else position
    position = _reflected_array(position, border) if border.padding == "reflection" else position
    if mode == "nearest":
        return [_padded_array(np.round(position), np.ones(position.shape), border)]
    found, reach = [], 1 if mode == "linear" else 2
    for offset in range(1 - reach, reach + 1):
        at = np.floor(position) + offset
        distance = np.abs(position - at)
        weight = 1 - distance if mode == "linear" else keys(distance, _A)
        found.append(_padded_array(at, weight, border))
    return found


def _padded_array(position: Array, weight: Array, border: Border) -> tuple[Array, Array]:
    inside = (position >= 0) & (position <= border.extent - 1)
    if border.padding == "zeros":
        weight = np.where(inside, weight, 0)
    elif border.padding == "reflection":
        position = np.round(_reflected_array(position, border))
    return np.nan_to_num(np.clip(position, 0, border.extent - 1)).astype(np.int64), weight


def _reflected_array(position: Array, border: Border) -> Array:
    span = border.high - border.low
    if span == 0:
        return np.full_like(position, border.low)
    turns, rest = np.divmod(position - border.low, span)
    return border.low + np.where(turns % 2 == 0, rest, span - rest)
