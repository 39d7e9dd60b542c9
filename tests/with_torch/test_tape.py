"""Which parameters have a gradient, if only of zeros, and which have none: as autograd's tape says, by both routes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from compiled import close, compiled, pair, ramp, same_gradients
from torch import nn

import glowtrain.torch
from glowtrain.errors import DifferentiationError, ModelError
from glowtrain.torch.dynamo.backend import FallbackWarning

Function = Callable[[torch.Tensor], torch.Tensor]


class Scaled(nn.Module):
    """A layer whose results are scaled by a function of a parameter."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor([0.7, -1.2, 0.3, 2.0]))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.function(self.scale)


def without_gradients(p: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return p * 2


def picked(p: torch.Tensor) -> torch.Tensor:
    """The nearest elements of an image, at positions that are a function of the parameter."""
    grid = torch.stack([p.tanh(), p.sin()], -1).view(1, 1, 4, 2)
    return nn.functional.grid_sample(ramp(1, 1, 3, 3), grid, mode="nearest", align_corners=False).view(4)


FUNCTIONS: dict[str, Function] = {
    **{function.__name__: function for function in (torch.sign, torch.round, torch.floor, torch.ceil, torch.trunc)},
    "power of zero": lambda p: p**0,
    "floor division": lambda p: torch.div(p, 0.5, rounding_mode="floor"),
    "nearest": picked,
    "copysign of": lambda p: torch.copysign(torch.ones(4), p),
    "overwritten": lambda p: torch.slice_scatter(p, torch.ones(4)),
    "times zero": lambda p: p * 0,
    "cancelled": lambda p: p - p + 1,
    "saturated": lambda p: p.clamp(5, 6),
    "comparison": lambda p: (p > 0).float(),
    "chosen by": lambda p: torch.where(p > 0, 1.0, 2.0),
    "of its shape": torch.zeros_like,
    "detached": lambda p: p.detach().sin(),
    "detached, and not": lambda p: p.detach() + p.round(),
    "without gradients": without_gradients,
    "position": lambda p: p.argmax().float(),
    "norm of order 0": lambda p: torch.linalg.vector_norm(p, 0),
    "older norm of order 0": lambda p: p.norm(0, dim=0),
    "distance of order 0": lambda p: torch.dist(p, torch.ones(4), 0),
    "distances of order 0": lambda p: nn.functional.pairwise_distance(p[:, None], torch.ones(4, 1), 0.0),
    "norm of order 1": lambda p: torch.linalg.vector_norm(p, 1),
    "rounded, to an integer": lambda p: p.int().float(),
}


@pytest.mark.usefixtures("nothing_falls_back")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_zeros_are_there_where_eager_has_them(name: str) -> None:
    eager, ours, other = pair(Scaled(FUNCTIONS[name]))
    for module in (eager, ours):
        module(ramp(3, 4)).square().sum().backward()
    same_gradients(other, eager)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_changes_the_parameters_that_an_eager_one_changes(name: str) -> None:
    eager = Scaled(FUNCTIONS[name])
    ours = copy.deepcopy(eager)
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5) for module in (eager, ours)]
    step = glowtrain.torch.compile_step(ours, nn.functional.mse_loss, optimizers[1])
    for _ in range(3):
        optimizers[0].zero_grad()
        nn.functional.mse_loss(eager(ramp(3, 4)), ramp(3, 4)).backward()
        optimizers[0].step()
        step(ramp(3, 4), ramp(3, 4))
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)


def written_without_gradients(p: torch.Tensor) -> torch.Tensor:
    y = p * 2
    with torch.no_grad():
        y.mul_(3)
    return y


def set_without_gradients(p: torch.Tensor) -> torch.Tensor:
    y = p * 2
    with torch.no_grad():
        y[1:3] = 5.0
    return y


def written_by_another_name(p: torch.Tensor) -> torch.Tensor:
    y = p * 2
    y.detach().mul_(3)
    return y


@pytest.mark.parametrize("function", [written_without_gradients, set_without_gradients, written_by_another_name])
def test_what_is_written_beside_the_tape_is_left_to_pytorch(function: Function) -> None:
    torch._dynamo.reset()
    eager, ours, other = pair(Scaled(function))
    with pytest.warns(FallbackWarning, match="through which gradients flow is changed in place"):
        ours(ramp(3, 4)).square().sum().backward()
    eager(ramp(3, 4)).square().sum().backward()
    same_gradients(other, eager)
    descent = torch.optim.SGD(eager.parameters(), lr=0.1)
    with pytest.raises(ModelError, match="through which gradients flow is changed in place"):
        glowtrain.torch.compile_step(eager, nn.functional.mse_loss, descent)(ramp(3, 4), ramp(3, 4))


