"""Element types of PyTorch and ours."""

from __future__ import annotations

import torch

from glowtrain.errors import InputError
from glowtrain.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

OURS: dict[torch.dtype, DType] = {
    torch.float64: f64,
    torch.float32: f32,
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.int64: i64,
    torch.int32: i32,
    torch.int16: i16,
    torch.int8: i8,
    torch.uint64: u64,
    torch.uint32: u32,
    torch.uint16: u16,
    torch.uint8: u8,
    torch.bool: boolean,
}
THEIRS: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in OURS.items()}


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """Our element type. Raises :class:`InputError` for one that is not computed with: complex numbers, say."""
    if dtype not in OURS:
        raise InputError(f"tensors of {dtype} are not supported; there are {', '.join(map(str, OURS))}")
    return OURS[dtype]
