"""Attention with a state in place of a cache, and the short causal convolution that goes before it.

Sources: Katharopoulos et al. 2020 (linear attention), Yang et al. 2024 (gated linear attention; the delta rule), Yang,
Kautz and Hatamizadeh 2025 (gated delta rule), Gu and Dao 2023 (causal convolution); semantics as
https://onnx.ai/onnx/operators/ at opset 27.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Draw, Graph, Input, Operator, Sample, Value, operator
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.activation import Swish, sigmoid
from glowtrain.ops.elementwise.transcendental import Exp
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, filled, widened
from glowtrain.ops.tensor.move import Concat, Slice, Transpose, reshape
from glowtrain.types import Array, TensorType

RULES = ("linear", "gated", "delta", "gated_delta")


@operator
@dataclass(frozen=True)
class LinearAttention(Operator):
    """o = scale q' S, where each step decays the state S [d, e] of a head, S exp(g), and adds k v' to it.

    The delta rules add beta k (v - S' k)' instead: what the state does not know of v yet. Operands: queries
    [B, T, H d], keys [B, T, K d], values [B, T, K e] for H query heads, H / K of which share a state; optionally the
    state [B, K, d, e] at the start, the decay g [B, T, K d] or [B, T, K], and beta [B, T, K] or [B, T, 1], the last two
    exactly where the rule has them. Results: [B, T, H e] and the state at the end. ``chunk_size`` is a hint without
    effect; f16 and bf16 are computed in f32.
    """

    kv_num_heads: int
    q_num_heads: int
    chunk_size: int = 64
    scale: float = 0.0
    update_rule: str = "gated_delta"

    def infer(self, *inputs: Any) -> tuple[TensorType, ...]:
        query, key, value, past, decay, beta = types = self._operands(inputs)
        heads, shared = self.q_num_heads, self.kv_num_heads
        if self.update_rule not in RULES or shared < 1 or heads < 1 or heads % shared:
            rule = f"update_rule must be one of {', '.join(RULES)}, q_num_heads a multiple of kv_num_heads"
            raise self.fail(rule, *types)
        wanted = {"decay": (decay, "gated" in self.update_rule), "beta": (beta, "delta" in self.update_rule)}
        for name, (given, needed) in wanted.items():
            if (given is not None) != needed:
                raise self.fail(f"update_rule {self.update_rule} {'needs' if needed else 'has no'} {name}", *types)
        present = [x for x in types if x is not None and x is not past]
        if any(not x.dtype.is_float or x.dtype != query.dtype or x.rank != 3 for x in present):
            raise self.fail("all operands but the state must have rank 3 and one float type", *types)
        d, e = query.shape[2] // heads, value.shape[2] // shared
        rows = query.shape[:2]
        if (query.shape, key.shape, value.shape) != ((*rows, heads * d), (*rows, shared * d), (*rows, shared * e)):
            raise self.fail("queries, keys and values do not split into their heads", *types)
        self._check_gates(rows, d, *types)
        state = query.with_shape((rows[0], shared, d, e))
        if past is not None and (past.shape != state.shape or not past.dtype.is_float):
            raise self.fail(f"past_state must be floating of shape {list(state.shape)}", *types)
        return query.with_shape((*rows, heads * e)), state if past is None else past

    def _check_gates(self, rows: tuple[int, ...], d: int, *types: Any) -> None:
        decay, beta = types[4:]
        shared = self.kv_num_heads
        if decay is not None and decay.shape not in ((*rows, shared), (*rows, shared * d)):
            raise self.fail(f"decay must have shape {[*rows, shared]} or {[*rows, shared * d]}", *types)
        if beta is not None and beta.shape not in ((*rows, shared), (*rows, 1)):
            raise self.fail(f"beta must have shape {[*rows, shared]} or {[*rows, 1]}", *types)

    def _operands(self, inputs: Sequence[Any]) -> list[Any]:
        if not 3 <= len(inputs) <= 6 or any(x is None for x in inputs[:3]):
            raise self.fail("takes query, key, value and optionally past_state, decay and beta", *inputs)
        return [*inputs, *(None,) * (6 - len(inputs))]

    def _scale(self, d: int) -> float:
        return self.scale or 1 / math.sqrt(max(d, 1))

    def _by_step(self, inputs: Sequence[Any]) -> list[Any]:
        """Queries [B, T, K, H / K, d], keys [B, T, K, d, 1], values [B, T, K, 1, e] and the gates, as shapes."""
        query, _, value, _, decay, beta = inputs
        rows, shared = tuple(query.shape[:2]), self.kv_num_heads
        d, e = query.shape[2] // self.q_num_heads, value.shape[2] // shared
        shapes: list[Any] = [
            (*rows, shared, self.q_num_heads // shared, d),
            (*rows, shared, d, 1),
            (*rows, shared, 1, e),
            None if decay is None else (*rows, shared, decay.shape[2] // shared, 1),
            None if beta is None else (*rows, beta.shape[2], 1, 1),
        ]
        return shapes

    def reference(self, *inputs: Any) -> tuple[Array, ...]:
        operands = self._operands(inputs)
        query, key, value, past, decay, beta = operands
        shapes = self._by_step(operands)
        parts = zip((query, key, value, decay, beta), shapes, strict=True)
        split: list[Any] = [None if x is None else widened(x).reshape(shape) for x, shape in parts]
        q, k, v, g, b = split
        batch, steps = query.shape[:2]
        start = np.zeros((batch, self.kv_num_heads, k.shape[3], v.shape[4]), q.dtype)
        state = start if past is None else widened(past).astype(q.dtype)
        y = np.zeros((batch, steps, *q.shape[2:4], v.shape[4]), q.dtype)
        for step in range(steps):
            state = state if g is None else state * np.exp(g[:, step])
            new = v[:, step]
            if b is not None:
                new = b[:, step] * (new - np.sum(state * k[:, step], axis=2, keepdims=True))
            state = state + k[:, step] * new
            y[:, step] = q[:, step] @ state * self._scale(k.shape[3])
        final = state.astype(query.dtype if past is None else past.dtype)
        return y.reshape(batch, steps, math.prod(y.shape[2:])).astype(query.dtype), final

    def decompose(self, *inputs: Any) -> tuple[Value, ...]:
        operands = self._operands(inputs)
        query, key, value, past, decay, beta = operands
        wide, (batch, steps, _) = accumulator(query.dtype), query.shape
        parts = zip((query, key, value, decay, beta), self._by_step(operands), strict=True)
        scanned = [_steps_first(as_dtype(x, wide), shape) for x, shape in parts if x is not None]
        shape = (batch, self.kv_num_heads, scanned[1].shape[3], scanned[2].shape[4])
        start = filled(0.0, TensorType(wide, shape)) if past is None else as_dtype(past, wide)
        body = self._step([Input(start.type, "state"), *(Input(x.type.with_shape(x.shape[1:])) for x in scanned)])
        state, y = Scan(body=body, num_scan_inputs=len(scanned))(start, *scanned)
        ordered = Transpose(perm=(1, 0, 2, 3, 4))(y)
        final = as_dtype(state, query.dtype if past is None else past.dtype)
        return as_dtype(reshape(ordered, (batch, steps, self.q_num_heads * shape[3])), query.dtype), final

    def _step(self, inputs: Sequence[Input]) -> Graph:
        """One step: from the state and the step's slices to the new state and the output [B, K, H / K, e]."""
        state, q, k, v, *rest = inputs
        gates: list[Value] = list(rest)
        known: Value = state * Exp()(gates.pop(0)) if "gated" in self.update_rule else state
        new: Value = v
        if gates:
            recalled = Transpose(perm=(0, 1, 3, 2))(k) @ known
            new = gates[0] * (v - recalled)
        following = known + k * new
        y = q @ following * self._scale(state.shape[2])
        return Graph(tuple(inputs), {"state.next": following, "y": y}, name="linear_attention")

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        batch, steps, shared, group, d, e = (draw.integer(1, high) for high in (2, 3, 2, 2, 3, 3))
        rule = draw.choice(RULES)
        options = {"chunk_size": draw.choice((64, 1, 2)), "scale": draw.choice((0.0, 0.7))}
        attention = cls(shared, shared * group, update_rule=rule, **options)
        q, k, v = (draw.floats((batch, steps, n)) for n in (shared * group * d, shared * d, shared * e))
        past = draw.floats((batch, shared, d, e)) if draw.boolean() else None
        decays = draw.choice((shared, shared * d))
        decay = draw.floats((batch, steps, decays), -1.0, 0.0) if "gated" in rule else None
        beta = draw.floats((batch, steps, draw.choice((1, shared))), 0.0, 1.0) if "delta" in rule else None
        inputs = [q, k, v, past, decay, beta]
        while inputs[-1] is None:
            inputs.pop()
        return Sample(attention, tuple(inputs))


def _steps_first(x: Value, shape: tuple[int, ...]) -> Value:
    """[B, T, n] with its last axis split, and the steps in front."""
    split = reshape(x, shape)
    result: Value = Transpose(perm=(1, 0, *range(2, split.rank)))(split)
    return result


@operator
@dataclass(frozen=True)
class CausalConvWithState(Operator):
    """Every channel's convolution with its own kernel over the present and the past, then ``activation``.

    Operands: x [B, C, L], kernels [C, 1, k], optionally a bias [C] and what was before x, [B, C, k - 1] (else zeros).
    Results: y [B, C, L] and the last k - 1 inputs, for the next call. ``activation``: none, or silu, which is swish.
    """

    activation: str = "none"

    def infer(self, *inputs: Any) -> tuple[TensorType, ...]:
        x, weight, bias, past = types = self._operands(inputs)
        if self.activation not in ("none", "silu", "swish"):
            raise self.fail("activation must be none, silu or swish", *types)
        if any(t is not None and (t.dtype != x.dtype or not t.dtype.is_float) for t in types):
            raise self.fail("operands must have one float type", *types)
        if x.rank != 3 or weight.rank != 3 or weight.shape[:2] != (x.shape[1], 1) or weight.shape[2] < 1:
            raise self.fail("x must be [B, C, L] and the kernels [C, 1, k]", *types)
        if 0 in x.shape[1:]:
            raise self.fail("x needs at least one channel and one step", *types)
        state = (*x.shape[:2], weight.shape[2] - 1)
        if bias is not None and bias.shape != (x.shape[1],):
            raise self.fail(f"bias must have shape [{x.shape[1]}]", *types)
        if past is not None and past.shape != state:
            raise self.fail(f"past_state must have shape {list(state)}", *types)
        return x, x.with_shape(state)

    def _operands(self, inputs: Sequence[Any]) -> list[Any]:
        if not 2 <= len(inputs) <= 4 or any(x is None for x in inputs[:2]):
            raise self.fail("takes input, weight and optionally bias and past_state", *inputs)
        return [*inputs, *(None,) * (4 - len(inputs))]

    def reference(self, *inputs: Any) -> tuple[Array, ...]:
        x, weight, bias, past = self._operands(inputs)
        taps, length = weight.shape[2], x.shape[2]
        before = np.zeros((*x.shape[:2], taps - 1), x.dtype) if past is None else past
        line = np.concatenate([before, x], axis=2)
        wide, kernel = widened(line), widened(weight)
        y = sum(wide[:, :, tap : tap + length] * kernel[:, 0, tap, None] for tap in range(taps))
        y = np.asarray(y if bias is None else y + widened(bias)[:, None])
        y = y if self.activation == "none" else y * sigmoid(y)
        return y.astype(x.dtype), line[:, :, length:].copy()

    def decompose(self, *inputs: Any) -> tuple[Value, ...]:
        x, weight, bias, past = self._operands(inputs)
        taps, length = weight.shape[2], x.shape[2]
        before = filled(0.0, x.type.with_shape((*x.shape[:2], taps - 1))) if past is None else past
        line = Concat(axis=2)(before, x) if taps > 1 else x
        biases = () if bias is None else (bias,)
        y = Conv(group=x.shape[1])(line, weight, *biases)
        state = Slice(starts=(length,), ends=(length + taps - 1,), axes=(2,))(line)
        return y if self.activation == "none" else Swish()(y), state

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        batch, channels, length, taps = (draw.integer(1, high) for high in (2, 3, 4, 4))
        bias = draw.floats((channels,)) if draw.boolean() else None
        past = draw.floats((batch, channels, taps - 1)) if draw.boolean() else None
        x, weight = draw.floats((batch, channels, length)), draw.floats((channels, 1, taps))
        inputs = [x, weight, bias, past]
        while inputs[-1] is None:
            inputs.pop()
        return Sample(cls(draw.choice(("none", "silu", "swish"))), tuple(inputs))
