"""Transforms, selection, determinants, bits and draws: what samples of small domains do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler.walk import arrive, until
from glowtrain.errors import InputError, ShapeError
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.operators.oracles import check_sample
from glowtrain.graph import Graph, Input, Operator, Sample
from glowtrain.lower.expand import expand
from glowtrain.modes.training_and_inference import make_trainable
from glowtrain.ops.contraction.linear_algebra import Det, Elimination, Inverse
from glowtrain.ops.elementwise.bitcast import BitCast
from glowtrain.ops.indexing.sorting import Sorting
from glowtrain.ops.indexing.top_k import Selection, TopK
from glowtrain.ops.normalize.local_and_mean_variance import LRN, MeanVarianceNormalization
from glowtrain.ops.random.draws import Bernoulli, Multinomial, RandomNormal, RandomUniform, RandomUniformLike
from glowtrain.ops.reduce.scans import CumProd, LinearRecurrence
from glowtrain.ops.sequence.padded import ReverseSequence, TensorScatter
from glowtrain.ops.sequence.tfidf import TfIdfVectorizer
from glowtrain.ops.signal.factorized import radices
from glowtrain.ops.signal.fourier import DFT, STFT, OverlapAdd
from glowtrain.ops.signal.windows import BlackmanWindow, HammingWindow, HannWindow, MelWeightMatrix
from glowtrain.stages import Costs, Facts, Options
from glowtrain.types import Array, DType, bf16, boolean, f16, i16, i64, type_of, u8, u16


def graph_of(operator: Operator, *arrays: Array) -> Graph:
    inputs = tuple(Input(type_of(array), f"x{place}") for place, array in enumerate(arrays))
    made = operator(*inputs)
    outputs = made if isinstance(made, tuple) else (made,)
    return Graph(inputs, {f"y{place}": value for place, value in enumerate(outputs)})


def run(operator: Operator, *arrays: Array, backend: str = "cpu") -> list[Array]:
    function = gt.compile(graph_of(operator, *arrays), backend=backend)
    results = function({f"x{place}": array for place, array in enumerate(arrays)})
    return [results[name] for name in sorted(results)]


def agrees(operator: Operator, *arrays: Array) -> list[Array]:
    """Compiled and reference results, element by element."""
    found = run(operator, *arrays)
    expected: Any = operator.reference(*arrays)
    for a, b in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_array_equal(a, b)
    return found


class TestTransforms:
    @pytest.mark.parametrize("n", [256, 257, 400, 1000, 2 * 263], ids=["direct", "prime", "whisper", "split", "mixed"])
    @pytest.mark.parametrize("inverse", [False, True])
    def test_any_length(self, n: int, inverse: bool) -> None:
        x = np.random.default_rng(n).standard_normal((2, n, 2))
        y = np.fft.ifft(x[..., 0] + 1j * x[..., 1]) if inverse else np.fft.fft(x[..., 0] + 1j * x[..., 1])
        (found,) = run(DFT(inverse=inverse), x)
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], y, atol=1e-11 * n)

    def test_steps_multiply_to_the_length(self) -> None:
        for n in (*range(1, 300), 400, 512, 1024, 1200, 44100, 1 << 16):
            assert np.prod(radices(n)) == n
        assert radices(1024) == [16, 8, 8]

    @pytest.mark.parametrize("window", [False, True])
    def test_rotations_beside_the_tables(self, window: bool) -> None:
        n = 1 << 15
        x, w = np.random.default_rng(0).standard_normal((1, n, 1)), np.hanning(n)
        expected = np.fft.fft(x[0, :, 0] * (w if window else 1))
        (found,) = run(STFT(1, n, onesided=False), *((x, w) if window else (x,)))
        np.testing.assert_allclose(found[0, 0, :, 0] + 1j * found[0, 0, :, 1], expected, atol=1e-9)

    @pytest.mark.parametrize("n", [64, 1000, 1031])
    def test_one_side_and_back(self, n: int) -> None:
        x = np.random.default_rng(n).standard_normal((n, 1))
        (spectrum,) = run(DFT(onesided=True, axis=0), x)
        assert spectrum.shape == (n // 2 + 1, 2)
        np.testing.assert_allclose(spectrum[:, 0] + 1j * spectrum[:, 1], np.fft.rfft(x[:, 0]), atol=1e-9)
        (back,) = run(DFT(inverse=True, onesided=True, axis=0, dft_length=n), spectrum)
        np.testing.assert_allclose(back, x, atol=1e-11)

    def test_single_precision(self) -> None:
        x = np.random.default_rng(0).standard_normal((3, 1024, 2)).astype(np.float32)
        (found,) = run(DFT(), x)
        expected = np.fft.fft(x[..., 0].astype(np.float64) + 1j * x[..., 1])
        error = np.abs(found[..., 0] + 1j * found[..., 1] - expected).max() / np.abs(expected).max()
        assert error < 5e-7

    def test_overlapping_frames_add_up_to_the_signal(self) -> None:
        """Hann windows half a frame apart sum to 1."""
        x = np.random.default_rng(0).standard_normal((1, 64, 1))
        (spectra,) = run(STFT(4, None), x, HannWindow(8).constant().astype(np.float64))
        (frames,) = run(DFT(inverse=True, onesided=True, dft_length=8, axis=2), spectra)
        (back,) = run(OverlapAdd(8, 4, 64), frames)
        np.testing.assert_allclose(back[:, 4:60], x[:, 4:60], atol=1e-6)

    def test_wrong_transforms_are_refused(self) -> None:
        with pytest.raises(ShapeError, match="real"):
            run(DFT(), np.zeros((3, 3)))
        with pytest.raises(ShapeError, match="axis must be"):
            run(DFT(axis=-1), np.zeros((3, 2)))
        with pytest.raises(ShapeError, match="do not fit"):
            run(STFT(1, 5), np.zeros((1, 4, 1)))


class TestWindows:
    def test_ends_and_middle(self) -> None:
        for window, end in ((HannWindow, 0.0), (HammingWindow, 2 / 23), (BlackmanWindow, 0.0)):
            w = window(9, periodic=False).constant()
            assert w[0] == pytest.approx(end, abs=1e-7)
            assert w[4] == pytest.approx(1.0)
            np.testing.assert_allclose(w, w[::-1], atol=1e-7)
            np.testing.assert_allclose(window(8).constant(), w[:8], atol=1e-7)
            assert window(1, periodic=False).constant().tolist() == [1.0]

    def test_mel_triangles_peak_at_one_and_share_edges(self) -> None:
        m = MelWeightMatrix(6, 256, 8000, 100.0, 4000.0).constant()
        assert m.shape == (129, 6)
        np.testing.assert_array_equal(m.max(axis=0), 1)
        peaks = m.argmax(axis=0)
        np.testing.assert_array_equal(m[peaks[1:], np.arange(5)], 0)

    def test_filters_beyond_the_spectrum(self) -> None:
        with pytest.raises(ShapeError, match="beyond the spectrum"):
            MelWeightMatrix(6, 256, 8000, 100.0, 9000.0).infer()


class TestTopK:
    @pytest.mark.parametrize("k", [1, 3, 7], ids=["selection", "some", "all"])
    @pytest.mark.parametrize("largest", [True, False])
    @pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint64, np.float16])
    def test_ties_go_to_the_first(self, k: int, largest: bool, dtype: Any) -> None:
        x = np.array([[2, 1, 2, 0, 1, 2, 0], [3, 3, 3, 3, 3, 3, 3]], dtype)
        _, places = agrees(TopK(k, 1, largest), x)
        assert places[1].tolist() == list(range(k))

    @pytest.mark.parametrize("k", [2, 6])
    @pytest.mark.parametrize("largest", [True, False])
    def test_nan_is_the_largest(self, k: int, largest: bool) -> None:
        x = np.array([np.nan, -np.inf, 1, np.inf, np.nan, -np.inf], np.float32)
        _, places = agrees(TopK(k, 0, largest), x)
        assert places.tolist() == ([0, 4, 3, 2, 1, 5] if largest else [1, 5, 2, 3, 0, 4])[:k]

    def test_extremes_of_integers(self) -> None:
        x = np.array([127, -128, -128, 127, 0], np.int8)
        for k in (2, 5):
            agrees(TopK(k), x)
            agrees(TopK(k, largest=False), x)

    @pytest.mark.parametrize("k", [5, 200])
    def test_a_long_row(self, k: int) -> None:
        x = np.random.default_rng(k).integers(0, 90, (3, 211, 2)).astype(np.float32)
        agrees(TopK(k, 1), x)

    @pytest.mark.spread(8)
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.uint32, np.int64, np.uint8])
    @pytest.mark.parametrize("n", [2, 37, 256, 1025])
    def test_the_sorting_network(self, n: int, dtype: Any) -> None:
        """Of any length, with repeats, both signs, the ends of the type, zeros of both signs and NaN."""
        x = np.random.default_rng(n).integers(-60, 60, (2, n)).astype(dtype)
        x[0, 0] = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else -np.inf
        if not np.issubdtype(dtype, np.integer):
            x[1, ::7], x[1, 1::9] = np.nan, -0.0
        for largest in (True, False):
            agrees(Sorting(n, 1, largest), x)

    def test_a_long_row_is_sorted(self) -> None:
        x = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
        graph = graph_of(TopK(900), x)
        assert "glowtrain.Sorting" in {node.operator.key() for node in expand(graph).nodes}
        agrees(TopK(900), x)

    @pytest.mark.parametrize(
        ("costs", "chosen"),
        [
            (Costs(), Selection(9, by_rank=True)),
            (Costs(select=0.0), Selection(9)),
            (Costs(count=9.0), Selection(9)),
            (Costs(sort_keys=0.0), Sorting(20)),
        ],
    )
    def test_a_backends_costs_choose_the_algorithm(self, costs: Costs, chosen: Operator) -> None:
        x = np.random.default_rng(0).standard_normal((2, 20)).astype(np.float32)
        options = Options(Facts(costs=costs))
        expanded = arrive(graph_of(TopK(9), x), options, until("expanded"))
        assert chosen in {node.operator for node in expanded.nodes}

    def test_too_many(self) -> None:
        with pytest.raises(ShapeError, match="k must be from 0 to 3"):
            run(TopK(4), np.zeros(3))


class TestDeterminants:
    def test_gradient_of_singular_matrices_is_the_matrix_of_cofactors(self) -> None:
        x = Input(gt.f64[3, 3], "x")
        (gradient,) = pullback([Det()(x)], [gt.constant(1.0, gt.f64)], [x])
        assert gradient is not None
        array = np.array([[1.0, 2, 3], [2, 4, 6], [1, 1, 1]])
        found = gt.compile(Graph((x,), {"g": gradient}), backend="cpu")({"x": array})["g"]
        np.testing.assert_allclose(found, [[-2, 4, -2], [1, -2, 1], [0, 0, 0]], atol=1e-12)

    @pytest.mark.parametrize("n", [1, 5, 20])
    def test_against_numpy(self, n: int) -> None:
        x = np.random.default_rng(n).standard_normal((4, n, n))
        (found,) = run(Det(), x)
        np.testing.assert_allclose(found, np.linalg.det(x), rtol=1e-10)

    @pytest.mark.parametrize("n", [2, 5, 20])
    def test_inverses_of_singular_matrices_are_nan(self, n: int) -> None:
        """The small one is not singular: only its determinant is 0 in f32."""
        x = np.random.default_rng(n).standard_normal((4, n, n)).astype(np.float32)
        x[0], x[1, :, 0], x[2] = 0, x[1, :, 1], np.eye(n) * 1e-30
        for found in (run(Inverse(), x)[0], Inverse().reference(x)):
            assert np.isnan(found[:2]).all()
            np.testing.assert_allclose(found[2], np.eye(n) * 1e30, rtol=1e-6)
            np.testing.assert_allclose(found[3] @ x[3], np.eye(n), atol=1e-4)


class TestBits:
    @pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
    def test_every_half_there_and_back(self, dtype: DType) -> None:
        """NaNs may become quiet; all other patterns stay."""
        x = np.arange(1 << 16, dtype=np.uint16)
        (halves,) = run(BitCast(dtype), x)
        numbers = ~np.isnan(x.view(dtype.numpy).astype(np.float32))
        np.testing.assert_array_equal(halves.view(np.uint16)[numbers], x[numbers])
        (back,) = run(BitCast(i16), halves)
        np.testing.assert_array_equal(back.view(np.uint16)[numbers], x[numbers])

    def test_bytes_and_booleans(self) -> None:
        assert run(BitCast(u8), np.array([True, False]))[0].tolist() == [1, 0]
        assert run(BitCast(boolean), np.array([0, 1, 7], np.uint8))[0].tolist() == [False, True, True]
        with pytest.raises(ShapeError, match="16 bits"):
            run(BitCast(u16), np.zeros(2, np.float32))


class TestSequences:
    def test_lengths_and_places_beyond_the_end(self) -> None:
        x = np.arange(6.0).reshape(3, 2)
        with pytest.raises(InputError, match="0 to 3"):
            run(ReverseSequence(), x, np.array([1, 4]))
        cache, update = np.zeros((1, 3, 1)), np.ones((1, 2, 1))
        with pytest.raises(InputError, match="0 to 1"):
            run(TensorScatter(), cache, update, np.array([2]))
        assert run(TensorScatter("circular"), cache, update, np.array([2]))[0].ravel().tolist() == [1, 0, 1]


VECTORIZER = TfIdfVectorizer(2, 1, 1, "TF", (0, 2), (0, 1, 2), (1, 2, 1, 2))


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (DFT(), [(0, 4, 1)]), (DFT(axis=0), [(4, 0, 2)]), (STFT(2, 4), [(0, 8, 1)]),
        (LRN(3), [(2, 0, 2)]), (LRN(3), [(2, 3, 0)]), (MeanVarianceNormalization((1,)), [(0, 3)]),
        (Det(), [(0, 3, 3)]), (Det(), [(2, 0, 0)]), (Inverse(), [(2, 0, 0)]), (Elimination(), [(2, 0, 3)]),
        (CumProd(0), [(0, 3)]), (CumProd(1), [(0, 3)]), (LinearRecurrence(0), [(0, 3), (0, 3)]),
        (ReverseSequence(), [(0, 3), (3,)]), (ReverseSequence(), [(3, 0), (0,)]),
        (TensorScatter(), [(2, 3, 4), (2, 0, 4), (2,)]), (TensorScatter("circular"), [(2, 0, 4), (2, 0, 4)]),
        (TopK(0), [(2, 0)]), (TopK(0), [(2, 3)]), (TopK(2), [(0, 3)]), (Sorting(0), [(2, 0)]), (Sorting(1), [(2, 1)]),
        (VECTORIZER, [(0,)]), (VECTORIZER, [(3, 0)]), (VECTORIZER, [(0, 4)]),
        (Bernoulli(), [(0, 3)]), (Multinomial(), [(0, 3)]), (BitCast(i64), [(0, 3)]),
    ],
    ids=str,
)  # fmt: skip
def test_axes_without_elements(operator: Operator, shapes: list[tuple[int, ...]]) -> None:
    """Lengths, places and tokens are integers."""
    whole = [isinstance(operator, TfIdfVectorizer) or (place > 0 and len(s) == 1) for place, s in enumerate(shapes)]
    arrays = [
        np.zeros(shape, np.int64 if is_whole else np.float64) for shape, is_whole in zip(shapes, whole, strict=True)
    ]
    sample = Sample(operator, tuple(arrays))
    oracles = ("types", "jacobian", "decomposition", "evaluator", "planned", "compiled")
    assert not [measure for measure in check_sample(sample, oracles) if measure.status == "failed"]


class TestDraws:
    def test_seeds(self) -> None:
        first, second, other = (run(RandomNormal(seed, shape=(50,)))[0] for seed in (3.0, 3.0, 4.0))
        np.testing.assert_array_equal(first, second)
        assert np.abs(np.corrcoef(first, other)[0, 1]) < 0.5

    def test_moments(self) -> None:
        normal = run(RandomNormal(1.0, mean=3.0, scale=2.0, shape=(20000,)))[0]
        assert normal.mean() == pytest.approx(3, abs=0.06)
        assert normal.std() == pytest.approx(2, abs=0.05)
        uniform = run(RandomUniform(1.0, low=-1.0, high=3.0, shape=(20000,)))[0]
        assert uniform.min() >= -1
        assert uniform.max() < 3
        assert uniform.mean() == pytest.approx(1, abs=0.04)

    def test_frequencies(self) -> None:
        p = np.full(20000, 0.2, np.float32)
        assert run(Bernoulli(5.0), p)[0].mean() == pytest.approx(0.2, abs=0.015)
        logits = np.log(np.array([[0.5, 0.2, 0.3]], np.float32))
        classes = run(Multinomial(2.0, 20000, i64), logits)[0]
        np.testing.assert_allclose(np.bincount(classes[0]) / 20000, [0.5, 0.2, 0.3], atol=0.015)

    def test_training_draws_anew_in_every_step(self) -> None:
        """With the seed and the counter of the step; two draws of a step differ."""
        x = Input(gt.f32[40], "x")
        graph = Graph((x,), {"a": x + RandomUniformLike()(x), "b": x + RandomUniformLike()(x)})
        function = gt.compile(make_trainable(graph, seed=1), backend="cpu")
        draws = [function({"x": np.zeros(40, np.float32)}) for _ in range(2)]
        results = [draw[name] for draw in draws for name in "ab"]
        assert all(not np.array_equal(one, two) for i, one in enumerate(results) for two in results[:i])
