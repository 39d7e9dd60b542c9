"""Export of a PyTorch module to ONNX bytes, through either of PyTorch's exporters.

`dynamo` is the default of `torch.onnx.export` since 2.9 (torch.export and onnxscript); `legacy` is the TorchScript
tracer. Weights are always inside the returned bytes, never in a file of external data.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Literal

import numpy as np
import onnx
import torch
from torch import Tensor, nn

Exporter = Literal["dynamo", "legacy"]
INPUT, OUTPUT, BATCH = "x", "logits", "batch"


@contextlib.contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Sets training or inference mode; restores the old mode and the buffers, which a trace updates."""
    before = module.training
    state = {name: value.clone() for name, value in module.state_dict().items()}
    module.train(training)
    try:
        yield
    finally:
        module.load_state_dict(state)
        module.train(before)


def _dynamo(module: nn.Module, example: Tensor, opset: int, dynamic_batch: bool, optimize: bool) -> bytes:
    """Through torch.export. A batch of one would be specialised, so a dynamic batch needs an example of two or more."""
    shapes = ({0: torch.export.Dim(BATCH)},) if dynamic_batch else None
    program = torch.onnx.export(
        module,
        (example,),
        None,
        dynamo=True,
        opset_version=opset,
        dynamic_shapes=shapes,
        input_names=[INPUT],
        output_names=[OUTPUT],
        optimize=optimize,
        external_data=False,
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program for dynamo=True")
    data: bytes = program.model_proto.SerializeToString()
    return data


def _legacy(module: nn.Module, example: Tensor, opset: int, dynamic_batch: bool, training: bool) -> bytes:
    """Through the TorchScript tracer, which folds Conv and BatchNorm unless the training mode is asked for."""
    before = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        (example,),
        buffer,  # type: ignore[arg-type]
        dynamo=False,
        opset_version=opset,
        dynamic_axes={INPUT: {0: BATCH}, OUTPUT: {0: BATCH}} if dynamic_batch else None,
        input_names=[INPUT],
        output_names=[OUTPUT],
        training=mode,
        do_constant_folding=not training,
    )
    return _with_values(buffer.getvalue(), before) if training else buffer.getvalue()


def _with_values(model: bytes, state: dict[str, np.ndarray]) -> bytes:
    """Puts back the running statistics, which the tracer's own training step had moved before they were written."""
    proto = onnx.load_from_string(model)
    for initializer in proto.graph.initializer:
        if initializer.name in state:
            initializer.CopyFrom(onnx.numpy_helper.from_array(state[initializer.name], initializer.name))
    data: bytes = proto.SerializeToString()
    return data


def export(
    module: nn.Module,
    example: Tensor,
    exporter: Exporter = "dynamo",
    opset: int = 18,
    training: bool = False,
    dynamic_batch: bool = False,
    optimize: bool = True,
) -> bytes:
    """A serialized ModelProto with the input `x` and the output `logits`.

    `training` exports in training mode (BatchNorm and Dropout as the exporter writes them there). `dynamic_batch`
    names the first axis of `x` `batch`. `optimize` concerns only the dynamo exporter. What torch raises is passed on.
    """
    with warnings.catch_warnings(), _mode(module, training):
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            return _dynamo(module, example, opset, dynamic_batch, optimize)
        return _legacy(module, example, opset, dynamic_batch, training)
