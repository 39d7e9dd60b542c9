"""Arrays of what loaders give: NumPy's own, and tensors of other libraries, none of which is imported for that.

A contiguous tensor in the CPU's memory is not copied: the array is over that memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.types import Array, DType, bf16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz

NARROW: Mapping[str, tuple[str, DType]] = {
    "torch.bfloat16": ("int16", bf16),
    "torch.float8_e4m3fn": ("uint8", f8e4m3fn),
    "torch.float8_e4m3fnuz": ("uint8", f8e4m3fnuz),
    "torch.float8_e5m2": ("uint8", f8e5m2),
    "torch.float8_e5m2fnuz": ("uint8", f8e5m2fnuz),
}
"""PyTorch's element types that NumPy lacks: an integer of the same size, and ours."""


def is_array(value: Any) -> bool:
    """Whether a value is an array or a tensor, of whichever library."""
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def array_of(name: str, value: Any) -> Array:
    """The value for an input as an array, over the same memory where that can be.

    Raises :class:`InputError`, saying what to do, for tensors on other devices, such that need gradients, and others
    that are no plain memory.
    """
    if type(value) is np.ndarray:
        return value
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        narrow = None if _refused(value) else _narrow(value)
        if narrow is not None:
            return narrow
        raise InputError(f"{name!r} {_refused(value) or f'cannot be read as an array: {error}'}") from error


def _refused(value: Any) -> str:
    """Why a tensor is not taken, and what to do; empty if nothing is known to be wrong."""
    device = str(getattr(value, "device", "cpu"))
    if "cpu" not in device.lower():
        return f"is a tensor on {device}, but glowtrain computes on the CPU: give it .cpu() of it"
    if getattr(value, "requires_grad", False):
        return "is a tensor that requires grad, which would not get any: give it .detach() of it"
    if getattr(value, "is_sparse", False) or "sparse" in str(getattr(value, "layout", "")):
        return "is a sparse tensor: give it .to_dense() of it"
    return ""


def _narrow(value: Any) -> Array | None:
    """A PyTorch tensor of an element type that NumPy lacks, over its memory; None for anything else."""
    found, torch = NARROW.get(str(getattr(value, "dtype", ""))), sys.modules.get("torch")
    if found is None or torch is None:
        return None
    integer, dtype = found
    return np.asarray(value.view(getattr(torch, integer))).view(dtype.numpy)
