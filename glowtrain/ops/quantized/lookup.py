"""Functions of a byte, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.loops import Statement, Tensor, cast, pointwise
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.quantized.convert import limits
from glowtrain.ops.quantized.integer_products import BYTES, draw_bytes
from glowtrain.types import Array, TensorType, i8, i32, i64, u8


@operator
@dataclass(frozen=True)
class Lookup(Operator):
    """y = table[x - least byte]: a table of 256 elements of any type, read at each element of x, which is i8 or u8."""

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "its operand is an integer, and tables are not trained"

    def infer(self, *inputs: Any) -> TensorType:
        if len(inputs) != 2 or any(x is None for x in inputs):
            raise self.fail("takes a table and x", *inputs)
        table, x = inputs
        if x.dtype not in BYTES or table.shape != (256,):
            raise self.fail("x must be i8 or u8, and the table must have 256 elements", *inputs)
        result: TensorType = x.with_dtype(table.dtype)
        return result

    def reference(self, table: Array, x: Array) -> Array:
        return np.take(table, x.astype(np.int64) - np.iinfo(x.dtype).min)

    def decompose(self, table: Value, x: Value) -> Value:
        positions: Value = Cast(i32)(x) - limits(x.dtype)[0]
        result: Value = Gather(axis=0)(table, positions)
        return result

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        table, x = inputs
        least = limits(x.dtype)[0]
        return pointwise(outputs[0], lambda *index: table.load((cast(x[index], i64) - least,)))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(), (draw_bytes(draw, (256,), u8), draw_bytes(draw, draw.shape(), draw.choice((i8, u8)))))
