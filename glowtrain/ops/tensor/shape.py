"""Tensors that follow from types and attributes, and triangular parts.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset. Where a result depends on operand types alone, the class
says ``from_type`` and gives it as ``constant(*types)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operand, Operator, Sample, Value, constant, operator, static
from glowtrain.graph.specialise.ragged import ragged_of
from glowtrain.loops import Const, Expr, Statement, Store, Tensor, call, cast, pointwise, select
from glowtrain.ops.core.family import Grads
from glowtrain.ops.tensor.move import Concat, Ints, reshape
from glowtrain.types import Array, DType, TensorType, bf16, boolean, dtype_of, f16, f32, f64, i64, type_of


class FromType(Operator):
    """The result depends on the operands' types only."""

    from_type: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "its result does not depend on the operand's values"

    def constant(self, *types: TensorType) -> Array:
        """The result for operands of these types."""
        raise NotImplementedError

    def reference(self, *inputs: Array) -> Array:
        return self.constant(*(type_of(x) for x in inputs))


@operator
@dataclass(frozen=True)
class Shape(FromType):
    """The operand's shape as i64, from axis ``start`` up to ``end`` (not included); both clamp, or count back."""

    start: int = 0
    end: int | None = None

    def infer(self, *inputs: TensorType) -> TensorType:
        return TensorType(i64, (len(inputs[0].shape[self.start : self.end]),))

    def constant(self, *types: TensorType) -> Array:
        return np.array(types[0].shape[self.start : self.end], np.int64)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        return _stores(outputs[0], inputs[0].shape[self.start : self.end])

    def follow(self, result: Value, *operands: Operand) -> Value:
        """The shape as a value: the size that was found among known extents."""
        (data,) = ragged_of(operands)
        parts: list[Value] = [constant(np.array([extent], np.int64)) for extent in data.value.shape]
        parts[data.axis] = reshape(data.size, (1,))
        chosen = parts[self.start : self.end]
        if not chosen:
            return result
        joined: Value = chosen[0] if len(chosen) == 1 else Concat(axis=0)(*chosen)
        return joined

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats(draw.shape())
        return Sample(cls(draw.integer(-5, 5), draw.choice((None, -9, -1, 0, 1, 2, 9))), (x,))


@operator
@dataclass(frozen=True)
class Size(FromType):
    """The number of the operand's elements, as i64."""

    def infer(self, *inputs: TensorType) -> TensorType:
        return TensorType(i64)

    def constant(self, *types: TensorType) -> Array:
        return np.array(types[0].size, np.int64)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        return [outputs[0].store((), Const(inputs[0].type.size, i64))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(), (draw.floats(draw.shape()),))


def _stores(y: Tensor, values: Sequence[int]) -> list[Statement]:
    """Constants, element by element."""
    stores: list[Store] = [y.store((position,), Const(value, y.dtype)) for position, value in enumerate(values)]
    return list(stores)


@operator
@dataclass(frozen=True)
class ConstantOfShape(FromType):
    """A tensor filled with one number of type ``dtype``.

    ONNX's ``value`` is a tensor of one element: an array may be given here, and its element type becomes ``dtype``.
    """

    shape: Ints = static(0)
    value: Any = 0.0
    dtype: DType = f32

    def __post_init__(self) -> None:
        if isinstance(self.value, (np.ndarray, np.generic)):
            array = np.asarray(self.value)
            if array.size != 1:
                raise self.fail(f"value must have one element, not {array.size}")
            object.__setattr__(self, "dtype", dtype_of(array.dtype))
            object.__setattr__(self, "value", array.reshape(()).item())

    def attributes(self) -> dict[str, Any]:
        """As in ONNX: the value is an array of one element, and its type says the result's."""
        return {"shape": self.shape, "value": np.array([self.value], self.dtype.numpy)}

    def infer(self, *inputs: TensorType) -> TensorType:
        if inputs:
            raise self.fail("takes no operand besides the shape", *inputs)
        return TensorType(self.dtype, self.shape)

    def constant(self, *types: TensorType) -> Array:
        return np.full(self.shape, self.value, self.dtype.numpy)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        return pointwise(outputs[0], lambda *index: Const(self.value, self.dtype))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        value = draw.choice((np.array([1.5]), np.array([-3], np.int64), np.array([True])))
        return Sample(cls(draw.shape(), value), ())


_STASH = {1: f32, 11: f64}
"""Types of computation by ONNX's numbers for them."""


