"""Dropout through torch.compile: the backward has the forward's masks, which follow PyTorch's generator."""

from __future__ import annotations

import pytest
import torch
from compiled import close, compiled, ramp
from torch import nn

pytestmark = pytest.mark.usefixtures("nothing_falls_back")


def dropped() -> tuple[nn.Module, torch.Tensor]:
    return nn.Dropout(0.4), torch.ones(400, requires_grad=True)


def test_dropout_has_the_masks_of_its_forward() -> None:
    module, x = dropped()
    ours = compiled(module)
    first, second = ours(x), ours(x)
    assert not torch.equal(first, second)
    assert 0.5 < float((first != 0).float().mean()) < 0.7
    (gradient,) = torch.autograd.grad(first.sum(), x)
    close(gradient, first)


def test_dropout_repeats_with_pytorchs_generator() -> None:
    module, x = dropped()
    ours = compiled(module)
    found = []
    for _ in range(2):
        torch.manual_seed(7)
        found.append(ours(x))
    assert torch.equal(*found)
    state = torch.get_rng_state()
    after = ours(x)
    torch.set_rng_state(state)
    assert torch.equal(ours(x), after)


def test_dropout_under_checkpointing() -> None:
    """The second forward drops what the first one did."""
    module, x = dropped()
    y = torch.utils.checkpoint.checkpoint(compiled(module), x, use_reentrant=False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    close(gradient, y)


def test_hessian_vector_product_with_dropped_elements() -> None:
    """The masks of the gradient's gradient are those of the forward."""
    torch.manual_seed(3)
    layer = nn.Sequential(nn.Linear(6, 40, bias=False), nn.Dropout(0.5))
    ours = compiled(layer)
    x = ramp(4, 6).requires_grad_()
    y = ours(x)
    kept = (y != 0).float()
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    expected = (kept * 8) * (torch.ones(4, 6) @ layer[0].weight.t()) @ layer[0].weight
    close(second, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_uniform_numbers_stay_below_one(dtype: torch.dtype) -> None:
    drawn = compiled(lambda x: (torch.rand_like(x), torch.empty_like(x).uniform_(1, 2)))(torch.zeros(50_000).to(dtype))
    assert [float(each.max()) for each in drawn] == [1 - torch.finfo(dtype).eps / 2, 2 - torch.finfo(dtype).eps]


def test_exponential_numbers_have_a_logarithm() -> None:
    """As gumbel_softmax takes it. With this seed the generator gives a 0."""
    torch.manual_seed(14)
    assert compiled(lambda x: torch.empty_like(x).exponential_())(torch.zeros(1_000_000)).min() > 0
