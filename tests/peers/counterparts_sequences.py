"""Recurrent layers and attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from counterparts import counterpart
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from glowtrain.graph import Sample

LAYERS: dict[str, tuple[type[nn.RNNBase], tuple[int, ...]]] = {
    "RNN": (nn.RNN, (0,)),
    "GRU": (nn.GRU, (1, 0, 2)),
    "LSTM": (nn.LSTM, (0, 2, 3, 1)),
}
"""PyTorch's layers, and the places of its gates among ONNX's."""


def _usual(sample: Sample) -> Sample:
    """PyTorch's cells: the usual activations, no clip, no peepholes; the GRU's reset gate acts on the product."""
    op: Any = sample.operator
    changes: dict[str, Any] = {"activations": (), "activation_alpha": (), "activation_beta": (), "clip": None}
    own = {"GRU": {"linear_before_reset": 1}, "LSTM": {"input_forget": 0}}.get(op.onnx, {})
    inputs = (*sample.inputs[:7], None) if op.onnx == "LSTM" else sample.inputs
    return Sample(op.replace(**changes, **own), inputs)


def _flat(op: Any, w: Tensor, r: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """A layer's parameters by PyTorch's names. A layer that only goes back stands for both directions of one."""
    gates = LAYERS[op.onnx][1]
    rows = [gate * r.shape[2] + k for gate in gates for k in range(r.shape[2])]
    found = {}
    for place, suffix in enumerate(("", "_reverse") if op.direction != "forward" else ("",)):
        d = min(place, w.shape[0] - 1)
        found["weight_ih_l0" + suffix], found["weight_hh_l0" + suffix] = w[d][rows], r[d][rows]
        if bias is not None:
            halves = bias[d].chunk(2)
            found["bias_ih_l0" + suffix], found["bias_hh_l0" + suffix] = halves[0][rows], halves[1][rows]
    return found


@counterpart("RNN", "GRU", "LSTM", fitted=_usual)
def recurrent(
    op: Any,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    *starts: Tensor | None,
) -> Any:
    time_first = x.transpose(0, 1) if op.layout else x
    steps, batch, hidden = *time_first.shape[:2], r.shape[2]
    layer = LAYERS[op.onnx][0](x.shape[2], hidden, bias=bias is not None, bidirectional=op.direction != "forward")
    states = []
    for start in starts[: 2 if op.onnx == "LSTM" else 1]:
        state = torch.zeros(w.shape[0], batch, hidden, dtype=x.dtype) if start is None else start
        state = state.transpose(0, 1) if op.layout and start is not None else state
        states.append(torch.cat([state, state]) if op.direction == "reverse" else state)
    first: Any = tuple(states) if op.onnx == "LSTM" else states[0]
    source: Any = time_first
    if lengths is not None:
        source = pack_padded_sequence(time_first, lengths.long(), enforce_sorted=False)
    y, last = functional_call(layer.double(), _flat(op, w, r, bias), (source, first))
    if lengths is not None:
        y, _ = pad_packed_sequence(y, total_length=steps)
    last = last if op.onnx == "LSTM" else (last,)
    y = y.reshape(steps, batch, -1, hidden)
    kept = slice(1, 2) if op.direction == "reverse" else slice(None)
    y, last = y[:, :, kept], [state[kept] for state in last]
    if op.layout:
        return y.transpose(0, 1), *(state.transpose(0, 1) for state in last)
    return y.transpose(1, 2), *last


# --- attention -------------------------------------------------------------------------------------------------------


def _heads(x: Tensor, count: int | None) -> Tensor:
    """[B, H, N, D] of what may have heads and sizes in one axis."""
    return x if x.ndim == 4 else x.unflatten(2, (count, -1)).transpose(1, 2)


def _seen(op: Any, shape: torch.Size, offset: Tensor) -> Tensor:
    """Whether a query sees a key, by causality and window: [B or 1, 1, S, T]."""
    queries = torch.arange(shape[2]).reshape(1, 1, -1, 1) + offset.reshape(-1, 1, 1, 1)
    keys = torch.arange(shape[3]).reshape(1, 1, 1, -1)
    seen = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if op.is_causal:
        seen = seen & (keys <= queries)
    if op.left_window_size >= 0:
        seen = seen & (keys >= queries - op.left_window_size)
    if op.right_window_size >= 0:
        seen = seen & (keys <= queries + op.right_window_size)
    return seen


@counterpart("Attention")
def attention(
    op: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Any:
    """scaled_dot_product_attention where it has all that is asked for, else written out."""
    flat, (q, k, v) = q.ndim == 3, (_heads(x, n) for x, n in zip((q, k, v), _counts(op), strict=True))
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    scale = 1 / math.sqrt(q.shape[3]) if op.scale is None else op.scale
    wide = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = [scale * q @ wide.transpose(2, 3)]
    scores.append(op.softcap * torch.tanh(scores[0] / op.softcap) if op.softcap else scores[0])
    before = 0 if past_key is None else past_key.shape[2]
    offset = torch.tensor([before]) if lengths is None else lengths - q.shape[2]
    seen, added = _seen(op, scores[0].shape, offset), torch.zeros((), dtype=q.dtype)
    if lengths is not None:
        seen = seen & (torch.arange(k.shape[2]) < lengths.reshape(-1, 1, 1, 1))
    if mask is not None:
        rest = k.shape[2] - mask.shape[-1]
        if mask.dtype == torch.bool:
            seen = seen & functional.pad(mask, (0, rest))
        else:
            added = functional.pad(mask, (0, rest))
            seen = seen & (torch.arange(k.shape[2]) < mask.shape[-1])
    scores.append(scores[1] + added)
    seen = seen.expand_as(scores[0])
    some = seen.any(-1, keepdim=True)
    hidden = torch.where(seen, scores[2], -math.inf)
    weights = functional.softmax(torch.where(some, hidden, 0.0), -1) * some
    if not op.softcap and some.all():
        bias = torch.where(seen, added, -math.inf)
        y = functional.scaled_dot_product_attention(q, k, v, bias, scale=scale, enable_gqa=True)
    else:
        y = weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    y = y.transpose(1, 2).flatten(2) if flat else y
    return y, k, v, (*scores, weights)[op.qk_matmul_output_mode]


def _counts(op: Any) -> tuple[int | None, ...]:
    return op.q_num_heads, op.kv_num_heads, op.kv_num_heads


class _Form:
    """The attributes of Attention for Microsoft's forms."""

    is_causal, left_window_size, right_window_size, softcap, qk_matmul_output_mode = False, -1, -1, 0.0, 0

    def __init__(self, op: Any) -> None:
        self.is_causal, self.scale = op.unidirectional, op.scale
        self.q_num_heads = self.kv_num_heads = op.num_heads


