"""The larger and the smaller of two, and bounds."""

from __future__ import annotations

from typing import Any

from glowtrain.graph import Value
from glowtrain.ops.elementwise import logic
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.torch.aten.table import AtenCall, aten


@aten("fmax.default")
def fmax(call: AtenCall, x: Value, y: Value) -> Any:
    """The larger one, or the one that is a number. Of equal ones the first has the gradient."""
    x, y = call.cast(x), call.cast(y)
    return logic.Where()((x >= y) | logic.IsNaN()(y), x, y)


@aten("fmin.default")
def fmin(call: AtenCall, x: Value, y: Value) -> Any:
    x, y = call.cast(x), call.cast(y)
    return logic.Where()((x <= y) | logic.IsNaN()(y), x, y)


@aten("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor")
def clamp(call: AtenCall, x: Value, min: Any = None, max: Any = None) -> Any:
    """Scalars by Clip. Bounds that are tensors have the gradient of what is beyond them; the lower one none where the
    upper one is as large."""
    x = call.cast(x)
    low, high = bounds = [None if bound is None else call.cast(bound) for bound in (min, max)]
    if not isinstance(min, Value) and not isinstance(max, Value):
        return Clip()(x, *bounds)
    bounded = x
    if low is not None:
        lower = low if high is None else logic.Where()(low < high, low, StopGradient()(low))
        bounded = logic.Where()((x < low) | logic.IsNaN()(low), lower, x)
    if high is None:
        return bounded
    return logic.Where()((bounded > high) | logic.IsNaN()(high), high, bounded)


@aten("clamp_min.default", "clamp_min.Tensor")
def clamp_min(call: AtenCall, x: Value, min: Any) -> Any:
    return clamp(call, x, min, None)


@aten("clamp_max.default", "clamp_max.Tensor")
def clamp_max(call: AtenCall, x: Value, max: Any) -> Any:
    return clamp(call, x, None, max)
