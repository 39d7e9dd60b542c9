"""Quantized models computed in integers: the same bits as ONNX Runtime, within a unit of the operators one by one."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.interpreter import evaluate
from glowtrain.graph import Graph, Input, constant
from glowtrain.lower.expand import expand
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Add, Mul
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.pooling.pooling import AveragePool, GlobalAveragePool
from glowtrain.ops.quantized.integer_products import ConvInteger, MatMulInteger
from glowtrain.ops.tensor.move import Concat, Reshape, Transpose
from glowtrain.optimize.integer import in_integers
from glowtrain.optimize.pipeline import optimize
from glowtrain.types import Array, TensorType, f32, i8, i32, u8
from tests.optimize.quantized_graphs import against_onnxruntime, bias, operators, quantized, real, weight
from tests.stages import lower, scheduled


@pytest.mark.spread(4)
@pytest.mark.parametrize("activation", [None, Relu(), Clip()])
@pytest.mark.parametrize(("group", "zero", "result_zero"), [(1, 0, 0), (1, 131, 0), (4, 7, 100), (2, 255, 200)])
def test_convolutions(
    activation: Relu | Clip | None,
    group: int,
    zero: int,
    result_zero: int,
    tmp_path: object,
    random: np.random.Generator,
) -> None:
    x = Input(TensorType(f32, (2, 4, 9, 7)), "x")
    w = random.integers(-127, 128, (8, 4 // group, 3, 3)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, 8).astype(np.float32)
    offsets = bias(random.integers(-3000, 3000, 8).astype(np.int32), (np.float32(0.02) * scales).astype(np.float32))
    y = Conv(group=group, pads=(1, 0, 1, 2), strides=(2, 1))(
        real(quantized(x, 0.02, zero), 0.02, zero), weight(w, scales, 0), offsets
    )
    if isinstance(activation, Relu):
        y = activation(y)
    if isinstance(activation, Clip):
        y = activation(y, constant(np.array(0, np.float32)), constant(np.array(6, np.float32)))
    graph = Graph((x,), {"y": real(quantized(y, 0.05, result_zero), 0.05, result_zero)})
    assert {"ConvInteger"} <= set(operators(in_integers(graph)))
    assert not {"Conv", "Relu"} & set(operators(in_integers(graph)))
    found = against_onnxruntime(graph, random.normal(size=(2, 4, 9, 7)).astype(np.float32) * 2, tmp_path)
    assert len(np.unique(found)) > 20


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_products(transposed: bool, tmp_path: object, random: np.random.Generator) -> None:
    x = Input(TensorType(f32, (5, 33)), "x")
    w = random.integers(-127, 128, (12, 33) if transposed else (33, 12)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, 12).astype(np.float32)
    offsets = bias(random.integers(-3000, 3000, 12).astype(np.int32), (np.float32(0.02) * scales).astype(np.float32))
    a = real(quantized(x, 0.02, 90), 0.02, 90)
    y = Gemm(transB=transposed)(a, weight(w, scales, 0 if transposed else 1), offsets)
    graph = Graph((x,), {"y": real(quantized(y, 0.02, 128), 0.02, 128)})
    assert "MatMulInteger" in operators(in_integers(graph))
    against_onnxruntime(graph, random.normal(size=(5, 33)).astype(np.float32), tmp_path)


def test_products_of_activations(tmp_path: object, random: np.random.Generator) -> None:
    x = Input(TensorType(f32, (2, 6, 10)), "x")
    a = real(quantized(x, 0.02, 90), 0.02, 90)
    b = Transpose(perm=(0, 2, 1))(a)
    graph = Graph((x,), {"y": real(quantized(MatMul()(a, b), 0.1, 20), 0.1, 20)})
    assert "Transpose" in operators(in_integers(graph))
    assert "MatMul" not in operators(in_integers(graph))
    against_onnxruntime(graph, random.normal(size=(2, 6, 10)).astype(np.float32), tmp_path)


@pytest.mark.parametrize("combine", [Add(), Mul()])
@pytest.mark.parametrize("relu", [False, True])
def test_sums_and_products_of_activations(
    combine: Add | Mul, relu: bool, tmp_path: object, random: np.random.Generator
) -> None:
    x = Input(TensorType(f32, (2, 3, 500)), "x")
    a, b = real(quantized(x, 0.02, 90), 0.02, 90), real(quantized(x * 1.7, 0.031, 13), 0.031, 13)
    y = combine(a, b)
    y = Relu()(y) if relu else y
    graph = Graph((x,), {"y": real(quantized(y, 0.043, 0 if relu else 77), 0.043, 0 if relu else 77)})
    assert not {"Add", "Relu"} & set(operators(in_integers(graph)))
    against_onnxruntime(graph, random.normal(size=(2, 3, 500)).astype(np.float32), tmp_path)


@pytest.mark.parametrize("pool", [GlobalAveragePool(), AveragePool(kernel_shape=(2, 3), strides=(2, 1))])
def test_means(pool: GlobalAveragePool | AveragePool, tmp_path: object, random: np.random.Generator) -> None:
    x = Input(TensorType(f32, (2, 20, 7, 7)), "x")
    y = pool(real(quantized(x, 0.02, 90), 0.02, 90))
    graph = Graph((x,), {"y": real(quantized(y, 0.00837, 110), 0.00837, 110)})
    against_onnxruntime(graph, random.normal(size=(2, 20, 7, 7)).astype(np.float32), tmp_path)


def test_moves_and_maxima_stay_integers(tmp_path: object, random: np.random.Generator) -> None:
    x = Input(TensorType(f32, (2, 4, 6, 6)), "x")
    a = real(quantized(x, 0.02, 90), 0.02, 90)
    pooled = MaxPool(kernel_shape=(2, 2), strides=(2, 2), pads=(1, 1, 1, 1))(a)[0]
    joined = Concat(axis=1)(Reshape(shape=(2, 64))(pooled), Reshape(shape=(2, 144))(a))
    graph = Graph((x,), {"y": real(quantized(joined, 0.02, 90), 0.02, 90)})
    simpler = in_integers(graph)
    assert operators(simpler).count("QuantizeLinear") == 1
    assert operators(simpler)[-1] == "DequantizeLinear"
    against_onnxruntime(graph, random.normal(size=(2, 4, 6, 6)).astype(np.float32), tmp_path)


def test_normalizations_before_a_convolution_take_no_loop_of_their_own(random: np.random.Generator) -> None:
    """What scales channels between two convolutions is computed in registers, from the sums to the next bytes."""
    x = Input(TensorType(f32, (2, 4, 6, 6)), "x")
    w = weight(random.integers(-127, 128, (4, 4, 1, 1)).astype(np.int8), np.full(4, 0.01, np.float32), 0)
    a = real(quantized(Conv()(real(quantized(x, 0.02, 90), 0.02, 90), w), 0.05, 120), 0.05, 120)
    rows = [constant(random.uniform(0.5, 1.5, 4).astype(np.float32)) for _ in range(4)]
    b = real(quantized(Relu()(BatchNormalization()(a, *rows)), 0.03, 0), 0.03, 0)
    graph = Graph((x,), {"y": quantized(Conv()(b, w), 0.05, 120)})
    program = scheduled(lower(optimize(expand(in_integers(graph)))))
    activations = [buffer for buffer in program.buffers if buffer.kind == "activation"]
    assert len(activations) > 1
    assert {buffer.dtype for buffer in activations if buffer.type.size > 4} == {u8}
    assert sum("convinteger" in kernel.name for kernel in program.kernels) == 2
    assert len([*program.kernels]) <= 4  # with the input's and the output's


def test_what_cannot_be_computed_in_integers_stays_as_it_is() -> None:
    x = Input(TensorType(f32, (1, 2, 4, 4)), "x")
    w = Input(TensorType(f32, (2, 2, 1, 1)), "w")
    a = real(quantized(x, 0.02, 90), 0.02, 90)
    mixed = Graph((x, w), {"y": Conv()(a, w)})
    assert in_integers(mixed) is mixed
    rows = weight(np.ones((2, 2, 1, 1), np.int8), np.ones(2, np.float32), 1)
    across = Graph((x,), {"y": Conv()(a, rows)})
    assert "ConvInteger" not in operators(in_integers(across))


def test_a_bias_in_other_units_is_added_in_floats() -> None:
    x = Input(TensorType(f32, (1, 2)), "x")
    a = real(quantized(x, 0.5, 0), 0.5, 0)
    w = weight(np.eye(2, dtype=np.int8), np.ones(1, np.float32), 1)
    y = Gemm()(a, w, constant(np.array([0.25, -0.125], np.float32)))
    graph = Graph((x,), {"y": y})
    assert "MatMulInteger" in operators(in_integers(graph))
    assert gt.compile(graph)({"x": np.array([[1, 2]], np.float32)})["y"].tolist() == [[1.25, 1.875]]


def test_sums_are_exact_at_the_extremes() -> None:
    a, b = Input(TensorType(u8, (2, 4096)), "a"), Input(TensorType(i8, (4096, 2)), "b")
    graph = Graph((a, b), {"y": MatMulInteger()(a, b)})
    feeds = {"a": np.full((2, 4096), 255, np.uint8), "b": np.full((4096, 2), -128, np.int8)}
    assert (gt.compile(graph)(feeds)["y"] == 4096 * 255 * -128).all()
    image, kernel = Input(TensorType(u8, (1, 64, 8, 8)), "x"), Input(TensorType(i8, (2, 64, 3, 3)), "w")
    window = Graph((image, kernel), {"y": ConvInteger()(image, kernel)})
    feeds = {"x": np.full(image.shape, 255, np.uint8), "w": np.full(kernel.shape, -128, np.int8)}
    found = gt.compile(window)(feeds)["y"]
    assert found.dtype == i32.numpy
    assert (found == 576 * 255 * -128).all()


def one_by_one(graph: Graph, x: Array) -> Array:
    """The result of the operators as given, in floats."""
    return np.asarray(evaluate(graph, {"x": x})[graph.outputs["y"]])


def test_a_vector_with_a_scale_for_each_element(tmp_path: object, random: np.random.Generator) -> None:
    """The scales lie on the axis that is summed."""
    x = Input(TensorType(f32, (5, 6)), "x")
    scales = random.uniform(0.01, 0.1, 6).astype(np.float32)
    w = weight(random.integers(-127, 128, 6).astype(np.int8), scales, 0)
    graph = Graph((x,), {"y": quantized(MatMul()(real(quantized(x, 0.05, 128), 0.05, 128), w), 0.1, 128)})
    feeds = {"x": random.normal(size=(5, 6)).astype(np.float32)}
    assert np.array_equal(gt.compile(graph)(feeds)["y"], one_by_one(graph, feeds["x"]))


@pytest.mark.parametrize("scale", [-0.05, 0.0, 1e-45, np.nan])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scales_that_are_no_steps(scale: float, random: np.random.Generator) -> None:
    """Bounds of Relu change sides with a negative scale; with the others products have no factor."""
    x = Input(TensorType(f32, (5, 6)), "x")
    w = weight(random.integers(-127, 128, (6, 4)).astype(np.int8), np.full(4, 0.03, np.float32), 1)
    y = Relu()(MatMul()(real(quantized(x, 0.05, 128), 0.05, 128), w))
    graph = Graph((x,), {"y": quantized(y, scale, 100)})
    feeds = {"x": random.normal(size=(5, 6)).astype(np.float32)}
    for backend in ("interpreter", "cpu"):
        found = gt.compile(graph, backend=backend)(feeds)["y"].astype(int)
        assert np.abs(found - one_by_one(graph, feeds["x"])).max() <= 1
    gt.compile(graph, fixed_point=True)(feeds)