def _hiding(op: Any, mask: Tensor | None, batch: int, total: int) -> Tensor:
    """What Microsoft's masks add to the scores."""
    if mask is None:
        return torch.zeros((), dtype=torch.float64)
    if mask.ndim == 1:
        rows, places = mask.reshape(-1, batch), torch.arange(total)
        hidden = places >= rows[0][:, None]
        hidden = (hidden | (places < rows[1][:, None]) if len(rows) > 1 else hidden)[:, None, None]
    else:
        hidden = 1 - (mask[:, None, None] if mask.ndim == 2 else mask[:, None])
    return hidden.double() * op.mask_filter_value


@counterpart("com.microsoft.Attention")
def self_attention(
    op: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    added: Tensor | None = None,
) -> Any:
    projected = functional.linear(x, weight.T, bias)
    q, k, v = projected.split(op.qkv_hidden_sizes or weight.shape[1] // 3, 2)
    keys, values = (None, None) if past is None else past.unbind(0)
    total = k.shape[1] + (0 if keys is None else keys.shape[2])
    extra = _hiding(op, mask, x.shape[0], total) + (0 if added is None else added)
    extra = extra.expand(*extra.shape[:-1], total) if extra.ndim else extra.expand(1, total)
    y, keys, values, _ = attention(_Form(op), q, k, v, extra, keys, values)
    return (y, torch.stack([keys, values])) if keys.shape == values.shape else y


@counterpart("com.microsoft.MultiHeadAttention")
def multi_head_attention(
    op: Any,
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    added: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Any:
    if k is None:
        q, k, v = (part.flatten(2) for part in q.unbind(3))
    elif k.ndim == 5:
        k, v = (part.flatten(2) for part in k.unbind(3))
    elif k.ndim == 4 and v is not None:
        k, v = (x.transpose(1, 2).flatten(2) for x in (k, v))
    assert v is not None
    if bias is not None:
        q, k, v = (x + part for x, part in zip((q, k, v), bias.split(q.shape[2]), strict=True))
    total = k.shape[1] + (0 if past_key is None else past_key.shape[2])
    extra = _hiding(op, mask, q.shape[0], total) + (0 if added is None else added)
    extra = extra if extra.ndim else extra.expand(1, total)
    return attention(_Form(op), q, k, v, extra, past_key, past_value)[:3]


@counterpart("RotaryEmbedding")
def rotary_embedding(op: Any, x: Tensor, cos: Tensor, sin: Tensor, places: Tensor | None = None) -> Tensor:
    """As complex numbers, which are turned by a product."""
    y = _heads(x, op.num_heads)
    if places is not None:
        cos, sin = cos[places], sin[places]
    size = op.rotary_embedding_dim or y.shape[3]
    turned, rest = y[..., :size], y[..., size:]
    pairs = turned.unflatten(3, (-1, 2)) if op.interleaved else turned.unflatten(3, (2, -1)).transpose(3, 4)
    z = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin)[:, None]
    numbers = torch.view_as_real(z)
    numbers = numbers if op.interleaved else numbers.transpose(3, 4)
    y = torch.cat([numbers.flatten(3), rest], 3)
    return y if x.ndim == 4 else y.transpose(1, 2).flatten(2)


@counterpart("LinearAttention")
def linear_attention(
    op: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
) -> Any:
    heads, shared = op.q_num_heads, op.kv_num_heads
    q, k, v = (x.unflatten(2, (n, -1)) for x, n in ((q, heads), (k, shared), (v, shared)))
    state = torch.zeros(q.shape[0], shared, k.shape[3], v.shape[3], dtype=q.dtype) if past is None else past
    rows = []
    for t in range(q.shape[1]):
        if decay is not None:
            state = state * decay[:, t].unflatten(1, (shared, -1)).exp()[..., None]
        new = v[:, t]
        if beta is not None:
            new = (new - torch.einsum("bhde,bhd->bhe", state, k[:, t])) * beta[:, t, :, None]
        state = state + torch.einsum("bhd,bhe->bhde", k[:, t], new)
        wide = state.repeat_interleave(heads // shared, 1)
        rows.append(torch.einsum("bhd,bhde->bhe", q[:, t], wide).flatten(1))
    return torch.stack(rows, 1) * (op.scale or 1 / math.sqrt(q.shape[3])), state
