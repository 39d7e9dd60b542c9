"""Loop-language expressions over whole index boxes at once, in NumPy.

A *scope* binds loop indices to spans, and spans to axes of arrays: the value of an expression at every point of the
scope is an array whose axis k belongs to the k-th open loop. Extents are 1 where the value does not depend on a loop,
and trailing axes of extent 1 are left out, so a value computed outside of a loop fits inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glowtrain.errors import ProgramError
from glowtrain.loops import Affine, Apply, Cast, Const, Expr, Index, Load, Reduce, Ref, affine
from glowtrain.program.interpret import functions
from glowtrain.program.interpret.storage import Memory
from glowtrain.program.program import describe
from glowtrain.types import Array

MAX_BOX = 1 << 23
"""A padded copy made for a filled load has at most this many elements."""


@dataclass(frozen=True)
class IndexSpan:
    """The values low .. high-1 of an index, along ``axis`` (``None``: the one value ``low``)."""

    axis: int | None
    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low


@dataclass(frozen=True)
class VectorScope:
    """The open loops: the span of every index, and the extents of the axes."""

    spans: Mapping[Index, IndexSpan] = field(default_factory=dict)
    shape: tuple[int, ...] = ()

    def opened(self, indices: Sequence[Index], ranges: Sequence[tuple[int, int]]) -> VectorScope:
        """With an axis for each of ``indices``."""
        rank = len(self.shape)
        new = {
            i: IndexSpan(rank + k, low, high) for k, (i, (low, high)) in enumerate(zip(indices, ranges, strict=True))
        }
        return VectorScope({**self.spans, **new}, (*self.shape, *(span.width for span in new.values())))

    def at(self, indices: Sequence[Index], point: Sequence[int]) -> VectorScope:
        """With each of ``indices`` at one value."""
        return VectorScope(
            {**self.spans, **{i: IndexSpan(None, v, v + 1) for i, v in zip(indices, point, strict=True)}}, self.shape
        )

    def range_of(self, expr: Affine) -> tuple[int, int] | None:
        """Smallest and largest value of an affine expression in bound indices; ``None`` where other atoms occur."""
        low = high = expr.constant
        for atom, factor in expr.terms:
            span = self.spans.get(atom) if isinstance(atom, Index) else None
            if span is None:
                return None
            ends = span.low * factor, (span.high - 1) * factor
            low, high = low + min(ends), high + max(ends)
        return low, high


@dataclass
class VectorFacts:
    """What is remembered about expressions."""

    affines: dict[Expr, Affine] = field(default_factory=dict)
    frees: dict[Expr, frozenset[Index]] = field(default_factory=dict)

    def affine(self, expr: Expr) -> Affine:
        if expr not in self.affines:
            self.affines[expr] = affine(expr)
        return self.affines[expr]

    def free(self, expr: Expr) -> frozenset[Index]:
        """Indices that occur and that no Reduce inside binds."""
        if expr not in self.frees:
            found = frozenset().union(*(self.free(child) for child in expr.children))
            if isinstance(expr, Index):
                found = frozenset({expr})
            elif isinstance(expr, Reduce):
                found -= frozenset(expr.indices)
            self.frees[expr] = found
        return self.frees[expr]


@dataclass
class Evaluation:
    """Values of expressions in one scope. A value is remembered, by the expression's identity."""

    memory: Memory
    facts: VectorFacts
    refs: Mapping[Ref, Array]
    scope: VectorScope
    memo: dict[Expr, Array] = field(default_factory=dict)

    def value(self, expr: Expr) -> Array:
        """The expression at every point of the scope."""
        if expr not in self.memo:
            self.memo[expr] = trimmed(self._compute(expr))
        return self.memo[expr]

    def full(self, expr: Expr) -> Array:
        """The value with all axes of the scope, each of full extent."""
        return np.broadcast_to(lifted(self.value(expr), len(self.scope.shape)), self.scope.shape)

    def _compute(self, expr: Expr) -> Array:
        match expr:
            case Const(value=value, dtype=dtype):
                return functions.number(value, dtype)
            case Index():
                return self._index(expr)
            case Ref():
                if expr not in self.refs:
                    raise ProgramError(f"{expr.name} is used before it is defined")
                return self.refs[expr]
            case Cast(value=value, dtype=dtype):
                return functions.convert(self.value(value), dtype)
            case Apply(function="bitcast", arguments=(value,), dtype=dtype):
                return functions.reinterpret(self.value(value), dtype)
            case Apply(function=function, arguments=arguments):
                return functions.apply(function, aligned([self.value(argument) for argument in arguments]))
            case Load():
                return self._load(expr)
            case Reduce():
                return self._reduce(expr)
        raise ProgramError(f"{type(expr).__name__} is not an expression of the loop language")

    def _index(self, index: Index) -> Array:
        span = self.scope.spans.get(index)
        if span is None:
            raise ProgramError(f"index {index.name} is used outside of its loop")
        if span.axis is None:
            return np.asarray(span.low, np.int64)
        return np.arange(span.low, span.high).reshape((1,) * span.axis + (-1,))

    def _load(self, load: Load) -> Array:
        array = self.memory[load.buffer]
        subscripts = [self.facts.affine(i) for i in load.index]
        ranges = [self.scope.range_of(subscript) for subscript in subscripts]
        if all(r is not None for r in ranges):
            box = [r for r in ranges if r is not None]
            if all(low >= 0 and high < extent for (low, high), extent in zip(box, array.shape, strict=True)):
                return strided(array, subscripts, [0] * array.ndim, self.scope)
            if load.fill is not None and math.prod(high - low + 1 for low, high in box) <= MAX_BOX:
                padded = _box(array, box, functions.number(load.fill, load.dtype))
                return strided(padded, subscripts, [low for low, _ in box], self.scope)
        return self._gather(load, array)

    def _gather(self, load: Load, array: Array) -> Array:
        index, inside = self.subscripts(load.index, array.shape)
        if inside.all():
            return np.asarray(array[tuple(index)])
        if load.fill is None:
            raise ProgramError(f"{describe(load.buffer)} is read outside of its bounds")
        if array.size == 0:
            return np.broadcast_to(functions.number(load.fill, load.dtype), inside.shape)
        near = tuple(np.clip(i, 0, extent - 1) for i, extent in zip(index, array.shape, strict=True))
        return np.where(inside, array[near], functions.number(load.fill, load.dtype))

    def subscripts(self, index: Sequence[Expr], shape: Sequence[int]) -> tuple[list[Array], Array]:
        """Subscript arrays (that broadcast), and where all of them are inside of ``shape``."""
        arrays = aligned([self.value(i) for i in index])
        inside = np.asarray(True)
        for array, extent in zip(arrays, shape, strict=True):
            inside = inside & (array >= 0) & (array < extent)
        return arrays, inside

    def _reduce(self, reduce: Reduce) -> Array:
        extents = [index.extent for index in reduce.indices]
        if 0 in extents:
            return functions.identity(reduce.op, reduce.dtype)
        scope = self.scope.opened(reduce.indices, [(0, extent) for extent in extents])
        inner = Evaluation(self.memory, self.facts, self.refs, scope, dict(self.memo))
        rank = len(scope.shape)
        axes = tuple(range(rank - len(extents), rank))
        match reduce.body:
            case body if reduce.partials:
                result = _in_order(reduce, [lifted(inner.value(factor), rank) for factor in _summed(reduce)], scope)
            case Apply(function="mul", arguments=(a, b)) if reduce.op == "add" and reduce.dtype.name in ("f32", "f64"):
                result = contract(lifted(inner.value(a), rank), lifted(inner.value(b), rank), axes, scope.shape)
            case body:
                value = lifted(inner.value(body), rank)
                shape = tuple(scope.shape[k] if k in axes else extent for k, extent in enumerate(value.shape))
                result = functions.combine(reduce.op, np.broadcast_to(value, shape), axes)
        self._keep(inner, set(reduce.indices))
        return result

    def _keep(self, inner: Evaluation, bound: set[Index]) -> None:
        """Take over what does not depend on the reduction's indices."""
        for expr, value in inner.memo.items():
            if expr not in self.memo and not bound & self.facts.free(expr):
                self.memo[expr] = value


