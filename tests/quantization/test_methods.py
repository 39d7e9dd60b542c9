"""Calibration methods and the scales of weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowtrain.errors import QuantizationError
from glowtrain.quantization import METHODS, Entropy, MeanSquare, MinMax, MovingAverage, Percentile, Scheme
from glowtrain.quantization.calibration.profile import Histogram, Observed
from glowtrain.quantization.calibration.ranges import divergence, squared_error
from glowtrain.quantization.placement.weight_scales import weight_parameters
from glowtrain.types import Array, i4, i8, i16, u8

SCHEMES = [Scheme(u8), Scheme(i8), Scheme(i8, "symmetric"), Scheme(u8, "positive"), Scheme(i8, power_of_two=True)]


def observed(x: Array, bins: int = 2048) -> Observed:
    """As calibration would note it down."""
    low, high = float(x.min()), float(x.max())
    span = (low, high) if low < high else (low - 1e-3, high + 1e-3)
    counts, _ = np.histogram(x, bins, span)
    return Observed(low, high, 0.9 * low, 0.9 * high, x.size, 4, histogram=Histogram(*span, counts))


def normal(seed: int, size: int = 20000, outliers: tuple[float, ...] = ()) -> Array:
    draw = np.random.default_rng(seed)
    return np.concatenate([draw.standard_normal(size), np.array(outliers)]).astype(np.float32)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@settings(max_examples=12)
@given(seed=st.integers(0, 1000), outlier=st.floats(-300, 300), shift=st.floats(-3, 3))
def test_least_squares_is_never_worse_than_minmax(scheme: Scheme, seed: int, outlier: float, shift: float) -> None:
    found = observed(normal(seed, 500, (outlier,)) + np.float32(shift), 512)
    histogram = found.required_histogram()
    errors = [squared_error(histogram, scheme, *method.range(found, scheme)) for method in (MeanSquare(16), MinMax())]
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@settings(max_examples=12)
@given(seed=st.integers(0, 1000), outlier=st.floats(-300, 300))
def test_entropy_never_diverges_more_than_minmax(scheme: Scheme, seed: int, outlier: float) -> None:
    found = observed(normal(seed, 500, (outlier,)), 512)
    histogram = found.required_histogram()
    costs = [divergence(histogram, scheme, *method.range(found, scheme)) for method in (Entropy(16), MinMax())]
    assert costs[0] <= costs[1]


@pytest.mark.parametrize("method", [Entropy(), Percentile(99.9)], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("scheme", [Scheme(u8), Scheme(i8, "symmetric")], ids=str)
def test_outliers_are_cut_off(method: Entropy | Percentile, scheme: Scheme) -> None:
    """ONNX Runtime's entropy calibration keeps the whole range here: its 128 bins are no finer than its steps."""
    found = observed(normal(0, outliers=(60.0, -60.0)))
    low, high = method.range(found, scheme)
    assert -30 < low < -2
    assert 2 < high < 30


def test_least_squares_of_few_bits_cuts_off() -> None:
    """With 16 levels the best range of normal numbers is about ±2.5 (Banner et al. 2019, "Post training 4-bit
    quantization of convolutional networks", figure 1)."""
    found = observed(normal(0))
    low, high = MeanSquare().range(found, Scheme(i4, "symmetric"))
    assert found.high > 3.5
    assert 2.2 < high < 2.9
    assert -2.9 < low < -2.2


def test_entropy_keeps_the_whole_of_an_even_distribution() -> None:
    found = observed(np.random.default_rng(0).uniform(-1, 1, 50000).astype(np.float32))
    low, high = Entropy().range(found, Scheme(u8))
    assert high - low > 1.9


def test_zeros_after_relu_do_not_decide() -> None:
    x = np.maximum(normal(0), 0)
    low, high = Entropy().range(observed(x), Scheme(u8))
    assert low == 0.0
    assert high > 0.6 * x.max()


@given(st.integers(0, 1000), st.floats(90, 99.9))
def test_percentiles_hold_their_share(seed: int, percentage: float) -> None:
    x = normal(seed, 5000)
    low, high = Percentile(percentage).range(observed(x), Scheme(u8))
    inside = ((x >= low) & (x <= high)).mean()
    assert inside >= percentage / 100 - 1e-9
    assert inside < percentage / 100 + 0.05


