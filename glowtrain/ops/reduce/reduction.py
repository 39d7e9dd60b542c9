"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Draw, Operand, Operator, Ragged, Sample, Value, constant, operator, static
from glowtrain.graph.specialise.ragged import whole
from glowtrain.loops import Expr, For, Let, Ref, Statement, Tensor, call, cast, indices_of, reduce, select
from glowtrain.ops.core.family import Grads, normalize_axes
from glowtrain.ops.elementwise.arithmetic import Div, Sign
from glowtrain.ops.elementwise.logic import Cast, Equal, Where
from glowtrain.ops.elementwise.transcendental import Exp
from glowtrain.ops.tensor.move import Expand, Transpose, reshape
from glowtrain.types import Array, DType, Shape, TensorType, bf16, dtype_of, f16, f32, f64, i8, i32, type_of, u8


def accumulator(dtype: DType) -> DType:
    """The element type in which elements of ``dtype`` are summed: f32 for f16 and bf16, i32 for bytes, else itself."""
    return f32 if dtype in (f16, bf16) else i32 if dtype in (i8, u8) else dtype


def widened(array: Array) -> Array:
    """An array in the element type in which it is summed (see :func:`accumulator`)."""
    if array.dtype.kind == "c":  # gradcheck's complex steps
        return array
    return array_as(array, accumulator)


def array_as(array: Array, to: Callable[[DType], DType]) -> Array:
    """An array in the element type that ``to`` gives for its own; itself where that is the same."""
    return array.astype(to(dtype_of(array.dtype)).numpy, copy=False)


def as_dtype(value: Value, dtype: DType) -> Value:
    """A value converted to an element type; itself where it has that type."""
    result: Value = value if value.dtype == dtype else Cast(to=dtype)(value)
    return result


def filled(value: float, type_: TensorType) -> Value:
    """A value of ``type_`` with every element ``value`` (an expanded scalar: it takes no memory once fused)."""
    result: Value = Expand(shape=type_.shape)(constant(value, type_.dtype))
    return result


def unbroadcast(gradient: Value, shape: Shape) -> Value:
    """Undo a NumPy broadcast from ``shape``: sum over the axes along which elements were repeated."""
    if gradient.shape == shape:
        return gradient
    extra = gradient.rank - len(shape)
    stretched = (axis + extra for axis, extent in enumerate(shape) if extent != gradient.shape[axis + extra])
    axes = (*range(extra), *stretched)
    summed: Value = ReduceSum(axes=axes, keepdims=True)(gradient)
    return reshape(summed, shape) if extra else summed


def total(op: str, extents: Sequence[int], body: Callable[..., Expr]) -> Expr:
    """A reduction in the loop language; over no axes, the element itself."""
    return reduce(op, extents, body) if extents else body()


ROW_PARTIALS = 8
"""Partial sums of a row: a vector of f32 on AVX2, half a vector on AVX-512, two on NEON."""


def row_sum(extents: Sequence[int], body: Callable[..., Expr]) -> Expr:
    """``body(r0, ...)`` summed over a row in the loop language; over one axis, in the same order on all targets (see
    docs/adr/0010-row-sums.md)."""
    return reduce("add", extents, body, ROW_PARTIALS if len(extents) == 1 else 0)


class AlongAxes(Operator):
    """What combines elements along axes, so that the size of one of them may be found at run time."""

    keepdims: bool

    def reduced(self, x: TensorType) -> tuple[int, ...]:
        """The axes of ``x`` that are reduced, ascending."""
        raise NotImplementedError

    def neutral(self, dtype: DType) -> Any:
        """The element that does not count; ``None`` where there is none (the mean divides by how many there are)."""
        return None

    def counted(self, *operands: Operand) -> list[Value | None]:
        """With the neutral element at the positions past the size."""
        (data,) = operands
        if not isinstance(data, Ragged) or data.axis not in self.reduced(data.value.type):
            return [whole(data)]
        neutral, values = self.neutral(data.value.dtype), data.value
        if neutral is None:
            raise ModelError(f"{self.key()} runs over an axis whose size is found at run time; that is not supported")
        positions = np.arange(values.shape[data.axis], dtype=np.int64).reshape(-1, *[1] * (values.rank - data.axis - 1))
        return [Where()(constant(positions) < data.size, values, constant(neutral, values.dtype))]

    def follow(self, result: Value, *operands: Operand) -> Value | Ragged:
        (data,) = operands
        assert isinstance(data, Ragged)
        axes = self.reduced(data.value.type)
        if data.axis in axes:
            return result
        before = 0 if self.keepdims else sum(axis < data.axis for axis in axes)
        return replace(data, value=result, axis=data.axis - before)


