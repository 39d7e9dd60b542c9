"""State and groups of PyTorch's optimizers: a compiled step goes on from what is in them, and leaves it there."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable

import pytest
import torch
from eager import data, differences, eager_step, net, state_of, twins
from steps import OPTIMIZERS, refusal
from torch import nn
from torch.nn.functional import cross_entropy

import glowtrain.torch as gtt


def test_groups_schedulers_and_clipping() -> None:
    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        several = list(parameters)
        return torch.optim.AdamW(
            [{"params": several[:2], "lr": 1e-2}, {"params": several[2:], "weight_decay": 0.0}], lr=3e-3
        )

    module, optimizer, other, theirs = twins(net(), make)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(each, 1e-2, total_steps=30, cycle_momentum=True)
        for each in (optimizer, theirs)
    ]
    step = gtt.compile_step(module, cross_entropy, optimizer, clip_norm=0.5, clip_value=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler warns of a loop without steps
        for batch in data(20):
            expected = eager_step(other, cross_entropy, theirs, batch, 0.5, 0.1)
            assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
            for schedule in schedules:
                schedule.step()
    assert differences(module.state_dict(), other.state_dict()) < 1e-4


def test_frozen_parameters_stay_and_may_be_thawed() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for frozen in (True, False):
        for each in (module, other):
            each[0].requires_grad_(not frozen)
        before = module[0].weight.detach().clone()
        for batch in data(4):
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
        assert torch.equal(module[0].weight, before) is frozen
    assert differences(module.state_dict(), other.state_dict()) < 1e-4
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-4


def test_loading_states() -> None:
    """Of the module in place and by assignment, and of the optimizer: the step goes on from what was loaded."""
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    batches = data(9)
    saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    for batch in batches[:3]:
        step(*batch)
        eager_step(other, cross_entropy, theirs, batch)
    halfway = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    module.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for batch in batches[:3]:
        step(*batch)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5
    module.load_state_dict(halfway[0], assign=True)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    optimizer.load_state_dict(halfway[1])
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for batch in batches[3:]:
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)


def test_two_steps_of_one_optimizer() -> None:
    """They share its state, the counts of updates too."""
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    losses = cross_entropy, lambda scores, target: (scores.square().mean(1) * target).mean()
    steps = [gtt.compile_step(module, loss, optimizer) for loss in losses]
    for number, batch in enumerate(data(12)):
        expected = eager_step(other, losses[number % 2], theirs, batch)
        assert float(steps[number % 2](*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-5


def test_a_state_that_was_cleared_begins_anew() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(6)):
        if number == 3:
            optimizer.state.clear()
            theirs.state.clear()
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-5


def test_groups_that_are_added_train() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(list(ps)[:2], 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(6)):
        if number == 3:
            optimizer.add_param_group({"params": list(module[3].parameters()), "lr": 1e-3})
            theirs.add_param_group({"params": list(other[3].parameters()), "lr": 1e-3})
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4


def test_the_state_of_one_parameter_may_be_reset() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(6)):
        if number == 3:
            del optimizer.state[module[3].weight], theirs.state[other[3].weight]
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-5


def test_a_first_update_by_an_eager_step_counts() -> None:
    """Dampening leaves the first update of each parameter out: here of one that was frozen before."""
    module, optimizer, other, theirs = twins(net(), OPTIMIZERS["sgd, dampening"])
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(8)):
        for each in (module, other):
            each[0].requires_grad_(number >= 2)
        expected = eager_step(other, cross_entropy, theirs, batch)
        ours = eager_step(module, cross_entropy, optimizer, batch) if number == 2 else step(*batch)
        assert float(ours) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_what_a_step_computes_is_not_turned_around_silently() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = gtt.compile_step(module, cross_entropy, optimizer)
    (batch,) = data(1)
    step(*batch)
    optimizer.param_groups[0]["maximize"] = True
    assert "maximize" in refusal(lambda: step(*batch))
    step.recompile()
    before = float(step(*batch))
    assert float(step(*batch)) > before
