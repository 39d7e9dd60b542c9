"""Glowtrain with products in bf16."""

from __future__ import annotations

from pathlib import Path

import glowtrain as gt
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.training.compiled import CompiledStep
from benchmarks.speed.training.rows import TrainingRow
from benchmarks.speed.turns import Step


def make(row: TrainingRow, prepared: Prepared, cores: int, cache: Path) -> Step:
    """The step, as in f32. Raises :class:`ValueError` for a row without products."""
    return CompiledStep(row, prepared, gt.Cpu(cache=cache, threads=cores), precision="bf16")
