"""Truth: connectives of booleans and bits, kinds of numbers, and choices by a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glowtrain.graph import Value
from glowtrain.ops.elementwise import logic
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import boolean


@aten("ne.Tensor", "ne.Scalar")
def ne(call: AtenCall, x: Any, y: Any) -> Any:
    return ~logic.Equal()(*call.promoted(x, y))


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(call: AtenCall, condition: Value, x: Any, y: Any) -> Any:
    return logic.Where()(as_type(condition, boolean), call.cast(x), call.cast(y))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: AtenCall, x: Value, mask: Value, value: Any) -> Any:
    return logic.Where()(mask, call.cast(value), x)


@aten("logical_not.default", "bitwise_not.default")
def bitwise_not(call: AtenCall, x: Value) -> Any:
    if call.dtype == boolean:
        return ~as_type(x, boolean)
    return logic.BitwiseNot()(x)


def _enter_logic(name: str, logical: Callable[[], Any], bitwise: Callable[[], Any]) -> None:
    def logical_reading(call: AtenCall, x: Any, y: Any) -> Any:
        return logical()(as_type(x, boolean), as_type(y, boolean))

    def bitwise_reading(call: AtenCall, x: Any, y: Any) -> Any:
        both = call.cast(x), call.cast(y)
        return logical()(*both) if call.dtype == boolean else bitwise()(*both)

    aten(f"logical_{name}.default")(logical_reading)
    aten(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar")(bitwise_reading)


_enter_logic("and", logic.And, logic.BitwiseAnd)
_enter_logic("or", logic.Or, logic.BitwiseOr)
_enter_logic("xor", logic.Xor, logic.BitwiseXor)


@aten("isnan.default")
def isnan(call: AtenCall, x: Value) -> Any:
    return logic.IsNaN()(x)


@aten("isinf.default")
def isinf(call: AtenCall, x: Value) -> Any:
    return logic.IsInf()(x)


@aten("isfinite.default")
def isfinite(call: AtenCall, x: Value) -> Any:
    return ~(logic.IsInf()(x) | logic.IsNaN()(x))
