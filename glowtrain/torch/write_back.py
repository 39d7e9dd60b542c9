"""Write a trainer's parameters and running statistics back to the module that they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from glowtrain.errors import InputError
from glowtrain.graph import Template
from glowtrain.modes.variables import COUNTERS
from glowtrain.torch.dtypes import THEIRS
from glowtrain.torch.memory import first_overlap, may_overlap, tensor_of
from glowtrain.torch.module import ModuleBuild, check_module, original_of, state_tensors
from glowtrain.trainer.steps import Steps
from glowtrain.types import Array, type_of

LISTED = 5
"""Names that a message lists."""


def to_torch(trainer: Steps, module: torch.nn.Module) -> None:
    """Write a trainer's present parameters and buffers into the tensors of a module, in place.

    A module's tensors keep their identity, memory, device and ``requires_grad``. Names must be the same on both sides,
    element types and shapes too; what the model does not use stays as it is. Raises :class:`InputError` that
    lists what does not fit: nothing has been written then.
    """
    check_module(module)
    module = original_of(module)
    tensors = state_tensors(module)
    names = _names(trainer)
    values = {name: array for name, array in trainer.variables().items() if name in names}
    problems = [*_strangers(values, module, _unused(trainer))]
    problems += [p for name in values if name in tensors for p in _misfit(name, values[name], tensors[name])]
    if problems:
        shown = problems[:LISTED] + ([f"and {len(problems) - LISTED} more"] if len(problems) > LISTED else [])
        listed = "".join(f"\n  - {problem}" for problem in shown)
        raise InputError(f"the parameters of {trainer.graphs.model.name} do not fit {type(module).__name__}:{listed}")
    with torch.no_grad():
        for name, array in values.items():
            tensors[name].copy_(tensor_of(array))


def _names(trainer: Steps) -> set[str]:
    """The model's own variables: neither the optimizer's state nor counters."""
    return {variable.name for variable in trainer.graphs.trained(trainer.graphs.example).variables} - COUNTERS


def _strangers(values: Mapping[str, Array], module: torch.nn.Module, unused: set[str]) -> Iterator[str]:
    """Parameters that only one side has, but for ``unused`` ones, or that are one tensor in the module and several in
    the trainer."""
    tensors = state_tensors(module)
    taken: dict[int, str] = {}
    for name in values:
        if name not in tensors:
            yield f"{name!r} is not in the module"
        elif (other := taken.setdefault(id(tensors[name]), name)) != name:
            yield f"{other!r} and {name!r} are one tensor in the module, and two in the trainer"
    dense = {name: tensors[name] for name in taken.values() if _is_dense(tensors[name])}
    overlap = first_overlap(dense)
    if overlap is not None:
        yield f"{overlap[0]!r} and {overlap[1]!r} share memory in the module: clone() one of them"
    for name, parameter in module.named_parameters():
        if id(parameter) not in taken and name not in unused:
            yield f"{name!r} is a parameter of the module, which the trainer does not have"


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether all bytes from the first element to the last one are the tensor's own."""
    return not tensor.is_meta and tensor.layout is torch.strided and tensor.is_contiguous()


def _unused(trainer: Steps) -> set[str]:
    """The names of parameters that the model's module had when it was read, whether the model uses them or not."""
    model = trainer.graphs.model
    return set(model.build.arrays) if isinstance(model, Template) and isinstance(model.build, ModuleBuild) else set()


def _misfit(name: str, array: Array, tensor: torch.Tensor) -> Iterator[str]:
    """Why an array cannot be written to a tensor."""
    ours, theirs = type_of(array), f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if THEIRS[ours.dtype] != tensor.dtype or ours.shape != tuple(tensor.shape):
        yield f"{name!r} is {ours} in the trainer, {theirs} in the module"
    elif tensor.is_meta or tensor.layout is not torch.strided:
        yield f"{name!r} has no memory to write to: it is {tensor.layout} on {tensor.device}"
    elif tensor.is_inference():
        yield f"{name!r} was made in inference mode, which PyTorch lets nobody change: clone() it outside"
    elif may_overlap(tensor):
        yield f"{name!r} has elements that share memory, as expanded tensors do: clone() it"
