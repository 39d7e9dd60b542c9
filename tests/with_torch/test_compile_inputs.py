"""Inputs of torch.compile: layouts, types, shapes that change, tensors that overlap or are changed in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled import close, compiled, pair, ramp, same_gradients
from eager import net
from torch import nn
from torch.nn import functional as F

from glowtrain.torch.dynamo.backend import CapturedFunction

pytestmark = pytest.mark.usefixtures("nothing_falls_back")


@pytest.mark.parametrize(
    "x",
    [
        ramp(6, 4).t(), ramp(1, 6).expand(4, 6), ramp(8, 6)[::2], ramp(4, 7)[:, 1:], ramp(0, 6), ramp(6),
        ramp(2, 3, 6).transpose(0, 1),
    ],
    ids=["transposed", "expanded", "strided", "at an odd address", "empty", "one row", "three axes"],
)  # fmt: skip
def test_inputs_of_all_kinds(x: torch.Tensor) -> None:
    eager, ours, other = pair(net())
    results, slopes = [], []
    for module in (eager, ours):
        given = x.detach().requires_grad_()
        results.append(module(given))
        results[-1].square().sum().backward()
        slopes.append(given.grad)
    close(results[1], results[0])
    close(slopes[1], slopes[0])
    same_gradients(other, eager)


def test_scalars() -> None:
    found = []
    for function in (compiled(lambda x, y: x * y.exp()), lambda x, y: x * y.exp()):
        x, y = torch.tensor(1.5, requires_grad=True), torch.tensor(0.5, requires_grad=True)
        function(x, y).backward()
        found.append(torch.stack([x.grad, y.grad]))
    close(*found)


def test_channels_last() -> None:
    eager, ours, other = pair(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last))
    for module in (eager, ours):
        module(ramp(2, 3, 8, 8).to(memory_format=torch.channels_last)).square().sum().backward()
    same_gradients(other, eager)


def test_bfloat16() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(torch.bfloat16))
    for module in (eager, ours):
        module(ramp(4, 6).to(torch.bfloat16)).float().square().sum().backward()
    for mine, theirs in zip(other.parameters(), eager.parameters(), strict=True):
        close(mine.grad, theirs.grad, 0.03)


def test_tensors_that_are_the_negative_of_their_memory() -> None:
    """As the imaginary part of a conjugate is: arguments, parameters and cotangents."""
    imaginary = torch.complex(ramp(4, 6), ramp(4, 6).flip(0)).conj().imag
    assert imaginary.is_neg()
    eager, ours, _ = pair(nn.Linear(6, 2))
    for x in (ramp(4, 6), imaginary, torch._neg_view(ramp(4, 6))):
        close(ours(x), eager(x))
    eager.weight = nn.Parameter(torch._neg_view(ramp(2, 6)))
    leaves = [torch._neg_view(ramp(4, 6)).requires_grad_() for _ in range(2)]
    for module, x in zip((eager, compiled(eager)), leaves, strict=True):
        module(x).backward(torch._neg_view(ramp(4, 2)))
    close(leaves[1].grad, leaves[0].grad)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, at: x[at], lambda x, at: F.embedding(at, x), lambda x, at: x.index_select(0, at),
        lambda x, at: x.gather(0, at[:, None]), lambda x, at: x.scatter(0, at[:, None], 2.0),
        lambda x, at: x.index_add(0, at, x[:2]), lambda x, at: F.cross_entropy(x[:2], at),
    ],
    ids=["index", "embedding", "index_select", "gather", "scatter", "index_add", "cross_entropy"],
)  # fmt: skip
@pytest.mark.parametrize("wrong", [-1, 4])
def test_indices_that_pytorch_refuses(function: Callable[..., torch.Tensor], wrong: int) -> None:
    """And those from the end that it takes."""
    ours, x, at = compiled(function), ramp(4, 4), torch.tensor([1, 2])
    close(ours(x, at), function(x, at))
    try:
        expected = function(x, at - at + wrong)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error), match=r"out of (bounds|range)"):
            ours(x, at - at + wrong)
    else:
        close(ours(x, at - at + wrong), expected)
    close(ours(x, at), function(x, at))


# --- tensors that overlap or are changed in place --------------------------------------------------------------------


def test_the_same_tensor_twice_and_overlapping_ones() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y.exp()).sum()

    ours = compiled(function)
    x = ramp(8)
    for one, two in ((x, x), (x[:6], x[2:]), (x[:6], x[:6])):
        close(ours(one, two), function(one, two))


def test_inputs_changed_in_place() -> None:
    def function(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        x = x * 2
        x[1:] += total[1:]
        return x

    ours = compiled(function)
    totals = torch.zeros(5), torch.zeros(5)
    for _ in range(2):
        close(ours(ramp(5), totals[0]), function(ramp(5), totals[1]))
    close(*totals)


@pytest.mark.filterwarnings("ignore::glowtrain.torch.dynamo.backend.FallbackWarning")
def test_overlapping_inputs_changed_in_place() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    memory = torch.zeros(6), torch.zeros(6)
    ours = compiled(function)
    for first in (False, True):
        results = [
            call(each[:4].clone(), each[2:].clone()) if not first else call(each[:4], each[2:])
            for call, each in zip((ours, function), memory, strict=True)
        ]
        close(*results)
    close(*memory)


def test_changed_input_that_the_gradient_reads() -> None:
    """Its value from before is what counts."""

    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = x * scale
        scale.mul_(2)
        return y.sum()

    found = []
    for each in (compiled(function), function):
        x, scale = ramp(5).requires_grad_(), ramp(5) + 2
        if each is function:  # eager PyTorch refuses: it would read the new value
            with pytest.raises(RuntimeError, match="inplace"):
                each(x, scale).backward()
            found.append(ramp(5) + 2)
        else:
            each(x, scale).backward()
            found.append(x.grad)
    close(*found)


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_data_dependent_shapes_split_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.exp()[x > 0] * 2).sum()

    found = []
    for each in (compiled(function), function):
        x = ramp(9).requires_grad_()
        each(x).backward()
        found.append(x.grad)
    close(*found)


def test_many_shapes_are_one_graph_and_bounded_memory(
    captured: list[CapturedFunction], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glowtrain.torch.dynamo.backend.SPECIALISATIONS", 3)
    eager, ours, _ = pair(nn.Sequential(nn.Linear(3, 4), nn.Tanh()))
    for size in range(2, 8):
        with torch.no_grad():
            close(ours(ramp(size, 3)), eager(ramp(size, 3)))
    assert len(captured) == 2  # the first shape, and all others
    assert len(captured[-1]._kept) == 3


def test_shapes_with_gradients() -> None:
    eager, ours, other = pair(net())
    for size in (2, 5, 3, 5, 1, 0):
        for module in (eager, ours):
            module(ramp(size, 6)).square().sum().backward()
    same_gradients(other, eager)
