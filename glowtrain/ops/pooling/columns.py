"""Blocks of images as columns and back, positions of maxima filled again, crops and margins about the middle.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator, static
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.loops import Const, Expr, For, Statement, Tensor, cast, flatten, indices_of, reduce, select, unflatten
from glowtrain.ops.convolution.geometry import PhaseAxis, SlidingWindow, window
from glowtrain.ops.core.family import Grads, normalize_axes
from glowtrain.ops.core.index import checked, within
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.reduce.reduction import accumulator, filled, widened
from glowtrain.ops.tensor.move import Ints, pad, reshape
from glowtrain.types import Array, Shape, TensorType, i64


class _Blocks(Operator):
    """What both directions share."""

    dilations: Shape
    pads: Shape
    strides: Shape

    def blocks(self, types: Sequence[TensorType], spatial: Shape, kernel: Shape) -> SlidingWindow:
        """The blocks over an image."""
        return window(self, types, spatial, kernel, strides=self.strides, dilations=self.dilations, pads=self.pads)


@operator
@dataclass(frozen=True)
class Col2Im(_Blocks):
    """Images [N, C, *image_shape] from columns [N, C * prod(block_shape), L], one for each of L blocks: where blocks
    overlap their elements add up. What falls into the padding is dropped."""

    image_shape: Ints = static(1)
    block_shape: Ints = static(2)
    dilations: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    def geometry(self, *types: TensorType) -> SlidingWindow:
        """The blocks over the images."""
        if len(self.image_shape) != len(self.block_shape):
            raise self.fail("image_shape and block_shape must have one length", *types)
        return self.blocks(types, self.image_shape, self.block_shape)

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes one operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        geometry = self.geometry(x)
        taps, positions = math.prod(self.block_shape), math.prod(geometry.out)
        if x.rank != 3 or x.shape[1] % taps or x.shape[2] != positions:
            raise self.fail(f"columns must be [N, C * {taps}, {positions}]", x)
        if not x.dtype.is_number:
            raise self.fail(f"elements of type {x.dtype} do not add up; cast them first", x)
        return x.with_shape((x.shape[0], x.shape[1] // taps, *self.image_shape))

    def reference(self, x: Array) -> Array:
        geometry = self.geometry()
        wide = x if x.dtype.kind in "iu" else widened(x)
        channels = x.shape[1] // math.prod(geometry.kernel)
        columns = wide.reshape(x.shape[0], channels, *geometry.kernel, *geometry.out)
        result = geometry.pad(np.zeros((*columns.shape[:2], *geometry.spatial), wide.dtype), 0)
        for tap in geometry.taps():
            here: Any = (slice(None), slice(None), *tap)
            result[:, :, *geometry.tap_slice(tap)] += columns[here]
        return geometry.crop(result).astype(x.dtype)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        geometry = self.geometry(x.type)
        return (Im2Col(geometry.kernel, geometry.dilations, geometry.exact_pads, geometry.strides)(g),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        """Every element adds up the blocks that contain it; those of one phase of the strides see the same taps."""
        return [self._nest(outputs[0], inputs[0], axes) for axes in self.geometry().phases()]

    def _nest(self, y: Tensor, x: Tensor, axes: Sequence[PhaseAxis]) -> Statement:
        geometry, wide = self.geometry(), accumulator(x.dtype)
        n, c, *rest = indices = indices_of((*y.shape[:2], *(axis.extent for axis in axes)))
        target = (n, c, *(axis.target(q) for axis, q in zip(axes, rest, strict=True)))
        split = (x.shape[0], y.shape[1], *geometry.kernel, *geometry.out)

        def hit(*taps: Expr) -> Expr:
            points = list(zip(axes, rest, taps, strict=True))
            positions = [axis.subscript(q, m) for axis, q, m in points]
            column = flatten((c, *(axis.tap(m) for axis, _, m in points)), split[1 : 2 + geometry.rank])
            # A position outside of its own axis could be inside of the flattened one.
            where = flatten(positions, geometry.out)
            for position, out in zip(positions, geometry.out, strict=True):
                where = select((position >= 0) & (position < out), where, -1)
            return cast(x.load((n, column, where), fill=0), wide)

        taps = [axis.taps for axis in axes]
        value = reduce("add", taps, hit) if all(taps) else Const(0, wide)
        return For(indices, (y.store(target, value),))

    def decompose(self, x: Value) -> Value:
        """A scatter of every element to its position in the padded image."""
        geometry, (n, _, _), c = self.geometry(x.type), x.shape, x.shape[1] // math.prod(self.block_shape)
        padded = tuple(axis.extent + axis.begin + axis.after for axis in geometry.axes)
        positions = np.broadcast_to(_places(geometry).reshape(-1), (n, c, math.prod(geometry.kernel + geometry.out)))
        zeros = filled(0, x.type.with_shape((n, c, math.prod(padded))))
        columns = reshape(x, (n, c, positions.shape[2]))
        added = ScatterElements(axis=2, reduction="add")(zeros, constant(np.ascontiguousarray(positions)), columns)
        crop = [-axis.begin for axis in geometry.axes], [-axis.after for axis in geometry.axes]
        return pad(reshape(added, (n, c, *padded)), (0, 0, *crop[0], 0, 0, *crop[1]))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        geometry, (n, c) = _draw_blocks(draw)
        op = cls(geometry.spatial, geometry.kernel, geometry.dilations, geometry.exact_pads, geometry.strides)
        return Sample(op, (draw.floats((n, c * math.prod(geometry.kernel), math.prod(geometry.out))),))


@operator
@dataclass(frozen=True)
class Im2Col(_Blocks):
    """Columns [N, C * prod(block_shape), L] from images [N, C, D1, ..., Dr], one for each of L blocks; the padding is
    zero. The transpose of :class:`Col2Im`."""

    block_shape: Shape
    dilations: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1 or inputs[0].rank < 3 or inputs[0].dtype.kind == "bool":
            raise self.fail("takes images [N, C, D1, ...] of numbers", *inputs)
        (x,) = inputs
        geometry = self.blocks(inputs, x.shape[2:], self.block_shape)
        return x.with_shape((x.shape[0], x.shape[1] * math.prod(geometry.kernel), math.prod(geometry.out)))

    def reference(self, x: Array) -> Array:
        geometry = self.blocks((), x.shape[2:], self.block_shape)
        windows = geometry.view(geometry.pad(x, 0))
        rank = geometry.rank
        order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
        rows = x.shape[1] * math.prod(geometry.kernel)
        return windows.transpose(order).reshape(x.shape[0], rows, math.prod(geometry.out))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Col2Im(x.shape[2:], self.block_shape, self.dilations, self.pads, self.strides)(g),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (y,) = inputs, outputs
        geometry, (n, column, position) = self.blocks((), x.shape[2:], self.block_shape), indices_of(y.shape)
        c, *taps = unflatten(column, (x.shape[1], *geometry.kernel))
        source = geometry.source(unflatten(position, geometry.out), taps)
        return [For((n, column, position), (y.store((n, column, position), x.load((n, c, *source), fill=0)),))]

    def decompose(self, x: Value) -> Value:
        """A gather from the padded image."""
        geometry, (n, c) = self.blocks((x.type,), x.shape[2:], self.block_shape), x.shape[:2]
        begins, afters = zip(*((axis.begin, axis.after) for axis in geometry.axes), strict=True)
        padded = pad(x, (0, 0, *begins, 0, 0, *afters))
        flat = reshape(padded, (n, c, math.prod(padded.shape[2:])))
        taken = Gather(axis=2)(flat, constant(_places(geometry)))
        return reshape(taken, (n, c * math.prod(geometry.kernel), math.prod(geometry.out)))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        geometry, (n, c) = _draw_blocks(draw)
        op = cls(geometry.kernel, geometry.dilations, geometry.exact_pads, geometry.strides)
        return Sample(op, (draw.floats((n, c, *geometry.spatial)),))


def _places(geometry: SlidingWindow) -> Array:
    """The position in the flattened padded image of each tap of each block: [taps, blocks]."""
    padded = tuple(axis.extent + axis.begin + axis.after for axis in geometry.axes)
    numbers = np.arange(math.prod(padded)).reshape(1, 1, *padded)
    windows = geometry.view(numbers).reshape(math.prod(geometry.out), math.prod(geometry.kernel))
    return np.ascontiguousarray(windows.T)


def _draw_blocks(draw: Draw) -> tuple[SlidingWindow, Shape]:
    """Blocks over an image of one to three axes, and a batch of channels."""
    rank = draw.choice((2, 1, 2, 3))
    most = 3 if rank < 3 else 2
    kernel, strides, dilations = (tuple(draw.integer(1, top) for _ in range(rank)) for top in (most, most, 2))
    spatial = tuple((k - 1) * d + draw.integer(1, most + 1) for k, d in zip(kernel, dilations, strict=True))
    pads = tuple(draw.integer(0, 2) for _ in range(2 * rank))
    geometry = window(Im2Col(kernel), (), spatial, kernel, strides=strides, dilations=dilations, pads=pads)
    return geometry, (draw.integer(1, 2), draw.integer(1, 2))


@operator
@dataclass(frozen=True)
class MaxUnpool(Operator):
    """Zeros with the elements of X[N, C, D1, ...] at the positions ``I`` that :class:`MaxPool` gave for them.

    Positions count in the flattened result, whose extents follow from the window; a larger ``output_shape`` adds zeros
    at the ends. Positions should differ (else the last one counts, but all get gradients).
    """

    output_shape: Ints | None = static(2, None)
    kernel_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2:
            raise self.fail(f"takes X and I, not {len(inputs)} operands", *inputs)
        x, positions = inputs
        if x.rank < 3 or positions != x.with_dtype(i64):
            raise self.fail("X must be [N, C, D1, ...], and I i64 of its shape", *inputs)
        natural = self._natural(x.shape)
        shape = self.output_shape or natural
        if 0 in x.shape[2:]:
            raise self.fail("X needs elements along its spatial axes", *inputs)
        if len(shape) != x.rank or any(n > m for n, m in zip(natural, shape, strict=True)):
            raise self.fail(f"output_shape must be {list(natural)} or larger", *inputs)
        return x.with_shape(shape)

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        return {1: within(math.prod(self._natural(inputs[0].shape)))}

    def _natural(self, shape: Shape) -> Shape:
        """The smallest shape that a pool with this window makes ``shape`` of."""
        rank = len(shape) - 2
        strides, pads = self.strides or (1,) * rank, self.pads or (0,) * (2 * rank)
        if not len(self.kernel_shape) == len(strides) == len(pads) // 2 == rank:
            raise self.fail(f"kernel_shape and strides must hold {rank} numbers, pads {2 * rank}")
        columns = zip(shape[2:], self.kernel_shape, strides, pads[:rank], pads[rank:], strict=True)
        return (*shape[:2], *((n - 1) * stride + k - before - after for n, k, stride, before, after in columns))

    def reference(self, x: Array, positions: Array) -> Array:
        natural = self._natural(x.shape)
        flat = np.zeros(math.prod(natural), x.dtype)
        flat[checked(self, positions, flat.size).reshape(-1)] = x.reshape(-1)
        result = np.zeros(self.output_shape or natural, x.dtype)
        result[tuple(map(slice, natural))] = flat.reshape(natural)
        return result

    def decompose(self, x: Value, positions: Value) -> Value:
        natural, size = self._natural(x.shape), x.type.size
        zeros = filled(0, x.type.with_shape((math.prod(natural),)))
        flat = ScatterElements(axis=0)(zeros, reshape(positions, (size,)), reshape(x, (size,)))
        shape = self.output_shape or natural
        ends = [full - extent for full, extent in zip(shape, natural, strict=True)]
        return pad(reshape(flat, natural), (*(0,) * len(ends), *ends))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Positions from a pool over windows that do not overlap (its maxima differ)."""
        rank = draw.integer(1, 3)
        kernel = tuple(draw.integer(1, 2) for _ in range(rank))
        strides = tuple(k + draw.integer(0, 1) for k in kernel)
        before = tuple(draw.integer(0, k - 1) for k in kernel)
        after = tuple(draw.integer(0, k - 1 - pad) for k, pad in zip(kernel, before, strict=True))
        pads = (*before, *after) if any((*before, *after)) else ()
        windows = zip(kernel, strides, before, after, strict=True)
        spatial = tuple((draw.integer(1, 3) - 1) * stride + k - first - last for k, stride, first, last in windows)
        images = draw.floats((draw.integer(1, 2), draw.integer(1, 2), *spatial))
        y, positions = MaxPool(kernel_shape=kernel, pads=pads, strides=strides).reference(images)
        larger = (*images.shape[:2], *(extent + draw.integer(0, 2) for extent in spatial))
        op = cls(larger if draw.boolean() else None, kernel, pads, strides if any(s > 1 for s in strides) else ())
        return Sample(op, (draw.floats(y.shape), positions))


