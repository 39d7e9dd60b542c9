"""Graphs saved as ONNX and run by ONNX Runtime, where that is installed: an implementation that shares no code."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

from glowtrain.errors import ModelError
from glowtrain.graph import Graph
from glowtrain.onnx_io import save
from glowtrain.types import Array
from glowtrain.verification.exact import Arrays

ERRORS = 3
"""ONNX Runtime's level of messages: errors only."""


class NotRun(Exception):
    """ONNX Runtime cannot be asked: it is not installed, or lacks an operator on some type."""


@cache
def runtime() -> Any:
    """The module. Raises :class:`NotRun` if it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise NotRun("onnxruntime is not installed")
    return importlib.import_module("onnxruntime")


def run_by_onnx_runtime(graph: Graph, inputs: Arrays) -> dict[str, Array]:
    """The outputs of a graph by ONNX Runtime. Raises :class:`NotRun`."""
    ort = runtime()
    state = ort.capi.onnxruntime_pybind11_state
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = ERRORS, 1, 1
    try:
        model = save(graph).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except (ModelError, state.NotImplemented) as error:
        raise NotRun(str(error)) from None
    needed = {entry.name for entry in session.get_inputs()}
    results = session.run(list(graph.outputs), {name: array for name, array in inputs.items() if name in needed})
    return dict(zip(graph.outputs, results, strict=True))
