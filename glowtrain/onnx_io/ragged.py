"""Tensors whose size along one axis is found at run time: memory for the greatest size, and the size as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glowtrain.graph import Constant, Value


@dataclass(frozen=True)
class Ragged:
    """A tensor of which the first ``size`` (a scalar i64) places along ``axis`` count."""

    value: Value
    axis: int
    size: Value


def ragged(results: Sequence[Value], sized: Mapping[int, int]) -> tuple[Value | Ragged, ...]:
    """The results of an operator that finds a size: its last result is that size, ``sized`` says whose and where."""
    *values, size = results
    return tuple(
        cut(Ragged(value, sized[place], size)) if place in sized else value for place, value in enumerate(values)
    )


def cut(found: Ragged) -> Value | Ragged:
    """A tensor where its size is known when compiling."""
    value, size = found.value, found.size
    if not isinstance(value, Constant) or not isinstance(size, Constant):
        return found
    return Constant(value.array[(slice(None),) * found.axis + (slice(0, int(size.array)),)], value.name)
