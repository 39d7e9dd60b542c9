"""The largest and smallest of several operands, and clipping.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, Statement, Tensor, call, pointwise
from glowtrain.ops.core.family import Elementwise, Grads, broadcastable
from glowtrain.ops.elementwise.arithmetic import Variadic, pairwise
from glowtrain.ops.elementwise.logic import NUMERIC, Cast, Equal, Where
from glowtrain.types import Array, TensorType


class Extremum(Variadic):
    """The largest or smallest operand; NaN if any is.

    Gradient convention: operands that tie share it evenly (for two, PyTorch's ``maximum`` and ``minimum``).
    """

    kinds: ClassVar[frozenset[str]] = NUMERIC
    numpy: ClassVar[Callable[[Array, Array], Array]]

    def reference(self, *inputs: Array) -> Array:
        return functools.reduce(type(self).numpy, inputs)

    def vjp(self, g: Value, y: Value, *inputs: Value) -> Grads:
        chosen = [Equal()(x, y) for x in inputs]
        if len(inputs) == 1:
            return (g,)
        share = g / functools.reduce(lambda a, b: a + b, [Cast(g.dtype)(c) for c in chosen])
        return tuple(Where()(c, share, 0.0) for c in chosen)

    def scalar(self, *inputs: Expr) -> Expr:
        return pairwise(lambda a, b: call(self.onnx.lower(), a, b), inputs)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Shuffled distinct values, so that no two operands tie."""
        shape = draw.shape()
        shapes = [shape] + [broadcastable(draw, shape) for _ in range(draw.integer(0, 2))]
        values = draw.floats((sum(int(np.prod(s)) for s in shapes),))
        ends = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
        return Sample(cls(), tuple(v.reshape(s) for v, s in zip(np.split(values, ends), shapes, strict=True)))


@operator
@dataclass(frozen=True)
class Max(Extremum):
    """The largest of the operands; see :class:`Extremum`."""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.maximum


@operator
@dataclass(frozen=True)
class Min(Extremum):
    """The smallest of the operands; see :class:`Extremum`."""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.minimum


@operator
@dataclass(frozen=True)
class Clip(Elementwise):
    """min(max(x, low), high); either bound may be absent, and high wins where low > high.

    Gradient conventions (PyTorch's ``clamp``): it flows to x where low ≤ x ≤ high, bounds included, otherwise to the
    bound that is the result.
    """

    quantized: ClassVar[Quantized] = "clips"
    kinds: ClassVar[frozenset[str]] = NUMERIC
    setting_inputs: ClassVar[tuple[int, ...]] = (1, 2)

    def infer(self, *inputs: Any) -> TensorType:
        present = [type_ for type_ in inputs if type_ is not None]
        if not 1 <= len(inputs) <= 3 or inputs[0] is None:
            raise self.fail("takes x, and optionally min and max", *inputs)
        self.check_operands(*present)
        for bound in present[1:]:
            if bound.size != 1 or bound.rank > inputs[0].rank:
                raise self.fail("min and max must be scalars", *inputs)
        result: TensorType = inputs[0]
        return result

    def check_operands(self, *inputs: TensorType) -> None:
        for type_ in inputs:
            super().check_operands(type_)
        if len({type_.dtype for type_ in inputs}) > 1:
            raise self.fail("min and max must have the element type of x", *inputs)

    def reference(self, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
        x = x if low is None else np.maximum(x, low)
        return x if high is None else np.minimum(x, high)

    def vjp(self, g: Value, y: Value, x: Value, *bounds: Value | None) -> Grads:
        low, high = (*bounds, None, None)[:2]
        for_x = g if low is None else Where()(x >= low, g, 0.0)
        for_x = for_x if high is None else Where()(x <= high, for_x, 0.0)
        below = None if low is None else Where()(x < low, g, 0.0)
        above = None if high is None else Where()(x > high, g, 0.0)
        if low is not None and high is not None:
            below = Where()((x < low) & (low <= high), g, 0.0)
            above = Where()((x > high) | (low > high), g, 0.0)
            for_x = Where()((x >= low) & (x <= high), g, 0.0)
        return (for_x, below, above)[: 1 + len(bounds)]

    def scalar(self, *inputs: Expr | None) -> Expr:
        x, low, high = (*inputs, None, None)[:3]
        assert x is not None
        result = x if low is None else call("max", x, low)
        return result if high is None else call("min", result, high)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        def value(*index: Expr) -> Expr:
            return self.scalar(*(None if operand is None else operand.broadcast(index) for operand in inputs))

        return pointwise(outputs[0], value)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Both bounds, now and then the wrong way round; or one of them, or none."""
        low, high = (np.array(bound) for bound in ((-0.5, 0.7) if draw.integer(0, 3) else (0.7, -0.5)))
        bounds = draw.choice(((low, high), (low, high), (low,), (None, high), ()))
        return Sample(cls(), (draw.floats(draw.shape(), avoid=(-0.5, 0.7)), *bounds))
