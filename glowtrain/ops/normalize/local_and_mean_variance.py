"""Normalization by neighbouring channels, and by mean and deviation over given axes.

Sources: Krizhevsky et al. 2012 (local response); semantics as https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.ops.core.family import normalize_axes
from glowtrain.ops.elementwise.arithmetic import Sqrt
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.normalize.batch_and_layer import require_floats
from glowtrain.ops.pooling.pooling import SumPool
from glowtrain.ops.reduce.reduction import ReduceMean, accumulator, as_dtype, widened
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, TensorType


@operator
@dataclass(frozen=True)
class LRN(Operator):
    """y = x (``bias`` + ``alpha`` / ``size`` · s)^-``beta``, where s sums x² over ``size`` channels around (axis 1).

    Channel c's neighbours are c - ⌊(size - 1) / 2⌋ to c + ⌈(size - 1) / 2⌉, as far as they exist.
    """

    size: int
    alpha: float = 0.0001
    beta: float = 0.75
    bias: float = 1.0

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        require_floats(self, *inputs)
        if inputs[0].rank < 2 or self.size < 1:
            raise self.fail("the operand must be [N, C, ...] and size positive", *inputs)
        return inputs[0]

    @property
    def reach(self) -> tuple[int, int]:
        """How many channels count before and after each."""
        return (self.size - 1) // 2, self.size // 2

    def reference(self, x: Array) -> Array:
        before, after = self.reach
        wide, channels = widened(x), x.shape[1]
        squares = np.square(wide)
        positions = (slice(max(0, c - before), c + after + 1) for c in range(channels))
        sums = [squares[:, position].sum(axis=1) for position in positions]
        scale = self.bias + self.alpha / self.size * np.stack(sums, axis=1) if sums else np.ones_like(squares)
        return np.asarray(wide * scale**-self.beta, x.dtype)

    def decompose(self, x: Value) -> Value:
        wide, (n, c), (before, after) = as_dtype(x, accumulator(x.dtype)), x.shape[:2], self.reach
        flat = (n, 1, c, math.prod(x.shape[2:]))
        pool = SumPool((self.size, 1), (1, 1), (1, 1), (before, 0, after, 0))
        sums = reshape(pool(reshape(wide * wide, flat)), x.shape) if x.type.size else wide
        return as_dtype(self._divided(wide, sums * (self.alpha / self.size) + self.bias), x.dtype)

    def _divided(self, x: Value, scale: Value) -> Value:
        """x · scale^-``beta``; for the powers that networks have by square roots, which take a fifth of the time."""
        if self.beta not in (0.5, 0.75) or self.bias <= 0 or self.alpha < 0:
            return x * scale**-self.beta
        root: Value = Sqrt()(scale)
        return x / (root if self.beta == 0.5 else root * Sqrt()(root))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        lrn = cls(
            draw.integer(1, 5), draw.choice((0.0001, 0.5)), draw.choice((0.75, 0.5, 2.0)), draw.choice((1.0, 2.0))
        )
        return Sample(lrn, (draw.floats(draw.shape(min_rank=2)),))


@operator
@dataclass(frozen=True)
class MeanVarianceNormalization(Operator):
    """y = (x - mean) / (deviation + 1e-9), the statistics taken over ``axes``."""

    axes: tuple[int, ...] = (0, 2, 3)

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        require_floats(self, *inputs)
        normalize_axes(self, self.axes, inputs[0])
        return inputs[0]

    def reference(self, x: Array) -> Array:
        wide: Any = widened(x)
        centred = wide - wide.mean(axis=self.axes, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=self.axes, keepdims=True))
        return np.asarray(centred / (deviation + 1e-9), x.dtype)

    def decompose(self, x: Value) -> Value:
        wide = as_dtype(x, accumulator(x.dtype))
        mean = ReduceMean(axes=self.axes, noop_with_empty_axes=True)
        centred = wide - mean(wide)
        variance = mean(centred * centred)
        flat = Equal()(variance, 0.0)  # there the root has no gradient: it is taken to be 0
        deviation = Where()(flat, 0.0, Sqrt()(Where()(flat, 1.0, variance)))
        return as_dtype(centred / (deviation + 1e-9), x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=2, min_extent=2)
        chosen = [axis - len(shape) * draw.boolean() for axis in range(len(shape)) if draw.boolean()]
        axes = tuple(chosen) or (draw.integer(-len(shape), len(shape) - 1),)
        return Sample(cls(axes), (draw.floats(shape),))
