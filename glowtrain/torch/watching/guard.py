"""Whether all that a compiled step relies on is what it was: each call of a step looks before it runs.

A step is traced once and works in the memory of PyTorch's tensors from then on. What is watched, and why:

- which parameters, buffers and submodules modules have, which hooks on forward passes: these were traced
- where tensors lie, in which shape and element type, row-major, not as negatives: the native function has their
  addresses (``.data =``, ``set_()``, ``share_memory_()``, ``to()``, ``load_state_dict(assign=True)``)
- ``training`` of each module and ``requires_grad`` of each tensor: each combination has a step of its own
- hooks on gradients, on backward passes, on the optimizer, on all modules or optimizers: a step would not call them
- the optimizer's ``state`` and ``param_groups``, which tensors they hold and where these lie; its settings, which are
  read before each step (:mod:`glowtrain.torch.steps.optimizers`)
- tensors and modules that are captured by a loss (:mod:`.captured`): floats may move, other tensors are constants
- what else Python code read (:mod:`.python_reads`), the default element type, autocast and inference mode

All of it is looked at by public attributes and by identity. Changes of elements need no watching, as a step reads them
where they are. Nothing that goes unnoticed can make a step touch memory that was freed: the step's state holds a NumPy
array over each tensor's memory, for which PyTorch keeps it and refuses to resize it. ``share_memory_()`` alone takes
memory away, and gives the tensor another address.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, starmap
from operator import attrgetter, is_, itemgetter
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
from glowtrain.torch.memory import address, check_memory, first_overlap
from glowtrain.torch.module import state_tensors

Flags = tuple[bool, ...]
MODE = "training"
"""What PyTorch calls the mode of a module."""
HOOKS_OF_ALL: Sequence[dict[Any, Any]] = (
    _global_forward_pre_hooks, _global_forward_hooks, _global_backward_pre_hooks, _global_backward_hooks,
    _global_optimizer_pre_hooks, _global_optimizer_post_hooks,
)  # fmt: skip
"""Hooks on whatever module or optimizer. Those on forward passes would be called for a trace's own modules, too."""
_form, _requires_grad, _mode = attrgetter("shape", "dtype"), attrgetter("requires_grad"), itemgetter(MODE)
_backward_hooks, _accumulation_hooks = attrgetter("_backward_hooks"), attrgetter("_post_accumulate_grad_hooks")


class Guard:
    """Row-major tensors, and what collections and dicts hold, as they were when this was made; it keeps all of it.

    ``collections`` are lists, and views of dicts, whose elements count by identity and order; ``items`` are dicts of
    which one key counts.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor] = (), collections: Sequence[Collection[Any]] = (),
        items: Sequence[tuple[dict[str, Any], str]] = (),
    ) -> None:  # fmt: skip
        self._tensors, self._items = tensors, items
        self._filled = [each for each in collections if each]
        self._empty = [each for each in collections if not each]
        self._lengths = list(map(len, self._filled))
        self._objects = list(self._present())
        self._addresses, self._forms = list(map(address, tensors)), list(map(_form, tensors))
        self._check_forms = _check_of_dynamo(tensors)

    def _present(self) -> Iterator[Any]:
        return chain(chain.from_iterable(self._filled), starmap(dict.get, self._items))

    @property
    def holds(self) -> bool:
        """Whether nothing has changed."""
        return (
            not any(self._empty)
            and list(map(len, self._filled)) == self._lengths
            and all(map(is_, self._present(), self._objects))
            and list(map(address, self._tensors)) == self._addresses
            and (self._check_forms(*self._tensors) or not self.moved)
        )

    @property
    def moved(self) -> list[torch.Tensor]:
        """The tensors that lie elsewhere than they did, or in another form."""
        before = zip(self._tensors, self._addresses, self._forms, strict=True)
        return [tensor for tensor, *then in before if [address(tensor), _form(tensor)] != then or is_strided(tensor)]


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether a tensor does not lie row-major, or is the negative of what lies there."""
    return tensor.is_neg() or not tensor.is_contiguous()


def _check_of_dynamo(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Whether tensors surely have the forms that they have now, in a tenth of the time that attributes take: a check of
    ``torch.compile``'s guards, in PyTorch versions that have it. It may say no where nothing has changed, as in another
    mode of dispatch."""
    guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    if guards is None:
        return lambda *_: False
    check: Callable[..., bool] = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


class Watch:
    """The tensors of modules by name, as they were when this was made."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self.modules = modules
        self.tensors = {
            _joined(prefix, name): tensor
            for prefix, module in modules.items()
            for name, tensor in state_tensors(module).items()
        }
        # a part that torch.compile wrapped has the mode of what it wraps, which is a part, too
        parts = [part for module in modules.values() for part in module.modules() if MODE in vars(part)]
        contents = [each for part in parts for each in contents_of(part)]
        tensors = [value for each in contents for value in each if isinstance(value, torch.Tensor)]
        self._all = list({id(tensor): tensor for tensor in tensors}.values())
        self._modes = list(map(vars, parts))
        self._guard = Guard(self._all, [*HOOKS_OF_ALL, *contents])

    @property
    def unchanged(self) -> bool:
        """Whether modules have the tensors, submodules and hooks that they had, tensors lie where and as they did, and
        there are no hooks on gradients."""
        return (
            self._guard.holds
            and not any(map(_backward_hooks, self._all))
            and not any(map(_accumulation_hooks, self._all))
        )

    @property
    def reason(self) -> str:
        """What has changed, for people."""
        moved = set(map(id, self._guard.moved))
        names = [name for name, tensor in self.tensors.items() if id(tensor) in moved]
        return f"{', '.join(names)} moved" if names else "modules have other tensors, submodules or hooks"

    @property
    def flags(self) -> Flags:
        """What else decides about the step: which parts are in training mode, which tensors are trained."""
        return (*map(_mode, self._modes), *map(_requires_grad, self._all))

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
            if _backward_hooks(tensor) or _accumulation_hooks(tensor):
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


def contents_of(part: torch.nn.Module) -> Iterator[Collection[Any]]:
    """The tensors, submodules and hooks of a module, as views of where it keeps them."""
    kept = part._parameters, part._buffers, part._modules, part._backward_hooks, part._backward_pre_hooks
    yield from (each.values() for each in kept)
    for hooks in (part._forward_hooks, part._forward_pre_hooks):
        yield from (hooks.keys(), hooks.values())  # registered again, a function may be called in another way


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
