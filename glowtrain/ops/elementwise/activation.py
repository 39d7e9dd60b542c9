"""Activation functions.

f16 and bf16 are computed in f32 and rounded once. Rules use the result instead of the operand where they can (Relu,
Elu, Sigmoid, ...): that leaves one tensor less to keep for the backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Draw, Sample, Value, attribute, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, call, cast, select
from glowtrain.ops.core.family import Elementwise, Grads, broadcast_shapes, broadcastable
from glowtrain.ops.elementwise.arithmetic import SIGNED, Abs
from glowtrain.ops.elementwise.cast import convert
from glowtrain.ops.elementwise.logic import NUMERIC, Where
from glowtrain.ops.elementwise.transcendental import Erf, Exp, Tanh, erf
from glowtrain.types import Array, TensorType, dtype_of, f64


class Activation(Elementwise):
    """A function of one operand, given for f32 and f64 arrays by ``function``."""

    quantized: ClassVar[Quantized] = "rescales"

    def function(self, x: Array) -> Array:
        """The values, in the element type of ``x`` (a float of at least 32 bits, or an integer)."""
        raise NotImplementedError

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float32) if x.dtype.kind not in "biu" and x.dtype.itemsize == 2 else x
        return self.function(wide).astype(x.dtype)


@operator
@dataclass(frozen=True)
class Relu(Activation):
    """max(x, 0); the gradient at 0 is 0."""

    quantized: ClassVar[Quantized] = "clips"
    kinds: ClassVar[frozenset[str]] = SIGNED
    kinks: ClassVar[tuple[float, ...]] = (0.0,)

    def function(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Where()(y > 0.0, g, 0.0),)

    def scalar(self, x: Expr) -> Expr:
        return call("max", x, 0)


@operator
@dataclass(frozen=True)
class LeakyRelu(Activation):
    """x where x > 0, otherwise alpha · x; the gradient at 0 is alpha."""

    alpha: float = attribute(0.01, choices=(0.0, 0.3, 1.0, -0.5, 2.0))
    kinks: ClassVar[tuple[float, ...]] = (0.0,)

    def function(self, x: Array) -> Array:
        return np.where(x > 0, x, x * self.alpha)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Where()(x > 0.0, g, g * self.alpha),)

    def scalar(self, x: Expr) -> Expr:
        return select(x > 0, x, x * self.alpha)


@operator
@dataclass(frozen=True)
class PRelu(Elementwise):
    """x where x > 0, otherwise slope · x, with a slope that broadcasts to x; at 0 the gradient is the slope's."""

    kinds: ClassVar[frozenset[str]] = NUMERIC
    arity: ClassVar[int] = 2

    def infer(self, *inputs: TensorType) -> TensorType:
        self.check_operands(*inputs)
        x, slope = inputs
        try:
            fits = broadcast_shapes([x.shape, slope.shape]) == x.shape
        except ShapeError:
            fits = False
        if not fits:
            raise self.fail(f"a slope of shape {slope.shape} does not broadcast to {x.shape}", *inputs)
        return x

    def reference(self, x: Array, slope: Array) -> Array:
        return np.where(x > 0, x, x * slope)

    def vjp(self, g: Value, y: Value, x: Value, slope: Value) -> Grads:
        positive = x > 0.0
        return Where()(positive, g, g * slope), Where()(positive, 0.0, g * x)

    def scalar(self, x: Expr, slope: Expr) -> Expr:
        return select(x > 0, x, x * slope)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        return Sample(cls(), (draw.floats(shape, avoid=(0.0,)), draw.floats(broadcastable(draw, shape))))


@operator
@dataclass(frozen=True)
class Elu(Activation):
    """x where x > 0, otherwise alpha · (exp(x) - 1) (Clevert et al., 2015); the gradient at 0 is alpha."""

    alpha: float = attribute(1.0, choices=(0.0, 0.3, -0.5, 2.0))

    def function(self, x: Array) -> Array:
        return np.where(x > 0, x, np.expm1(x) * self.alpha)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Where()(x > 0.0, g, g * (y + self.alpha)),)

    def scalar(self, x: Expr) -> Expr:
        return select(x > 0, x, call("expm1", x) * self.alpha)

    def nonsmooth(self) -> tuple[float, ...]:
        return (0.0,) if self.alpha != 1 else ()


