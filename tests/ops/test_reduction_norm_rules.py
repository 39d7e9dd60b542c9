"""Reductions, softmax, normalizations and losses: exact cases, conventions, invalid uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.compiler.walk import arrive, until
from glowtrain.errors import ShapeError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Operator, constant
from glowtrain.ops.indexing.arg_extrema import ArgMax, ArgMin, CumSum
from glowtrain.ops.indexing.gather import Gather, GatherElements, GatherND
from glowtrain.ops.indexing.one_hot import OneHot
from glowtrain.ops.indexing.scatter import ScatterAdd, ScatterND
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization, LayerNormalization, UnbiasedBatchNormalization
from glowtrain.ops.normalize.group import GroupNormalization, LpNormalization
from glowtrain.ops.normalize.local_and_mean_variance import MeanVarianceNormalization
from glowtrain.ops.objective.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from glowtrain.ops.pooling.pooling import GlobalLpPool, LpPool
from glowtrain.ops.random.philox import RandomBits, TrainingDropout, Uniform
from glowtrain.ops.reduce.reduction import (
    ReduceL2,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
)
from glowtrain.ops.reduce.softmax import Hardmax, LogSoftmax, Softmax
from glowtrain.types import DType, TensorType, bf16, boolean, f16, f32, f64, i32, i64
from tests.ops.rules import gradients, lowered, run

pytestmark = pytest.mark.usefixtures("quiet")


def test_empty_axes_reduce_all_or_nothing() -> None:
    x = np.array([[1.0, -2.0], [3.0, 4.0]])
    assert ReduceSum(axes=None, keepdims=False).reference(x) == 6
    assert ReduceSum(axes=(), keepdims=True).reference(x).shape == (1, 1)
    np.testing.assert_array_equal(ReduceSum(axes=(), noop_with_empty_axes=True).reference(x), x)
    np.testing.assert_array_equal(ReduceL2(noop_with_empty_axes=True).reference(x), abs(x))


def test_reductions_over_nothing() -> None:
    x = np.zeros((2, 0), np.float32)
    assert ReduceSum(axes=(1,)).reference(x).tolist() == [[0], [0]]
    assert ReduceProd(axes=(1,)).reference(x).tolist() == [[1], [1]]
    assert ReduceMax(axes=(1,)).reference(x).tolist() == [[-np.inf], [-np.inf]]
    assert ReduceMin(axes=(1,)).reference(x.astype(np.int32)).tolist() == [[2**31 - 1]] * 2
    assert np.isnan(ReduceMean(axes=(1,)).reference(x)).all()


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_narrow_floats_are_summed_in_f32(dtype: Any) -> None:
    x = np.full(4096, 1.0, dtype.numpy)
    assert ReduceSum(keepdims=False).reference(x) == 4096  # in bf16, 256 + 1 = 256
    assert ReduceSum(keepdims=False).reference(x).dtype == dtype.numpy


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, -np.inf], [np.inf, 0.0]], np.float32)
    expected = [1000 + np.log(2), -np.inf, np.inf]
    np.testing.assert_allclose(ReduceLogSumExp(axes=(1,), keepdims=False).reference(x), expected, rtol=1e-6)


@pytest.mark.parametrize("cls", [ReduceMax, ReduceMin])
def test_ties_share_the_gradient_evenly(cls: Any) -> None:
    x = np.array([[2.0, 2.0, 2.0, 2.0], [5.0, 5.0, 7.0, 7.0]])
    chosen = x[1] == (7 if cls is ReduceMax else 5)
    gradient = gradients(cls(axes=(1,)), [x], g=[[1.0], [3.0]])
    np.testing.assert_array_equal(gradient, [[0.25] * 4, chosen * 1.5])


def test_product_gradient_is_right_with_zeros() -> None:
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [2.0, 4.0, 3.0]])
    expected = [[0, 6, 0], [0, 0, 0], [12, 6, 8]]
    np.testing.assert_array_equal(gradients(ReduceProd(axes=(-1,), keepdims=False), [x]), expected)
    turned = gradients(ReduceProd(axes=(0,)), [x.T.copy()])
    np.testing.assert_array_equal(turned, np.transpose(expected))


def test_second_derivative_of_a_product_is_right_at_a_zero() -> None:
    x = Input(TensorType(f64, (3,)), "x")
    (first,) = pullback([ReduceProd(keepdims=False)(x)], [constant(1.0)], [x])
    (second,) = pullback([ReduceSum(keepdims=False)(first)], [constant(1.0)], [x])
    assert second is not None
    np.testing.assert_array_equal(run([second], {x: np.array([2.0, 0.0, 3.0])})[0], [3, 5, 2])


def test_norm_has_gradient_zero_at_zero() -> None:
    x = np.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(gradients(ReduceL2(axes=(1,)), [x]), [[0, 0], [0.6, 0.8]])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_pools_have_gradient_zero_at_zero(p: int) -> None:
    """The window of zeros beside another one: what a ReLU leaves must not make NaN."""
    x = np.array([[[0.0, 0.0, 3.0, 4.0]]])
    norm = float(np.sum(x**p)) ** (1 / p)
    expected = (x / norm) ** (p - 1) * (x > 0)
    found = gradients(LpPool(kernel_shape=(2,), strides=(2,), p=p), [x], g=[[[2.0, 1.0]]])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(gradients(GlobalLpPool(p=p), [x]), expected, rtol=1e-12)
    np.testing.assert_array_equal(gradients(GlobalLpPool(p=p), [0 * x]), 0 * x)


def test_normalized_rows_of_one_value_have_a_gradient() -> None:
    """The deviation is 0 there, and its gradient is taken to be 0, as PyTorch's std has it."""
    x, g = np.full((1, 2, 3), 1.5), np.array([[[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]]])
    found = gradients(MeanVarianceNormalization(axes=(2,)), [x], g=g)
    np.testing.assert_allclose(found, (g - g.mean(axis=2, keepdims=True)) * 1e9, rtol=1e-12)


