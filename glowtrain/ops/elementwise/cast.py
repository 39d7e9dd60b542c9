"""Conversion of element types.

Semantics: https://onnx.ai/onnx/operators/onnx__Cast.html at the newest opset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import ml_dtypes
import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.loops import Const, Expr, call, cast, select
from glowtrain.loops.functions import truncated
from glowtrain.ops.core.family import Elementwise, Grads
from glowtrain.types import DTYPES, SMALL_INTEGERS, Array, DType, TensorType, dtype_of, f8e8m0, f32, f64, wide_of

RoundMode = Literal["up", "down", "nearest"]
_LEAST, _GREATEST = 2.0**-127, 2.0**127
"""The range of f8e8m0."""


def largest(dtype: DType) -> float:
    """The largest finite number of a float type."""
    return float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]


def convert(x: Array, dtype: DType) -> Array:
    """``x`` as another element type: floats are :func:`truncated` to integers, which wrap.

    Stored types are converted by way of f32 or i32; what is too large for them becomes infinite, NaN, or (in a float
    type that has neither) the largest number.
    """
    with np.errstate(all="ignore"):
        for stored in (dtype_of(x.dtype), dtype):
            if stored.is_stored and x.dtype != dtype.numpy:
                x = _in_one_step(x, wide_of(stored))
        return _in_one_step(x, dtype)


def _in_one_step(x: Array, dtype: DType) -> Array:
    becomes_whole = dtype_of(x.dtype).is_float and dtype.is_integer
    return truncated(x, dtype) if becomes_whole else x.astype(dtype.numpy)


def convert_float(x: Array, dtype: DType, saturate: bool, round_mode: str = "nearest") -> Array:
    """``x`` in a stored float type by ONNX's rules, which are tabulated in the definition of Cast."""
    wide = convert(x, f32)
    with np.errstate(all="ignore"):
        if dtype != f8e8m0:
            limit = np.float32(largest(dtype))
            return convert(np.clip(wide, -limit, limit) if saturate else wide, dtype)
        inside = (wide >= _LEAST) & (wide <= _GREATEST)
        wide = np.clip(wide, _LEAST, _GREATEST) if saturate else np.where(inside, wide, np.nan)
        wide = wide.astype(np.float32)
        power = convert(convert(wide, dtype), f32)
        if round_mode == "up":
            power = np.where(power < wide, 2 * power, power)
        elif round_mode == "down":
            power = np.where(power > wide, power / 2, power)
        return convert(power.astype(np.float32), dtype)


def cast_float(x: Expr, dtype: DType, saturate: bool, round_mode: str = "nearest") -> Expr:
    """:func:`convert_float` in the loop language."""
    wide = cast(x, f32)
    if dtype != f8e8m0:
        return cast(_clipped(wide, -largest(dtype), largest(dtype)) if saturate else wide, dtype)
    if saturate:
        wide = _clipped(wide, _LEAST, _GREATEST)
    else:
        wide = select((wide >= _LEAST) & (wide <= _GREATEST), wide, Const(math.nan, f32))
    power = cast(cast(wide, dtype), f32)
    if round_mode == "up":
        power = select(power < wide, power * 2.0, power)
    elif round_mode == "down":
        power = select(power > wide, power * 0.5, power)
    return cast(power, dtype)


def _clipped(x: Expr, low: float, high: float) -> Expr:
    """NaN stays."""
    return call("min", call("max", x, low), high)


@operator
@dataclass(frozen=True)
class Cast(Elementwise):
    """x as another element type: fractions are cut off towards 0, a boolean is x ≠ 0, integers wrap.

    Floats that fit no integer, NaN among them, have a result that ONNX leaves undefined: see
    :func:`glowtrain.loops.functions.truncated`.
    What is too large for an 8-bit float becomes its largest number, or NaN or infinity if not ``saturate``.
    ``round_mode`` concerns f8e8m0 only. The gradient is converted back; integers and stored types stop it.
    """

    to: DType
    saturate: bool = True
    round_mode: RoundMode = "up"
    kinds: ClassVar[frozenset[str]] = frozenset({"float", "int", "uint", "bool", "stored"})

    def check_operands(self, *inputs: TensorType) -> None:
        super().check_operands(*inputs)
        if not isinstance(self.to, DType):
            raise self.fail(f"to must be an element type ({', '.join(DTYPES)})", *inputs)
        if self.round_mode not in ("up", "down", "nearest"):
            raise self.fail("round_mode must be up, down or nearest", *inputs)

    def result_dtype(self, *inputs: TensorType) -> DType:
        return self.to

    @property
    def _narrows(self) -> bool:
        return self.to.is_stored and self.to not in SMALL_INTEGERS

    def reference(self, x: Array) -> Array:
        if self._narrows and x.dtype != self.to.numpy:
            return convert_float(x, self.to, self.saturate, self.round_mode)
        return convert(x, self.to)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Cast(x.dtype)(g) if x.dtype.is_float and self.to.is_float else None,)

    def scalar(self, x: Expr) -> Expr:
        if self._narrows and x.dtype != self.to:
            return cast_float(x, self.to, self.saturate, self.round_mode)
        return cast(x, self.to)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Between every pair of kinds; narrowing of floats is left out because differences of it are steps."""
        kind = draw.choice(("float", "int", "bool", "stored"))
        if draw.boolean():
            return Sample(cls(f64), (sample_of(draw.choice(("float", "int", "stored")), draw),))
        if draw.boolean():
            to = draw.choice([dtype for dtype in DTYPES.values() if dtype.is_stored])
            mode = draw.choice(("up", "down", "nearest"))
            return Sample(cls(to, draw.boolean(), mode), (draw.floats(draw.shape(), -30.0, 600.0),))
        to = draw.choice([dtype for dtype in DTYPES.values() if dtype.kind not in ("float", "stored")])
        return Sample(cls(to), (sample_of(kind, draw),))


def sample_of(kind: str, draw: Draw) -> Array:
    """Values that every element type can hold, away from the steps of truncation."""
    shape = draw.shape()
    if kind == "float":
        return draw.floats(shape, 0.0, 3.0, avoid=(0.0, 1.0, 2.0, 3.0))
    if kind == "stored":
        dtype = draw.choice([dtype for dtype in DTYPES.values() if dtype.is_stored])
        return convert(draw.integers(shape, 1, 2), dtype)
    return draw.integers(shape, 0, 100) if kind == "int" else draw.booleans(shape)


@operator
@dataclass(frozen=True)
class CastLike(Operator):
    """x in the element type of a second operand, whose values do not matter."""

    saturate: bool = True
    round_mode: RoundMode = "up"

    setting_inputs: ClassVar[tuple[int, ...]] = (1,)

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2:
            raise self.fail(f"takes 2 operands, not {len(inputs)}", *inputs)
        return inputs[0].with_dtype(inputs[1].dtype)

    def reference(self, x: Array, like: Array) -> Array:
        return Cast(dtype_of(like.dtype), self.saturate, self.round_mode).reference(x)

    def decompose(self, x: Value, like: Value) -> Value:
        result: Value = Cast(like.dtype, self.saturate, self.round_mode)(x)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Half of the time between floats, the only kind that gradients pass."""
        kinds = ("float",) if draw.boolean() else ("float", "int", "bool", "stored")
        x, like = (sample_of(draw.choice(kinds), draw) for _ in range(2))
        return Sample(cls.draw_operator(draw), (x, like))
