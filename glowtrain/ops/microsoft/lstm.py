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
from glowtrain.ops.microsoft.base import Microsoft
from glowtrain.ops.quantized.convert import STEPS, DynamicQuantizeLinear
from glowtrain.ops.quantized.integer_products import (
    BYTES,
    MatMulInteger,
    centred,
    draw_bytes,
    draw_weight,
    recentred,
    reshaped_zero,
    total_of,
)
from glowtrain.ops.quantized.scales import ScaleOperands
from glowtrain.ops.sequence.recurrent import LSTM, Function, one_direction
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, Shape, TensorType, f32, f64, i8, i32, u8


@dataclass(frozen=True)
class QuantizedWeight:
    """An integer weight [D, K, 4H] made ready for products: its numbers, their sums over K [D, 1, 4H] in i32, its scale
    and, where it is not 0, its zero point in i32, both [D, 1, 1 or 4H].
    """

    numbers: Any
    totals: Any
    scale: Any
    zero: Any

    def direction(self, position: int) -> list[Value]:
        """What one direction reads."""
        given = (self.numbers, self.totals, self.scale, self.zero)
        return [one_direction(v, position) for v in given if v is not None]


def quantized_weight(numbers: Value, scale: Value, zero: Value) -> QuantizedWeight:
    """A weight with scale and zero point for each direction, or for each of its columns."""
    shape = (numbers.shape[0], 1, scale.shape[1] if scale.rank == 2 else 1)
    numbers, shift = recentred(numbers, reshaped_zero(zero, shape))
    return QuantizedWeight(numbers, total_of(numbers, (1,), keepdims=True), reshape(scale, shape), shift)


def product(x: Value, weight: Sequence[Value]) -> Value:
    """x times a direction's weight: x is quantized to u8 by its range, the sums are those of integers."""
    numbers, totals, scale, *shift = weight
    wide = f64 if x.dtype == f64 else f32
    quantized, factor, zero = DynamicQuantizeLinear()(Cast(wide)(x))
    left = Cast(i32)(zero)
    sums = MatMulInteger()(quantized, numbers) - left * totals
    for right in shift:
        sums = sums - (total_of(quantized, (x.rank - 1,), keepdims=True) - left * x.shape[-1]) * right
    result: Value = Cast(x.dtype)(Cast(wide)(sums) * (factor * Cast(wide)(scale)))
    return result


def array_product(x: Array, weight: Array) -> Array:
    """:func:`product` in NumPy. The sums are exact, and scaled as a whole: an infinite scale meets no single zero."""
    quantized, factor, zero = DynamicQuantizeLinear().reference(x)
    sums = centred(quantized, zero).astype(np.float64) @ weight[:-1]
    return np.asarray(sums.astype(x.dtype) * (factor * weight[-1]))


def array_weight(weight: Array, scale: Array, zero: Array) -> Array:
    """[D, 4H, K + 1], from [D, K, 4H] of integers: they, less their zero point, and behind each column's its scale."""
    shape = (weight.shape[0], 1, scale.shape[1] if scale.ndim == 2 else 1)
    difference = centred(weight, zero.reshape(shape))
    last = np.broadcast_to(scale.reshape(shape), (shape[0], 1, weight.shape[2]))
    return np.concatenate((difference.astype(scale.dtype), last), 1).swapaxes(1, 2)


@operator
@dataclass(frozen=True)
class StateQuantizedLSTM(LSTM):
    """LSTM with integer weights W [D, I, 4H] and R [D, H, 4H], whose scales and zero points are the last operands.

    X, and in each step the state, is quantized to u8 by its range before it is multiplied with them.
    """

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def infer(self, *inputs: Any) -> tuple[TensorType, ...]:
        if len(inputs) != 12:
            raise self.fail(f"takes 12 operands, not {len(inputs)}", *inputs)
        x, w, r, *options = inputs[:8]
        if not {w.dtype, r.dtype} <= BYTES:
            raise self.fail("W and R must be i8 or u8", *inputs)
        turned = (x.with_shape((v.shape[0], v.shape[2], v.shape[1])) if v.rank == 3 else v for v in (w, r))
        results = super().infer(x, *turned, *options)
        if x.size == 0 or results[1].size == 0:
            raise self.fail("an input or a state without elements has no range", *inputs)
        return results

    def decompose(self, *inputs: Any) -> Any:
        x, w, r, *options = inputs[:8]
        return super().decompose(x, quantized_weight(w, *inputs[8:10]), quantized_weight(r, *inputs[10:12]), *options)

    def part(self, operand: Any, position: int) -> Any:
        return operand.direction(position) if isinstance(operand, QuantizedWeight) else super().part(operand, position)

    def products(self, x: Value, w: Any, r: Any) -> tuple[Value, Value, Sequence[Value]]:
        numbers, *further = r
        return product(x, w), numbers, further

    def cell(self, x: Any, r: Any, extra: Sequence[Any], states: Sequence[Any], f: Sequence[Function]) -> list[Any]:
        if not isinstance(x, Value):
            return super().cell(x, r, extra, states, f)
        peepholes = 3 if len(extra) > 3 else 0
        return super().cell(x, (r, *extra[peepholes:]), extra[:peepholes], states, f)

    def summed(self, x: Any, h: Any, r: Any) -> Any:
        return x + (product if isinstance(x, Value) else array_product)(h, r)

    def reference(self, *inputs: Any) -> tuple[Array, ...]:
        x, w, r, *options = inputs[:8]
        return super().reference(x, array_weight(w, *inputs[8:10]), array_weight(r, *inputs[10:12]), *options)

    def array_products(self, x: Array, w: Array) -> Array:
        return array_product(x, w.T)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return draw_lstm(draw, cls)


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
        return StateQuantizedLSTM(**self.attributes())(*inputs)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return draw_lstm(draw, cls)


def draw_lstm(draw: Draw, cls: type[StateQuantizedLSTM | DynamicQuantizeLSTM]) -> Sample:
    """An operator of the class, with operands."""
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
    peepholes = draw.floats((count, 3 * hidden)) if draw.boolean() else None
    (w, sw, zw), (r, sr, zr) = tables
    x = draw.floats((steps, batch, width))
    return Sample(lstm, (x, w, r, bias, lengths, *states, peepholes, sw, zw, sr, zr))
