"""Products, convolutions and activations in one, which the optimizers emit.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.ops.contraction.products import Gemm, MatMul, swapped
from glowtrain.ops.convolution.attributes import ConvAttributes
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.core.composite import Composite
from glowtrain.ops.elementwise.activation import Elu, Gelu, HardSigmoid, LeakyRelu, Relu, Sigmoid, Swish
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.microsoft.base import Microsoft
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.types import Array, Shape, TensorType, type_of

Parameters = tuple[float, ...]


def activated(x: Value, name: str, parameters: Sequence[float | None] = ()) -> Value:
    """An activation by the name that fused operators give it, with its parameters in order; ``None`` where one keeps
    its default."""
    given = {key: value for key, value in zip(("alpha", "beta"), parameters, strict=False) if value is not None}
    result: Value = x
    match name:
        case "Relu":
            result = Relu()(x)
        case "Tanh":
            result = Tanh()(x)
        case "Sigmoid":
            result = Sigmoid()(x)
        case "LeakyRelu":
            result = LeakyRelu(**given)(x)
        case "Elu":
            result = Elu(**given)(x)
        case "HardSigmoid":
            result = HardSigmoid(**given)(x)
        case "Clip":
            result = Clip()(x, *parameters[:2])
    return result


ACTIVATIONS = ("", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "HardSigmoid", "Clip")


def check_activation(op: Composite, name: str, *inputs: TensorType | None) -> None:
    """Raise for activations that fused operators do not have."""
    if name not in ACTIVATIONS:
        raise op.fail(f"activation {name!r} is not one of {', '.join(ACTIVATIONS[1:])}", *inputs)


@operator
@dataclass(frozen=True)
class FusedMatMul(Microsoft):
    """alpha A B; the last two axes of an operand may be swapped, and its row axis may come before its batch axes."""

    takes: ClassVar[tuple[int, int]] = (2, 2)
    alpha: float = 1.0
    transA: bool = False
    transB: bool = False
    transBatchA: bool = False
    transBatchB: bool = False

    def check(self, *inputs: TensorType | None) -> None:
        if any(x is None or x.rank < 1 for x in inputs):
            raise self.fail("A and B need at least one axis", *inputs)

    def define(self, *inputs: Any) -> Value:
        a, b = inputs
        left = _arranged(a, self.transA, self.transBatchA)
        product: Value = MatMul()(left, _arranged(b, self.transB, self.transBatchB))
        return product if self.alpha == 1 else product * self.alpha

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        m, k, n = draw.shape(3, 3, max_extent=4)
        batch = draw.shape(max_rank=2, max_extent=3)
        flags = [draw.boolean() for _ in range(4)]
        op = cls(draw.choice((1.0, 0.5)), *flags)
        a = _disarranged(draw, batch, m, k, op.transA, op.transBatchA)
        return Sample(op, (a, _disarranged(draw, batch, k, n, op.transB, op.transBatchB)))


def _arranged(x: Value, swap: bool, batch: bool) -> Value:
    if batch and x.rank > 2:
        x = Transpose((*range(1, x.rank - 1), 0, x.rank - 1))(x)
    return swapped(x) if swap and x.rank > 1 else x


def _disarranged(draw: Draw, batch: Shape, rows: int, columns: int, swap: bool, first: bool) -> Array:
    rows, columns = (columns, rows) if swap else (rows, columns)
    return draw.floats((rows, *batch, columns) if first else (*batch, rows, columns))


@operator
@dataclass(frozen=True)
class TransposeMatMul(Microsoft):
    """alpha A B, where the last two axes of an operand may be swapped (an older name of FusedMatMul)."""

    takes: ClassVar[tuple[int, int]] = (2, 2)
    alpha: float = 1.0
    transA: bool = False
    transB: bool = False

    def define(self, *inputs: Any) -> Value:
        result: Value = FusedMatMul(self.alpha, self.transA, self.transB)(*inputs)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        m, k, n = draw.shape(3, 3, max_extent=4)
        op = cls(draw.choice((1.0, 0.5)), draw.boolean(), draw.boolean())
        a = _disarranged(draw, (2,), m, k, op.transA, first=False)
        return Sample(op, (a, _disarranged(draw, (2,), k, n, op.transB, first=False)))


@operator
@dataclass(frozen=True)
class FusedConv(Microsoft, ConvAttributes):
    """activation(Conv(X, W, B) + Z)"""

    takes: ClassVar[tuple[int, int]] = (2, 4)
    activation: str = ""
    activation_params: Parameters = ()

    def check(self, *inputs: TensorType | None) -> None:
        check_activation(self, self.activation, *inputs)

    def define(self, *inputs: Any) -> Value:
        x, w, bias, addend = inputs
        y: Value = Conv(**self.of_convolution())(x, w, bias)
        return activated(y if addend is None else y + addend, self.activation, self.activation_params)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        plain = Conv.sample(draw)
        name, parameters = draw.choice(_SMOOTH)
        conv = cls(activation=name, activation_params=parameters, **plain.operator.attributes())
        y = conv.infer(*(None if x is None else type_of(np.asarray(x)) for x in plain.inputs))
        return Sample(conv, (*plain.inputs, draw.floats(y.shape) if draw.boolean() else None))


_SMOOTH = (("", ()), ("Tanh", ()), ("Sigmoid", ()), ("Elu", ()), ("HardSigmoid", (0.01,)), ("HardSigmoid", (0.01, 0.4)))
"""Activations that have no kink where samples lie, with their parameters."""


@operator
@dataclass(frozen=True)
class FusedGemm(Microsoft):
    """activation(alpha A' B' + beta C)"""

    takes: ClassVar[tuple[int, int]] = (2, 3)
    activation: str = ""
    activation_alpha: float | None = None
    activation_beta: float | None = None
    activation_gamma: float | None = None
    alpha: float = 1.0
    beta: float = 1.0
    transA: bool = False
    transB: bool = False

    def check(self, *inputs: TensorType | None) -> None:
        check_activation(self, self.activation, *inputs)

    def define(self, *inputs: Any) -> Value:
        y = Gemm(self.alpha, self.beta, self.transA, self.transB)(*inputs)
        return activated(y, self.activation, (self.activation_alpha, self.activation_beta))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        plain = Gemm.sample(draw)
        name, parameters = draw.choice(_SMOOTH)
        given = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
        return Sample(cls(activation=name, **given, **plain.operator.attributes()), plain.inputs)


class Smooth(Microsoft):
    """A function of each element, after a bias (of the last axis) is added."""

    takes: ClassVar[tuple[int, int]] = (1, 2)

    def define(self, *inputs: Any) -> Value:
        x, bias = inputs
        return self.apply(x if bias is None else x + bias)

    def apply(self, x: Value) -> Value:
        """The function."""
        raise NotImplementedError

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape(min_rank=1))
        bias = draw.floats(x.shape[-1:]) if cls.takes[1] > 1 and (cls.takes[0] > 1 or draw.boolean()) else None
        return Sample(cls.draw_operator(draw), (x,) if bias is None else (x, bias))


@operator
@dataclass(frozen=True)
class MicrosoftGelu(Smooth):
    """x · Φ(x)"""

    onnx: ClassVar[str] = "Gelu"
    takes: ClassVar[tuple[int, int]] = (1, 1)

    def define(self, *inputs: Any) -> Value:
        return self.apply(inputs[0])

    def apply(self, x: Value) -> Value:
        result: Value = Gelu()(x)
        return result


@operator
@dataclass(frozen=True)
class BiasGelu(Smooth):
    """Gelu of A + B"""

    takes: ClassVar[tuple[int, int]] = (2, 2)

    def apply(self, x: Value) -> Value:
        result: Value = Gelu()(x)
        return result


@operator
@dataclass(frozen=True)
class FastGelu(Smooth):
    """Gelu by its approximation with tanh, after an optional bias is added."""

    def apply(self, x: Value) -> Value:
        result: Value = Gelu("tanh")(x)
        return result


@operator
@dataclass(frozen=True)
class QuickGelu(Smooth):
    """x / (1 + exp(-alpha · x))"""

    takes: ClassVar[tuple[int, int]] = (1, 1)
    alpha: float = 1.702

    def define(self, *inputs: Any) -> Value:
        return self.apply(inputs[0])

    def apply(self, x: Value) -> Value:
        result: Value = Swish(self.alpha)(x)
        return result


@operator
@dataclass(frozen=True)
class BiasSoftmax(Microsoft):
    """Softmax over all axes from ``axis`` on of data + bias.

    The bias broadcasts as in NumPy, or (``is_inner_broadcast`` false: over the first axes; true: over the axes between
    the batch axis and ``axis``) has extents of 1 there.
    """

    takes: ClassVar[tuple[int, int]] = (2, 2)
    is_inner_broadcast: bool
    axis: int = 1

    def check(self, *inputs: TensorType | None) -> None:
        x = inputs[0]
        if x is None or not -x.rank <= self.axis < x.rank:
            raise self.fail(f"axis {self.axis} is none of the operand's", *inputs)

    def define(self, *inputs: Any) -> Value:
        x, bias = inputs
        y = x + bias
        axis = self.axis % x.rank
        flat: Value = Softmax()(reshape(y, (*x.shape[:axis], math.prod(x.shape[axis:]))))
        return reshape(flat, x.shape)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=2)
        axis = draw.integer(1, len(shape) - 1)
        inner = draw.boolean()
        bias = tuple(1 if (0 < a < axis if inner else a < axis) else n for a, n in enumerate(shape))
        return Sample(cls(inner, axis), (draw.floats(shape), draw.floats(bias)))
