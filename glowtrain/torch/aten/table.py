"""The table of ATen operators that can be read, and what a reading function is told of a call.

Each entry is a function of a :class:`AtenCall` and the operator's own arguments, named and ordered as its ATen schema
has them: tensors are :class:`~glowtrain.graph.Value`, everything else is a Python number, string, list or None. It
returns the results as graph code. What ATen leaves to the types of operands (which type results have) stands in the
call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.tensor.move import reshape
from glowtrain.torch.dtypes import from_torch_dtype
from glowtrain.torch.random_state import Draws
from glowtrain.types import DType, Shape, TensorType, bf16, f16, f32

Reading = Callable[..., Any]
"""What makes graph code of a call."""

TABLE: dict[str, Reading] = {}
"""The reading functions by operator and overload, ``add.Tensor``."""


def aten(*names: str) -> Callable[[Reading], Reading]:
    """Enter a function under the names of the operators that it reads."""

    def enter(function: Reading) -> Reading:
        for name in names:
            if name in TABLE:
                raise ValueError(f"{name} is in the table already")
            TABLE[name] = function
        return function

    return enter


def along_axis(reading: Reading) -> Reading:
    """What computes along an axis; scalars are given to it as rows of one element, as ATen takes them there."""

    @wraps(reading)
    def read(call: AtenCall, *arguments: Any, **named: Any) -> Any:
        results = reading(call, *map(_row, arguments), **{name: _row(each) for name, each in named.items()})
        if not isinstance(results, (tuple, list)):
            return reshape(results, call.shape)
        return [reshape(y, type_.shape) for y, type_ in zip(results, call.types, strict=True) if type_ is not None]

    return read


def _row(arguments: Any) -> Any:
    return reshape(arguments, (1,)) if isinstance(arguments, Value) and not arguments.rank else arguments


@dataclass(frozen=True)
class AtenCall:
    """One call of an operator: ``node`` as PyTorch has traced it, and where random numbers come from."""

    node: torch.fx.Node
    random: Draws

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        """The types of all results; None for those that are no tensors."""
        found = self.node.meta.get("val")
        results = found if isinstance(found, (tuple, list)) else (found,)
        return tuple(type_of_fake(result) if isinstance(result, torch.Tensor) else None for result in results)

    @property
    def type(self) -> TensorType:
        """The type of the only, or first result."""
        found = self.types[0]
        assert found is not None
        return found

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    def nothing(self, *results: int) -> list[Value]:
        """Zeros for results that are empty, or are not wanted."""
        types = [self.types[number] for number in results]
        return [constant(np.zeros(type_.shape, type_.dtype.numpy)) for type_ in types if type_]

    def cast(self, value: Any) -> Value:
        """A tensor or number in the element type of the result."""
        return as_type(value, self.dtype)

    def promoted(self, *values: Any) -> list[Value]:
        """The first operands in the element type that ATen promotes them to."""
        facts = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in self.node.args]
        one, *others = facts[: len(values)]
        dtype = from_torch_dtype(torch.result_type(one, others[0] if others else one))
        return [as_type(value, dtype) for value in values]


def as_type(value: Any, dtype: DType) -> Value:
    """A tensor or number in an element type."""
    if not isinstance(value, Value):
        return constant(value, dtype)
    result: Value = value if value.dtype == dtype else Cast(to=dtype)(value)
    return result


def accumulated(x: Value) -> Value:
    """A tensor in the type that ATen adds it up in: bf16 and f16 in f32."""
    return as_type(x, f32) if x.dtype in (f16, bf16) else x


def type_of_fake(tensor: torch.Tensor) -> TensorType:
    """The type of a tensor, real or traced."""
    return TensorType(from_torch_dtype(tensor.dtype), tuple(int(extent) for extent in tensor.shape))
