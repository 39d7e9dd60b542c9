"""Arrays over the memory of tensors."""

from __future__ import annotations

import torch

from glowtrain.errors import InputError
from glowtrain.torch.dtypes import THEIRS, from_torch_dtype
from glowtrain.types import Array, TensorType


def array_of(tensor: torch.Tensor) -> Array:
    """An array over a tensor's own memory: writing to one writes to the other. It keeps the memory alive.

    Raises :class:`InputError` for tensors that do not lie row-major in the memory of the processor.
    """
    check_memory(tensor)
    flat = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # NumPy has no such type of its own
        flat = flat.view(torch.int16)
    array: Array = flat.numpy()
    return array.view(from_torch_dtype(tensor.dtype).numpy)


def check_memory(tensor: torch.Tensor, name: str = "a tensor") -> None:
    """Raise :class:`InputError` for tensors whose memory cannot be taken as it is."""
    if tensor.device.type != "cpu":
        raise InputError(f"{name} is on {tensor.device}: Glowtrain computes on the CPU; move it there with .cpu()")
    if tensor.layout is not torch.strided:
        raise InputError(f"{name} is {tensor.layout}: make it dense with .to_dense()")
    if not tensor.is_contiguous():
        raise InputError(
            f"{name} {tuple(tensor.shape)} has strides {tensor.stride()}: make it contiguous with .contiguous()"
        )


def empty(type_: TensorType) -> torch.Tensor:
    """A new tensor, whose elements are anything."""
    return torch.empty(type_.shape, dtype=THEIRS[type_.dtype])
