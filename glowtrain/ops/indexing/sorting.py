"""The first elements along an axis in an order, and a sorting network for long rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Named, Operator, Sample, Value, operator, static
from glowtrain.loops import (
    Const,
    Expr,
    For,
    Index,
    Let,
    Ref,
    Statement,
    Tensor,
    bitcast,
    call,
    cast,
    indices_of,
    select,
)
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.reduce.reduction import filled, widened
from glowtrain.types import Array, TensorType, boolean, f32, i32, i64

Row = Callable[[Expr | int], list[Expr | int]]
"""Subscripts of a position in a row."""

_KEY_BITS = 32


@dataclass(frozen=True)
class Ordered(Operator):
    """The first ``k`` elements along ``axis`` in an order, and their positions as i64.

    The largest come first, or with ``largest`` False the smallest; of equal elements the first, also where ``sorted``
    does not ask for order. NaN counts as larger than all numbers, as in NumPy's sort.
    """

    k: int = static(1)
    axis: int = -1
    largest: bool = True
    sorted: bool = True

    def attributes(self) -> dict[str, Any]:
        """As in ONNX: k is a list of one number."""
        return {**super().attributes(), "k": (self.k,)}

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        if not x.dtype.is_number or not x.rank:
            raise self.fail("the operand must be numbers, of rank 1 or more", x)
        axis = normalize_axis(self, self.axis, x)
        if not 0 <= self.k <= x.shape[axis]:
            raise self.fail(f"k must be from 0 to {x.shape[axis]}, the extent of axis {axis}", x)
        values = x.with_shape((*x.shape[:axis], self.k, *x.shape[axis + 1 :]))
        return values, values.with_dtype(i64)

    def reference(self, x: Array) -> tuple[Array, Array]:
        wide, extent = widened(x), x.shape[self.axis]
        if self.largest:
            back = np.argsort(np.flip(wide, self.axis), self.axis, kind="stable")
            order = np.flip(extent - 1 - back, self.axis)
        else:
            order = np.argsort(wide, self.axis, kind="stable")
        chosen = np.take(order, np.arange(self.k), self.axis).astype(np.int64)
        return np.take_along_axis(x, chosen, self.axis), chosen

    def vjp(self, g: Any, y: Any, x: Value) -> Grads:
        if g[0] is None:
            return (None,)
        return (ScatterElements(axis=self.axis, reduction="add")(filled(0, x.type), y[1], g[0]),)

    def precedes(self, a: Expr, i: Expr, b: Expr, j: Expr) -> Expr:
        """Whether element a at i stands before element b at j."""
        numbers = (a > b if self.largest else a < b) | (call("eq", a, b) & (i < j))
        if not a.dtype.is_float:
            return numbers
        nan_a, nan_b = call("isnan", a), call("isnan", b)
        first, second = (nan_a, nan_b) if self.largest else (nan_b, nan_a)
        return numbers | (first & (call("not", second) | (i < j)))

    def standard(self, x: Value) -> tuple[Value, Value]:
        """The same by ONNX's operator."""
        fields = {name: getattr(self, name) for name in ("k", "axis", "largest", "sorted")}
        result: tuple[Value, Value] = Named("TopK")(**fields)(x)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(-len(shape), len(shape) - 1)
        k = draw.integer(1, shape[axis])
        return Sample(cls(k, axis, draw.boolean(), draw.boolean()), (draw.floats(shape),))