def _summed(reduce: Reduce) -> tuple[Expr, ...]:
    """The elements of a reduction in a stated order: the two factors where fused multiply-adds add products."""
    match reduce.body:
        case Apply(function="mul", arguments=(a, b)) if reduce.op == "add" and reduce.dtype.name == "f32":
            return a, b
    return (reduce.body,)


def _in_order(reduce: Reduce, factors: Sequence[Array], scope: VectorScope) -> Array:
    """A reduction over the last axis of a scope, in the order that it states; the result is without that axis."""
    *outer, _ = np.broadcast_shapes(*(array.shape for array in factors))
    full = [np.broadcast_to(array, (*outer, scope.shape[-1])) for array in factors]
    return functions.combine_in_order(reduce.op, full, reduce.dtype, reduce.partials)


def strided(
    array: Array, subscripts: Sequence[Affine], offsets: Sequence[int], scope: VectorScope, *, writeable: bool = False
) -> Array:
    """A view of the elements at ``subscripts`` - ``offsets`` at every point of a scope; all must be in bounds."""
    strides, shape = [0] * len(scope.shape), [1] * len(scope.shape)
    corner: list[Any] = []
    for subscript, start, step in zip(subscripts, offsets, array.strides, strict=True):
        first = subscript.constant - start
        for atom, factor in subscript.terms:
            assert isinstance(atom, Index)
            span = scope.spans[atom]
            first += factor * span.low
            if span.axis is not None:
                strides[span.axis] += factor * step
                shape[span.axis] = span.width
        corner.append(slice(first, None))
    corner.append(...)  # keeps rank 0 a view
    start_at = array[tuple(corner)]
    if array.dtype.itemsize == 1:  # NumPy cannot name every type of one byte in an array interface
        raw = np.lib.stride_tricks.as_strided(start_at.view(np.uint8), shape, strides, writeable=writeable)
        return raw.view(array.dtype)
    return np.lib.stride_tricks.as_strided(start_at, shape, strides, writeable=writeable)


