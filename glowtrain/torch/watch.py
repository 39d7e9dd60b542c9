"""Whether a module is still what was compiled: its tensors, where they lie, what is trained, in which mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any

import torch

from glowtrain.errors import InputError
from glowtrain.torch.memory import check_memory
from glowtrain.torch.module import held

Flags = tuple[bool, ...]


class Watch:
    """The tensors of modules by name, as they were when this was made. It keeps their memory alive."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self.modules = modules
        self.tensors = {
            _joined(prefix, name): tensor for prefix, module in modules.items() for name, tensor in held(module).items()
        }
        self._parts = [part for module in modules.values() for part in module.modules()]
        self._places = list(_places(self._parts))
        self._held = [each for named in self._places for each in named.values()]
        self._hooks = [hooks for part in self._parts for hooks in (part._backward_hooks, part._backward_pre_hooks)]
        self._all = [each for each in self._held if isinstance(each, torch.Tensor)]
        self._addresses = [tensor.data_ptr() for tensor in self._all]
        self._memory = [tensor.untyped_storage() for tensor in self._all]

    @property
    def unchanged(self) -> bool:
        """Whether every name still has the tensor or submodule that it had, tensors at the same address, and there are
        no backward hooks."""
        held = [each for named in self._places for each in named.values()]
        if len(held) != len(self._held) or not all(map(is_, held, self._held)) or any(self._hooks):
            return False
        return [tensor.data_ptr() for tensor in self._all] == self._addresses

    @property
    def flags(self) -> Flags:
        """What else decides about the step: which parts are in training mode, which tensors are trained."""
        modes = [part.training for part in self._parts]
        return (*modes, *[tensor.requires_grad for tensor in self._all])

    def check(self) -> None:
        """Raise :class:`InputError` for tensors that a step cannot work on, and hooks that it would not call."""
        ends: list[tuple[int, int, str]] = []
        for name, tensor in self.tensors.items():
            check_memory(tensor, f"{name!r}")
            _check_hooks(name, tensor)
            ends.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name))
        self._check_overlaps(ends)
        for prefix, module in self.modules.items():
            for path, part in module.named_modules():
                if part._backward_hooks or part._backward_pre_hooks:
                    raise InputError(
                        f"module {_joined(prefix, path)!r} has backward hooks, which a step would not call"
                    )

    def _check_overlaps(self, ends: list[tuple[int, int, str]]) -> None:
        last: tuple[int, int, str] | None = None
        for first, behind, name in sorted(ends):
            if last is not None and first < last[1] and self.tensors[name] is not self.tensors[last[2]]:
                raise InputError(
                    f"{last[2]!r} and {name!r} are different tensors in the same memory: a step would update one "
                    "through the other; make them one parameter, or clone() one of them"
                )
            last = (first, behind, name) if behind > first else last


def _check_hooks(name: str, tensor: torch.Tensor) -> None:
    if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        raise InputError(f"parameter {name!r} has hooks on its gradient, which a step would not call: remove them")


def _places(parts: Sequence[torch.nn.Module]) -> Iterator[dict[str, Any]]:
    """Where modules keep tensors and submodules by name."""
    for part in parts:
        yield from (part._parameters, part._buffers, part._modules)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
