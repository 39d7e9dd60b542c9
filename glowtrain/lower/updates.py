"""Where the parts of a variable's new value go: what is the variable's present value at the same place stays there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glowtrain.graph import Value, Variable
from glowtrain.ops.tensor.move import Concat, Slice

Offsets = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A value that replaces as many elements of a variable, from ``offsets`` on: one for each axis."""

    value: Value
    offsets: Offsets


def pieces(variable: Variable, value: Value) -> list[Piece]:
    """What an update of ``variable`` to ``value`` has to write.

    Of a concatenation that joins new elements with slices of the variable, such as ``concat(x[:2], new, x[4:])``, only
    what is new.
    """
    return list(_pieces(variable, value, (0,) * value.rank))


def _pieces(variable: Variable, value: Value, offsets: Offsets) -> Iterator[Piece]:
    if _stays(variable, value, offsets):
        return
    operator = value.node.operator if value.node is not None else None
    if value.node is None or not isinstance(operator, Concat):
        yield Piece(value, offsets)
        return
    axis, begin = operator.axis % value.rank, offsets
    for operand in value.node.inputs:
        assert operand is not None
        yield from _pieces(variable, operand, begin)
        begin = (*begin[:axis], begin[axis] + operand.shape[axis], *begin[axis + 1 :])


def _stays(variable: Variable, value: Value, offsets: Offsets) -> bool:
    """Whether a value is a slice of the variable, and goes to where it came from."""
    if 0 in value.shape:
        return True
    operator = value.node.operator if value.node is not None else None
    if value.node is None or not isinstance(operator, Slice) or value.node.inputs[0] is not variable:
        return False
    there = [range(offset, offset + extent) for offset, extent in zip(offsets, value.shape, strict=True)]
    return operator.ranges(variable.type) == there
