"""Quantized operators, and those of com.microsoft, against ONNX Runtime on samples of the operators' own domains.

Samples that ONNX Runtime refuses (it has fewer types and forms) are drawn again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as reasons

import glowtrain as gt
from glowtrain.gradcheck.operators.oracles import drawn
from glowtrain.graph import Node, Operator, lookup
from glowtrain.onnx_io.schema.tensors import dtype_to_onnx
from glowtrain.types import Array, DType, dtype_of, i8, type_of, u8

REFUSED = (
    reasons.NotImplemented, reasons.InvalidGraph, reasons.Fail, reasons.InvalidArgument, reasons.RuntimeException,
    RuntimeError,
)  # fmt: skip
WANTED, TRIES = 6, 60
"""Samples to compare, of those that are drawn."""

STEPS = {"QLinearSoftmax": 1}
"""Steps of quantization by which ONNX Runtime's short cuts may differ; none unless stated."""
RESULTS = {"SkipLayerNormalization": 1, "SkipSimplifiedLayerNormalization": 1, "EmbedLayerNormalization": 2}
"""Results that ONNX Runtime gives on this processor; all unless stated."""
STANDARD = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul",
    "QLinearConv",
)  # fmt: skip
MICROSOFT = (
    "QuantizeLinear", "DequantizeLinear", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu",
    "QLinearSoftmax", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat", "QLinearWhere", "QLinearConv",
    "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMul", "TransposeMatMul", "FusedConv",
    "FusedGemm", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization", "MatMulNBits", "Attention", "QAttention",
    "MultiHeadAttention", "DynamicQuantizeLSTM",
)  # fmt: skip
KEYS = (*STANDARD, *(f"com.microsoft.{name}" for name in MICROSOFT))


def attributes(operator: Operator) -> dict[str, Any]:
    """Attributes as ONNX has them."""
    named = {field.name: getattr(operator, field.name) for field in dataclasses.fields(operator)}  # type: ignore[arg-type]
    plain = {k: dtype_to_onnx(v) if isinstance(v, DType) else v for k, v in named.items() if v is not None and v != ()}
    if operator.key() == "QuantizeLinear":
        plain.pop("precision", None)
    return {name: int(value) if isinstance(value, bool) else value for name, value in plain.items()}


def model_of(operator: Operator, arrays: list[Array | None]) -> ModelProto:
    """One node."""
    names = ["" if array is None else f"x{k}" for k, array in enumerate(arrays)]
    values = [None if a is None else gt.graph.Input(type_of(a), name) for a, name in zip(arrays, names, strict=True)]
    results = Node(operator, values).outputs[: RESULTS.get(operator.onnx, 9)]
    while names and not names[-1]:
        names.pop()
    outputs = [helper.make_tensor_value_info(f"y{k}", dtype_to_onnx(v.dtype), v.shape) for k, v in enumerate(results)]
    inputs = [
        helper.make_tensor_value_info(name, dtype_to_onnx(dtype_of(array.dtype)), array.shape)
        for name, array in zip(names, arrays, strict=False)
        if array is not None
    ]
    fields = attributes(operator)
    node = helper.make_node(operator.onnx, names, [o.name for o in outputs], domain=operator.domain, **fields)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "one", inputs, outputs)
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def session(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def samples(key: str) -> Iterator[tuple[Operator, list[Array | None]]]:
    """Uses in f32. Left out: forms on which ONNX Runtime ends the process (attention without a bias), and sequences of
    several lengths, where it counts states after a sequence's end in the range of what is quantized; and convolutions
    of i8 with u8, where its sums differ from those of ONNX's reference and ours; and causal attention to keys of
    another number than queries, where it shows the last query all keys.
    """
    cls = lookup(key)
    assert cls is not None
    for example in range(TRIES):
        sample = drawn(cls, 3, example)
        arrays = [None if a is None else a.astype(np.float32) if a.dtype == np.float64 else a for a in sample.inputs]
        unbiased = cls.onnx == "Attention" and arrays[2] is None
        mixed = cls.onnx == "ConvInteger" and [type_of(a).dtype for a in arrays[:2] if a is not None] == [i8, u8]
        crossed = getattr(sample.operator, "unidirectional", False) and new_keys(cls, arrays) != arrays[0].shape[1]
        if not unbiased and not mixed and not crossed and (cls.onnx != "DynamicQuantizeLSTM" or arrays[4] is None):
            yield sample.operator, arrays


def new_keys(cls: type[Operator], arrays: list[Any]) -> int:
    """How many keys attention is given beside past ones: as many as queries where one tensor holds both."""
    keys = arrays[1] if cls.onnx == "MultiHeadAttention" else None
    return int(arrays[0].shape[1] if keys is None else keys.shape[2 if keys.ndim == 4 else 1])


def cut(operator: Operator, model: ModelProto, arrays: list[Array | None]) -> None:
    """Leave out results that ONNX Runtime gives with past keys only."""
    past = {"Attention": 4, "QAttention": 8, "MultiHeadAttention": 6}.get(operator.onnx)
    if past is not None and arrays[past] is None:
        del model.graph.output[1:], model.graph.node[0].output[1:]


def agree(key: str, found: Array, wanted: Array) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if wanted.dtype.kind in "iu" or type_of(wanted).dtype.is_stored:
        steps = np.abs(found.astype(np.int64) - wanted.astype(np.int64)).max(initial=0)
        assert steps <= STEPS.get(key.rpartition(".")[2], 0)
    else:
        scale = max(float(np.abs(wanted).max(initial=0)), 1e-6)
        assert np.abs(found - wanted).max(initial=0) <= 2e-6 * scale + 1e-6


@pytest.mark.parametrize("key", KEYS)
def test_agrees_with_onnx_runtime(key: str) -> None:
    compared = 0
    for operator, arrays in samples(key):
        model = model_of(operator, arrays)
        cut(operator, model, arrays)
        feeds = {f"x{k}": array for k, array in enumerate(arrays) if array is not None}
        try:
            expected = session(model).run(None, feeds)
        except REFUSED:
            continue
        found = gt.compile(gt.load(model))(feeds)
        for output, wanted in zip(model.graph.output, expected, strict=True):
            agree(key, found[output.name], np.asarray(wanted))
        compared += 1
        if compared == WANTED:
            return
    assert compared, "ONNX Runtime refused all samples"
