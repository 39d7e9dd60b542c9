"""Memory and torch.compile: residuals belong to their call, results are their own memory or views as eager ones are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled import close, compiled, pair, ramp, same_gradients
from eager import net
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_falls_back")


def test_two_forwards_before_two_backwards() -> None:
    eager, ours, other = pair(net())
    for module in (eager, ours):
        one, two = module(ramp(4, 6)), module(2 * ramp(4, 6))
        two.square().sum().backward()
        one.square().sum().backward()
    same_gradients(other, eager)


def test_a_module_of_its_own_output() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 6), nn.Sigmoid()))
    for module in (eager, ours):
        module(module(module(ramp(4, 6)))).sum().backward()
    same_gradients(other, eager)


def test_results_stay_when_called_again() -> None:
    _, ours, _ = pair(net())
    first = ours(ramp(4, 6))
    before = first.detach().clone()
    again = ours(ramp(4, 6) + 1)
    assert torch.equal(first, before)
    assert first.data_ptr() != again.data_ptr()


def test_gradients_stay_when_called_again() -> None:
    _, ours, other = pair(net())
    ours(ramp(4, 6)).sum().backward()
    kept = {name: parameter.grad for name, parameter in other.named_parameters()}
    before = {name: grad.clone() for name, grad in kept.items() if grad is not None}
    other.zero_grad()
    ours(ramp(4, 6) + 1).square().sum().backward()
    assert all(torch.equal(kept[name], before[name]) for name in before)


# --- results that are views ------------------------------------------------------------------------------------------


class Views(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x.exp()
        unsaid = *x.unsafe_chunk(2), nn.functional.dropout1d(x, training=False)
        return x.t(), x[1:], h, h.t(), h.view(-1), h.detach(), x.detach().unbind(0)[0], *unsaid


def test_views_of_arguments_and_of_each_other() -> None:
    x = ramp(4, 6).requires_grad_()
    ours, theirs = compiled(Views())(x), Views()(x)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        assert mine.stride() == other.stride()
        assert mine.requires_grad == other.requires_grad
    for one, two in ((0, 1), (2, 3), (2, 4), (2, 5), (0, 7), (0, 8), (0, 9)):
        assert ours[one].untyped_storage().data_ptr() == ours[two].untyped_storage().data_ptr()
    assert ours[0].data_ptr() == x.data_ptr()


def test_gradients_through_views() -> None:
    gradients = []
    for function in (compiled(Views()), Views()):
        x = ramp(4, 6).requires_grad_()
        results = function(x)
        sum((result * ramp(*result.shape)).sum() for result in results).backward()
        gradients.append(x.grad)
    close(*gradients)


class TwiceTheSame(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y


def test_the_same_result_twice() -> None:
    first, second = compiled(TwiceTheSame())(ramp(3))
    assert first.data_ptr() == second.data_ptr()


# --- versions --------------------------------------------------------------------------------------------------------


def test_an_update_between_forward_and_backward_is_noticed() -> None:
    _, ours, other = pair(net())
    loss = ours(ramp(4, 6)).square().sum()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_update_of_what_no_gradient_reads_is_none_of_our_business() -> None:
    eager, ours, other = pair(nn.Linear(6, 3))
    for module, plain in ((eager, eager), (ours, other)):
        loss = module(ramp(4, 6)).square().sum()
        with torch.no_grad():
            plain.bias.add_(1)
        loss.backward()
    same_gradients(other, eager)


def test_running_statistics_are_the_modules_own() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    norm = other[1]
    address, version = norm.running_mean.data_ptr(), norm.running_mean._version
    for number in range(3):
        for module in (eager, ours):
            (module(ramp(8, 6) + number) * ramp(8, 4)).square().sum().backward()
    same_gradients(other, eager)
    assert int(norm.num_batches_tracked) == 3
    assert norm.running_mean.data_ptr() == address
    assert norm.running_mean._version > version


# --- what a trace alone does not tell ---------------------------------------------------------------------------------


def copied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.contiguous()


def viewed(x: torch.Tensor, y: torch.Tensor) -> Any:
    return y.view_as(y), y.type_as(y), y * 2


def view_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = y[None]
    z.tanh_()
    return z


@pytest.mark.filterwarnings("ignore::glowtrain.torch.dynamo.backend.FallbackWarning")
@pytest.mark.parametrize("function", [copied, viewed, view_written])
def test_results_share_memory_as_in_eager_pytorch(function: Callable[..., Any]) -> None:
    x, y = ramp(4, 3).t(), ramp(3)
    results = compiled(function)(x, y)
    for result in results if isinstance(results, tuple) else (results,):
        result.mul_(3)
    others = ramp(4, 3).t(), ramp(3)
    expected = function(*others)
    for result in expected if isinstance(expected, tuple) else (expected,):
        result.mul_(3)
    close(x, others[0])
    close(y, others[1])


@pytest.mark.filterwarnings("default::glowtrain.torch.dynamo.backend.FallbackWarning")
def test_what_requires_a_gradient_is_written_to_a_tensor_that_does_not() -> None:
    """The tensor is on the tape from then on."""
    found = []
    for function in (compiled(lambda x, total: total.add_(x * 2)), lambda x, total: total.add_(x * 2)):
        x, total = ramp(3).requires_grad_(), torch.ones(3)
        result = function(x, total)
        (result.square() + total).sum().backward()
        found.append(x.grad)
    close(*found)


@pytest.mark.filterwarnings("default::glowtrain.torch.dynamo.backend.FallbackWarning")
def test_gradients_that_a_call_without_any_turns_on() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return x.exp()

    x = ramp(3).requires_grad_()
    with torch.no_grad():
        result = compiled(function)(x)
    result.sum().backward()
    close(x.grad, ramp(3).exp())


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", ramp(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory.add_(1)
        return x * self.memory


@pytest.mark.filterwarnings("default::glowtrain.torch.dynamo.backend.FallbackWarning")
def test_an_argument_that_is_a_buffer_which_is_changed() -> None:
    eager, ours, other = pair(Memory())
    for module, plain in ((eager, eager), (ours, other)):
        module(ramp(3))
        plain.results = [module(plain.memory.detach()[::2].repeat_interleave(2)[:3]), module(plain.memory.detach())]
    for mine, theirs in zip(other.results, eager.results, strict=True):
        close(mine, theirs)
