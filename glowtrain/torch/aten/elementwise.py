"""Elementwise operators: arithmetic, comparisons, activations, choices, conversions.

Operands are first converted to the type that ATen promotes them to; results have that of PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from glowtrain.graph import Value
from glowtrain.ops.elementwise import activation, arithmetic, logic, transcendental
from glowtrain.ops.elementwise.extrema import Clip, Max, Min
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.tensor.move import Expand
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import boolean

UNARY: dict[str, Callable[[], Callable[[Value], Any]]] = {
    "abs": arithmetic.Abs,
    "acos": transcendental.Acos,
    "acosh": transcendental.Acosh,
    "asin": transcendental.Asin,
    "asinh": transcendental.Asinh,
    "atan": transcendental.Atan,
    "atanh": transcendental.Atanh,
    "ceil": arithmetic.Ceil,
    "cos": transcendental.Cos,
    "cosh": transcendental.Cosh,
    "erf": transcendental.Erf,
    "exp": transcendental.Exp,
    "floor": arithmetic.Floor,
    "log": transcendental.Log,
    "mish": activation.Mish,
    "neg": arithmetic.Neg,
    "reciprocal": arithmetic.Reciprocal,
    "relu": activation.Relu,
    "round": arithmetic.Round,
    "selu": activation.Selu,
    "sigmoid": activation.Sigmoid,
    "sign": arithmetic.Sign,
    "silu": activation.Swish,
    "sin": transcendental.Sin,
    "sinh": transcendental.Sinh,
    "sqrt": arithmetic.Sqrt,
    "tan": transcendental.Tan,
    "tanh": transcendental.Tanh,
}
"""Functions of one operand, each an operator of ours."""

BINARY: dict[str, Callable[[], Callable[[Value, Value], Any]]] = {
    "maximum": Max,
    "minimum": Min,
    "mul": arithmetic.Mul,
}

COMPARISONS: dict[str, Callable[[], Callable[[Value, Value], Any]]] = {
    "eq": logic.Equal,
    "ge": logic.GreaterOrEqual,
    "gt": logic.Greater,
    "le": logic.LessOrEqual,
    "lt": logic.Less,
}


def _enter_unary(name: str, operator: Callable[[], Callable[[Value], Any]]) -> None:
    aten(f"{name}.default")(lambda call, x: operator()(call.cast(x)))


def _enter_binary(name: str, operator: Callable[[], Callable[[Value, Value], Any]]) -> None:
    names = [f"{name}.default"] if name in ("maximum", "minimum") else [f"{name}.Tensor", f"{name}.Scalar"]
    aten(*names)(lambda call, x, y: operator()(call.cast(x), call.cast(y)))


def _enter_comparison(name: str, operator: Callable[[], Callable[[Value, Value], Any]]) -> None:
    aten(f"{name}.Tensor", f"{name}.Scalar")(lambda call, x, y: operator()(*call.promoted(x, y)))


for _name, _unary in UNARY.items():
    _enter_unary(_name, _unary)
for _name, _binary in BINARY.items():
    _enter_binary(_name, _binary)
for _name, _comparison in COMPARISONS.items():
    _enter_comparison(_name, _comparison)


@aten("sinc.default")
def sinc(call: AtenCall, x: Value) -> Any:
    """sin(πx) / πx; at 0 it is 1, and its slope 0."""
    angle = call.cast(x) * call.cast(math.pi)
    zero = logic.Equal()(angle, call.cast(0))
    nonzero = logic.Where()(zero, call.cast(1), angle)
    return logic.Where()(zero, call.cast(1), transcendental.Sin()(nonzero) / nonzero)


@aten("ne.Tensor", "ne.Scalar")
def ne(call: AtenCall, x: Any, y: Any) -> Any:
    return ~logic.Equal()(*call.promoted(x, y))


@aten("add.Tensor", "add.Scalar")
def add(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    return call.cast(x) + _scaled(call, y, alpha)


@aten("sub.Tensor", "sub.Scalar")
def sub(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    return call.cast(x) - _scaled(call, y, alpha)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    return call.cast(y) - _scaled(call, x, alpha)


def _scaled(call: AtenCall, y: Any, alpha: Any) -> Value:
    return call.cast(y) if alpha == 1 else call.cast(y) * call.cast(alpha)


@aten("div.Tensor", "div.Scalar")
def div(call: AtenCall, x: Any, y: Any) -> Any:
    return call.cast(x) / call.cast(y)


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(call: AtenCall, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    quotient = call.cast(x) / call.cast(y)
    if rounding_mode == "floor":
        return floor_divide(call, x, y)
    return quotient if rounding_mode is None or not call.dtype.is_float else _trunc(quotient)


@aten("floor_divide.default", "floor_divide.Scalar")
def floor_divide(call: AtenCall, x: Any, y: Any) -> Any:
    x, y = call.cast(x), call.cast(y)
    if call.dtype.is_float:
        return arithmetic.Floor()(x / y)
    return (x - arithmetic.Mod()(x, y)) / y


@aten("trunc.default", "fix.default")
def trunc(call: AtenCall, x: Value) -> Any:
    return _trunc(x)


def _trunc(x: Value) -> Value:
    result: Value = logic.Where()(x < 0, arithmetic.Ceil()(x), arithmetic.Floor()(x))
    return result


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(call: AtenCall, x: Any, y: Any) -> Any:
    x, y = call.cast(x), call.cast(y)
    return x - arithmetic.Floor()(x / y) * y if call.dtype.is_float else arithmetic.Mod()(x, y)


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(call: AtenCall, x: Any, y: Any) -> Any:
    return arithmetic.Mod(fmod=True)(call.cast(x), call.cast(y))


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(call: AtenCall, x: Any, exponent: Any) -> Any:
    """Small whole exponents are products, and halves square roots: exact, and cheaper."""
    base = call.cast(x)
    if isinstance(exponent, (int, float)):
        if exponent in (1, 2, 3):
            return base if exponent == 1 else base * base if exponent == 2 else base * base * base
        if exponent in (0.5, -0.5) and call.dtype.is_float:
            root = arithmetic.Sqrt()(base)
            return root if exponent > 0 else arithmetic.Reciprocal()(root)
    return arithmetic.Pow()(base, call.cast(exponent))


@aten("square.default")
def square(call: AtenCall, x: Value) -> Any:
    return x * x


@aten("rsqrt.default")
def rsqrt(call: AtenCall, x: Value) -> Any:
    return arithmetic.Reciprocal()(arithmetic.Sqrt()(call.cast(x)))


@aten("exp2.default")
def exp2(call: AtenCall, x: Value) -> Any:
    return transcendental.Exp()(call.cast(x) * math.log(2))


@aten("expm1.default")
def expm1(call: AtenCall, x: Value) -> Any:
    """2 sinh(x/2) exp(x/2), which keeps the digits of small x."""
    half = call.cast(x) * 0.5
    return 2.0 * transcendental.Sinh()(half) * transcendental.Exp()(half)


@aten("log1p.default")
def log1p(call: AtenCall, x: Value) -> Any:
    """2 artanh(x / (x + 2)), which keeps the digits of small x."""
    x = call.cast(x)
    small = 2.0 * transcendental.Atanh()(x / (x + 2.0))
    return logic.Where()(arithmetic.Abs()(x) < 0.5, small, transcendental.Log()(x + 1.0))


@aten("log2.default")
def log2(call: AtenCall, x: Value) -> Any:
    return transcendental.Log()(call.cast(x)) * (1 / math.log(2))


@aten("log10.default")
def log10(call: AtenCall, x: Value) -> Any:
    return transcendental.Log()(call.cast(x)) * (1 / math.log(10))


@aten("erfc.default")
def erfc(call: AtenCall, x: Value) -> Any:
    """1 - erf(x), which loses the digits of results near 0: those of x above 4 or so."""
    return 1.0 - transcendental.Erf()(call.cast(x))


@aten("logaddexp.default")
def logaddexp(call: AtenCall, x: Value, y: Value) -> Any:
    x, y = call.cast(x), call.cast(y)
    return Max()(x, y) + activation.Softplus()(-arithmetic.Abs()(x - y))


@aten("log_sigmoid.default")
def log_sigmoid(call: AtenCall, x: Value) -> Any:
    return -activation.Softplus()(-x)


@aten("log_sigmoid_forward.default")
def log_sigmoid_forward(call: AtenCall, x: Value) -> Any:
    """And nothing for what only PyTorch's own gradient reads."""
    return log_sigmoid(call, x), None


