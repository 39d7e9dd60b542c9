"""Running products, and the linear recurrence that is their gradient.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.graph import Draw, Graph, Input, Operator, Sample, Value, constant, operator
from glowtrain.loops import Expr, Statement, Tensor
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.indexing.arg_extrema import Cumulative, running
from glowtrain.ops.tensor.move import Expand, pad
from glowtrain.types import Array, TensorType


def shifted(x: Value, axis: int, steps: int) -> Value:
    """x[k - ``steps``] along ``axis`` (1 or -1 step), zero where that is outside."""
    before = [steps * (position == axis % x.rank) for position in range(x.rank)]
    return pad(x, [*before, *(-step for step in before)])


def _along(x: Array, axis: int, reverse: bool) -> Array:
    """A view whose axis 0 runs along ``axis``, from the end where ``reverse``."""
    front = np.moveaxis(x, axis, 0)
    return front[::-1] if reverse else front


@operator
@dataclass(frozen=True)
class LinearRecurrence(Operator):
    """y[k] = a[k] y[k - 1] + b[k] along ``axis``, from y[-1] = 0; with ``reverse`` from the end: y[k + 1] for y[k - 1].

    Operands: a and b, of one float type. The gradient is the same recurrence backwards.
    """

    axis: int
    reverse: bool = False

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 2 or inputs[0] != inputs[1] or not inputs[0].dtype.is_float:
            raise self.fail("takes a and b, of one floating type and shape", *inputs)
        normalize_axis(self, self.axis, inputs[0])
        return inputs[0]

    def reference(self, a: Array, b: Array) -> Array:
        y = np.zeros_like(b)
        factors, terms, results = (_along(x, self.axis, self.reverse) for x in (a, b, y))
        last = np.zeros_like(terms[:1].sum(0))
        for k, factor in enumerate(factors):
            last = factor * last + terms[k]
            results[k] = last
        return y

    def vjp(self, g: Value, y: Value, a: Value, b: Value) -> Grads:
        step = -1 if self.reverse else 1
        back = self.replace(reverse=not self.reverse)(shifted(a, self.axis, -step), g)
        return back * shifted(y, self.axis, step), back

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (a, b), (y,) = inputs, outputs

        def step(here: list[Expr], before: list[Expr]) -> Statement:
            return y.store(here, a[here] * y.load(before, fill=0) + b[here])

        return running(y, self.axis, self.reverse, step)

    def decompose(self, a: Value, b: Value) -> Value:
        axis = self.axis % a.rank
        type_ = a.type.with_shape((*a.shape[:axis], *a.shape[axis + 1 :]))
        last, factor, term = (Input(type_, name) for name in ("last", "factor", "term"))
        y = last * factor + term
        body = Graph((last, factor, term), {"state": y, "y": y}, name="recurrence")
        back = (int(self.reverse),)
        scan = Scan(body, 2, (axis, axis), (axis,), back * 2, back)
        result: Value = scan(constant(np.zeros(type_.shape, type_.dtype.numpy)), a, b)[1]
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(-len(shape), len(shape) - 1)
        return Sample(cls(axis, draw.boolean()), (draw.floats(shape, -1.5, 1.5), draw.floats(shape)))


@operator
@dataclass(frozen=True)
class CumProd(Cumulative):
    """Running products along ``axis``: y[k] = x[0] · ... · x[k].

    ``exclusive`` leaves x[k] itself out; ``reverse`` multiplies from the end. Every partial product is rounded to the
    element type. The gradient is formed without division: right with zeros, and to any order.
    """

    def reference(self, x: Array) -> Array:
        y = np.ones_like(x)
        factors, results = (_along(array, self.axis, self.reverse) for array in (x, y))
        products = np.multiply.accumulate(factors, axis=0, dtype=x.dtype)
        if self.exclusive:
            results[1:] = products[:-1]
        else:
            results[:] = products
        return y

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        """dx[i] is the product before i, times the sum over k of g[k] and the product between i and k."""
        step = -1 if self.reverse else 1
        before = self.replace(exclusive=True)(x)
        terms = shifted(g, self.axis, -step) if self.exclusive else g
        after = LinearRecurrence(self.axis, not self.reverse)(shifted(x, self.axis, -step), terms)
        return (before * after,)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (y,) = inputs, outputs

        def step(here: list[Expr], before: list[Expr]) -> Statement:
            factor = x.load(before, fill=1) if self.exclusive else x[here]
            return y.store(here, y.load(before, fill=1) * factor)

        return running(y, self.axis, self.reverse, step)

    def decompose(self, x: Value) -> Value:
        """By the recurrence, whose first step adds the first element (or 1): for runtimes without the operator."""
        axis, extent = self.axis % x.rank, x.shape[self.axis]
        starts = np.arange(extent) == (extent - 1 if self.reverse else 0)
        start = constant(starts.reshape((extent,) + (1,) * (x.rank - 1 - axis)), x.dtype)
        step = -1 if self.reverse else 1
        if not self.exclusive:
            result: Value = LinearRecurrence(axis, self.reverse)(x, x * start)
            return result
        result = LinearRecurrence(axis, self.reverse)(shifted(x, axis, step), Expand(x.shape)(start))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(-len(shape), len(shape) - 1)
        x = draw.floats(shape, 0.3, 1.6) * (2 * draw.booleans(shape) - 1)
        return Sample(cls(axis, draw.boolean(), draw.boolean()), (x,))