@operator
@dataclass(frozen=True)
class Selu(Activation):
    """gamma · x where x > 0, otherwise gamma · alpha · (exp(x) - 1) (Klambauer et al., 2017); at 0: the left slope."""

    alpha: float = attribute(1.67326319217681884765625, choices=(0.5, -1.0))
    gamma: float = attribute(1.05070102214813232421875, choices=(2.0, -0.5))
    kinks: ClassVar[tuple[float, ...]] = (0.0,)

    def function(self, x: Array) -> Array:
        return np.where(x > 0, x * self.gamma, np.expm1(x) * (self.gamma * self.alpha))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Where()(x > 0.0, g * self.gamma, g * (y + self.gamma * self.alpha)),)

    def scalar(self, x: Expr) -> Expr:
        return select(x > 0, x * self.gamma, call("expm1", x) * (self.gamma * self.alpha))


@operator
@dataclass(frozen=True)
class Celu(Activation):
    """max(x, 0) + min(0, alpha · (exp(x / alpha) - 1)) (Barron, 2017); differentiable everywhere."""

    alpha: float = attribute(1.0, choices=(0.4, 2.0, -0.8))

    def infer(self, *inputs: TensorType) -> TensorType:
        if self.alpha == 0:
            raise self.fail("alpha must not be 0", *inputs)
        return super().infer(*inputs)

    def function(self, x: Array) -> Array:
        return np.where(x > 0, x, np.expm1(x / self.alpha) * self.alpha)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Where()(x > 0.0, g, g * (y / self.alpha + 1.0)),)

    def scalar(self, x: Expr) -> Expr:
        return select(x > 0, x, call("expm1", x / self.alpha) * self.alpha)


@operator
@dataclass(frozen=True)
class Gelu(Activation):
    """x · Φ(x) with the normal distribution function Φ (Hendrycks and Gimpel, 2016).

    ``approximate="none"``: Φ = (1 + erf(x/√2)) / 2. ``"tanh"``: Φ ≈ (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2.
    """

    approximate: Literal["none", "tanh"] = "none"

    def infer(self, *inputs: TensorType) -> TensorType:
        if self.approximate not in ("none", "tanh"):
            raise self.fail('approximate must be "none" or "tanh"', *inputs)
        return super().infer(*inputs)

    def function(self, x: Array) -> Array:
        exact = self.approximate == "none"
        twice: Array = x * (1 + (erf(x * math.sqrt(0.5)) if exact else np.tanh(_tanh_argument(x))))
        return twice * 0.5

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        """Φ + x · Φ'."""
        if self.approximate == "none":
            phi = (Erf()(x * math.sqrt(0.5)) + 1.0) * 0.5
            return (g * (phi + x * Exp()(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))),)
        t = Tanh()(_tanh_argument(x))
        slope = (1.0 - t * t) * (x * x * (3 * _CUBIC) + 1.0) * math.sqrt(2 / math.pi)
        return (g * ((t + 1.0) * 0.5 + x * slope * 0.5),)

    def decompose(self, x: Value) -> Value:
        exact = self.approximate == "none"
        phi: Value = Erf()(x * math.sqrt(0.5)) if exact else Tanh()(_tanh_argument(x))
        return x * (phi + 1.0) * 0.5

    def scalar(self, x: Expr) -> Expr:
        if self.approximate == "none":
            return x * (call("erf", x * math.sqrt(0.5)) + 1) * 0.5
        return x * (call("tanh", _tanh_argument(x)) + 1) * 0.5


_CUBIC = 0.044715


def _tanh_argument(x: Any) -> Any:
    return (x + x * x * x * _CUBIC) * math.sqrt(2 / math.pi)