@aten("hypot.default")
def hypot(call: AtenCall, x: Value, y: Value) -> Any:
    x, y = call.cast(x), call.cast(y)
    return arithmetic.Sqrt()(x * x + y * y)


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(call: AtenCall, x: Value, y: Any) -> Any:
    """The sign of y, which zeros have too: that of their reciprocal."""
    size, y = arithmetic.Abs()(call.cast(x)), call.cast(y)
    zero = logic.Equal()(y, call.cast(0))
    negative = logic.Where()(zero, 1.0 / y, y) < 0
    return logic.Where()(negative, -size, size)


@aten("fmax.default")
def fmax(call: AtenCall, x: Value, y: Value) -> Any:
    """The larger one, or the one that is a number."""
    x, y = call.cast(x), call.cast(y)
    return logic.Where()(logic.IsNaN()(x), y, logic.Where()(logic.IsNaN()(y), x, Max()(x, y)))


@aten("fmin.default")
def fmin(call: AtenCall, x: Value, y: Value) -> Any:
    x, y = call.cast(x), call.cast(y)
    return logic.Where()(logic.IsNaN()(x), y, logic.Where()(logic.IsNaN()(y), x, Min()(x, y)))


@aten("gelu.default")
def gelu(call: AtenCall, x: Value, approximate: Any = "none") -> Any:
    return activation.Gelu(approximate=approximate)(x)


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
    return result if scale == 1 else logic.Where()(x > 0, x * scale, result * scale)


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
    return logic.Where()(x > call.cast(threshold), x, call.cast(value))


