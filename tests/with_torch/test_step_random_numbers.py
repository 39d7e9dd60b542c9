"""Dropout in a compiled step follows PyTorch's seed: each step of a module draws numbers of its own."""

from __future__ import annotations

import torch
from eager import data
from torch import nn
from torch.nn.functional import cross_entropy

import glowtrain.torch as gtt


def test_dropout_follows_the_seed_and_the_mode() -> None:
    def losses(seed: int) -> list[float]:
        torch.manual_seed(7)
        module = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
        step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
        torch.manual_seed(seed)
        (batch,) = data(1)
        found = [float(step(*batch)) for _ in range(3)]
        module.eval()
        return [*found, float(step(*batch)), float(step(*batch))]

    first, again, other = losses(1), losses(1), losses(2)
    assert first == again
    assert first[:3] != other[:3]
    assert len(set(first[:3])) == 3
    assert first[3] == first[4] == other[3]


def test_two_steps_of_a_module_draw_other_numbers() -> None:
    def losses() -> list[list[float]]:
        torch.manual_seed(7)
        module = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(module.parameters(), 0.0)
        steps = [gtt.compile_step(module, cross_entropy, optimizer) for _ in range(2)]
        (batch,) = data(1)
        return [[float(step(*batch)) for _ in range(3)] for step in steps]

    first, second = losses()
    assert len({*first, *second}) == 6
    assert losses() == [first, second]


def test_random_numbers_go_on_after_compiling_anew() -> None:
    module = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
    (batch,) = data(1)
    losses = []
    for _ in range(4):
        losses.append(float(step(*batch)))
        step.recompile()
    assert len(set(losses)) == 4
