"""Elementwise and logical operators: ONNX semantics, conventions at kinks, messages for broken rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ShapeError
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck import check_sample
from glowtrain.graph import Graph, Input, Operator, Sample, constant
from glowtrain.lower.expand import expand
from glowtrain.ops.elementwise.activation import (
    Celu,
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    PRelu,
    Relu,
    Selu,
    Shrink,
    Sigmoid,
    Softplus,
    Swish,
    ThresholdedRelu,
)
from glowtrain.ops.elementwise.arithmetic import Abs, Add, Div, Mod, Pow, Round, Sign
from glowtrain.ops.elementwise.extrema import Clip, Max, Min
from glowtrain.ops.elementwise.logic import BitShift, BitwiseNot, Cast, IsInf, Not, Where
from glowtrain.types import DType, bf16, boolean, f16, f32, f64, i32, i64, u8
from tests.ops.rules import all_gradients, reference


class TestArithmetic:
    def test_integer_division_truncates(self) -> None:
        quotient = reference(Div(), np.array([7, -7, 7, -7, 6]), np.array([2, 2, -2, -2, -3]))
        np.testing.assert_array_equal(quotient, [3, -3, -3, 3, -2])

    def test_integers_wrap(self) -> None:
        np.testing.assert_array_equal(reference(Add(), np.array([250], np.uint8), np.array([10], np.uint8)), [4])

    @pytest.mark.parametrize(("fmod", "expected"), [(False, [1, 2, -2, -1]), (True, [1, -1, 1, -1])])
    @pytest.mark.parametrize("dtype", [np.int32, np.float64])
    def test_remainder_signs(self, fmod: bool, expected: list[int], dtype: Any) -> None:
        x, y = np.array([7, -7, 7, -7], dtype), np.array([3, 3, -3, -3], dtype)
        np.testing.assert_array_equal(reference(Mod(fmod), x, y), expected)

    def test_integer_powers_are_exact(self) -> None:
        base, exponent = np.array([3, -3, 2, -1, 2, 0]), np.array([39, 3, 62, -3, -1, 0])
        np.testing.assert_array_equal(reference(Pow(), base, exponent), [3**39, -27, 2**62, -1, 0, 1])

    def test_the_exponent_may_have_another_type(self) -> None:
        assert reference(Pow(), np.array([2, 3], np.float32), np.array([3, 2])).tolist() == [8.0, 9.0]
        assert reference(Pow(), np.array([4, 9], np.int32), np.array([0.5, 0.5], np.float32)).tolist() == [2, 3]

    @pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, -1.0, 0.5])
    def test_gradient_of_a_constant_power(self, exponent: float) -> None:
        x = Input(f64[3], "x")
        (g,) = pullback([x**exponent], [constant(np.ones(3))], [x])
        points = np.array([0.5, 1.0, 2.0])
        result = np.zeros(3) if g is None else evaluate(Graph((x,), {"g": g}), {"x": points})[g]
        np.testing.assert_allclose(result, exponent * points ** (exponent - 1))

    def test_power_gradients_at_zero(self) -> None:
        for_x, for_y = all_gradients(Pow(), [0.0, 0.0, 3.0], [0.0, 2.0, 0.0])
        np.testing.assert_array_equal(for_x, [0.0, 0.0, 0.0])
        np.testing.assert_allclose(for_y, [0.0, 0.0, np.log(3.0)])

    def test_rounds_halves_to_even(self) -> None:
        np.testing.assert_array_equal(reference(Round(), [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]), [-2, -2, 0, 0, 2, 2])

    def test_sign_of_special_values(self) -> None:
        np.testing.assert_array_equal(reference(Sign(), [-np.inf, -0.0, 3.0, np.nan]), [-1, 0, 1, np.nan])


class TestKinks:
    """What the gradient is where the function has none; PyTorch 2.13 gives the same."""

    @pytest.mark.parametrize(
        ("operator", "x", "gradient"),
        [
            (Relu(), [-1.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
            (Abs(), [-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]),
            (LeakyRelu(0.25), [-1.0, 0.0, 1.0], [0.25, 0.25, 1.0]),
            (Elu(2.0), [0.0, 1.0], [2.0, 1.0]),
            (Selu(2.0, 3.0), [0.0, 1.0], [6.0, 3.0]),
            (Celu(2.0), [0.0], [1.0]),
            (HardSigmoid(1 / 4, 0.5), [-2.0, 0.0, 2.0], [0.0, 0.25, 0.0]),
            (HardSwish(), [-3.0, 0.0, 3.0], [0.0, 0.5, 1.0]),
            (ThresholdedRelu(0.5), [0.0, 0.5, 1.0], [0.0, 0.0, 1.0]),
            (Shrink(0.0, 0.5), [-0.5, 0.0, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0]),
        ],
        ids=lambda value: str(value) if isinstance(value, Operator) else "",
    )
    def test_activation(self, operator: Operator, x: list[float], gradient: list[float]) -> None:
        np.testing.assert_array_equal(all_gradients(operator, x)[0], gradient)

    def test_prelu(self) -> None:
        for_x, for_slope = all_gradients(PRelu(), [-2.0, 0.0, 2.0], [0.5])
        np.testing.assert_array_equal(for_x, [0.5, 0.5, 1.0])
        np.testing.assert_array_equal(for_slope, [-2.0])

    def test_ties_share_evenly(self) -> None:
        for operator in (Max(), Min()):
            np.testing.assert_array_equal(all_gradients(operator, [1.0], [1.0]), [[0.5], [0.5]])
        thirds = all_gradients(Max(), [1.0], [1.0], [1.0])
        np.testing.assert_allclose(thirds, [[1 / 3], [1 / 3], [1 / 3]])

    def test_clip_bounds_belong_to_the_inside(self) -> None:
        for_x, low, high = all_gradients(Clip(), [-2.0, -1.0, 0.0, 1.0, 3.0], -1.0, 1.0)
        np.testing.assert_array_equal(for_x, [0.0, 1.0, 1.0, 1.0, 0.0])
        assert (low, high) == (1.0, 1.0)

    def test_clip_with_one_bound(self) -> None:
        for_x, absent, high = all_gradients(Clip(), [0.0, 1.0, 2.0], None, 1.0)
        np.testing.assert_array_equal(for_x, [1.0, 1.0, 0.0])
        assert absent is None
        assert high == 1.0
        for_x, low = all_gradients(Clip(), [0.0, 1.0, 2.0], 1.0)
        np.testing.assert_array_equal(for_x, [0.0, 1.0, 1.0])
        assert low == 1.0

    def test_clip_with_crossed_bounds(self) -> None:
        np.testing.assert_array_equal(reference(Clip(), [-5.0, 0.0, 5.0], 1.0, -1.0), [-1.0, -1.0, -1.0])
        for_x, low, high = all_gradients(Clip(), [-5.0, 0.0, 5.0], 1.0, -1.0)
        np.testing.assert_array_equal(for_x, [0.0, 0.0, 0.0])
        assert (low, high) == (0.0, 3.0)

    def test_where_ignores_what_it_does_not_choose(self) -> None:
        x = Input(f64[2], "x")
        result = Where()(x > 0.0, x, np.array([np.inf, np.nan]))
        (g,) = pullback([result], [constant(np.array([np.nan, 1.0]))], [x])
        assert g is not None
        np.testing.assert_array_equal(evaluate(Graph((x,), {"g": g}), {"x": np.array([-1.0, 1.0])})[g], [0.0, 1.0])


class TestActivation:
    def test_no_overflow(self) -> None:
        with np.errstate(over="raise"):
            np.testing.assert_array_equal(Sigmoid().reference(np.array([-1e4, 0.0, 1e4])), [0.0, 0.5, 1.0])
            np.testing.assert_array_equal(Softplus().reference(np.array([-1e4, 1e4])), [0.0, 1e4])

    def test_gelu_values(self) -> None:
        x = np.array([-1.0, 0.0, 2.0])
        np.testing.assert_allclose(reference(Gelu(), x), [-0.15865525393145707, 0.0, 1.9544997361036416], rtol=1e-14)
        np.testing.assert_allclose(
            reference(Gelu("tanh"), x), [-0.15880800939172324, 0.0, 1.9545976940877752], rtol=1e-14
        )

    @pytest.mark.parametrize("dtype", [f16, bf16])
    def test_narrow_floats_round_once(self, dtype: DType) -> None:
        x = np.linspace(-3, 3, 61).astype(dtype.numpy)
        expected = Gelu().reference(x.astype(np.float32)).astype(dtype.numpy)
        np.testing.assert_array_equal(reference(Gelu(), x), expected)

    def test_second_derivative_survives_large_values(self) -> None:
        """The branch that is not taken must not turn 0 · infinity into NaN."""
        x = Input(f64[1], "x")
        for operator in (Elu(), Selu(), Celu(), Sigmoid(), Softplus()):
            (first,) = pullback([operator(x)], [constant(np.ones(1))], [x])
            assert first is not None
            (second,) = pullback([first], [constant(np.ones(1))], [x])
            assert second is not None
            assert evaluate(Graph((x,), {"s": second}), {"x": np.array([1e4])})[second] == 0.0


class TestLogic:
    def test_cast(self) -> None:
        np.testing.assert_array_equal(reference(Cast(i64), [-1.9, -0.5, 1.9]), [-1, 0, 1])
        np.testing.assert_array_equal(reference(Cast(boolean), [0.0, -0.0, 0.1, np.nan]), [False, False, True, True])
        np.testing.assert_array_equal(reference(Cast(u8), np.array([257, -1])), [1, 255])

    def test_cast_gradient_returns_to_the_operands_type(self) -> None:
        x = Input(f32[2], "x")
        (g,) = pullback([Cast(f64)(x)], [constant(np.ones(2))], [x])
        assert g is not None
        assert g.type == x.type
        assert pullback([Cast(f64)(Cast(i32)(x))], [constant(np.ones(2))], [x]) == (None,)

    @pytest.mark.parametrize(
        ("negative", "positive", "expected"),
        [(True, True, [1, 1, 0, 0]), (False, True, [0, 1, 0, 0]), (True, False, [1, 0, 0, 0]), (False, False, [0] * 4)],
    )
    def test_infinities(self, negative: bool, positive: bool, expected: list[int]) -> None:
        x = [-np.inf, np.inf, np.nan, 1.0]
        np.testing.assert_array_equal(reference(IsInf(negative, positive), x), np.array(expected, bool))

    def test_shifts_beyond_the_width(self) -> None:
        x, amount = np.array([-8, -8, -8, 8], np.int8), np.array([1, 8, -1, 9], np.int8)
        np.testing.assert_array_equal(reference(BitShift("RIGHT"), x, amount), [-4, -1, -1, 0])
        np.testing.assert_array_equal(reference(BitShift("LEFT"), x, amount), [-16, 0, 0, 0])

    def test_bits_and_truth(self) -> None:
        np.testing.assert_array_equal(reference(BitwiseNot(), np.array([0, 5], np.uint8)), [255, 250])
        np.testing.assert_array_equal(reference(Not(), [True, False]), [False, True])


class TestBrokenRules:
    @pytest.mark.parametrize(
        ("operator", "types", "message"),
        [
            (Add(), (f32[2], f32[3]), r"Add\(f32\[2\], f32\[3\]\): extents \[2, 3\] on axis -1 do not broadcast"),
            (Add(), (f32[2], i64[2]), "operands must have one element type"),
            (Add(), (f32[2],), "takes 2 operand"),
            (Add(), (boolean[2], boolean[2]), "element type must be"),
            (Pow(), (f32[2], boolean[2]), "the exponent must be a number"),
            (PRelu(), (f32[2], f32[3, 2]), "does not broadcast to"),
            (Clip(), (f32[2], f32[2]), "min and max must be scalars"),
            (Clip(), (f32[2], f64[()]), "min and max must have the element type of x"),
            (Gelu("erf"), (f32[2],), 'approximate must be "none" or "tanh"'),  # type: ignore[arg-type]
            (Celu(0.0), (f32[2],), "alpha must not be 0"),
            (Where(), (f32[2], f32[2], f32[2]), "the condition must be bool, not f32; Cast it"),
            (Where(), (boolean[2], f32[2], f32[3]), "do not broadcast"),
            (BitShift("UP"), (i32[2], i32[2]), "direction must be"),  # type: ignore[arg-type]
        ],
        ids=lambda value: str(value) if isinstance(value, Operator) else "",
    )
    def test_message(self, operator: Operator, types: tuple[Any, ...], message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            operator.infer(*types)


@pytest.mark.parametrize("operator", [Gelu(), Gelu("tanh"), HardSwish(), Mish(), Swish(1.7)], ids=str)
class TestActivationsThatOlderFilesLack:
    def test_their_parts_agree_with_them(self, operator: Operator) -> None:
        x = np.linspace(-4.1, 4.1, 12)
        measures = list(check_sample(Sample(operator, (x,)), ["decomposition"]))
        assert [measure.status for measure in measures] == ["passed", "passed"]

    def test_they_are_lowered_as_they_are(self, operator: Operator) -> None:
        x = Input(f32[5], "x")
        graph = Graph((x,), {"y": operator(x)})
        assert expand(graph) is graph
