"""Activations, and the smooth or hard bounds that networks have."""

from __future__ import annotations

from typing import Any

from glowtrain.graph import Value
from glowtrain.ops.elementwise import activation, logic
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.torch.aten.elementwise.extrema import clamp
from glowtrain.torch.aten.table import AtenCall, accumulated, aten


@aten("log_sigmoid.default")
def log_sigmoid(call: AtenCall, x: Value) -> Any:
    return -activation.Softplus()(-x)


@aten("log_sigmoid_forward.default")
def log_sigmoid_forward(call: AtenCall, x: Value) -> Any:
    """And nothing for what only PyTorch's own gradient reads."""
    return log_sigmoid(call, x), None


@aten("gelu.default")
def gelu(call: AtenCall, x: Value, approximate: Any = "none") -> Any:
    return call.cast(activation.Gelu(approximate=approximate)(accumulated(x)))


@aten("leaky_relu.default")
def leaky_relu(call: AtenCall, x: Value, negative_slope: float = 0.01) -> Any:
    return activation.LeakyRelu(alpha=negative_slope)(x)


@aten("prelu.default", "_prelu_kernel.default")
def prelu(call: AtenCall, x: Value, weight: Value) -> Any:
    return activation.PRelu()(x, _per_channel(weight, x))


def _per_channel(weight: Value, x: Value) -> Value:
    """Slopes as they broadcast: one for all, or one for each index of axis 1."""
    from_axis_1 = x.rank - 2 if weight.rank == 1 and x.rank > 2 else 0
    return weight[(..., *[None] * from_axis_1)] if from_axis_1 and weight.shape != (1,) else weight


@aten("elu.default")
def elu(call: AtenCall, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    result = activation.Elu(alpha=alpha)(x if input_scale == 1 else x * input_scale)
    return result if scale == input_scale == 1 else logic.Where()(x > 0, x * scale, result * scale)


@aten("celu.default")
def celu(call: AtenCall, x: Value, alpha: float = 1.0) -> Any:
    return activation.Celu(alpha=alpha)(x)


@aten("softplus.default")
def softplus(call: AtenCall, x: Value, beta: float = 1, threshold: float = 20) -> Any:
    """x itself beyond the threshold, where one is set below PyTorch's usual 20: there both are the same number."""
    scaled = x if beta == 1 else x * float(beta)
    result = activation.Softplus()(scaled) if beta == 1 else activation.Softplus()(scaled) * (1.0 / beta)
    return result if threshold >= 20 else logic.Where()(scaled > call.cast(threshold), x, result)


@aten("hardtanh.default")
def hardtanh(call: AtenCall, x: Value, min_val: float = -1, max_val: float = 1) -> Any:
    """The gradient at the bounds is 0, that of clamp is not."""
    within = (x > call.cast(min_val)) & (x < call.cast(max_val))
    return logic.Where()(within, x, clamp(call, StopGradient()(x), min_val, max_val))


@aten("relu6.default")
def relu6(call: AtenCall, x: Value) -> Any:
    return hardtanh(call, x, 0, 6)


@aten("hardsigmoid.default")
def hardsigmoid(call: AtenCall, x: Value) -> Any:
    return activation.HardSigmoid(alpha=1 / 6, beta=0.5)(x)


@aten("hardswish.default")
def hardswish(call: AtenCall, x: Value) -> Any:
    return activation.HardSwish()(x)


@aten("threshold.default")
def threshold(call: AtenCall, x: Value, threshold: float, value: float) -> Any:
    return logic.Where()(x <= call.cast(threshold), call.cast(value), x)


@aten("hardshrink.default")
def hardshrink(call: AtenCall, x: Value, lambd: float = 0.5) -> Any:
    return _shrunk(x, 0.0, lambd)


@aten("softshrink.default")
def softshrink(call: AtenCall, x: Value, lambd: float = 0.5) -> Any:
    return _shrunk(x, lambd, lambd)


def _shrunk(x: Value, bias: float, lambd: float) -> Value:
    """NaN stays."""
    result: Value = logic.Where()(logic.IsNaN()(x), x, activation.Shrink(bias=bias, lambd=lambd)(x))
    return result


@aten("glu.default")
def glu(call: AtenCall, x: Value, dim: int = -1) -> Any:
    axis, half = dim % x.rank, x.shape[dim] // 2
    before: tuple[slice, ...] = (slice(None),) * axis
    value, gate = x[(*before, slice(None, half))], x[(*before, slice(half, None))]
    return value * activation.Sigmoid()(gate)
