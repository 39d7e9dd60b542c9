"""Reductions, indexing, softmax, normalizations, losses, random numbers: exact cases, conventions, ONNX's reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype
from onnx.reference import ReferenceEvaluator

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ShapeError
from glowtrain.graph import Graph, Input, Operator, Value, constant, registered
from glowtrain.graph.reverse import pullback
from glowtrain.lower.lower import lower
from glowtrain.ops.along_axis import ArgMax, ArgMin, CumSum
from glowtrain.ops.gather import Gather, GatherElements, GatherND
from glowtrain.ops.group_normalization import GroupNormalization, LpNormalization
from glowtrain.ops.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from glowtrain.ops.normalization import BatchNormalization, LayerNormalization, UnbiasedBatchNormalization
from glowtrain.ops.onehot import OneHot
from glowtrain.ops.pooling import GlobalLpPool, LpPool
from glowtrain.ops.random import ArrayWords, Dropout, Normal, RandomBits, TrainingDropout, Uniform, philox
from glowtrain.ops.reduction import (
    ReduceL2,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
)
from glowtrain.ops.scatter import ScatterAdd, ScatterElements, ScatterND
from glowtrain.ops.softmax import Hardmax, LogSoftmax, Softmax
from glowtrain.ops.statistics_normalization import MeanVarianceNormalization
from glowtrain.program.evaluate import evaluate as evaluate_program
from glowtrain.types import DType, TensorType, bf16, boolean, f16, f32, f64, i32, i64, type_of

MODULES = ("reduction", "along_axis", "index", "onehot", "softmax", "normalization", "group_normalization", "loss")
OWN = ("RandomBits", "ScatterAdd", "TrainingDropout", "UnbiasedBatchNormalization")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Infinities and NaN are data here, as in the interpreter."""
    with np.errstate(all="ignore"):
        yield


def run(outputs: list[Value], feeds: dict[Input, Any]) -> list[Any]:
    """The outputs of a graph in the interpreter."""
    graph = Graph(tuple(feeds), {f"out{i}": value for i, value in enumerate(outputs)})
    known = evaluate(graph, {value.name: array for value, array in feeds.items()})
    return [known[value] for value in outputs]


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def gradients(operator: Operator, arrays: list[Any], wanted: int = 0, output: int = 0, g: Any = None) -> Any:
    """The gradient of an operand through one output, for the cotangent ``g`` (ones)."""
    inputs = [Input(type_of(np.asarray(array)), f"x{i}") for i, array in enumerate(arrays)]
    results = operator(*inputs)
    result = results[output] if isinstance(results, tuple) else results
    cotangent = Input(result.type, "g")
    ones = np.ones(result.shape, result.dtype.numpy) if g is None else np.asarray(g, result.dtype.numpy)
    (gradient,) = pullback([result], [cotangent], [inputs[wanted]])
    assert gradient is not None
    feeds = {value: np.asarray(array) for value, array in zip(inputs, arrays, strict=True)}
    return run([gradient], {**feeds, cotangent: ones})[0]


class Dice:
    """Seeded choices for :meth:`Operator.sample`."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def choice(self, options: Any) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def boolean(self) -> bool:
        return bool(self.integer(0, 1))

    def shape(self, min_rank: int = 0, max_rank: int = 4, min_extent: int = 1, max_extent: int = 5) -> tuple[int, ...]:
        return tuple(self.integer(min_extent, max_extent) for _ in range(self.integer(min_rank, max_rank)))

    def floats(self, shape: Any, low: float = -2.0, high: float = 2.0, avoid: tuple[float, ...] = ()) -> Any:
        values = np.linspace(low, high, int(np.prod(shape)) + 2)[1:-1]
        for point in avoid:
            values = np.where(abs(values - point) < 0.05, point + 0.05, values)
        return self.rng.permutation(values).reshape(shape)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> Any:
        return self.rng.integers(low, high + 1, shape)

    def booleans(self, shape: tuple[int, ...]) -> Any:
        return self.rng.integers(0, 2, shape).astype(bool)


# --- Conformance with ONNX's reference implementation


def onnx_model(operator: Operator, arrays: list[Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one node; static fields become inputs at their positions."""
    fields = dataclasses.fields(operator)  # type: ignore[arg-type]
    statics = {field.metadata["input"]: getattr(operator, field.name) for field in fields if "input" in field.metadata}
    plain = {field.name: getattr(operator, field.name) for field in fields if "input" not in field.metadata}
    attributes = {name: int(v) if isinstance(v, bool) else v for name, v in plain.items() if v is not None}
    operands = iter(arrays)
    inputs = [statics[i] if i in statics else next(operands) for i in range(len(arrays) + len(statics))]
    feeds = {f"x{i}": np.asarray(array) for i, array in enumerate(inputs) if array is not None}
    types = operator.infer(*(None if array is None else type_of(array) for array in arrays))
    results = [f"y{i}" for i in range(len(types) if isinstance(types, tuple) else 1)]
    names = ["" if array is None else f"x{i}" for i, array in enumerate(inputs)]
    node = onnx.helper.make_node(operator.onnx, names, results, **attributes)
    infos = [make_tensor_value_info(name, np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in feeds.items()]
    graph = onnx.helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=name) for name in results])
    opset = onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version())
    return onnx.helper.make_model(graph, opset_imports=[opset]), feeds


