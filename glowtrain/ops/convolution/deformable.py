"""Deformable convolution: every tap of every window reads at a place of its own.

J. Dai et al., "Deformable convolutional networks", ICCV 2017; with masks: X. Zhu et al., "Deformable ConvNets v2",
CVPR 2019. Semantics: https://onnx.ai/onnx/operators/onnx__DeformConv.html.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.ops.contraction.products import Einsum
from glowtrain.ops.convolution.geometry import SlidingWindow, window
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, widened
from glowtrain.ops.resample.interpolation import Border, interpolated, interpolated_array
from glowtrain.ops.tensor.move import Slice, Transpose, reshape
from glowtrain.types import Array, Shape, TensorType


@operator
@dataclass(frozen=True)
class DeformConv(Operator):
    """A convolution of X[N, C, D1, ..., Dr] with W[M, C / group, K1, ..., Kr] and bias B[M], as [N, M, E1, ..., Er].

    ``offset`` [N, offset_group * K * r, E1, ..., Er] (K taps) is added to the position that each tap reads, and
    ``mask`` [N, offset_group * K, E1, ..., Er] is multiplied to what it reads there (linear interpolation; zeros
    outside). B and mask are optional. Gradients flow to all five operands.
    """

    dilations: Shape = ()
    group: int = 1
    kernel_shape: Shape = ()
    offset_group: int = 1
    pads: Shape = ()
    strides: Shape = ()

    def geometry(self, x: Shape, w: Shape, types: tuple[TensorType | None, ...] = ()) -> SlidingWindow:
        """The window over an input of this shape."""
        kernel = self.kernel_shape or w[2:]
        return window(
            self, types, x[2:], kernel, strides=self.strides, dilations=self.dilations, pads=self.pads
        )  # fmt: skip

    def infer(self, *inputs: Any) -> TensorType:
        if not 3 <= len(inputs) <= 5 or any(type_ is None for type_ in inputs[:3]):
            raise self.fail("takes X, W and offset, and optionally B and mask", *inputs)
        x, w, offset, bias, mask = (*inputs, None, None)[:5]
        if not x.dtype.is_float or any(type_.dtype != x.dtype for type_ in inputs if type_ is not None):
            raise self.fail("operands must have one floating type", *inputs)
        if x.rank < 3 or w.rank != x.rank or (self.kernel_shape and self.kernel_shape != w.shape[2:]):
            raise self.fail("X must be [N, C, D1, ...] and W [M, C / group, *kernel_shape]", *inputs)
        self._check_groups(x, w, *inputs)
        geometry = self.geometry(x.shape, w.shape, inputs)
        taps, (n, m) = math.prod(geometry.kernel), (x.shape[0], w.shape[0])
        expected = {
            "offset": (offset, (n, self.offset_group * taps * geometry.rank, *geometry.out)),
            "B": (bias, (m,)),
            "mask": (mask, (n, self.offset_group * taps, *geometry.out)),
        }
        for name, (type_, shape) in expected.items():
            if type_ is not None and type_.shape != shape:
                raise self.fail(f"{name} must have shape {list(shape)}", *inputs)
        result: TensorType = x.with_shape((n, m, *geometry.out))
        return result

    def _check_groups(self, x: TensorType, w: TensorType, *inputs: Any) -> None:
        if self.group < 1 or x.shape[1] != w.shape[1] * self.group or w.shape[0] % self.group:
            raise self.fail("X must have group times the channels of W, and W rows for each group", *inputs)
        if self.offset_group < 1 or x.shape[1] % self.offset_group:
            raise self.fail("the channels of X must divide by offset_group", *inputs)
        if 0 in x.shape[2:]:
            raise self.fail("X has no element to read", *inputs)

    def _places(self, geometry: SlidingWindow) -> list[Array]:
        """Where the taps read without offsets, axis by axis: [1, taps * positions]."""
        rank, found = geometry.rank, []
        grids = np.meshgrid(*map(np.arange, (*geometry.kernel, *geometry.out)), indexing="ij")
        for number, axis in enumerate(geometry.axes):
            tap, position = grids[number], grids[rank + number]
            found.append((position * axis.stride + tap * axis.dilation - axis.begin).reshape(1, -1))
        return found

    def reference(self, x: Array, w: Array, offset: Array, *rest: Array | None) -> Array:
        bias, mask = (*rest, None, None)[:2]
        geometry, (n, c), m = self.geometry(x.shape, w.shape), x.shape[:2], w.shape[0]
        taps, indices, q, rank = math.prod(geometry.kernel), math.prod(geometry.out), self.offset_group, geometry.rank
        moved = widened(offset).reshape(n * q, taps, rank, indices)
        taken = [moved[:, :, a].reshape(n * q, taps * indices) for a in range(rank)]
        positions = [base + offsets for base, offsets in zip(self._places(geometry), taken, strict=True)]
        borders = [Border.of(extent, "zeros", corners=True) for extent in geometry.spatial]
        images = x.reshape(n * q, c // q, *geometry.spatial)
        columns = interpolated_array(images, positions, borders, "linear").reshape(n, q, c // q, taps, indices)
        if mask is not None:
            columns = columns * widened(mask).reshape(n, q, 1, taps, indices)
        columns = columns.reshape(n, self.group, w.shape[1] * taps, indices)
        rows = widened(w).reshape(self.group, m // self.group, w.shape[1] * taps)
        result = np.asarray(np.einsum("gmk,ngkp->ngmp", rows, columns)).reshape(n, m, *geometry.out)
        if bias is not None:
            result = result + widened(bias).reshape(-1, *(1,) * rank)
        return result.astype(x.dtype)

    def decompose(self, x: Value, w: Value, offset: Value, *rest: Value | None) -> Value:
        """Interpolated columns for every window, then a product with the weights."""
        bias, mask = (*rest, None, None)[:2]
        geometry, wide, m = self.geometry(x.shape, w.shape), accumulator(x.dtype), w.shape[0]
        n, taps, positions = x.shape[0], math.prod(geometry.kernel), math.prod(geometry.out)
        columns = self._columns(x, as_dtype(offset, wide), geometry)
        if mask is not None:
            columns = columns * reshape(as_dtype(mask, wide), (n, self.offset_group, 1, taps, positions))
        columns = reshape(columns, (n, self.group, w.shape[1], taps, positions))
        rows = as_dtype(reshape(w, (self.group, m // self.group, w.shape[1], taps)), wide)
        # Taps and channels stay apart, so that either may lie innermost in memory.
        result = reshape(Einsum("ngctp,gmct->ngpm")(columns, rows), (n, self.group, positions, m // self.group))
        result = reshape(Transpose((0, 1, 3, 2))(result), (n, m, *geometry.out))
        if bias is not None:
            result = result + reshape(as_dtype(bias, wide), (m, *(1,) * geometry.rank))
        return as_dtype(result, x.dtype)

    def _columns(self, x: Value, offset: Value, geometry: SlidingWindow) -> Value:
        """What every tap reads: [N, offset_group, C / offset_group, taps, positions]."""
        (n, c), q, rank = x.shape[:2], self.offset_group, geometry.rank
        taps, indices = math.prod(geometry.kernel), math.prod(geometry.out)
        moved, positions = reshape(offset, (n * q, taps, rank, indices)), []
        for axis, base in enumerate(self._places(geometry)):
            part = Slice((axis,), (axis + 1,), (2,))(moved)
            positions.append(reshape(part, (n * q, taps * indices)) + constant(base, offset.dtype))
        borders = [Border.of(extent, "zeros", corners=True) for extent in geometry.spatial]
        images = reshape(x, (n * q, c // q, *geometry.spatial))
        return reshape(interpolated(images, positions, borders, "linear"), (n, q, c // q, taps, indices))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Groups of both kinds, one to three axes, offsets beyond the border; away from whole positions (kinks
        there)."""
        rank, group, q = draw.choice((2, 2, 1, 3)), draw.integer(1, 2), draw.integer(1, 2)
        kernel = tuple(draw.integer(1, 2) for _ in range(rank))
        spatial = tuple(draw.integer(2, 4 if rank < 3 else 3) for _ in range(rank))
        n, per_group = draw.integer(1, 2), draw.integer(1, 2)
        c = group * q * per_group if rank < 3 else group * q
        dilations = tuple(1 if k == 2 and d < 3 else draw.integer(1, 2) for k, d in zip(kernel, spatial, strict=True))
        strides, pads = (tuple(draw.integer(low, low + 1) for _ in range(r)) for low, r in ((1, rank), (0, 2 * rank)))
        op = cls(dilations, group, kernel if draw.boolean() else (), q, pads, strides)
        m, w = draw.integer(1, 2) * group, (c // group, *kernel)
        geometry = op.geometry((n, c, *spatial), (m, *w))
        taps, out = math.prod(kernel), geometry.out
        shape = (n, q * taps * rank, *out)
        offset = draw.integers(shape, -2, 2) + draw.floats(shape, 0.1, 0.9)
        optional = [draw.floats((m,)) if draw.boolean() else None]
        if draw.boolean():
            optional.append(draw.floats((n, q * taps, *out)))
        elif optional[0] is None:
            optional = []
        return Sample(op, (draw.floats((n, c, *spatial)), draw.floats((m, *w)), offset, *optional))