@operator
@dataclass(frozen=True)
class Sorting(Ordered):
    """All elements in order, by a bitonic sorting network in place (Batcher 1968).

    In its form without descending comparisons, where each merge first compares positions that mirror each other,
    positions beyond the end take no part; so any length will do. Elements of up to 32 bits are sorted as 64-bit
    integers of an ordered key and the position.
    """

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        result = super().infer(*inputs)
        if self.k != inputs[0].shape[self.axis]:
            raise self.fail("k must be the extent of the axis", *inputs)
        return result

    def decompose(self, x: Value) -> tuple[Value, Value]:
        return self.standard(x)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (values, indices), axis = inputs, outputs, self.axis % len(inputs[0].shape)
        outer = indices_of((*x.shape[:axis], *x.shape[axis + 1 :]))

        def row(position: Expr | int) -> list[Expr | int]:
            return [*outer[:axis], position, *outer[axis:]]

        sort = self._by_keys if x.dtype.size * 8 <= _KEY_BITS else self._by_pairs
        statements = sort(x, values, indices, row)
        return [For(outer, tuple(statements))] if outer else statements

    def _by_keys(self, x: Tensor, values: Tensor, indices: Tensor, row: Row) -> list[Statement]:
        """Keys joined with positions are sorted where the positions go."""
        (i,), (j,) = indices_of((self.k,)), indices_of((self.k,))

        def exchange(low: Expr, high: Expr) -> tuple[Statement, ...]:
            a, b = Ref(i64, "a"), Ref(i64, "b")
            less, more = indices.store(row(low), call("min", a, b)), indices.store(row(high), call("max", a, b))
            return Let(a, indices[row(low)]), Let(b, indices[row(high)]), less, more

        start = For((i,), (indices.store(row(i), call("shift_left", self._key(x[row(i)]), _KEY_BITS) + i),))
        at = Ref(i64, "place")
        position = Let(at, call("and", indices[row(j)], (1 << _KEY_BITS) - 1))
        element = values.store(row(j), x.load(row(at), fill=0))
        return [start, *network(self.k, exchange), For((j,), (position, element, indices.store(row(j), at)))]

    def _key(self, x: Expr) -> Expr:
        """An i64 of 32 bits that orders as the elements do: floats by their bits, NaN above all."""
        if x.dtype.is_float:
            whole = bitcast(cast(x, f32) + 0.0, i32)
            magnitude = call("and", whole, 0x7FFFFFFF)
            signed = select(whole < 0, -magnitude, magnitude)
            key = cast(select(call("isnan", x), 0x7FFFFFFF, signed), i64)
        else:
            key = cast(x, i64) - (1 << 31 if x.dtype.kind == "uint" else 0)
        return -1 - key if self.largest else key

    def _by_pairs(self, x: Tensor, values: Tensor, indices: Tensor, row: Row) -> list[Statement]:
        """Elements and positions move together."""
        (k,) = indices_of((self.k,))

        def exchange(low: Expr, high: Expr) -> tuple[Statement, ...]:
            a, b, i, j = Ref(x.dtype, "a"), Ref(x.dtype, "b"), Ref(i64, "i"), Ref(i64, "j")
            swap = Ref(boolean, "swap")
            return (
                Let(a, values[row(low)]),
                Let(b, values[row(high)]),
                Let(i, indices[row(low)]),
                Let(j, indices[row(high)]),
                Let(swap, self.precedes(b, j, a, i)),
                values.store(row(low), select(swap, b, a)),
                indices.store(row(low), select(swap, j, i)),
                values.store(row(high), select(swap, a, b)),
                indices.store(row(high), select(swap, i, j)),
            )

        start = For((k,), (values.store(row(k), x[row(k)]), indices.store(row(k), k)))
        return [start, *network(self.k, exchange)]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3, max_extent=9)
        axis = draw.integer(-len(shape), len(shape) - 1)
        return Sample(cls(shape[axis], axis, draw.boolean()), (draw.floats(shape),))


def merges(n: int) -> list[tuple[int, int]]:
    """For each merge of a sorting network: the pairs that a step compares, and its steps."""
    levels = max(n - 1, 0).bit_length()
    return [(-(-n // (2 << level)) << level, level + 1) for level in range(levels)]


def network(n: int, exchange: Callable[[Expr, Expr], tuple[Statement, ...]]) -> Iterator[Statement]:
    """Loops that sort ``n`` positions; ``exchange(low, high)`` brings two of them in order."""
    for level, (pairs, _) in enumerate(merges(n)):
        (t,), half = indices_of((pairs,), "t"), 1 << level
        first = t // half * (2 * half) + t % half
        yield _compare(n, t, first, t // half * (4 * half) + (2 * half - 1) - first, exchange)
        if level:
            (t,), (s,) = indices_of((pairs,), "t"), indices_of((level,), "s")
            step = call("shift_right", Const(half, i64), s + 1)
            first = t * 2 - call("and", t, step - 1)
            yield For((s,), (_compare(n, t, first, first + step, exchange),), serial=True)


def _compare(
    n: int, t: Index, first: Expr, second: Expr, exchange: Callable[[Expr, Expr], tuple[Statement, ...]]
) -> Statement:
    """Exchange the pairs (first, second); a position whose partner is beyond the end is compared with itself."""
    low = call("max", call("min", first, n - 1), 0)
    high = call("max", call("min", select(second < n, second, first), n - 1), 0)
    return For((t,), exchange(low, high), serial=True)
