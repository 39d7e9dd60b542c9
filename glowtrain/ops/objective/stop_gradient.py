"""What gradients do not pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.ops.elementwise.logic import Identity
from glowtrain.types import Array, TensorType


@operator
@dataclass(frozen=True)
class StopGradient(Operator):
    """x; no gradient flows back through it."""

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "it stops gradients on purpose"

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0]

    def reference(self, x: Array) -> Array:
        return x

    def decompose(self, x: Value) -> Value:
        result: Value = Identity()(x)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(), (draw.floats(draw.shape()),))
