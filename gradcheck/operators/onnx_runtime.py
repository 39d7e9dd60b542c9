"""Graphs saved as ONNX and run by ONNX Runtime, where that is installed: an implementation that shares no code."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from glowtrain.errors import ModelError, VerificationError
from glowtrain.graph import Graph, Sample, Value
from glowtrain.onnx_io import save
from glowtrain.ops.pooling.pooling import Pool
from glowtrain.ops.resample.resize import Resize
from glowtrain.ops.sequence.recurrent import LSTM
from glowtrain.ops.signal.fourier import DFT
from glowtrain.types import Array
from glowtrain.verification.exact import Arrays

FATAL = 4
"""ONNX Runtime's level of messages: it is told to keep quiet about what it lacks."""
SLACK = 4.0
"""How many times the error that rounding explains it may have: its transforms and means are less accurate than sums."""
IR_VERSION = 10
"""ONNX's file version: one that every ONNX Runtime since 2024 reads."""

OTHERS = ("com.microsoft", "ai.onnx.ml", "ai.onnx.preview.training")
"""Domains that are not compared: their operators are ONNX Runtime's own, or have no gradients there."""
DIFFERENT = {
    "Dropout": "it draws other random numbers",
    "InstanceNormalization": "it is less accurate where the variance is small",
    "MaxUnpool": "it counts positions in output_shape, not in the shape that the window implies",
    "Squeeze": "it takes empty axes for all axes",
    "TopK": "the order is its own where sorted is 0",
    "glowtrain.Selection": "the order is its own where sorted is 0",
}
"""Operators that are not compared, each with the reason."""


def _spectrum_of_another_length(sample: Sample) -> bool:
    operator, spectrum = sample.operator, sample.inputs[0]
    assert isinstance(operator, DFT)
    assert spectrum is not None
    if not (operator.inverse and operator.onesided and operator.dft_length):
        return False
    return bool(spectrum.shape[operator.axis] != operator.dft_length // 2 + 1)


def _window_short_of_the_end(sample: Sample) -> bool:
    operator, x = sample.operator, sample.inputs[0]
    assert isinstance(operator, Pool)
    if operator.auto_pad != "SAME_UPPER":
        return False
    return any((axis.out - 1) * axis.stride + axis.width < axis.extent - 1 for axis in operator.geometry(x).axes)


def _other_coordinates(sample: Sample) -> bool:
    operator, x = sample.operator, sample.inputs[0]
    assert isinstance(operator, Resize)
    assert x is not None
    axes = range(x.ndim) if operator.axes is None else operator.axes
    extents = [x.shape[axis] for axis in axes]
    scaled = [n * scale for n, scale in zip(extents, operator.scales or (), strict=False)] or operator.sizes or ()
    if operator.coordinate_transformation_mode == "tf_crop_and_resize":
        return any(int(size) == n for n, size in zip(extents, scaled, strict=True))
    return operator.coordinate_transformation_mode == "align_corners" and any(abs(n - round(n)) > 1e-6 for n in scaled)


def _unclipped_state(sample: Sample) -> bool:
    operator = sample.operator
    assert isinstance(operator, LSTM)
    last = (operator.activations or operator.functions)[2 :: len(operator.functions)]
    return operator.clip is not None and any(name.lower() not in _LEVEL for name in last)


_LEVEL = ("tanh", "sigmoid", "scaledtanh", "hardsigmoid")
"""Activations that are level where a clip cuts off."""
_CORNERS = "it aligns corners of rounded extents, and takes axes that keep their extent whole, whatever the region"
_PADS = "where strides pass over the last elements, SAME_UPPER cuts the input in front, by pads below 0"
IN_PART: dict[str, tuple[str, Callable[[Sample], bool]]] = {
    "DFT": (
        "it takes other bins than NumPy for a real signal whose spectrum has not dft_length / 2 + 1 of them",
        _spectrum_of_another_length,
    ),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), (_PADS, _window_short_of_the_end)),
    "LSTM": ("it does not clip the cell state on its way to the last activation", _unclipped_state),
    "Resize": (_CORNERS, _other_coordinates),
}
"""Operators of which some uses are not compared, each with the reason."""


def comparable(sample: Sample) -> bool:
    """Whether ONNX Runtime means the same by an operator at these operands.

    Without elements it does not say: some of its kernels divide by zero then, or never return.
    """
    operator = sample.operator
    if any(array is not None and not array.size for array in sample.inputs):
        return False
    if operator.random or operator.domain in OTHERS or operator.key() in DIFFERENT:
        return False
    return operator.key() not in IN_PART or not IN_PART[operator.key()][1](sample)


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
