"""Training of a part of a variable: a box of its elements is updated, the rest stays as it is.

What is trained stands for a variable of its own, which an optimizer sees as any other, so that slots are as small as
the part; in the step it is a slice of the whole one, and its new value goes back to where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from glowtrain.graph import Graph, Value, Variable, substituted
from glowtrain.ops.tensor.move import Concat

Bounds = tuple[range, ...]
"""The elements along each axis, without gaps."""


@dataclass(frozen=True)
class TrainedPart:
    """A box of a variable; ``leaf``: the variable that stands for it."""

    whole: Variable
    bounds: Bounds
    leaf: Variable = field(init=False)

    def __post_init__(self) -> None:
        array = self.whole.initial[_slices(self.bounds)]
        object.__setattr__(self, "leaf", Variable(self.whole.name, array, self.whole.trainable))

    def of(self, value: Value) -> Value:
        """The part of a value that is as large as the variable."""
        return value[_slices(self.bounds)]

    def in_whole(self, value: Value) -> Value:
        """The variable with ``value`` in place of the part."""
        for axis in reversed(range(self.whole.rank)):
            value = self._extended(value, axis)
        return value

    def _extended(self, value: Value, axis: int) -> Value:
        """A value that covers the part on the axes up to ``axis``, and all of those behind: all of this one too."""
        inner, extent = self.bounds[axis], self.whole.shape[axis]
        around = [*self.bounds[:axis], *(range(size) for size in self.whole.shape[axis:])]
        sides = (range(inner.start), range(inner.stop, extent))
        before, after = (
            [self.whole[_slices((*around[:axis], side, *around[axis + 1 :]))]] if side else [] for side in sides
        )
        joined: Value = Concat(axis)(*before, value, *after) if before or after else value
        return joined


@dataclass(frozen=True)
class Parts:
    """The parts of those variables that are not trained as a whole."""

    by_whole: Mapping[Variable, TrainedPart]

    @staticmethod
    def of(bounds: Mapping[Variable, Bounds]) -> Parts:
        """The parts with these bounds."""
        return Parts({variable: TrainedPart(variable, box) for variable, box in bounds.items()})

    def trained(self, gradients: Mapping[Variable, Value]) -> dict[Variable, Value]:
        """What an optimizer is given: parts and their gradients in place of the whole ones."""
        leaves = dict[Variable, Value]()
        for variable, gradient in gradients.items():
            part = self.by_whole.get(variable)
            leaves[variable if part is None else part.leaf] = gradient if part is None else part.of(gradient)
        return leaves

    def updates(self, values: Mapping[Variable, Value]) -> dict[Variable, Value]:
        """New values of the whole variables, from what an optimizer made of what it was given."""
        parts = {part.leaf: part for part in self.by_whole.values()}
        updates = dict[Variable, Value]()
        for variable, value in values.items():
            part = parts.get(variable)
            updates[variable if part is None else part.whole] = value if part is None else part.in_whole(value)
        return updates

    def read_from_whole(self, step: Graph) -> Graph:
        """The step with parts read from the whole variables."""
        slices: dict[Value, Value] = {part.leaf: part.of(whole) for whole, part in self.by_whole.items()}
        return substituted(step, slices) if slices else step


WHOLE = Parts({})
"""No parts."""


def _slices(bounds: Bounds) -> tuple[slice, ...]:
    return tuple(slice(taken.start, taken.stop) for taken in bounds)
