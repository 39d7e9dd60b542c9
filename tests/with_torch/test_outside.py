"""Tensors of nobody's module that a loss reads: what becomes of them between steps counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from eager import differences, eager_step, twins
from torch import nn
from torch.nn.functional import mse_loss

import glowtrain.torch as gtt

Change = Callable[[torch.Tensor], None]


def replaced(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data * 2


def halved(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data * 0.5


def written(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


def written_through_data(tensor: torch.Tensor) -> None:
    tensor.data.mul_(2)


def written_by_numpy(tensor: torch.Tensor) -> None:
    tensor.numpy()[...] *= 2


def turned(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.flip(0).T.contiguous().T


def trained_alike(loss_fn: Any, outside: torch.Tensor, change: Change) -> gtt.CompiledStep:
    """Train by eager steps and compiled ones, with a change of what both read after each two."""
    module, optimizer, other, theirs = twins(nn.Linear(6, 3), lambda ps: torch.optim.SGD(ps, 0.05))
    step = gtt.compile_step(module, loss_fn, optimizer)
    numbers = torch.Generator().manual_seed(0)
    for number in range(8):
        x = torch.randn(5, 6, generator=numbers)
        assert float(step(x, x)) == pytest.approx(float(eager_step(other, loss_fn, theirs, (x, x))), rel=1e-4)
        if number % 2:
            change(outside)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4
    return step


@pytest.mark.parametrize("change", [replaced, written, written_through_data, turned])
def test_a_teachers_weights(change: Change) -> None:
    teacher = nn.Linear(6, 3).requires_grad_(requires_grad=False)
    trained_alike(lambda y, x: mse_loss(y, torch.tanh(teacher(x))), teacher.weight, change)


@pytest.mark.parametrize("change", [
    lambda teacher: setattr(teacher[0], "weight", nn.Parameter(2 * teacher[0].weight.detach())),
    lambda teacher: teacher.load_state_dict({k: 2 * v for k, v in teacher.state_dict().items()}, assign=True),
    lambda teacher: teacher.__setitem__(1, nn.ReLU()),
    lambda teacher: teacher.train(not teacher.training),
    lambda teacher: teacher[0].register_forward_hook(lambda module, inputs, result: 2 * result),
], ids=["weight", "state", "part", "mode", "hook"])  # fmt: skip
def test_a_teacher_that_is_not_what_it_was(change: Callable[[nn.Module], Any]) -> None:
    teacher = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.BatchNorm1d(3)).eval().requires_grad_(requires_grad=False)
    teacher[2].track_running_stats = False
    torch.nn.init.normal_(teacher[2].running_mean)
    module, optimizer, other, theirs = twins(nn.Linear(6, 3), lambda ps: torch.optim.SGD(ps, 0.05))
    loss_fn = lambda y, x: mse_loss(y, teacher(x))  # noqa: E731
    step = gtt.compile_step(module, loss_fn, optimizer)
    for number, x in enumerate(torch.randn(6, 5, 6)):
        if number == 3:
            change(teacher)
        assert float(step(x, x)) == pytest.approx(float(eager_step(other, loss_fn, theirs, (x, x))), rel=1e-4)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4


class Scaled(nn.Module):
    """It has a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.scale = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def test_a_tensor_that_is_put_in_the_place_of_an_attribute() -> None:
    module, optimizer, other, theirs = twins(Scaled(), lambda ps: torch.optim.SGD(ps, 0.05))
    step = gtt.compile_step(module, mse_loss, optimizer)
    for number, x in enumerate(torch.randn(6, 5, 6)):
        module.scale = other.scale = torch.full((3,), 1.0 + number // 3)
        batch = x, x[:, :3]
        assert float(step(*batch)) == pytest.approx(float(eager_step(other, mse_loss, theirs, batch)), rel=1e-4)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4


def test_a_teacher_that_is_replaced_bit_by_bit_is_compiled_once() -> None:
    teacher = nn.Linear(6, 3).requires_grad_(requires_grad=False)
    step = trained_alike(lambda y, x: mse_loss(y, teacher(x)), teacher.weight, replaced)
    (compiled,) = step._compiled.values()
    trained_again = step(torch.ones(5, 6), torch.ones(5, 6))
    assert float(trained_again) > 0
    assert list(step._compiled.values()) == [compiled]


def test_weights_that_are_put_to_and_fro_between_shapes() -> None:
    """As where a running mean of weights is read now and then."""
    weights, both = torch.ones(3), (torch.full((3,), 2.0), torch.full((3,), 3.0))
    loss_fn = lambda y, x: mse_loss(y * weights, x[:, :3])  # noqa: E731
    module, optimizer, other, theirs = twins(nn.Linear(6, 3), lambda ps: torch.optim.SGD(ps, 0.01))
    step = gtt.compile_step(module, loss_fn, optimizer)
    for at, size in ((0, 4), (0, 4), (1, 5), (0, 4), (1, 5), (1, 4), (0, 5), (0, 4), (1, 4), (1, 5)):
        weights.data = both[at]
        x = torch.ones(size, 6)
        assert float(step(x, x)) == pytest.approx(float(eager_step(other, loss_fn, theirs, (x, x))), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


@pytest.mark.parametrize("change", [replaced, written, written_through_data])
def test_floats_that_do_not_lie_row_major(change: Change) -> None:
    matrix = torch.randn(3, 6).T
    trained_alike(lambda y, x: mse_loss(y, torch.tanh(x @ matrix)), matrix, change)


def test_the_memory_that_a_view_shows() -> None:
    whole = torch.randn(6, 6)
    half = whole[:, ::2]
    trained_alike(lambda y, x: mse_loss(y, torch.tanh(x @ half)), whole, written)


@pytest.mark.parametrize("change", [replaced, written, written_through_data, written_by_numpy])
def test_indices(change: Change) -> None:
    columns = torch.tensor([1, 0, 1])
    trained_alike(lambda y, x: mse_loss(y[:, columns % 3], x[:, columns % 6]), columns, change)


@pytest.mark.parametrize("count", [1, 8, 11])
def test_masks_of_any_size(count: int) -> None:
    """The last bytes, which make up no word, count as well; what is behind them does not."""
    flags = np.zeros(count + 4, bool)
    mask = torch.from_numpy(flags)[3 : 3 + count]
    module, x = nn.Linear(6, 3), torch.ones(5, 6)
    step = gtt.compile_step(
        module, lambda y, _: y.square().mean() * (1 + mask.sum()), torch.optim.SGD(module.parameters(), 0.0)
    )
    once = module(x).square().mean().item()
    for at in dict.fromkeys((3, 2 + count)):
        assert float(step(x, x)) == pytest.approx(once * (1 + int(mask.sum())), rel=1e-5)
        flags[at] = True
        assert float(step(x, x)) == pytest.approx(once * (1 + int(mask.sum())), rel=1e-5)
    (compiled,) = step._compiled.values()
    flags[[2, -1]] = True
    step(x, x)
    assert list(step._compiled.values()) == [compiled]


def test_several_ways_to_read() -> None:
    """By functions, operators, in lists, by keyword, as a view."""
    first, second, third = (nn.Parameter(torch.ones(3)) for _ in range(3))
    for parameter in (first, second, third):
        parameter.requires_grad_(requires_grad=False)

    def loss_of(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        several = torch.stack([first, second.view(3)]).sum(0).expand(y.shape)
        return mse_loss(input=y * first, target=several) + (y * torch.where(third > 0, third, -third)).mean()

    for outside in (first, second, third):
        trained_alike(loss_of, outside, halved)


def test_own_parameters_by_another_reference_are_trained() -> None:
    """A penalty on parameters that were listed before."""

    def trained(step_of: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        module = nn.Linear(6, 3)
        parameters = list(module.parameters())
        optimizer = torch.optim.SGD(parameters, 0.05)

        def penalized(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return mse_loss(y, target) + sum(parameter.square().sum() for parameter in parameters)

        step = step_of(module, penalized, optimizer)
        for _ in range(5):
            step(torch.ones(5, 6), torch.zeros(5, 3))
        return module.state_dict()

    def eager(module: nn.Module, loss: Any, optimizer: torch.optim.Optimizer) -> Any:
        return lambda *batch: eager_step(module, loss, optimizer, batch)

    assert differences(trained(gtt.compile_step), trained(eager)) < 1e-5
