"""Calls of a compiled step: what it follows, what it refuses, what it gives, from several threads and processes too."""

from __future__ import annotations

import copy
import functools
import gc
import multiprocessing
import sys
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
import torch
from eager import Batch, data, differences, eager_step, twins
from steps import compiled, refusal
from torch import nn
from torch.masked import masked_tensor
from torch.nn.functional import cross_entropy, mse_loss

import glowtrain.torch as gtt


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


class Doubled(torch.Tensor):
    """A class of tensors of which linear layers make twice as much."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs)
        return 2 * result if function is nn.functional.linear else result


def without_memory() -> torch.Tensor:
    tensor = torch.zeros(16, 6)
    tensor.untyped_storage().resize_(0)
    return tensor


def test_a_loop_with_a_scheduler_is_compiled_once() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (optimizer, theirs)]
    step, met = gtt.compile_step(module, cross_entropy, optimizer), set()
    for batch in data(40):
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
        for schedule in schedules:
            schedule.step()
        met.update(step._compiled.values())
    assert len(met) == 1
    assert differences(module.state_dict(), other.state_dict()) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_learning_rates_are_followed_from_one_shape_to_the_other(dtype: torch.dtype) -> None:
    module, optimizer, other, theirs = twins(nn.Linear(6, 3).to(dtype), lambda ps: torch.optim.SGD(ps, 0.1))
    step = gtt.compile_step(module, mse_loss, optimizer)
    for rate, size in ((0.1, 4), (0.2, 4), (0.3, 4), (0.1, 5), (0.1, 4), (0, 4), (0.4, 4)):
        optimizer.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = rate
        batch = torch.ones(size, 6, dtype=dtype), torch.zeros(size, 3, dtype=dtype)
        step(*batch)
        eager_step(other, mse_loss, theirs, batch)
        assert differences(module.state_dict(), other.state_dict()) < (0.02 if dtype is torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("first", [1, np.float64(0.5), torch.tensor(0.5)])
def test_learning_rates_are_followed_that_were_no_floats_at_first(first: Any) -> None:
    """As with SGD(parameters, lr=1) and a scheduler."""
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.SGD(ps, first))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for rate, batch in zip((first, first, 0.5, 0.2, 0.05, first, 0.3, 0.01), data(8), strict=True):
        optimizer.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = rate
        assert float(step(*batch)) == pytest.approx(float(eager_step(other, cross_entropy, theirs, batch)), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


@pytest.mark.parametrize("setting", ["lr", "weight_decay"])
def test_settings_that_become_tensors_are_read_at_each_step(setting: str) -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.SGD(ps, 0.1))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    number = torch.tensor(0.1)
    for at, batch in enumerate(data(10)):
        if at == 2:
            optimizer.param_groups[0][setting] = theirs.param_groups[0][setting] = number
        number.mul_(0.5 + 0.1 * at)
        assert float(step(*batch)) == pytest.approx(float(eager_step(other, cross_entropy, theirs, batch)), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_a_learning_rate_that_means_nothing(wrong: float) -> None:
    module = net()
    step = compiled(module)
    (batch,) = data(1)
    step(*batch)
    before = copy.deepcopy(module.state_dict())
    step.optimizer.param_groups[0]["lr"] = wrong
    assert "lr must be a number that is not negative" in refusal(lambda: step(*batch))
    assert differences(module.state_dict(), before) == 0


def test_betas_that_are_changed_in_place() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for group in (*optimizer.param_groups, *theirs.param_groups):
        group["betas"] = [0.9, 0.99]
    for batch in data(6):
        optimizer.param_groups[0]["betas"][0] = theirs.param_groups[0]["betas"][0] = 0.3 * float(batch[1][0])
        assert float(step(*batch)) == pytest.approx(float(eager_step(other, cross_entropy, theirs, batch)), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_other_settings_are_noticed() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.AdamW(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(9)):
        for group in (*optimizer.param_groups, *theirs.param_groups):
            group["betas"] = (0.9 - 0.1 * (number // 3), 0.99)
            group["weight_decay"] = 0.1 * (number // 2)
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_batches_that_do_not_fit_any_more() -> None:
    ((x, y),) = data(1)
    module = net()
    step = compiled(module)
    for words, wrong in (
        ("requires a gradient", (x.clone().requires_grad_(), y)),
        ("requires a gradient", ((x.clone().requires_grad_() * 2)[:], y)),
        ("is on meta", (x.to("meta"), y)),
        ("to_dense", (x.to_sparse(), y)),
        ("torch.from_numpy", (x.numpy(), y)),
        ("0 to 2", (x, y + 1)),
        ("0 to 2", (x, y - 4)),
        ("1 target for the loss, not 1 argument", (x,)),
        ("has no memory", (without_memory(), y)),
        ("a MaskedTensor, which computes in ways of its own", (masked_tensor(x, x > 0), y)),
        ("a Doubled, which computes in ways of its own", (x.as_subclass(Doubled), y)),
    ):
        step(x, y)
        before = copy.deepcopy(module.state_dict())
        assert words in refusal(lambda: step(*wrong))  # noqa: B023
        assert differences(module.state_dict(), before) == 0
    step(x, y)


def test_arguments_by_name_are_refused() -> None:
    ((x, y),) = data(1)
    step = compiled(net())
    for _ in range(3):
        assert "by position, not by name (target)" in refusal(lambda: step(x, target=y))
        step(x, y)


def test_ways_to_compute_are_noticed() -> None:
    ((x, y),) = data(1)
    step = compiled(net())
    step(x, y)
    with torch.inference_mode():
        assert "inference_mode" in refusal(lambda: step(x, y))
    step(x, y)
    torch.set_default_dtype(torch.float64)
    try:
        step(x, y)
        assert len(step._compiled) == 2
    finally:
        torch.set_default_dtype(torch.float32)


def test_types_and_layouts_of_batches_are_told_apart() -> None:
    module, optimizer, other, theirs = twins(nn.Linear(6, 6), lambda ps: torch.optim.SGD(ps, 0.1))
    step = gtt.compile_step(module, mse_loss, optimizer)
    x, wide = torch.randn(6, 6), torch.randn(12, 12)
    batches = [x, x.T, x[None], wide[::2, ::2], wide[::2, 1::2], wide[1:7, 2:8], torch._neg_view(x), x[:3], x.T[:3]]
    batches += [x[:1].expand(6, 6), nn.Parameter(x, requires_grad=False), x.unsqueeze(-1).squeeze(-1), wide[3, :6]]
    for each in [one for batch in batches for one in (batch, batch, x, batch)]:
        target = torch.zeros(each.shape)
        expected = eager_step(other, mse_loss, theirs, (each, target))
        assert float(step(each, target)) == pytest.approx(float(expected), rel=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_a_batch_that_is_the_negative_of_its_memory_from_the_start() -> None:
    module = nn.Linear(6, 6)
    step = gtt.compile_step(module, mse_loss, torch.optim.SGD(module.parameters(), 0.0))
    x, target = torch.randn(4, 6), torch.zeros(4, 6)
    expected = mse_loss(module(-x), target).item()
    for _ in range(3):
        assert float(step(torch._neg_view(x), target)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64])
def test_elements_of_any_size_are_made_row_major(dtype: torch.dtype) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.float() * self.weight

    module = Weighted()
    step = gtt.compile_step(module, mse_loss, torch.optim.SGD(module.parameters(), 0.0))
    for seed in range(3):
        numbers = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 100, (5, 2, 7), generator=numbers).to(dtype).permute(1, 2, 0)[:, ::3]
        target = torch.zeros(x.shape)
        assert float(step(x, target)) == pytest.approx(mse_loss(module(x), target).item(), rel=1e-5)


def test_a_batch_that_the_step_changes_is_copied() -> None:
    make = lambda ps: torch.optim.Adam(ps, 0.1)  # noqa: E731
    module, optimizer, other, theirs = twins(nn.Linear(6, 6), make)
    step = gtt.compile_step(module, mse_loss, optimizer)
    for own in (False, True, True, False, True):
        batch = other.weight.detach().clone() if own else torch.ones(6, 6)
        expected = eager_step(other, mse_loss, theirs, (batch, torch.ones(6, 6)))
        loss = step(module.weight.detach() if own else batch, torch.ones(6, 6))
        assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_numbers_among_the_arguments() -> None:
    def scaled(scores: torch.Tensor, target: torch.Tensor, factor: float) -> torch.Tensor:
        return factor * cross_entropy(scores, target)

    step = gtt.compile_step(module := net(), scaled, torch.optim.SGD(module.parameters(), 0.0), targets=2)
    ((x, y),) = data(1)
    expected = cross_entropy(module(x), y).item()
    for factor in (1.0, 1.0, 2.0, float("3"), float("3"), 1.0):
        assert float(step(x, y, factor)) == pytest.approx(factor * expected, rel=1e-5)


def test_each_call_has_results_of_its_own() -> None:
    def both(scores: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": cross_entropy(scores, target), "scores": scores}

    for loss, of in ((cross_entropy, lambda result: result), (both, lambda result: result["loss"])):
        module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.SGD(ps, 0.1))
        step = gtt.compile_step(module, loss, optimizer)
        batches = data(40)
        results = [step(*batch) for batch in batches]
        expected = [eager_step(other, cross_entropy, theirs, batch) for batch in batches]
        assert [float(of(result)) for result in results] == pytest.approx(list(map(float, expected)), abs=1e-4)
        assert len({of(result).data_ptr() for result in results}) == len(results)
        result = results.pop()
        assert sys.getrefcount(result) == 2
        if loss is both:
            assert result["scores"].shape == (16, 3)


def test_warnings_of_losses_name_the_line_and_may_be_errors() -> None:
    def trained() -> gtt.CompiledStep:
        step = compiled(net())
        step(*data(1)[0])
        return step

    ((x, y),) = data(1)
    bad = torch.full_like(x, float("inf"))
    step = trained()
    with pytest.warns(gtt.NonFiniteLossWarning, match="updates nothing") as heard:
        step(bad, y)
    assert heard[0].filename == __file__
    step = trained()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(gtt.NonFiniteLossWarning):
            step(bad, y)
        assert float(step(x, y)) > 0


def test_threads_take_turns() -> None:
    """Whoever comes while another thread's step runs waits for it."""
    module = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    step = gtt.compile_step(module, mse_loss, optimizer)
    batch = torch.randn(64, 64), torch.randn(64, 64)
    step(*batch)
    with ThreadPoolExecutor(4) as pool:
        losses = list(pool.map(lambda _: float(step(*batch)), range(200)))
    assert len(set(losses)) == 200
    assert max(losses) < 10
    assert float(optimizer.state[module[0].weight]["step"]) == 201


