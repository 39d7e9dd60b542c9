"""torch.compile(backend="glowtrain"): calls in a captured graph that change how PyTorch computes or differentiates."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from compiled import close, compiled, pair, ramp, same_gradients
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from glowtrain.torch.dynamo.backend import CapturedFunction, FallbackWarning
from glowtrain.torch.tracing.replay import BODIES, MODES

STATES = (
    torch._C, torch._C._functorch, torch._C._autograd, torch._functorch.predispatch, torch.amp.autocast_mode,
    torch.autograd.grad_mode, torch.autograd.forward_ad, torch._functorch.eager_transforms,
)  # fmt: skip
"""Where the functions live that change PyTorch's state."""


def graph_of(target: Any) -> torch.fx.GraphModule:
    """A graph as Dynamo makes them, in which the result of a call is not read."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(torch.cos, (x,))
    graph.output((graph.call_function(torch.sin, (x,)),))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    call.target = target  # not before: of some there is no source code
    return module


def falls_back(module: torch.fx.GraphModule, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a graph is handed to PyTorch as it is, before anything of it runs."""
    handed: list[Any] = []
    monkeypatch.setattr(module, "forward", lambda *arguments: handed.append(arguments))
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        CapturedFunction(module, [ramp(3)]).call(ramp(3))
    said = [each for each in noted if each.category is FallbackWarning and "is not followed" in str(each.message)]
    return len(said) == len(handed) == 1


def higher_order_operators() -> dict[str, Any]:
    """All that PyTorch has, also in modules that it imports late."""
    for each in pkgutil.walk_packages(torch._higher_order_ops.__path__, "torch._higher_order_ops."):
        importlib.import_module(each.name)
    return dict(torch._ops._higher_order_ops)


def functions_of_state() -> Iterator[Callable[..., Any]]:
    signs = ("grad", "autocast", "nesting", "mode", "hook", "level", "dual", "interpreter", "set_", "_enter", "_exit")
    for library in STATES:
        for name, function in vars(library).items():
            if callable(function) and not isinstance(function, type) and any(sign in name for sign in signs):
                yield function


def test_higher_order_operators_are_listed_or_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    known = higher_order_operators()
    assert known.keys() >= {*BODIES, "autograd_function_apply", "cond", "register_hook", "while_loop"}
    for name in known.keys() - BODIES.keys():
        assert falls_back(graph_of(known[name]), monkeypatch), name


def test_calls_that_change_pytorchs_state_are_listed_or_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = set(functions_of_state()) - MODES
    assert {torch._C._functorch._grad_increment_nesting, torch.amp.autocast_mode._enter_autocast} <= functions
    for function in functions:
        assert falls_back(graph_of(function), monkeypatch), function


# --- gradients of one's own ------------------------------------------------------------------------------------------


class Rounded(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.scale * g, None


class DoubledSine(torch.autograd.Function):
    """Twice its gradient, of what it saves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x.cos()


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return y.sin()


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.function(self.first(x)))


def cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum()


def bends(x: torch.Tensor) -> torch.Tensor:
    return vmap(hessian(lambda z: torch.tanh(z).sum()))(x).sum(-1)


class Ensemble(nn.Module):
    """One layer with several weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.weights = nn.Parameter(ramp(3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def one(weight: torch.Tensor) -> torch.Tensor:
            return functional_call(self.layer, {"weight": weight, "bias": self.layer.bias}, (x,))

        return vmap(one)(self.weights).sum(0)


def in_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ x.t()).float().sum(1, keepdim=True) + x


FOREIGN: dict[str, Callable[[], nn.Module]] = {
    "straight through": lambda: Between(Rounded.apply),
    "reversal": lambda: Between(lambda h: Reversed.apply(h, 0.5)),
    "a gradient of what was saved": lambda: Between(DoubledSine.apply),
    "a hook of a tensor": lambda: Between(hooked),
    "grad": lambda: Between(grad(cubes)),
    "vmap of grad": lambda: Between(vmap(grad(cubes))),
    "vjp": lambda: Between(lambda h: vjp(torch.sin, h)[1](h)[0]),
    "jvp": lambda: Between(lambda h: jvp(torch.sin, (h,), (h,))[1]),
    "jacrev": lambda: Between(lambda h: jacrev(torch.sin)(h).sum((0, 1))),
    "vmap of hessian": lambda: Between(bends),
    "vmap of functional_call": Ensemble,
    "autocast": lambda: Between(in_autocast),
    "reentrant checkpoint": lambda: Between(lambda h: checkpoint(torch.sin, h, use_reentrant=True)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_pytorch_differentiates_in_its_own_way_is_left_to_it(name: str) -> None:
    torch._dynamo.reset()
    eager, ours, other = pair(FOREIGN[name]())
    with pytest.warns(FallbackWarning, match="is not followed"):
        result = ours(ramp(3, 4))
    close(result, eager(ramp(3, 4)))
    for _ in range(2):
        for module in (eager, ours):
            module(ramp(3, 4)).square().sum().backward()
        same_gradients(other, eager)
    assert torch._C._functorch.maybe_current_level() is None
    assert torch.is_grad_enabled()


# --- what is compiled ------------------------------------------------------------------------------------------------


def partly(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sin()
        with torch.enable_grad():
            z = x.cos()
    return x * y + z


COMPILED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "no_grad, enable_grad": partly,
    "decorated": torch.no_grad()(torch.sin),
    "checkpoint": lambda h: checkpoint(lambda x: x.sin() * x, h, use_reentrant=False),
    "checkpoint with dead ends": lambda h: checkpoint(partly, h, use_reentrant=False),
}


@pytest.mark.usefixtures("nothing_falls_back")
@pytest.mark.parametrize("name", COMPILED)
def test_regions_without_gradients_and_checkpoints_are_compiled(name: str) -> None:
    eager, ours, other = pair(Between(COMPILED[name]))
    for module in (eager, ours):
        module(ramp(3, 4)).square().sum().backward()
    close(ours(ramp(3, 4)), eager(ramp(3, 4)))
    same_gradients(other, eager)


@pytest.mark.usefixtures("nothing_falls_back")
def test_functions_of_numpy_are_compiled() -> None:
    close(compiled(lambda x: torch.as_tensor(np.tanh(x.numpy()) * 2))(ramp(3)), ramp(3).tanh() * 2)


class Slope(nn.Module):
    """Its own gradient, which Dynamo leaves to autograd, between two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.layer(x)).sum()
        return torch.autograd.grad(y, [self.layer.weight], create_graph=True)[0].sum()


@pytest.mark.usefixtures("nothing_falls_back")
def test_a_gradient_within_a_module_is_not_traced_into() -> None:
    eager, ours, other = pair(Slope())
    for module in (eager, ours):
        module(ramp(8, 4)).backward()
    close(ours(ramp(8, 4)), eager(ramp(8, 4)))
    same_gradients(other, eager)


def test_gradients_are_on_again_after_a_trace_that_fails() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.special.bessel_j0(x)[x > 0]

    with pytest.warns(FallbackWarning):
        compiled(fails)(ramp(3))
    assert torch.is_grad_enabled()
