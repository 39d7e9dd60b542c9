"""Schemes: ranges to scales and zero points."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.errors import QuantizationError, ShapeError
from glowtrain.ops.quantized.convert import limits
from glowtrain.quantization import Parameters, Scheme
from glowtrain.quantization.placement.scheme import FORMS, INTEGERS, zero_point_array
from glowtrain.types import f32, i4, i8, i16, u4, u8

schemes = st.builds(
    Scheme, st.sampled_from(INTEGERS), st.sampled_from(FORMS), power_of_two=st.booleans(), narrow=st.booleans()
)
ends = st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6)


@given(schemes, ends, ends)
def test_every_number_of_the_range_is_half_a_step_from_a_representable_one(scheme: Scheme, a: float, b: float) -> None:
    low, high = min(a, b, 0.0), max(a, b, 0.0)
    if low == high:
        return
    found = scheme.parameters(low, high)
    x = np.linspace(low, high, 257).astype(np.float32)
    errors = np.abs(found.rounded(x).astype(np.float64) - x)
    rounding = 2.0**-21 * max(-low, high)
    assert errors.max() <= float(found.scale) * 0.5 + rounding


@given(schemes, ends, ends)
def test_zero_is_exact(scheme: Scheme, a: float, b: float) -> None:
    if min(a, b, 0.0) == max(a, b, 0.0):
        return
    found = scheme.parameters(min(a, b, 0.0), max(a, b, 0.0))
    zeros = np.zeros(3, np.float32)
    assert not found.rounded(zeros).any()
    assert found.zero_point.dtype == scheme.dtype.numpy


def test_symmetric_forms_have_their_zero_point_in_the_middle() -> None:
    middles = {i8: 0, i16: 0, i4: 0, u8: 128, u4: 8}
    for dtype, middle in middles.items():
        assert Scheme(dtype, "symmetric").parameters(-1.0, 3.0).zero_point.astype(int) == middle
        assert Scheme(dtype, "positive").parameters(-1.0, 3.0).zero_point.astype(int) == middle
        assert Scheme(dtype, "positive").parameters(0.0, 3.0).zero_point.astype(int) == limits(dtype)[0]


def test_positive_ranges_use_all_integers() -> None:
    wasteful, positive = (Scheme(u8, form).parameters(0.0, 1.0).scale for form in ("symmetric", "positive"))
    assert positive == pytest.approx(1 / 255)
    assert wasteful == pytest.approx(1 / 127)


def test_narrow_leaves_out_the_least_number() -> None:
    wide, narrow = (Scheme(i8, "symmetric", narrow=narrow) for narrow in (False, True))
    assert wide.parameters(-1.0, 0.5).quantized(np.float32([-1.0])) == -128
    assert narrow.parameters(-1.0, 0.5).quantized(np.float32([-1.0])) == -127


@given(st.floats(1e-6, 1e6), st.sampled_from(INTEGERS))
def test_powers_of_two(high: float, dtype: object) -> None:
    scheme = Scheme(dtype, "symmetric", power_of_two=True)  # type: ignore[arg-type]
    scale = float(scheme.parameters(-high, high).scale)
    plain = float(scheme.with_(power_of_two=False).parameters(-high, high).scale)
    assert np.log2(scale) == np.rint(np.log2(scale))
    assert plain * (1 - 1e-5) <= scale < 2 * plain * (1 + 1e-5)


def test_an_exact_power_of_two_stays() -> None:
    assert Scheme(u8, power_of_two=True).parameters(0.0, 255 * 0.25).scale == 0.25


def test_channels_have_scales_of_their_own() -> None:
    found = Scheme(i8, "symmetric", "channel").parameters(
        np.array([-1.0, -2.0, 0.0]), np.array([0.5, 4.0, 0.0]), axis=0, zeros=True
    )
    assert found.scale.shape == found.zero_point.shape == (3,)
    assert found.scale[2] == 1.0
    x = np.array([[-1.0, 0.5], [4.0, -2.0], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(found.rounded(x), x, atol=0.02)


@pytest.mark.parametrize(
    ("low", "high", "fault"),
    [
        (np.nan, 1.0, "NaN was observed"),
        (0.0, np.inf, "is infinite"),
        (-np.inf, 0.0, "is infinite"),
        (2.0, 1.0, "is empty: its lower bound is above its upper one"),
        (0.0, 0.0, "holds only zeros"),
        (0.0, 1e-45, "is beyond what a scale in f32 can say"),
        (0.0, 1e300, "is beyond what a scale in f32 can say"),
        (np.array([]), np.array([]), "is no range"),
        (np.array([0.0]), np.array([1.0, 2.0]), "is no range"),
    ],
)
def test_ranges_that_are_none(low: object, high: object, fault: str) -> None:
    with pytest.raises(QuantizationError, match=f"^features: the range .*{fault}.*; keep its readers in float"):
        Scheme(u8).parameters(low, high, where="features")


def test_a_range_next_to_good_ones_is_named() -> None:
    with pytest.raises(QuantizationError, match=r"w: the range \[nan, 2\] is not a number"):
        Scheme(i8, "symmetric", "channel").parameters(
            np.array([0, np.nan]), np.array([1.0, 2.0]), where="w", zeros=True
        )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Scheme(f32), "numbers are quantized to one of i8, u8, i16, u16, i4, u4, not f32"),
        (lambda: Scheme(i8, "odd"), "form is one of asymmetric, symmetric, positive"),
        (lambda: Scheme(i8, granularity="row"), "granularity one of tensor, channel, block"),
        (lambda: Scheme(i4, granularity="block"), "at least 1 with granularity 'block'"),
        (lambda: Scheme(i4, block=32), "else 0"),
        (lambda: Parameters(np.float32(0.0), np.uint8(3)), "a scale must be positive and finite, not 0.0"),
        (lambda: Parameters(np.float32([1, -1]), np.zeros(2, np.int8)), "must be positive and finite, not -1.0"),
        (lambda: Parameters(np.float32([1, 1]), np.zeros(3, np.int8)), r"must have one shape, not \[2\] and \[3\]"),
        (lambda: zero_point_array(300, u8), "300 is not a number of u8, which holds 0 to 255"),
        (lambda: zero_point_array([0, -9], i4, "w"), "w: -9 is not a number of i4, which holds -8 to 7"),
        (lambda: zero_point_array(0.5, i8), "0.5 is not a number of i8"),
    ],
)
def test_contradictions(build: object, message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        build()  # type: ignore[operator]


def test_least_opsets() -> None:
    for dtype, granularity in product((i8, u8), ("tensor", "channel")):
        assert Scheme(dtype, granularity=granularity).least_opset == (10 if granularity == "tensor" else 13)
    assert {Scheme(dtype).least_opset for dtype in (i4, u4, i16)} == {21}
    assert Scheme(i8, granularity="block", block=16).least_opset == 21


def test_axes_and_numbers_of_scales_that_do_not_fit() -> None:
    x = np.zeros((2, 3), np.float32)
    three = np.ones(3, np.float32), np.zeros(3, np.int8)
    with pytest.raises(ShapeError, match=r"axis 5 is outside \[-2, 1\]"):
        Parameters(*three, axis=5).quantized(x)
    with pytest.raises(ShapeError, match="3 scales for the 2 positions on axis 0"):
        Parameters(*three, axis=0).quantized(x)
    with pytest.raises(ShapeError, match="with block_size=2 on axis 1 the scales must have shape"):
        Parameters(*three, axis=1, block_size=2).quantized(x)
