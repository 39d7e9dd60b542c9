"""The largest or smallest elements along an axis, in order.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator, static
from glowtrain.loops import Const, Expr, For, Index, Let, Ref, Statement, Tensor, call, cast, indices_of, reduce, select
from glowtrain.ops.family import Grads, normalize_axis
from glowtrain.ops.index import ScatterElements
from glowtrain.ops.move import Slice
from glowtrain.ops.reduction import filled, widened
from glowtrain.types import Array, TensorType, boolean, i32, i64

Row = Callable[[Expr | int], list[Expr | int]]
"""Subscripts of a place in a row."""


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
        if x.dtype.kind == "bool" or not x.rank:
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

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(-len(shape), len(shape) - 1)
        k = draw.integer(1, shape[axis])
        return Sample(cls(k, axis, draw.boolean(), draw.boolean()), (draw.floats(shape),))


@operator
@dataclass(frozen=True)
class TopK(Ordered):
    """The ``k`` largest elements along ``axis``, or with ``largest`` False the smallest, and their positions."""

    def decompose(self, x: Value) -> tuple[Value, Value]:
        """By what is likely cheapest: choosing one after another, counting, or sorting all."""
        n = x.shape[self.axis]
        if min(SELECT * self.k, COUNT * n) * n <= SORT * sum(pairs * steps for pairs, steps in _network(n)):
            chosen: tuple[Value, Value] = Selection(self.k, self.axis, self.largest)(x)
            return chosen
        values, indices = Sorting(n, self.axis, self.largest)(x)
        cut = Slice((0,), (self.k,), (self.axis,))
        return cut(values), cut(indices)


SELECT, COUNT, SORT = 3.0, 0.7, 4.0
"""Nanoseconds that choosing takes for an element and a result, counting for a pair, and sorting for a comparison."""


@operator
@dataclass(frozen=True)
class Selection(Ordered):
    """:class:`TopK` without a sort: for few elements, or few results."""

    domain: ClassVar[str] = "glowtrain"

    def decompose(self, x: Value) -> tuple[Value, Value]:
        result: tuple[Value, Value] = TopK(self.k, self.axis, self.largest, self.sorted)(x)
        return result

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), axis = inputs, self.axis % len(inputs[0].shape)
        outer = indices_of((*x.shape[:axis], *x.shape[axis + 1 :]))

        def row(place: Expr | int) -> list[Expr | int]:
            return [*outer[:axis], place, *outer[axis:]]

        method = self._by_rank if SELECT * self.k > COUNT * x.shape[axis] else self._by_selection
        statements = method(x, outputs, row, x.shape[axis])
        return [For(outer, tuple(statements))] if outer else statements

    def _by_rank(self, x: Tensor, outputs: tuple[Tensor, ...], row: Row, extent: int) -> list[Statement]:
        """Each element goes to the place that the number of elements before it says, if that is less than k."""
        (i,), (j,), rank = indices_of((extent,)), indices_of((self.k,), "j"), Ref(i64, "rank")
        own, last = x[row(i)], max(self.k - 1, 0)

        def counted(j: Expr) -> Expr:
            return cast(self.precedes(x[row(j)], j, own, i), i32)

        values, indices = outputs
        place = row(call("max", call("min", rank, last), 0))
        stores = (
            values.store(place, select(rank <= last, own, values[place])),
            indices.store(place, select(rank <= last, i, indices[place])),
        )
        start = For((j,), (values.store(row(j), Const(0, x.dtype)), indices.store(row(j), Const(0, i64))))
        count = Let(rank, cast(reduce("add", (extent,), counted), i64))
        return [start, For((i,), (count, *stores), serial=True)]

    def _by_selection(self, x: Tensor, outputs: tuple[Tensor, ...], row: Row, extent: int) -> list[Statement]:
        """The best of the elements that come after the one found before, k times."""
        values, indices = outputs
        (j,) = indices_of((self.k,), "j")
        last_value, last_index = Ref(x.dtype, "last_value"), Ref(i64, "last_index")
        best, place = Ref(x.dtype, "best"), Ref(i64, "place")
        worst = _limit(x.dtype.numpy, low=self.largest)

        def left(i: Expr) -> Expr:
            return (last_index < 0) | self.precedes(last_value, last_index, x[row(i)], i)

        def candidate(i: Expr) -> Expr:
            own = x[row(i)]
            number = left(i) if self.largest or not own.dtype.is_float else left(i) & call("eq", own, own)
            return select(number, own, worst)

        def hit(i: Expr) -> Expr:
            own = x[row(i)]
            same = call("eq", own, best)
            nan = call("isnan", own) & call("isnan", best) if own.dtype.is_float else same
            return select(left(i) & (same | nan), i, extent)

        found = reduce("min", (extent,), hit)
        if x.dtype.is_float and not self.largest:
            found = call("min", found, select(found < extent, found, self._first(left, extent)))
        step = For(
            (j,),
            (
                Let(last_value, values.load(row(j - 1), fill=0)),
                Let(last_index, indices.load(row(j - 1), fill=-1)),
                Let(best, reduce("max" if self.largest else "min", (extent,), candidate)),
                Let(place, found),
                values.store(row(j), x.load(row(place), fill=0)),
                indices.store(row(j), place),
            ),
            serial=True,
        )
        return [step]

    def _first(self, left: Callable[[Expr], Expr], extent: int) -> Expr:
        """The first element that is left: only NaNs are."""
        return reduce("min", (extent,), lambda i: select(left(i), i, extent))


@operator
@dataclass(frozen=True)
class Sorting(Ordered):
    """:class:`TopK` of all elements, by a bitonic sorting network in place (Batcher 1968).

    In its form without descending comparisons, where each merge first compares places that mirror each other, places
    beyond the end take no part; so any length will do.
    """

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        result = super().infer(*inputs)
        if self.k != inputs[0].shape[self.axis]:
            raise self.fail("k must be the extent of the axis", *inputs)
        return result

    def decompose(self, x: Value) -> tuple[Value, Value]:
        result: tuple[Value, Value] = TopK(self.k, self.axis, self.largest, self.sorted)(x)
        return result

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), (values, indices), axis = inputs, outputs, self.axis % len(inputs[0].shape)
        outer = indices_of((*x.shape[:axis], *x.shape[axis + 1 :]))

        def row(place: Expr | int) -> list[Expr | int]:
            return [*outer[:axis], place, *outer[axis:]]

        (i,) = indices_of((self.k,))
        start = For((i,), (values.store(row(i), x[row(i)]), indices.store(row(i), i)))
        merges = (self._merge(values, indices, row, level, pairs) for level, (pairs, _) in enumerate(_network(self.k)))
        statements = (start, *(statement for merge in merges for statement in merge))
        return [For(outer, statements)] if outer else list(statements)

    def _merge(self, values: Tensor, indices: Tensor, row: Row, level: int, pairs: int) -> Iterator[Statement]:
        """Sorted runs of 2^level elements become runs of twice the length."""
        (t,), half = indices_of((pairs,), "t"), 1 << level
        first = t // half * (2 * half) + t % half
        yield self._compare(values, indices, row, t, first, t // half * (4 * half) + (2 * half - 1) - first)
        if level:
            (t,), (s,) = indices_of((pairs,), "t"), indices_of((level,), "s")
            step = call("shift_right", Const(half, i64), s + 1)
            first = t * 2 - call("and", t, step - 1)
            yield For((s,), (self._compare(values, indices, row, t, first, first + step),), serial=True)

    def _compare(self, values: Tensor, indices: Tensor, row: Row, t: Index, first: Expr, second: Expr) -> Statement:
        """Bring the pairs (first, second) in order; a pair whose second place is beyond the end is left alone."""
        inside = second < self.k
        low, high = (call("max", call("min", place, self.k - 1), 0) for place in (first, second))
        a, b = Ref(values.dtype, "a"), Ref(values.dtype, "b")
        i, j = Ref(i64, "i"), Ref(i64, "j")
        swap = Ref(boolean, "swap")
        return For(
            (t,),
            (
                Let(a, values[row(low)]),
                Let(b, values[row(high)]),
                Let(i, indices[row(low)]),
                Let(j, indices[row(high)]),
                Let(swap, inside & self.precedes(b, j, a, i)),
                values.store(row(high), select(swap, a, b)),
                indices.store(row(high), select(swap, i, j)),
                values.store(row(low), select(swap, b, a)),
                indices.store(row(low), select(swap, j, i)),
            ),
            serial=True,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3, max_extent=9)
        axis = draw.integer(-len(shape), len(shape) - 1)
        return Sample(cls(shape[axis], axis, draw.boolean()), (draw.floats(shape),))


def _network(n: int) -> list[tuple[int, int]]:
    """For each merge of a sorting network: the pairs that a step compares, and its steps."""
    levels = max(n - 1, 0).bit_length()
    return [(-(-n // (2 << level)) << level, level + 1) for level in range(levels)]


def _limit(dtype: np.dtype[Any], *, low: bool) -> float | int:
    """The least or the greatest number of a type."""
    if dtype.kind not in "iu":
        return -np.inf if low else np.inf
    limits = np.iinfo(dtype)
    return int(limits.min if low else limits.max)
