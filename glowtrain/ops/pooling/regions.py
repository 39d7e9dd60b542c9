"""Regions of images, pooled to a fixed size.

RoiAlign: K. He et al., "Mask R-CNN", ICCV 2017. MaxRoiPool: R. Girshick, "Fast R-CNN", ICCV 2015. Semantics:
https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.core.index import checked, within
from glowtrain.ops.elementwise.arithmetic import Abs, Ceil, Floor
from glowtrain.ops.elementwise.cast import convert
from glowtrain.ops.elementwise.extrema import Max
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.reduce.reduction import ReduceMax, accumulator, as_dtype, widened
from glowtrain.ops.resample.interpolation import Border, Neighbours, clip
from glowtrain.ops.tensor.move import Slice, Transpose, reshape, sum_axes
from glowtrain.types import Array, Shape, TensorType, i64


def _column(rois: Value, column: int) -> Value:
    """One column of rois[R, k], as [R, 1]."""
    result: Value = Slice((column,), (column + 1,), (1,))(rois)
    return result


@dataclass(frozen=True)
class _Points:
    """Sampling points on one axis: positions [R, out * samples], and which of them count (``None``: all)."""

    positions: Value
    counted: Value | None
    extent: int
    count: Value | float
    """Samples in each bin: a number, or [R, 1]."""

    @property
    def inside(self) -> Value:
        """Which points count and are at most one element outside."""
        near = (self.positions >= -1.0) & (self.positions <= float(self.extent))
        return near if self.counted is None else near & self.counted

    @property
    def clipped(self) -> Value:
        return clip(self.positions, 0.0, self.extent - 1.0)

    def neighbours(self) -> Neighbours:
        """The two elements around every point; those of points that do not count weigh 0."""
        (r, p), border = self.positions.shape, Border.of(self.extent, "border", corners=True)
        found = Neighbours.along(self.clipped, border, "linear")
        return Neighbours(found.indices, Where()(reshape(self.inside, (r, 1, p)), found.weights, 0.0))

    def matrix(self, out: int) -> Value:
        """The means over bins as weights of all elements: [R, out, extent]."""
        r, p = self.positions.shape
        elements = constant(np.arange(self.extent).reshape(1, 1, -1), self.positions.dtype)
        distance = Abs()(reshape(self.clipped, (r, p, 1)) - elements)
        near = reshape(self.inside, (r, p, 1)) & (distance < 1.0)
        weights = Where()(near, 1.0 - distance, 0.0)
        sums = sum_axes(reshape(weights, (r, out, p // out, self.extent)), (2,))
        return sums / (reshape(self.count, (r, 1, 1)) if isinstance(self.count, Value) else self.count)


@operator
@dataclass(frozen=True)
class RoiAlign(Operator):
    """Regions of X[N, C, H, W] as [R, C, output_height, output_width]: the mean (or maximum) of samples in each bin.

    ``rois[R, 4]`` holds x1, y1, x2, y2 in units of ``1 / spatial_scale`` elements, ``batch_indices[R]`` the image of
    each. Every bin has ``sampling_ratio``² bilinear samples; with 0, as many as it has elements, rounded up, along each
    axis. In mode "max" the maximum is over the weighted neighbours of all samples, as ONNX has it. Gradients flow to X
    and to the regions.
    """

    coordinate_transformation_mode: str = "half_pixel"
    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 3:
            raise self.fail(f"takes X, rois and batch_indices, not {len(inputs)} operands", *inputs)
        x, rois, batch = inputs
        if self.mode not in ("avg", "max") or self.coordinate_transformation_mode not in (
            "half_pixel",
            "output_half_pixel",
        ):
            raise self.fail(
                "mode must be avg or max, coordinate_transformation_mode half_pixel or output_half_pixel", *inputs
            )
        if x.rank != 4 or not x.dtype.is_float or rois.dtype != x.dtype or batch.dtype != i64:
            raise self.fail("X must be [N, C, H, W], X and rois of one floating type, batch_indices i64", *inputs)
        if rois.rank != 2 or rois.shape[1] != 4 or batch.shape != rois.shape[:1]:
            raise self.fail("rois must be [R, 4] and batch_indices [R]", *inputs)
        if min(self.output_height, self.output_width) < 1 or self.sampling_ratio < 0 or 0 in x.shape[2:]:
            raise self.fail("extents must be positive and sampling_ratio not negative", *inputs)
        return x.with_shape((rois.shape[0], x.shape[1], self.output_height, self.output_width))

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        return {2: within(inputs[0].shape[0])}

    @property
    def _margin(self) -> float:
        return 0.5 if self.coordinate_transformation_mode == "half_pixel" else 0.0

    def reference(self, x: Array, rois: Array, batch: Array) -> Array:
        out = (self.output_height, self.output_width)
        result = np.zeros((len(rois), x.shape[1], *out), widened(x).dtype)
        images = checked(self, batch, x.shape[0])
        for position, (roi, image) in enumerate(zip(widened(rois), images, strict=True)):
            rows, columns = (self._samples_array(roi, axis, out[axis]) for axis in range(2))
            for (ph, y), (pw, x_) in ((a, b) for a in rows for b in columns):
                result[position, :, ph, pw] = self._pooled_array(widened(x)[image], y, x_)
        return result.astype(x.dtype)

    def _samples_array(self, roi: Array, axis: int, out: int) -> list[tuple[int, Array]]:
        """For each bin on an axis, the positions of its samples."""
        start, end = (roi[1 - axis + k] * self.spatial_scale - self._margin for k in (0, 2))
        size = end - start if self._margin else max(end - start, 1.0)
        count = self.sampling_ratio or max(math.ceil(size / out), 0)
        steps = (np.arange(count) + 0.5) / max(count, 1)
        return [(position, start + (position + steps) * (size / out)) for position in range(out)]

    def _pooled_array(self, image: Array, rows: Array, columns: Array) -> Array:
        """One bin of an image[C, H, W], sampled at rows x columns."""
        terms = [
            image[:, y, x] * (wy * wx)
            for wy, y in _weights_array(rows, image.shape[1])
            for wx, x in _weights_array(columns, image.shape[2])
        ]
        if not terms:
            return np.zeros(image.shape[0], image.dtype)
        if self.mode == "max":
            return np.asarray(np.max(terms, axis=0))
        return np.asarray(np.sum(terms, axis=0) / (len(rows) * len(columns)))

    def decompose(self, x: Value, rois: Value, batch: Value) -> Value:
        wide = accumulator(x.dtype)
        image, regions = as_dtype(x, wide), as_dtype(rois, wide)
        rows = self._points(regions, 0, self.output_height, x.shape[2])
        columns = self._points(regions, 1, self.output_width, x.shape[3])
        if self.mode == "avg" and not self.sampling_ratio:
            return as_dtype(self._by_matrices(image, batch, rows, columns), x.dtype)
        return as_dtype(self._by_samples(image, batch, rows, columns), x.dtype)

    def _points(self, rois: Value, axis: int, out: int, extent: int) -> _Points:
        start, end = (_column(rois, 1 - axis + k) * self.spatial_scale - self._margin for k in (0, 2))
        size = end - start
        if not self._margin:
            size = Max()(size, constant(np.ones((1, 1)), size.dtype))
        bin_ = size / float(out)
        if not self.sampling_ratio:
            return self._counted_points(start, bin_, out, extent)
        samples = (np.arange(self.sampling_ratio) + 0.5) / self.sampling_ratio
        steps = (np.arange(out)[:, None] + samples).reshape(1, -1)
        return _Points(start + bin_ * constant(steps, bin_.dtype), None, extent, float(self.sampling_ratio))

    def _counted_points(self, start: Value, bin_: Value, out: int, extent: int) -> _Points:
        """As many samples as a bin has elements, rounded up; of those only the ones that may lie inside.

        They are more than half an element apart, and hardly less than one where there are many, so that at most
        ``extent`` + 4 of a bin's samples lie inside; those before the first one are skipped.
        """
        r, most = start.shape[0], extent + 5
        count: Value = Ceil()(bin_)
        at_least_one = Where()(count >= 1.0, count, 1.0)
        step = reshape(bin_ / at_least_one, (r, 1, 1))
        first = reshape(start + bin_ * constant(np.arange(out).reshape(1, -1), bin_.dtype), (r, out, 1))
        skipped: Value = Floor()((-1.0 - first) / Where()(step > 0.0, step, 1.0) - 0.5)
        number = Where()(skipped > 0.0, skipped, 0.0) + constant(np.arange(most).reshape(1, 1, -1), bin_.dtype)
        positions = first + (number + 0.5) * step
        counted = number < reshape(count, (r, 1, 1))
        return _Points(reshape(positions, (r, out * most)), reshape(counted, (r, out * most)), extent, at_least_one)

    def _by_samples(self, x: Value, batch: Value, rows: _Points, columns: _Points) -> Value:
        n, c, h, w = x.shape
        (r, p), q = rows.positions.shape, columns.positions.shape[1]
        y, z = rows.neighbours(), columns.neighbours()
        indices = reshape(y.indices, (r, 2, 1, p, 1)) * w + reshape(z.indices, (r, 1, 2, 1, q))
        indices = indices + reshape(batch, (r, 1, 1, 1, 1)) * (h * w)
        weights = reshape(y.weights, (r, 2, 1, p, 1)) * reshape(z.weights, (r, 1, 2, 1, q))
        oh, ow = self.output_height, self.output_width
        bins: Shape = (r, 2, 2, oh, p // oh, ow, q // ow)
        pixels = reshape(Transpose((1, 0, 2, 3))(x), (c, n * h * w))
        if self.mode == "max":
            terms = reshape(Gather(axis=1)(pixels, indices) * weights, (c, *bins))
            pooled = self._maximum(terms, rows, columns, bins)
        else:
            weights = weights / float(self.sampling_ratio**2)
            taps = Neighbours(_taps_first(indices, bins), _taps_first(weights, bins))
            pooled = reshape(taps.sums(reshape(pixels, (1, c, n * h * w))), (c, r, oh, ow))
        result: Value = Transpose((1, 0, 2, 3))(pooled)
        return result

    def _maximum(self, terms: Value, rows: _Points, columns: _Points, bins: Shape) -> Value:
        axes = (2, 3, 5, 7)
        if rows.counted is None or columns.counted is None:
            result: Value = ReduceMax(axes=axes, keepdims=False)(terms)
            return result
        r, _, _, oh, s, ow, t = bins
        y = reshape(rows.counted, (1, r, 1, 1, oh, s, 1, 1))
        counted = y & reshape(columns.counted, (1, r, 1, 1, 1, 1, ow, t))
        result = ReduceMax(axes=axes, keepdims=False)(Where()(counted, terms, -math.inf))
        return Where()(result > -math.inf, result, 0.0)  # type: ignore[no-any-return]

    def _by_matrices(self, x: Value, batch: Value, rows: _Points, columns: _Points) -> Value:
        """Bilinear sampling and means are linear along each axis: weights of the rows, then of the columns."""
        (r,), (_, c, h, w) = batch.shape, x.shape
        y = reshape(rows.matrix(self.output_height), (r, 1, self.output_height, h, 1))
        images = reshape(Gather(axis=0)(x, batch), (r, c, 1, h, w))
        narrowed = sum_axes(images * y, (3,))
        z = reshape(columns.matrix(self.output_width), (r, 1, self.output_width, w))
        result: Value = MatMul()(narrowed, Transpose((0, 1, 3, 2))(z))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Regions inside and across the border, whose samples keep away from the middles of elements (kinks there)."""
        mode, coordinates = draw.choice(("avg", "max")), draw.choice(("half_pixel", "output_half_pixel"))
        out, ratio = (draw.integer(1, 2), draw.integer(1, 2)), draw.choice((1, 2, 0))
        op = cls(coordinates, mode, *out, ratio, draw.choice((1.0, 0.5)))
        n, r, spatial = draw.integer(1, 2), draw.integer(1, 2), (draw.integer(2, 4), draw.integer(2, 4))
        columns = []
        for axis in (1, 0):
            # Samples are 5/8, 3/4 or 5/4 (3/2) apart; a sixteenth beside their grid none lies on a whole number. Sizes
            # below 1 are not what they seem without half pixels.
            bins = np.array([1.25, 1.5, 0.75 if op._margin else 1.25]) * (ratio or 1)
            size = bins[draw.integers((r,), 0, 2)] * out[axis]
            first = draw.integers((r,), -2, spatial[axis] - 1) + 1 / 16 + op._margin
            start = first - size / out[axis] / 2 / np.maximum(ratio or np.ceil(size / out[axis]), 1)
            columns.append((start, start + size))
        rois = np.stack([columns[0][0], columns[1][0], columns[0][1], columns[1][1]], axis=-1) / op.spatial_scale
        return Sample(op, (draw.floats((n, draw.integer(1, 2), *spatial)), rois, draw.integers((r,), 0, n - 1)))


