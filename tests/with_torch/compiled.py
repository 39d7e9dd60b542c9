"""Modules compiled by torch.compile beside the same ones in eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from glowtrain.torch.dynamo.backend import glowtrain


def ramp(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)


def compiled(module: nn.Module | Callable[..., Any], **options: Any) -> Any:
    """What torch.compile makes of it, by the backend itself: nothing needs to be installed for it."""
    return torch.compile(module, backend=glowtrain, **options)


def pair(module: nn.Module) -> tuple[nn.Module, Any, nn.Module]:
    """The module, a compiled copy, and the copy."""
    other = copy.deepcopy(module)
    return module, compiled(other), other


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Equal up to ``tolerance``, of the largest element where that is more than 1."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    size = float(theirs.detach().abs().max()) if theirs.numel() else 0.0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * max(size, 1.0))


def same_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    """Gradients and buffers of two modules."""
    parameters = zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
    for (name, mine), (_, other) in parameters:
        assert (mine.grad is None) == (other.grad is None), name
        if other.grad is not None:
            close(mine.grad, other.grad)
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        close(mine, other)
