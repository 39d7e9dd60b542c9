"""Contractions, convolutions and pools: exact cases and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.errors import ShapeError
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Constant, Input, Operator, topological
from glowtrain.ops.contraction.products import Einsum, Gemm, MatMul
from glowtrain.ops.convolution.convolution import Conv, ConvInputGradient, ConvTranspose, ConvWeightGradient
from glowtrain.ops.pooling.max_pool import MaxPool, MaxPoolGradient
from glowtrain.ops.pooling.pooling import AveragePool, LpPool
from glowtrain.types import Array, f32, f64, i64, type_of
from tests.ops.rules import reference, run


def arange(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape)


# Contractions.


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((4, 1, 2, 3), (5, 3, 2)),
        ((3,), (4, 3, 2)),
        ((4, 2, 3), (3,)),
        ((0, 3), (3, 2)),
    ],
)
def test_matmul_has_every_form_of_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    expected = np.matmul(arange(*a), arange(*b))
    assert MatMul().infer(f64[a], f64[b]) == type_of(np.asarray(expected))
    np.testing.assert_array_equal(reference(MatMul(), arange(*a), arange(*b)), expected)


def test_matmul_of_half_precision_accumulates_in_single() -> None:
    a = np.full((1, 4096), 1, np.float16)
    assert reference(MatMul(), a, a.T)[0, 0] == 4096  # a running f16 sum would stop at 2048


def test_shared_matrix_gets_one_contraction_over_batch_and_rows() -> None:
    x, w = Input(f32[2, 3, 4], "x"), Input(f32[4, 5], "w")
    (gradient,) = pullback([x @ w], [Input(f32[2, 3, 5], "g")], [w])
    assert gradient is not None
    assert not any(node.operator.onnx == "ReduceSum" for node in topological([gradient]))


def test_gemm_scales_and_broadcasts() -> None:
    a, b, c = arange(3, 2), arange(4, 3), np.array([[1.0], [2.0]])
    expected = 0.5 * (a.T @ b.T) - 2.0 * c
    np.testing.assert_allclose(reference(Gemm(0.5, -2.0, True, True), a, b, c), expected)
    np.testing.assert_allclose(reference(Gemm(), a.T, b.T), a.T @ b.T)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("...ij,...jk", [(2, 1, 3, 4), (5, 4, 2)]),
        ("i...->...", [(3, 2, 4)]),
        ("ii", [(3, 3)]),
        ("aab,bc->ca", [(2, 2, 3), (3, 4)]),
        ("ab,c->ab", [(2, 3), (4,)]),
        (" ij , jk -> ik ", [(2, 3), (3, 4)]),
        ("ab,bc,cd,de->ae", [(2, 3), (3, 4), (4, 2), (2, 5)]),
    ],
)
def test_einsum_is_numpys(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [arange(*shape) for shape in shapes]
    expected = np.einsum(equation.replace(" ", ""), *arrays)
    feeds = {Input(type_of(array), f"x{place}"): array for place, array in enumerate(arrays)}
    assert Einsum(equation)(*feeds).shape == expected.shape
    np.testing.assert_allclose(reference(Einsum(equation), *arrays), expected)
    np.testing.assert_allclose(run([Einsum(equation).decompose(*feeds)], feeds)[0], expected)


# Convolutions.


def test_convolution_by_hand() -> None:
    x, w = arange(1, 1, 3, 3), np.array([[[[1.0, 0.0], [0.0, -1.0]]]])
    np.testing.assert_array_equal(reference(Conv(), x, w)[0, 0], [[-4, -4], [-4, -4]])
    padded = reference(Conv(pads=(1, 1, 0, 0)), x, w, np.array([10.0]))[0, 0]
    np.testing.assert_array_equal(padded, [[10, 9, 8], [7, 6, 6], [4, 6, 6]])


@pytest.mark.parametrize(("auto_pad", "pads"), [("SAME_UPPER", (0, 1)), ("SAME_LOWER", (1, 0))])
def test_same_padding_puts_the_odd_element_where_its_name_says(auto_pad: str, pads: tuple[int, int]) -> None:
    x, w = arange(1, 1, 5), np.ones((1, 1, 2))
    np.testing.assert_array_equal(reference(Conv(auto_pad=auto_pad), x, w), reference(Conv(pads=pads), x, w))


def test_depthwise_convolution_keeps_channels_apart() -> None:
    x, w = arange(1, 3, 4), np.array([1.0, 10.0, 100.0]).reshape(3, 1, 1)
    np.testing.assert_array_equal(reference(Conv(group=3), x, w), x * w.reshape(1, 3, 1))


def test_transposed_convolution_by_hand() -> None:
    x, w = np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10.0, 100.0]]])
    np.testing.assert_array_equal(reference(ConvTranspose(strides=(2,)), x, w)[0, 0], [1, 10, 102, 20, 200])
    longer = reference(ConvTranspose(strides=(2,), output_padding=(1,), pads=(1, 0)), x, w)
    np.testing.assert_array_equal(longer[0, 0], [10, 102, 20, 200, 0])
    shaped = ConvTranspose(strides=(2,), output_shape=(4,))
    np.testing.assert_array_equal(reference(shaped, x, w)[0, 0], [10, 102, 20, 200])
    upper = shaped.replace(auto_pad="SAME_UPPER")
    np.testing.assert_array_equal(reference(upper, x, w)[0, 0], [1, 10, 102, 20])


@pytest.mark.parametrize("seed", range(6))
def test_convolution_and_its_gradients_are_adjoint(seed: int) -> None:
    """<g, conv(x, w)> = <input_gradient(g, w), x> = <weight_gradient(g, x), w>."""
    drawn = Conv.sample(ChoiceDraw(seed))
    conv, (x, w, _) = drawn.operator, drawn.inputs
    assert isinstance(conv, Conv)
    assert x is not None
    assert w is not None
    y = reference(conv, x, w)
    g, window = np.random.default_rng(seed).normal(size=y.shape), conv.geometry(x, w)
    fields = (window.strides, window.dilations, window.pads, conv.group)
    dx = reference(ConvInputGradient(window.spatial, *fields), g, w)
    dw = reference(ConvWeightGradient(window.kernel, *fields), g, x)
    np.testing.assert_allclose([np.sum(dx * x), np.sum(dw * w)], np.sum(g * y), rtol=1e-10)


# Pools.


def test_max_pool_reports_the_first_winner() -> None:
    x = np.array([[[[1.0, 3.0, 3.0], [3.0, 2.0, 0.0]]]])
    y, indices = reference(MaxPool(kernel_shape=(2, 2)), x)
    np.testing.assert_array_equal(y[0, 0], [[3, 3]])
    np.testing.assert_array_equal(indices[0, 0], [[1, 1]])
    np.testing.assert_array_equal(reference(MaxPool(kernel_shape=(2, 2), storage_order=1), x)[1][0, 0], [[2, 2]])


def test_max_pool_counts_positions_over_images_and_channels() -> None:
    _, indices = reference(MaxPool(kernel_shape=(2,), strides=(2,)), arange(2, 2, 4))
    np.testing.assert_array_equal(indices.reshape(-1), [1, 3, 5, 7, 9, 11, 13, 15])


def test_overlapping_windows_add_up_at_a_common_winner() -> None:
    x = Input(f64[1, 1, 3], "x")
    y, _ = MaxPool(kernel_shape=(2,))(x)
    (gradient,) = pullback([y], [Constant(np.array([[[10.0, 1.0]]]))], [x])
    assert gradient is not None
    assert isinstance(gradient.node.operator if gradient.node else None, MaxPoolGradient)
    (dx,) = run([gradient], {x: np.array([[[0.0, 5.0, 5.0]]])})
    np.testing.assert_array_equal(dx, [[[0, 11, 0]]])


def test_padding_never_wins_and_nan_does() -> None:
    y, indices = reference(MaxPool(kernel_shape=(2,), pads=(1, 0)), np.array([[[-np.inf, np.nan, 1.0]]]))
    np.testing.assert_array_equal(y[0, 0], [-np.inf, np.nan, np.nan])
    np.testing.assert_array_equal(indices[0, 0], [0, 1, 1])


def test_average_pool_counts_what_it_should() -> None:
    x = np.array([[[2.0, 4.0, 6.0]]])
    padded = AveragePool(kernel_shape=(2,), strides=(2,), pads=(1, 0))
    np.testing.assert_allclose(reference(padded, x)[0, 0], [2, 5])
    np.testing.assert_allclose(reference(padded.replace(count_include_pad=True), x)[0, 0], [1, 5])
    ceiled = AveragePool(kernel_shape=(2,), strides=(2,), ceil_mode=True, count_include_pad=True)
    np.testing.assert_allclose(reference(ceiled, x)[0, 0], [3, 6])  # the tap beyond the input is not counted


def test_ceil_mode_drops_windows_that_start_in_the_padding() -> None:
    pool = MaxPool(kernel_shape=(1,), strides=(2,), ceil_mode=True)
    assert pool.infer(f32[1, 1, 4])[0].shape == (1, 1, 2)
    assert pool.infer(f32[1, 1, 5])[0].shape == (1, 1, 3)


# Bad input: each message names the operator, what is wrong and the types.


@pytest.mark.parametrize(
    ("operator", "types", "message"),
    [
        (MatMul(), (f32[2, 3], f32[4, 5]), r"MatMul\(f32\[2,3\], f32\[4,5\]\): the last axis of A has extent 3 but"),
        (MatMul(), (f32[()], f32[4]), "at least one axis"),
        (MatMul(), (f32[2, 2, 3], f32[3, 3, 4]), "leading axes: extents"),
        (Gemm(), (f32[2, 3, 4], f32[4, 5]), "must be matrices"),
        (Gemm(transA=True), (f32[2, 3], f32[3, 4]), "2 terms to each sum but B gives 3"),
        (Gemm(), (f32[2, 3], f32[3, 4], f32[3]), r"C does not broadcast to \[2, 4\]"),
        (Einsum("ij,jk->ik"), (f32[2, 3], f32[4, 5]), "label 'j' has extents 3 and 4"),
        (Einsum("ij->ik"), (f32[2, 3],), "each output label"),
        (Einsum("ij"), (f32[2],), "does not describe an operand of rank 1"),
        (Conv(strides=(2, 2)), (f32[8, 3, 32, 32], f32[16, 4, 3, 3]), "3 channels but weight expects 4"),
        (Conv(), (f32[1, 1, 2], f32[1, 1, 5]), "does not fit into the padded input"),
        (Conv(), (f32[1, 1, 5], f32[2, 1, 3], f32[3]), r"bias must have shape \[2\]"),
        (Conv(pads=(1,)), (f32[1, 1, 5], f32[1, 1, 3]), "pads must hold 2 non-negative"),
        (Conv(group=2), (f32[1, 2, 5], f32[3, 1, 1]), "do not divide into 2 groups"),
        (Conv(auto_pad="SAME"), (f32[1, 1, 5], f32[1, 1, 3]), "auto_pad must be one of"),
        (Conv(kernel_shape=(2,)), (f32[1, 1, 5], f32[1, 1, 3]), "kernel_shape"),
        (ConvTranspose(output_padding=(2,)), (f32[1, 1, 5], f32[1, 1, 3]), "output_padding"),
        (ConvTranspose(pads=(4, 4)), (f32[1, 1, 5], f32[1, 1, 3]), "would have spatial shape"),
        (MaxPool(kernel_shape=(2, 2)), (f32[1, 1, 5],), "kernel_shape must hold 1"),
        (MaxPool(kernel_shape=(1,), pads=(2, 0)), (f32[1, 1, 5],), "wholly in the padding"),
        (LpPool(kernel_shape=(2,), p=0), (f32[1, 1, 5],), "p must be"),
        (MaxPool(kernel_shape=(2,)), (i64[1, 1, 5],), "element type"),
    ],
)
def test_bad_types_are_explained(operator: Operator, types: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        operator.infer(*types)
