"""Training as PyTorch does it, for comparisons: a network, its batches, steps, and what is left of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

Batch = Sequence[torch.Tensor]
Loss = Callable[..., torch.Tensor]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))


def data(count: int, size: int = 16, seed: int = 0) -> list[Batch]:
    numbers = torch.Generator().manual_seed(seed)
    shapes = (size, 6), (size,)
    return [
        (torch.randn(*shapes[0], generator=numbers), torch.randint(0, 3, shapes[1], generator=numbers))
        for _ in range(count)
    ]


def eager_step(
    module: nn.Module, loss_fn: Loss, optimizer: torch.optim.Optimizer, batch: Batch,
    clip_norm: float | None = None, clip_value: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """One step; the last tensor of the batch is the target."""
    optimizer.zero_grad()
    loss = loss_fn(module(*batch[:-1]), batch[-1])
    loss.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if clip_value is not None:
        nn.utils.clip_grad_value_(parameters, clip_value)
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, clip_norm)
    optimizer.step()
    return loss.detach()


def twins(
    module: nn.Module, make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module, torch.optim.Optimizer]:
    """A module and its optimizer, and a copy of both."""
    other = copy.deepcopy(module)
    return module, make(module.parameters()), other, make(other.parameters())


def differences(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of tensors of equal names."""
    assert one.keys() == other.keys()
    return max(
        (float((a.double() - other[name].double()).abs().max()) for name, a in one.items() if a.numel()), default=0.0
    )


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All that an optimizer keeps, by the number of the parameter and its own name."""
    kept = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, entry in kept.items()
        for name, value in entry.items()
        if value is not None
    }
