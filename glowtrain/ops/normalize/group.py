"""Normalizations by statistics of channels or groups of them, and by a norm.

Sources: Ulyanov et al. 2016 (instance), Wu and He 2018 (group); semantics as https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.normalize.batch_and_layer import inverse_deviation, per_channel, require_floats
from glowtrain.ops.reduce.reduction import ReduceL1, ReduceL2, ReduceSum, accumulator, as_dtype, widened
from glowtrain.ops.tensor.move import Expand, reshape
from glowtrain.types import Array, Shape, TensorType


@dataclass(frozen=True)
class ChannelNormalization(Operator):
    """Normalization over groups of channels and all positions, with a scale and a bias for each channel."""

    def groups(self, x: Shape) -> int:
        """How many groups the channels (axis 1) form."""
        raise NotImplementedError

    def deviation(self) -> float:
        """The epsilon under the root."""
        raise NotImplementedError

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 3:
            raise self.fail(f"takes x, scale and bias, not {len(inputs)} operands", *inputs)
        require_floats(self, *inputs)
        x, scale, bias = inputs
        if x.rank < 2:
            raise self.fail("x must have at least 2 axes: batch and channels", *inputs)
        if scale.shape != (x.shape[1],) or bias.shape != (x.shape[1],):
            raise self.fail(f"scale and bias must have shape [{x.shape[1]}], the channels of x", *inputs)
        groups = self.groups(x.shape)
        if groups < 1 or x.shape[1] % groups:
            raise self.fail(f"{x.shape[1]} channels do not form {groups} equal groups", *inputs)
        return x

    def reference(self, x: Array, scale: Array, bias: Array) -> Array:
        groups = self.groups(x.shape)
        rows = widened(x).reshape((x.shape[0], groups, math.prod(x.shape[1:]) // groups))
        centered = rows - np.mean(rows, 2, keepdims=True)
        normal = centered / np.sqrt(np.var(rows, 2, keepdims=True) + self.deviation()).astype(rows.dtype)
        channels = (-1, *[1] * (x.ndim - 2))
        y = normal.reshape(x.shape) * scale.reshape(channels) + bias.reshape(channels)
        return np.asarray(y.astype(x.dtype))

    def decompose(self, x: Value, scale: Value, bias: Value) -> Value:
        """Sums over the positions of each channel, in whatever layout x has, then over each group's channels."""
        centered, inverse = self._normalizing(x)
        factor = inverse * as_dtype(per_channel(scale, x), inverse.dtype)
        return as_dtype(centered * factor + as_dtype(per_channel(bias, x), inverse.dtype), x.dtype)

    def _normalizing(self, x: Value) -> tuple[Value, Value]:
        """x - mean, and 1 / sqrt(variance + epsilon) for each channel of each instance, shaped to broadcast.

        The forward and the backward graph both go by this, so that common subexpressions are found.
        """
        wide = as_dtype(x, accumulator(x.dtype))
        centered = wide - self._group_mean(channel_sums(wide), x)
        variance = self._group_mean(channel_sums(centered * centered), x)
        return centered, inverse_deviation(variance, self.deviation())

    def _group_mean(self, sums: Value, x: Value) -> Value:
        """The mean over each group, for each of its channels, from the channels' sums[n, c, 1...].

        The division comes last, so that the result is stored for each channel: readers' lanes run along channels.
        """
        groups = self.groups(x.shape)
        if groups != x.shape[1]:
            grouped = (x.shape[0], groups, x.shape[1] // groups)
            totals = ReduceSum(axes=(2,))(reshape(sums, grouped))
            sums = reshape(Expand(shape=grouped)(totals), sums.shape)
        return sums / max(math.prod(x.shape[1:]) // groups, 1)

    def vjp(self, g: Value, y: Value, x: Value, scale: Value, bias: Value) -> Grads:
        """dx = (g * scale - mean(g * scale) - normal * mean(g * scale * normal)) / sqrt(variance + epsilon).

        ``normal`` is the normalized x. All sums come from those over the positions of each channel, in one pass over x
        and g (as by PyTorch's ComputeInternalGradients).
        """
        centered, inverse = self._normalizing(x)
        g_wide, normal = as_dtype(g, inverse.dtype), centered * inverse
        along_bias, along_scale = channel_sums(g_wide), channel_sums(g_wide * normal)
        factor = as_dtype(per_channel(scale, x), inverse.dtype)
        mean, slope = (self._group_mean(sums * factor, x) for sums in (along_bias, along_scale))
        d_x = inverse * (g_wide * factor - mean - normal * slope)
        over_instances = ReduceSum(axes=(0,))
        d_scale, d_bias = (reshape(over_instances(sums), scale.shape) for sums in (along_scale, along_bias))
        return as_dtype(d_x, x.dtype), as_dtype(d_scale, scale.dtype), as_dtype(d_bias, bias.dtype)


def channel_sums(x: Value) -> Value:
    """The sum over the positions of each channel of each instance: [n, c, 1...]."""
    result: Value = ReduceSum(axes=tuple(range(2, x.rank)), noop_with_empty_axes=True)(x)
    return result


@operator
@dataclass(frozen=True)
class InstanceNormalization(ChannelNormalization):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias, over the positions of each channel of each instance."""

    epsilon: float = 1e-5

    def groups(self, x: Shape) -> int:
        return x[1]

    def deviation(self) -> float:
        return self.epsilon

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=3, max_rank=4, max_extent=4)
        scale, bias = draw.floats(shape[1:2]), draw.floats(shape[1:2])
        return Sample(cls(draw.choice((1e-5, 0.1))), (draw.floats(shape), scale, bias))


@operator
@dataclass(frozen=True)
class GroupNormalization(ChannelNormalization):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias, over each instance's groups of channels (opset 21).

    ``stash_type`` has no effect, as in :class:`~glowtrain.ops.normalize.batch_and_layer.RowNormalization`.
    """

    num_groups: int
    epsilon: float = 1e-5
    stash_type: int = 1

    def groups(self, x: Shape) -> int:
        return self.num_groups

    def deviation(self) -> float:
        return self.epsilon

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        groups, each = draw.integer(1, 3), draw.integer(1, 2)
        shape = (draw.integer(1, 2), groups * each, *draw.shape(max_rank=2, max_extent=3))
        scale, bias = draw.floats((groups * each,)), draw.floats((groups * each,))
        return Sample(cls(groups, draw.choice((1e-5, 0.1)), draw.choice((1, 16))), (draw.floats(shape), scale, bias))


@operator
@dataclass(frozen=True)
class LpNormalization(Operator):
    """y = x / norm(x) along ``axis``, with the 1-norm or the 2-norm (``p``); 0 where the norm is 0."""

    axis: int = -1
    p: int = 2

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        require_floats(self, *inputs)
        normalize_axis(self, self.axis, inputs[0])
        if self.p not in (1, 2):
            raise self.fail("p must be 1 or 2", *inputs)
        return inputs[0]

    def reference(self, x: Array) -> Array:
        wide = widened(x)
        norm = np.linalg.norm(wide, ord=self.p, axis=self.axis, keepdims=True)
        return (wide / np.where(norm == 0, 1, norm)).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        wide = as_dtype(x, accumulator(x.dtype))
        norm_of = (ReduceL1 if self.p == 1 else ReduceL2)(axes=(self.axis,))
        norm = norm_of(wide)
        return as_dtype(wide / Where()(Equal()(norm, 0.0), 1.0, norm), x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1)
        x = draw.floats(shape, avoid=(0.0,))
        return Sample(cls(draw.integer(-len(shape), len(shape) - 1), draw.choice((1, 2))), (x,))
