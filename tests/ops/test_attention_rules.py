"""Attention, rotary embedding, linear attention: conventions, equalities between forms, and rules that are broken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ShapeError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Operator, Value
from glowtrain.ops.attention.attention import Attention
from glowtrain.ops.attention.linear import CausalConvWithState, LinearAttention
from glowtrain.ops.attention.rotary import RotaryEmbedding, SwiGLU
from glowtrain.types import Array, TensorType, boolean, f16, f32, f64, i64, type_of


def normal(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape)


def outputs(operator: Operator, *arrays: Array | None) -> list[Array]:
    """What the reference gives, after the decomposition was found to give the same."""
    known = [None if array is None else Input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    results = operator.decompose(*known)
    values: tuple[Value, ...] = results if isinstance(results, tuple) else (results,)
    given = tuple(value for value in known if value is not None)
    graph = Graph(given, {f"y{i}": value for i, value in enumerate(values)})
    feeds = {f"x{i}": array for i, array in enumerate(arrays) if array is not None}
    found = evaluate(graph, feeds)
    expected = operator.reference(*arrays)
    wanted = list(expected if isinstance(expected, tuple) else (expected,))
    for value, array in zip(values, wanted, strict=True):
        assert value.type == type_of(array)
        np.testing.assert_allclose(found[value], array, rtol=1e-9, atol=1e-12)
    return wanted


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


class TestAttention:
    q, k, v = (normal(np.random.default_rng(seed), 2, 4, *last) for seed, last in enumerate(((3, 5), (6, 5), (6, 2))))

    def test_formula(self) -> None:
        y, key, value, products = outputs(Attention(), self.q, self.k, self.v)
        scores = np.einsum("bhsd,bhtd->bhst", self.q, self.k) / np.sqrt(5)
        np.testing.assert_allclose(products, scores)
        np.testing.assert_allclose(y, np.einsum("bhst,bhte->bhse", softmax(scores), self.v))
        np.testing.assert_array_equal(key, self.k)
        np.testing.assert_array_equal(value, self.v)

    def test_what_a_mode_shows(self) -> None:
        capped = Attention(softcap=0.5, is_causal=True)
        raw, bounded, masked, shares = (
            outputs(capped.replace(qk_matmul_output_mode=mode), self.q, self.k, self.v)[3] for mode in range(4)
        )
        np.testing.assert_allclose(bounded, 0.5 * np.tanh(raw / 0.5))
        lower = np.tril(np.ones((3, 6), bool))
        assert np.isneginf(masked[:, :, ~lower]).all()
        np.testing.assert_array_equal(masked[:, :, lower], bounded[:, :, lower])
        np.testing.assert_allclose(shares, softmax(masked))

    def test_grouped_heads_are_repeated_ones(self) -> None:
        k, v = self.k[:, :2], self.v[:, :2]
        grouped = outputs(Attention(), self.q, k, v)[0]
        np.testing.assert_allclose(
            grouped, outputs(Attention(), self.q, k.repeat(2, axis=1), v.repeat(2, axis=1))[0], rtol=1e-9
        )

    def test_rank_3_is_rank_4_with_heads_inside(self) -> None:
        flat = [x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for x in (self.q, self.k, self.v)]
        y, key, _, _ = outputs(Attention(q_num_heads=4, kv_num_heads=4), *flat)
        expected = outputs(Attention(), self.q, self.k, self.v)[0]
        np.testing.assert_allclose(y, expected.transpose(0, 2, 1, 3).reshape(2, 3, -1))
        np.testing.assert_array_equal(key, self.k)

    def test_step_by_step_with_a_cache_is_all_at_once(self, random: np.random.Generator) -> None:
        q, k, v = normal(random, 1, 2, 4, 3), normal(random, 1, 2, 4, 3), normal(random, 1, 2, 4, 3)
        whole = outputs(Attention(is_causal=True), q, k, v)[0]
        keys, values, rows = k[:, :, :0], v[:, :, :0], []
        for step in range(4):
            part = [x[:, :, step : step + 1] for x in (q, k, v)]
            y, keys, values, _ = outputs(Attention(is_causal=True), *part, None, keys, values)
            rows.append(y)
        np.testing.assert_allclose(np.concatenate(rows, axis=2), whole)
        np.testing.assert_array_equal(keys, k)

    def test_padded_keys_do_not_count(self) -> None:
        lengths = np.array([4, 6])
        y = outputs(Attention(), self.q, self.k, self.v, None, None, None, lengths)[0]
        for row, length in enumerate(lengths):
            alone = outputs(
                Attention(), self.q[row : row + 1], self.k[row : row + 1, :, :length], self.v[row : row + 1, :, :length]
            )[0]
            np.testing.assert_allclose(y[row : row + 1], alone)

    def test_causality_counts_from_the_end_of_what_is_not_padding(self) -> None:
        lengths = np.array([2, 6])
        attention = Attention(is_causal=True, qk_matmul_output_mode=3)
        y, _, _, shares = outputs(attention, self.q, self.k, self.v, None, None, None, lengths)
        seen = [[0, 1, 2], [4, 5, 6]]
        assert [[int((row > 0).sum()) for row in head[0]] for head in shares] == seen
        assert not y[0, :, 0].any(), "a query that sees nothing gives zeros"

    @pytest.mark.parametrize(
        ("left", "right", "first", "last"), [(1, 0, 1, 2), (0, 1, 2, 3), (-1, 1, 0, 3), (2, -1, 0, 5)]
    )
    def test_window(self, left: int, right: int, first: int, last: int) -> None:
        attention = Attention(left_window_size=left, right_window_size=right, qk_matmul_output_mode=3)
        shares = outputs(attention, self.q, self.k, self.v)[3]
        assert np.flatnonzero(shares[0, 0, 2]).tolist() == list(range(first, last + 1))

    def test_masks(self, random: np.random.Generator) -> None:
        allowed = random.random((3, 6)) < 0.5
        allowed[:, 0] = True
        expected = outputs(Attention(), self.q, self.k, self.v, allowed)[0]
        added = np.where(allowed, 0, -np.inf)
        np.testing.assert_allclose(outputs(Attention(), self.q, self.k, self.v, added)[0], expected)
        short = outputs(Attention(), self.q, self.k, self.v, np.ones((1, 4), bool))[0]
        np.testing.assert_allclose(short, outputs(Attention(), self.q, self.k[:, :, :4], self.v[:, :, :4])[0])

    @pytest.mark.parametrize("mask", [np.array([[True] * 4, [False] * 4]), np.array([[0.0] * 4, [-np.inf] * 4])])
    def test_blind_queries_have_no_gradient(self, mask: Array, random: np.random.Generator) -> None:
        """Zeros come out, and zeros, not NaN, go back."""
        arrays = [normal(random, 1, 1, 2, 3), normal(random, 1, 1, 4, 3), normal(random, 1, 1, 4, 3)]
        values = [Input(type_of(array), name) for array, name in zip(arrays, "qkv", strict=True)]
        y = Attention()(*values, mask)[0]
        seed = Input(y.type, "seed")
        gradients = pullback([y], [seed], values)
        graph = Graph((*values, seed), {"y": y} | {f"d{x.name}": g for x, g in zip(values, gradients, strict=True)})
        known = evaluate(graph, dict(zip(("q", "k", "v", "seed"), (*arrays, np.ones(y.shape)), strict=True)))
        found = {name: known[value] for name, value in graph.outputs.items()}
        assert not found["y"][0, 0, 1].any()
        assert not found["dq"][0, 0, 1].any()
        assert all(np.isfinite(array).all() for array in found.values())
        assert found["dq"][0, 0, 0].all()

    def test_half_precision_is_computed_in_single(self) -> None:
        halves = [x.astype(np.float16) for x in (self.q * 30, self.k * 30, self.v)]
        y = Attention(scale=1.0).reference(*halves)[0]
        exact = Attention(scale=1.0).reference(*(x.astype(np.float64) for x in halves))[0]
        np.testing.assert_allclose(y, exact, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize(
        ("attention", "types", "rule"),
        [
            (Attention(), (f32[2, 4, 6], f32[2, 4, 6], f32[2, 4, 6]), "q_num_heads"),
            (Attention(q_num_heads=4, kv_num_heads=4), (f32[2, 3, 6], f32[2, 3, 8], f32[2, 3, 8]), "4 heads"),
            (Attention(), (f32[2, 3, 4, 5], f32[2, 2, 4, 5], f32[2, 2, 4, 5]), "multiple"),
            (Attention(), (f32[2, 2, 4, 5], f32[2, 2, 4, 6], f32[2, 2, 4, 5]), "agree"),
            (Attention(), (f32[2, 2, 4, 5], f16[2, 2, 4, 5], f32[2, 2, 4, 5]), "one element type"),
            (Attention(), (f32[1, 1, 2, 3], f32[1, 1, 4, 3], f32[1, 1, 4, 3], boolean[2, 5]), "attn_mask"),
            (Attention(), (f32[1, 1, 2, 3], f32[1, 1, 4, 3], f32[1, 1, 4, 3], None, f32[1, 1, 2, 3]), "go together"),
            (Attention(left_window_size=-2), (f32[1, 1, 2, 3], f32[1, 1, 4, 3], f32[1, 1, 4, 3]), "window"),
            (Attention(), (f32[1, 1, 2, 3], f32[1, 1, 4, 3]), "takes"),
        ],
    )
    def test_broken_rules(self, attention: Attention, types: tuple[TensorType | None, ...], rule: str) -> None:
        with pytest.raises(ShapeError, match=rule):
            attention.infer(*types)


class TestRotaryEmbedding:
    def test_turns_pairs_as_complex_numbers(self, random: np.random.Generator) -> None:
        x, angle = normal(random, 2, 3, 4, 6), random.random((2, 4, 3))
        (y,) = outputs(RotaryEmbedding(interleaved=True), x, np.cos(angle), np.sin(angle))
        turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, None]
        np.testing.assert_allclose(y[..., ::2], turned.real)
        np.testing.assert_allclose(y[..., 1::2], turned.imag)
        halves = np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)
        (other,) = outputs(RotaryEmbedding(), halves, np.cos(angle), np.sin(angle))
        np.testing.assert_allclose(other, np.concatenate([turned.real, turned.imag], axis=-1))

    def test_part_of_a_head_and_tables(self, random: np.random.Generator) -> None:
        x, table, places = normal(random, 2, 4, 3 * 6), random.random((5, 2)), random.integers(0, 5, (2, 4))
        rotary = RotaryEmbedding(num_heads=3, rotary_embedding_dim=4)
        (y,) = outputs(rotary, x, np.cos(table), np.sin(table), places)
        (same,) = outputs(rotary, x, np.cos(table[places]), np.sin(table[places]))
        np.testing.assert_array_equal(y, same)
        np.testing.assert_array_equal(y.reshape(2, 4, 3, 6)[..., 4:], x.reshape(2, 4, 3, 6)[..., 4:])

    @pytest.mark.parametrize(
        "types",
        [(f32[2, 4, 18], f32[2, 4, 3], f32[2, 4, 3]), (f32[2, 3, 4, 5], f32[2, 4, 2], f32[2, 4, 2]),
         (f32[2, 3, 4, 6], f32[5, 3], f32[5, 3]), (f32[2, 3, 4, 6], f32[5, 3], f32[5, 3], i64[2, 3])],
    )  # fmt: skip
    def test_broken_rules(self, types: Any) -> None:
        with pytest.raises(ShapeError):
            RotaryEmbedding().infer(*types)


class TestLinearAttention:
    def test_without_gates_is_attention_without_softmax(self, random: np.random.Generator) -> None:
        q, k, v = normal(random, 2, 5, 6), normal(random, 2, 5, 6), normal(random, 2, 5, 4)
        y, state = outputs(LinearAttention(2, 2, update_rule="linear", scale=1.0), q, k, v)
        queries, keys, values = (x.reshape(2, 5, 2, -1) for x in (q, k, v))
        scores = np.einsum("bshd,bthd->bhst", queries, keys) * np.tril(np.ones((5, 5)))
        np.testing.assert_allclose(y, np.einsum("bhst,bthe->bshe", scores, values).reshape(2, 5, 4))
        np.testing.assert_allclose(state, np.einsum("bthd,bthe->bhde", keys, values))

    def test_delta_rule_stores_what_is_read_back(self, random: np.random.Generator) -> None:
        """With beta 1 and a unit key, the state's answer to the key is the value, whatever it was before."""
        key = np.array([[[0.6, 0.8]]])
        _, state = outputs(LinearAttention(1, 1, update_rule="delta"), key, key, np.array([[[3.0, -1.0, 2.0]]]),
                           normal(random, 1, 1, 2, 3), None, np.ones((1, 1, 1)))  # fmt: skip
        np.testing.assert_allclose(key[0, 0] @ state[0, 0], [3, -1, 2])

    def test_two_halves_are_the_whole(self, random: np.random.Generator) -> None:
        q, k, v, g, b = (
            normal(random, 1, 6, 8),
            normal(random, 1, 6, 4),
            normal(random, 1, 6, 4),
            -random.random((1, 6, 2)),
            random.random((1, 6, 2)),
        )
        rule = LinearAttention(2, 4)
        whole, last = outputs(rule, q, k, v, None, g, b)
        first, state = outputs(rule, *(x[:, :2] for x in (q, k, v)), None, g[:, :2], b[:, :2])
        second, final = outputs(rule, *(x[:, 2:] for x in (q, k, v)), state, g[:, 2:], b[:, 2:])
        np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole)
        np.testing.assert_allclose(final, last)

    def test_gates_where_the_rule_has_them(self) -> None:
        types = (f32[1, 2, 4], f32[1, 2, 4], f32[1, 2, 4])
        with pytest.raises(ShapeError, match="gated needs decay"):
            LinearAttention(1, 1, update_rule="gated").infer(*types)
        with pytest.raises(ShapeError, match="linear has no beta"):
            LinearAttention(1, 1, update_rule="linear").infer(*types, None, None, f32[1, 2, 1])


class TestCausalConvWithState:
    def test_pieces_are_the_whole(self, random: np.random.Generator) -> None:
        x, weight, bias = normal(random, 2, 3, 7), normal(random, 3, 1, 4), normal(random, 3)
        conv = CausalConvWithState("silu")
        whole, last = outputs(conv, x, weight, bias)
        first, state = outputs(conv, x[:, :, :2], weight, bias)
        second, final = outputs(conv, x[:, :, 2:], weight, bias, state)
        np.testing.assert_allclose(np.concatenate([first, second], axis=2), whole)
        np.testing.assert_array_equal(final, last)
        np.testing.assert_array_equal(last, x[:, :, 4:])

    def test_no_output_sees_the_future(self, random: np.random.Generator) -> None:
        x, weight = normal(random, 1, 2, 5), normal(random, 2, 1, 3)
        y = outputs(CausalConvWithState(), x, weight)[0]
        changed = x.copy()
        changed[:, :, 3:] += 1
        np.testing.assert_array_equal(outputs(CausalConvWithState(), changed, weight)[0][:, :, :3], y[:, :, :3])


def test_swiglu_does_not_broadcast() -> None:
    with pytest.raises(ShapeError, match="one shape"):
        SwiGLU().infer(f64[2, 3], f64[3])
