"""Glowtrain: a compiled function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import glowtrain as gt
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.turns import Step


class CompiledCall(Step):
    """The model of a file."""

    def __init__(self, prepared: Prepared, backend: gt.Cpu) -> None:
        self.feeds = prepared.batches[0]
        model = gt.load(prepared.model)
        self.function = gt.compile(gt.quantization.dynamic(model) if prepared.dynamic else model, backend)

    def __call__(self, i: int) -> list[Any]:
        return list(self.function(self.feeds).values())


def make(prepared: Prepared, cores: int, cache: Path) -> Step:
    """The call, on ``cores`` threads; compiled code is kept in ``cache``."""
    return CompiledCall(prepared, gt.Cpu(cache=cache, threads=cores))
