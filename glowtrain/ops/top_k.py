"""The largest or smallest elements along an axis, in order.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator, static
from glowtrain.loops import Const, Expr, For, Let, Ref, Statement, Tensor, call, cast, indices_of, reduce, select
from glowtrain.ops.family import Grads, normalize_axis
from glowtrain.ops.index import ScatterElements
from glowtrain.ops.reduction import filled, widened
from glowtrain.types import Array, TensorType, i32, i64

Row = Callable[[Expr | int], list[Expr | int]]
"""Subscripts of a place in a row."""


@operator
@dataclass(frozen=True)
class TopK(Operator):
    """The ``k`` largest elements along ``axis``, or with ``largest`` False the smallest, and their positions as i64.

    In order, the first of equal elements first, also where ``sorted`` does not ask for it. NaN counts as larger than
    all numbers, as in NumPy's sort.
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

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), axis = inputs, self.axis % len(inputs[0].shape)
        outer = indices_of((*x.shape[:axis], *x.shape[axis + 1 :]))

        def row(place: Expr | int) -> list[Expr | int]:
            return [*outer[:axis], place, *outer[axis:]]

        method = self._by_rank if 2 * self.k > x.shape[axis] else self._by_selection
        statements = method(x, outputs, row, x.shape[axis])
        return [For(outer, tuple(statements))] if outer else statements

    def _by_rank(self, x: Tensor, outputs: tuple[Tensor, ...], row: Row, extent: int) -> list[Statement]:
        """Each element goes to the place that the number of elements before it says, if that is less than k."""
        (i,), (j,), rank = indices_of((extent,)), indices_of((self.k,), "j"), Ref(i64, "rank")
        own, last = x[row(i)], max(self.k - 1, 0)

        def counted(j: Expr) -> Expr:
            return cast(self._precedes(x[row(j)], j, own, i), i32)

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
            return (last_index < 0) | self._precedes(last_value, last_index, x[row(i)], i)

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

    def _precedes(self, a: Expr, i: Expr, b: Expr, j: Expr) -> Expr:
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


def _limit(dtype: np.dtype[Any], *, low: bool) -> float | int:
    """The least or the greatest number of a type."""
    if dtype.kind not in "iu":
        return -np.inf if low else np.inf
    limits = np.iinfo(dtype)
    return int(limits.min if low else limits.max)
