"""A compiled step works in the memory of PyTorch's tensors, wherever they begin and however they lie."""

from __future__ import annotations

import gc
import resource
import weakref
from pathlib import Path

import pytest
import torch
from eager import data, differences, eager_step, net, twins
from steps import Make, refusal
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import glowtrain.torch as gtt


def test_tensors_keep_their_addresses_and_versions_rise() -> None:
    module = nn.Sequential(net(), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(module.parameters())
    step = gtt.compile_step(module, cross_entropy, optimizer)
    addresses = [tensor.data_ptr() for tensor in module.state_dict().values()]
    for batch in data(3):
        versions = [parameter._version for parameter in module.parameters()]
        step(*batch)
        assert all(p._version > v for p, v in zip(module.parameters(), versions, strict=True))
    assert [tensor.data_ptr() for tensor in module.state_dict().values()] == addresses


def test_a_step_between_forward_and_backward_is_noticed() -> None:
    """PyTorch refuses to go back through parameters that were changed meanwhile."""
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
    (batch,) = data(1)
    loss = cross_entropy(module(batch[0]), batch[1])
    step(*batch)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_batches_in_any_layout() -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
    ((x, y),) = data(1)
    strided = x.T.contiguous().T
    assert not strided.is_contiguous()
    assert float(step(strided, y)) == float(step(x, y))
    assert float(step(x[:1].expand(16, 6), y)) == float(step(x[:1].repeat(16, 1), y))


def test_a_batch_that_is_the_negative_of_its_memory() -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
    ((x, y),) = data(1)
    negative = torch._neg_view(x)
    step(x, y)
    assert float(step(negative, y)) == float(step(negative.resolve_neg(), y)) != float(step(x, y))
    module[0].weight.data = torch._neg_view(module[0].weight.data)
    assert "'0.weight' is the negative of what lies in its memory" in refusal(lambda: step(x, y))


def test_memory_that_begins_anywhere() -> None:
    """Parameters, buffers and batches that are parts of other tensors, so at no multiple of a vector's size."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:]
        return memory.view(tensor.shape).copy_(tensor.detach())

    make: Make = lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9)  # noqa: E731
    convolutional = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.ReLU(), nn.Flatten(), nn.Linear(500, 3))
    module, optimizer, other, theirs = twins(convolutional, make)
    for parameter in module.parameters():
        parameter.data = moved(parameter)
        assert parameter.data_ptr() % 64
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for _ in range(4):
        batch = torch.randn(9, 3, 7, 7), torch.randint(0, 3, (9,))
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(moved(batch[0]), moved(batch[1]))) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_a_batch_may_be_a_parameter() -> None:
    make: Make = lambda ps: torch.optim.Adam(ps, 0.1)  # noqa: E731
    module, optimizer, other, theirs = twins(nn.Linear(6, 6), make)
    step = gtt.compile_step(module, mse_loss, optimizer)
    for _ in range(3):
        expected = eager_step(other, mse_loss, theirs, (other.weight.detach().clone(), torch.ones(6, 6)))
        loss = step(module.weight.detach(), torch.ones(6, 6))
        assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_a_step_that_nobody_has_is_gone() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = weakref.ref(gtt.compile_step(module, cross_entropy, optimizer))
    gc.collect()
    assert step() is None
    optimizer.load_state_dict(optimizer.state_dict())


def test_memory_stays_over_many_steps() -> None:
    def resident() -> int:
        """Bytes."""
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    module = nn.Linear(4, 1)
    step = gtt.compile_step(module, mse_loss, torch.optim.Adam(module.parameters(), 1e-3))
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    for _ in range(2_000):
        step(x, y)
    before = resident()
    for _ in range(20_000):
        step(x, y)
    assert resident() - before < 1 << 20
