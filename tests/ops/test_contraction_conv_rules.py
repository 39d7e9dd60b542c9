"""Contractions, convolutions, pools, Scan and the recurrent operators: exact cases, errors and outside checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rules import Dice

import glowtrain.ops
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import DifferentiationError, ShapeError
from glowtrain.graph import OPERATORS, Constant, Graph, Input, Operator, Sample, Value, topological
from glowtrain.graph.reverse import pullback, unbroadcast
from glowtrain.ops.arithmetic import Add
from glowtrain.ops.contraction import Einsum, Gemm, MatMul
from glowtrain.ops.control import Scan
from glowtrain.ops.convolution import Conv, ConvInputGradient, ConvTranspose, ConvWeightGradient
from glowtrain.ops.logic import Greater
from glowtrain.ops.max_pool import MaxPool, MaxPoolGradient
from glowtrain.ops.pooling import AveragePool, LpPool
from glowtrain.ops.recurrent import GRU, LSTM, RNN
from glowtrain.types import Array, f32, f64, i64, type_of

OURS = [
    *("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool"),
    *("GlobalMaxPool", "GlobalLpPool", "Scan", "LSTM", "GRU", "RNN", "glowtrain.ConvInputGradient"),
    *("glowtrain.ConvWeightGradient", "glowtrain.MaxPoolGradient", "glowtrain.SumPool", "glowtrain.SumPoolGradient"),
]
STANDARD = [key for key in OURS if "." not in key and key != "Scan"]


class Seeded(Dice):
    """A :class:`~glowtrain.graph.Draw` from a seeded generator."""

    def floats(
        self, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, avoid: tuple[float, ...] = ()
    ) -> Array:
        size = int(np.prod(shape))
        spread = np.linspace(low, high, size + 2)[1:-1] + 0.2 * (high - low) / (size + 2) * self.random.random(size)
        for kink in avoid:
            spread = np.where(np.abs(spread - kink) < 0.05, kink + 0.07, spread)
        return self.random.permutation(spread).reshape(shape)


def sampled(key: str, seed: int) -> Sample:
    return OPERATORS[key].sample(Seeded(seed))


def leaves(arrays: Sequence[Array | None]) -> list[Any]:
    return [None if array is None else Input(type_of(array), f"x{place}") for place, array in enumerate(arrays)]


def as_tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def run(values: Sequence[Value], inputs: Sequence[Value | None], arrays: Sequence[Array | None]) -> list[Array]:
    present = {v: a for v, a in zip(inputs, arrays, strict=True) if isinstance(v, Input) and a is not None}
    graph = Graph(tuple(present), {str(place): value for place, value in enumerate(values)})
    known = evaluate(graph, {value.name: array for value, array in present.items()})
    return [known[value] for value in values]


def reference(operator: Operator, *arrays: Array | None) -> Any:
    return operator.reference(*arrays)


def arange(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape)


# Every operator of these families: rule against numbers, decomposition against reference.


@pytest.mark.parametrize("key", OURS)
@pytest.mark.parametrize("seed", range(8))
def test_vjp_is_the_derivative_of_the_reference(key: str, seed: int) -> None:
    """Projected central differences in f64, on random directions of every floating operand."""
    operator, arrays = sampled(key, seed).operator, list(sampled(key, seed).inputs)
    inputs = leaves(arrays)
    outputs = as_tuple(operator(*inputs))
    random = np.random.default_rng(seed)
    weights = [random.normal(size=y.shape) if y.dtype.is_float else None for y in outputs]
    cotangents = [None if weight is None else Constant(weight) for weight in weights]
    floating = [place for place, value in enumerate(inputs) if value is not None and value.dtype.is_float]
    wrt = [value for place, value in enumerate(inputs) if place in floating and value is not None]
    gradients = [
        g if g is not None else Constant(np.zeros(v.shape))
        for g, v in zip(pullback(outputs, cotangents, wrt), wrt, strict=True)
    ]

    def projected(shifted: Sequence[Array | None]) -> float:
        results = as_tuple(reference(operator, *shifted))
        return float(sum(np.sum(y * w) for y, w in zip(results, weights, strict=True) if w is not None))

    for place, gradient in zip(floating, run(gradients, inputs, arrays), strict=True):
        direction = random.normal(size=gradient.shape)
        up, down = list(arrays), list(arrays)
        centre = np.asarray(arrays[place])
        up[place], down[place] = centre + 1e-6 * direction, centre - 1e-6 * direction
        numerical = (projected(up) - projected(down)) / 2e-6
        assert np.sum(gradient * direction) == pytest.approx(numerical, rel=1e-5, abs=1e-6), operator


@pytest.mark.parametrize("key", [key for key in OURS if OPERATORS[key].has("decompose")])
@pytest.mark.parametrize("seed", range(8))
def test_decomposition_computes_the_reference(key: str, seed: int) -> None:
    operator, arrays = sampled(key, seed).operator, sampled(key, seed).inputs
    inputs = leaves(arrays)
    results = as_tuple(operator.decompose(*inputs))
    expected = as_tuple(reference(operator, *arrays))
    for value, got, wanted in zip(results, run(results, inputs, arrays), expected, strict=True):
        assert value.type == type_of(np.asarray(wanted))
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, err_msg=str(operator))


@pytest.mark.parametrize("key", STANDARD)
def test_reference_agrees_with_onnxruntime(key: str) -> None:
    checked = 0
    for seed in range(24):
        drawn = sampled(key, seed)
        arrays = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in drawn.inputs]
        theirs = onnxruntime_results(drawn.operator, arrays)
        if theirs is None:
            continue
        checked += 1
        for ours, other in zip(as_tuple(reference(drawn.operator, *arrays)), theirs, strict=True):
            np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5, err_msg=str(drawn.operator))
    assert checked >= 8


def onnxruntime_results(operator: Operator, arrays: Sequence[Array | None]) -> list[Array] | None:
    """What ONNX Runtime computes, ``None`` for a form that its CPU kernels do not implement."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    attributes = {name: value for name, value in operator.attributes().items() if value not in ((), None)}
    if isinstance(operator, (LSTM, GRU, RNN)) and arrays[2] is not None:
        attributes["hidden_size"] = arrays[2].shape[2]
    attributes = {name: int(value) if isinstance(value, bool) else value for name, value in attributes.items()}
    names = ["" if array is None else f"x{place}" for place, array in enumerate(arrays)]
    outputs = [f"y{place}" for place in range(len(as_tuple(reference(operator, *arrays))))]
    node = onnx.helper.make_node(operator.onnx, names, outputs, **attributes)
    feeds = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    declared = [onnx.helper.make_tensor_value_info(name, kind, feeds[name].shape) for name, kind in kinds.items()]
    graph = onnx.helper.make_graph([node], "g", declared, [onnx.ValueInfoProto(name=name) for name in outputs])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    state = ort.capi.onnxruntime_pybind11_state
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results: list[Array] = session.run(None, feeds)
    except (state.Fail, state.InvalidArgument, state.NotImplemented, state.RuntimeException):
        return None
    return results


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
    inputs = leaves(arrays)
    node = Einsum(equation)(*inputs)
    assert node.shape == expected.shape
    np.testing.assert_allclose(reference(Einsum(equation), *arrays), expected)
    np.testing.assert_allclose(run([Einsum(equation).decompose(*inputs)], inputs, arrays)[0], expected)


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
    drawn = sampled("Conv", seed)
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
    (dx,) = run([gradient], [x], [np.array([[[0.0, 5.0, 5.0]]])])
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


