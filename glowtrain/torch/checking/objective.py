"""A number made of a module's results, to differentiate: by a loss, or a weighted mean of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from glowtrain.errors import InputError
from glowtrain.grad.training import LOSS
from glowtrain.graph import Graph, Input, Node
from glowtrain.torch.aten.table import type_of_fake
from glowtrain.torch.memory import array_of
from glowtrain.torch.module import (
    Examples,
    ModuleArguments,
    arguments_of,
    by_placeholder,
    check_module,
    state_tensors,
    variables_of,
)
from glowtrain.torch.random_state import RandomState
from glowtrain.torch.read import read
from glowtrain.torch.steps.loss import check_loss, check_loss_function
from glowtrain.torch.tracing.computation import MODULE, Computation
from glowtrain.torch.tracing.source_locations import source_location
from glowtrain.torch.tracing.trace import traced

LossFunction = Callable[..., Any]
TARGET = "target"
"""What the loss's arguments after a module's results are called."""


@dataclass(frozen=True)
class Objective:
    """A scalar of a module at a point. ``loss_fn(module(*inputs), *targets)``, or a mean of all float results whose
    elements have ``weights``. The module itself is never changed."""

    module: torch.nn.Module
    arguments: ModuleArguments
    targets: Sequence[Any]
    loss_fn: LossFunction | None
    weights: Sequence[torch.Tensor]

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The module, and the loss if it is one, by what the names of their tensors begin with when traced."""
        return {MODULE: self.module, **({LOSS: self.loss_fn} if isinstance(self.loss_fn, torch.nn.Module) else {})}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All parameters and buffers, the module's under its own names."""
        loss = state_tensors(self.loss_fn) if isinstance(self.loss_fn, torch.nn.Module) else {}
        return state_tensors(self.module) | {f"{LOSS}.{name}": tensor for name, tensor in loss.items()}

    @property
    def examples(self) -> dict[str, Any]:
        """Inputs and targets by name."""
        several = len(self.targets) > 1
        named = {f"{TARGET}{number}" if several else TARGET: value for number, value in enumerate(self.targets)}
        return {**self.arguments.leaves, **named}

    def __call__(self, *values: Any) -> torch.Tensor:
        """The scalar, by PyTorch, from inputs and targets in order."""
        count = len(self.arguments.leaves)
        leaves, targets = values[:count], values[count:]
        results = self.arguments.call(self.module, leaves)
        if self.loss_fn is None:
            return _mean(results, self.weights)
        loss: Any = next(iter(pytree.tree_leaves(self.loss_fn(results, *targets))), None)  # others may follow it
        check_loss(loss)
        scalar: torch.Tensor = loss
        return scalar


def objective(
    module: torch.nn.Module, inputs: Examples, loss_fn: LossFunction | None, targets: Any, seed: int
) -> Objective:
    """The objective of a module. Raises :class:`InputError` for what does not fit, and for results without floats."""
    check_module(module)
    if loss_fn is not None:
        check_loss_function(loss_fn)
    if loss_fn is None and targets is not None:
        raise InputError("targets are the loss's: give loss_fn as well")
    further = () if targets is None else (targets,) if isinstance(targets, torch.Tensor) else tuple(targets)
    arguments = arguments_of(module, inputs)
    weights = () if loss_fn is not None else _weights(module, arguments, seed)
    return Objective(module, arguments, further, loss_fn, weights)


def _weights(module: torch.nn.Module, arguments: ModuleArguments, seed: int) -> list[torch.Tensor]:
    """A weight for each element of each float result, so that a loss sees all of them."""
    buffers = {name: tensor.clone() for name, tensor in module.named_buffers()}
    bound = arguments.bound(list(arguments.leaves.values()))
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        results = _floats(torch.func.functional_call(module, buffers, bound.args, bound.kwargs))
    if not results:
        raise InputError(f"{type(module).__name__} returns no float tensor: pass loss_fn")
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(each.shape, generator=generator) + 0.5 for each in results]


def _mean(results: Any, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    terms = [(each * weight).mean() for each, weight in zip(_floats(results), weights, strict=True)]
    return torch.stack(terms).sum() if len(terms) > 1 else terms[0]


def _floats(results: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(results) if isinstance(each, torch.Tensor) and each.is_floating_point()]


@dataclass(frozen=True)
class ReadObjective:
    """An objective as a graph with the only output ``loss``. ``locations``: where its nodes come from; ``random``:
    whether it draws random numbers."""

    graph: Graph
    locations: Mapping[Node, str]
    random: bool


def read_objective(goal: Objective) -> ReadObjective:
    """Trace and read an objective. Raises as :func:`~glowtrain.torch.from_torch` does."""
    trace = traced(Computation(goal, forward_only=True, **goal.modules), list(goal.examples.values()))
    given = [Input(type_of_fake(value), name) for name, value in goal.examples.items() if _is_tensor(value)]
    tensors = goal.tensors
    arrays = {name: array_of(tensor.detach().contiguous()).copy() for name, tensor in tensors.items()}
    variables = variables_of(trace, tensors, arrays)
    random = RandomState(0)
    found = read(trace, {**by_placeholder(trace, given), **variables}, random, MODULE)
    name = type(goal.module).__name__.lower()
    graph = Graph(tuple(given), {LOSS: found.results[0]}, name=name)
    locations = {node: source_location(origin, MODULE) for node, origin in found.made_for.items()}
    return ReadObjective(graph, locations, random.used)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
