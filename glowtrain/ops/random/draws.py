"""ONNX's random operators, drawn from the counter-based generator of :mod:`glowtrain.ops.random.philox`.

A node's seed is the generator's key and its counter stands still, so every run draws the same numbers, in the
interpreter as in compiled code. The training form of a model puts its own seed and step counter in their place (see
:meth:`SeededDraw.drawn`). ONNX leaves the generator open; nodes of a file that have no seed get one that no
other node has when it is loaded, so that they differ. Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, attribute, constant, operator
from glowtrain.ops.elementwise.logic import Less, LessOrEqual
from glowtrain.ops.indexing.arg_extrema import CumSum
from glowtrain.ops.random.philox import Normal, Uniform
from glowtrain.ops.reduce.reduction import ReduceSum, as_dtype
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.move import Slice, reshape
from glowtrain.types import Array, DType, Shape, TensorType, dtype_of, f32, f64, i32, i64


@dataclass(frozen=True)
class SeededDraw(Operator):
    """A random operator with a ``seed`` (0 where there is none).

    Equal nodes draw equal numbers, but are neither merged nor computed while compiling.
    """

    seed: float | None = None

    random: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "the draw does not depend differentiably on an operand"

    def drawn(self, key: Value, counter: Value, stream: int, *inputs: Value) -> Value:
        """The result from a key and a counter, both i64[]; draws of one step differ by their ``stream``."""
        raise NotImplementedError

    @property
    def seed_key(self) -> Array:
        """The generator's key: the bits of the seed."""
        return np.array(np.float32(self.seed or 0.0).view(np.int32), np.int64)

    def decompose(self, *inputs: Value) -> Value:
        return self.drawn(constant(self.seed_key), constant(0, i64), 0, *inputs)

    def uniform(self, shape: Shape, dtype: DType) -> Array:
        """The numbers that the decomposition draws with."""
        return Uniform(shape, dtype=dtype).reference(self.seed_key, np.array(0))


def _wide(dtype: DType) -> DType:
    """The type in which numbers of a floating type are drawn."""
    return f64 if dtype == f64 else f32


def _draw_seed(draw: Draw) -> float | None:
    seed: float | None = draw.choice((None, 0.5, 7.0))
    return seed


@dataclass(frozen=True)
class Drawn(SeededDraw):
    """Numbers of a shape that is given, or that of an operand."""

    def drawn_type(self, *inputs: TensorType) -> TensorType:
        """The result's type."""
        raise NotImplementedError

    def moved(self, draw: Any) -> Any:
        """The standard distribution's numbers carried to the wanted one's."""
        raise NotImplementedError

    standard: ClassVar[type[Uniform]] = Uniform

    def infer(self, *inputs: TensorType) -> TensorType:
        type_ = self.drawn_type(*inputs)
        if not type_.dtype.is_float:
            raise self.fail(f"dtype must be floating, not {type_.dtype}", *inputs)
        return type_

    def reference(self, *inputs: Array) -> Array:
        type_ = self.drawn_type(*(TensorType(dtype_of(x.dtype), x.shape) for x in inputs))
        draw = self.standard(type_.shape, dtype=_wide(type_.dtype)).reference(self.seed_key, np.array(0))
        return np.asarray(self.moved(draw), type_.dtype.numpy)

    def drawn(self, key: Value, counter: Value, stream: int, *inputs: Value) -> Value:
        type_ = self.drawn_type(*(x.type for x in inputs))
        return as_dtype(self.moved(self.standard(type_.shape, stream, _wide(type_.dtype))(key, counter)), type_.dtype)


@dataclass(frozen=True)
class UniformDraw(Drawn):
    """Numbers in [low, high)."""

    low: float = attribute(0.0, choices=(-2.0, 0.25))
    high: float = attribute(1.0, choices=(0.5, 3.0))

    def moved(self, draw: Any) -> Any:
        return draw * (self.high - self.low) + self.low


@dataclass(frozen=True)
class NormalDraw(Drawn):
    """Normally distributed numbers of this ``mean`` and standard deviation ``scale``."""

    mean: float = attribute(0.0, choices=(-2.0, 0.5))
    scale: float = attribute(1.0, choices=(0.3, 2.0))

    standard: ClassVar[type[Uniform]] = Normal

    def moved(self, draw: Any) -> Any:
        return draw * self.scale + self.mean


@dataclass(frozen=True)
class OfShape(Drawn):
    """No operand: the shape and the type are attributes."""

    shape: tuple[int, ...] = ()
    dtype: DType = f32

    def drawn_type(self, *inputs: TensorType) -> TensorType:
        if inputs:
            raise self.fail("takes no operand", *inputs)
        return TensorType(self.dtype, self.shape)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        given = {"seed": _draw_seed(draw), "shape": draw.shape(), "dtype": draw.choice((f32, f64))}
        return Sample(cls.draw_operator(draw, **given), ())


