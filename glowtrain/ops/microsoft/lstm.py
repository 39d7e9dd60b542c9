"""ONNX Runtime's quantized LSTM: the weights are integers, the activations are quantized where they are used.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeLSTM
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.microsoft.base import Microsoft, real
from glowtrain.ops.quantized.convert import STEPS, DynamicQuantizeLinear
from glowtrain.ops.quantized.integer_products import BYTES, draw_bytes, draw_weight
from glowtrain.ops.quantized.scales import ScaleOperands
from glowtrain.ops.sequence.recurrent import LSTM, Function
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.types import Shape, TensorType, i8, u8


def rounded(x: Any) -> Any:
    """A tensor (or array) quantized to u8 by its range, as real numbers again."""
    if isinstance(x, Value):
        return real(*DynamicQuantizeLinear()(x))
    q, scale, zero = DynamicQuantizeLinear().reference(x)
    return (q.astype(x.dtype) - zero.astype(x.dtype)) * scale


@operator
@dataclass(frozen=True)
class StateQuantizedLSTM(LSTM):
    """LSTM in which each step quantizes the state to u8, by its range, before it is multiplied with R."""

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def infer(self, *inputs: Any) -> tuple[TensorType, ...]:
        results = super().infer(*inputs)
        if results[1].size == 0:
            raise self.fail("a state without elements has no range", *inputs)
        return results

    def cell(self, x: Any, r: Any, extra: Sequence[Any], states: Sequence[Any], f: Sequence[Function]) -> list[Any]:
        return super().cell(x, r, extra, [rounded(states[0]), *states[1:]], f)


@operator
@dataclass(frozen=True)
class DynamicQuantizeLSTM(Microsoft):
    """LSTM with integer weights W [D, I, 4H] and R [D, H, 4H].

    The input and, at each step, the state are quantized to u8 by their ranges. Operands: X, W, R, B, sequence_lens,
    initial_h, initial_c, P as those of LSTM, then scale and zero point of W and of R: one for each direction, or for
    each of its 4H columns. Results Y, Y_h, Y_c.
    """

    takes: ClassVar[tuple[int, int]] = (12, 12)
    scale_operands: ClassVar[ScaleOperands] = {8: 1, 10: 2}
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS
    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    input_forget: int = 0

    def check(self, *inputs: TensorType | None) -> None:
        self._check_weight("W", inputs[1], *inputs[8:10], *inputs)
        self._check_weight("R", inputs[2], *inputs[10:12], *inputs)

    def _check_weight(
        self,
        name: str,
        weight: TensorType | None,
        scale: TensorType | None,
        zero: TensorType | None,
        *inputs: TensorType | None,
    ) -> None:
        if weight is None or scale is None or zero is None or weight.rank != 3 or weight.dtype not in BYTES:
            raise self.fail(f"{name} must be i8 or u8 of rank 3, with scale and zero point", *inputs)
        wanted = {weight.shape[:1], (weight.shape[0], weight.shape[2])} | ({()} if weight.shape[0] == 1 else set())
        if scale.shape not in wanted or zero.shape != scale.shape or zero.dtype != weight.dtype:
            raise self.fail(f"{name}'s scale and zero point must be one for each direction, or each column", *inputs)

    def define(self, *inputs: Any) -> Any:
        x, w, r, *options = inputs[:8]
        weights = [_weight(v, *inputs[at : at + 2]) for v, at in ((w, 8), (r, 10))]
        lstm = StateQuantizedLSTM(**self.attributes())
        return lstm(rounded(x), *weights, *options)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        steps, batch, width, hidden = (draw.integer(1, 3) for _ in range(4))
        direction = draw.choice(("forward", "reverse", "bidirectional"))
        lstm = cls(direction=direction, hidden_size=hidden, **StateQuantizedLSTM.draw_activations(draw, direction))
        count = 2 if lstm.direction == "bidirectional" else 1
        dtype = draw.choice((i8, u8))
        tables: list[Any] = []
        for rows in (width, hidden):
            shape: Shape = draw.choice(((count,), (count, 4 * hidden)))
            zero = draw_bytes(draw, shape, dtype)
            tables.append((draw_weight(draw, (count, rows, 4 * hidden), dtype), draw.floats(shape, 0.005, 0.02), zero))
        bias = draw.floats((count, 8 * hidden), -0.5, 0.5) if draw.boolean() else None
        lengths = draw.integers((batch,), 1, steps).astype(np.int32) if draw.boolean() else None
        states = [draw.floats((count, batch, hidden), -1.0, 1.0) if draw.boolean() else None for _ in range(2)]
        (w, sw, zw), (r, sr, zr) = tables
        return Sample(lstm, (draw.floats((steps, batch, width)), w, r, bias, lengths, *states, None, sw, zw, sr, zr))


def _weight(weight: Value, scale: Value, zero: Value) -> Value:
    """[D, 4H, I] of real numbers, from [D, I, 4H] of integers."""
    shape = (weight.shape[0], 1, scale.shape[1] if scale.rank == 2 else 1)
    difference = Cast(scale.dtype)(weight) - Cast(scale.dtype)(reshape(zero, shape))
    result: Value = Transpose((0, 2, 1))(difference * reshape(scale, shape))
    return result
