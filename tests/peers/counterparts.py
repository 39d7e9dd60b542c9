"""PyTorch's functions beside Glowtrain's operators: the table, which the modules ``counterparts_*`` fill.

A counterpart is called with an operator and tensors (``None`` where an operand is absent), and gives the results in
their places, ``None`` for one that is not compared. PyTorch's own function is called wherever it can say what the
operator says; where it can only for some attributes, ``fitted`` turns a drawn sample into the nearest one that it can
express, or says ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glowtrain.graph import Sample

Function = Callable[..., Any]
Fit = Callable[[Sample], Sample | None]


@dataclass(frozen=True)
class Counterpart:
    """A function of operator and tensors, and which samples it can be compared on."""

    function: Function
    fitted: Fit = lambda sample: sample


COUNTERPARTS: dict[str, Counterpart] = {}
"""By the operator's key."""


def counterpart(*keys: str, fitted: Fit | None = None) -> Callable[[Function], Function]:
    """Enter a function of operator and tensors."""

    def entered(function: Function) -> Function:
        for key in keys:
            assert key not in COUNTERPARTS, key
            COUNTERPARTS[key] = Counterpart(function) if fitted is None else Counterpart(function, fitted)
        return function

    return entered


def plain(key: str, function: Callable[..., Tensor]) -> None:
    """Enter a function of tensors alone: an operator without attributes."""
    counterpart(key)(lambda op, *tensors: function(*tensors))


def when(condition: Callable[[Any, Sequence[Any]], bool]) -> Fit:
    """The samples for which a condition on operator and operands holds."""
    return lambda sample: sample if condition(sample.operator, sample.inputs) else None


TORCH_NAMES = frozenset({"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"})
"""NumPy's names of types that PyTorch has."""


def as_tensor(array: Any) -> Tensor:
    """A tensor of the array; numbers that PyTorch has no type for in f64."""
    array = np.array(array, order="C")
    if array.dtype.kind == "V" or array.dtype.name not in TORCH_NAMES:
        array = array.astype(np.float64)
    return torch.from_numpy(array)


def axes_of(tensor: Tensor, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Axes from 0; ``None`` means all."""
    return tuple(range(tensor.ndim)) if axes is None else tuple(axis % tensor.ndim for axis in axes)


def derivative(function: Callable[[Tensor], Tensor], shape: Sequence[int], cotangent: Tensor) -> Tensor:
    """PyTorch's gradient of a linear function, which does not depend on the point."""
    point = torch.zeros(tuple(shape), dtype=cotangent.dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(point), point, cotangent, create_graph=True)
    return gradient
