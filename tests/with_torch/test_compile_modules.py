"""torch.compile(backend="glowtrain"): modules of thirty kinds have the results and gradients of eager ones."""

from __future__ import annotations

import warnings

import pytest
import torch
from compiled import close, pair, same_gradients
from torch import nn

from benchmarks.torch_zoo import ZOO
from glowtrain.torch.dynamo.backend import FallbackWarning

STEPS = 2


@pytest.mark.parametrize("name", ZOO)
def test_module(name: str) -> None:
    case = ZOO[name]
    eager, compiled, other = pair(case.make())
    inputs = case.inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(STEPS):
            loss = case.loss(compiled, *inputs)
            loss.backward()
            if case.random:  # other numbers than PyTorch's: see test_dropout_*
                assert all(parameter.grad is not None for parameter in other.parameters())
                continue
            expected = case.loss(eager, *inputs)
            expected.backward()
            close(loss, expected)
    if not case.random:
        same_gradients(other, eager)


@pytest.mark.parametrize("name", ["residual, batch norm", "gpt, tied", "lstm", "graph network", "dropout"])
def test_evaluation(name: str) -> None:
    case = ZOO[name]
    eager, compiled, _ = pair(case.make().eval())
    inputs = case.inputs()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        close(case.loss(compiled, *inputs), case.loss(eager, *inputs))


def test_there_are_thirty_of_different_kinds() -> None:
    assert len(ZOO) >= 30
    assert len({tuple(type(part).__name__ for part in case.make().modules()) for case in ZOO.values()}) >= 25


def test_training_by_an_optimizer_of_pytorch() -> None:
    eager, compiled, other = pair(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)))
    optimizers = [torch.optim.AdamW(module.parameters(), 1e-2) for module in (eager, other)]
    numbers = torch.Generator().manual_seed(1)
    for _ in range(20):
        x, y = torch.randn(16, 6, generator=numbers), torch.randint(0, 3, (16,), generator=numbers)
        losses = []
        for module, optimizer in zip((eager, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(nn.functional.cross_entropy(module(x), y))
            losses[-1].backward()
            optimizer.step()
        close(losses[1], losses[0])
