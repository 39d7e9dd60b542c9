"""Arrays over the memory of tensors."""

from __future__ import annotations

import numpy as np
import torch

from glowtrain.errors import InputError
from glowtrain.types import Array, bf16


def array_of(tensor: torch.Tensor) -> Array:
    """An array over a tensor's own memory: writing to one writes to the other. It keeps the memory alive.

    Raises :class:`InputError` for tensors that do not lie row-major in the memory of the processor.
    """
    check_memory(tensor)
    flat = tensor.detach() if tensor.requires_grad else tensor
    is_bf16 = tensor.dtype is torch.bfloat16  # NumPy has no such type of its own
    array: Array = flat.view(torch.int16).numpy().view(bf16.numpy) if is_bf16 else flat.numpy()
    return array


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor over an array's memory."""
    if array.dtype == bf16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def check_memory(tensor: torch.Tensor, name: str = "a tensor") -> None:
    """Raise :class:`InputError` for tensors whose memory cannot be taken as it is."""
    check_device(tensor, name)
    if not tensor.is_contiguous():
        raise InputError(
            f"{name} {tuple(tensor.shape)} has strides {tensor.stride()}: make it contiguous with .contiguous()"
        )


def check_device(tensor: torch.Tensor, name: str) -> None:
    """Raise :class:`InputError` for tensors that are not in the memory of the processor, or not dense."""
    if not tensor.is_cpu:
        raise InputError(f"{name} is on {tensor.device}: Glowtrain computes on the CPU; move it there with .cpu()")
    if tensor.layout is not torch.strided:
        raise InputError(f"{name} is {tensor.layout}: make it dense with .to_dense()")
