"""What is changed in a module or an optimizer after a step was compiled: it is followed, or refused by name."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager import data, differences, eager_step, net, state_of, twins
from steps import compiled, refusal
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import glowtrain.torch as gtt


def test_a_module_moved_to_double_is_compiled_anew() -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.05))
    ((x, y),) = data(1)
    step(x, y)
    module.double()
    other = copy.deepcopy(module)
    expected = cross_entropy(other(x.double()), y)
    assert float(step(x.double(), y)) == pytest.approx(expected.item(), abs=1e-12)


def test_submodules_that_are_exchanged_are_noticed() -> None:
    ((x, y),) = data(1)
    module = net()
    step = compiled(module)
    step(x, y)
    module[1] = nn.ReLU()
    expected = cross_entropy(module(x), y)
    assert float(step(x, y)) == pytest.approx(expected.item(), abs=1e-6)
    module[3] = nn.Linear(16, 3)
    assert "2 of the optimizer's parameters are not the module's" in refusal(lambda: step(x, y))
    other = net()
    hooked = compiled(other)
    hooked(x, y)
    other[0].register_full_backward_hook(lambda *_: None)
    assert "'0' has backward hooks" in refusal(lambda: hooked(x, y))


def test_parameters_replaced_after_compiling() -> None:
    """What the optimizer does not hold is said, and nothing is updated; in-place changes are simply used."""
    ((x, y),) = data(1)
    module = net()
    step = compiled(module)
    step(x, y)
    with torch.no_grad():
        module[0].weight.zero_()
    expected = cross_entropy(module(x), y)
    assert float(step(x, y)) == pytest.approx(expected.item(), abs=1e-6)
    module[0].weight = nn.Parameter(torch.ones(16, 6))
    before = copy.deepcopy(module.state_dict())
    assert "1 of the optimizer's parameters are not the module's" in refusal(lambda: step(x, y))
    assert differences(module.state_dict(), before) == 0


@pytest.mark.parametrize("quickly", [True, False])
class TestChangesBetweenSteps:
    """What is changed after a step was compiled is noticed, also without the guards of Dynamo."""

    @pytest.fixture(autouse=True)
    def _way(self, quickly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        if not quickly:
            monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")

    def test_memory_read_in_another_order(self) -> None:
        module = nn.Linear(4, 4)
        ran = compiled(module, mse_loss)
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        ran(x, y)
        module.weight.data = module.weight.data.t()
        assert "'weight' (4, 4) has strides (1, 4)" in refusal(lambda: ran(x, y))
        module.weight.data = module.weight.data.t()
        expected = mse_loss(module(x), y)
        assert float(ran(x, y)) == pytest.approx(expected.item(), abs=1e-6)

    def test_elements_read_as_another_type(self) -> None:
        module = net().to(torch.bfloat16)
        ran = compiled(module)
        ((x, y),) = data(1)
        ran(x.to(torch.bfloat16), y)
        module[0].weight.data = module[0].weight.data.view(torch.float16)
        assert "f16[16,6]" in refusal(lambda: ran(x.to(torch.bfloat16), y))

    def test_a_count_of_updates(self) -> None:
        module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
        ran = gtt.compile_step(module, cross_entropy, optimizer)
        for number, batch in enumerate(data(8)):
            if number == 3:
                optimizer.state[module[0].weight]["step"] = torch.tensor(1.0)
                theirs.state[other[0].weight]["step"] = torch.tensor(1.0)
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(ran(*batch)) == pytest.approx(float(expected), abs=1e-5)
        assert differences(state_of(optimizer), state_of(theirs)) < 1e-5

    @pytest.mark.parametrize("change", [
        lambda module, optimizer: setattr(optimizer, "state", defaultdict(dict)),
        lambda module, optimizer: setattr(optimizer, "param_groups", [{**optimizer.param_groups[0], "lr": 1e-3}]),
        lambda module, optimizer: optimizer.param_groups[0].update(params=list(module[3].parameters())),
    ], ids=["state", "groups", "parameters"])  # fmt: skip
    def test_what_an_optimizer_has_is_put_in_its_place(self, change: Callable[..., None]) -> None:
        module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
        ran = gtt.compile_step(module, cross_entropy, optimizer)
        for number, batch in enumerate(data(8)):
            if number == 3:
                change(module, optimizer)
                change(other, theirs)
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(ran(*batch)) == pytest.approx(float(expected), abs=1e-5)
        assert differences(module.state_dict(), other.state_dict()) < 1e-4

    def test_hooks_on_gradients(self) -> None:
        ((x, y),) = data(1)
        for register in ("register_hook", "register_post_accumulate_grad_hook"):
            module = net()
            ran = compiled(module)
            ran(x, y)
            handle = getattr(module[0].weight, register)(lambda _: None)
            before = copy.deepcopy(module.state_dict())
            assert "'0.weight' has hooks on its gradient" in refusal(lambda: ran(x, y))  # noqa: B023
            assert differences(module.state_dict(), before) == 0
            handle.remove()
            ran(x, y)
            handle = getattr(module[0].weight, register)(lambda _: None)  # into the dict that there is by now
            assert "'0.weight' has hooks on its gradient" in refusal(lambda: ran(x, y))  # noqa: B023

    def test_hooks_of_the_optimizer(self) -> None:
        ((x, y),) = data(1)
        module = net()
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        ran = gtt.compile_step(module, cross_entropy, optimizer)
        ran(x, y)
        optimizer.register_step_pre_hook(lambda *_: None)
        assert "hooks on step" in refusal(lambda: ran(x, y))

    @pytest.mark.parametrize("register", [
        register_module_forward_pre_hook, register_module_forward_hook, register_module_full_backward_pre_hook,
        register_module_full_backward_hook, register_optimizer_step_pre_hook, register_optimizer_step_post_hook,
    ])  # fmt: skip
    def test_hooks_of_all_modules_or_optimizers(self, register: Callable[..., Any]) -> None:
        ((x, y),) = data(1)
        module = net()
        ran = compiled(module)
        ran(x, y)
        handle = register(lambda *_: None)
        try:
            assert "hooks on all modules or optimizers" in refusal(lambda: ran(x, y))
            assert "hooks on all modules or optimizers" in refusal(lambda: compiled(net()))
        finally:
            handle.remove()
        assert float(ran(x, y)) > 0

    def test_hooks_on_the_forward_pass_are_traced(self) -> None:
        ((x, y),) = data(1)
        module = net()
        ran = compiled(module)
        ran(x, y)
        handle = module[3].register_forward_hook(lambda _module, _inputs, result: result * 3)
        expected = cross_entropy(module(x), y)
        assert float(ran(x, y)) == pytest.approx(expected.item(), abs=1e-6)
        handle.remove()
        expected = cross_entropy(module(x), y)
        assert float(ran(x, y)) == pytest.approx(expected.item(), abs=1e-6)

    def test_hooks_that_are_called_in_another_way(self) -> None:
        def hook(_: nn.Module, *rest: Any) -> torch.Tensor:
            return len(rest) * rest[-1]

        ((x, y),) = data(1)
        module = net()
        ran = compiled(module)
        for named in (False, True):
            handle = module[3].register_forward_hook(hook, with_kwargs=named)
            expected = cross_entropy(module(x), y)
            assert float(ran(x, y)) == pytest.approx(expected.item(), abs=1e-6)
            handle.remove()

    def test_the_tensors_of_a_group(self) -> None:
        module, optimizer, other, theirs = twins(nn.Linear(4, 4), lambda ps: torch.optim.SGD([next(iter(ps))], 0.1))
        ran = gtt.compile_step(module, mse_loss, optimizer)
        for number in range(4):
            if number == 2:
                optimizer.param_groups[0]["params"][0] = module.bias
                theirs.param_groups[0]["params"][0] = other.bias
            batch = torch.full((3, 4), 1.0 + number), torch.zeros(3, 4)
            assert float(ran(*batch)) == pytest.approx(float(eager_step(other, mse_loss, theirs, batch)), abs=1e-5)
        assert differences(module.state_dict(), other.state_dict()) < 1e-5

    def test_modes_and_frozen_parameters(self) -> None:
        dropping = nn.Sequential(net(), nn.BatchNorm1d(3))
        module, optimizer, other, theirs = twins(dropping, lambda ps: torch.optim.SGD(ps, 0.1))
        ran = gtt.compile_step(module, cross_entropy, optimizer)
        for number, batch in enumerate(data(9)):
            for each in (module, other):
                each.train(number % 3 > 0)
                each[0][0].requires_grad_(number % 2 > 0)
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(ran(*batch)) == pytest.approx(float(expected), abs=1e-5)
        assert differences(module.state_dict(), other.state_dict()) < 1e-5
        assert len(ran._compiled) == 4
