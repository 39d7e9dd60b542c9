"""Functions without parameters, under the names that people know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.nn.checks import check_extents, check_input, check_share
from glowtrain.ops.elementwise.activation import Gelu, Relu, Sigmoid
from glowtrain.ops.elementwise.arithmetic import Sqrt
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.elementwise.transcendental import Exp, Log, Tanh
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.pooling.pooling import AveragePool, GlobalAveragePool
from glowtrain.ops.random.philox import Dropout
from glowtrain.ops.reduce.reduction import ReduceMean, ReduceSum
from glowtrain.ops.reduce.softmax import LogSoftmax, Softmax
from glowtrain.ops.tensor.move import Concat, Flatten, Reshape, Transpose

Extents = int | Sequence[int]
Axes = int | Sequence[int] | None


def relu(x: Value) -> Value:
    """max(x, 0)"""
    result: Value = Relu()(x)
    return result


def gelu(x: Value, *, approximate: bool = False) -> Value:
    """x Φ(x); ``approximate`` takes the formula with tanh."""
    result: Value = Gelu(approximate="tanh" if approximate else "none")(x)
    return result


def silu(x: Value) -> Value:
    """x σ(x)"""
    return x * sigmoid(x)


def sigmoid(x: Value) -> Value:
    """σ(x) = 1 / (1 + exp(-x))"""
    result: Value = Sigmoid()(x)
    return result


def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    result: Value = Tanh()(x)
    return result


def exp(x: Value) -> Value:
    """e to the power of x."""
    result: Value = Exp()(x)
    return result


def log(x: Value) -> Value:
    """The natural logarithm."""
    result: Value = Log()(x)
    return result


def sqrt(x: Value) -> Value:
    """The square root."""
    result: Value = Sqrt()(x)
    return result


def softmax(x: Value, axis: int = -1) -> Value:
    """exp(x), divided by its sum along an axis."""
    result: Value = Softmax(axis=axis)(x)
    return result


def log_softmax(x: Value, axis: int = -1) -> Value:
    """The logarithm of the softmax."""
    result: Value = LogSoftmax(axis=axis)(x)
    return result


def where(condition: Value, x: Any, y: Any) -> Value:
    """x where the condition is true, else y."""
    result: Value = Where()(condition, x, y)
    return result


def mean(x: Value, axes: Axes = None, *, keepdims: bool = False) -> Value:
    """The mean over axes, or over all."""
    result: Value = ReduceMean(axes=_axes(axes), keepdims=keepdims)(x)
    return result


def total(x: Value, axes: Axes = None, *, keepdims: bool = False) -> Value:
    """The sum over axes, or over all."""
    result: Value = ReduceSum(axes=_axes(axes), keepdims=keepdims)(x)
    return result


def reshape(x: Value, *shape: int | Sequence[int]) -> Value:
    """The same elements in another shape, ``reshape(x, 2, -1)`` or ``reshape(x, (2, -1))``.

    One extent may be -1; an extent of 0 is 0. Raises :class:`ShapeError` for what are no extents.
    """
    extents = _listed(shape)
    check_extents("reshape", -1, shape=extents)
    result: Value = Reshape(shape=extents, allowzero=0 in extents)(x)
    return result


def flatten(x: Value) -> Value:
    """[batch, ...] to [batch, everything else]."""
    result: Value = Flatten(axis=1)(x)
    return result


def transpose(x: Value, *axes: int | Sequence[int]) -> Value:
    """Axes in another order, ``transpose(x, 0, 2, 1)`` or ``transpose(x, (0, 2, 1))``; reversed without arguments.

    Raises :class:`ShapeError` for what are no axes.
    """
    order = _listed(axes)
    check_extents("transpose", 0, axes=order)
    result: Value = Transpose(perm=order or tuple(reversed(range(x.rank))))(x)
    return result


def concat(values: Sequence[Value], axis: int) -> Value:
    """Values side by side along an axis."""
    result: Value = Concat(axis=axis)(*values)
    return result


def max_pool(x: Value, kernel: Extents, stride: Extents | None = None, padding: Extents = 0) -> Value:
    """The maximum of each window of [n, channels, spatial...]; windows do not overlap unless ``stride`` says so."""
    extents, strides, pads = _window(x, kernel, stride, padding)
    result: Value = MaxPool(kernel_shape=extents, strides=strides, pads=pads)(x)[0]
    return result


def average_pool(x: Value, kernel: Extents, stride: Extents | None = None, padding: Extents = 0) -> Value:
    """The mean of each window of [n, channels, spatial...], over the elements that are not padding."""
    extents, strides, pads = _window(x, kernel, stride, padding)
    result: Value = AveragePool(kernel_shape=extents, strides=strides, pads=pads)(x)
    return result


def global_average_pool(x: Value) -> Value:
    """[n, channels, spatial...] to [n, channels]: the mean over all places."""
    pooled = GlobalAveragePool()(x)
    return reshape(pooled, x.shape[:2])


def dropout(x: Value, rate: float = 0.5) -> Value:
    """In training, elements are zeroed with probability ``rate`` and the others divided by 1 - rate; else x.

    Source: Srivastava et al., Dropout (JMLR 2014).
    """
    check_input("dropout", x, "x[...]", 0)
    check_share("dropout", "rate", rate, below_one=True)
    result: Value = Dropout()(x, constant(np.asarray(rate), x.dtype))[0]
    return result


def spread(value: Extents, rank: int) -> tuple[int, ...]:
    """One extent for each spatial axis."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _window(
    x: Value, kernel: Extents, stride: Extents | None, padding: Extents
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides and pads of a window over the spatial axes."""
    rank = x.rank - 2
    extents = spread(kernel, rank)
    return extents, extents if stride is None else spread(stride, rank), 2 * spread(padding, rank)


def _listed(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """What was given one by one, or as one sequence."""
    return tuple(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], (tuple, list)) else numbers


def _axes(axes: Axes) -> tuple[int, ...] | None:
    return (axes,) if isinstance(axes, int) else None if axes is None else tuple(axes)
