"""ONNX Runtime's processor provider, as it is by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.speed.prepared import Prepared
from benchmarks.speed.turns import Step


class SessionCall(Step):
    """The model of a file in a session."""

    def __init__(self, prepared: Prepared, cores: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = cores, 1, 3
        self.feeds = prepared.batches[0]
        self.session = onnxruntime.InferenceSession(prepared.model, options, providers=["CPUExecutionProvider"])

    def __call__(self, i: int) -> list[Any]:
        results: list[Any] = self.session.run(None, self.feeds)
        return results


def make(prepared: Prepared, cores: int, cache: Path) -> Step:
    """The call, on ``cores`` threads. It keeps nothing in a cache."""
    return SessionCall(prepared, cores)
