"""Comparison, boolean and bitwise operators, and selection.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Const, Expr, call, select
from glowtrain.ops.core.family import Elementwise, Grads, broadcast_shapes, broadcastable
from glowtrain.ops.elementwise.cast import Cast as Cast
from glowtrain.ops.elementwise.cast import CastLike as CastLike
from glowtrain.types import Array, DType, TensorType, boolean

ANY = frozenset({"float", "int", "uint", "bool"})
NUMERIC = frozenset({"float", "int", "uint"})
INTEGER = frozenset({"int", "uint"})
BOOL = frozenset({"bool"})
NOT_CONTINUOUS = "its result is an integer or a boolean"


class Comparison(Elementwise):
    """Two operands in, a boolean out."""

    arity: ClassVar[int] = 2
    kinds: ClassVar[frozenset[str]] = NUMERIC
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = NOT_CONTINUOUS
    numpy: ClassVar[Callable[[Array, Array], Array]]
    function: ClassVar[str]
    """The scalar function of the loop language."""

    def result_dtype(self, *inputs: TensorType) -> DType:
        return boolean

    def reference(self, x: Array, y: Array) -> Array:
        return type(self).numpy(x, y)

    def scalar(self, x: Expr, y: Expr) -> Expr:
        return call(self.function, x, y)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Small integers, so that ties are likely; as floats in half of the cases."""
        shape = draw.shape()
        x, y = draw.integers(shape, -2, 2), draw.integers(broadcastable(draw, shape), -2, 2)
        return Sample(cls(), (x * 1.0, y * 1.0) if draw.boolean() else (x, y))


@operator
@dataclass(frozen=True)
class Equal(Comparison):
    """x = y. NaN equals nothing."""

    kinds: ClassVar[frozenset[str]] = ANY
    numpy: ClassVar[Callable[[Array, Array], Array]] = np.equal
    function: ClassVar[str] = "eq"


@operator
@dataclass(frozen=True)
class Less(Comparison):
    """x < y"""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.less
    function: ClassVar[str] = "lt"


@operator
@dataclass(frozen=True)
class LessOrEqual(Comparison):
    """x <= y"""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.less_equal
    function: ClassVar[str] = "le"


@operator
@dataclass(frozen=True)
class Greater(Comparison):
    """x > y"""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.greater
    function: ClassVar[str] = "gt"


@operator
@dataclass(frozen=True)
class GreaterOrEqual(Comparison):
    """x >= y"""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.greater_equal
    function: ClassVar[str] = "ge"


class Connective(Comparison):
    """Two booleans in, one out."""

    kinds: ClassVar[frozenset[str]] = BOOL

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        return Sample(cls(), (draw.booleans(shape), draw.booleans(broadcastable(draw, shape))))


@operator
@dataclass(frozen=True)
class And(Connective):
    """x and y"""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.logical_and
    function: ClassVar[str] = "and"


@operator
@dataclass(frozen=True)
class Or(Connective):
    """x or y"""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.logical_or
    function: ClassVar[str] = "or"


@operator
@dataclass(frozen=True)
class Xor(Connective):
    """Either x or y, not both."""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.logical_xor
    function: ClassVar[str] = "xor"


@operator
@dataclass(frozen=True)
class Not(Elementwise):
    """The other truth value."""

    kinds: ClassVar[frozenset[str]] = BOOL
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = NOT_CONTINUOUS

    def reference(self, x: Array) -> Array:
        return np.logical_not(x)

    def scalar(self, x: Expr) -> Expr:
        return call("not", x)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(), (draw.booleans(draw.shape()),))


class Bitwise(Comparison):
    """Two integers of one type in, one out."""

    kinds: ClassVar[frozenset[str]] = INTEGER

    def result_dtype(self, *inputs: TensorType) -> DType:
        return inputs[0].dtype

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        return Sample(cls(), (draw.integers(shape, -9, 9), draw.integers(broadcastable(draw, shape), -9, 9)))


@operator
@dataclass(frozen=True)
class BitwiseAnd(Bitwise):
    """Bits set in both."""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.bitwise_and
    function: ClassVar[str] = "and"


@operator
@dataclass(frozen=True)
class BitwiseOr(Bitwise):
    """Bits set in either."""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.bitwise_or
    function: ClassVar[str] = "or"


@operator
@dataclass(frozen=True)
class BitwiseXor(Bitwise):
    """Bits set in exactly one."""

    numpy: ClassVar[Callable[[Array, Array], Array]] = np.bitwise_xor
    function: ClassVar[str] = "xor"


@operator
@dataclass(frozen=True)
class BitwiseNot(Elementwise):
    """Every bit flipped."""

    kinds: ClassVar[frozenset[str]] = INTEGER
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = NOT_CONTINUOUS

    def reference(self, x: Array) -> Array:
        return np.bitwise_not(x)

    def scalar(self, x: Expr) -> Expr:
        return call("xor", x, -1 if x.dtype.kind == "int" else 2 ** (8 * x.dtype.size) - 1)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(), (draw.integers(draw.shape(), -9, 9),))


