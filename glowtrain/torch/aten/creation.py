"""Tensors made of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.tensor.move import Expand
from glowtrain.torch.aten.table import AtenCall, aten


def _filled(call: AtenCall, number: Any) -> Value:
    return constant(np.full(call.shape, number, call.dtype.numpy))


@aten("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default")
@aten("new_empty.default", "empty_permuted.default", "empty_strided.default", "new_empty_strided.default")
def zeros(call: AtenCall, *_: Any, **__: Any) -> Any:
    """Of a tensor whose elements may be anything too."""
    return _filled(call, 0)


@aten("ones.default", "ones_like.default", "new_ones.default")
def ones(call: AtenCall, *_: Any, **__: Any) -> Any:
    return _filled(call, 1)


@aten("full.default", "full_like.default", "new_full.default")
def full(call: AtenCall, *arguments: Any, **__: Any) -> Any:
    """Of a size, of a tensor's, or both; the number stands last."""
    return _filled(call, arguments[-1])


@aten("scalar_tensor.default")
def scalar_tensor(call: AtenCall, number: Any, **__: Any) -> Any:
    return constant(number, call.dtype)


@aten("fill.Scalar", "fill.Tensor")
def fill(call: AtenCall, x: Value, value: Any) -> Any:
    number = call.cast(value)
    return Expand(shape=call.shape)(number) if call.shape else number


@aten("arange.default", "arange.start", "arange.start_step")
def arange(call: AtenCall, *bounds: Any, **__: Any) -> Any:
    return constant(np.arange(*bounds).astype(call.dtype.numpy))


@aten("linspace.default")
def linspace(call: AtenCall, start: float, end: float, steps: int, **__: Any) -> Any:
    return constant(np.linspace(start, end, steps).astype(call.dtype.numpy))


@aten("eye.default", "eye.m")
def eye(call: AtenCall, n: int, m: int | None = None, **__: Any) -> Any:
    return constant(np.eye(n, m, dtype=call.dtype.numpy))


@aten("tril_indices.default")
def tril_indices(call: AtenCall, row: int, col: int, offset: int = 0, **__: Any) -> Any:
    return constant(np.stack(np.tril_indices(row, offset, col)).astype(call.dtype.numpy))


@aten("triu_indices.default")
def triu_indices(call: AtenCall, row: int, col: int, offset: int = 0, **__: Any) -> Any:
    return constant(np.stack(np.triu_indices(row, offset, col)).astype(call.dtype.numpy))


@aten("tril.default")
def tril(call: AtenCall, x: Value, diagonal: int = 0) -> Any:
    return _masked(call, x, np.tri(x.shape[-2], x.shape[-1], diagonal, dtype=np.bool_))


@aten("triu.default")
def triu(call: AtenCall, x: Value, diagonal: int = 0) -> Any:
    return _masked(call, x, ~np.tri(x.shape[-2], x.shape[-1], diagonal - 1, dtype=np.bool_))


def _masked(call: AtenCall, x: Value, kept: Any) -> Value:
    if x.dtype.kind == "bool":
        return x & constant(kept)
    result: Value = Where()(constant(kept), x, call.cast(0))
    return result
