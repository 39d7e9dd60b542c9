"""Counts of n-grams in rows of tokens.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.ops.elementwise.logic import And, Equal, Greater, Where
from glowtrain.ops.indexing.scatter import ScatterAdd
from glowtrain.ops.reduce.reduction import ReduceSum, as_dtype, filled
from glowtrain.ops.tensor.move import Concat, Slice, reshape
from glowtrain.types import Array, TensorType, f32, i32, i64

Ints = tuple[int, ...]


@operator
@dataclass(frozen=True)
class TfIdfVectorizer(Operator):
    """How often each n-gram of a pool occurs in x[C] or in each row of x[N, C]: f32[..., max(ngram_indexes) + 1].

    The pool holds all 1-grams, then all 2-grams ...; ``ngram_counts`` says where each length starts, and
    ``ngram_indexes`` to which place of the result each n-gram counts. Lengths from ``min_gram_length`` to
    ``max_gram_length`` are looked for, with 0 to ``max_skip_count`` tokens left out between neighbours (the same
    number within one n-gram). ``mode``: "TF" gives counts, "IDF" the ``weights`` of what occurs, "TFIDF" counts times
    weights; a weight belongs to a place of the result, as in other runtimes.
    """

    max_gram_length: int
    max_skip_count: int
    min_gram_length: int
    mode: Literal["TF", "IDF", "TFIDF"]
    ngram_counts: Ints
    ngram_indexes: Ints
    pool_int64s: Ints
    weights: tuple[float, ...] = ()

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "counts of integers"

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1 or inputs[0].dtype not in (i32, i64) or inputs[0].rank not in (1, 2):
            raise self.fail("takes i32 or i64 tokens [C] or [N, C]", *inputs)
        if not 1 <= self.min_gram_length <= self.max_gram_length <= len(self.ngram_counts):
            raise self.fail("1 <= min_gram_length <= max_gram_length <= len(ngram_counts) must hold", *inputs)
        if self.mode not in ("TF", "IDF", "TFIDF") or self.max_skip_count < 0:
            raise self.fail('mode must be "TF", "IDF" or "TFIDF", and max_skip_count not negative', *inputs)
        bounds = (*self.ngram_counts, len(self.pool_int64s))
        sizes = [(end - start) / (n + 1) for n, (start, end) in enumerate(itertools.pairwise(bounds))]
        if any(size < 0 or size % 1 for size in sizes) or bounds[0] != 0:
            raise self.fail("ngram_counts does not cut the pool into whole n-grams", *inputs)
        if sum(sizes) != len(self.ngram_indexes) or min(self.ngram_indexes, default=-1) < 0:
            raise self.fail("ngram_indexes must have one place for each n-gram of the pool", *inputs)
        if self.weights and len(self.weights) != self.features:
            raise self.fail(f"there must be {self.features} weights, one for each place", *inputs)
        return TensorType(f32, (*inputs[0].shape[:-1], self.features))

    @property
    def features(self) -> int:
        """The extent of the result."""
        return max(self.ngram_indexes) + 1

    def grams(self) -> Iterator[tuple[Array, Array]]:
        """For each length that is looked for: the n-grams of the pool, [count, n], and their positions in the
        result."""
        first, bounds = 0, (*self.ngram_counts, len(self.pool_int64s))
        for n, (start, end) in enumerate(itertools.pairwise(bounds), start=1):
            grams = np.array(self.pool_int64s[start:end], np.int64).reshape(-1, n)
            indexes = np.array(self.ngram_indexes[first : first + len(grams)], np.int64)
            first += len(grams)
            if self.min_gram_length <= n <= self.max_gram_length and len(grams):
                yield grams, indexes

    def distances(self, n: int, tokens: int) -> range:
        """The distances between neighbours in n-grams that fit into a row; single tokens have none."""
        fitting = (tokens - 1) // (n - 1) if n > 1 else min(tokens, 1)
        return range(1, min(self.max_skip_count + 1, fitting) + 1)

    def reference(self, x: Array) -> Array:
        rows = x.reshape(x.shape[0] if x.ndim == 2 else 1, x.shape[-1])
        counts = np.zeros((len(rows), self.features), np.int64)
        for grams, indexes in self.grams():
            n = grams.shape[1]
            for step in self.distances(n, x.shape[-1]):
                windows = np.lib.stride_tricks.sliding_window_view(rows, step * (n - 1) + 1, axis=1)[..., ::step]
                hits = (windows[:, :, None] == grams).all(axis=-1).sum(axis=1)
                columns: Any = (slice(None), indexes)
                np.add.at(counts, columns, hits)
        weights = np.array(self.weights or [1.0] * self.features, np.float32)
        present = np.where(counts > 0, weights, 0.0)
        results: dict[str, Array] = {"TF": counts, "IDF": present, "TFIDF": counts * weights}
        return results[self.mode].astype(np.float32).reshape(*x.shape[:-1], self.features)

    def decompose(self, x: Value) -> Value:
        rows = reshape(x, (x.shape[0] if x.rank == 2 else 1, x.shape[-1]))
        found = [(self._hits(rows, grams), indexes) for grams, indexes in self.grams()]
        shape = (rows.shape[0], self.features)
        found = [(hits, indexes) for hits, indexes in found if hits is not None]
        if found:
            together = Concat(axis=1)(*(hits for hits, _ in found))
            indexes = constant(np.concatenate([indexes for _, indexes in found]))
            counts = as_dtype(ScatterAdd(shape, axis=1)(indexes, together), f32)
        else:
            counts = filled(0, TensorType(f32, shape))
        return reshape(self._weighted(counts), (*x.shape[:-1], self.features))

    def _hits(self, rows: Value, grams: Array) -> Value | None:
        """i32[rows, n-grams]: how often each occurs; ``None`` if rows are too short."""
        n, tokens = grams.shape[1], rows.shape[1]
        total: Value | None = None
        for step in self.distances(n, tokens):
            count = tokens - step * (n - 1)
            same: Value | None = None
            for t in range(n):
                token = Slice((t * step,), (t * step + count,), (1,))(rows)
                equal = Equal()(reshape(token, (*token.shape, 1)), constant(grams[:, t], rows.dtype))
                same = equal if same is None else And()(same, equal)
            assert same is not None
            hits: Value = ReduceSum(axes=(1,), keepdims=False)(as_dtype(same, i32))
            total = hits if total is None else total + hits
        return total

    def _weighted(self, counts: Value) -> Value:
        weights = constant(np.array(self.weights or [1.0] * self.features, np.float32))
        if self.mode == "TF":
            return counts
        if self.mode == "TFIDF":
            return counts * weights
        result: Value = Where()(Greater()(counts, 0.0), weights, 0.0)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        singles, pairs = draw.integer(1, 4), draw.integer(1, 4)
        first, second = (
            (draw.integer(0, 15) + np.arange(singles)) % 4,
            (draw.integer(0, 15) + np.arange(pairs)) * 3 % 16,
        )
        pool = np.concatenate([first, np.stack(np.divmod(second, 4), axis=-1).reshape(-1)])
        indexes = (draw.integer(0, 3) + np.arange(singles + pairs)) % (singles + pairs)
        least, mode = draw.integer(1, 2), draw.choice(("TF", "IDF", "TFIDF"))
        weights = tuple(draw.floats((singles + pairs,), 0.1, 2.0).astype(np.float32).tolist()) * draw.boolean()
        tokens = draw.integers(draw.shape(min_rank=1, max_rank=2, max_extent=8), 0, 3)
        counts, lists = (0, singles), (tuple(indexes.tolist()), tuple(pool.tolist()))
        vectorizer = cls(draw.integer(least, 2), draw.integer(0, 3), least, mode, counts, *lists, weights)
        return Sample(vectorizer, (tokens,))