def _conforms(cls: type[Operator]) -> bool:
    return cls.__module__.rpartition(".")[2] in MODULES and not cls.domain and onnx.defs.has(cls.onnx)


def conforming() -> list[str]:
    """ONNX's operators of these families."""
    return [cls.onnx for cls in registered(_conforms)]


def evaluator_is_wrong(operator: Operator, arrays: list[Any]) -> bool:
    """Where onnx.reference leaves its own specification (ONNX Runtime gives what is expected here in each case)."""
    match operator:
        case LpNormalization(p=1):
            return True  # sums x, not |x|
        case NegativeLogLikelihoodLoss(ignore_index=-1):
            return True  # divides by the number of all samples
        case ReduceLogSumExp():
            return operator.infer(type_of(arrays[0])).rank == 0  # returns something that is no array
        case GatherElements(axis=axis):
            data, indices = (list(array.shape) for array in arrays)
            del data[axis], indices[axis]
            return axis < 0 or data != indices  # refuses indices smaller than data; wrong at axis -1
    return False


@pytest.mark.parametrize("name", conforming())
def test_reference_agrees_with_onnx(name: str) -> None:
    (cls,) = registered(lambda cls: cls.key() == name)
    compared = 0
    for seed in range(80):
        sample = cls.sample(Dice(seed))
        arrays = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in sample.inputs]
        while arrays[-1] is None:
            arrays.pop()
        if compared == 12 or evaluator_is_wrong(sample.operator, arrays):
            continue
        model, feeds = onnx_model(sample.operator, arrays)
        expected = ReferenceEvaluator(model).run(None, feeds)
        results = sample.operator.reference(*arrays)
        for result, other in zip(_tuple(results), expected, strict=True):
            np.testing.assert_allclose(result, other, rtol=2e-5, atol=2e-5, err_msg=f"{sample.operator} seed {seed}")
        compared += 1
    assert compared >= 5


# --- What lowering makes of them: the program, evaluated


