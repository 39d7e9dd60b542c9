"""What a compiled step may use: budgets of memory keep its bits, residuals in bf16 keep its loss, products in
bf16 come near."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import glowtrain.torch as gtt
from glowtrain.errors import InputError, MemoryBudgetError


def trained(steps: int = 3, **resources: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses, and the module's tensors after so many steps."""
    torch.manual_seed(0)
    middle = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU())]
    module = nn.Sequential(nn.Linear(8, 64), *middle, nn.Linear(64, 4))
    step = gtt.compile_step(module, cross_entropy, torch.optim.Adam(module.parameters(), 1e-2), **resources)
    x, y = torch.randn(128, 8), torch.randint(4, (128,))
    return [float(step(x, y)) for _ in range(steps)], module.state_dict()


def test_budgets_keep_the_bits() -> None:
    losses, tensors = trained(memory="keep")
    for memory in ("small", "60%"):
        less, others = trained(memory=memory)
        assert less == losses
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_residuals_in_bf16_keep_the_first_loss_and_round_gradients() -> None:
    losses, tensors = trained(1)
    narrow, others = trained(1, residuals="bf16")
    assert narrow == losses
    assert torch.equal(tensors["2.running_var"], others["2.running_var"])
    assert not torch.equal(tensors["0.weight"], others["0.weight"])


def test_products_in_bf16_are_near_those_in_f32() -> None:
    losses, tensors = trained()
    narrow, others = trained(precision="bf16")
    assert 0 < abs(narrow[-1] - losses[-1]) < 0.02 * losses[-1]
    assert all(other.dtype == tensors[name].dtype for name, other in others.items())


def test_layers_are_excepted_by_pattern() -> None:
    """By the names of modules, and of parameters."""
    narrow, some = trained(precision="bf16")[1], trained(precision={"*": "bf16", "4": "f32"})[1]
    other = trained(precision={"*": "bf16", "4.weight": "f32"})[1]
    assert not torch.equal(narrow["0.weight"], some["0.weight"])
    assert all(torch.equal(tensor, other[name]) for name, tensor in some.items())
    with pytest.raises(InputError, match="there is no layer of products '2'; .* are '0', '0.weight', '0.bias', '1', "):
        trained(precision={"*": "bf16", "2": "f32"})


def test_pending_updates_are_made_with_products_in_bf16() -> None:
    """An update alone has no products."""
    module = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = gtt.compile_step(module, cross_entropy, optimizer, precision="bf16", accumulate=2)
    before = module.weight.detach().clone()
    step(torch.ones(2, 4), torch.tensor([0, 1]))
    assert torch.equal(module.weight, before)
    assert step.flush() == 1
    assert not torch.equal(module.weight, before)


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(MemoryBudgetError, match="are too few"):
        trained(memory="1KB")
    with pytest.raises(InputError, match="memory 'lots'"):
        trained(memory="lots")
    with pytest.raises(TypeError, match=r"compile_step takes no argument 'memroy' \(the nearest is 'memory'\)"):
        trained(memroy="small")
