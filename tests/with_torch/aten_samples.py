"""Samples of PyTorch's operators: functions and layers with inputs of their own, and what reading them gave."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
from torch import nn
from torch.utils import _pytree as pytree

import glowtrain as gt
import glowtrain.torch.read as reading
from glowtrain.torch.tracing.trace import name_of

Draw = Callable[[torch.Generator], torch.Tensor]


def real(*shape: int, low: float = -2, high: float = 2, dtype: torch.dtype = torch.float32) -> Draw:
    """Floats in [low, high)."""
    return lambda generator: (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)


def unit(*shape: int) -> Draw:
    """Floats in (-0.9, 0.9)."""
    return real(*shape, low=-0.9, high=0.9)


def positive(*shape: int) -> Draw:
    """Floats in [0.2, 2)."""
    return real(*shape, low=0.2)


def normal(*shape: int, scale: float = 1) -> Draw:
    return lambda generator: torch.randn(shape, generator=generator) * scale


def whole(*shape: int, low: int = 0, below: int = 5, dtype: torch.dtype = torch.int64) -> Draw:
    """Integers in [low, below)."""
    return lambda generator: torch.randint(low, below, shape, generator=generator).to(dtype)


def truth(*shape: int) -> Draw:
    return lambda generator: torch.rand(shape, generator=generator) > 0.5


def exactly(*numbers: Any, dtype: torch.dtype | None = None) -> Draw:
    return lambda _: torch.tensor(list(numbers), dtype=dtype)


def simplex(*shape: int) -> Draw:
    """Probabilities along axis 1."""
    return lambda generator: torch.randn(shape, generator=generator).softmax(1)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@dataclass(frozen=True)
class Sample:
    """A module and its inputs.

    ``random``: only types, means and deviations of results are PyTorch's. ``gradient``: whether there is one; PyTorch
    gives none of the inputs ``constants``. ``reference``: the floats that PyTorch computes with; None for those of the
    inputs. ``tolerance`` is relative to the largest element.
    """

    name: str
    make: Callable[[], nn.Module]
    draws: tuple[Draw, ...]
    random: bool = False
    gradient: bool = True
    constants: tuple[int, ...] = ()
    reference: torch.dtype | None = torch.float64
    tolerance: float = 1e-5

    @cached_property
    def module(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return self.make()

    @property
    def seed(self) -> int:
        return crc32(self.name.encode())

    @cached_property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(self.seed)
        return tuple(draw(generator) for draw in self.draws)

    @cached_property
    def read(self) -> tuple[gt.Graph, frozenset[str]]:
        """The graph, and the operators that reading found in the trace."""
        found: set[str] = set()
        original = reading._reading

        def noted(node: torch.fx.Node) -> Any:
            found.add(name_of(node.target))
            return original(node)

        with patch.object(reading, "_reading", noted):
            graph = gt.from_torch(self.module, self.inputs, dims={})
        assert isinstance(graph, gt.Graph)
        return graph, frozenset(found)

    def eager(self, dtype: torch.dtype | None = None) -> Eager:
        """PyTorch's results, with floats of ``dtype``."""
        module = deepcopy(self.module)
        inputs = [deepcopy(each) for each in self.inputs]
        if dtype is not None:
            module = module.to(dtype)
            inputs = [each.to(dtype) if each.is_floating_point() else each for each in inputs]
        for i, each in enumerate(inputs):
            each.requires_grad_(each.is_floating_point() and i not in self.constants)
        return Eager(module, inputs)


class Eager:
    """A run of PyTorch."""

    def __init__(self, module: nn.Module, inputs: list[torch.Tensor]) -> None:
        self.module, self.inputs = module, inputs
        held = pytree.tree_leaves(module(*(each.clone() for each in inputs)))
        self.results = [each for each in held if isinstance(each, torch.Tensor)]

    def gradients(self, cotangents: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of floats by name: inputs by number, parameters by name; none where no result depends on any."""
        pairs = [(y, c.to(y.dtype)) for y, c in zip(self.results, cotangents, strict=True) if y.requires_grad]
        named = {str(i): each for i, each in enumerate(self.inputs) if each.requires_grad}
        named |= {name: each for name, each in self.module.named_parameters() if each.requires_grad}
        if not pairs or not named:
            return {}
        found = torch.autograd.grad(
            [y for y, _ in pairs],
            list(named.values()),
            [c for _, c in pairs],
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(named, found, strict=True))


SAMPLES: dict[str, Sample] = {}


def function(name: str, compute: Callable[..., Any], *draws: Draw, **options: Any) -> None:
    """Enter a function of tensors."""
    layer(name, lambda: Function(compute), *draws, **options)


def layer(name: str, make: Callable[[], nn.Module], *draws: Draw, **options: Any) -> None:
    """Enter a module, which is made after seeding PyTorch."""
    assert name not in SAMPLES, name
    SAMPLES[name] = Sample(name, make, draws, **options)
