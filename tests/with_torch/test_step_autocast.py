"""Steps under autocast, around them or within the loss: the operators that PyTorch casts are cast."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from eager import twins
from torch import nn
from torch.nn.functional import cross_entropy, silu
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import glowtrain.torch as gtt

X, Y = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 2, 1, 0])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.attention(x, x, x)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(x)[0].mean(1))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(5, 6, 3, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(silu(self.norm(self.convolution(x))).mean(2))


class PartlyWide(nn.Module):
    """A weight that is used twice, and a part that is computed in f32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(self.first(x).tanh()).mean(1)
        with torch.autocast("cpu", enabled=False):
            return self.head(x.float())


MODULES = [Attention, Recurrent, Convolution, PartlyWide]


def both(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return cross_entropy(scores, labels) + scores.softmax(-1).square().mean(), scores


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("make", MODULES)
def test_what_pytorch_casts_is_cast(make: Any, within: bool, dtype: torch.dtype) -> None:
    def loss_fn(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype) if within else nullcontext():
            return both(module(x), y)

    module, optimizer, other, theirs = twins(make(), lambda ps: torch.optim.SGD(ps, 0.1))
    step = gtt.compile_step(module, loss_fn, optimizer, targets=0, gradients=True)
    for _ in range(3):
        theirs.zero_grad()
        with nullcontext() if within else torch.autocast("cpu", dtype):
            ours, expected = step(X, Y), loss_fn(other, X, Y)
        expected[0].backward()
        theirs.step()
        near = {"atol": 5e-3, "rtol": 2e-2} if dtype is torch.bfloat16 else {"atol": 1e-3, "rtol": 3e-3}
        torch.testing.assert_close(ours, tuple(each.detach() for each in expected), **near)
        for parameter, wanted in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, wanted.grad, **near)


def test_each_precision_has_a_step_of_its_own() -> None:
    module = nn.Linear(8, 3)
    step = gtt.compile_step(module, lambda y, t: (y.mean() + 0 * t, y), torch.optim.SGD(module.parameters(), 0.0))
    found = []
    for dtype in (None, torch.bfloat16, torch.float16, None, torch.bfloat16):
        with torch.autocast("cpu", dtype) if dtype else nullcontext():
            found.append(step(X, torch.zeros(()))[1].dtype)
    assert found == [torch.float32, torch.bfloat16, torch.float16, torch.float32, torch.bfloat16]
    assert len(step._compiled) == 3


@pytest.mark.parametrize("cached", [True, False])
def test_a_trace_leaves_autocast_as_it_was(cached: bool) -> None:
    """Eager calls in the same context do not meet what a trace has cast."""
    module, optimizer, other, _ = twins(nn.Linear(8, 3), lambda ps: torch.optim.SGD(ps, 0.0))
    step = gtt.compile_step(module, lambda y, t: (y - t).square().mean(), optimizer)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
        step(X, torch.zeros(()))
        assert torch.is_autocast_cache_enabled() == cached
        assert torch.equal(module(X), other(X))


class Read(nn.Module):
    """Recurrent layers over what autocast has cast, packed or not."""

    def __init__(self, kind: type[nn.RNNBase], packed: bool) -> None:
        super().__init__()
        self.embed, self.layer, self.packed = nn.Linear(8, 8), kind(8, 4, batch_first=True), packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.packed:
            return self.layer(x)[0]
        rows = pack_padded_sequence(self.embed(x), torch.tensor([2, 5, 1, 4]), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(rows)[0], batch_first=True)[0]


@pytest.mark.parametrize(("kind", "packed"), [(nn.RNN, False), (nn.RNN, True), (nn.GRU, True), (nn.LSTM, True)])
def test_recurrent_layers(kind: type[nn.RNNBase], packed: bool) -> None:
    module, optimizer, twin, _ = twins(Read(kind, packed), lambda ps: torch.optim.SGD(ps, 0.1))

    def loss(y: torch.Tensor, _: Any) -> tuple[torch.Tensor, ...]:
        return y.float().square().mean(), y

    step = gtt.compile_step(module, loss, optimizer)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = twin(X), step(X, Y)[1]
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.detach(), atol=0.02, rtol=0.02)
    loss(expected, Y)[0].backward()
    for mine, other in zip(module.parameters(), twin.parameters(), strict=True):
        gradient = torch.zeros_like(other) if other.grad is None else other.grad
        torch.testing.assert_close(mine, other.detach() - 0.1 * gradient, atol=1e-3, rtol=1e-2)
