"""PyTorch eager, with its fused optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.models import cross_entropy
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.training import modules, rows
from benchmarks.speed.training.rows import TrainingRow
from benchmarks.speed.turns import Step


class TorchStep(Step):
    """The module of a row, trained."""

    def __init__(self, row: TrainingRow, prepared: Prepared) -> None:
        self.row = row
        self.module = modules.build(row)
        self.batches = [{name: torch.from_numpy(a) for name, a in batch.items()} for batch in prepared.batches]
        self.optimizer = optimizer(row, self.module.parameters())

    def __call__(self, i: int) -> float:
        if self.row.calls > 1:
            return sum(map(self._step, self.batches)) / len(self.batches)
        return self._step(self.batches[i % len(self.batches)])

    def _step(self, batch: dict[str, Tensor]) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a batch."""
        output: Tensor = self.module(batch["x"])
        match self.row.loss:
            case "classes":
                return cross_entropy(output, batch["labels"])
            case "squares":
                return functional.mse_loss(output, batch["labels"])
        return output


def optimizer(row: TrainingRow, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The row's optimizer, as one kernel for each tensor."""
    match row.optimizer:
        case "adam":
            return torch.optim.Adam(parameters, lr=rows.ADAM_RATE, fused=True)
        case "momentum":
            return torch.optim.SGD(parameters, lr=rows.SGD_RATE, momentum=rows.MOMENTUM, fused=True)
    return torch.optim.SGD(parameters, lr=rows.PLAIN_RATE, fused=True)


def make(row: TrainingRow, prepared: Prepared, cores: int, cache: Path) -> Step:
    """The step, on ``cores`` threads. It has nothing to keep in a cache."""
    torch.set_num_threads(cores)
    return TorchStep(row, prepared)