def test_percentiles_of_one_side() -> None:
    x = np.abs(normal(3))
    low, high = Percentile(99.0).range(observed(x), Scheme(u8))
    assert low <= 0.001
    assert high == pytest.approx(np.quantile(x, 0.99), abs=0.01)


def test_the_whole_range_is_the_hundredth_percentile() -> None:
    x = normal(1)
    assert Percentile(100).range(observed(x), Scheme(u8)) == (x.min(), x.max())


def test_moving_averages_are_those_of_the_profile() -> None:
    found = observed(normal(1))
    assert MovingAverage().range(found, Scheme(u8)) == (found.average_low, found.average_high)


def test_methods_that_need_histograms_say_so() -> None:
    bare = Observed(-1.0, 1.0, -1.0, 1.0, 10, 1)
    for name, method in METHODS.items():
        if method().histograms:
            with pytest.raises(QuantizationError, match="the profile has no histograms"):
                method().range(bare, Scheme(u8))
        else:
            assert method().range(bare, Scheme(u8)) == (-1.0, 1.0), name


def test_percentages_that_are_none() -> None:
    for percentage in (50, 101, -1):
        with pytest.raises(QuantizationError, match="a percentile is above 50 and at most 100"):
            Percentile(percentage)


class TestWeights:
    WEIGHT = normal(5, 6 * 40).reshape(6, 40) * np.array([0.01, 0.1, 1, 5, 20, 0])[:, None].astype(np.float32)

    def error(self, scheme: Scheme, method: MinMax | MeanSquare = MinMax()) -> float:  # noqa: B008
        found = weight_parameters(self.WEIGHT, scheme, (0, 1), method, "w")
        return float(((found.rounded(self.WEIGHT) - self.WEIGHT) ** 2).sum())

    def test_finer_granularity_is_better(self) -> None:
        tensor, channel, block = (
            self.error(Scheme(i4, "symmetric", granularity, 8 if granularity == "block" else 0))
            for granularity in ("tensor", "channel", "block")
        )
        assert block < channel < tensor

    def test_least_squares_is_not_worse(self) -> None:
        for granularity, block in (("tensor", 0), ("channel", 0), ("block", 8)):
            scheme = Scheme(i4, "symmetric", granularity, block)  # type: ignore[arg-type]
            assert self.error(scheme, MeanSquare()) <= self.error(scheme)

    def test_shapes(self) -> None:
        for axes, scale, blocks in (((0, 1), (6,), (6, 6)), ((1, 0), (40,), (1, 40))):
            channel = weight_parameters(self.WEIGHT, Scheme(i8, "symmetric", "channel"), axes, MinMax(), "w")
            assert (channel.scale.shape, channel.axis) == (scale, axes[0])
            block = weight_parameters(self.WEIGHT, Scheme(i4, "symmetric", "block", 7), axes, MinMax(), "w")
            assert (block.scale.shape, block.axis, block.block_size) == (blocks, axes[1], 7)
            assert block.rounded(self.WEIGHT).shape == self.WEIGHT.shape

    def test_images_have_scales_per_channel_instead_of_blocks(self) -> None:
        found = weight_parameters(
            np.ones((3, 4, 2, 2), np.float32), Scheme(i4, "symmetric", "block", 2), (0, 1), MinMax(), "w"
        )
        assert (found.scale.shape, found.block_size) == ((3,), 0)

    def test_least_scales(self) -> None:
        least = np.array([1.0, 0, 0, 0, 0, 2.0])
        plain, found = (
            weight_parameters(self.WEIGHT, Scheme(i8, "symmetric", "channel"), (0, 1), MinMax(), "w", floor).scale
            for floor in (0.0, least)
        )
        assert found[0] == pytest.approx(1.0)
        assert found[5] == pytest.approx(2.0)
        np.testing.assert_allclose(found[1:5], plain[1:5])

    def test_weights_that_diverged(self) -> None:
        for bad in (np.nan, np.inf):
            with pytest.raises(QuantizationError, match="w: weights are NaN or infinite"):
                weight_parameters(np.float32([[1, bad]]), Scheme(i8), (0, 1), MinMax(), "w")
        with pytest.raises(QuantizationError, match="w: a tensor without elements"):
            weight_parameters(np.zeros((0, 3), np.float32), Scheme(i8), (0, 1), MinMax(), "w")

    def test_16_bits_are_nearly_exact(self) -> None:
        assert self.error(Scheme(i16, "symmetric", "channel")) < 1e-4