@dataclass(frozen=True)
class Reduction(AlongAxes):
    """One number from all elements along ``axes``.

    ``axes`` None or empty: all axes, or with ``noop_with_empty_axes`` no axis (the element-wise parts still apply).
    ``keepdims`` leaves the reduced axes with extent 1. f16 and bf16 are accumulated in f32.
    """

    axes: tuple[int, ...] | None = static(1, None)
    keepdims: bool = True
    noop_with_empty_axes: bool = False

    kinds: ClassVar[frozenset[str]] = frozenset({"float", "int", "uint"})
    combine: ClassVar[str] = "add"
    """The loop language's operation that combines elements."""
    domain_range: ClassVar[tuple[float, float]] = (-2.0, 2.0)

    def reduced(self, x: TensorType) -> tuple[int, ...]:
        if self.axes:
            return tuple(sorted(normalize_axes(self, self.axes, x)))
        return () if self.noop_with_empty_axes else tuple(range(x.rank))

    def count(self, x: TensorType) -> int:
        """Number of elements that are combined into one."""
        return math.prod(x.shape[axis] for axis in self.reduced(x))

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        if x.dtype.kind not in self.kinds:
            raise self.fail(f"element type must be {' or '.join(sorted(self.kinds))}, not {x.dtype}", x)
        return x.with_shape(reduced_shape(x.shape, self.reduced(x), self.keepdims))

    def reference(self, x: Array) -> Array:
        axes = self.reduced(type_of(x.real))  # gradcheck passes complex numbers
        wide = widened(x)
        kept = np.asarray(self.numpy(wide, axes)).astype(x.dtype)
        return kept.reshape(reduced_shape(x.shape, axes, self.keepdims))

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        """The reduction in NumPy over exactly these axes; reduced axes may be kept with extent 1 or dropped."""
        raise NotImplementedError

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (y,) = inputs, outputs
        axes = self.reduced(x.type)
        indices = indices_of(y.shape)
        kept = [i for axis, i in enumerate(indices) if axis not in axes] if self.keepdims else list(indices)

        def element(*r: Expr) -> Expr:
            outer, inner = iter(kept), iter(r)
            index = [next(inner) if axis in axes else next(outer) for axis in range(len(x.shape))]
            return cast(x[index], accumulator(x.dtype))

        lets, result = self.row([x.shape[axis] for axis in axes], element)
        return [For(indices, (*lets, y.store(indices, result)))]

    def row(self, extents: list[int], element: Callable[..., Expr]) -> tuple[list[Statement], Expr]:
        """The reduction of ``element(r0, r1, ...)``: statements to go before, and the result."""
        return [], self.after(total(self.combine, extents, lambda *r: self.before(element(*r))), math.prod(extents))

    def before(self, element: Expr) -> Expr:
        """What is combined, from an element."""
        return element

    def after(self, combined: Expr, count: int) -> Expr:
        """The result, from what was combined over ``count`` elements."""
        return combined

    def keep_dims(self, y: Value, x: Value) -> Value:
        """A value of the result's shape with the reduced axes put back as extent 1."""
        return reshape(y, reduced_shape(x.shape, self.reduced(x.type), True))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape()
        chosen = tuple(axis - len(shape) * draw.boolean() for axis in range(len(shape)) if draw.boolean())
        axes = draw.choice((None, chosen))
        return Sample(cls(axes, draw.boolean(), draw.boolean()), (draw.floats(shape, *cls.domain_range),))


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """A shape with ``axes`` at extent 1, or without them."""
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return kept if keepdims else tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


@operator
@dataclass(frozen=True)
class ReduceSum(Reduction):
    """y = sum(x)"""

    def neutral(self, dtype: DType) -> Any:
        return 0

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.sum(x, axis=axes, dtype=x.dtype))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Expand(shape=x.shape)(self.keep_dims(g, x)),)


@operator
@dataclass(frozen=True)
class ReduceMean(Reduction):
    """y = sum(x) / n; NaN over nothing. Integer means are truncated, and 0 over nothing."""

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        count = np.asarray(math.prod(x.shape[axis] for axis in axes)).astype(x.dtype)
        return np.asarray(Div().reference(np.sum(x, axis=axes, dtype=x.dtype), count))

    def after(self, combined: Expr, count: int) -> Expr:
        return combined / count

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Expand(shape=x.shape)(self.keep_dims(g, x) / self.count(x.type)),)


class ReduceExtremum(Reduction):
    """Largest or smallest element; NaN where one is NaN. Elements that tie share the gradient evenly."""

    kinds: ClassVar[frozenset[str]] = frozenset({"float", "int", "uint", "bool"})

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        if inputs[0].dtype.kind != "bool":
            return super().lower(outputs, *inputs)
        logical = ReduceAny if self.combine == "max" else ReduceAll
        return logical(**self.attributes()).lower(outputs, *inputs)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        chosen = as_dtype(Equal()(x, self.keep_dims(y, x)), x.dtype)
        ties = ReduceSum(axes=self.reduced(x.type), noop_with_empty_axes=True)(chosen)
        return (chosen * (self.keep_dims(g, x) / ties),)