class Heads(nn.Module):
    """Results that depend on different parameters, or on none that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two, self.unused = (nn.Linear(4, 4) for _ in range(4))
        self.body.bias.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.body(x)
        with torch.no_grad():
            seen = self.two(h)
        return self.one(h), self.two(h.detach()).view(-1), self.two(x).t(), h.argmax(1), h.detach(), seen, x.sin()


@pytest.mark.usefixtures("nothing_falls_back")
@pytest.mark.parametrize("read", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_what_unread_results_depend_on_has_no_gradient(read: tuple[int, ...]) -> None:
    eager, ours, other = pair(Heads())
    for module in (eager, ours):
        results = module(ramp(3, 4))
        sum(results[number].square().sum() for number in read).backward()
    same_gradients(other, eager)


@pytest.mark.usefixtures("nothing_falls_back")
@pytest.mark.parametrize("needs", [False, True])
def test_results_require_gradients_where_those_of_eager_do(*, needs: bool) -> None:
    eager, ours, _ = pair(Heads())
    x = ramp(3, 4).requires_grad_(needs)
    for mine, theirs in zip(ours(x), eager(x), strict=True):
        assert mine.requires_grad == theirs.requires_grad
        assert (mine.grad_fn is None) == (theirs.grad_fn is None)


def slope(module: nn.Module, x: torch.Tensor, *, create_graph: bool) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(module(x).sin().sum(), x, create_graph=create_graph)
    return (found * module(x).detach()).sum() + found.square().sum()


def test_inner_gradients_are_constants_unless_their_graph_is_wanted() -> None:
    eager = Scaled(torch.sin)
    ours = copy.deepcopy(eager)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.5) for module in (eager, ours)]
    step = glowtrain.torch.compile_step(ours, lambda m, x: slope(m, x, create_graph=True), optimizers[1], targets=0)
    slope(eager, ramp(3, 4), create_graph=True).backward()
    optimizers[0].step()
    step(ramp(3, 4))
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)
    constant = glowtrain.torch.compile_step(
        ours, lambda m, x: slope(m, x, create_graph=False), optimizers[1], targets=0
    )
    with pytest.raises(DifferentiationError, match="does not depend on any trainable parameter"):
        constant(ramp(3, 4))


@pytest.mark.usefixtures("nothing_falls_back")
def test_gradients_that_nobody_gives_are_none() -> None:
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, g: torch.Tensor) -> None:
            return None

    eager, ours, other = pair(nn.Linear(4, 4))
    for module in (eager, ours):
        Dropped.apply(module(ramp(3, 4))).sum().backward()
    same_gradients(other, eager)


@pytest.mark.usefixtures("nothing_falls_back")
def test_hooks_of_parameters_without_a_gradient_are_not_called() -> None:
    module = Auxiliary(nn.LayerNorm(4), read=False)
    module.norm.weight.register_hook(lambda gradient: gradient * 2)
    compiled(module)(ramp(5, 3, 4)).sum().backward()
    assert module.norm.weight.grad is None
    assert module.layer.weight.grad is not None


def test_compiled_functions_of_results_that_nothing_is_connected_with() -> None:
    x = ramp(3).requires_grad_()
    assert not compiled(lambda x: x.detach() * 2)(x).requires_grad


# --- statistics that are written by operators whose result is not read -----------------------------------------------


class Auxiliary(nn.Module):
    """A norm whose result is read, or not."""

    def __init__(self, norm: nn.Module, *, read: bool) -> None:
        super().__init__()
        self.layer, self.norm, self.read = nn.Linear(4, 4), norm, read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        normed = self.norm(y)
        return normed * y if self.read else y


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(3),
    "batch, mean of all": lambda: nn.BatchNorm1d(3, momentum=None),
    "instance": lambda: nn.InstanceNorm1d(3, track_running_stats=True, affine=True),
    "instance, evaluated": lambda: nn.InstanceNorm1d(3, track_running_stats=True).eval(),
}


@pytest.mark.usefixtures("nothing_falls_back")
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_running_statistics_are_updated_also_where_the_norm_is_not_read(name: str, *, read: bool) -> None:
    eager, ours, other = pair(Auxiliary(NORMS[name](), read=read))
    stepped = copy.deepcopy(eager)
    descent = torch.optim.SGD(stepped.parameters(), lr=0.0)
    step = glowtrain.torch.compile_step(stepped, nn.functional.mse_loss, descent)
    for number in range(2):
        x = ramp(5, 3, 4) + number
        for module in (eager, ours):
            module(x).square().sum().backward()
        step(x, x)
    same_gradients(other, eager)
    for mine, theirs in zip(stepped.buffers(), eager.buffers(), strict=True):
        close(mine, theirs)
