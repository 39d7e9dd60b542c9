"""Scales of weights: one for the tensor, for each channel, or for each block of neighbours that are summed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glowtrain.errors import QuantizationError
from glowtrain.quantization.calibration.ranges import MeanSquare, Method
from glowtrain.quantization.placement.scheme import Parameters, Scheme
from glowtrain.types import Array

Axes = tuple[int, int]
"""The axis of a weight's channels, and one along which products are summed."""
FINEST = 2.0**-30
"""The least step of a bias, as a part of its magnitude: its integers then fit into i32."""


def weight_parameters(
    array: Array, scheme: Scheme, axes: Axes | None, method: Method, where: str, least: Array | float = 0.0
) -> Parameters:
    """Scales and zero points of known weights.

    ``axes`` are the axes of channels and of sums (``None``: one scale for all). Blocks are for matrices; tensors of
    higher rank have a scale per channel instead. ``least`` bounds scales from below, for each channel. Raises
    :class:`QuantizationError` for weights that are NaN or infinite.
    """
    if not np.isfinite(array).all():
        raise QuantizationError(f"{where}: weights are NaN or infinite; a model that diverged cannot be quantized")
    if not array.size:
        raise QuantizationError(f"{where}: a tensor without elements has no range")
    scheme, axis, lows, highs = _ranges(array, scheme, axes)
    if isinstance(method, MeanSquare):
        lows, highs = _drawn_in(array, scheme, axis, lows, highs, method.steps, where)
    found = scheme.parameters(lows, highs, axis=axis, where=where, zeros=True)
    if not np.any(found.scale < least):
        return found
    coarser = np.maximum(found.scale, np.asarray(least, np.float32)).astype(np.float32)
    coarser = np.broadcast_to(coarser, found.scale.shape) if found.scale.ndim else np.asarray(coarser.max())
    factor = coarser.astype(np.float64) / found.scale
    wider = scheme.parameters(lows * factor, highs * factor, axis=axis, where=where, zeros=True)
    return replace(wider, scale=np.maximum(wider.scale, coarser))


def _ranges(array: Array, scheme: Scheme, axes: Axes | None) -> tuple[Scheme, int, Array, Array]:
    """The scheme that fits the tensor's rank, the scales' axis, and the ranges."""
    if scheme.granularity == "tensor" or axes is None:
        plain = scheme.with_(granularity="tensor", block=0)
        return plain, 1, np.asarray(array.min(), np.float64), np.asarray(array.max(), np.float64)
    channel, summed = axes
    if scheme.granularity == "block" and array.ndim == 2:
        starts = np.arange(0, array.shape[summed], scheme.block)
        lows, highs = (f.reduceat(array, starts, axis=summed).astype(np.float64) for f in (np.minimum, np.maximum))
        return scheme, summed, lows, highs
    others = tuple(axis for axis in range(array.ndim) if axis != channel)
    lows, highs = array.min(others).astype(np.float64), array.max(others).astype(np.float64)
    return scheme.with_(granularity="channel", block=0), channel, lows, highs


def _drawn_in(
    array: Array, scheme: Scheme, axis: int, lows: Array, highs: Array, steps: int, where: str
) -> tuple[Array, Array]:
    """The ranges, as parts of the whole ones, of the least squared error for each scale."""
    best = np.full(lows.shape, np.inf)
    factors = np.ones(lows.shape)
    for step in range(steps, steps // 2, -1):
        part = step / steps
        parameters = scheme.parameters(lows * part, highs * part, axis=axis, where=where, zeros=True)
        errors = (parameters.rounded(array).astype(np.float64) - array) ** 2
        sums = _sums(errors, scheme, axis)
        better = sums < best
        best, factors = np.where(better, sums, best), np.where(better, part, factors)
    return lows * factors, highs * factors


def _sums(errors: Array, scheme: Scheme, axis: int) -> Array:
    if scheme.granularity == "tensor":
        return np.asarray(errors.sum())
    if scheme.granularity == "block":
        blocks: Array = np.add.reduceat(errors, np.arange(0, errors.shape[axis], scheme.block), axis=axis)
        return blocks
    channels: Array = errors.sum(tuple(a for a in range(errors.ndim) if a != axis))
    return channels
