"""Which backward of a person's own is wrong: of a torch.autograd.Function, or of a submodule with hooks.

PyTorch takes both on trust. Each call that a run of the module makes is put to the test alone, at the operands it
really has: its backward along random directions, against differences of its forward, in f64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from glowtrain.gradcheck.models.model import is_kink, scale_of, slopes_along
from glowtrain.torch.checking.eager import Eager, double_precision, is_float
from glowtrain.torch.tracing.computation import MODULE
from glowtrain.torch.tracing.source_locations import present_line
from glowtrain.types import Array

DIRECTIONS = 3
"""Random directions along which each operand of a call is checked."""


@dataclass(frozen=True)
class RecordedCall:
    """A function of tensors, the operands that it was called with, and what it is called in messages."""

    what: str
    function: Callable[..., Any]
    operands: tuple[Any, ...]


def wrong_backward(eager: Eager) -> str:
    """What is wrong with the Function nearest to the loss whose backward is wrong by itself, else with the innermost
    submodule; empty if nothing is."""
    functions, modules = _calls(eager)
    for call in (*reversed(functions), *modules):
        if wrong := _wrong(call, eager.seed):
            return f"{call.what} is wrong: {wrong}"
    return ""


def _calls(eager: Eager) -> tuple[list[RecordedCall], list[RecordedCall]]:
    """The calls of Functions and of submodules that a run makes, in the order in which they end."""
    functions: list[RecordedCall] = []
    modules: list[RecordedCall] = []
    fresh = {name: leaf.clone().requires_grad_() for name, leaf in eager.leaves.items()}
    kinds = _kinds(eager.run(fresh))
    with ExitStack() as stack:
        paths = stack.enter_context(_paths(eager, modules))
        for kind in kinds:
            stack.enter_context(_recorded(kind, paths, functions))
        eager.run(fresh)
    return functions, modules


def _kinds(loss: torch.Tensor) -> list[type]:
    """The classes of Functions that a loss was computed by."""
    found: dict[type, None] = {}
    stack, seen = [loss.grad_fn], {None}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(before for before, _ in node.next_functions)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found[node._forward_cls] = None
    return list(found)


@contextmanager
def _recorded(kind: type, paths: Sequence[str], calls: list[RecordedCall]) -> Iterator[None]:
    """Note calls of a Function: its forward is called from C++, with or without a context, by whatever name a person's
    code has for its apply."""
    own = kind.__dict__.get("forward")
    forward = kind.forward  # type: ignore[attr-defined]

    def recording(*args: Any) -> Any:
        operands = args[1:] if args and isinstance(args[0], torch.autograd.function.BackwardCFunction) else args
        where = f"in {paths[-1]} ({present_line()})" if paths[-1] else f"({present_line()})"
        result = forward(*args)
        calls.append(RecordedCall(f"the backward of {kind.__name__} {where}", kind.apply, _copied(operands)))  # type: ignore[attr-defined]
        return result

    kind.forward = staticmethod(recording)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if own is None:
            del kind.forward  # type: ignore[attr-defined]
        else:
            kind.forward = own  # type: ignore[attr-defined]


@contextmanager
def _paths(eager: Eager, calls: list[RecordedCall]) -> Iterator[list[str]]:
    """The names of the submodules that are running, the innermost last; and note their calls."""
    paths = [""]
    started: list[RecordedCall] = []

    def begin(path: str, operands: tuple[Any, ...], named: dict[str, Any]) -> None:
        paths.append(path)
        function = partial(eager.part, f"{MODULE}.{path}", named)
        started.append(RecordedCall(f"the gradient of submodule {path!r}", function, _copied(operands)))

    def end() -> None:
        paths.pop()
        calls.append(started.pop())

    with ExitStack() as stack:
        for path, part in eager.called.get_submodule(MODULE).named_modules():
            if path:
                before = part.register_forward_pre_hook(
                    lambda _, operands, named, path=path: begin(path, operands, named), with_kwargs=True
                )
                after = part.register_forward_hook(lambda *_: end())
                stack.callback(before.remove)
                stack.callback(after.remove)
        yield paths


def _copied(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands as they are now, whatever is done to them in place."""
    return tuple(
        each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each
        for each in operands
    )


def _wrong(call: RecordedCall, seed: int) -> str:
    """How the backward of a call differs from differences of its forward; empty where it does not, or on a kink."""
    alone = _Alone(call, seed)
    random = np.random.default_rng(seed)
    for number, gradient in alone.gradients().items():
        for _ in range(DIRECTIONS):
            direction = random.choice([-1.0, 1.0], gradient.shape)
            if wrong := alone.along(number, gradient, direction):
                return wrong
    return ""


class _Alone:
    """A call by itself, its results weighed to a loss."""

    def __init__(self, call: RecordedCall, seed: int) -> None:
        self.call = call
        self.seed = seed
        self.results = self._run(call.operands)
        random = np.random.default_rng(seed)
        self.weights = [
            torch.from_numpy(random.uniform(0.5, 1.5, each.shape)) if is_float(each) and each.requires_grad else None
            for each in self.results
        ]

    def gradients(self) -> dict[int, Array]:
        """PyTorch's gradients by the numbers of the operands that have one."""
        wanted = [i for i, each in enumerate(self.call.operands) if is_float(each) and each.requires_grad]
        loss = self._loss(self.results)
        if not wanted or not loss.requires_grad:
            return {}
        leaves = [self.call.operands[i] for i in wanted]
        found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return {number: gradient.double().numpy() for number, gradient in zip(wanted, found, strict=True)}

    def along(self, number: int, gradient: Array, direction: Array) -> str:
        """What is wrong with the gradient for an operand along a direction, if anything."""
        point = self.call.operands[number].detach().double().numpy()
        direction = direction * scale_of(point)
        expected, natural = float(np.vdot(gradient, direction)), float(np.linalg.norm(gradient * direction))
        here = float(self._loss(self.results).detach())
        slopes = slopes_along(lambda at: self._loss_at(number, at), here, point, direction, expected, natural)
        if slopes[-1].ratio <= 1 or is_kink(slopes):
            return ""
        return f"operand {number}: backward {expected:.9g}, differences {slopes[-1].central:.9g}"

    def _loss_at(self, number: int, array: Array) -> float:
        operands = list(self.call.operands)
        operands[number] = torch.from_numpy(np.ascontiguousarray(array)).to(operands[number].dtype)
        with torch.no_grad():
            return float(self._loss(self._run(operands)))

    def _loss(self, results: Sequence[Any]) -> torch.Tensor:
        terms = [(each * w).sum() for each, w in zip(results, self.weights, strict=True) if w is not None]
        return torch.stack(terms).sum() if terms else torch.zeros(())

    def _run(self, operands: Sequence[Any]) -> list[Any]:
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in operands]
        with double_precision(self.seed):
            results: list[Any] = pytree.tree_leaves(self.call.function(*copies))
        return results