@dataclass(frozen=True)
class LikeOperand(Drawn):
    """The operand gives the shape, and the type unless ``dtype`` does; its values do not matter."""

    dtype: DType | None = None

    def drawn_type(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        return inputs[0].with_dtype(self.dtype or inputs[0].dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        like = cls.draw_operator(draw, seed=_draw_seed(draw), dtype=draw.choice((None, f32, f64)))
        return Sample(like, (draw.floats(draw.shape()),))


@operator
@dataclass(frozen=True)
class RandomUniform(OfShape, UniformDraw):
    """Numbers in [``low``, ``high``) in a given shape."""


@operator
@dataclass(frozen=True)
class RandomUniformLike(LikeOperand, UniformDraw):
    """Numbers in [``low``, ``high``) in the shape of the operand."""


@operator
@dataclass(frozen=True)
class RandomNormal(OfShape, NormalDraw):
    """Normally distributed numbers in a given shape."""


@operator
@dataclass(frozen=True)
class RandomNormalLike(LikeOperand, NormalDraw):
    """Normally distributed numbers in the shape of the operand."""


@operator
@dataclass(frozen=True)
class Bernoulli(SeededDraw):
    """1 with the probability that the operand says, else 0; elements of type ``dtype``, or the operand's."""

    dtype: DType | None = None

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1 or not inputs[0].dtype.is_float:
            raise self.fail("takes 1 floating operand", *inputs)
        return inputs[0].with_dtype(self.dtype or inputs[0].dtype)

    def reference(self, x: Array) -> Array:
        dtype = dtype_of(x.dtype)
        hit = self.uniform(x.shape, _wide(dtype)) < x.astype(_wide(dtype).numpy)
        return hit.astype((self.dtype or dtype).numpy)

    def drawn(self, key: Value, counter: Value, stream: int, *inputs: Value) -> Value:
        (x,) = inputs
        wide = _wide(x.dtype)
        hit = Less()(Uniform(x.shape, stream, wide)(key, counter), as_dtype(x, wide))
        return as_dtype(hit, self.dtype or x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        bernoulli = cls(_draw_seed(draw), draw.choice((None, f32, i64)))
        return Sample(bernoulli, (draw.floats(draw.shape(), 0.0, 1.0),))


@operator
@dataclass(frozen=True)
class Multinomial(SeededDraw):
    """``sample_size`` classes for each row of unnormalised log-probabilities [batch, classes], with replacement.

    A class is the number of partial sums of the probabilities that a uniform number reaches.
    """

    sample_size: int = 1
    dtype: DType = i32

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1 or not inputs[0].dtype.is_float or inputs[0].rank != 2 or not inputs[0].shape[1]:
            raise self.fail("takes floating log-probabilities [batch, classes]", *inputs)
        if self.sample_size < 1 or self.dtype not in (i32, i64):
            raise self.fail("sample_size must be positive, and dtype i32 or i64", *inputs)
        return TensorType(self.dtype, (inputs[0].shape[0], self.sample_size))

    def reference(self, x: Array) -> Array:
        wide = _wide(dtype_of(x.dtype))
        probabilities = Softmax(axis=1).reference(x.astype(wide.numpy))
        bounds = np.add.accumulate(probabilities, axis=1, dtype=wide.numpy)[:, None, :-1]
        draws = self.uniform((x.shape[0], self.sample_size), wide)
        reached: Array = np.sum(bounds <= draws[..., None], axis=-1, dtype=self.dtype.numpy)
        return reached

    def drawn(self, key: Value, counter: Value, stream: int, *inputs: Value) -> Value:
        (x,) = inputs
        wide, (batch, classes) = _wide(x.dtype), x.shape
        sums = CumSum(axis=1)(Softmax(axis=1)(as_dtype(x, wide)))
        bounds = reshape(Slice((0,), (classes - 1,), (1,))(sums), (batch, 1, classes - 1))
        draws = reshape(Uniform((batch, self.sample_size), stream, wide)(key, counter), (batch, self.sample_size, 1))
        reached = as_dtype(LessOrEqual()(bounds, draws), self.dtype)
        result: Value = ReduceSum(axes=(2,), keepdims=False)(reached)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        multinomial = cls(_draw_seed(draw), draw.integer(1, 5), draw.choice((i32, i64)))
        return Sample(multinomial, (draw.floats((draw.integer(1, 3), draw.integer(1, 5))),))