def test_arg_extrema_choose_first_last_and_nan() -> None:
    x = np.array([[1.0, 5.0, 5.0], [np.nan, 9.0, np.nan]])
    assert ArgMax(axis=1, keepdims=False).reference(x).tolist() == [1, 0]
    assert ArgMax(axis=-1, keepdims=False, select_last_index=True).reference(x).tolist() == [2, 2]
    assert ArgMin(axis=0).reference(np.array([[3, 1], [3, 0]], np.int8)).tolist() == [[0, 1]]


def test_cumulative_sums() -> None:
    x = np.array([1.0, 2.0, 3.0])
    forms = {(False, False): [1, 3, 6], (True, False): [0, 1, 3], (False, True): [6, 5, 3], (True, True): [5, 3, 0]}
    for (exclusive, reverse), expected in forms.items():
        assert CumSum(0, exclusive, reverse).reference(x).tolist() == expected
    assert gradients(CumSum(0, exclusive=True), [x]).tolist() == [2, 1, 0]


def test_softmax_is_shift_invariant_and_normal() -> None:
    x = np.array([[1e4, 1e4 + 1, -1e4], [0.0, 1.0, -np.inf]], np.float32)
    expected = np.array([1, np.e, 0]) / (1 + np.e)
    np.testing.assert_allclose(Softmax().reference(x), [expected, expected], rtol=1e-6)
    np.testing.assert_allclose(LogSoftmax().reference(x)[0, :2], np.log(expected[:2]), rtol=1e-6)
    assert np.isnan(Softmax().reference(np.full((1, 2), -np.inf))).all()


def test_softmax_of_a_row_masked_whole_has_gradient_zero_where_nothing_reads_it() -> None:
    x = np.array([[-np.inf, -np.inf], [0.0, 0.0]])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(gradients(Softmax(), [x], g=[[0.0, 0.0], [2.0, 1.0]]), [[0, 0], [0.25, -0.25]])
        assert np.isnan(gradients(Softmax(), [x], g=[[1.0, 1.0], [2.0, 1.0]])[0]).all()


def test_hardmax_takes_the_first_of_equals() -> None:
    assert Hardmax(axis=0).reference(np.array([[1.0, 2.0], [1.0, 3.0]])).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(("cls", "correction"), [(BatchNormalization, 0), (UnbiasedBatchNormalization, 1)])
