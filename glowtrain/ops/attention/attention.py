"""Scaled dot-product attention with masks, grouped heads, caches and sliding windows.

Sources: Vaswani et al. 2017 (attention), Shazeer 2019 and Ainslie et al. 2023 (shared and grouped key heads), Gemma
Team 2024 (soft cap); semantics as https://onnx.ai/onnx/operators/onnx__Attention.html at opset 25.

B is the batch, H the query heads, G of which share one of the H / G key heads, S the queries, T the keys (those of the
cache first), D and E the sizes of a key and of a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Constant, Draw, Operator, Sample, Value, constant, operator
from glowtrain.ops.contraction.products import swapped
from glowtrain.ops.core.family import broadcast_shapes
from glowtrain.ops.elementwise.logic import And, Greater, Where
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.reduce.reduction import ReduceMax, accumulator, as_dtype, widened
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.move import Concat, Reshape, Transpose, Unsqueeze, reshape
from glowtrain.types import Array, DType, Shape, TensorType, f32, f64, i64

OPERANDS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
RAW, CAPPED, BIASED, PROBABILITIES = range(4)
"""What the fourth result holds, by ``qk_matmul_output_mode``."""


@operator
@dataclass(frozen=True)
class Attention(Operator):
    """Y = softmax(cap(scale Q K') + mask) V, where cap(x) = softcap tanh(x / softcap).

    Operands: Q [B, H, S, D], K [B, H / G, T, D] and V [B, H / G, T, E], or of rank 3 with heads and sizes in one last
    axis; optionally a mask that broadcasts to [B, H, S, T] (booleans allow, numbers are added; a shorter last axis
    hides the other keys), keys and values of earlier steps, and the number of keys of each batch row that are not
    padding. Results: Y in Q's form, all keys and values [B, H / G, T, D or E], and what ``qk_matmul_output_mode``
    chooses of [B, H, S, T]: the scaled products, capped, masked, or the probabilities. f16 and bf16 are computed in
    f32, and ``softmax_precision`` is at least that.

    ``is_causal`` and the window sizes go by a query's position, which is its index plus the number of keys that
    precede the queries: those of the cache, or ``nonpad_kv_seqlen - S``. A query that may see no key gives zeros.
    """

    is_causal: bool = False
    kv_num_heads: int | None = None
    left_window_size: int = -1
    q_num_heads: int | None = None
    qk_matmul_output_mode: int = 0
    right_window_size: int = -1
    scale: float | None = None
    softcap: float = 0.0
    softmax_precision: DType | None = None

    def infer(self, *inputs: Any) -> tuple[TensorType, ...]:
        q, k, v, mask, past_key, _, lengths = types = operands(self, inputs)
        self._check_attributes(*types)
        queries, keys, values = (self._split_shape(x, position > 0, *types) for position, x in enumerate((q, k, v)))
        (batch, heads, _, size), (_, shared, count, _) = queries, keys
        if keys != (batch, shared, count, size) or values[:3] != keys[:3] or not shared or heads % shared:
            rule = "must agree in batch and sizes, K and V in heads, of which Q must have a multiple"
            raise self.fail(f"Q, K and V, as {list(queries)}, {list(keys)} and {list(values)}, {rule}", *types)
        past = self._past(keys, values, *types)
        if lengths is not None and (lengths != i64[batch,] or past_key is not None):
            raise self.fail(f"nonpad_kv_seqlen must be i64[{batch}] and go without past keys", *types)
        total = past + count
        scores = (batch, heads, queries[2], total)
        if mask is not None:
            self._check_mask(mask, scores, *types)
        hidden = (batch, heads, queries[2], values[3])
        y = hidden if q.rank == 4 else (batch, queries[2], heads * values[3])
        cached = (k.with_shape((batch, shared, total, size)), v.with_shape((batch, shared, total, values[3])))
        return q.with_shape(y), *cached, q.with_shape(scores)

    def _check_attributes(self, *types: Any) -> None:
        q, k, v = types[:3]
        if any(not x.dtype.is_float for x in (q, k, v)) or q.dtype != k.dtype:
            raise self.fail("Q, K and V must be floating, Q and K of one element type", *types)
        if not q.rank == k.rank == v.rank or q.rank not in (3, 4):
            raise self.fail("Q, K and V must all have rank 3, or all rank 4", *types)
        if (self.q_num_heads is None or self.kv_num_heads is None) and q.rank == 3:
            raise self.fail("operands of rank 3 need q_num_heads and kv_num_heads", *types)
        if self.qk_matmul_output_mode not in range(4) or min(self.left_window_size, self.right_window_size) < -1:
            raise self.fail("qk_matmul_output_mode must be 0 to 3, window sizes -1 or more", *types)
        if self.softmax_precision is not None and not self.softmax_precision.is_float:
            raise self.fail("softmax_precision must be a float type", *types)

    def _split_shape(self, x: TensorType, is_key: bool, *types: Any) -> Shape:
        """The shape [batch, heads, positions, size] of an operand."""
        if x.rank == 4:
            return x.shape
        count = (self.kv_num_heads if is_key else self.q_num_heads) or 0
        if count < 1 or x.shape[2] % count:
            raise self.fail(f"the last axis of {x} does not split into {count} heads", *types)
        return x.shape[0], count, x.shape[1], x.shape[2] // count

    def _past(self, keys: Shape, values: Shape, *types: Any) -> int:
        """The number of cached keys."""
        key, value = types[4:6]
        if (key is None) != (value is None):
            raise self.fail("past_key and past_value go together", *types)
        if key is None:
            return 0
        count: int = key.shape[2] if key.rank == 4 else -1
        wanted = ((*keys[:2], count, keys[3]), (*values[:2], count, values[3]))
        if (key.shape, value.shape) != wanted or (key.dtype, value.dtype) != (types[1].dtype, types[2].dtype):
            raise self.fail("past_key and past_value must be as K and V but for the number of positions", *types)
        return count

    def _check_mask(self, mask: TensorType, scores: Shape, *types: Any) -> None:
        fits = 1 <= mask.rank <= 4 and mask.shape[-1] <= scores[-1]
        leading = scores[-mask.rank : -1] if fits else ()
        if not fits or any(extent not in (1, full) for extent, full in zip(mask.shape[:-1], leading, strict=True)):
            raise self.fail(f"attn_mask must broadcast to {list(scores)}; its last axis may be shorter", *types)

    @property
    def windowed(self) -> bool:
        """Whether keys are hidden by position."""
        return self.is_causal or self.left_window_size >= 0 or self.right_window_size >= 0

    def allowed(self, queries: Any, keys: Any) -> Any:
        """Whether a query at a position sees a key, by causality and window; for arrays and values alike."""
        right = self.right_window_size if self.right_window_size >= 0 else None
        right = 0 if self.is_causal else right
        seen = None if right is None else keys <= queries + right
        if self.left_window_size < 0:
            return seen
        near = keys >= queries - self.left_window_size
        return near if seen is None else seen & near

    def reference(self, *inputs: Any) -> tuple[Array, ...]:
        q, k, v, mask, past_key, past_value, lengths = operands(self, inputs)
        three, dtype = q.ndim == 3, q.dtype
        if three:
            heads = (self.q_num_heads, self.kv_num_heads, self.kv_num_heads)
            q, k, v = (
                x.reshape(*x.shape[:2], n, x.shape[2] // n).transpose(0, 2, 1, 3)
                for x, n in zip((q, k, v), heads, strict=True)
            )
        if past_key is not None:
            k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
        group = q.shape[1] // k.shape[1]
        wide_k, wide_v = (np.repeat(widened(x), group, axis=1) for x in (k, v))
        stages = [widened(q) * score_scale(self.scale, q.shape[3]) @ wide_k.swapaxes(2, 3)]
        stages.append(np.tanh(stages[0] / self.softcap) * self.softcap if self.softcap > 0 else stages[0])
        bias = self._reference_bias(stages[0], mask, lengths, 0 if past_key is None else past_key.shape[2])
        stages.append(stages[1] + bias)
        stages.append(
            self._reference_softmax(stages[2], np.isneginf(np.max(bias, axis=-1, keepdims=True, initial=-np.inf)))
        )
        y = stages[3] @ wide_v
        y = y.transpose(0, 2, 1, 3).reshape(*y.shape[:1], y.shape[2], y.shape[1] * y.shape[3]) if three else y
        return y.astype(dtype), k.copy(), v.copy(), stages[self.qk_matmul_output_mode].astype(dtype)

    def _reference_bias(self, scores: Array, mask: Array | None, lengths: Array | None, past: int) -> Array:
        """What is added to the scores: -inf where a key is hidden."""
        count, total = scores.shape[2:]
        bias, keys = np.zeros(scores.shape, scores.dtype), np.arange(total)
        if mask is not None:
            numbers = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(bias.dtype)
            hidden = [(0, 0)] * (mask.ndim - 1) + [(0, total - mask.shape[-1])]
            bias += np.pad(numbers, hidden, constant_values=-np.inf)
        first = np.array(past) if lengths is None else (lengths - count).reshape(-1, 1, 1, 1)
        if self.windowed:
            bias[~np.broadcast_to(self.allowed(first + np.arange(count)[:, None], keys), bias.shape)] = -np.inf
        if lengths is not None:
            bias[~np.broadcast_to(keys < lengths.reshape(-1, 1, 1, 1), bias.shape)] = -np.inf
        return bias

    def _reference_softmax(self, scores: Array, blind: Array) -> Array:
        precision = scores.dtype if self.softmax_precision is None else accumulator(self.softmax_precision).numpy
        rounded = np.where(blind, 0, scores).astype(precision)
        powers = np.exp(rounded - rounded.max(axis=-1, keepdims=True, initial=-np.inf))
        return np.where(blind, 0, powers / powers.sum(axis=-1, keepdims=True)).astype(scores.dtype)

    def decompose(self, *inputs: Any) -> tuple[Value, ...]:
        q, k, v, mask, past_key, past_value, lengths = operands(self, inputs)
        rank, dtype = q.rank, q.dtype
        if rank == 3:
            q = split_heads(q, self.q_num_heads or 1)
            k, v = (split_heads(x, self.kv_num_heads or 1) for x in (k, v))
        if past_key is not None:
            k, v = Concat(axis=2)(past_key, k), Concat(axis=2)(past_value, v)
        wide = accumulator(dtype)
        products = by_group(as_dtype(q, wide) * score_scale(self.scale, q.shape[3]), swapped(as_dtype(k, wide)))
        capped = Tanh()(products / self.softcap) * self.softcap if self.softcap > 0 else products
        hidden = _Hidden.of(self, products, mask, lengths, 0 if past_key is None else past_key.shape[2])
        biased = hidden.apply(capped)
        precise = as_dtype(biased, accumulator(self.softmax_precision or dtype))
        probabilities = as_dtype(hidden.softmax(precise), wide)
        y = as_dtype(by_group(probabilities, as_dtype(v, wide)), dtype)
        stage = (products, capped, biased, probabilities)[self.qk_matmul_output_mode]
        return join_heads(y) if rank == 3 else y, k, v, as_dtype(stage, dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Every kind of mask and cache, ranks 3 and 4, one to three query heads for each key head.

        The masked scores are only a result where no key is hidden: differences of infinities say nothing.
        """
        batch, shared, group, count, keys, size, width = (draw.integer(1, high) for high in (2, 2, 3, 3, 4, 3, 3))
        cache = draw.choice(("none", "none", "past", "lengths"))
        past = draw.integer(0, 2) if cache == "past" else 0
        mask = _sample_mask(draw, (batch, shared * group, count, past + keys))
        lengths = draw.integers((batch,), 0, keys) if cache == "lengths" else None
        hides = lengths is not None or (mask is not None and (mask.dtype == bool or mask.shape[-1] < past + keys))
        attention = cls(
            is_causal=draw.boolean(),
            left_window_size=draw.choice((-1, -1, 0, 1)),
            right_window_size=draw.choice((-1, -1, 0, 1)),
            scale=draw.choice((None, 0.5)),
            softcap=draw.choice((0.0, 1.5)),
            softmax_precision=draw.choice((None, f64)),
        )
        modes = (RAW, CAPPED, PROBABILITIES) if hides or attention.windowed else (RAW, CAPPED, BIASED, PROBABILITIES)
        attention = attention.replace(qk_matmul_output_mode=draw.choice(modes))
        extents = [(count, shared * group, size), (keys, shared, size), (keys, shared, width)]
        if draw.boolean():
            attention = attention.replace(q_num_heads=shared * group, kv_num_heads=shared)
            shapes: list[Shape] = [(batch, n, heads * e) for n, heads, e in extents]
        else:
            shapes = [(batch, heads, n, e) for n, heads, e in extents]
        cached = [draw.floats((batch, shared, past, e)) for e in (size, width)] if cache == "past" else [None, None]
        return Sample(attention, (*(draw.floats(shape) for shape in shapes), mask, *cached, lengths))


def _sample_mask(draw: Draw, scores: Shape) -> Array | None:
    kind = draw.choice(("none", "bool", "float", "float"))
    if kind == "none":
        return None
    full = (*scores[:-1], draw.integer(1, scores[-1]))
    shape = full[draw.integer(0, 3) :]
    shape = (*(1 if draw.boolean() else extent for extent in shape[:-1]), shape[-1])
    return draw.booleans(shape) if kind == "bool" else draw.floats(shape)


def operands(operator_: Operator, inputs: Sequence[Any]) -> list[Any]:
    """The seven operands, ``None`` where absent. Raises :class:`ShapeError` if Q, K or V is missing."""
    if not 3 <= len(inputs) <= len(OPERANDS) or any(x is None for x in inputs[:3]):
        raise operator_.fail(f"takes {', '.join(OPERANDS)}, the last four optional", *inputs)
    return [*inputs, *(None,) * (len(OPERANDS) - len(inputs))]


def inner_reshaped(x: Value, leading: int, shape: Shape) -> Value:
    """``x`` with the axes after the first ``leading`` in another shape.

    The kept extents are not written down (0 in a Reshape keeps one), so that a saved model leaves them open.
    """
    if 0 in shape:
        return reshape(x, (*x.shape[:leading], *shape))
    result: Value = x if x.shape[leading:] == shape else Reshape(shape=(*(0,) * leading, *shape))(x)
    return result


def split_heads(x: Value, heads: int) -> Value:
    """[B, N, heads size] as [B, heads, N, size]."""
    result: Value = Transpose(perm=(0, 2, 1, 3))(inner_reshaped(x, 2, (heads, x.shape[2] // heads)))
    return result


def join_heads(x: Value) -> Value:
    """[B, heads, N, size] as [B, N, heads size]."""
    _, heads, _, size = x.shape
    return inner_reshaped(Transpose(perm=(0, 2, 1, 3))(x), 2, (heads * size,))


def score_scale(scale: float | None, size: int) -> float:
    """The factor on scores: as given, else 1 / √(the size of a head)."""
    return 1 / math.sqrt(max(size, 1)) if scale is None else scale


def by_group(left: Value, right: Value) -> Value:
    """left [B, H, S, n] times right [B, H / G, n, m]: the rows of G neighbouring heads meet one matrix, uncopied."""
    (_, heads, rows, inner), shared = left.shape, right.shape[1]
    stacked = inner_reshaped(left, 1, (shared, heads // max(shared, 1) * rows, inner))
    return inner_reshaped(stacked @ right, 1, (heads, rows, right.shape[3]))


@dataclass(frozen=True)
class _Hidden:
    """Which keys are hidden from which queries, in shapes that broadcast to the scores.

    ``seen``: booleans, ``bias``: numbers to add, ``alive``: whether a query sees any key; ``None`` for no such mask, or
    for ``alive`` if all do.
    """

    seen: Value | None
    bias: Value | None
    alive: Value | None

    @staticmethod
    def of(attention: Attention, scores: Value, mask: Value | None, lengths: Value | None, past: int) -> _Hidden:
        count, total = scores.shape[2:]
        seen, bias = _positions(attention, count, total, lengths, past), None
        if mask is not None:
            is_bool = mask.dtype.kind == "bool"
            mask = _extended(mask if is_bool else as_dtype(mask, scores.dtype), total)
            bias = None if is_bool else mask
            seen = mask if is_bool and seen is None else And()(seen, mask) if is_bool else seen
        return _Hidden(seen, bias, _alive(seen, bias))

    def apply(self, scores: Value) -> Value:
        """The scores with what is added, and -inf for hidden keys."""
        added = scores if self.bias is None else scores + self.bias
        return added if self.seen is None else Where()(self.seen, added, _number(-np.inf, scores.dtype))

    def softmax(self, scores: Value) -> Value:
        """Probabilities; zeros, and gradients of zero, for a query that sees nothing."""
        if self.alive is None:
            result: Value = Softmax(axis=-1)(scores)
            return result
        zero = _number(0.0, scores.dtype)
        safe: Value = Where()(self.alive, Softmax(axis=-1)(Where()(self.alive, scores, zero)), zero)
        return safe


def _number(value: float, dtype: DType) -> Constant:
    return constant(np.array(value, np.float64), dtype)


def _positions(attention: Attention, count: int, total: int, lengths: Value | None, past: int) -> Value | None:
    """The keys that causality, window and padding leave: a constant unless the lengths are operands."""
    queries, keys = np.arange(count)[:, None], np.arange(total)
    if lengths is None:
        seen = attention.allowed(past + queries, keys)
        return None if seen is None else constant(np.broadcast_to(seen, (count, total)).copy())
    known: Value = Unsqueeze(axes=(1, 2, 3))(lengths)
    inside: Value = known > constant(keys)
    window = attention.allowed(known + constant(queries - count), constant(keys))
    return inside if window is None else And()(inside, window)


def _extended(mask: Value, total: int) -> Value:
    """A mask with its last axis filled up by what hides keys."""
    short = total - mask.shape[-1]
    if not short:
        return mask
    fill = False if mask.dtype.kind == "bool" else -np.inf
    rest = np.full((*mask.shape[:-1], short), fill).astype(mask.dtype.numpy)
    result: Value = Concat(axis=-1)(mask, constant(rest))
    return result


def _alive(seen: Value | None, bias: Value | None) -> Value | None:
    if bias is None and (seen is None or isinstance(seen, Constant)):
        rows = None if seen is None else seen.array.any(axis=-1, keepdims=True)
        return None if rows is None or rows.all() else constant(rows)
    dtype = f32 if bias is None else accumulator(bias.dtype)
    numbers: Value = constant(np.zeros(1, np.float32)) if bias is None else as_dtype(bias, dtype)
    if seen is not None:
        broadcast_shapes([seen.shape, numbers.shape])
        numbers = Where()(seen, numbers, _number(-np.inf, dtype))
    result: Value = Greater()(ReduceMax(axes=(-1,), keepdims=True)(numbers), _number(-np.inf, dtype))
    return result
