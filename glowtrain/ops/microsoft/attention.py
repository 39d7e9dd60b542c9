"""Attention in the forms of ONNX Runtime's domain ``com.microsoft``, by ONNX's Attention.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.Attention.
Keys that a mask hides get ``mask_filter_value`` added to their products, -10000 unless stated; those that causality
hides never count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, constant, operator
from glowtrain.ops.attention.attention import Attention
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.logic import GreaterOrEqual, Less, Or
from glowtrain.ops.microsoft.base import Microsoft, draw_scale, integer_product
from glowtrain.ops.quantized.convert import STEPS
from glowtrain.ops.quantized.integer_products import draw_bytes, draw_weight
from glowtrain.ops.quantized.scales import ScaleOperands
from glowtrain.ops.tensor.move import Concat, Transpose, reshape
from glowtrain.ops.tensor.split import Split
from glowtrain.types import Array, DType, Shape, TensorType, i8, i32, u8

HIDDEN = -10000.0
"""What is added to the products of hidden keys, unless stated."""


class AttentionBase(Microsoft):
    """What the attention operators share: their masks, and the number of heads."""

    num_heads: int
    mask_filter_value: float | None
    scale: float | None
    unidirectional: bool

    def fail_if_unsupported(self, mask: TensorType | None, *inputs: TensorType | None) -> None:
        """Raise for heads that do not exist and for masks of unknown shape."""
        if self.num_heads < 1:
            raise self.fail("num_heads must be positive", *inputs)
        if mask is not None and (mask.dtype != i32 or mask.rank not in (1, 2, 3)):
            raise self.fail("the mask must be i32: [B] or [2 B] lengths, or [B, T] or [B, S, T] of 0 and 1", *inputs)

    def hiding(self, mask: Value | None, batch: int, total: int, dtype: DType) -> Value | None:
        """What is added to the products [B, H, S, T], as a tensor that broadcasts with them."""
        if mask is None:
            return None
        if mask.rank == 1:
            hidden = self._beyond(mask, batch, total)
        else:
            shape = (batch, 1, 1, total) if mask.rank == 2 else (batch, 1, *mask.shape[1:])
            hidden = 1.0 - Cast(dtype)(reshape(mask, shape))
        added: Value = Cast(dtype)(hidden) * (HIDDEN if self.mask_filter_value is None else self.mask_filter_value)
        return added

    def _beyond(self, mask: Value, batch: int, total: int) -> Value:
        """Whether a key is outside of [0, end), or with 2 B numbers of [start, end)."""
        positions = constant(np.arange(total, dtype=np.int32).reshape(1, 1, 1, total))
        ends, *starts = [reshape(part, (batch, 1, 1, 1)) for part in _rows(mask, batch)]
        hidden: Value = GreaterOrEqual()(positions, ends)
        return Or()(hidden, Less()(positions, starts[0])) if starts else hidden

    def attend(self, q: Value, k: Value, v: Value, bias: Value | None, past: Any = (None, None)) -> tuple[Value, ...]:
        """The result [B, S, H D], all keys and all values [B, H, T, D], for operands of rank 3."""
        variant = Attention(
            is_causal=self.unidirectional, q_num_heads=self.num_heads, kv_num_heads=self.num_heads, scale=self.scale
        )
        y, keys, values, _ = variant(q, k, v, bias, *past)
        return y, keys, values


def _rows(mask: Value, batch: int) -> list[Value]:
    count = mask.shape[0] // max(batch, 1)
    return list(Split(num_outputs=count, axis=0)(mask)) if count > 1 else [mask]


def _sum(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else a + b


class SelfAttention(AttentionBase):
    """Q, K and V are one projection of the input; past keys and values are stacked, [2, B, H, P, D]."""

    past_present_share_buffer: int
    do_rotary: int

    def check_heads_and_mask(
        self, weight: TensorType | None, mask: TensorType | None, *inputs: TensorType | None
    ) -> None:
        """Raise for forms that are not supported."""
        self.fail_if_unsupported(mask, *inputs)
        if self.past_present_share_buffer or self.do_rotary:
            raise self.fail("shared buffers and rotary embeddings are not supported", *inputs)
        if inputs[0] is None or inputs[0].rank != 3 or weight is None or weight.rank != 2:
            raise self.fail("the input must be [batch, positions, size], the weight a matrix", *inputs)

    def attended(self, qkv: Value, sizes: Shape, mask: Value | None, past: Value | None, added: Value | None) -> Any:
        """The result, and all keys and values stacked."""
        batch, steps, _ = qkv.shape
        pieces: Any = (None, None)
        before = 0
        if past is not None:
            pieces = [reshape(part, past.shape[1:]) for part in Split(num_outputs=2, axis=0)(past)]
            before = past.shape[3]
        bias = _sum(self.hiding(mask, batch, before + steps, qkv.dtype), added)
        q, k, v = Split(split=sizes, axis=2)(qkv)
        y, keys, values = self.attend(q, k, v, bias, pieces)
        if keys.shape != values.shape:
            return (y,)
        return y, Concat(axis=0)(reshape(keys, (1, *keys.shape)), reshape(values, (1, *values.shape)))


@operator
@dataclass(frozen=True)
class MicrosoftAttention(SelfAttention):
    """Attention of a tensor with itself: operands x [B, S, I], weights [I, Q + K + V], bias, mask, past, and what is
    added to the products. Results [B, S, V] and, where keys and values are of one size, both stacked [2, B, H, T, D].
    """

    onnx: ClassVar[str] = "Attention"
    takes: ClassVar[tuple[int, int]] = (2, 6)
    num_heads: int
    do_rotary: int = 0
    mask_filter_value: float | None = None
    past_present_share_buffer: int = 0
    qkv_hidden_sizes: Shape = ()
    scale: float | None = None
    unidirectional: bool = False

    def check(self, *inputs: TensorType | None) -> None:
        self.check_heads_and_mask(inputs[1], inputs[3], *inputs)

    def define(self, *inputs: Any) -> Any:
        x, weight, bias, mask, past, added = inputs
        qkv = MatMul()(x, weight)
        qkv = qkv if bias is None else qkv + bias
        sizes = self.qkv_hidden_sizes or (weight.shape[1] // 3,) * 3
        return self.attended(qkv, sizes, mask, past, added)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        heads, size, batch, steps, width = (draw.integer(1, 3) for _ in range(5))
        past, mask, before = _draw_past(draw, batch, heads, size, steps)
        hidden, values = heads * size, heads * (draw.integer(1, 3) if past is None else size)
        sizes = (hidden, hidden, values) if values != hidden or draw.boolean() else ()
        op = cls(heads, qkv_hidden_sizes=sizes, unidirectional=draw.boolean(), **_draw_options(draw))
        added = draw.floats((1, heads, steps, before + steps)) if draw.boolean() else None
        bias = draw.floats((2 * hidden + values,)) if draw.boolean() else None
        x, weight = draw.floats((batch, steps, width)), draw.floats((width, 2 * hidden + values), -1.0, 1.0)
        return Sample(op, (x, weight, bias, mask, past, added))


def _draw_options(draw: Draw) -> dict[str, Any]:
    return {"mask_filter_value": draw.choice((-9.0, -3.0)), "scale": draw.choice((None, 0.7))}


def _draw_past(draw: Draw, batch: int, heads: int, size: int, steps: int) -> tuple[Array | None, Array | None, int]:
    """Past keys and values, a mask in one of its forms, and the number of past keys."""
    before = draw.integer(1, 2) if draw.boolean() else 0
    past = draw.floats((2, batch, heads, before, size)) if before else None
    total = before + steps
    variant = draw.choice(("none", "raw", "queries", "ends", "bounds"))
    masks = {
        "raw": lambda: draw.integers((batch, total), 0, 1),
        "queries": lambda: draw.integers((batch, steps, total), 0, 1),
        "ends": lambda: draw.integers((batch,), 1, total),
        "bounds": lambda: np.concatenate([draw.integers((batch,), 1, total), np.zeros(batch, np.int64)]),
    }
    return past, masks[variant]().astype(np.int32) if variant in masks else None, before


@operator
@dataclass(frozen=True)
class QAttention(SelfAttention):
    """Attention of a quantized tensor with itself: operands x, weight, bias, the scales of x and of the weight, mask,
    their zero points, past. The projection is exact; what follows is real.
    """

    takes: ClassVar[tuple[int, int]] = (5, 9)
    scale_operands: ClassVar[ScaleOperands] = {3: 0, 4: 1}
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS
    num_heads: int
    do_rotary: int = 0
    mask_filter_value: float | None = None
    past_present_share_buffer: int = 0
    scale: float | None = None
    unidirectional: bool = False

    def check(self, *inputs: TensorType | None) -> None:
        self.check_heads_and_mask(inputs[1], inputs[5], *inputs)

    def define(self, *inputs: Any) -> Any:
        x, weight, bias, sx, sw, mask, zx, zw, past = inputs
        qkv = integer_product(x, weight, sx, sw, zx, zw) + bias
        return self.attended(qkv, (weight.shape[1] // 3,) * 3, mask, past, None)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        heads, size, batch, steps, width = (draw.integer(1, 3) for _ in range(5))
        past, mask, _ = _draw_past(draw, batch, heads, size, steps)
        op = cls(heads, unidirectional=draw.boolean(), **_draw_options(draw))
        hidden, columns = heads * size, draw.choice(((), (3 * heads * size,)))
        x, weight = draw_bytes(draw, (batch, steps, width), u8), draw_weight(draw, (width, 3 * hidden), i8)
        scales = draw_scale(draw, 0.001, 0.01), draw.floats(columns, 0.01, 0.05)
        zeros = draw_bytes(draw, (), u8), draw_bytes(draw, columns, i8)
        return Sample(op, (x, weight, draw.floats((3 * hidden,)), *scales, mask, *zeros, past))


@operator
@dataclass(frozen=True)
class MultiHeadAttention(AttentionBase):
    """Attention of queries to keys and values after their projections.

    Operands: Q [B, S, H D]; K and V [B, T, H D], or [B, H, T, D] as a cache holds them, or in one tensor: Q, K and V
    [B, S, H, 3, D], K and V [B, T, H, 2, D]; a bias of all three; a mask of keys; what is added to the products; past
    keys and values [B, H, P, D]. Results: [B, S, H D], all keys, all values.
    """

    takes: ClassVar[tuple[int, int]] = (1, 8)
    num_heads: int
    mask_filter_value: float | None = None
    scale: float | None = None
    unidirectional: bool = False

    def check(self, *inputs: TensorType | None) -> None:
        self.fail_if_unsupported(inputs[4], *inputs)
        q, k, v = inputs[:3]
        packed = q is not None and q.rank == 5 and k is None
        shared = k is not None and k.rank == 5 and v is None
        if not packed and not shared and (k is None or v is None):
            raise self.fail("takes Q, K and V, or K and V in one tensor, or all in one", *inputs)

    def define(self, *inputs: Any) -> tuple[Value, ...]:
        q, k, v, bias, mask, added, past_key, past_value = inputs
        if k is None:
            q, k, v = _unpacked(q)
        elif k.rank == 5:
            k, v = _unpacked(k)
        if k.rank == 4:
            k, v = _rows_of(k), _rows_of(v)
        if bias is not None:
            parts = Split(split=(q.shape[2], k.shape[2], v.shape[2]), axis=0)(bias)
            q, k, v = (x + part for x, part in zip((q, k, v), parts, strict=True))
        total = k.shape[1] + (0 if past_key is None else past_key.shape[2])
        hidden = _sum(self.hiding(mask, q.shape[0], total, q.dtype), added)
        return self.attend(q, k, v, hidden, (past_key, past_value))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        heads, size, batch, steps, keys = (draw.integer(1, 3) for _ in range(5))
        op, hidden = cls(heads, unidirectional=draw.boolean(), **_draw_options(draw)), heads * size
        variant = draw.choice(("plain", "packed", "shared", "cached"))
        keys = steps if variant == "packed" else keys
        q = draw.floats((batch, steps, heads, 3, size) if variant == "packed" else (batch, steps, hidden))
        k: Array | None = draw.floats((batch, keys, hidden))
        v: Array | None = draw.floats((batch, keys, hidden))
        if variant == "shared":
            k, v = draw.floats((batch, keys, heads, 2, size)), None
        elif variant == "packed":
            k = v = None
        elif variant == "cached":
            k, v = (draw.floats((batch, heads, keys, size)) for _ in range(2))
        past, mask, before = _draw_past(draw, batch, heads, size, keys)
        if variant == "cached":
            past, before, mask = None, 0, None
        if mask is not None and mask.ndim == 3:
            mask = np.repeat(mask[:, :1], steps, 1)
        bias = draw.floats((3 * hidden,)) if draw.boolean() and variant == "plain" else None
        added = draw.floats((1, heads, steps, before + keys)) if draw.boolean() else None
        pasts = (None, None) if past is None else (past[0], past[1])
        return Sample(op, (q, k, v, bias, mask, added, *pasts))


def _unpacked(x: Value) -> list[Value]:
    """The parts [B, T, H D] of [B, T, H, parts, D]."""
    batch, steps, heads, count, size = x.shape
    return [reshape(part, (batch, steps, heads * size)) for part in Split(num_outputs=count, axis=3)(x)]


def _rows_of(x: Value) -> Value:
    """[B, T, H D] from [B, H, T, D]."""
    batch, heads, steps, size = x.shape
    return reshape(Transpose((0, 2, 1, 3))(x), (batch, steps, heads * size))
