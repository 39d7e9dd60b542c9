"""A tensor as it lies in memory, for passing it from one compiled function to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.loops import Expr
from glowtrain.ops.core.family import Grads, Move
from glowtrain.ops.tensor.move import Ints, Transpose
from glowtrain.types import Array, Shape, TensorType


def inverse(perm: Sequence[int]) -> Ints:
    """The permutation that undoes another one."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


@operator
@dataclass(frozen=True)
class MemoryOrder(Move):
    """Transpose, by which neither side moves in memory: an operand that is a model's input makes its result lie as it
    does, a result that is an output its operand. What a part of a network gives is so laid out as in the whole."""

    domain: ClassVar[str] = "glowtrain"

    perm: Ints

    @property
    def transpose(self) -> Transpose:
        """The same as a standard operator."""
        return Transpose(self.perm)

    def infer(self, *inputs: TensorType) -> TensorType:
        return self.transpose.infer(*inputs)

    def reference(self, x: Array) -> Array:
        return self.transpose.reference(x)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (MemoryOrder(inverse(self.perm))(g),)

    def source(self, index: Sequence[Expr], shape: Shape) -> Sequence[Expr | int]:
        return self.transpose.source(index, shape)

    def layouts(self, x: TensorType) -> tuple[Shape | None, ...]:
        return inverse(self.perm), self.perm

    def decompose(self, x: Value) -> Value:
        result: Value = self.transpose(x)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        drawn = Transpose.sample(draw)
        (x,) = drawn.inputs
        assert isinstance(drawn.operator, Transpose)
        assert x is not None
        return Sample(cls(drawn.operator.order(x.ndim)), drawn.inputs)
