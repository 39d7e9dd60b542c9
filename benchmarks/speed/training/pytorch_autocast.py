"""PyTorch eager under ``torch.autocast`` in bf16, images channels last, with its fused optimizers in f32."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.speed.prepared import Prepared
from benchmarks.speed.training.pytorch import TorchStep
from benchmarks.speed.training.rows import TrainingRow
from benchmarks.speed.turns import Step


class AutocastStep(TorchStep):
    """The forward pass and the loss under autocast, as its documentation asks for; the rest as in f32."""

    def __init__(self, row: TrainingRow, prepared: Prepared) -> None:
        super().__init__(row, prepared)
        if next(iter(self.batches[0].values())).dim() == 4:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a batch."""
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(batch)


def make(row: TrainingRow, prepared: Prepared, cores: int, cache: Path) -> Step:
    """The step, on ``cores`` threads. It has nothing to keep in a cache."""
    torch.set_num_threads(cores)
    return AutocastStep(row, prepared)
