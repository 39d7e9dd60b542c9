"""The largest or smallest elements along an axis, in order.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.loops import Const, Expr, For, Let, Ref, Statement, Tensor, call, cast, indices_of, reduce, select
from glowtrain.ops.indexing.sorting import Ordered, Row, Sorting, merges
from glowtrain.ops.tensor.move import Slice
from glowtrain.stages import DEFAULT, Costs
from glowtrain.types import i32, i64


@operator
@dataclass(frozen=True)
class TopK(Ordered):
    """The ``k`` largest elements along ``axis``, or with ``largest`` False the smallest, and their positions."""

    def decompose(self, x: Value) -> tuple[Value, Value]:
        return self.decompose_for(DEFAULT.facts.costs, x)

    def decompose_for(self, costs: Costs, x: Value) -> tuple[Value, Value]:
        """By what is likely cheapest: choosing one after another, counting, or sorting all."""
        n = x.shape[self.axis]
        choosing, counting = costs.select * self.k, costs.count * n
        sort = costs.sort_pairs if x.dtype.size > 4 else costs.sort_keys
        if min(choosing, counting) * n <= sort * sum(pairs * steps for pairs, steps in merges(n)):
            chosen: tuple[Value, Value] = Selection(self.k, self.axis, self.largest, by_rank=choosing > counting)(x)
            return chosen
        values, indices = Sorting(n, self.axis, self.largest)(x)
        cut = Slice((0,), (self.k,), (self.axis,))
        return cut(values), cut(indices)


@operator
@dataclass(frozen=True)
class Selection(Ordered):
    """:class:`TopK` without a sort: for few results by choosing one after another, or for few elements, ``by_rank``, by
    the number of elements that come before each."""

    by_rank: bool = False

    domain: ClassVar[str] = "glowtrain"

    def decompose(self, x: Value) -> tuple[Value, Value]:
        return self.standard(x)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x,), axis = inputs, self.axis % len(inputs[0].shape)
        outer = indices_of((*x.shape[:axis], *x.shape[axis + 1 :]))

        def row(position: Expr | int) -> list[Expr | int]:
            return [*outer[:axis], position, *outer[axis:]]

        method = self._by_rank if self.by_rank else self._by_selection
        statements = method(x, outputs, row, x.shape[axis])
        return [For(outer, tuple(statements))] if outer else statements

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        sample = super().sample(draw)
        return Sample(sample.operator.replace(by_rank=draw.boolean()), sample.inputs)

    def _by_rank(self, x: Tensor, outputs: tuple[Tensor, ...], row: Row, extent: int) -> list[Statement]:
        """Each element goes to the position that the number of elements before it says, if that is less than k."""
        (i,), (j,), rank = indices_of((extent,)), indices_of((self.k,), "j"), Ref(i64, "rank")
        own, last = x[row(i)], max(self.k - 1, 0)

        def counted(j: Expr) -> Expr:
            return cast(self.precedes(x[row(j)], j, own, i), i32)

        values, indices = outputs
        position = row(call("max", call("min", rank, last), 0))
        stores = (
            values.store(position, select(rank <= last, own, values[position])),
            indices.store(position, select(rank <= last, i, indices[position])),
        )
        start = For((j,), (values.store(row(j), Const(0, x.dtype)), indices.store(row(j), Const(0, i64))))
        count = Let(rank, cast(reduce("add", (extent,), counted), i64))
        return [start, For((i,), (count, *stores), serial=True)]

    def _by_selection(self, x: Tensor, outputs: tuple[Tensor, ...], row: Row, extent: int) -> list[Statement]:
        """The best of the elements that come after the one found before, k times."""
        values, indices = outputs
        (j,) = indices_of((self.k,), "j")
        last_value, last_index = Ref(x.dtype, "last_value"), Ref(i64, "last_index")
        best, position = Ref(x.dtype, "best"), Ref(i64, "place")
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
                Let(position, found),
                values.store(row(j), x.load(row(position), fill=0)),
                indices.store(row(j), position),
            ),
            serial=True,
        )
        return [step]

    def _first(self, left: Callable[[Expr], Expr], extent: int) -> Expr:
        """The first element that is left: only NaNs are."""
        return reduce("min", (extent,), lambda i: select(left(i), i, extent))


def _limit(dtype: np.dtype[Any], *, low: bool) -> float | int:
    """The least or the greatest number of a type."""
    if dtype.kind not in "iu":
        return -np.inf if low else np.inf
    limits = np.iinfo(dtype)
    return int(limits.min if low else limits.max)