@operator
@dataclass(frozen=True)
class Sigmoid(Activation):
    """1 / (1 + exp(-x))"""

    def function(self, x: Array) -> Array:
        return sigmoid(x)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * y * (1.0 - y),)

    def scalar(self, x: Expr) -> Expr:
        return call("sigmoid", x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow: only exponentials of numbers ≤ 0 are taken."""
    decay = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, decay) / (1 + decay)
    return result


@operator
@dataclass(frozen=True)
class HardSigmoid(Activation):
    """max(0, min(1, alpha · x + beta)); the gradient is 0 at both ends of the slope."""

    alpha: float = attribute(0.2, choices=(1 / 6, -0.4, 0.0))
    beta: float = attribute(0.5, choices=(0.6, 0.0, 1.5))
    domain_range: ClassVar[tuple[float, float]] = (-4.0, 4.0)

    def function(self, x: Array) -> Array:
        return np.maximum(0, np.minimum(1, x * self.alpha + self.beta))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Where()((y > 0.0) & (y < 1.0), g * self.alpha, 0.0),)

    def scalar(self, x: Expr) -> Expr:
        return call("max", call("min", x * self.alpha + self.beta, 1), 0)

    def nonsmooth(self) -> tuple[float, ...]:
        return (-self.beta / self.alpha, (1 - self.beta) / self.alpha) if self.alpha else ()


@operator
@dataclass(frozen=True)
class HardSwish(Activation):
    """x · max(0, min(1, x/6 + 1/2)) (Howard et al., 2019); at ±3 the gradient is that of the straight part outside."""

    kinks: ClassVar[tuple[float, ...]] = (-3.0, 3.0)
    domain_range: ClassVar[tuple[float, float]] = (-5.0, 5.0)

    def function(self, x: Array) -> Array:
        return x * np.maximum(0, np.minimum(1, x * (1 / 6) + 0.5))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        inside = Where()(x < 3.0, g * (x * (1 / 3) + 0.5), g)
        return (Where()(x > -3.0, inside, 0.0),)

    def decompose(self, x: Value) -> Value:
        gate: Value = HardSigmoid(alpha=1 / 6, beta=0.5)(x)
        return x * gate

    def scalar(self, x: Expr) -> Expr:
        return x * call("max", call("min", x * (1 / 6) + 0.5, 1), 0)


@operator
@dataclass(frozen=True)
class Swish(Activation):
    """x · sigmoid(alpha · x) (Ramachandran et al., 2017); SiLU for alpha 1."""

    alpha: float = attribute(1.0, choices=(1.702, -0.5, 0.0))

    def function(self, x: Array) -> Array:
        return x * sigmoid(x * self.alpha)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        s = Sigmoid()(x * self.alpha)
        return (g * (s + y * (1.0 - s) * self.alpha),)

    def decompose(self, x: Value) -> Value:
        gate: Value = Sigmoid()(x * self.alpha)
        return x * gate

    def scalar(self, x: Expr) -> Expr:
        return x * call("sigmoid", x * self.alpha)


@operator
@dataclass(frozen=True)
class Mish(Activation):
    """x · tanh(softplus(x)) (Misra, 2019)"""

    def function(self, x: Array) -> Array:
        return x * np.tanh(softplus(x))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        t = Tanh()(Softplus()(x))
        return (g * (t + x * (1.0 - t * t) * Sigmoid()(x)),)

    def decompose(self, x: Value) -> Value:
        gate: Value = Tanh()(Softplus()(x))
        return x * gate

    def scalar(self, x: Expr) -> Expr:
        return x * call("tanh", call("softplus", x))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    result: Array = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return result


@operator
@dataclass(frozen=True)
class Softplus(Activation):
    """log(1 + exp(x))"""

    def function(self, x: Array) -> Array:
        return softplus(x)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g * Sigmoid()(x),)

    def scalar(self, x: Expr) -> Expr:
        return call("softplus", x)


@operator
@dataclass(frozen=True)
class Softsign(Activation):
    """x / (1 + |x|)"""

    def function(self, x: Array) -> Array:
        result: Array = np.divide(x, 1 + np.abs(x))
        return result

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        scale = Abs()(x) + 1.0
        return (g / (scale * scale),)

    def scalar(self, x: Expr) -> Expr:
        return x / (call("abs", x) + 1)


@operator
@dataclass(frozen=True)
class ThresholdedRelu(Activation):
    """x where x > alpha, otherwise 0 (Konda et al., 2014); the gradient at alpha is 0."""

    alpha: float = attribute(1.0, choices=(0.0, -0.5))

    def function(self, x: Array) -> Array:
        return np.where(x > self.alpha, x, 0)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Where()(x > self.alpha, g, 0.0),)

    def scalar(self, x: Expr) -> Expr:
        return select(x > self.alpha, x, 0)

    def nonsmooth(self) -> tuple[float, ...]:
        return (self.alpha,)


@operator
@dataclass(frozen=True)
class Shrink(Activation):
    """x + bias below -lambd, x - bias above lambd, 0 between; the gradient at ±lambd is 0.

    Integers are computed in f64 and cut off towards 0.
    """

    bias: float = attribute(0.0, choices=(0.5, 1.5, -0.5))
    lambd: float = attribute(0.5, choices=(1.5, 0.0))
    kinds: ClassVar[frozenset[str]] = NUMERIC

    def function(self, x: Array) -> Array:
        wide = x.astype(np.float64) if x.dtype.kind in "iu" else x
        y = np.where(wide < -self.lambd, wide + self.bias, np.where(wide > self.lambd, wide - self.bias, 0))
        return y if wide is x else convert(y, dtype_of(x.dtype))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Where()((x < -self.lambd) | (x > self.lambd), g, 0.0),)

    def scalar(self, x: Expr) -> Expr:
        wide = x if x.dtype.is_float else cast(x, f64)
        above = select(wide > self.lambd, wide - self.bias, 0)
        return cast(select(wide < -self.lambd, wide + self.bias, above), x.dtype)

    def nonsmooth(self) -> tuple[float, ...]:
        return (-self.lambd, self.lambd)
