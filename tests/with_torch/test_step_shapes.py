"""A compiled step is specialised for each shape and number that it meets; how many it keeps is bounded."""

from __future__ import annotations

import pytest
import torch
from eager import data, eager_step, net, twins
from steps import OPTIMIZERS
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import glowtrain.torch as gtt


def test_new_shapes() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for size in (16, 5, 1, 16, 7):
        for batch in data(2, size, seed=size):
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shapes_in_turns_are_compiled_once(name: str) -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, OPTIMIZERS[name](module.parameters()), backend="interpreter")
    batches = [data(1, size)[0] for size in (4, 5)]
    for batch in batches:
        step(*batch)
    before = list(step._compiled.values())
    for batch in batches * 2:
        step(*batch)
    assert set(step._compiled.values()) == set(before)


def test_shapes_are_bounded() -> None:
    module = nn.Linear(2, 1)
    step = gtt.compile_step(module, mse_loss, torch.optim.SGD(module.parameters(), 1e-3), backend="interpreter")
    for size in range(1, 60):
        step(torch.zeros(size, 2), torch.zeros(size, 1))
    assert len(step._compiled) == 32


def test_the_shape_that_was_used_longest_ago_goes_first() -> None:
    module = nn.Linear(2, 1)
    step = gtt.compile_step(module, mse_loss, torch.optim.SGD(module.parameters(), 1e-3), backend="interpreter")
    step(torch.zeros(7, 2), torch.zeros(7, 1))
    kept = step._for((torch.zeros(7, 2), torch.zeros(7, 1)))[0]
    for size in range(10, 50):
        step(torch.zeros(size, 2), torch.zeros(size, 1))
        step(torch.zeros(7, 2), torch.zeros(7, 1))
    assert step._for((torch.zeros(7, 2), torch.zeros(7, 1)))[0] is kept


def test_numbers_are_told_apart() -> None:
    module = nn.Linear(6, 3)

    def signed(scores: torch.Tensor, target: torch.Tensor, number: float) -> torch.Tensor:
        return cross_entropy(scores, target) + (1.0 if str(number).startswith("-") else 0.0)

    step = gtt.compile_step(module, signed, torch.optim.SGD(module.parameters(), 0.0), targets=2)
    ((x, y),) = data(1)
    assert float(step(x, y, -0.0)) == pytest.approx(float(step(x, y, 0.0)) + 1, abs=1e-5)
