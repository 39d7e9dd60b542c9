"""Contractions, convolutions, pools, Scan and the recurrent operators: gradients, decompositions, ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import glowtrain.ops
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import OPERATORS, Constant, Input, Operator, Sample
from glowtrain.ops.sequence.recurrent import GRU, LSTM, RNN
from glowtrain.types import Array, type_of
from tests.ops.rules import as_tuple, reference, run

OURS = [
    *("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool"),
    *("GlobalMaxPool", "GlobalLpPool", "Scan", "LSTM", "GRU", "RNN", "glowtrain.ConvInputGradient"),
    *("glowtrain.ConvWeightGradient", "glowtrain.MaxPoolGradient", "glowtrain.SumPool", "glowtrain.SumPoolGradient"),
]
STANDARD = [key for key in OURS if "." not in key and key != "Scan"]


def sampled(key: str, seed: int) -> Sample:
    return OPERATORS[key].sample(ChoiceDraw(seed))


def leaves(arrays: Sequence[Array | None]) -> list[Any]:
    return [None if array is None else Input(type_of(array), f"x{place}") for place, array in enumerate(arrays)]


def feeds(inputs: Sequence[Input | None], arrays: Sequence[Array | None]) -> dict[Input, Array]:
    """What is there of the operands."""
    pairs = zip(inputs, arrays, strict=True)
    return {value: array for value, array in pairs if value is not None and array is not None}


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

    for place, gradient in zip(floating, run(gradients, feeds(inputs, arrays)), strict=True):
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
    for value, got, wanted in zip(results, run(list(results), feeds(inputs, arrays)), expected, strict=True):
        assert value.type == type_of(np.asarray(wanted))
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, err_msg=str(operator))


@pytest.mark.parametrize("key", STANDARD)
def test_reference_agrees_with_onnxruntime(key: str) -> None:
    checked = 0
    for seed in range(24):
        drawn = sampled(key, seed)
        arrays = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in drawn.inputs]
        theirs = onnxruntime_results(drawn.operator, arrays)
        if theirs is None or not all(np.isfinite(other).all() for other in theirs):
            continue  # its Softplus overflows where the logarithm does not
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


def test_operators_of_this_file_are_registered() -> None:
    assert glowtrain.ops.__name__ == "glowtrain.ops"
    assert set(OURS) <= set(OPERATORS)