def test_a_step_waits_while_another_thread_traces_its_module() -> None:
    """Its parameters have stand-ins then, without memory to look at."""
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(module.parameters(), 0.0)
    step = gtt.compile_step(module, mse_loss, optimizer)
    of_part = gtt.compile_step(module[:1], mse_loss, torch.optim.SGD(module[0].parameters(), 0.0))
    x, y, others, pool = torch.ones(4, 6), torch.zeros(4, 3), list[torch.Tensor](), ThreadPoolExecutor(1)
    step(x, y)

    def beside() -> None:
        others.extend([step(x, y), of_part(x, torch.zeros(4, 8))])

    def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        wait([pool.submit(beside)], timeout=0.5)
        return mse_loss(scores, target)

    with pool:
        found = gtt.compile_step(module, loss, optimizer)(x, y)
    again, part = others[:2]
    assert found == again == step(x, y)
    torch.testing.assert_close(part, module[0](x).square().mean().detach())


def _train(step: gtt.CompiledStep, batch: Batch, queue: Any) -> None:
    queue.put([float(step(*batch)) for _ in range(3)])


@pytest.mark.parametrize("threads", [1, 2])
def test_in_a_child_of_fork(threads: int) -> None:
    """It has none of the threads and locks: they are made anew."""
    module = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    step = compiled(module, mse_loss, threads=threads)
    batch = torch.randn(128, 64), torch.randn(128, 64)
    for _ in range(3):
        step(*batch)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_train, args=(step, batch, queue))
    child.start()
    theirs = queue.get(timeout=120)
    child.join(60)
    assert theirs == [float(step(*batch)) for _ in range(3)]


def test_a_step_within_what_torch_compile_wraps() -> None:
    ((x, y),) = data(1)
    found = []
    for wrap in (lambda call: call, functools.partial(torch.compile, backend="glowtrain")):
        torch.manual_seed(0)
        torch._dynamo.reset()
        step, head = compiled(nn.Linear(6, 3)), nn.Linear(6, 3)

        def call(step: Any = step, head: nn.Module = head) -> torch.Tensor:
            loss: torch.Tensor = head(x).mean() * step(x, y)
            return loss

        found.append([float(wrap(call)().detach()) for _ in range(3)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0][0] != pytest.approx(found[0][2], rel=1e-5)


def test_a_step_goes_with_its_last_reference() -> None:
    """Its memory may be large: it must not wait for the garbage collector."""
    step = compiled(net())
    for batch in data(3):
        step(*batch)
    gone = *map(weakref.ref, step._compiled.values()), weakref.ref(step)
    gc.collect()  # of what compiling has left
    gc.disable()
    try:
        del step
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_times_of_a_call() -> None:
    step = compiled(net())
    for batch in data(3):
        whole, native = step.timed(*batch)
        assert 0 < native < whole
