"""Normalizations by statistics of the batch or of a row.

Sources: Ioffe and Szegedy 2015 (batch), Ba et al. 2016 (layer), Zhang and Sennrich 2019 (RMS); semantics as
https://onnx.ai/onnx/operators/ at the newest opset. Variances are taken in two passes, as means of squared deviations.
Statistics of f16 and bf16 are f32; those of f64 are never narrowed to ONNX's f32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.loops import Expr, For, Index, Let, Ref, Statement, Tensor, call, cast, indices_of
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.elementwise.arithmetic import Reciprocal, Sqrt, multiply_add
from glowtrain.ops.reduce.reduction import (
    ReduceMean,
    ReduceSum,
    accumulator,
    as_dtype,
    row_sum,
    unbroadcast,
    widened,
)
from glowtrain.ops.tensor.move import Expand, reshape
from glowtrain.types import Array, Shape, TensorType, f64


def inverse_deviation(variance: Value, epsilon: float) -> Value:
    """1 / sqrt(variance + epsilon)"""
    result: Value = Reciprocal()(Sqrt()(variance + epsilon))
    return result


def per_channel(numbers: Value, x: Value) -> Value:
    """One number a channel, in a shape that broadcasts over x (channels are axis 1)."""
    return reshape(numbers, (x.shape[1], *[1] * (x.rank - 2)))


def require_floats(operator_: Operator, *inputs: TensorType | None) -> None:
    """Raise :class:`ShapeError` unless every operand is of a float type."""
    for type_ in inputs:
        if type_ is not None and not type_.dtype.is_float:
            raise operator_.fail(f"element types must be float, not {type_.dtype}", *inputs)


@operator
@dataclass(frozen=True)
class BatchNormalization(Operator):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias, per channel (axis 1).

    Inference takes mean and variance from operands 3 and 4 and gives y. ``training_mode`` takes those of the batch over
    all axes but 1 (population variance), and gives y and the new running statistics
    running = running * momentum + batch * (1 - momentum). ONNX's ``momentum`` is 1 - PyTorch's.
    """

    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: bool = False

    correction: ClassVar[int] = 0
    """Subtracted from n in the variance that enters the running one."""
    running_inputs: ClassVar[tuple[int, ...]] = (3, 4)

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        if len(inputs) != 5:
            raise self.fail(f"takes x, scale, bias, mean and variance, not {len(inputs)} operands", *inputs)
        require_floats(self, *inputs)
        x = inputs[0]
        if x.rank < 2:
            raise self.fail("x must have at least 2 axes: batch and channels", *inputs)
        if any(type_.shape != (x.shape[1],) for type_ in inputs[1:]):
            raise self.fail(f"scale, bias, mean and variance must have shape [{x.shape[1]}], x's channels", *inputs)
        if not self.training_mode:
            return x
        if self._count(x.shape) <= self.correction:
            raise self.fail("statistics of a batch need more than one element per channel", *inputs)
        return x, inputs[3], inputs[4]

    def _count(self, shape: Shape) -> int:
        """Elements per channel."""
        return math.prod(shape) // max(shape[1], 1)

    def reference(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Any:
        axes = (0, *range(2, x.ndim))
        wide = widened(x)
        used_mean, used_variance = (np.mean(wide, axes), np.var(wide, axes)) if self.training_mode else (mean, variance)
        channels = (-1, *[1] * (x.ndim - 2))
        centered = wide - used_mean.reshape(channels)
        normal = centered / np.sqrt(used_variance + self.epsilon).astype(wide.dtype).reshape(channels)
        y = (normal * scale.reshape(channels) + bias.reshape(channels)).astype(x.dtype)
        if not self.training_mode:
            return y
        n = self._count(x.shape)
        estimate = used_variance * (n / (n - self.correction))
        keep, take = self.momentum, 1 - self.momentum
        running_mean = (mean * keep + used_mean * take).astype(mean.dtype)
        return y, running_mean, (variance * keep + estimate * take).astype(variance.dtype)

    def decompose(self, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Any:
        """Reductions and elementwise operators, for fusion to join."""
        wide, centered, inverse, batch_variance = self._normalizing(x, mean, variance)
        factor = inverse * as_dtype(per_channel(scale, x), wide.dtype)
        y = as_dtype(centered * factor + as_dtype(per_channel(bias, x), wide.dtype), x.dtype)
        if not self.training_mode:
            return y
        n = self._count(x.shape)
        batch_mean = reshape(ReduceMean(axes=self._axes(x))(wide), mean.shape)
        estimate = reshape(batch_variance, mean.shape) * (n / (n - self.correction))
        return y, self._blend(mean, batch_mean), self._blend(variance, estimate)

    def _blend(self, running: Value, batch: Value) -> Value:
        wide = as_dtype(running, batch.dtype)
        return as_dtype(wide * self.momentum + batch * (1 - self.momentum), running.dtype)

    def _axes(self, x: Value) -> tuple[int, ...]:
        return (0, *range(2, x.rank))

    def _normalizing(self, x: Value, mean: Value, variance: Value) -> tuple[Value, Value, Value, Value]:
        """x in its accumulator type, x - mean, 1 / sqrt(variance + epsilon) and the variance, shaped to broadcast.

        The forward and the backward graph both go by this, so that common subexpressions are found.
        """
        dtype = accumulator(x.dtype)
        wide = as_dtype(x, dtype)
        if self.training_mode:
            centered = wide - ReduceMean(axes=self._axes(x))(wide)
            used = ReduceMean(axes=self._axes(x))(centered * centered)
        else:
            centered = wide - as_dtype(per_channel(mean, x), dtype)
            used = as_dtype(per_channel(variance, x), dtype)
        return wide, centered, inverse_deviation(used, self.epsilon), used

    def vjp(self, g: Any, y: Any, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Grads:
        if self.training_mode:
            return self._training_vjp(g, x, scale, bias, mean, variance)
        wide, centered, inverse, _ = self._normalizing(x, mean, variance)
        sums = ReduceSum(axes=self._axes(x), keepdims=False)
        g_wide, flat_inverse = as_dtype(g, wide.dtype), reshape(inverse, scale.shape)
        factor = as_dtype(scale, wide.dtype) * flat_inverse
        d_bias, d_scale = sums(g_wide), sums(g_wide * centered) * flat_inverse
        d_x = g_wide * (inverse * as_dtype(per_channel(scale, x), wide.dtype))
        grads = (d_x, d_scale, d_bias, -factor * d_bias, factor * flat_inverse * d_scale * -0.5)
        return tuple(as_dtype(d, v.dtype) for d, v in zip(grads, (x, scale, bias, mean, variance), strict=True))

    def _training_vjp(self, g: Any, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Grads:
        """dx = scale / sqrt(variance + epsilon) * (g - mean(g) - normal * mean(g * normal)), with normal the normalized
        x; plus what comes through the running statistics."""
        g_y, g_mean, g_variance = g
        wide, centered, inverse, _ = self._normalizing(x, mean, variance)
        n, take = self._count(x.shape), 1 - self.momentum
        parts: list[Value] = []
        d_scale = d_bias = None
        if g_y is not None:
            g_wide, normal = as_dtype(g_y, wide.dtype), centered * inverse
            sums = ReduceSum(axes=self._axes(x))
            along_bias, along_scale = sums(g_wide), sums(g_wide * normal)
            factor = inverse * as_dtype(per_channel(scale, x), wide.dtype)
            parts.append(factor * (g_wide - along_bias / n - normal * (along_scale / n)))
            d_scale = as_dtype(reshape(along_scale, scale.shape), scale.dtype)
            d_bias = as_dtype(reshape(along_bias, bias.shape), bias.dtype)
        if g_mean is not None:
            parts.append(Expand(shape=x.shape)(per_channel(as_dtype(g_mean, wide.dtype) * (take / n), x)))
        if g_variance is not None:
            through = as_dtype(g_variance, wide.dtype) * (2 * take / (n - self.correction))
            parts.append(centered * per_channel(through, x))
        d_x = as_dtype(sum(parts[1:], parts[0]), x.dtype) if parts else None
        running = (None if part is None else part * self.momentum for part in (g_mean, g_variance))
        return d_x, d_scale, d_bias, *running

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=2, max_rank=4, max_extent=4)
        if math.prod(shape) // max(shape[1], 1) < 2:
            shape = (shape[0] + 2, *shape[1:])
        channel = (shape[1],)
        attributes = cls(draw.choice((1e-5, 0.1)), draw.choice((0.9, 0.5)), draw.boolean())
        x, bias, mean = draw.floats(shape), draw.floats(channel), draw.floats(channel)
        return Sample(attributes, (x, draw.floats(channel), bias, mean, draw.floats(channel, 0.3, 2.0)))


@operator
@dataclass(frozen=True)
class UnbiasedBatchNormalization(BatchNormalization):
    """BatchNormalization as PyTorch trains it: the batch's variance enters the running one times n / (n - 1)."""

    training_mode: bool = True

    domain: ClassVar[str] = "glowtrain"
    correction: ClassVar[int] = 1


@dataclass(frozen=True)
class RowNormalization(Operator):
    """What LayerNormalization and RMSNormalization share: rows are the axes from ``axis`` on, scale broadcasts to x.

    ``stash_type`` is read and has no effect: ONNX names the type that statistics are computed in and results of them
    have (1 for f32, 16 for bf16), here they are in f32, of f64 in f64, which is never less exact. ONNX Runtime computes
    in f32 whatever it says, too; ONNX's reference evaluator takes 1 alone.
    """

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1

    def check(self, *inputs: TensorType | None) -> int:
        """The first axis of a row, after the checks of types and shapes."""
        require_floats(self, *inputs)
        x, *others = inputs
        assert x is not None
        for type_ in others:
            padded = (1,) * (x.rank - type_.rank) + type_.shape if type_ else x.shape
            if len(padded) != x.rank or any(n not in (1, m) for n, m in zip(padded, x.shape, strict=True)):
                raise self.fail("scale and bias must broadcast to x", *inputs)
        return normalize_axis(self, self.axis, x)

    def rows(self, x: Value) -> tuple[int, ...]:
        """The axes of a row."""
        return tuple(range(self.axis % x.rank, x.rank))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=4)
        axis = draw.integer(-len(shape), len(shape) - 1)
        row = shape[axis:]
        scale = draw.choice((row, row[1:] or row, (1,), (1,) * len(row)))
        inputs: list[Array | None] = [draw.floats(shape), draw.floats(scale)]
        if cls is LayerNormalization:
            inputs.append(draw.floats(row) if draw.boolean() else None)
        return Sample(cls(axis, draw.choice((1e-5, 0.1))), tuple(inputs))


def _row_indices(shape: Shape, axis: int) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
    return indices_of(shape[:axis], "i"), indices_of(shape[axis:], "k")


@operator
@dataclass(frozen=True)
class LayerNormalization(RowNormalization):
    """y = (x - mean) * inverse * scale + bias over rows, with inverse = 1 / sqrt(variance + epsilon); mean; inverse.

    The statistics have x's shape with extent 1 from ``axis`` on.
    """

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        if len(inputs) not in (2, 3) or inputs[0] is None or inputs[1] is None:
            raise self.fail("takes x, scale and an optional bias", *inputs)
        x, axis = inputs[0], self.check(*inputs)
        statistic = TensorType(accumulator(x.dtype), (*x.shape[:axis], *[1] * (x.rank - axis)))
        return x, statistic, statistic

    def reference(self, x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, ...]:
        axes = tuple(range(self.axis % x.ndim, x.ndim))
        wide = widened(x)
        mean = np.mean(wide, axes, keepdims=True)
        inverse = (1 / np.sqrt(np.var(wide, axes, keepdims=True) + self.epsilon)).astype(wide.dtype)
        y = (wide - mean) * inverse * widened(scale)
        return (y if bias is None else y + widened(bias)).astype(x.dtype), mean, inverse

    def decompose(self, x: Value, scale: Value, bias: Value | None = None) -> tuple[Value, ...]:
        wide, mean_of = as_dtype(x, accumulator(x.dtype)), ReduceMean(axes=self.rows(x))
        mean = mean_of(wide)
        centered = wide - mean
        inverse = inverse_deviation(mean_of(centered * centered), self.epsilon)
        y = centered * inverse * as_dtype(scale, wide.dtype)
        y = y if bias is None else y + as_dtype(bias, wide.dtype)
        return as_dtype(y, x.dtype), mean, inverse

    def vjp(self, g: Any, y: Any, x: Value, scale: Value, *rest: Value | None) -> Grads:
        (g_y, g_mean, g_inverse), (_, mean, inverse) = g, y
        bias = rest[0] if rest else None
        wide, mean_of = as_dtype(x, mean.dtype), ReduceMean(axes=self.rows(x))
        n = math.prod(x.shape[self.axis % x.rank :])
        normal = (wide - mean) * inverse
        parts: list[Value] = []
        d_scale = d_bias = None
        if g_y is not None:
            g_wide = as_dtype(g_y, wide.dtype)
            scaled = g_wide * as_dtype(scale, wide.dtype)
            parts.append(inverse * (scaled - mean_of(scaled) - normal * mean_of(scaled * normal)))
            d_scale = as_dtype(unbroadcast(g_wide * normal, scale.shape), scale.dtype)
            d_bias = None if bias is None else as_dtype(unbroadcast(g_wide, bias.shape), bias.dtype)
        if g_mean is not None:
            parts.append(Expand(shape=x.shape)(g_mean / n))
        if g_inverse is not None:
            parts.append(normal * (g_inverse * inverse * inverse / -n))
        d_x = as_dtype(sum(parts[1:], parts[0]), x.dtype) if parts else None
        return (d_x, d_scale, d_bias)[: 2 + len(rest)]

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        x, scale, *rest = inputs
        bias = rest[0] if rest else None
        y, y_mean, y_inverse = outputs
        axis, dtype = self.axis % len(x.shape), accumulator(x.dtype)
        i, k = _row_indices(x.shape, axis)
        extents, n = x.shape[axis:], math.prod(x.shape[axis:])
        mean, inverse = Ref(dtype, "mean"), Ref(dtype, "inverse")
        centered = _centered(x, i, mean)
        variance = row_sum(extents, lambda *r: _square(centered(*r))) / n
        normal, factor = centered(*k) * inverse, cast(scale.broadcast((*i, *k)), dtype)
        shift = None if bias is None else cast(bias.broadcast((*i, *k)), dtype)
        value = normal * factor if shift is None else multiply_add(normal, factor, shift)
        statistic: list[Expr | int] = [*i, *[0] * len(k)]
        row = (  # the mean is summed in f64, as by ONNX Runtime: docs/adr/0010-row-sums.md
            Let(mean, cast(row_sum(extents, lambda *r: cast(x[(*i, *r)], f64)) / n, dtype)),
            Let(inverse, call("rsqrt", variance + self.epsilon)),
            y_mean.store(statistic, mean),
            y_inverse.store(statistic, inverse),
            For(k, (y.store((*i, *k), value),)),
        )
        return [For(i, row)]


def _centered(x: Tensor, outer: tuple[Index, ...], mean: Ref) -> Any:
    return lambda *r: cast(x[(*outer, *r)], mean.dtype) - mean


def _square(value: Expr) -> Expr:
    return value * value


@operator
@dataclass(frozen=True)
class RMSNormalization(RowNormalization):
    """y = x / sqrt(mean(x^2) + epsilon) * scale over rows."""

    def infer(self, *inputs: TensorType | None) -> TensorType:
        if len(inputs) != 2 or inputs[0] is None or inputs[1] is None:
            raise self.fail("takes x and scale", *inputs)
        self.check(*inputs)
        return inputs[0]

    def reference(self, x: Array, scale: Array) -> Array:
        axes = tuple(range(self.axis % x.ndim, x.ndim))
        wide = widened(x)
        y = wide / np.sqrt(np.mean(wide * wide, axes, keepdims=True) + self.epsilon).astype(wide.dtype) * widened(scale)
        return np.asarray(y.astype(x.dtype))

    def decompose(self, x: Value, scale: Value) -> Value:
        wide, inverse = self._inverse(x)
        return as_dtype(wide * inverse * as_dtype(scale, wide.dtype), x.dtype)

    def _inverse(self, x: Value) -> tuple[Value, Value]:
        wide = as_dtype(x, accumulator(x.dtype))
        return wide, inverse_deviation(ReduceMean(axes=self.rows(x))(wide * wide), self.epsilon)

    def vjp(self, g: Value, y: Value, x: Value, scale: Value) -> Grads:
        wide, inverse = self._inverse(x)
        normal, g_wide = wide * inverse, as_dtype(g, wide.dtype)
        scaled = g_wide * as_dtype(scale, wide.dtype)
        d_x = inverse * (scaled - normal * ReduceMean(axes=self.rows(x))(scaled * normal))
        return as_dtype(d_x, x.dtype), as_dtype(unbroadcast(g_wide * normal, scale.shape), scale.dtype)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x, scale), (y,) = inputs, outputs
        axis, dtype = self.axis % len(x.shape), accumulator(x.dtype)
        i, k = _row_indices(x.shape, axis)
        inverse = Ref(dtype, "inverse")
        square = row_sum(x.shape[axis:], lambda *r: _square(cast(x[(*i, *r)], dtype))) / math.prod(x.shape[axis:])
        value = cast(x[(*i, *k)], dtype) * inverse * cast(scale.broadcast((*i, *k)), dtype)
        return [For(i, (Let(inverse, call("rsqrt", square + self.epsilon)), For(k, (y.store((*i, *k), value),))))]
