"""Outside checks: what other implementations of ONNX make of a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping

import onnx
from onnx import version_converter
from onnx.reference import ReferenceEvaluator

from glowtrain.types import Array

EXACT_BYTES = "session.x64quantprecision"
"""The setting by which ONNX Runtime's products of bytes are exact on x86 without VNNI, and not saturated in 16 bits."""
EXACT_WEIGHTS = "session.qdq_matmulnbits_accuracy_level"
"""With 1, ONNX Runtime takes activations beside quantized weights as they are; version 1.32 rounds them to 8 bits."""

DEQUANTIZES = 19
"""The operator set from which on ONNX's reference evaluator has DequantizeLinear."""


def _for_evaluator(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at a set whose operators the reference evaluator has."""
    version = next(known.version for known in model.opset_import if not known.domain)
    rounded = any(node.op_type == "DequantizeLinear" for node in model.graph.node)
    return version_converter.convert_version(model, DEQUANTIZES) if rounded and version < DEQUANTIZES else model


def outside_run(path: str | os.PathLike[str], inputs: Mapping[str, Array]) -> tuple[str, dict[str, Array]]:
    """The name of another implementation, and its outputs for the model in a file.

    ONNX Runtime where it is installed, else the reference evaluator of the ``onnx`` package.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        session = ReferenceEvaluator(_for_evaluator(onnx.load(os.fspath(path))))
        results = session.run(None, dict(inputs))
        return "ONNX's reference evaluator", dict(zip(session.output_names, results, strict=True))
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.add_session_config_entry(EXACT_BYTES, "1")
    options.add_session_config_entry(EXACT_WEIGHTS, "1")
    session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return "ONNX Runtime", dict(zip(names, session.run(names, dict(inputs)), strict=True))
