"""Whether a module and an optimizer are still what was compiled: their tensors, where they lie, what is trained, in
which mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from glowtrain.errors import InputError
from glowtrain.torch.memory import check_memory, first_overlap
from glowtrain.torch.module import held
from glowtrain.torch.watching.guard import Guard

Flags = tuple[bool, ...]
MODE = "training"
"""What PyTorch calls the mode of a module."""


HOOKS_OF_ALL: Sequence[dict[Any, Any]] = (
    _global_forward_pre_hooks, _global_forward_hooks, _global_backward_pre_hooks, _global_backward_hooks,
    _global_optimizer_pre_hooks, _global_optimizer_post_hooks,
)  # fmt: skip
"""Hooks on whatever module or optimizer. Those on forward passes would be called for a trace's own modules, too."""


class Remembered:
    """What dicts and lists hold, and where tensors lie, as they were when this was made. It keeps their memory alive.

    Python's check of what a :class:`~glowtrain.torch.watching.guard.Guard` looks at in native code.
    """

    def __init__(
        self, dicts: Sequence[dict[Any, Any]], lists: Sequence[list[Any]], tensors: Sequence[torch.Tensor],
        items: Sequence[tuple[dict[str, Any], str]] = (),
    ) -> None:  # fmt: skip
        self.dicts = dicts
        self.lists = lists
        self.tensors = tensors
        self.items = items
        """Dicts of which one key counts."""
        self._contents = self._present()
        self._placed = self._places()
        self._memory = [tensor.untyped_storage() for tensor in tensors]

    def _present(self) -> list[list[Any]]:
        items = [mapping.get(key) for mapping, key in self.items]
        return [items, *map(list, self.lists), *[list(each.values()) for each in self.dicts]]

    def _places(self) -> list[Any]:
        return [(each.data_ptr(), each.shape, each.stride(), each.dtype, each.is_neg()) for each in self.tensors]

    @property
    def unchanged(self) -> bool:
        """Whether all have what they had, tensors at the same addresses."""
        return all(map(same, self._present(), self._contents)) and self._places() == self._placed

    def guarded(self, guard: Guard) -> None:
        """Add all of it to a guard."""
        guard.add_dicts(self.dicts)
        for mapping, key in self.items:
            guard.add_item(mapping, key)
        for each in self.lists:
            guard.add_list(each)
        for tensor in self.tensors:
            guard.add_tensor(tensor)


def same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether these are the same objects, as many and in the same order."""
    return len(some) == len(others) and all(map(is_, some, others))


class Watch:
    """The tensors of modules by name, as they were when this was made."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self.modules = modules
        self.tensors = {
            _joined(prefix, name): tensor for prefix, module in modules.items() for name, tensor in held(module).items()
        }
        # a part that torch.compile wrapped has the mode of what it wraps, which is a part, too
        self._parts = [part for module in modules.values() for part in module.modules() if MODE in vars(part)]
        dicts = [*HOOKS_OF_ALL, *[each for part in self._parts for each in dicts_of(part)]]
        tensors = [value for each in dicts for value in each.values() if isinstance(value, torch.Tensor)]
        self._all = list({id(tensor): tensor for tensor in tensors}.values())
        self._remembered = Remembered(dicts, [], self._all)

    @property
    def unchanged(self) -> bool:
        """Whether every name has the tensor or submodule that it had, tensors lie where and as they did, and there are
        no hooks on gradients."""
        return self._remembered.unchanged and not any(map(_hooks, self._all))

    @property
    def flags(self) -> Flags:
        """What else decides about the step: which parts are in training mode, which tensors are trained."""
        modes = [part.training for part in self._parts]
        return (*modes, *[tensor.requires_grad for tensor in self._all])

    def guarded(self, guard: Guard) -> None:
        """Add all of it, and which parts are in training mode, to a guard; it looks at whether tensors are trained."""
        self._remembered.guarded(guard)
        for part in self._parts:
            guard.add_item(part.__dict__, MODE)

    def check(self) -> None:
        """Raise :class:`InputError` for tensors that a step cannot work on, and hooks that it would not call."""
        for name, tensor in self.tensors.items():
            if not tensor.is_contiguous() and tensor.layout is torch.strided:
                raise InputError(
                    f"{name!r} {tuple(tensor.shape)} has strides {tensor.stride()}: make it row-major, "
                    "module.to(memory_format=torch.contiguous_format) for channels-last layers, or "
                    "tensor.data = tensor.data.contiguous()"
                )
            check_memory(tensor, f"{name!r}")
            if _hooks(tensor):
                raise InputError(
                    f"parameter {name!r} has hooks on its gradient, which a step would not call: remove them"
                )
        overlap = first_overlap(self.tensors)
        if overlap is not None:
            raise InputError(
                f"{overlap[0]!r} and {overlap[1]!r} are different tensors in the same memory: a step would update one "
                "through the other; make them one parameter, or clone() one of them"
            )
        if any(HOOKS_OF_ALL):
            raise InputError(
                "there are hooks on all modules or optimizers, which a step would not call: remove them, or register "
                "them on modules (module.register_forward_hook)"
            )
        for prefix, module in self.modules.items():
            for path, part in module.named_modules():
                if part._backward_hooks or part._backward_pre_hooks:
                    raise InputError(
                        f"module {_joined(prefix, path)!r} has backward hooks, which a step would not call"
                    )


def dicts_of(part: torch.nn.Module) -> Iterable[dict[Any, Any]]:
    """Where a module keeps tensors, submodules and hooks; those on gradients are empty."""
    yield from (part._parameters, part._buffers, part._modules)
    yield from (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)


def _hooks(tensor: torch.Tensor) -> bool:
    """Whether there are hooks on a tensor's gradient."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
