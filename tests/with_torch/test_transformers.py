"""Models of Hugging Face's transformers: outputs, gradients and three steps beside eager PyTorch in f64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers_models import MODELS, Batch, compiled_step, loss_of, made

from glowtrain.errors import ModelError
from glowtrain.torch.dynamo.backend import FallbackWarning

STEPS = 3
LEFT_TO_PYTORCH = {"bloom": "autograd_function_apply", "mamba": "lazy_load_decompositions"}
"""A GELU with a backward of its own; an associative scan, which is ``torch.vmap``'s."""


def in_f64(model: nn.Module, batch: Batch) -> tuple[nn.Module, Batch]:
    wide = {name: each.double() if each.is_floating_point() else each for name, each in batch.items()}
    return copy.deepcopy(model).double(), wide


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=0.01)


def trained(model: nn.Module, batch: Batch, call: Callable[..., Any]) -> dict[str, torch.Tensor]:
    """Outputs and gradients of the first step, losses of all, and what the last one leaves."""
    optimizer, seen = sgd(model), {}
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(call, batch)
        loss.backward()
        seen[f"loss {number}"] = loss.detach()
        if not number:
            seen |= {f"{name}.grad": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return seen | dict(model.state_dict())


def check(ours: dict[str, torch.Tensor], eager: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> None:
    """Some times as far from f64 as eager f32 is, at most, over all tensors; a few roundings are always allowed."""
    assert ours.keys() == exact.keys()
    for name, expected in exact.items():
        allowed = 8 * distance(eager[name], expected) + 2e-6 * max(1.0, float(expected.abs().max()))
        assert distance(ours[name], expected) <= allowed, name


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def check_torch_compile(name: str) -> None:
    model, batch = made(name)
    exact, eager = in_f64(model, batch), copy.deepcopy(model)
    check(
        trained(model, batch, torch.compile(model, backend="glowtrain")),
        trained(eager, batch, eager),
        trained(*exact, exact[0]),
    )


@pytest.mark.usefixtures("nothing_falls_back")
@pytest.mark.parametrize("name", sorted(MODELS.keys() - LEFT_TO_PYTORCH.keys()))
def test_torch_compile(name: str) -> None:
    check_torch_compile(name)


@pytest.mark.parametrize("name", LEFT_TO_PYTORCH)
def test_what_is_left_to_pytorch_is_as_right(name: str) -> None:
    torch._dynamo.reset()
    with pytest.warns(FallbackWarning, match=LEFT_TO_PYTORCH[name]):
        check_torch_compile(name)


def test_a_step_refuses_a_backward_of_its_own() -> None:
    model, batch = made("bloom")
    with pytest.raises(ModelError, match=r"GeLUFunction, a torch.autograd.Function, is not followed"):
        compiled_step(model, sgd(model), batch)()


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"bloom"}))
def test_compile_step(name: str) -> None:
    model, batch = made(name)
    exact, eager = in_f64(model, batch), copy.deepcopy(model)
    step = compiled_step(model, sgd(model), batch)
    losses = {f"loss {number}": step().clone() for number in range(STEPS)}
    after = trained(*exact, exact[0])
    check(losses | dict(model.state_dict()), trained(eager, batch, eager), without_gradients(after))


def without_gradients(seen: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each for name, each in seen.items() if not name.endswith(".grad")}
