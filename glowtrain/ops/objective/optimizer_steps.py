"""One step of an optimizer over any number of tensors: ai.onnx.preview.training's Adam, Adagrad and Momentum.

Semantics: https://github.com/onnx/onnx/blob/main/docs/Operators.md#aionnxpreviewtraining. These are for models from
elsewhere; :mod:`glowtrain.optim` builds its updates from elementwise operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.ops.elementwise.arithmetic import Pow, Sqrt
from glowtrain.ops.elementwise.logic import Greater, Where
from glowtrain.ops.reduce.reduction import as_dtype
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, TensorType, f32, f64, i64

DOMAIN = "ai.onnx.preview.training"


class OptimizerStep(Operator):
    """Operands: the learning rate R, the update count T, then all tensors X, all gradients G and all states.

    Results: the new X, then the new states, in the same order. Each tensor is updated by itself; a subclass says how,
    in NumPy (:meth:`advanced`) and as graph code (:meth:`stepped`).
    """

    domain: ClassVar[str] = DOMAIN
    states: ClassVar[int] = 1
    """State tensors for each X."""

    def advanced(self, rate: Array, count: int, x: Array, g: Array, *states: Array) -> tuple[Array, ...]:
        """The new tensor and states, in NumPy."""
        raise NotImplementedError

    def stepped(self, rate: Value, count: Value, x: Value, g: Value, *states: Value) -> tuple[Value, ...]:
        """The new tensor and states, as graph code; ``count`` is f64."""
        raise NotImplementedError

    def groups(self, tensors: Sequence[Any]) -> list[tuple[Any, ...]]:
        """X, G and states of each tensor."""
        count = len(tensors) // (2 + self.states)
        return [tuple(tensors[k::count]) for k in range(count)]

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        parts = 2 + self.states
        if len(inputs) < 2 + parts or (len(inputs) - 2) % parts:
            raise self.fail(f"takes R, T and {parts} tensors for each one that is optimized", *inputs)
        rate, count, *tensors = inputs
        if rate.dtype not in (f32, f64) or rate.size != 1 or count.dtype != i64 or count.size != 1:
            raise self.fail("R must be one f32 or f64 number and T one i64 number", *inputs)
        for group in self.groups(tensors):
            if len(set(group)) > 1 or group[0].dtype not in (f32, f64):
                raise self.fail("a tensor, its gradient and its states must have one type, f32 or f64", *inputs)
        return tuple(tensors[: len(tensors) // parts]) + tuple(tensors[2 * len(tensors) // parts :])

    def reference(self, rate: Array, count: Array, *tensors: Array) -> tuple[Array, ...]:
        number, steps = rate.reshape(()), int(count.reshape(()))
        updated = [self.advanced(number.astype(group[0].dtype), steps, *group) for group in self.groups(tensors)]
        arrays = [array for position in zip(*updated, strict=True) for array in position]
        wanted = (*tensors[: len(updated)], *tensors[2 * len(updated) :])
        return tuple(np.asarray(a, like.dtype) for a, like in zip(arrays, wanted, strict=True))

    def decompose(self, rate: Value, count: Value, *tensors: Value) -> tuple[Value, ...]:
        number, steps = reshape(rate, ()), as_dtype(reshape(count, ()), f64)
        updated = [self.stepped(as_dtype(number, group[0].dtype), steps, *group) for group in self.groups(tensors)]
        return tuple(value for position in zip(*updated, strict=True) for value in position)

    @classmethod
    def draw_operands(cls, draw: Draw) -> tuple[Array, ...]:
        """Learning rate, a count that is often 0, and one to three tensors of various shapes."""
        count, rate = draw.integer(1, 3), np.asarray(0.01 * draw.integer(1, 30))
        shapes = [draw.shape(max_rank=3) for _ in range(count)]
        free = [draw.floats(shape) for _ in range(1 + cls.states) for shape in shapes]
        squares = [draw.floats(shape, 0.2, 2.0) for shape in shapes]
        return (rate, np.asarray(draw.choice((0, 0, 1, 2, 7)), np.int64), *free, *squares)


def _power(base: float, exponent: Value) -> Value:
    """base ** exponent in f64: 1 - beta ** T would lose half of its digits in f32."""
    result: Value = Pow()(constant(np.asarray(base), f64), exponent)
    return result


@operator
@dataclass(frozen=True)
class Adam(OptimizerStep):
    """Adam as ONNX defines it: epsilon is added before the bias correction, which is left out at T = 0.

    Operands R, T, X.., G.., V.. (averaged gradients), H.. (averaged squared gradients); results X.., V.., H...
    """

    alpha: float = 0.9
    beta: float = 0.999
    epsilon: float = 1e-6
    norm_coefficient: float = 0.0
    norm_coefficient_post: float = 0.0
    states: ClassVar[int] = 2

    def advanced(self, rate: Array, count: int, x: Array, g: Array, *states: Array) -> tuple[Array, ...]:
        v, h = states
        g = self.norm_coefficient * x + g if self.norm_coefficient else g
        v = self.alpha * v + (1 - self.alpha) * g
        h = self.beta * h + (1 - self.beta) * g * g
        factor = float(np.sqrt(1 - self.beta**count) / (1 - self.alpha**count)) if count > 0 else 1.0
        moved = x - rate * factor * v / (np.sqrt(h) + self.epsilon)
        return ((1 - self.norm_coefficient_post) * moved if self.norm_coefficient_post else moved), v, h

    def stepped(self, rate: Value, count: Value, x: Value, g: Value, *states: Value) -> tuple[Value, ...]:
        v, h = states
        g = x * self.norm_coefficient + g if self.norm_coefficient else g
        v = v * self.alpha + g * (1 - self.alpha)
        h = h * self.beta + g * g * (1 - self.beta)
        corrected = Sqrt()(1.0 - _power(self.beta, count)) / (1.0 - _power(self.alpha, count))
        factor = Where()(Greater()(count, 0.0), corrected, 1.0)
        moved = x - rate * as_dtype(factor, x.dtype) * v / (Sqrt()(h) + self.epsilon)
        return (moved * (1 - self.norm_coefficient_post) if self.norm_coefficient_post else moved), v, h

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        rates = {
            "alpha": draw.choice((0.9, 0.5)),
            "beta": draw.choice((0.999, 0.7)),
            "epsilon": draw.choice((1e-3, 0.1)),
        }
        norms = [draw.choice((0.0, 0.1)) for _ in range(2)]
        op = cls(**rates, norm_coefficient=norms[0], norm_coefficient_post=norms[1])
        return Sample(op, cls.draw_operands(draw))


@operator
@dataclass(frozen=True)
class Adagrad(OptimizerStep):
    """Adagrad: steps are divided by the root of the sum of squared gradients.

    Operands R, T, X.., G.., H.. (sums of squared gradients); results X.., H... The learning rate is
    R / (1 + T · decay_factor).
    """

    decay_factor: float = 0.0
    epsilon: float = 1e-6
    norm_coefficient: float = 0.0

    def advanced(self, rate: Array, count: int, x: Array, g: Array, *states: Array) -> tuple[Array, ...]:
        g = self.norm_coefficient * x + g if self.norm_coefficient else g
        h = states[0] + g * g
        return x - rate / (1 + count * self.decay_factor) * g / (np.sqrt(h) + self.epsilon), h

    def stepped(self, rate: Value, count: Value, x: Value, g: Value, *states: Value) -> tuple[Value, ...]:
        g = x * self.norm_coefficient + g if self.norm_coefficient else g
        h = states[0] + g * g
        if self.decay_factor:
            rate = rate / as_dtype(count * self.decay_factor + 1.0, rate.dtype)
        return x - rate * g / (Sqrt()(h) + self.epsilon), h

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        op = cls(draw.choice((0.0, 0.1)), draw.choice((1e-3, 0.1)), draw.choice((0.0, 0.1)))
        return Sample(op, cls.draw_operands(draw))


@operator
@dataclass(frozen=True)
class Momentum(OptimizerStep):
    """Gradient descent with momentum, ``mode`` "standard" or "nesterov".

    Operands R, T, X.., G.., V.. (momenta); results X.., V... At T = 0 the gradient enters the momentum unscaled, later
    times ``beta``.
    """

    alpha: float
    beta: float
    norm_coefficient: float
    mode: str

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        if self.mode not in ("standard", "nesterov"):
            raise self.fail('mode must be "standard" or "nesterov"', *inputs)
        return super().infer(*inputs)

    def advanced(self, rate: Array, count: int, x: Array, g: Array, *states: Array) -> tuple[Array, ...]:
        g = self.norm_coefficient * x + g if self.norm_coefficient else g
        v = self.alpha * states[0] + (self.beta if count > 0 else 1.0) * g
        return x - rate * (g + self.alpha * v if self.mode == "nesterov" else v), v

    def stepped(self, rate: Value, count: Value, x: Value, g: Value, *states: Value) -> tuple[Value, ...]:
        g = x * self.norm_coefficient + g if self.norm_coefficient else g
        scale: Value = Where()(Greater()(count, 0.0), constant(np.asarray(self.beta), f64), 1.0)
        v = states[0] * self.alpha + as_dtype(scale, x.dtype) * g
        return x - rate * (g + v * self.alpha if self.mode == "nesterov" else v), v

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        mode = draw.choice(("standard", "nesterov"))
        op = cls(draw.choice((0.9, 0.5)), draw.choice((1.0, 0.1)), draw.choice((0.0, 0.1)), mode)
        return Sample(op, cls.draw_operands(draw))
