"""OpenVINO on the processor, in f32: it would take bf16 for f32 by itself where the processor has it, and quantize rows
that are multiplied with weights of integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino

from benchmarks.speed.prepared import Prepared
from benchmarks.speed.turns import Step


class RequestCall(Step):
    """The model of a file in an inference request."""

    def __init__(self, prepared: Prepared, cores: int, cache: Path) -> None:
        self.feeds = prepared.batches[0]
        settings = {
            "INFERENCE_NUM_THREADS": cores,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "CACHE_DIR": str(cache),
            **({} if prepared.dynamic else {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}),
        }
        model = openvino.Core().compile_model(prepared.model, "CPU", settings)
        self.request, self.outputs = model.create_infer_request(), model.outputs

    def __call__(self, i: int) -> list[Any]:
        results = self.request.infer(self.feeds)
        return [np.asarray(results[output]) for output in self.outputs]


def make(prepared: Prepared, cores: int, cache: Path) -> Step:
    """The call, on ``cores`` threads; compiled models are kept in ``cache``."""
    return RequestCall(prepared, cores, cache)
