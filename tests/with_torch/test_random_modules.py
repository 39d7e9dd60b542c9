"""Random modules beside eager PyTorch: which parameters have a gradient, all values, what an optimizer changes.

What PyTorch differentiates in its own way is in them: a compiled module leaves it to PyTorch or does as PyTorch, and a
compiled step refuses it. ``--hypothesis-profile=thorough`` draws 1,000 new ones.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from eager import state_of
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from random_modules import ROWS, WIDTH, Design, designs, module_of
from torch import nn

import glowtrain.torch
from glowtrain.errors import GlowtrainError
from glowtrain.torch.dynamo.backend import FallbackWarning
from glowtrain.torch.dynamo.backend import glowtrain as backend

Tensors = Iterable[torch.Tensor]
OPTIMIZERS: dict[str, Callable[[Tensors], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, eps=1e-2),
}
"""AdamW with a large epsilon: it would make steps of rounding errors, where a gradient is zero but for these."""
STEPS = 2


def batch(number: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(number)
    return torch.randn(ROWS, WIDTH, generator=numbers, dtype=torch.float64)


def loss_of(results: Any, target: torch.Tensor | None = None) -> torch.Tensor:
    """Of all results but the last one, if there are others: that one may be left unread."""
    terms = [result.square().mean() * (number + 1) for number, result in enumerate(results[:-1] or results)]
    return torch.stack(terms).sum()


def same(ours: Any, theirs: Any, what: str) -> None:
    assert (ours is None) == (theirs is None), what
    if theirs is not None:
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8, msg=lambda text: f"{what}: {text}")


def same_state(ours: nn.Module, theirs: nn.Module, mine: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    for (name, one), two in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        same(one, two, name)
    states = state_of(mine), state_of(other)
    assert states[0].keys() == states[1].keys()
    for name, one in states[0].items():
        same(one.double(), states[1][name].double(), name)


def eager_loss(results: Any) -> torch.Tensor:
    loss = loss_of(results)
    assume(loss.requires_grad)
    assume(bool(loss.isfinite()))
    return loss


@settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(designs(), st.sampled_from(list(OPTIMIZERS)), st.booleans())
def test_compiled_modules(design: Design, name: str, needs: bool) -> None:
    eager, other = module_of(design), module_of(design)
    torch._dynamo.reset()
    ours = torch.compile(other, backend=backend)
    optimizers = [OPTIMIZERS[name](module.parameters()) for module in (eager, other)]
    for number in range(STEPS):
        inputs = [batch(number).requires_grad_(needs) for _ in range(2)]
        expected = eager(inputs[0])
        loss = eager_loss(expected)
        with warnings.catch_warnings():
            warnings.simplefilter("default" if design.has_own_gradients else "error", FallbackWarning)
            results = ours(inputs[1])
        for one, two in zip(results, expected, strict=True):
            same(one, two, "a result")
            assert one.requires_grad == two.requires_grad
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        loss_of(results).backward()
        same(inputs[1].grad, inputs[0].grad, "the input")
        for (path, one), two in zip(other.named_parameters(), eager.parameters(), strict=True):
            same(one.grad, two.grad, path)
        for optimizer in optimizers:
            optimizer.step()
    same_state(other, eager, optimizers[1], optimizers[0])


def stepping(module: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], Any]:
    """A compiled step as a function of a batch: the loss, or None where it is refused."""

    def step(x: torch.Tensor) -> Any:
        with contextlib.suppress(GlowtrainError):
            made[:] = made or [glowtrain.torch.compile_step(module, loss_of, optimizer)]
            return made[0](x, x)

    made: list[Any] = []
    return step


@settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(designs(), st.sampled_from(list(OPTIMIZERS)))
def test_compiled_steps(design: Design, name: str) -> None:
    eager, ours = module_of(design), module_of(design)
    optimizers = [OPTIMIZERS[name](module.parameters()) for module in (eager, ours)]
    step = stepping(ours, optimizers[1])
    for number in range(STEPS):
        optimizers[0].zero_grad()
        loss = eager_loss(eager(batch(number)))
        loss.backward()
        optimizers[0].step()
        result = step(batch(number))
        if result is None:
            assert design.has_own_gradients
            return
        same(result, loss.detach(), "the loss")
    same_state(ours, eager, optimizers[1], optimizers[0])
