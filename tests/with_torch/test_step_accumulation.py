"""Steps that add up gradients over several calls, and steps that leave gradients: as loops in PyTorch do both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager import Batch, data, differences, net, state_of, twins
from steps import OPTIMIZERS, compiled, refusal
from torch import nn
from torch.nn.functional import cross_entropy

import glowtrain.torch as gtt


def accumulating(
    module: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch], count: int, clip: float | None = None
) -> list[list[torch.Tensor]]:
    """PyTorch's idiom, and the gradients after each backward, and clipping."""
    seen = []
    optimizer.zero_grad()
    for number, (x, y) in enumerate(batches):
        (cross_entropy(module(x), y) / count).backward()
        last = (number + 1) % count == 0
        if last and clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        seen.append([parameter.grad.clone() for parameter in module.parameters()])
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return seen


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_the_idiom(name: str) -> None:
    module, optimizer, other, theirs = twins(net(), OPTIMIZERS[name])
    step = gtt.compile_step(module, cross_entropy, optimizer, accumulate=3, clip_norm=0.3)
    batches = data(8)
    accumulating(other, theirs, batches, 3, clip=0.3)
    for batch in batches:
        step(*batch)
    assert differences(module.state_dict(), other.state_dict()) < 2e-4
    assert differences(state_of(optimizer), state_of(theirs)) < 2e-3
    assert step.pending == 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_waits_at_the_end_makes_an_update_of_its_mean(name: str) -> None:
    module, optimizer, other, theirs = twins(net(), OPTIMIZERS[name])
    step = gtt.compile_step(module, cross_entropy, optimizer, accumulate=3, clip_norm=0.3)
    batches = data(9)
    assert step.flush() == 0
    for batch in batches[:5]:
        step(*batch)
    accumulating(other, theirs, batches[:3], 3, clip=0.3)
    for group in (*optimizer.param_groups, *theirs.param_groups):
        group["lr"] = group["lr"] * 0.5
    before = [parameter.clone() for parameter in other.parameters()]
    accumulating(other, theirs, batches[3:5], 2, clip=0.3)
    assert (step.flush(), step.pending, step.flush()) == (2, 0, 0)
    for batch in batches[5:]:
        step(*batch)
    accumulating(other, theirs, batches[5:8], 3, clip=0.3)
    accumulating(other, theirs, batches[8:], 1, clip=0.3)
    assert step.flush() == 1
    assert not all(map(torch.equal, before, other.parameters()))
    assert differences(module.state_dict(), other.state_dict()) < 2e-4
    assert differences(state_of(optimizer), state_of(theirs)) < 2e-3


def test_nothing_but_statistics_changes_between_updates() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=0.5))
    optimizer = torch.optim.AdamW(module.parameters(), 0.1)
    step = gtt.compile_step(module, cross_entropy, optimizer, accumulate=2)
    first, second = data(2)
    before, mean = module[0].weight.clone(), module[1].running_mean.clone()
    assert "0 of 2 calls wait" in repr(step)
    step(*first)
    assert torch.equal(module[0].weight, before)
    assert not torch.equal(module[1].running_mean, mean)
    assert (step.pending, float(optimizer.state[module[0].weight]["step"])) == (1, 0.0)
    assert "1 of 2 calls wait" in repr(step)
    step(*second)
    assert not torch.equal(module[0].weight, before)
    assert (step.pending, float(optimizer.state[module[0].weight]["step"])) == (0, 1.0)


def _moved(module: nn.Module, _: gtt.CompiledStep) -> None:
    module[0].weight.data = module[0].weight.data.clone()


def _anew(_: nn.Module, step: gtt.CompiledStep) -> None:
    step.recompile()


def _loaded(_: nn.Module, step: gtt.CompiledStep) -> None:
    step.optimizer.load_state_dict(step.optimizer.state_dict())


