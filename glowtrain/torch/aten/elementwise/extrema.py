"""The larger and the smaller of two, and bounds."""

from __future__ import annotations

from typing import Any

from glowtrain.graph import Value
from glowtrain.ops.elementwise import logic
from glowtrain.ops.elementwise.extrema import Clip, Max, Min
from glowtrain.torch.aten.table import AtenCall, aten


@aten("fmax.default")
def fmax(call: AtenCall, x: Value, y: Value) -> Any:
    """The larger one, or the one that is a number."""
    x, y = call.cast(x), call.cast(y)
    return logic.Where()(logic.IsNaN()(x), y, logic.Where()(logic.IsNaN()(y), x, Max()(x, y)))


@aten("fmin.default")
def fmin(call: AtenCall, x: Value, y: Value) -> Any:
    x, y = call.cast(x), call.cast(y)
    return logic.Where()(logic.IsNaN()(x), y, logic.Where()(logic.IsNaN()(y), x, Min()(x, y)))


@aten("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor")
def clamp(call: AtenCall, x: Value, min: Any = None, max: Any = None) -> Any:
    """Scalars by Clip; tensors, which broadcast, by the larger and the smaller of two."""
    x = call.cast(x)
    if isinstance(min, Value) or isinstance(max, Value):
        bounded = x if min is None else Max()(x, call.cast(min))
        return bounded if max is None else Min()(bounded, call.cast(max))
    bounds = [None if bound is None else call.cast(bound) for bound in (min, max)]
    return Clip()(x, *bounds)


@aten("clamp_min.default", "clamp_min.Tensor")
def clamp_min(call: AtenCall, x: Value, min: Any) -> Any:
    return clamp(call, x, min, None)


@aten("clamp_max.default", "clamp_max.Tensor")
def clamp_max(call: AtenCall, x: Value, max: Any) -> Any:
    return clamp(call, x, None, max)