def test_batch_normalization_after_three_steps(cls: Any, correction: int) -> None:
    rng = np.random.default_rng(1)
    scale, bias = np.array([2.0, -0.5, 3.0]), np.array([1.0, 0.0, -1.0])
    mean, variance = np.zeros(3), np.ones(3)
    expected_mean, expected_variance = mean.copy(), variance.copy()
    operator = cls(epsilon=1e-3, momentum=0.8, training_mode=True)
    x = rng.normal(5, 3, (4, 3, 2, 5))
    for _ in range(3):
        y, mean, variance = operator.reference(x, scale, bias, mean, variance)
        flat = x.transpose(1, 0, 2, 3).reshape(3, -1)
        normal = (flat.T - flat.mean(1)) / np.sqrt(flat.var(1) + 1e-3) * scale + bias
        np.testing.assert_allclose(y.transpose(1, 0, 2, 3).reshape(3, -1), normal.T, rtol=1e-12)
        expected_mean = 0.8 * expected_mean + 0.2 * flat.mean(1)
        expected_variance = 0.8 * expected_variance + 0.2 * flat.var(1, ddof=correction)
        x = y + rng.normal(0, 1, x.shape)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-12)
    np.testing.assert_allclose(variance, expected_variance, rtol=1e-12)
    frozen = cls(epsilon=1e-3, training_mode=False).reference(x, scale, bias, mean, variance)
    shifted = (x.transpose(0, 2, 3, 1) - mean) / np.sqrt(variance + 1e-3) * scale + bias
    np.testing.assert_allclose(frozen.transpose(0, 2, 3, 1), shifted, rtol=1e-12)


def test_batch_normalization_gradient_goes_through_the_statistics() -> None:
    """Adding to, or scaling, a whole channel does not change the result, so the gradient has no such part."""
    rng = np.random.default_rng(2)
    x, g = rng.normal(0, 1, (5, 2, 3)), rng.normal(0, 1, (5, 2, 3))
    arrays = [x, np.array([1.5, -2.0]), np.ones(2), np.zeros(2), np.ones(2)]
    d_x = gradients(BatchNormalization(epsilon=0.0, training_mode=True), arrays, g=g)
    np.testing.assert_allclose(d_x.sum((0, 2)), 0, atol=1e-12)
    np.testing.assert_allclose((d_x * x).sum((0, 2)), 0, atol=1e-12)
    assert abs(d_x).max() > 0.1
    frozen = gradients(BatchNormalization(epsilon=0.0), arrays, g=g)
    np.testing.assert_allclose(frozen, g * np.array([1.5, -2.0])[:, None])


def test_layer_normalization_gives_its_statistics() -> None:
    x = np.array([[1.0, 3.0], [2.0, 6.0]])
    y, mean, inverse = LayerNormalization(epsilon=0.0).reference(x, np.array([1.0, 2.0]), np.array([0.0, 1.0]))
    np.testing.assert_allclose(y, [[-1, 3], [-1, 3]])
    np.testing.assert_allclose([mean, inverse], [[[2], [4]], [[1], [0.5]]])
    half = LayerNormalization().infer(TensorType(f16, (2, 2)), TensorType(f16, (2,)))
    assert half[0].dtype == f16
    assert half[1].dtype == f32


def test_lp_normalization_of_zeros_is_zero() -> None:
    assert LpNormalization(p=1).reference(np.array([[0.0, 0.0], [-1.0, 3.0]])).tolist() == [[0, 0], [-0.25, 0.75]]


def test_cross_entropy_gradient_is_softmax_minus_one_hot() -> None:
    scores, labels = np.random.default_rng(3).normal(0, 1, (4, 3)), np.array([0, 2, 1, 2])
    softmax = Softmax().reference(scores)
    gradient = gradients(SoftmaxCrossEntropyLoss(), [scores, labels], g=2.0)
    np.testing.assert_allclose(gradient, 2 * (softmax - np.eye(3)[labels]) / 4, rtol=1e-12)


def test_ignored_samples_count_nothing() -> None:
    log_prob, labels = np.log(np.array([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]])), np.array([1, -100, 0])
    weights = np.array([1.0, 3.0])
    loss = NegativeLogLikelihoodLoss(ignore_index=-100)
    np.testing.assert_allclose(loss.reference(log_prob, labels), -np.log(0.5 * 0.9) / 2)
    weighted = -(3 * np.log(0.5) + np.log(0.9)) / 4
    np.testing.assert_allclose(loss.reference(log_prob, labels, weights), weighted)
    decomposed = loss.decompose(*(constant(array) for array in (log_prob, labels, weights)))
    np.testing.assert_allclose(run([decomposed], {})[0], weighted)
    gradient = gradients(loss, [log_prob, labels, weights])
    np.testing.assert_allclose(gradient, [[0, -0.75], [0, 0], [-0.25, 0]])
    assert np.isnan(loss.reference(log_prob, np.full(3, -100)))


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    arrays = [np.zeros((2, 3)), np.array([1, label])]
    with pytest.raises(ShapeError, match=rf"label {label} at \[1\] is not a class: those are 0 to 2"):
        SoftmaxCrossEntropyLoss().reference(*arrays)
    loss, _ = SoftmaxCrossEntropyLoss().decompose(*(constant(array) for array in arrays))
    with pytest.raises(ShapeError, match="index 3 at .* is outside"):
        run([loss], {})


