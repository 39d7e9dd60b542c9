"""Tensors whose size along one axis is found at run time: memory for the greatest size, and the size as a value.

What reads such a tensor works on all of it. :meth:`Operator.counted` makes operands so that places past the size do no
harm (sums count them as 0), :meth:`Operator.follow` says where the axis went.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from glowtrain.errors import ModelError

if TYPE_CHECKING:
    from glowtrain.graph.value import Value


@dataclass(frozen=True)
class Ragged:
    """A tensor of which the first ``size`` (a scalar i64) places along ``axis`` count."""

    value: Value
    axis: int
    size: Value


Operand: TypeAlias = "Value | Ragged | None"


def whole(operand: Operand) -> Value | None:
    """The tensor of the greatest size."""
    return operand.value if isinstance(operand, Ragged) else operand


def ragged_of(operands: Sequence[Operand]) -> list[Ragged]:
    """The operands whose sizes are found."""
    return [operand for operand in operands if isinstance(operand, Ragged)]


def broadcast(key: str, operands: Sequence[Operand], result: Value) -> Ragged:
    """The result of operator ``key``, whose operands broadcast. Raises :class:`ModelError` for two ragged axes."""
    found = ragged_of(operands)
    axes = {result.rank - operand.value.rank + operand.axis for operand in found}
    if len(axes) > 1:
        raise ModelError(f"{key} broadcasts different axes whose sizes are found at run time")
    return Ragged(result, axes.pop(), found[0].size)
