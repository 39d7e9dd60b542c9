"""Blocks of pixels to channels and back.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.ops.tensor.move import Ints, Transpose, reshape
from glowtrain.types import Array, Shape, TensorType


@dataclass(frozen=True)
class BlockMove(Operator):
    """Axes split, exchanged and joined again, by blocks of ``blocksize`` × ``blocksize`` pixels."""

    blocksize: int
    mode: Literal["DCR", "CRD"] = "DCR"

    quantized: ClassVar[Quantized] = "passes"

    def check(self, x: TensorType) -> None:
        """An image, and attributes that are possible. Raises :class:`ShapeError`."""
        if x.rank != 4:
            raise self.fail(f"the operand must be [N, C, H, W], not of rank {x.rank}", x)
        if self.blocksize < 1 or self.mode not in ("DCR", "CRD"):
            raise self.fail('blocksize must be at least 1 and mode "DCR" or "CRD"', x)

    def parts(self, shape: Shape) -> tuple[Shape, Ints, Shape]:
        """The shape to split into, the order of axes, the shape of the result."""
        raise NotImplementedError

    def reference(self, x: Array) -> Array:
        parts, order, result = self.parts(x.shape)
        return x.reshape(parts).transpose(order).reshape(result)

    def decompose(self, x: Value) -> Value:
        parts, order, result = self.parts(x.shape)
        return reshape(Transpose(order)(reshape(x, parts)), result)


@operator
@dataclass(frozen=True)
class DepthToSpace(BlockMove):
    """Blocks of channels to blocks of ``blocksize`` × ``blocksize`` pixels: [N, C·b·b, H, W] to [N, C, H·b, W·b].

    The channels are ordered depth-column-row (``mode="DCR"``) or column-row-depth (``"CRD"``, PyTorch's
    ``pixel_shuffle``).
    """

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        self.check(x)
        b = self.blocksize
        if x.shape[1] % (b * b):
            raise self.fail(f"{x.shape[1]} channels do not divide by blocksize² = {b * b}", x)
        n, c, h, w = x.shape
        return x.with_shape((n, c // (b * b), h * b, w * b))

    def parts(self, shape: Shape) -> tuple[Shape, Ints, Shape]:
        (n, c, h, w), b = shape, self.blocksize
        result = (n, c // (b * b), h * b, w * b)
        if self.mode == "DCR":
            return (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2), result
        return (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3), result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        b = draw.integer(1, 3)
        n, c, h, w = (draw.integer(1, 3) for _ in range(4))
        return Sample(cls(b, draw.choice(("DCR", "CRD"))), (draw.floats((n, c * b * b, h, w)),))


@operator
@dataclass(frozen=True)
class SpaceToDepth(BlockMove):
    """The inverse of :class:`DepthToSpace`: [N, C, H·b, W·b] to [N, C·b·b, H, W]."""

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        self.check(x)
        b = self.blocksize
        n, c, h, w = x.shape
        if h % b or w % b:
            raise self.fail(f"an image of {h} × {w} does not divide into blocks of {b} × {b}", x)
        return x.with_shape((n, c * b * b, h // b, w // b))

    def parts(self, shape: Shape) -> tuple[Shape, Ints, Shape]:
        (n, c, h, w), b = shape, self.blocksize
        order = (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)
        return (n, c, h // b, b, w // b, b), order, (n, c * b * b, h // b, w // b)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        b = draw.integer(1, 3)
        n, c, h, w = (draw.integer(1, 3) for _ in range(4))
        return Sample(cls(b, draw.choice(("DCR", "CRD"))), (draw.floats((n, c, h * b, w * b)),))
