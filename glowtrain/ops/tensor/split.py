"""Cutting a tensor into pieces.

Semantics: https://onnx.ai/onnx/operators/onnx__Split.html at the newest opset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator, static
from glowtrain.graph.operator import Quantized
from glowtrain.loops import For, Statement, Tensor, indices_of
from glowtrain.ops.core.family import Grads, normalize_axis
from glowtrain.ops.tensor.move import Concat, Ints, zeros
from glowtrain.types import Array, TensorType, i64


@operator
@dataclass(frozen=True)
class Split(Operator):
    """Consecutive pieces along ``axis``: of the sizes ``split``, or ``num_outputs`` equal ones (the last smaller).

    ``reference`` always gives a tuple; applied to a value, one piece is a bare value.
    """

    split: Ints | None = static(1, None)
    num_outputs: int | None = None
    axis: int = 0

    quantized: ClassVar[Quantized] = "passes"
    copies: ClassVar[bool] = True

    @classmethod
    def from_onnx(cls, attributes: dict[str, Any], inputs: tuple[TensorType | None, ...], outputs: int) -> Split:
        """Up to opset 17, neither sizes nor ``num_outputs`` means one equal piece for each output."""
        if "split" not in attributes:
            attributes = {"num_outputs": outputs, **attributes}
        return cls(**attributes)

    def sizes(self, type_: TensorType) -> Ints:
        """The pieces' extents. Raises :class:`ShapeError`."""
        extent = type_.shape[normalize_axis(self, self.axis, type_)]
        if (self.split is None) == (self.num_outputs is None):
            raise self.fail("exactly one of split and num_outputs must be given", type_)
        if self.num_outputs is not None:
            if self.num_outputs < 1:
                raise self.fail("num_outputs must be at least 1", type_)
            chunk = -(-extent // self.num_outputs)
            return tuple(max(0, min(chunk, extent - i * chunk)) for i in range(self.num_outputs))
        sizes = self.split or ()
        if not sizes or sum(sizes) != extent or min(sizes) < 0:
            raise self.fail(f"sizes must be non-negative and add up to {extent}, not {sum(sizes)}", type_)
        return sizes

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = inputs
        axis = normalize_axis(self, self.axis, x)
        return tuple(x.with_shape((*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in self.sizes(x))

    def reference(self, x: Array) -> tuple[Array, ...]:
        ends = np.cumsum(self.sizes(TensorType(i64, x.shape)))[:-1]
        return tuple(np.split(x, ends, self.axis))

    def vjp(self, g: Any, y: Any, x: Value) -> Grads:
        if len(self.sizes(x.type)) == 1:
            return (g,)
        parts = [zeros(piece.type) if part is None else part for part, piece in zip(g, y, strict=True)]
        return (Concat(self.axis % x.rank)(*parts),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (x,) = inputs
        axis, offset, nests = self.axis % len(x.shape), 0, list[Statement]()
        for y in outputs:
            index = indices_of(y.shape)
            position = (*index[:axis], index[axis] + offset if offset else index[axis], *index[axis + 1 :])
            nests.append(For(index, (y.store(index, x[position]),)))
            offset += y.shape[axis]
        return nests

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=1, max_rank=3)
        axis = draw.integer(-len(shape), len(shape) - 1)
        if draw.boolean():
            return Sample(cls(None, draw.integer(1, shape[axis]), axis), (draw.floats(shape),))
        sizes = tuple(draw.integer(0 if draw.integer(0, 5) == 0 else 1, 3) for _ in range(draw.integer(1, 3)))
        at = axis % len(shape)
        return Sample(cls(sizes, None, axis), (draw.floats((*shape[:at], sum(sizes), *shape[at + 1 :])),))