# Scan.


def running_sum(**attributes: Any) -> Scan:
    total, x, scale = Input(f64[2], "total"), Input(f64[2], "x"), Input(f64[()], "scale")
    following = total + x * scale
    body = Graph((total, x, scale), {"total": following, "y": following * 1.0}, name="sums")
    return Scan(body, 1, num_captured=1, **attributes)


def test_scan_carries_its_state_in_every_direction_and_axis() -> None:
    x, scale, start = arange(3, 2), np.array(2.0), np.array([100.0, 0.0])
    forward = start + np.cumsum(2 * x, 0)
    total, y = reference(running_sum(), start, x, scale)
    np.testing.assert_array_equal(total, forward[-1])
    np.testing.assert_array_equal(y, forward)
    backward = start + np.cumsum(2 * x[::-1], 0)
    scan = running_sum(scan_input_directions=(1,), scan_output_axes=(-1,), scan_input_axes=(1,))
    np.testing.assert_array_equal(reference(scan, start, x.T, scale)[1], backward.T)
    scan = running_sum(scan_output_directions=(1,))
    np.testing.assert_array_equal(reference(scan, start, x, scale)[1], forward[::-1])


def test_scan_of_nothing_returns_its_states() -> None:
    total, y = reference(running_sum(), np.ones(2), np.zeros((0, 2)), np.array(1.0))
    np.testing.assert_array_equal(total, [1, 1])
    assert y.shape == (0, 2)


