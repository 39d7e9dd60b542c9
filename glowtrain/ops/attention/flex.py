"""Attention whose scores and probabilities go through subgraphs of the model's own (PyTorch's flex_attention)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Graph, Input, Operator, Sample, Value, operator, rebuild
from glowtrain.ops.attention.attention import by_group, score_scale
from glowtrain.ops.contraction.products import swapped
from glowtrain.ops.control.scan import run_body
from glowtrain.ops.elementwise.activation import Sigmoid
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, widened
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.types import Array, DType, Shape, TensorType, dtype_of, f64


@operator
@dataclass(frozen=True)
class FlexAttention(Operator):
    """Y = prob_mod(softmax(score_mod(scale Q K'))) V.

    Operands: Q [B, H, S, D], K [B, H / G, T, D] and V [B, H / G, T, E], G query heads to a key head, then what the
    subgraphs read of the graph around them: first score_mod's, then prob_mod's. A subgraph takes [B, H, S, T] and its
    captured values, and gives that type again; its element type is ``softmax_precision``, by default f32, or f64 for
    operands of f64. A row of scores that are all -inf gives NaN.
    """

    domain: ClassVar[str] = "ai.onnx.preview"

    prob_mod: Graph | None = None
    scale: float | None = None
    score_mod: Graph | None = None
    softmax_precision: DType | None = None

    def precision(self, dtype: DType) -> DType:
        """The element type of scores and probabilities."""
        return self.softmax_precision or accumulator(dtype)

    def infer(self, *inputs: Any) -> TensorType:
        if len(inputs) < 3 or any(type_ is None for type_ in inputs):
            raise self.fail("takes Q, K, V and the values that its subgraphs capture", *inputs)
        q, k, v = inputs[:3]
        if any(x.rank != 4 or x.dtype != q.dtype or not x.dtype.is_float for x in (q, k, v)):
            raise self.fail("Q, K and V must have rank 4 and one float type", *inputs)
        (batch, heads, count, size), (_, shared, keys, _) = q.shape, k.shape
        if k.shape != (batch, shared, keys, size) or v.shape[:3] != k.shape[:3] or not shared or heads % shared:
            rule = "Q and K must agree in batch and size, K and V in heads and positions, H must be a multiple of K's"
            raise self.fail(rule, *inputs)
        self._check_bodies(TensorType(self.precision(q.dtype), (batch, heads, count, keys)), *inputs)
        result: TensorType = q.with_shape((*q.shape[:3], v.shape[3]))
        return result

    def _check_bodies(self, scores: TensorType, *inputs: Any) -> None:
        captured = [type_ for body, types in self._captured(inputs) if body is not None for type_ in types]
        wanted = [value.type for body in (self.score_mod, self.prob_mod) if body for value in body.inputs[1:]]
        if len(inputs) - 3 != len(wanted) or captured != wanted:
            raise self.fail("the captured operands are not what the subgraphs take", *inputs)
        for name, body in (("score_mod", self.score_mod), ("prob_mod", self.prob_mod)):
            if body is None:
                continue
            types = [value.type for value in (*body.inputs[:1], *body.outputs.values())]
            if types != [scores, scores]:
                found = " to ".join(map(str, types))
                raise self.fail(f"{name} must take {scores} first and give {scores}; it is {found}", *inputs)

    def _captured(self, inputs: Sequence[Any]) -> list[tuple[Graph | None, Sequence[Any]]]:
        """score_mod and prob_mod, each with the operands that it captures."""
        cut = 3 + (len(self.score_mod.inputs) - 1 if self.score_mod else 0)
        return [(self.score_mod, inputs[3:cut]), (self.prob_mod, inputs[cut:])]

    def reference(self, *inputs: Array) -> Array:
        q, k, v = inputs[:3]
        dtype, group = self.precision(dtype_of(q.dtype)).numpy, q.shape[1] // k.shape[1]
        (score_mod, of_scores), (prob_mod, of_shares) = self._captured(inputs)
        wide_k, wide_v = (np.repeat(widened(x), group, axis=1) for x in (k, v))
        scores = (widened(q) * score_scale(self.scale, q.shape[3]) @ wide_k.swapaxes(2, 3)).astype(dtype)
        if score_mod is not None:
            (scores,) = run_body(score_mod, [scores, *of_scores])
        powers = np.exp(widened(scores) - np.max(widened(scores), axis=-1, keepdims=True, initial=-np.inf))
        shares = (powers / powers.sum(axis=-1, keepdims=True)).astype(dtype)
        if prob_mod is not None:
            (shares,) = run_body(prob_mod, [shares, *of_shares])
        return np.asarray((widened(shares) @ wide_v).astype(q.dtype))

    def decompose(self, *inputs: Value) -> Value:
        q, k, v = inputs[:3]
        dtype, wide = self.precision(q.dtype), accumulator(q.dtype)
        (score_mod, of_scores), (prob_mod, of_shares) = self._captured(inputs)
        products = by_group(as_dtype(q, wide) * score_scale(self.scale, q.shape[3]), swapped(as_dtype(k, wide)))
        scores = _through(score_mod, as_dtype(products, dtype), of_scores)
        shares = _through(prob_mod, Softmax(axis=-1)(scores), of_shares)
        widest = accumulator(dtype)
        return as_dtype(by_group(as_dtype(shares, widest), as_dtype(v, widest)), q.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        batch, shared, group, count, keys, size, width = (draw.integer(1, high) for high in (2, 2, 2, 3, 4, 3, 3))
        scores = (batch, shared * group, count, keys)
        score_mod = _sample_score_mod(scores) if draw.boolean() else None
        prob_mod = _sample_prob_mod(scores) if draw.boolean() else None
        shapes: list[Shape] = [
            (batch, shared * group, count, size),
            (batch, shared, keys, size),
            (batch, shared, keys, width),
        ]
        shapes += [(count, keys)] if score_mod else []
        shapes += [(shared * group, 1, 1)] if prob_mod else []
        options = {"scale": draw.choice((None, 0.7)), "softmax_precision": draw.choice((None, f64))}
        flex = cls(score_mod=score_mod, prob_mod=prob_mod, **options)
        return Sample(flex, tuple(draw.floats(shape) for shape in shapes))


def _through(body: Graph | None, x: Value, captured: Sequence[Value]) -> Value:
    """The result of a subgraph, in place; ``x`` where there is none."""
    if body is None:
        return x
    (result,) = body.outputs.values()
    (value,) = rebuild([result], dict(zip(body.inputs, (x, *captured), strict=True)))
    return value


def _sample_score_mod(scores: Shape) -> Graph:
    """A soft cap and a bias that the model learns."""
    x, bias = Input(f64[scores], "scores"), Input(f64[scores[2:]], "bias")
    return Graph((x, bias), {"y": Tanh()(x) + bias}, name="score_mod")


def _sample_prob_mod(scores: Shape) -> Graph:
    """A gate for each head."""
    x, gate = Input(f64[scores], "shares"), Input(f64[scores[1], 1, 1], "gate")
    return Graph((x, gate), {"y": x * Sigmoid()(gate)}, name="prob_mod")