def _taps_first(x: Value, bins: Shape) -> Value:
    """[R, 2, 2, out, samples, out, samples] as [1, taps, R * out * out]."""
    r, _, _, oh, s, ow, t = bins
    ordered: Value = Transpose((1, 2, 4, 6, 0, 3, 5))(reshape(x, bins))
    return reshape(ordered, (1, 4 * s * t, r * oh * ow))


def _weights_array(positions: Array, extent: int) -> Iterator[tuple[float, int]]:
    """Weight and index of both neighbours of every position."""
    for position in positions:
        inside, near = -1 <= position <= extent, min(max(position, 0), extent - 1)
        low = math.floor(near)
        yield inside * (1 - (near - low)), low
        yield inside * (near - low), min(low + 1, extent - 1)


@operator
@dataclass(frozen=True)
class MaxRoiPool(Operator):
    """The maxima over a grid of ``pooled_shape`` bins in regions of X[N, C, H, W], as [R, C, *pooled_shape].

    ``rois[R, 5]`` holds the image's number and x1, y1, x2, y2 in units of ``1 / spatial_scale`` elements, which are
    rounded to whole elements (both ends belong to the region). A bin without elements gives 0.
    """

    pooled_shape: tuple[int, ...]
    spatial_scale: float = 1.0

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2:
            raise self.fail(f"takes X and rois, not {len(inputs)} operands", *inputs)
        x, rois = inputs
        if x.rank != 4 or not x.dtype.is_float or rois.dtype != x.dtype or rois.rank != 2 or rois.shape[1] != 5:
            raise self.fail("X must be [N, C, H, W] and rois [R, 5], of one floating type", *inputs)
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1 or 0 in x.shape[2:]:
            raise self.fail("pooled_shape must hold two positive extents, and X an element", *inputs)
        return x.with_shape((rois.shape[0], x.shape[1], *self.pooled_shape))

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        """The images' numbers; coordinates may be anything."""
        images = inputs[0].shape[0]
        return {1: IndexRange((-images, *(-math.inf,) * 4), (images - 1, *(math.inf,) * 4))}

    def reference(self, x: Array, rois: Array) -> Array:
        whole = np.floor(widened(rois)[:, 1:] * self.spatial_scale + 0.5)
        images = checked(self, convert(np.floor(widened(rois)[:, 0] + 0.5), i64), x.shape[0])
        result = np.zeros((len(rois), x.shape[1], *self.pooled_shape), x.dtype)
        for position, image in enumerate(images):
            rows, columns = (
                _bins_array(
                    whole[position, 1 - axis], whole[position, 3 - axis], self.pooled_shape[axis], x.shape[2 + axis]
                )
                for axis in range(2)
            )
            for (ph, y), (pw, z) in ((a, b) for a in enumerate(rows) for b in enumerate(columns)):
                part = x[image][:, y][:, :, z]
                if part.size:
                    result[position, :, ph, pw] = part.max(axis=(1, 2))
        return result

    def decompose(self, x: Value, rois: Value) -> Value:
        """Maxima along rows of the elements in each bin, then along columns."""
        (r, _), (_, c, h, w), (oh, ow) = rois.shape, x.shape, self.pooled_shape
        wide = as_dtype(rois, accumulator(rois.dtype))
        batch = as_dtype(Floor()(reshape(_column(wide, 0), (r,)) + 0.5), i64)
        images = reshape(Gather(axis=0)(x, batch), (r, c, 1, h, w))
        y, z = (
            reshape(self._members(wide, 0, h), (r, 1, oh, h, 1)),
            reshape(self._members(wide, 1, w), (r, 1, 1, ow, w)),
        )
        rows: Value = ReduceMax(axes=(3,), keepdims=False)(Where()(y, images, -math.inf))
        terms = Where()(z, reshape(rows, (r, c, oh, 1, w)), -math.inf)
        result: Value = ReduceMax(axes=(4,), keepdims=False)(terms)
        pooled: Value = Where()(result > -math.inf, result, 0.0)
        return pooled

    def _members(self, rois: Value, axis: int, extent: int) -> Value:
        """Which elements belong to which bin: [R, out, extent]."""
        out, r = self.pooled_shape[axis], rois.shape[0]
        start, end = (Floor()(_column(rois, 2 - axis + k) * self.spatial_scale + 0.5) for k in (0, 2))
        size = Max()(end - start + 1.0, constant(np.ones((1, 1)), rois.dtype))
        bins = constant(np.arange(out).reshape(1, -1), rois.dtype)
        low = Floor()(size * bins / float(out)) + start
        high = Ceil()(size * (bins + 1.0) / float(out)) + start
        elements = constant(np.arange(extent).reshape(1, 1, -1), rois.dtype)
        return (elements >= reshape(low, (r, out, 1))) & (elements < reshape(high, (r, out, 1)))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Regions inside, across the border and outside; ends away from half elements, where they jump."""
        n, r, spatial = draw.integer(1, 2), draw.integer(1, 3), (draw.integer(1, 5), draw.integer(1, 5))
        op = cls((draw.integer(1, 3), draw.integer(1, 3)), draw.choice((1.0, 0.5)))
        starts = [draw.integers((r,), -1, spatial[1 - axis]) for axis in range(2)]
        ends = [start + draw.integers((r,), -1, 4) for start in starts]
        indices = np.stack([*starts, *ends], axis=-1) + draw.floats((r, 4), -0.3, 0.3)
        rois = np.concatenate([draw.integers((r, 1), 0, n - 1), indices / op.spatial_scale], axis=1)
        return Sample(op, (draw.floats((n, draw.integer(1, 2), *spatial)), rois))


def _bins_array(start: Any, end: Any, out: int, extent: int) -> Array:
    """Which elements belong to which bin: [out, extent]."""
    size, bins, elements = np.maximum(end - start + 1, 1), np.arange(out)[:, None], np.arange(extent)
    low, high = np.floor(size * bins / out) + start, np.ceil(size * (bins + 1) / out) + start
    return np.asarray((elements >= low) & (elements < high))