@aten("hardshrink.default")
def hardshrink(call: AtenCall, x: Value, lambd: float = 0.5) -> Any:
    return activation.Shrink(bias=0.0, lambd=lambd)(x)


@aten("softshrink.default")
def softshrink(call: AtenCall, x: Value, lambd: float = 0.5) -> Any:
    return activation.Shrink(bias=lambd, lambd=lambd)(x)


@aten("glu.default")
def glu(call: AtenCall, x: Value, dim: int = -1) -> Any:
    axis, half = dim % x.rank, x.shape[dim] // 2
    before: tuple[slice, ...] = (slice(None),) * axis
    value, gate = x[(*before, slice(None, half))], x[(*before, slice(half, None))]
    return value * activation.Sigmoid()(gate)


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


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(call: AtenCall, condition: Value, x: Any, y: Any) -> Any:
    return logic.Where()(as_type(condition, boolean), call.cast(x), call.cast(y))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: AtenCall, x: Value, mask: Value, value: Any) -> Any:
    return logic.Where()(mask, call.cast(value), x)


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(call: AtenCall, start: Value, end: Value, weight: Any) -> Any:
    return start + call.cast(weight) * (end - start)


@aten("addcmul.default")
def addcmul(call: AtenCall, x: Value, first: Value, second: Value, value: Any = 1) -> Any:
    product = first * second
    return x + (product if value == 1 else product * call.cast(value))


@aten("addcdiv.default")
def addcdiv(call: AtenCall, x: Value, first: Value, second: Value, value: Any = 1) -> Any:
    quotient = first / second
    return x + (quotient if value == 1 else quotient * call.cast(value))


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


@aten("atan2.default")
def atan2(call: AtenCall, y: Value, x: Value) -> Any:
    """The angle of the point (x, y), from the right half plane's by which quadrant it is in."""
    y, x = call.cast(y), call.cast(x)
    upright = logic.Equal()(x, call.cast(0))
    inner = transcendental.Atan()(y / logic.Where()(upright, call.cast(1), x))
    side = logic.Where()(y < 0, call.cast(-math.pi), call.cast(math.pi))
    left = logic.Where()(x < 0, inner + side, inner)
    on_axis = logic.Where()(logic.Equal()(y, call.cast(0)), call.cast(0), side * 0.5)
    return logic.Where()(upright, on_axis, left)


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


@aten("__lshift__.Scalar", "__lshift__.Tensor", "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar")
def left_shift(call: AtenCall, x: Value, bits: Any) -> Any:
    return call.cast(x) * arithmetic.Pow()(call.cast(2), call.cast(bits))


@aten("__rshift__.Scalar", "__rshift__.Tensor", "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar")
def right_shift(call: AtenCall, x: Value, bits: Any) -> Any:
    """Towards minus infinity, as shifts of numbers in two's complement are."""
    return floor_divide(call, x, arithmetic.Pow()(call.cast(2), call.cast(bits)))


@aten("detach.default")
def detach(call: AtenCall, x: Value) -> Any:
    """A constant to differentiation; what is no float is one anyway."""
    return StopGradient()(x) if x.dtype.is_float else x


@aten("copy.default")
def copy(call: AtenCall, x: Value, source: Value, non_blocking: bool = False) -> Any:
    source = call.cast(source)
    return source if source.shape == call.shape else Expand(shape=call.shape)(source)
