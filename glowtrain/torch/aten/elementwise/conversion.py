"""The same elements: of another type, in other memory, or cut off from differentiation."""

from __future__ import annotations

from typing import Any

from glowtrain.graph import Value
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.tensor.move import Expand
from glowtrain.torch.aten.table import AtenCall, aten


@aten(
    "to.dtype", "to.dtype_layout", "to.device", "_to_copy.default", "type_as.default",
    "prims.convert_element_type.default",
)  # fmt: skip
def convert(call: AtenCall, x: Value, *_: Any, **__: Any) -> Any:
    return call.cast(x)


@aten(
    "clone.default", "contiguous.default", "alias.default", "lift_fresh_copy.default",
    "positive.default",
)  # fmt: skip
def identity(call: AtenCall, x: Value, *_: Any, **__: Any) -> Any:
    return x


@aten("_assert_tensor_metadata.default")
def checked(call: AtenCall, x: Value, *_: Any, **__: Any) -> None:
    """Types and shapes, which a trace fixes."""


@aten("detach.default")
def detach(call: AtenCall, x: Value) -> Any:
    """A constant to differentiation; what is no float is one anyway."""
    return StopGradient()(x) if x.dtype.is_float else x


@aten("copy.default")
def copy(call: AtenCall, x: Value, source: Value, non_blocking: bool = False) -> Any:
    source = call.cast(source)
    return source if source.shape == call.shape else Expand(shape=call.shape)(source)
