"""Graphs saved as ONNX and run by ONNX Runtime, where that is installed: an implementation that shares no code."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

import numpy as np

from glowtrain.errors import ModelError, VerificationError
from glowtrain.graph import Graph, Value
from glowtrain.onnx_io import save
from glowtrain.types import Array
from glowtrain.verification.exact import Arrays

FATAL = 4
"""ONNX Runtime's level of messages: it is told to keep quiet about what it lacks."""
SLACK = 4.0
"""How many times the error that rounding explains it may have: its transforms and means are less accurate than sums."""
IR_VERSION = 10
"""ONNX's file version: one that every ONNX Runtime since 2024 reads."""


class NotRun(Exception):
    """ONNX Runtime cannot be asked: it is not installed, or lacks an operator on some type."""


@cache
def runtime() -> Any:
    """The module. Raises :class:`NotRun` if it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise NotRun("onnxruntime is not installed")
    module = importlib.import_module("onnxruntime")
    module.set_default_logger_severity(FATAL)
    return module


def run_by_onnx_runtime(graph: Graph, inputs: Arrays) -> dict[str, Array]:
    """The outputs of a graph by ONNX Runtime.

    Raises :class:`NotRun`, and :class:`VerificationError` for a model that ONNX does not allow: it was written wrongly.
    """
    ort = runtime()
    state = ort.capi.onnxruntime_pybind11_state
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = FATAL, 1, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    lacks = (state.NotImplemented, state.Fail, state.InvalidArgument, state.RuntimeException, RuntimeError)
    try:
        model = save(graph, ir_version=IR_VERSION).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        needed = {entry.name for entry in session.get_inputs()}
        results = session.run(list(graph.outputs), {name: array for name, array in inputs.items() if name in needed})
    except state.InvalidGraph as error:
        raise VerificationError(f"the saved model is invalid: {error}") from None
    except (ModelError, *lacks) as error:
        raise NotRun(str(error)) from None
    return {name: _typed(array, v) for array, (name, v) in zip(results, graph.outputs.items(), strict=True)}


def _typed(array: Array, value: Value) -> Array:
    """An array as the value's type: floats of one byte come as bytes."""
    dtype = np.dtype(value.dtype.numpy)
    return array.view(dtype) if array.dtype == np.uint8 and dtype.itemsize == 1 else array
