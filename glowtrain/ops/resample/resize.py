"""Resize: images (or any tensors) made larger or smaller by interpolation.

Shapes, scales and the region are known when compiling, so every coordinate, index and weight is computed then; what is
left for run time is a weighted sum of a few elements along each axis (see :mod:`glowtrain.ops.resample.along_axis`).

Semantics: https://onnx.ai/onnx/operators/onnx__Resize.html. Cubic convolution: R. Keys, "Cubic convolution
interpolation for digital image processing", IEEE Trans. ASSP 29 (1981).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator, static
from glowtrain.graph.operator import Quantized
from glowtrain.ops.core.family import normalize_axes
from glowtrain.ops.elementwise.arithmetic import Round
from glowtrain.ops.elementwise.cast import convert
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.reduce.reduction import as_dtype
from glowtrain.ops.resample.along_axis import Taps, summed
from glowtrain.ops.tensor.move import Ints
from glowtrain.types import Array, DType, Shape, TensorType, dtype_of, f32, f64, i64

Floats = tuple[float, ...]
MODES = ("nearest", "linear", "cubic")
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")
TRANSFORMATIONS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip


@dataclass(frozen=True)
class ResizedAxis:
    """One axis: its extents, the factor between them, the exact (fractional) resized length, and the region read."""

    extent: int
    out: int
    scale: float
    length: float
    begin: float = 0.0
    end: float = 1.0

    def coordinates(self, transformation: str) -> Array:
        """Where each result element lies on the axis that is read, in elements."""
        positions, last = np.arange(self.out, dtype=np.float64), self.extent - 1
        if transformation == "align_corners":
            return positions * last / (self.length - 1) if self.length != 1 else np.zeros(self.out)
        if transformation == "asymmetric":
            return positions / self.scale
        if transformation == "tf_half_pixel_for_nn":
            return (positions + 0.5) / self.scale
        if transformation == "tf_crop_and_resize":
            if self.length == 1:
                return np.full(self.out, 0.5 * (self.begin + self.end) * last)
            return positions * (self.end - self.begin) * last / (self.length - 1) + self.begin * last
        if transformation == "pytorch_half_pixel" and self.length == 1:
            return np.full(self.out, -0.5)
        symmetric = transformation == "half_pixel_symmetric"
        offset = self.extent / 2 * (1 - self.out / self.length) if symmetric else 0.0
        return offset + (positions + 0.5) / self.scale - 0.5


@operator
@dataclass(frozen=True)
class Resize(Operator):
    """The operand interpolated at other extents: ``sizes``, or ``scales`` times its own (rounded down).

    ``coordinate_transformation_mode`` says which coordinate each result element has. "linear" and "cubic" weigh the
    neighbours there, which are the edge elements outside of the axis (or are left out, if ``exclude_outside``);
    ``antialias`` widens the filter when shrinking. "nearest" takes one neighbour by ``nearest_mode``. ``roi``, the
    starts and then the ends of a region in [0, 1], is read by "tf_crop_and_resize" only, where what lies outside of
    the operand is ``extrapolation_value``; "tf_half_pixel_for_nn" is that of opsets 11 and 12.
    ``keep_aspect_ratio_policy`` makes one scale of ``sizes``. Integers are interpolated in floating point, rounded half
    to even and clamped to their range.
    """

    roi: Floats | None = static(1, None)
    scales: Floats | None = static(2, None)
    sizes: Ints | None = static(3, None)
    antialias: bool = False
    axes: Ints | None = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    quantized: ClassVar[Quantized] = "rescales"

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes one operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        self._check(x)
        shape = list(x.shape)
        for axis, resized in self.resized(x.shape).items():
            if resized.extent == 0 and resized.out:
                raise self.fail(f"axis {axis} has no element to read", x)
            shape[axis] = resized.out
        return x.with_shape(tuple(shape))

    def _check(self, x: TensorType) -> None:
        allowed = {
            "mode": MODES, "nearest_mode": NEAREST_MODES, "keep_aspect_ratio_policy": POLICIES,
            "coordinate_transformation_mode": TRANSFORMATIONS,
        }  # fmt: skip
        for name, options in allowed.items():
            if getattr(self, name) not in options:
                raise self.fail(f"{name} must be one of {', '.join(options)}", x)
        if self.antialias and self.mode == "nearest":
            raise self.fail('antialias needs mode "linear" or "cubic"', x)
        if not x.dtype.is_number and self.mode != "nearest":
            raise self.fail(f'{x.dtype} can only be resized with mode "nearest"', x)
        if bool(self.scales) == bool(self.sizes) and x.rank:
            raise self.fail("exactly one of scales and sizes must be given", x)
        count = len(self._axes(x))
        for name, values in {"scales": self.scales, "sizes": self.sizes}.items():
            if values and (len(values) != count or any(not 0 <= value < math.inf for value in values)):
                raise self.fail(f"{name} must hold {count} numbers, one per axis and none negative", x)
        if self.scales and not all(self.scales):
            raise self.fail("scales must be positive", x)
        if self.coordinate_transformation_mode == "tf_crop_and_resize" and len(self.roi or ()) != 2 * count:
            raise self.fail(f"roi must hold {2 * count} numbers: the starts on all axes, then the ends", x)

    def _axes(self, x: TensorType) -> Ints:
        return tuple(range(x.rank)) if self.axes is None else normalize_axes(self, self.axes, x)

    def resized(self, shape: Shape) -> dict[int, ResizedAxis]:
        """The geometry of every axis that the operator names."""
        axes = self._axes(TensorType(i64, shape))
        extents = [shape[axis] for axis in axes]
        columns = self._by_sizes(extents) if self.sizes else self._by_scales(extents)
        cropped = self.coordinate_transformation_mode == "tf_crop_and_resize"
        roi = self.roi if cropped and self.roi else (0.0,) * len(axes) + (1.0,) * len(axes)
        regions = zip(roi[: len(axes)], roi[len(axes) :], strict=True)
        return {
            axis: ResizedAxis(extent, *column, *region)
            for axis, extent, column, region in zip(axes, extents, columns, regions, strict=True)
        }

    def _by_scales(self, extents: list[int]) -> list[tuple[int, float, float]]:
        """Extents are computed in f32, as in ONNX's shape inference: 0.7 times 10 is 7, which it is not in f64."""
        scales = self.scales or ()
        outs = [int(np.floor(np.float32(n) * np.float32(s))) for n, s in zip(extents, scales, strict=True)]
        return [(out, s, s * n) for n, s, out in zip(extents, scales, outs, strict=True)]

    def _by_sizes(self, extents: list[int]) -> list[tuple[int, float, float]]:
        sizes = self.sizes or ()
        scales = [size / max(extent, 1) for size, extent in zip(sizes, extents, strict=True)]
        if self.keep_aspect_ratio_policy == "stretch":
            return [(size, scale, float(size)) for size, scale in zip(sizes, scales, strict=True)]
        scale = min(scales) if self.keep_aspect_ratio_policy == "not_larger" else max(scales)
        return [(int(scale * extent + 0.5), scale, scale * extent) for extent in extents]

    def taps(self, axis: ResizedAxis) -> Taps:
        """What each result element along an axis reads."""
        if not axis.out:
            return Taps(np.zeros((1, 0), np.int64), np.ones((1, 0)), axis.extent)
        coordinates = axis.coordinates(self.coordinate_transformation_mode)
        # Rounding must not decide which neighbour is taken: what is meant as a half or whole number becomes one.
        halves = np.round(2 * coordinates) / 2
        coordinates = np.where(np.isclose(coordinates, halves, rtol=1e-12, atol=1e-12), halves, coordinates)
        # The left neighbour is strictly to the left, so that the fraction is in (0, 1].
        left = np.ceil(coordinates) - 1
        fraction = coordinates - left
        weights = self._weights(fraction, min(axis.scale, 1.0) if self.antialias else 1.0)
        indices = (left + (1 - len(weights) // 2) + np.arange(len(weights))[:, None]).astype(np.int64)
        if self.exclude_outside:
            weights = np.where((indices >= 0) & (indices < axis.extent), weights, 0)
            sums = weights.sum(axis=0)
            weights = weights / np.where(sums == 0, 1, sums)
        return Taps(np.clip(indices, 0, axis.extent - 1), weights, axis.extent).compact()

    def _weights(self, fraction: Array, scale: float) -> Array:
        """[taps, out], for as many taps left as right of the coordinate; a scale below 1 widens the filter."""
        if self.mode == "nearest":
            right = self._takes_right(fraction)
            return np.stack([1.0 - right, right * 1.0])
        reach = math.ceil((1 if self.mode == "linear" else 2) / scale)
        distance = np.abs(np.arange(1 - reach, reach + 1)[:, None] - fraction) * scale
        weights = np.clip(1 - distance, 0, None) if self.mode == "linear" else keys(distance, self.cubic_coeff_a)
        return weights / weights.sum(axis=0) if self.antialias else weights

    def _takes_right(self, fraction: Array) -> Array:
        if self.nearest_mode == "floor":
            return np.asarray(fraction == 1)
        if self.nearest_mode == "ceil":
            return np.ones(fraction.shape, np.bool_)
        return np.asarray(fraction > 0.5 if self.nearest_mode == "round_prefer_floor" else fraction >= 0.5)

    def extrapolated(self, shape: Shape) -> Array | None:
        """Which elements of the result take the extrapolation value (broadcasts to it); ``None`` if there are none."""
        if self.coordinate_transformation_mode != "tf_crop_and_resize":
            return None
        mask = np.zeros((1,) * len(shape), np.bool_)
        for axis, resized in self.resized(shape).items():
            positions = resized.coordinates(self.coordinate_transformation_mode)
            beyond = (positions < 0) | (positions > resized.extent - 1)
            mask = mask | beyond.reshape((-1,) + (1,) * (len(shape) - axis - 1)) if beyond.any() else mask
        return mask if mask.any() else None

    def reference(self, x: Array) -> Array:
        result, dtype = x, dtype_of(x.dtype)
        for axis, resized in self.resized(x.shape).items():
            taps = self.taps(resized)
            result = np.take(result, taps.indices[0], axis) if taps.copies else summed(result, taps, axis)
        mask = self.extrapolated(x.shape)
        result = result if mask is None else np.where(mask, self.extrapolation_value, result)
        return result.astype(x.dtype) if dtype.is_float else _to_integers(result, x)

    def decompose(self, x: Value) -> Value:
        """Axis after axis, those that shrink most first."""
        mask = self.extrapolated(x.shape)
        interpolated = self.mode != "nearest" or mask is not None
        wide = as_dtype(x, _working(x.dtype)) if interpolated else x
        resized = self.resized(x.shape)
        for axis in sorted(resized, key=lambda axis: resized[axis].out / max(resized[axis].extent, 1)):
            wide = self.taps(resized[axis]).apply(wide, axis)
        if mask is not None:
            wide = Where()(constant(mask), constant(self.extrapolation_value, wide.dtype), wide)
        return wide if wide.dtype == x.dtype else _rounded(wide, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """All modes; some axes or all; sizes or scales; regions that reach outside."""
        shape = draw.shape(min_rank=1, max_rank=3, max_extent=6)
        axes = tuple(axis - draw.choice((0, len(shape))) for axis in range(len(shape)) if draw.boolean()) or None
        count = len(shape) if axes is None else len(axes)
        chosen: dict[str, Any] = {"mode": draw.choice(MODES), "axes": axes}
        chosen["coordinate_transformation_mode"] = draw.choice(TRANSFORMATIONS)
        chosen["nearest_mode"] = draw.choice(NEAREST_MODES)
        if chosen["mode"] != "nearest":
            chosen["antialias"], chosen["exclude_outside"] = draw.boolean(), draw.boolean()
        if chosen["mode"] == "cubic":
            chosen["cubic_coeff_a"] = draw.choice((-0.75, -0.5))
        if chosen["coordinate_transformation_mode"] == "tf_crop_and_resize":
            starts = tuple(draw.choice((0.0, -0.3, 0.35)) for _ in range(count))
            chosen["roi"] = starts + tuple(draw.choice((1.0, 0.7, 1.4)) for _ in range(count))
            chosen["extrapolation_value"] = 2.5
        if draw.boolean():
            chosen["sizes"] = tuple(draw.integer(1, 7) for _ in range(count))
            chosen["keep_aspect_ratio_policy"] = draw.choice(POLICIES)
        else:
            chosen["scales"] = tuple(draw.choice((1.0, 2.0, 1.6, 3.0, 0.6)) for _ in range(count))
        return Sample(_nonempty(cls(**chosen), shape), (draw.floats(shape),))


def keys(distance: Array, a: float) -> Array:
    """The cubic convolution kernel at a non-negative distance; ``a`` is its slope at 1."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance - 4
    return np.where(distance <= 1, near, np.where(distance < 2, a * far, 0.0))


def _nonempty(op: Resize, shape: Shape) -> Resize:
    """The same operator with scales that leave an element on every axis."""
    if op.scales is None or all(axis.out for axis in op.resized(shape).values()):
        return op
    return op.replace(scales=tuple(max(scale, 1.0) for scale in op.scales))


def _working(dtype: DType) -> DType:
    """The element type in which a resize is computed: integers of up to 16 bits fit into f32."""
    if dtype.is_float:
        return dtype
    return f32 if dtype.size <= 2 else f64


def _bounds(dtype: DType) -> tuple[float, float]:
    """The range of an integer type, as floating-point numbers that convert to it."""
    if dtype.kind == "bool":
        return 0.0, 1.0
    info = np.iinfo(dtype.numpy)
    highest = float(info.max)
    return float(info.min), highest if int(highest) <= info.max else float(np.nextafter(highest, 0.0))


def _to_integers(result: Array, x: Array) -> Array:
    dtype = dtype_of(x.dtype)
    if result.dtype == x.dtype:
        return result
    return convert(np.clip(np.round(result), *_bounds(dtype)), dtype)


def _rounded(x: Value, dtype: DType) -> Value:
    if dtype.is_float:
        return as_dtype(x, dtype)
    low, high = _bounds(dtype)
    clipped: Value = Clip()(Round()(x), constant(low, x.dtype), constant(high, x.dtype))
    return as_dtype(clipped, dtype)