@operator
@dataclass(frozen=True)
class Range(FromType):
    """start, start + delta, ... up to ``limit`` (not included): max(⌈(limit - start) / delta⌉, 0) numbers.

    The three are known when compiling. NumPy scalars or arrays of one element may be given, and their type becomes
    ``dtype``; Python numbers give i64 or f32. f16 and bf16 are computed in the type that ``stash_type`` says.
    """

    start: Any = static(0)
    limit: Any = static(1)
    delta: Any = static(2)
    stash_type: int = 1
    dtype: DType | None = None

    def __post_init__(self) -> None:
        for name in ("start", "limit", "delta"):
            number = getattr(self, name)
            if isinstance(number, (np.ndarray, np.generic)):
                array = np.asarray(number)
                object.__setattr__(self, "dtype", self.dtype or dtype_of(array.dtype))
                object.__setattr__(self, name, array.reshape(()).item())
        if self.dtype is None:
            exact = all(isinstance(number, int) for number in (self.start, self.limit, self.delta))
            object.__setattr__(self, "dtype", i64 if exact else f32)
        if self.delta == 0:
            raise self.fail("delta must not be 0")

    def attributes(self) -> dict[str, Any]:
        """As in ONNX: three scalars of the result's type."""
        dtype = self._dtype.numpy
        numbers = {name: np.array(getattr(self, name), dtype) for name in ("start", "limit", "delta")}
        return {**numbers, "stash_type": self.stash_type}

    @property
    def _dtype(self) -> DType:
        assert self.dtype is not None
        return self.dtype

    @property
    def count(self) -> int:
        """How many numbers there are."""
        if self._dtype.is_integer:
            steps = -((self.start - self.limit) // self.delta)
        else:
            steps = math.ceil((self.limit - self.start) / self.delta)
        return max(0, int(steps))

    def infer(self, *inputs: TensorType) -> TensorType:
        if inputs:
            raise self.fail("takes no operand besides start, limit and delta", *inputs)
        if self.stash_type not in _STASH:
            raise self.fail("stash_type must be 1 (f32) or 11 (f64)")
        return TensorType(self._dtype, (self.count,))

    @property
    def _stash(self) -> DType:
        """The type in which the numbers are computed."""
        return _STASH[self.stash_type] if self._dtype in (f16, bf16) else self._dtype

    def constant(self, *types: TensorType) -> Array:
        stash = self._stash.numpy
        steps = np.multiply(np.arange(self.count).astype(stash), np.asarray(self.delta, stash))
        numbers: Array = np.add(steps, np.asarray(self.start, stash)).astype(self._dtype.numpy)
        return numbers

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        return pointwise(outputs[0], lambda i: cast(i, self._stash) * self.delta + self.start)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        dtype, scale = draw.choice(((i64, 1), (f64, 0.5), (f64, 0.3), (f16, 0.3), (bf16, 0.3)))
        steps = draw.integer(-5, 5), draw.integer(-5, 5), draw.choice((1, 2, -1, -3))
        start, limit, delta = (np.asarray(count * scale, dtype.numpy) for count in steps)
        return Sample(cls(start, limit, delta, draw.choice((1, 11))), ())


@operator
@dataclass(frozen=True)
class EyeLike(FromType):
    """Ones on diagonal ``k`` (above the main one if positive), zeros elsewhere, in the shape of the operand."""

    dtype: DType | None = None
    k: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if x.rank != 2:
            raise self.fail(f"the operand must be a matrix, not of rank {x.rank}", x)
        return x.with_dtype(self.dtype or x.dtype)

    def constant(self, *types: TensorType) -> Array:
        (x,) = types
        rows, columns = x.shape
        return np.eye(rows, columns, self.k, dtype=(self.dtype or x.dtype).numpy)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        one, zero = Const(1, outputs[0].dtype), Const(0, outputs[0].dtype)
        return pointwise(outputs[0], lambda i, j: select(call("eq", j - i, self.k), one, zero))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x = draw.floats((draw.integer(1, 5), draw.integer(1, 5)))
        return Sample(cls(draw.choice((None, i64, boolean)), draw.integer(-3, 3)), (x,))


@operator
@dataclass(frozen=True)
class Trilu(Operator):
    """The upper triangle (columns j - i ≥ ``k``), or the lower one (j - i ≤ ``k``), of each matrix; zeros elsewhere."""

    k: int = static(1, 0)
    upper: bool = True

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if x.rank < 2:
            raise self.fail(f"the operand must be a matrix or a stack of matrices, not of rank {x.rank}", x)
        return x

    def reference(self, x: Array) -> Array:
        return np.triu(x, self.k) if self.upper else np.tril(x, self.k)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (self(g),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (x,) = inputs

        def element(*index: Expr) -> Expr:
            diagonal = index[-1] - index[-2]
            return select(diagonal >= self.k if self.upper else diagonal <= self.k, x[index], 0)

        return pointwise(outputs[0], element)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(draw.integer(-3, 3), draw.boolean()), (draw.floats(draw.shape(min_rank=2)),))
