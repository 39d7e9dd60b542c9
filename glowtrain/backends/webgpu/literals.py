"""Numbers as WGSL writes them."""

from __future__ import annotations

import math

import numpy as np

from glowtrain.types import DType


def float_literal(value: float) -> str:
    """An f32; infinities, NaN, denormals and -0 by their bits, as constant expressions may not have them."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    tiny = abs(single) < np.finfo(np.float32).tiny
    if not math.isfinite(single) or (tiny and single.view(np.uint32)):
        return f"f32_of_bits({int(single.view(np.uint32))}u)"
    return f"{single!s}f" if single >= 0 else f"({single!s}f)"


def literal(value: float, dtype: DType, type_: str) -> str:
    """A constant of an element type as a value of a WGSL type; integers wrap."""
    if type_ == "f32":
        return float_literal(float(np.asarray(float(value)).astype(dtype.numpy)))
    if type_ == "bool":
        return "true" if value else "false"
    if type_ in ("f64", "i64", "u64"):
        bits = int(np.float64(value).view(np.uint64)) if type_ == "f64" else int(value)
        return f"vec2<u32>({bits & 0xFFFFFFFF}u, {bits >> 32 & 0xFFFFFFFF}u)"
    wrapped = int(np.asarray(int(value) & (1 << 64) - 1, np.uint64).astype(dtype.numpy))
    if type_ == "u32":
        return f"{wrapped}u"
    return integer_literal(wrapped)


def integer_literal(value: int) -> str:
    """An i32."""
    if value == -(1 << 31):
        return "(-2147483647 - 1)"
    return str(value) if value >= 0 else f"({value})"
