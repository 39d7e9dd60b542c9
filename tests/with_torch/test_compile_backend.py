"""The backend of torch.compile: its name, whole graphs, one native call each way, and what it leaves to PyTorch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled import close, compiled, pair, ramp, same_gradients
from eager import net
from torch import nn

from glowtrain.compiler.address_function import AddressFunction
from glowtrain.torch.dynamo.backend import CapturedFunction, FallbackWarning

pytestmark = pytest.mark.usefixtures("nothing_falls_back")


def test_the_backend_is_found_by_its_name() -> None:
    """By the entry point of the installed package."""
    assert "glowtrain" in torch._dynamo.list_backends()
    module = net()
    close(torch.compile(module, backend="glowtrain")(ramp(4, 6)), module(ramp(4, 6)))


def test_recurrent_modules_do_not_break_the_graph(captured: list[CapturedFunction]) -> None:
    compiled(nn.LSTM(4, 5), fullgraph=True)(ramp(3, 2, 4))
    assert len(captured) == 1


def test_views_alone_and_results_without_arguments() -> None:
    x = ramp(2, 3)
    assert compiled(lambda x: x.t())(x).data_ptr() == x.data_ptr()
    close(compiled(lambda: torch.ones(3) * 2)(), torch.full((3,), 2.0))
    result, size = compiled(lambda x: (x + 1, x.shape[0]))(x)
    close(result, x + 1)
    assert size == 2


def test_modules_are_copied_before_and_after() -> None:
    module = net()
    ours = compiled(module)
    ours(ramp(4, 6))
    close(compiled(copy.deepcopy(module))(ramp(4, 6)), ours(ramp(4, 6)))


def test_a_call_is_one_native_call_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    before = AddressFunction.__call__

    def noting(self: AddressFunction, addresses: Any) -> None:
        calls.append(self.graph.name)
        before(self, addresses)

    monkeypatch.setattr(AddressFunction, "__call__", noting)
    ours = compiled(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
    for _ in range(3):
        ours(ramp(8, 6)).sum().backward()
    assert calls == ["captured.forward", "captured.backward"] * 3


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda layer: layer.register_forward_hook(lambda _, __, result: 2 * result),
    "before": lambda layer: layer.register_forward_pre_hook(lambda _, given: (2 * given[0],)),
    "backward": lambda layer: layer.register_full_backward_hook(lambda _, slopes, __: (2 * slopes[0],)),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_modules_that_come_and_go(name: str) -> None:
    eager, ours, other = pair(net())
    for module, called in ((eager, eager), (other, ours)):
        called(ramp(4, 6)).square().sum().backward()
        hook = HOOKS[name](module[1])
        called(ramp(4, 6)).square().sum().backward()
        hook.remove()
        called(ramp(4, 6)).exp().sum().backward()
    same_gradients(other, eager)


# --- what is left to PyTorch -----------------------------------------------------------------------------------------


class Unsupported(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x) + 1


def test_what_is_not_supported_is_named_once() -> None:
    x, ours = ramp(5), compiled(Unsupported())
    with pytest.warns(FallbackWarning, match=r"bessel_j0.*test_compile_backend.py:\d+: return torch.special") as noted:
        close(ours(x), Unsupported()(x))
    for _ in range(3):
        close(ours(x), Unsupported()(x))  # says nothing more: the fixture makes errors of warnings
    assert len([each for each in noted if each.category is FallbackWarning]) == 1


@pytest.mark.filterwarnings("default::glowtrain.torch.dynamo.backend.FallbackWarning")
def test_autocast_is_left_to_pytorch() -> None:
    eager, ours, _ = pair(net())
    with torch.autocast("cpu", torch.bfloat16):
        expected = eager(ramp(4, 6))
        with pytest.warns(FallbackWarning, match="autocast"):
            result = ours(ramp(4, 6))
    close(result, expected)


@pytest.mark.filterwarnings("default::glowtrain.torch.dynamo.backend.FallbackWarning")
def test_an_input_that_requires_a_gradient_changed_in_place() -> None:
    found = []
    for function in (lambda h: h.mul_(ramp(5)), compiled(lambda h: h.mul_(ramp(5)))):
        x = ramp(5).requires_grad_()
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            function(x.exp().clone()).sum().backward()
        found.append(x.grad)
    assert any("requires a gradient is changed in place" in str(each.message) for each in noted)
    close(*found)


@pytest.mark.filterwarnings("default::glowtrain.torch.dynamo.backend.FallbackWarning")
def test_results_whose_shape_depends_on_elements_are_left_to_pytorch() -> None:
    x = ramp(5)
    with pytest.warns(FallbackWarning, match="depends on elements"):
        found = compiled(torch.argwhere, fullgraph=True)(x)
    assert found.tolist() == torch.argwhere(x).tolist()


# --- numbers that are not finite --------------------------------------------------------------------------------------


def test_logaddexp_of_equal_infinities() -> None:
    x, y = torch.tensor([-torch.inf, 1.0, -torch.inf]), torch.tensor([-torch.inf, -torch.inf, 2.0])
    torch.testing.assert_close(compiled(torch.logaddexp)(x, y), torch.logaddexp(x, y))