def _box(array: Array, box: Sequence[tuple[int, int]], fill: Array) -> Array:
    """The elements in an inclusive box of subscripts, ``fill`` where it sticks out."""
    result = np.full([high - low + 1 for low, high in box], fill, array.dtype)
    kept = [(max(low, 0), min(high, extent - 1)) for (low, high), extent in zip(box, array.shape, strict=True)]
    if all(low <= high for low, high in kept):
        target = tuple(slice(a - low, b - low + 1) for (a, b), (low, _) in zip(kept, box, strict=True))
        result[target] = array[tuple(slice(a, b + 1) for a, b in kept)]
    return result


def contract(a: Array, b: Array, axes: Sequence[int], shape: Sequence[int]) -> Array:
    """The sum of a * b over ``axes``, as a (batched) matrix product. Extents of a and b are 1 or those of ``shape``."""
    for axis in axes:
        if a.shape[axis] == 1 and b.shape[axis] == 1:
            a = a * a.dtype.type(shape[axis])
        elif a.shape[axis] == 1:
            b = b.sum(axis=axis, keepdims=True, dtype=b.dtype)
        elif b.shape[axis] == 1:
            a = a.sum(axis=axis, keepdims=True, dtype=a.dtype)
    outer = [k for k in range(a.ndim) if k not in axes]
    batch = [k for k in outer if a.shape[k] == b.shape[k]]
    rows = [k for k in outer if k not in batch and b.shape[k] == 1]
    columns = [k for k in outer if k not in batch and a.shape[k] == 1]
    left = _folded(a, batch, rows, list(axes))
    right = _folded(b, batch, list(axes), columns)
    product = np.matmul(left, right).reshape([*(a.shape[k] for k in (*batch, *rows)), *(b.shape[k] for k in columns)])
    order = np.argsort([*batch, *rows, *columns])
    result: Array = product.transpose(order)
    return result


def _folded(array: Array, *groups: list[int]) -> Array:
    """Transposed to the order of the groups, each group folded into one axis; axes in no group have extent 1."""
    order = [k for group in groups for k in group]
    rest = [k for k in range(array.ndim) if k not in order]
    moved = array.transpose(*order, *rest)
    return moved.reshape([math.prod(array.shape[k] for k in group) for group in groups])


def trimmed(array: Array) -> Array:
    """Without trailing axes of extent 1."""
    rank = array.ndim
    while rank and array.shape[rank - 1] == 1:
        rank -= 1
    return array.reshape(array.shape[:rank]) if rank < array.ndim else array


def lifted(array: Array, rank: int) -> Array:
    """With trailing axes of extent 1 up to ``rank``."""
    return array.reshape(array.shape + (1,) * (rank - array.ndim)) if array.ndim < rank else array


def aligned(arrays: Sequence[Array]) -> list[Array]:
    """All with as many axes as the longest."""
    rank = max((array.ndim for array in arrays), default=0)
    return [lifted(array, rank) for array in arrays]