class ReduceAny(Reduction):
    """Whether any element is true: how ReduceMax of bool is lowered."""

    combine: ClassVar[str] = "or"


class ReduceAll(Reduction):
    """Whether all elements are true: how ReduceMin of bool is lowered."""

    combine: ClassVar[str] = "and"


@operator
@dataclass(frozen=True)
class ReduceMax(ReduceExtremum):
    """y = max(x); the smallest number of the type over nothing."""

    combine: ClassVar[str] = "max"

    def neutral(self, dtype: DType) -> Any:
        return limits(dtype.numpy)[0]

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.max(x, axis=axes, initial=limits(x.dtype)[0]))


@operator
@dataclass(frozen=True)
class ReduceMin(ReduceExtremum):
    """y = min(x); the largest number of the type over nothing."""

    combine: ClassVar[str] = "min"

    def neutral(self, dtype: DType) -> Any:
        return limits(dtype.numpy)[1]

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.min(x, axis=axes, initial=limits(x.dtype)[1]))


def limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The smallest and the largest number of a type."""
    if dtype.kind == "b":
        return False, True
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


@operator
@dataclass(frozen=True)
class ReduceProd(Reduction):
    """y = product of x.

    The gradient of an element is the product of the others, formed without division: right with zeros, and to any
    order; n elements take n * n multiplications.
    """

    combine: ClassVar[str] = "mul"

    def neutral(self, dtype: DType) -> Any:
        return 1

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.prod(x, axis=axes, dtype=x.dtype))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        axes = self.reduced(x.type)
        last = (*(axis for axis in range(x.rank) if axis not in axes), *axes)
        n = self.count(x.type)
        rows = reshape(Transpose(perm=last)(x), (x.type.size // max(n, 1), 1, n))
        own = Equal()(constant(np.arange(n)[:, None]), constant(np.arange(n)))
        others = ReduceProd(axes=(2,), keepdims=False)(Where()(own, 1.0, rows))
        back = reshape(others, tuple(x.shape[axis] for axis in last))
        return (self.keep_dims(g, x) * Transpose(perm=tuple(last.index(axis) for axis in range(x.rank)))(back),)


@operator
@dataclass(frozen=True)
class ReduceL1(Reduction):
    """y = sum(|x|); gradient 0 at 0."""

    def neutral(self, dtype: DType) -> Any:
        return 0

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.sum(np.abs(x), axis=axes, dtype=x.dtype))

    def before(self, element: Expr) -> Expr:
        return call("abs", element)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (self.keep_dims(g, x) * Sign()(x),)


@operator
@dataclass(frozen=True)
class ReduceL2(Reduction):
    """y = sqrt(sum(x^2)); gradient 0 where y = 0."""

    def neutral(self, dtype: DType) -> Any:
        return 0

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.sqrt(np.sum(np.square(x), axis=axes, dtype=x.dtype)))

    def before(self, element: Expr) -> Expr:
        return element * element

    def after(self, combined: Expr, count: int) -> Expr:
        return call("sqrt", combined if combined.dtype.is_float else cast(combined, f64))

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        zero = Equal()(y, 0.0)
        scale = Where()(zero, 0.0, g / Where()(zero, 1.0, y))
        return (self.keep_dims(scale, x) * x,)


@operator
@dataclass(frozen=True)
class ReduceSumSquare(Reduction):
    """y = sum(x^2)"""

    def neutral(self, dtype: DType) -> Any:
        return 0

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.sum(np.square(x), axis=axes, dtype=x.dtype))

    def before(self, element: Expr) -> Expr:
        return element * element

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (self.keep_dims(g, x) * 2 * x,)


@operator
@dataclass(frozen=True)
class ReduceLogSum(Reduction):
    """y = log(sum(x))"""

    kinds: ClassVar[frozenset[str]] = frozenset({"float"})
    domain_range: ClassVar[tuple[float, float]] = (0.2, 2.0)

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.log(np.sum(x, axis=axes, dtype=x.dtype)))

    def after(self, combined: Expr, count: int) -> Expr:
        return call("log", combined)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (Expand(shape=x.shape)(self.keep_dims(g * Exp()(-y), x)),)


@operator
@dataclass(frozen=True)
class ReduceLogSumExp(Reduction):
    """y = log(sum(exp(x))), with the largest element taken out first so that nothing overflows."""

    kinds: ClassVar[frozenset[str]] = frozenset({"float"})

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        peak = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isinf(peak), 0, peak).astype(x.dtype)
        return np.asarray(np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift)

    def row(self, extents: list[int], element: Callable[..., Expr]) -> tuple[list[Statement], Expr]:
        peak = total("max", extents, element)
        shift = Ref(peak.dtype, "shift")
        summed = total("add", extents, lambda *r: call("exp", element(*r) - shift))
        return [Let(shift, select(call("isinf", peak), 0.0, peak))], call("log", summed) + shift

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (self.keep_dims(g, x) * Exp()(x - self.keep_dims(y, x)),)