@pytest.mark.parametrize("label", [-1, 3])
def test_compiled_loss_of_a_label_that_is_no_class_is_nan(label: int) -> None:
    loss, _ = lowered(SoftmaxCrossEntropyLoss(), [np.zeros((2, 3), np.float32), np.array([1, label])])
    assert np.isnan(loss)


def types(*shapes: Any) -> list[TensorType]:
    """f32 types, or other ones where a pair (dtype, shape) is given."""
    pairs = [shape if shape and not isinstance(shape[0], int) else (f32, shape) for shape in shapes]
    return [TensorType(dtype, shape) for dtype, shape in pairs]


@pytest.mark.parametrize(("operator", "operands", "message"), [
    (ReduceSum(axes=(2,)), types((2, 3)), "axis 2 is outside [-2, 1]"),
    (ReduceSum(axes=(1, -1)), types((2, 3)), "name an axis twice"),
    (ReduceSum(), types((boolean, (2,))), "element type must be float or int or uint, not bool"),
    (ReduceLogSumExp(), types((i32, (2,))), "element type must be float"),
    (ArgMax(axis=1), types((2, 0)), "extent 0: there is no element to choose"),
    (CumSum(axis=1), types((2,)), "axis 1 is outside"),
    (Gather(), types((2,), (2,)), "indices must be i32 or i64, not f32"),
    (GatherElements(), types((2, 3), (i64, (2, 4))), "must not be larger than data"),
    (GatherND(2), types((2, 3), (i64, (2, 1))), "batch_dims must be less than both ranks"),
    (ScatterAdd((4,)), types((i64, (2,)), (3,)), "updates must have shape [2]"),
    (ScatterND("sub"), types((2,), (i64, (1, 1)), (1,)), "reduction must be one of none, add, mul, max, min"),
    (ScatterND(), types((2,), (i64, (1, 2)), (1,)), "must have 1 to 1 elements"),
    (OneHot(0), types((i64, (2,)), (2,)), "depth must be positive"),
    (Softmax(axis=2), types((2, 3)), "axis 2 is outside"),
    (BatchNormalization(), types((2, 3), (3,), (3,), (3,), (2,)), "must have shape [3], x's channels"),
    (UnbiasedBatchNormalization(), types((1, 3), (3,), (3,), (3,), (3,)), "more than one element per channel"),
    (LayerNormalization(), types((2, 3), (2,)), "scale and bias must broadcast to x"),
    (GroupNormalization(2), types((2, 3), (3,), (3,)), "3 channels do not form 2 equal groups"),
    (LpNormalization(p=3), types((2,)), "p must be 1 or 2"),
    (SoftmaxCrossEntropyLoss("avg"), types((2, 3), (i64, (2,))), "reduction must be one of none, mean, sum"),
    (SoftmaxCrossEntropyLoss(), types((2, 3), (i64, (3,))), "without axis 1, the classes"),
    (NegativeLogLikelihoodLoss(), types((2, 3), (i64, (2,)), (2,)), "weights must be f32[3]"),
    (RandomBits((2,)), types((i64, ()), (i32, ())), "both i64[]"),
    (Uniform((2,), dtype=f16), types((i64, ()), (i64, ())), "dtype must be f32 or f64"),
    (TrainingDropout(), types((2,), (2,), (i64, ()), (i64, ())), "ratio one float"),
])  # fmt: skip
def test_invalid_uses_name_the_rule(operator: Operator, operands: list[TensorType], message: str) -> None:
    with pytest.raises(ShapeError) as error:
        operator.infer(*operands)
    assert message in str(error.value)
    assert str(operator) in str(error.value)


@pytest.mark.parametrize(("dtype", "powers"), [(f32, 1), (f64, 1), (f16, 2)])
def test_softmax_computes_powers_once_where_its_result_can_hold_them(dtype: DType, powers: int) -> None:
    x = Input(dtype[4, 9], "x")
    text = str(arrive(Graph((x,), {"y": Softmax()(x)}), stages=until("lowered")))
    assert text.count("exp(") == powers