@operator
@dataclass(frozen=True)
class BitShift(Elementwise):
    """x moved by y bits; a right shift of a negative number keeps its sign.

    An amount below 0 or not below the width of the type gives what shifting out every bit gives: 0, or -1 for a
    negative number shifted right.
    """

    direction: Literal["LEFT", "RIGHT"]
    arity: ClassVar[int] = 2
    kinds: ClassVar[frozenset[str]] = INTEGER
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = NOT_CONTINUOUS

    def check_operands(self, *inputs: TensorType) -> None:
        super().check_operands(*inputs)
        if self.direction not in ("LEFT", "RIGHT"):
            raise self.fail('direction must be "LEFT" or "RIGHT"', *inputs)

    def reference(self, x: Array, y: Array) -> Array:
        inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
        amount = np.where(inside, y, 0).astype(x.dtype)
        if self.direction == "LEFT":
            return np.where(inside, np.left_shift(x, amount), 0).astype(x.dtype)
        return np.where(inside, np.right_shift(x, amount), np.where(x < 0, -1, 0)).astype(x.dtype)

    def scalar(self, x: Expr, y: Expr) -> Expr:
        inside = (y >= 0) & (y < 8 * x.dtype.size)
        shifted = call(f"shift_{self.direction.lower()}", x, select(inside, y, 0))
        if self.direction == "LEFT" or x.dtype.kind == "uint":
            return select(inside, shifted, 0)
        return select(inside, shifted, select(x < 0, Const(-1, x.dtype), 0))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        amounts = draw.integers(broadcastable(draw, shape), -1, 70)
        return Sample(cls(draw.choice(("LEFT", "RIGHT"))), (draw.integers(shape, -9, 9), amounts))


@operator
@dataclass(frozen=True)
class Where(Elementwise):
    """x where the condition holds, otherwise y.

    The value that is not chosen takes no part, not even as NaN or infinity; its gradient is exactly 0.
    """

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 3:
            raise self.fail(f"takes a condition and two operands, not {len(inputs)} operand(s)", *inputs)
        condition, x, y = inputs
        if condition.dtype != boolean:
            raise self.fail(f"the condition must be bool, not {condition.dtype}; Cast it", *inputs)
        if x.dtype != y.dtype:
            raise self.fail("both values must have one element type", *inputs)
        try:
            shape = broadcast_shapes([type_.shape for type_ in inputs])
            return x if x.shape == shape else TensorType(x.dtype, shape)
        except ShapeError as error:
            raise self.fail(str(error), *inputs) from None

    def reference(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def vjp(self, g: Value, y: Value, condition: Value, *values: Value) -> Grads:
        return None, self(condition, g, 0.0), self(condition, 0.0, g)

    def scalar(self, condition: Expr, x: Expr, y: Expr) -> Expr:
        return select(condition, x, y)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        x, y = draw.floats(broadcastable(draw, shape)), draw.floats(broadcastable(draw, shape))
        return Sample(cls(), (draw.booleans(shape), x, y))


class Classification(Elementwise):
    """A float in, a boolean out."""

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = NOT_CONTINUOUS

    def result_dtype(self, *inputs: TensorType) -> DType:
        return boolean

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Numbers, infinities and NaN."""
        special = np.array([0.0, 1.5, -2.5, np.inf, -np.inf, np.nan])
        return Sample(cls.draw_operator(draw), (special[draw.integers(draw.shape(), 0, 5)],))


@operator
@dataclass(frozen=True)
class IsNaN(Classification):
    """Whether x is not a number."""

    def reference(self, x: Array) -> Array:
        return np.isnan(x)

    def scalar(self, x: Expr) -> Expr:
        return call("isnan", x)


@operator
@dataclass(frozen=True)
class IsInf(Classification):
    """Whether x is an infinity of a sign that counts."""

    detect_negative: bool = True
    detect_positive: bool = True

    def reference(self, x: Array) -> Array:
        counts = (x > 0) & bool(self.detect_positive) | (x < 0) & bool(self.detect_negative)
        return np.isinf(x) & counts

    def scalar(self, x: Expr) -> Expr:
        if self.detect_negative and self.detect_positive:
            return call("isinf", x)
        if self.detect_positive:
            return call("isinf", x) & (x > 0)
        return call("isinf", x) & (x < 0) if self.detect_negative else call("lt", x, x)


@operator
@dataclass(frozen=True)
class Identity(Elementwise):
    """x"""

    quantized: ClassVar[Quantized] = "passes"
    kinds: ClassVar[frozenset[str]] = ANY | {"stored"}
    copies: ClassVar[bool] = True

    def reference(self, x: Array) -> Array:
        return x

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (g,)

    def scalar(self, x: Expr) -> Expr:
        return x
