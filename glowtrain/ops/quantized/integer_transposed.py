"""Transposed convolutions of 8-bit integers, with sums in i32.

All positions of the result that lie a multiple of the stride apart see the same taps, so the positions of one offset
within the strides (a phase) are a plain convolution with these taps, back to front (Shi et al., Is the deconvolution
layer the same as a convolutional layer?, arXiv:1609.07009). Zero points, padding and exactness are those of
ConvInteger, and what follows can be fused into each phase.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Operator, Sample, Value, operator
from glowtrain.loops import For, Statement, Tensor, indices_of
from glowtrain.ops.convolution.attributes import ConvTransposeWindow
from glowtrain.ops.convolution.convolution import ConvTranspose
from glowtrain.ops.convolution.correlation import scatter
from glowtrain.ops.convolution.geometry import PhaseAxis, SlidingWindow
from glowtrain.ops.quantized.integer_products import ConvInteger, centred, check_bytes, draw_bytes, draw_weight
from glowtrain.ops.tensor.move import LAST, Concat, Reshape, Slice, Transpose, pad, reshape, zeros
from glowtrain.ops.tensor.pad import Pad
from glowtrain.types import Array, Shape, TensorType, f32, f64, i8, i32, u8


@operator
@dataclass(frozen=True)
class Interleave(Operator):
    """One image [N, C, spatial...] from its phases: operand i has the positions at the i-th offset within ``strides``.

    The offsets are counted in row-major order; an axis shorter than its stride has as many as it has positions.
    """

    domain: ClassVar[str] = "glowtrain"
    spatial: Shape
    strides: Shape

    copies: ClassVar[bool] = True

    def offsets(self) -> Iterator[Shape]:
        """Where each operand begins."""
        columns = zip(self.spatial, self.strides, strict=True)
        return itertools.product(*(range(min(extent, stride)) for extent, stride in columns))

    def extents(self, offset: Shape) -> Shape:
        """The spatial shape of the operand that begins there."""
        columns = zip(self.spatial, self.strides, offset, strict=True)
        return tuple(-(-(extent - start) // stride) for extent, stride, start in columns)

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(self.spatial) != len(self.strides) or min((*self.spatial, *self.strides), default=0) < 1:
            raise self.fail("spatial and strides must hold one positive number for each axis", *inputs)
        wanted = [self.extents(offset) for offset in self.offsets()]
        if len(inputs) != len(wanted):
            raise self.fail(f"takes one operand for each of {len(wanted)} offsets, not {len(inputs)}", *inputs)
        if len({(type_.dtype, type_.shape[:2]) for type_ in inputs}) > 1 or inputs[0].rank < 2:
            raise self.fail("operands must have one element type and the same images and channels", *inputs)
        if [type_.shape[2:] for type_ in inputs] != wanted:
            raise self.fail(f"operands must have the spatial shapes {[list(shape) for shape in wanted]}", *inputs)
        return inputs[0].with_shape((*inputs[0].shape[:2], *self.spatial))

    def reference(self, *inputs: Array) -> Array:
        y = np.empty((*inputs[0].shape[:2], *self.spatial), inputs[0].dtype)
        for x, offset in zip(inputs, self.offsets(), strict=True):
            y[:, :, *(slice(start, None, stride) for start, stride in zip(offset, self.strides, strict=True))] = x
        return y

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        nests: list[Statement] = []
        for x, offset in zip(inputs, self.offsets(), strict=True):
            n, c, *position = index = indices_of(x.shape)
            columns = zip(position, self.strides, offset, strict=True)
            nests.append(For(index, (outputs[0].store((n, c, *(q * s + o for q, s, o in columns)), x[index]),)))
        return nests

    def decompose(self, *inputs: Value) -> Value:
        """Phases side by side, filled up to one shape, then woven by a transpose and cut."""
        images, channels = inputs[0].shape[:2]
        counts = [min(extent, stride) for extent, stride in zip(self.spatial, self.strides, strict=True)]
        blocks, r = self.extents((0,) * len(counts)), len(counts)
        full = [pad(x, (0,) * (r + 4) + tuple(b - e for b, e in zip(blocks, x.shape[2:], strict=True))) for x in inputs]
        stack = Concat(axis=1)(*(reshape(x, (images, 1, *x.shape[1:])) for x in full))
        split = reshape(stack, (images, *counts, channels, *blocks))
        pairs = [axis for k in range(r) for axis in (r + 2 + k, 1 + k)]
        woven = Transpose(perm=(0, r + 1, *pairs))(split)
        wide = reshape(woven, (images, channels, *(b * c for b, c in zip(blocks, counts, strict=True))))
        if wide.shape[2:] == self.spatial:
            return wide
        result: Value = Slice(starts=(0,) * r, ends=self.spatial, axes=tuple(range(2, r + 2)))(wide)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        rank = draw.choice((1, 2, 2, 3))
        spatial = draw.shape(rank, rank, max_extent=5 if rank < 3 else 3)
        found = cls(spatial, tuple(draw.integer(1, 3 if rank < 3 else 2) for _ in range(rank)))
        channels = draw.integer(1, 2), draw.integer(1, 3)
        return Sample(found, tuple(draw.floats((*channels, *found.extents(offset))) for offset in found.offsets()))


@operator
@dataclass(frozen=True)
class ConvTransposeInteger(ConvTransposeWindow):
    """(x - zero point) convolved, transposed, with (w - zero point), in i32: to ConvTranspose what ConvInteger is to
    Conv.

    w is [C, M/group, k...]. The input has one zero point, the weight one for all or each of the M output channels.
    """

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "its operands are integers"

    @property
    def real(self) -> ConvTranspose:
        """The transposed convolution of real numbers with these attributes."""
        return ConvTranspose(**self.attributes())

    def infer(self, *inputs: Any) -> TensorType:
        x, w, zx, zw = (*inputs, None, None)[:4]
        check_bytes(self, x, zx, w, zw)
        result = self.real.infer(x.with_dtype(f32), w.with_dtype(f32)).with_dtype(i32)
        if zx is not None and zx.size != 1:
            raise self.fail("the input has one zero point for all", *inputs)
        if zw is not None and zw.size != 1 and zw.shape != result.shape[1:2]:
            raise self.fail("the weight has one zero point for all, or one for each output channel", *inputs)
        return result

    def reference(self, *inputs: Any) -> Array:
        x, w, zx, zw = (*inputs, None, None)[:4]
        left = centred(x, None if zx is None else zx.reshape(()))
        right = centred(w, None if zw is None else self._spread(zw, w.shape))
        sums = scatter(left.astype(f64.numpy), right.astype(f64.numpy), self.geometry(x, w), self.group)
        return np.rint(sums).astype(np.int64).astype(np.int32)

    def _spread(self, zero: Array, shape: Shape) -> Array:
        """Zero points of output channels, as they broadcast with the weight."""
        if zero.size == 1:
            return zero.reshape(())
        rows = np.repeat(zero.reshape(self.group, 1, shape[1]), shape[0] // self.group, axis=1)
        return rows.reshape(*shape[:2], *(1,) * (len(shape) - 2))

    def decompose(self, *inputs: Any) -> Value:
        x, w, zx, zw = (*inputs, None, None)[:4]
        return self.joined(self.phases(x, w, zx, zw), self.geometry(x, w))

    def joined(self, phases: Sequence[Value], geometry: SlidingWindow) -> Value:
        """The image of such phases."""
        if len(phases) == 1:
            return phases[0]
        result: Value = Interleave(geometry.spatial, geometry.strides)(*phases)
        return result

    def phases(self, x: Value, w: Value, zx: Value | None, zw: Value | None) -> list[Value]:
        """The sums in i32 of each phase, [N, M, positions...]."""
        return [self._phase(axes, x, w, zx, zw) for axes in self.geometry(x, w).phases()]

    def _phase(self, axes: Sequence[PhaseAxis], x: Value, w: Value, zx: Value | None, zw: Value | None) -> Value:
        if not all(axis.taps for axis in axes):
            channels = w.shape[1] * self.group
            return zeros(TensorType(i32, (x.shape[0], channels, *(axis.extent for axis in axes))))
        reach = [(axis.taps - 1) * axis.back for axis in axes]
        begins = [wide - axis.offset for wide, axis in zip(reach, axes, strict=True)]
        columns = zip(axes, reach, begins, x.shape[2:], strict=True)
        pads = (*begins, *(axis.extent + wide - begin - extent for axis, wide, begin, extent in columns))
        if min(pads) < 0:
            around = (0, 0, *pads[: len(axes)], 0, 0, *pads[len(axes) :])
            x, pads = Pad(around)(x, *([] if zx is None else [reshape(zx, ())])), ()
        conv = ConvInteger(dilations=tuple(axis.back for axis in axes), group=self.group, pads=pads)
        result: Value = conv(x, self._kernel(axes, w), zx, zw)
        return result

    def _kernel(self, axes: Sequence[PhaseAxis], w: Value) -> Value:
        """The phase's taps of w[C, M/group, k...], back to front, as [M, C/group, taps...]; known ones stay known."""
        c, m, *_ = w.shape
        count, taps = len(axes), tuple(axis.taps for axis in axes)
        starts = tuple(axis.first + axis.step * (axis.taps - 1) for axis in axes)
        steps = tuple(-axis.step for axis in axes)
        moves = [
            Slice(starts, (-LAST - 1,) * count, tuple(range(2, count + 2)), steps),
            Reshape((self.group, c // self.group, m, *taps), allowzero=True),
            Transpose((0, 2, 1, *range(3, count + 3))),
            Reshape((self.group * m, c // self.group, *taps), allowzero=True),
        ]
        for move in moves:
            w = Constant(np.ascontiguousarray(move.reference(w.array))) if isinstance(w, Constant) else move(w)
        return w

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        real = ConvTranspose.sample(draw)
        assert isinstance(real.operator, ConvTranspose)
        left, right = draw.choice((i8, u8)), draw.choice((i8, u8))
        x, w = (array.shape for array in real.inputs[:2] if array is not None)
        zx = draw_bytes(draw, (), left) if draw.boolean() else None
        channels = (w[1] * real.operator.group,)
        zw = draw_bytes(draw, draw.choice(((), channels)), right) if draw.boolean() else None
        operands = draw_bytes(draw, x, left), draw_weight(draw, w, right), zx, zw
        return Sample(cls(**real.operator.attributes()), operands)
