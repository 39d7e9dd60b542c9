"""A module's objective as PyTorch computes it, in f64: its value, and PyTorch's own gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from glowtrain.torch.checking.objective import Objective
from glowtrain.torch.module import state_tensors
from glowtrain.types import Array


class Eager:
    """An objective in f64, run by PyTorch. The module's tensors and PyTorch's generator stay as they are."""

    def __init__(self, goal: Objective, seed: int) -> None:
        self.seed = seed
        self.called = _Called(goal)
        self.inputs = {name: in_double(value) for name, value in goal.examples.items()}
        self._names = {name: id(tensor) for name, tensor in state_tensors(self.called).items()}
        self._parameters = {id(each): in_double(each) for each in self.called.parameters()}
        self._buffers = {id(each): in_double(each) for each in self.called.buffers()}
        trained = {name: id(each) for name, each in goal.tensors.items() if each.requires_grad}
        self._trained = {identity: name for name, identity in reversed(trained.items())}
        """The first names of trained tensors, by identity."""

    @property
    def leaves(self) -> dict[str, torch.Tensor]:
        """Trainable parameters and float inputs by name."""
        parameters = {name: self._parameters[identity] for identity, name in self._trained.items()}
        return parameters | {name: value for name, value in self.inputs.items() if is_float(value)}

    def loss(self, changed: Mapping[str, Array] | None = None) -> float:
        """The objective, with other values of some leaves."""
        others = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in (changed or {}).items()}
        with torch.no_grad():
            return float(self.run(others))

    def gradients(self) -> dict[str, Array]:
        """PyTorch's gradient for each leaf; zeros where none flows."""
        fresh = {name: leaf.clone().requires_grad_() for name, leaf in self.leaves.items()}
        loss = self.run(fresh)
        if not loss.requires_grad:
            return {name: np.zeros(leaf.shape) for name, leaf in fresh.items()}
        found = torch.autograd.grad(loss, list(fresh.values()), allow_unused=True, materialize_grads=True)
        return {name: gradient.numpy() for name, gradient in zip(fresh, found, strict=True)}

    def run(self, changed: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The objective with other tensors for some leaves, always from the same buffers and random numbers."""
        values = tuple(changed.get(name, value) for name, value in self.inputs.items())
        with double_precision(self.seed):
            result: torch.Tensor = torch.func.functional_call(self.called, self._tensors(changed), values)
        return result

    def part(self, path: str, named: Mapping[str, Any], *operands: Any) -> Any:
        """What a submodule makes of operands, and of others by name."""
        prefix = f"{path}."
        own = {n.removeprefix(prefix): tensor for n, tensor in self._tensors({}).items() if n.startswith(prefix)}
        return torch.func.functional_call(self.called.get_submodule(path), own, operands, dict(named))

    def _tensors(self, changed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        parameters = {
            identity: changed.get(self._trained.get(identity, ""), own) for identity, own in self._parameters.items()
        }
        tensors = parameters | {identity: buffer.clone() for identity, buffer in self._buffers.items()}
        return {name: tensors[identity] for name, identity in self._names.items()}


class _Called(torch.nn.Module):
    """An objective as a module, whose tensors can be replaced for a call."""

    def __init__(self, goal: Objective) -> None:
        super().__init__()
        self._goal = (goal,)  # in a tuple, so that nothing of it is registered twice
        for name, module in goal.modules.items():
            self.add_module(name, module)

    def forward(self, *values: Any) -> torch.Tensor:
        return self._goal[0](*values)


@contextmanager
def double_precision(seed: int) -> Iterator[None]:
    """PyTorch makes new tensors in f64, and draws the numbers that follow a seed; as before, afterwards."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=()):
        torch.random.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def is_float(value: Any) -> bool:
    """Whether a value is a tensor of floats."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def in_double(value: Any) -> Any:
    """A float tensor in f64, apart from its graph; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().double() if value.is_floating_point() else value.detach()