def lowered(operator: Operator, arrays: list[Any]) -> tuple[Any, ...]:
    """The operator's outputs by its loop nests (or those of its decomposition)."""
    inputs = [None if array is None else Input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    results = operator(*inputs)
    outputs = {f"y{i}": value for i, value in enumerate(results if isinstance(results, tuple) else (results,))}
    graph = Graph(tuple(value for value in inputs if value is not None), outputs)
    found, _ = evaluate_program(lower(graph), {f"x{i}": a for i, a in enumerate(arrays) if a is not None})
    return tuple(found[name] for name in outputs)


@pytest.mark.parametrize("dtype", [f32, f16])
@pytest.mark.parametrize("name", [*conforming(), *(f"glowtrain.{name}" for name in OWN)])
def test_lowering_agrees_with_reference(name: str, dtype: DType) -> None:
    (cls,) = registered(lambda cls: cls.key() == name)
    tolerance = 2e-5 if dtype == f32 else 2e-2
    for seed in range(6):
        sample = cls.sample(Dice(seed))
        arrays = [a.astype(dtype.numpy) if a is not None and a.dtype == np.float64 else a for a in sample.inputs]
        expected = sample.operator.reference(*arrays)
        for result, other in zip(lowered(sample.operator, arrays), _tuple(expected), strict=True):
            assert result.dtype == other.dtype
            np.testing.assert_allclose(
                result, other, rtol=tolerance, atol=tolerance, err_msg=f"{sample.operator} {seed}"
            )


def test_compiled_indices_outside_read_nan_and_write_nothing() -> None:
    data, indices, updates = (
        np.array([1.0, 2.0], np.float32),
        np.array([1, 2, -3]),
        np.array([5.0, 6.0, 7.0], np.float32),
    )
    np.testing.assert_array_equal(lowered(Gather(), [data, indices])[0], [2, np.nan, np.nan])
    np.testing.assert_array_equal(lowered(Gather(), [indices[:2], indices])[0], [2, 0, 0])
    np.testing.assert_array_equal(lowered(ScatterAdd((2,)), [indices, updates])[0], [0, 5])
    for reduction in ("none", "max"):
        result = lowered(ScatterElements(reduction=reduction), [data, indices, updates])[0]
        np.testing.assert_array_equal(result, [1, 5])
        result = lowered(ScatterND(reduction), [data, indices[:, None], updates])[0]
        np.testing.assert_array_equal(result, [1, 5])


@pytest.mark.parametrize("label", [-1, 3])
def test_compiled_loss_of_a_label_that_is_no_class_is_nan(label: int) -> None:
    loss, _ = lowered(SoftmaxCrossEntropyLoss(), [np.zeros((2, 3), np.float32), np.array([1, label])])
    assert np.isnan(loss)


# --- Reductions


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


# --- Gather and scatter


def test_gather_gradient_adds_up_where_an_index_repeats() -> None:
    data, indices = np.arange(6.0).reshape(3, 2), np.array([[0, 2], [-1, 2]])
    assert Gather().reference(data, indices)[1, 0].tolist() == [4, 5]
    g = np.arange(8.0).reshape(2, 2, 2)
    np.testing.assert_array_equal(gradients(Gather(), [data, indices], g=g), [[0, 1], [0, 0], [12, 15]])


def test_gather_nd_gradient_with_batch_dims() -> None:
    data, indices = np.arange(8.0).reshape(2, 2, 2), np.array([[[1]], [[1]]])
    np.testing.assert_array_equal(GatherND(1).reference(data, indices), [[[2, 3]], [[6, 7]]])
    np.testing.assert_array_equal(gradients(GatherND(1), [data, indices]), [[[0, 0], [1, 1]]] * 2)


def test_scatter_reductions_and_repeated_indices() -> None:
    data, indices, updates = np.array([1.0, 2.0, 3.0]), np.array([2, 2, -3]), np.array([5.0, 7.0, 2.0])
    expected = {"add": [3, 2, 15], "mul": [2, 2, 105], "max": [2, 2, 7], "min": [1, 2, 3]}
    for reduction, result in expected.items():
        assert ScatterElements(reduction=reduction).reference(data, indices, updates).tolist() == result
        assert ScatterND(reduction).reference(data, indices[:, None], updates).tolist() == result
    assert ScatterND().reference(data, np.array([[1], [0]]), updates[:2]).tolist() == [7, 5, 3]


def test_scatter_product_gradient_is_right_with_zeros() -> None:
    arrays = [np.array([2.0, 3.0]), np.array([0, 0, 1]), np.array([0.0, 5.0, 0.0])]
    operator = ScatterElements(reduction="mul")
    assert gradients(operator, arrays, 0).tolist() == [0, 0]
    assert gradients(operator, arrays, 2).tolist() == [10, 0, 3]


def test_scatter_maximum_ties_share_the_gradient() -> None:
    arrays = [np.array([4.0]), np.array([0, 0, 0]), np.array([4.0, 1.0, 4.0])]
    operator = ScatterElements(reduction="max")
    np.testing.assert_allclose(gradients(operator, arrays, 0), [1 / 3])
    np.testing.assert_allclose(gradients(operator, arrays, 2), [1 / 3, 0, 1 / 3])


@pytest.mark.parametrize(("operator", "arrays"), [
    (Gather(), [np.zeros(3), np.array([1, 3])]),
    (GatherElements(), [np.zeros(3), np.array([1, -4])]),
    (GatherND(), [np.zeros((3, 2)), np.array([[0, 1], [1, 2]])]),
    (ScatterElements(), [np.zeros(3), np.array([3]), np.zeros(1)]),
    (ScatterAdd((3,)), [np.array([-4]), np.zeros(1)]),
])  # fmt: skip
def test_an_index_outside_is_refused(operator: Operator, arrays: list[Any]) -> None:
    with pytest.raises(ShapeError, match=r"index -?\d at .* is outside \[-\d, \d\]"):
        operator.reference(*arrays)


def test_one_hot_leaves_an_index_outside_off() -> None:
    result = OneHot(3, axis=0).reference(np.array([2, -1, 3, -4]), np.array([7, 1], np.int32))
    assert result.tolist() == [[7, 7, 7, 7], [7, 7, 7, 7], [1, 1, 7, 7]]
    assert result.dtype == np.int32


# --- Softmax and normalizations


def test_softmax_is_shift_invariant_and_normal() -> None:
    x = np.array([[1e4, 1e4 + 1, -1e4], [0.0, 1.0, -np.inf]], np.float32)
    expected = np.array([1, np.e, 0]) / (1 + np.e)
    np.testing.assert_allclose(Softmax().reference(x), [expected, expected], rtol=1e-6)
    np.testing.assert_allclose(LogSoftmax().reference(x)[0, :2], np.log(expected[:2]), rtol=1e-6)
    assert np.isnan(Softmax().reference(np.full((1, 2), -np.inf))).all()


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


# --- Losses


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


# --- Random numbers and dropout

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)


