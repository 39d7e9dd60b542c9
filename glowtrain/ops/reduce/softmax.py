"""Softmax, its logarithm, and Hardmax: row programs along one axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, For, Let, Ref, Statement, Tensor, call, cast, indices_of, reduce, select
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.elementwise.logic import And, Equal, IsNaN, Where
from glowtrain.ops.elementwise.transcendental import Exp
from glowtrain.ops.reduce.reduction import ReduceSum, accumulator, row_sum, widened
from glowtrain.types import Array, TensorType

Element = Callable[[Expr], Expr]


@dataclass(frozen=True)
class RowFunction(Operator):
    """A function of the elements along ``axis`` that gives as many results (ONNX opset 13 and later: one axis)."""

    axis: int = -1

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        if not x.dtype.is_float:
            raise self.fail(f"element type must be float, not {x.dtype}", x)
        normalize_axis(self, self.axis, x)
        return x

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (y,) = inputs, outputs
        axis, extent = self.axis % len(x.shape), x.shape[self.axis]
        outer = indices_of((*x.shape[:axis], *x.shape[axis + 1 :]))
        (k,) = indices_of((extent,), "k")

        def element(position: Expr) -> Expr:
            return cast(x[[*outer[:axis], position, *outer[axis:]]], accumulator(x.dtype))

        lets, result = self.row(extent, element)
        store = y.store([*outer[:axis], k, *outer[axis:]], result(k))
        return [For(outer, (*lets, For((k,), (store,))))]

    def row(self, extent: int, element: Element) -> tuple[list[Statement], Element]:
        """What a row needs first, and its results by position."""
        raise NotImplementedError

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1)
        return Sample(cls(draw.integer(-len(shape), len(shape) - 1)), (draw.floats(shape),))


@operator
@dataclass(frozen=True)
class Softmax(RowFunction):
    """y = exp(x - max(x)) / sum(exp(x - max(x))) along ``axis``. A row of only -inf gives NaN.

    Models replace such a row, which is masked whole, by zeros: the gradient is 0 where nothing reads its NaN.
    """

    quantized: ClassVar[Quantized] = "rescales"

    def reference(self, x: Array) -> Array:
        wide = widened(x)
        powers = np.exp(wide - np.max(wide, axis=self.axis, keepdims=True, initial=-np.inf))
        return np.asarray((powers / np.sum(powers, axis=self.axis, keepdims=True)).astype(x.dtype))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        zero = constant(0.0, y.dtype)
        unread = And()(IsNaN()(y), Equal()(g, zero))
        y = Where()(unread, zero, y)
        weighted = g * y
        return (weighted - y * ReduceSum(axes=(self.axis,))(weighted),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        """Where the result is as exact as the sum, powers wait in it: exp is what a row takes long for."""
        (x,), (y,) = inputs, outputs
        if accumulator(x.dtype) != y.dtype:
            return super().lower(outputs, *inputs)
        axis, extent = self.axis % len(x.shape), x.shape[self.axis]
        outer = indices_of((*x.shape[:axis], *x.shape[axis + 1 :]))
        first, second = indices_of((extent, extent), "k")

        def at(k: Expr) -> list[Expr]:
            return [*outer[:axis], k, *outer[axis:]]

        peak, scale = Ref(y.dtype, "peak"), Ref(y.dtype, "scale")
        body = (
            Let(peak, reduce("max", (extent,), lambda r: x[at(r)])),
            For((first,), (y.store(at(first), call("exp", x[at(first)] - peak)),)),
            Let(scale, 1.0 / row_sum((extent,), lambda r: y[at(r)])),
            For((second,), (y.store(at(second), y[at(second)] * scale),)),
        )
        return [For(outer, body)]

    def row(self, extent: int, element: Element) -> tuple[list[Statement], Element]:
        dtype = element(indices_of((extent,))[0]).dtype
        peak, scale = Ref(dtype, "peak"), Ref(dtype, "scale")
        lets: list[Statement] = [
            Let(peak, reduce("max", (extent,), element)),
            Let(scale, 1.0 / row_sum((extent,), lambda r: call("exp", element(r) - peak))),
        ]
        return lets, lambda k: call("exp", element(k) - peak) * scale


@operator
@dataclass(frozen=True)
class LogSoftmax(RowFunction):
    """y = x - max(x) - log(sum(exp(x - max(x)))) along ``axis``."""

    def reference(self, x: Array) -> Array:
        wide = widened(x)
        shifted = wide - np.max(wide, axis=self.axis, keepdims=True, initial=-np.inf)
        return np.asarray((shifted - np.log(np.sum(np.exp(shifted), axis=self.axis, keepdims=True))).astype(x.dtype))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g - Exp()(y) * ReduceSum(axes=(self.axis,))(g),)

    def row(self, extent: int, element: Element) -> tuple[list[Statement], Element]:
        dtype = element(indices_of((extent,))[0]).dtype
        peak, log_sum = Ref(dtype, "peak"), Ref(dtype, "log_sum")
        lets: list[Statement] = [
            Let(peak, reduce("max", (extent,), element)),
            Let(log_sum, call("log", row_sum((extent,), lambda r: call("exp", element(r) - peak)))),
        ]
        return lets, lambda k: element(k) - peak - log_sum


@operator
@dataclass(frozen=True)
class Hardmax(RowFunction):
    """1 at the first largest element along ``axis``, 0 elsewhere."""

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "it is piecewise constant"

    def reference(self, x: Array) -> Array:
        extent = x.shape[self.axis]
        if extent == 0:
            return x.copy()
        position = np.expand_dims(np.argmax(widened(x), axis=self.axis), self.axis)
        positions = np.arange(extent).reshape([-1] + [1] * (x.ndim - 1 - self.axis % x.ndim))
        return np.asarray((positions == position).astype(x.dtype))

    def row(self, extent: int, element: Element) -> tuple[list[Statement], Element]:
        lets, position = first_largest(extent, element)
        return lets, lambda k: cast(call("eq", k, position), element(k).dtype)


def first_largest(extent: int, element: Element) -> tuple[list[Statement], Expr]:
    """The position of the first largest element of a row (of the first NaN, where there is one)."""
    best, position = Ref(element(indices_of((extent,))[0]).dtype, "best"), Ref(indices_of((1,))[0].dtype, "place")

    def candidate(r: Expr) -> Expr:
        hit = call("eq", element(r), best) | call("isnan", element(r))
        return select(hit, r, extent)

    return [Let(best, reduce("max", (extent,), element)), Let(position, reduce("min", (extent,), candidate))], position
