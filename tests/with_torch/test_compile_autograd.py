"""What autograd may ask of compiled modules besides one backward: more gradients, batches of them, forward mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled import close, compiled, pair, ramp, same_gradients
from eager import net
from torch import nn
from torch.autograd import forward_ad, functional

from glowtrain.errors import DifferentiationError
from glowtrain.torch.dynamo.backend import FallbackWarning

pytestmark = pytest.mark.usefixtures("nothing_falls_back")

# --- gradients of gradients ------------------------------------------------------------------------------------------


class Normalized(nn.Sequential):
    """Running statistics are changed in place, and no gradient reads them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def test_gradient_penalty_through_batch_normalization() -> None:
    eager, ours, other = pair(Normalized())
    for module in (eager, ours):
        x = ramp(4, 6).requires_grad_()
        (slope,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        (slope.norm(dim=1) - 1).square().mean().backward()
    same_gradients(other, eager)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.scale).sin()
        self.scale.add_(1)
        return y


def test_gradients_of_gradients_of_what_was_changed_are_refused() -> None:
    x = ramp(4).requires_grad_()
    with pytest.raises(DifferentiationError, match="as they were before: give it clones"):
        torch.autograd.grad(compiled(Counted())(x).sum(), x, create_graph=True)


def test_which_gradients_can_be_differentiated_again() -> None:
    eager, ours, _ = pair(net())
    for cotangent in (torch.ones(4, 3), torch.ones(4, 3, requires_grad=True)):
        found = [
            torch.autograd.grad(module(ramp(4, 6)), list(module.parameters()), cotangent, create_graph=True)
            for module in (eager, ours)
        ]
        assert [each.requires_grad for each in found[1]] == [each.requires_grad for each in found[0]]


# --- gradients in batches --------------------------------------------------------------------------------------------

Gradients = Callable[[Any, list[torch.Tensor]], Any]
COTANGENTS = torch.linspace(-1, 1, 60).view(5, 4, 3)
BATCHED: dict[str, Gradients] = {
    "is_grads_batched": lambda y, at: torch.autograd.grad(y, at, COTANGENTS, is_grads_batched=True),
    "vmap": lambda y, at: torch.func.vmap(lambda each: torch.autograd.grad(y, at, each))(COTANGENTS),
    "another axis": lambda y, at: torch.func.vmap(lambda each: torch.autograd.grad(y, at, each), in_dims=2)(
        COTANGENTS.movedim(0, 2)
    ),
    "vmap of vmap": lambda y, at: torch.func.vmap(torch.func.vmap(lambda each: torch.autograd.grad(y, at, each)))(
        torch.stack([COTANGENTS, COTANGENTS.exp()])
    ),
}


@pytest.mark.parametrize("name", BATCHED)
def test_gradients_in_batches(name: str) -> None:
    eager, ours, _ = pair(net())
    found = [BATCHED[name](module(ramp(4, 6)), list(module.parameters())) for module in (eager, ours)]
    for mine, theirs in zip(found[1], found[0], strict=True):
        close(mine, theirs)


def test_gradients_in_batches_are_differentiated_again() -> None:
    eager, ours, other = pair(net())
    for module in (eager, ours):
        parameters = list(module.parameters())
        found = torch.autograd.grad(
            module(ramp(4, 6)), parameters, COTANGENTS, is_grads_batched=True, create_graph=True
        )
        torch.stack([each.square().sum() for each in found]).sum().backward()
    same_gradients(other, eager)


def test_jacobians_and_hessians() -> None:
    eager, ours, _ = pair(net())
    close(*[functional.jacobian(module, ramp(2, 6), vectorize=True) for module in (ours, eager)])
    close(*[functional.hessian(lambda x, m=m: m(x).square().sum(), ramp(2, 6), vectorize=True) for m in (ours, eager)])


# --- forward mode ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default::glowtrain.torch.dynamo.backend.FallbackWarning")
@pytest.mark.parametrize("gradients", [True, False])
def test_forward_mode_is_left_to_pytorch(gradients: bool) -> None:
    eager, ours, _ = pair(net().requires_grad_(gradients))
    tangents = []
    for module in (eager, ours):
        module(ramp(4, 6))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(ramp(4, 6), torch.ones(4, 6))
            if module is ours:
                with pytest.warns(FallbackWarning, match="dual_level"):
                    result = module(dual)
            else:
                result = module(dual)
            tangents.append(forward_ad.unpack_dual(result).tangent)
    close(tangents[1], tangents[0])