@pytest.mark.parametrize("between", [_moved, _anew, _loaded])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_wait_across_shapes_and_recompilations(between: Callable[..., None], dtype: torch.dtype) -> None:
    module, optimizer, other, theirs = twins(net().to(dtype), lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9))
    step = gtt.compile_step(module, cross_entropy, optimizer, accumulate=2)
    batches = [(x.to(dtype), y) for size in (4, 5, 6, 4) for x, y in data(1, size, seed=size)]
    accumulating(other, theirs, batches, 2)
    for batch in batches:
        step(*batch)
        between(module, step)
    step(*batches[0])
    between(module, step)
    assert step.flush() == 1
    accumulating(other, theirs, batches[:1], 1)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_bad_losses_add_nothing() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.SGD(ps, 0.1))
    step = gtt.compile_step(module, cross_entropy, optimizer, accumulate=2)
    first, second = data(2)
    accumulating(other, theirs, [first, second], 2)
    step(*first)
    with pytest.warns(gtt.NonFiniteLossWarning):
        step(first[0] * float("inf"), first[1])
    assert step.pending == 1
    step(*second)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x: torch.Tensor, head: int) -> Any:
        return self.heads[head](x)


def test_calls_of_one_update_train_the_same_parameters() -> None:
    """PyTorch would update both heads then; a step knows those of the last call alone."""
    module = Heads()
    step, ((x, y),) = compiled(module, accumulate=2), data(1)
    step(x, 0, y)
    before = step.pending, [each.clone() for each in module.parameters()]
    said = refusal(lambda: step(x, 1, y))
    assert "must have gradients for the same parameters" in said
    assert "heads.0.weight" in said
    assert "heads.1.weight" in said
    assert before[0] == step.pending == 1
    assert all(map(torch.equal, before[1], module.parameters()))
    step(x, 0, y)
    step(x, 1, y)
    assert step.pending == 1


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, None])
def test_numbers_of_calls_that_mean_nothing(wrong: Any) -> None:
    assert "accumulate must be a number of calls from 1 up" in refusal(lambda: compiled(net(), accumulate=wrong))


# --- gradients for logging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_are_those_of_the_idiom(count: int, dtype: torch.dtype) -> None:
    module, optimizer, other, theirs = twins(net().to(dtype), lambda ps: torch.optim.SGD(ps, 0.1))
    options = {"gradients": True, "accumulate": count, "clip_norm": 0.3}
    step = gtt.compile_step(module, cross_entropy, optimizer, **options)
    batches = [(x.to(dtype), y) for x, y in data(6)]
    expected = accumulating(other, theirs, batches, count, clip=0.3)
    collected = []
    for batch in batches:
        assert step(*batch).shape == ()
        collected.append([parameter.grad for parameter in module.parameters()])
    for ours, theirs_ in zip(collected, expected, strict=True):
        torch.testing.assert_close(ours, theirs_, atol=3e-2 if dtype is torch.bfloat16 else 1e-5, rtol=0.05)


def test_gradients_come_beside_other_results_and_budgets() -> None:
    module = net()
    step = compiled(module, lambda scores, y: (cross_entropy(scores, y), scores), gradients=True, memory="small")
    ((x, y),) = data(1)
    expected = torch.autograd.grad(cross_entropy(module(x), y), list(module.parameters()))
    loss, scores = step(x, y)
    assert (loss.shape, scores.shape) == ((), (16, 3))
    torch.testing.assert_close([p.grad for p in module.parameters()], list(expected))


def test_parameters_without_gradients_have_none() -> None:
    module = Heads()
    step, ((x, y),) = compiled(module, gradients=True), data(1)
    for head in (0, 1, 0):
        step(x, head, y)
        assert [parameter.grad is None for parameter in module.parameters()] == [head == 1] * 2 + [head == 0] * 2


def test_gradients_of_a_bad_loss_show_it() -> None:
    module = net()
    step, ((x, y),) = compiled(module, gradients=True), data(1)
    before = [parameter.clone() for parameter in module.parameters()]
    with pytest.warns(gtt.NonFiniteLossWarning):
        step(x * float("inf"), y)
    assert all(map(torch.equal, before, module.parameters()))
    assert any(not parameter.grad.isfinite().all() for parameter in module.parameters())


def test_gradients_are_not_touched_unless_wanted() -> None:
    module = net()
    step, (batch,) = compiled(module), data(1)
    module[0].weight.grad = kept = torch.ones(16, 6)
    step(*batch)
    assert module[0].weight.grad is kept
    assert torch.equal(kept, torch.ones(16, 6))