@pytest.mark.parametrize(("counter", "key", "expected"), [
    ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (PI[:4], PI[4:], "d16cfe09 94fdcceb 5001e420 24126ea1"),
])  # fmt: skip
def test_philox_gives_the_published_words(counter: tuple[int, ...], key: tuple[int, ...], expected: str) -> None:
    """Known answers from Random123 (Salmon et al. 2011)."""
    words = philox(ArrayWords(), tuple(map(np.uint64, counter)), tuple(map(np.uint64, key)))
    assert " ".join(f"{int(word):08x}" for word in words) == expected


def test_random_bits_lay_place_stream_and_counter_into_the_block() -> None:
    key, counter = np.array(PI[4] | PI[5] << 32), np.array(PI[2] | PI[3] << 32)
    block = tuple(map(np.uint64, (5, 7, PI[2], PI[3])))
    words = philox(ArrayWords(), block, tuple(map(np.uint64, PI[4:])))
    drawn = [RandomBits((2, 3), stream=7, word=word).reference(key, counter)[1, 2] for word in range(4)]
    assert drawn == [int(word) for word in words]
    zeros = RandomBits((1,)).reference(np.array(0), np.array(0))
    assert f"{zeros[0]:x}" == "6627e8d5"


@pytest.mark.parametrize(("key", "counter"), [(0, 0), (-1, 1), (3 << 40, -(5 << 33))])
def test_random_bits_decompose_to_the_same_bits(key: int, counter: int) -> None:
    operator = RandomBits((3, 5), stream=2, word=1)
    (bits,) = run([operator.decompose(constant(key, i64), constant(counter, i64))], {})
    np.testing.assert_array_equal(bits, operator.reference(np.array(key), np.array(counter)))


def test_distributions() -> None:
    key, counter = np.array(1), np.array(2)
    uniform, normal = Uniform((100, 100)).reference(key, counter), Normal((100, 100)).reference(key, counter)
    assert uniform.dtype == normal.dtype == np.float32
    assert 0 <= uniform.min() < 1e-3 < 1 - 1e-3 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(uniform.var() - 1 / 12) < 0.002
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.02
    assert abs((normal**4).mean() - 3) < 0.2


def test_dropout_draws_differ_by_step_stream_and_seed_and_by_nothing_else() -> None:
    x, ratio = np.ones((50, 40), np.float32), np.array(0.25, np.float32)

    def mask(stream: int, key: int, counter: int) -> Any:
        y, kept = TrainingDropout(stream).reference(x, ratio, np.array(key), np.array(counter))
        np.testing.assert_array_equal(y, np.where(kept, np.float32(1 / 0.75), 0))
        return kept

    masks = [mask(0, 1, 2), mask(1, 1, 2), mask(0, 3, 2), mask(0, 1, 3)]
    np.testing.assert_array_equal(masks[0], mask(0, 1, 2))
    for i, first in enumerate(masks):
        assert abs(first.mean() - 0.75) < 0.03
        for second in masks[:i]:
            assert abs((first == second).mean() - 0.625) < 0.05  # 0.75^2 + 0.25^2, as if independent


def test_dropout_gradient_goes_through_the_same_mask() -> None:
    arrays = [np.ones((6, 7)), np.array(0.5), np.array(4), np.array(9)]
    y, kept = TrainingDropout(3).reference(*arrays)
    np.testing.assert_array_equal(gradients(TrainingDropout(3), arrays), kept * 2.0)
    np.testing.assert_allclose(gradients(TrainingDropout(3), arrays, wanted=1), y.sum() / 0.5)


def test_dropout_in_inference_is_the_identity() -> None:
    x = np.array([1.0, np.nan, -np.inf])
    for operator, ratio in ((Dropout(), np.array(0.9)), (Dropout(training_mode=True), np.array(0.0))):
        y, mask = operator.reference(x, ratio)
        np.testing.assert_array_equal(y, x)
        assert mask.all()
    dropped, _ = Dropout(training_mode=True).reference(x, np.array(1.0))
    np.testing.assert_array_equal(dropped, 0)


# --- Invalid uses


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
