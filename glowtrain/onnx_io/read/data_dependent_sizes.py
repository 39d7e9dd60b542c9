"""Results whose size along one axis is found at run time, as a model is loaded.

How graphs hold them: :mod:`glowtrain.graph.specialise.ragged`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glowtrain.errors import ModelError
from glowtrain.graph import Constant, Operand, Operator, Ragged, Value
from glowtrain.graph.specialise.ragged import ragged_of


def ragged(results: Sequence[Value], sizes: Mapping[int, int]) -> tuple[Value | Ragged, ...]:
    """The results of an operator that finds a size: its last result is that size, ``sizes`` says whose and where."""
    *values, size = results
    return tuple(
        cut(Ragged(value, sizes[position], size)) if position in sizes else value
        for position, value in enumerate(values)
    )


def cut(tensor: Ragged) -> Value | Ragged:
    """A tensor where its size is known when compiling."""
    value, size = tensor.value, tensor.size
    if not isinstance(value, Constant) or not isinstance(size, Constant):
        return tensor
    return Constant(value.array[(slice(None),) * tensor.axis + (slice(0, int(size.array)),)], value.name)


def follow(operator: Operator, operands: Sequence[Operand], results: Sequence[Value]) -> tuple[Value | Ragged, ...]:
    """The results of an operator on operands that it has counted, with their sizes.

    Raises :class:`ModelError` for an operator that cannot follow them, or operands of different sizes.
    """
    counted = ragged_of(operands)
    if any(operand.size is not counted[0].size for operand in counted):
        raise ModelError(f"{operator.key()} combines tensors whose sizes are found at run time apart from each other")
    return tuple(operator.follow(result, *operands) for result in results)