def test_recurrent_weights_get_one_contraction_after_the_loop() -> None:
    """No matrix of R's size is carried through the gradient's loop, and equal LSTMs share one body."""
    steps, batch, inner, hidden = 5, 2, 3, 4
    shapes = ((steps, batch, inner), (1, 4 * hidden, inner), (1, 4 * hidden, hidden))
    x, w, r = (Input(f64[shape], name) for shape, name in zip(shapes, "xwr", strict=True))
    y, _, _ = LSTM()(x, w, r)
    gradients = pullback([y], [Constant(np.ones(y.shape))], [w, r])
    scans = [n.operator for n in topological([g for g in gradients if g is not None]) if isinstance(n.operator, Scan)]
    carried = [value.shape for scan in scans for value in scan.body.inputs[: scan.num_states]]
    assert len(scans) == 2
    assert set(carried) == {(batch, hidden)}
    bodies = {n.operator for n in topological(LSTM().decompose(x, w, r)) if isinstance(n.operator, Scan)}
    again = {n.operator for n in topological(LSTM().decompose(x, w, r)) if isinstance(n.operator, Scan)}
    assert bodies == again


def test_operand_read_twice_by_a_scan_is_counted_once_each() -> None:
    x = Input(f64[2, 2], "x")
    total, a, b = Input(f64[2], "total"), Input(f64[2], "a"), Input(f64[2], "b")
    body = Graph((total, a, b), {"total": total + a * b}, name="squares")
    results = Scan(body, 2, scan_input_axes=(1, 0))(Constant(np.zeros(2)), x, x)
    (gradient,) = pullback([results], [Constant(np.ones(2))], [x])
    assert gradient is not None
    values = np.array([[1.0, 2.0], [3.0, 5.0]])
    np.testing.assert_allclose(run([gradient], [x], [values])[0], 2 * values.T)


# Recurrent operators.


def test_sequence_lengths_stop_each_row_at_its_end() -> None:
    random = np.random.default_rng(0)
    x, w, r = random.normal(size=(4, 2, 3)), random.normal(size=(1, 2, 3)), random.normal(size=(1, 2, 2))
    lengths = np.array([2, 4], np.int32)
    for direction in ("forward", "reverse"):
        rnn = RNN(direction=direction)
        y, h = reference(rnn, x, w, r, None, lengths)
        alone, alone_h = reference(rnn, x[:2, :1], w, r)
        np.testing.assert_allclose(y[:2, :, :1], alone)
        np.testing.assert_array_equal(y[2:, :, 0], 0)
        np.testing.assert_allclose(h[:, :1], alone_h)