@operator
@dataclass(frozen=True)
class CenterCropPad(Operator):
    """The operand cropped, or padded with zeros, to ``shape`` on ``axes`` (default: all), evenly on both sides; an odd
    element more is cropped or padded at the end."""

    shape: Ints = static(1)
    axes: Ints | None = None

    def _margins(self, type_: TensorType) -> list[tuple[int, int]]:
        axes = range(type_.rank) if self.axes is None else normalize_axes(self, self.axes, type_)
        if len(self.shape) != len(axes) or min(self.shape, default=0) < 0:
            raise self.fail(f"shape must hold {len(axes)} extents, none negative", type_)
        margins = [(0, 0)] * type_.rank
        for axis, extent in zip(axes, self.shape, strict=True):
            change = extent - type_.shape[axis]
            before = change // 2 if change > 0 else -(-change // 2)
            margins[axis] = (before, change - before)
        return margins

    def infer(self, *inputs: Any) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes one operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        pairs = zip(x.shape, self._margins(x), strict=True)
        result: TensorType = x.with_shape(tuple(extent + sum(margin) for extent, margin in pairs))
        return result

    def reference(self, x: Array) -> Array:
        margins = self._margins(TensorType(i64, x.shape))
        crops = [(max(-before, 0), max(-after, 0)) for before, after in margins]
        kept = tuple(slice(low, extent - high) for extent, (low, high) in zip(x.shape, crops, strict=True))
        return np.pad(x[kept], [(max(before, 0), max(after, 0)) for before, after in margins])

    def decompose(self, x: Value) -> Value:
        margins = self._margins(x.type)
        return pad(x, (*(before for before, _ in margins), *(after for _, after in margins)))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(min_rank=1, max_rank=3))
        axes = tuple(axis for axis in range(x.ndim) if draw.boolean())
        everywhere = axes == tuple(range(x.ndim))
        named = tuple(axis - x.ndim if draw.boolean() else axis for axis in axes)
        return Sample(cls(tuple(draw.integer(1, 8) for _ in axes), None if everywhere else named), (x,))
