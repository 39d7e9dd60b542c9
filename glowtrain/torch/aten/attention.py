"""Attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.attention.attention import Attention
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.reduce.reduction import ReduceMax
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.move import Expand, Transpose, reshape
from glowtrain.torch.aten.random import dropped
from glowtrain.torch.aten.table import AtenCall, aten
from glowtrain.types import boolean


@aten("scaled_dot_product_attention.default")
def scaled_dot_product_attention(
    call: AtenCall, query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Our attention; with dropout on the probabilities, which ours does not have, its parts."""
    q, k, v = (_four_axes(x) for x in (query, key, value))
    mask = None if attn_mask is None else _mask(attn_mask, query)
    if dropout_p:
        return reshape(_with_dropout(call, q, k, v, mask, dropout_p, is_causal, scale), call.shape)
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    result = Attention(is_causal=is_causal, scale=scale)(*operands)
    return reshape(result[0] if isinstance(result, tuple) else result, call.shape)


def _four_axes(x: Value) -> Value:
    """[batch, heads, positions, size]: more axes in front are taken together, missing ones are 1."""
    if x.rank == 4:
        return x
    if x.rank < 4:
        return reshape(x, (*[1] * (4 - x.rank), *x.shape))
    return reshape(x, (math.prod(x.shape[:-3]), *x.shape[-3:]))


def _mask(mask: Value, query: Value) -> Value:
    """As it broadcasts to four axes."""
    if mask.rank <= 4:
        return mask
    front = np.broadcast_shapes(mask.shape[:-3], query.shape[:-3])
    return _four_axes(Expand(shape=(*front, *mask.shape[-3:]))(mask))


def _with_dropout(
    call: AtenCall, q: Value, k: Value, v: Value, mask: Value | None, ratio: float, is_causal: bool, scale: float | None
) -> Value:
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (_repeated(x, groups) for x in (k, v))
    scores = MatMul()(q * factor, Transpose(perm=(0, 1, 3, 2))(k))
    if is_causal:
        scores = Where()(_causal(scores), scores, call.cast(float("-inf")))
    if mask is not None and mask.dtype == boolean:
        scores = Where()(mask, scores, call.cast(float("-inf")))
    elif mask is not None:
        scores = scores + mask
    unseeing = Equal()(ReduceMax(axes=(-1,), keepdims=True)(StopGradient()(scores)), call.cast(float("-inf")))
    probabilities = Softmax(axis=-1)(Where()(unseeing, call.cast(0), scores))  # not NaN where a query sees no key
    result: Value = MatMul()(dropped(call, Where()(unseeing, call.cast(0), probabilities), ratio)[0], v)
    return result


def _repeated(x: Value, groups: int) -> Value:
    """Each head for several heads of queries."""
    batch, heads, *rest = x.shape
    wide = Expand(shape=(batch, heads, groups, *rest))(reshape(x, (batch, heads, 1, *rest)))
    return reshape(wide, (batch, heads * groups, *rest))


def _causal(scores: Value) -> Value:
    """Whether a query sees a key."""
    rows, columns = scores.shape[-2:]
    return constant(np.tri(rows, columns, dtype=np.bool_))
