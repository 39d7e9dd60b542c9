"""Sampling of images at points of a grid, and the grids of affine maps.

M. Jaderberg et al., "Spatial transformer networks", NeurIPS 2015. Semantics: https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator, static
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, widened
from glowtrain.ops.resample.interpolation import KERNELS, Border, Padding, interpolated, interpolated_array
from glowtrain.ops.tensor.move import Ints, Slice, Transpose, reshape
from glowtrain.types import Array, Shape, TensorType

PADDINGS = ("zeros", "border", "reflection")
_OLD_NAMES = {"bilinear": "linear", "bicubic": "cubic"}


@operator
@dataclass(frozen=True)
class GridSample(Operator):
    """X[N, C, D1, ..., Dr] at the points grid[N, E1, ..., Er, r], as [N, C, E1, ..., Er].

    A point's coordinates are normalized, last axis first: -1 and 1 are the middles of the outermost elements
    (``align_corners``) or the outer edges of these. Beyond the edges lie zeros, the edge elements ("border") or mirror
    images ("reflection"). Gradients flow to X and to the grid; "nearest" has none to the grid.

    With "cubic" and "border" every neighbour outside is an edge element, as in PyTorch and ONNX Runtime (ONNX's
    reference moves the point to the edge first, which makes the result jump there).
    """

    align_corners: bool = False
    mode: str = "linear"
    padding_mode: Padding = "zeros"

    @property
    def kernel(self) -> str:
        """The mode by its current name (before opset 20: "bilinear", "bicubic")."""
        return _OLD_NAMES.get(self.mode, self.mode)

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2:
            raise self.fail(f"takes X and grid, not {len(inputs)} operands", *inputs)
        x, grid = inputs
        if self.kernel not in KERNELS or self.padding_mode not in PADDINGS:
            raise self.fail(f"mode must be one of {', '.join(KERNELS)}, padding_mode {', '.join(PADDINGS)}", *inputs)
        if not x.dtype.is_float or not grid.dtype.is_float:
            raise self.fail("X and grid must be floating", *inputs)
        if x.rank < 3 or grid.rank != x.rank or grid.shape[-1] != x.rank - 2 or grid.shape[0] != x.shape[0]:
            raise self.fail("for X[N, C, D1, ..., Dr] the grid must be [N, E1, ..., Er, r]", *inputs)
        if 0 in x.shape[2:]:
            raise self.fail("X has no element to read", *inputs)
        return x.with_shape((*x.shape[:2], *grid.shape[1:-1]))

    def _borders(self, spatial: Shape) -> list[Border]:
        return [Border.of(extent, self.padding_mode, corners=self.align_corners) for extent in spatial]

    def _position(self, coordinate: Any, extent: int) -> Any:
        """A normalized coordinate in elements."""
        if self.align_corners:
            return (coordinate + 1.0) * ((extent - 1) / 2)
        return ((coordinate + 1.0) * float(extent) - 1.0) * 0.5

    def reference(self, x: Array, grid: Array) -> Array:
        n, c, *spatial = x.shape
        points = widened(grid).reshape(n, math.prod(grid.shape[1:-1]), len(spatial))
        positions = [self._position(points[..., -1 - axis], extent) for axis, extent in enumerate(spatial)]
        result = interpolated_array(x, positions, self._borders(tuple(spatial)), self.kernel)
        return result.astype(x.dtype).reshape(n, c, *grid.shape[1:-1])

    def decompose(self, x: Value, grid: Value) -> Value:
        n, c, *spatial = x.shape
        rank, count = len(spatial), math.prod(grid.shape[1:-1])
        points = as_dtype(reshape(grid, (n, count, rank)), accumulator(grid.dtype))
        positions = []
        for axis, extent in enumerate(spatial):
            last = rank - 1 - axis
            coordinate = reshape(Slice((last,), (last + 1,), (2,))(points), (n, count))
            positions.append(self._position(coordinate, extent))
        result = interpolated(x, positions, self._borders(tuple(spatial)), self.kernel)
        return reshape(as_dtype(result, x.dtype), (n, c, *grid.shape[1:-1]))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Points inside and outside, away from the middles and edges of elements, where there are kinks."""
        rank = draw.choice((2, 2, 3, 1))
        op = cls(draw.boolean(), draw.choice(("linear", "nearest", "cubic")), draw.choice(PADDINGS))
        least = 2 if op.mode == "cubic" else 1  # between equal neighbours the gradient is zero but for rounding
        spatial, out = (tuple(draw.integer(low, 4 if rank < 3 else 3) for _ in range(rank)) for low in (least, 1))
        n, c = (max(extent, 1) for extent in draw.shape(2, 2, max_extent=3))
        columns = []
        for extent in reversed(spatial):
            whole = draw.integers((n, *out), -3, extent + 1) + 0.5 * draw.integers((n, *out), 0, 1)
            columns.append(op._normalized(whole + draw.floats((n, *out), 0.1, 0.4), extent))
        return Sample(op, (draw.floats((n, c, *spatial)), np.stack(columns, axis=-1)))

    def _normalized(self, position: Array, extent: int) -> Array:
        """The inverse of :meth:`_position`."""
        if self.align_corners:
            return np.asarray(position * 2 / max(extent - 1, 1) - 1)
        return np.asarray((position * 2 + 1) / extent - 1)


@operator
@dataclass(frozen=True)
class AffineGrid(Operator):
    """The points of an image of ``size`` [N, C, E1, ..., Er] under the affine maps theta[N, r, r + 1], as
    :class:`GridSample` takes them: [N, E1, ..., Er, r]."""

    size: Ints = static(1)
    align_corners: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes theta, not {len(inputs)} operands", *inputs)
        (theta,) = inputs
        rank = len(self.size) - 2
        if rank < 1 or min(self.size) < 0:
            raise self.fail("size must be [N, C, E1, ...]", theta)
        if not theta.dtype.is_float or theta.shape != (self.size[0], rank, rank + 1):
            raise self.fail(f"theta must be floating, of shape {[self.size[0], rank, rank + 1]}", theta)
        return theta.with_shape((self.size[0], *self.size[2:], rank))

    def points(self) -> Array:
        """Homogeneous normalized coordinates of every element, last axis first: [E1 * ... * Er, r + 1]."""
        axes = [self._coordinates(extent) for extent in self.size[2:]]
        grids = np.meshgrid(*axes, indexing="ij")
        return np.stack([*(grid.reshape(-1) for grid in reversed(grids)), np.ones(math.prod(self.size[2:]))], axis=-1)

    def _coordinates(self, extent: int) -> Array:
        if self.align_corners:
            return np.linspace(-1, 1, extent) if extent > 1 else np.zeros(extent)
        return (2 * np.arange(extent) + 1) / max(extent, 1) - 1

    def reference(self, theta: Array) -> Array:
        grid = np.asarray(np.einsum("pk,nrk->npr", self.points(), widened(theta)))
        return grid.reshape(self.size[0], *self.size[2:], len(self.size) - 2).astype(theta.dtype)

    def decompose(self, theta: Value) -> Value:
        wide = as_dtype(theta, accumulator(theta.dtype))
        grid: Value = MatMul()(constant(self.points(), wide.dtype), Transpose((0, 2, 1))(wide))
        return as_dtype(reshape(grid, (self.size[0], *self.size[2:], len(self.size) - 2)), theta.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        rank, n = draw.choice((2, 3)), draw.integer(1, 3)
        size = (n, draw.integer(1, 3), *(draw.integer(1, 4) for _ in range(rank)))
        return Sample(cls(size, draw.boolean()), (draw.floats((n, rank, rank + 1)),))
