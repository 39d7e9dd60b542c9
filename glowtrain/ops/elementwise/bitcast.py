"""The bits of a tensor as another element type.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, operator
from glowtrain.loops import Expr, bitcast
from glowtrain.ops.core.family import Elementwise
from glowtrain.types import Array, DType, TensorType, boolean, f32, i8, i32, u8, u32


@operator
@dataclass(frozen=True)
class BitCast(Elementwise):
    """The bits of x as element type ``to`` of the same width; a byte is true as a bool unless it is 0."""

    to: DType

    kinds: ClassVar[frozenset[str]] = frozenset({"float", "int", "uint", "bool", "stored"})
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "bits are not numbers"

    def check_operands(self, *inputs: TensorType) -> None:
        super().check_operands(*inputs)
        if bits(self.to) != bits(inputs[0].dtype):
            raise self.fail(f"{self.to} has {bits(self.to)} bits, and {inputs[0].dtype} other", *inputs)
        if bits(self.to) < 8:
            raise self.fail("types of less than a byte are not supported", *inputs)

    def result_dtype(self, *inputs: TensorType) -> DType:
        return self.to

    def reference(self, x: Array) -> Array:
        return x != 0 if self.to == boolean else np.ascontiguousarray(x).view(self.to.numpy).reshape(x.shape)

    def scalar(self, x: Expr) -> Expr:
        return bitcast(x, self.to)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        kind, shape = draw.choice(("float", "int", "bool", "byte")), draw.shape()
        if kind == "float":
            narrow = draw.choice((i32, u32))
            return Sample(cls(narrow), (draw.floats(shape).astype(np.float32),))
        if kind == "bool":
            return Sample(cls(draw.choice((i8, u8))), (draw.booleans(shape),))
        if kind == "byte":
            return Sample(cls(draw.choice((boolean, i8))), (draw.integers(shape, 0, 255).astype(np.uint8),))
        return Sample(cls(f32), (draw.floats(shape).astype(np.float32).view(np.int32),))


def bits(dtype: DType) -> int:
    """The width of an element type, from its name; 8 for bool."""
    number = re.match(r"[a-z]+(\d+)", dtype.name)
    return 8 if number is None else int(number[1])