@pytest.mark.parametrize("key", ["LSTM", "GRU", "RNN"])
def test_batch_first_layout_only_moves_axes(key: str) -> None:
    random = np.random.default_rng(1)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[key]
    x, w, r = (
        random.normal(size=(4, 2, 3)),
        random.normal(size=(2, 2 * gates, 3)),
        random.normal(size=(2, 2 * gates, 2)),
    )
    operator: Any = OPERATORS[key]
    first = reference(operator(direction="bidirectional"), x, w, r)
    second = reference(operator(direction="bidirectional", layout=1), x.swapaxes(0, 1), w, r)
    np.testing.assert_allclose(second[0], first[0].transpose(2, 0, 1, 3))
    np.testing.assert_allclose(second[1], first[1].swapaxes(0, 1))


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
        (running_sum(), (f64[3], f64[4, 2], f64[()]), r"operand 0 gives the body f64\[3\]"),
        (running_sum(), (f64[2], f64[4, 2]), "takes 3 operands"),
        (running_sum(scan_input_axes=(2,)), (f64[2], f64[4, 2], f64[()]), "axis 2 is outside"),
        (LSTM(), (f32[1, 2, 3], f32[1, 16, 3], f32[1, 12, 4]), r"R must have shape \[1, 16, 4\]"),
        (GRU(activations=("Tanh",)), (f32[1, 2, 3], f32[1, 3, 3], f32[1, 3, 1]), "must name 2 functions"),
        (RNN(activations=("Sine",)), (f32[1, 2, 3], f32[1, 1, 3], f32[1, 1, 1]), "'Sine' is not one of"),
        (RNN(hidden_size=3), (f32[1, 2, 3], f32[1, 1, 3], f32[1, 1, 1]), "hidden_size is 3"),
    ],
)
def test_bad_types_are_explained(operator: Operator, types: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        operator.infer(*types)


def test_body_may_not_reach_outside() -> None:
    outer, total, x = Input(f64[2], "outer"), Input(f64[2], "total"), Input(f64[2], "x")
    scan = Scan(Graph((total, x), {"total": total + x * outer}), 1)
    with pytest.raises(ShapeError, match="captured operand"):
        scan.infer(f64[2], f64[3, 2])


# The reverse walk.


def test_reverse_walk_adds_where_a_value_fans_out() -> None:
    x = Input(f64[3], "x")
    y = x * x
    (gradient,) = pullback([y * y + y, x], [Constant(np.ones(3)), Constant(np.full(3, 7.0))], [x])
    assert gradient is not None
    values = np.array([1.0, 2.0, -3.0])
    np.testing.assert_allclose(run([gradient], [x], [values])[0], 4 * values**3 + 2 * values + 7)


def test_reverse_walk_takes_intermediate_values_and_boundaries() -> None:
    x = Input(f64[2], "x")
    y = x * 3.0
    z = y * y + x
    one = Constant(np.ones(2))
    by_x, by_y = pullback([z], [one], [x, y])
    assert by_x is not None
    assert by_y is not None
    np.testing.assert_allclose(run([by_x, by_y], [x], [np.array([1.0, 2.0])]), [[19, 37], [6, 12]])
    (direct,) = pullback([z], [one], [x], boundary=[y])
    assert direct is one


def test_reverse_walk_stops_at_comparisons_and_unreached_values() -> None:
    x, other = Input(f64[2], "x"), Input(f64[2], "other")
    mask = Greater()(x, 0.0)
    assert pullback([x * 1.0], [Constant(np.ones(2))], [other]) == (None,)
    assert pullback([mask], [None], [x]) == (None,)


def test_unbroadcast_sums_what_was_repeated() -> None:
    g = Input(f64[2, 3, 4], "g")
    summed = unbroadcast(g, (3, 1))
    np.testing.assert_allclose(run([summed], [g], [np.ones((2, 3, 4))])[0], np.full((3, 1), 8.0))


def test_missing_rule_names_operator_and_node() -> None:
    class Opaque(Operator):
        onnx = "Opaque"

        def infer(self, *inputs: Any) -> Any:
            return inputs[0]

        def __str__(self) -> str:
            return "Opaque"

    x = Input(f64[2], "x")
    y = Opaque()(x)
    y.node.name = "layer3"
    with pytest.raises(DifferentiationError, match=r"Opaque\(f64\[2\]\) of node 'layer3' has no gradient rule"):
        pullback([y], [Constant(np.ones(2))], [x])


def test_wrong_cotangent_type_is_caught() -> None:
    x = Input(f64[2], "x")
    with pytest.raises(DifferentiationError, match=r"cotangent of type f64\[3\]"):
        pullback([Add()(x, x)], [Constant(np.ones(3))], [x])


def test_operators_of_this_file_are_registered() -> None:
    assert glowtrain.ops.__name__ == "glowtrain.ops"
    assert set(OURS) <= set(OPERATORS)
