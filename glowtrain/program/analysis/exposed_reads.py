"""Find what a repeat reads of a buffer before it writes it, and what it writes: exact, by marking elements trip by
trip."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.loops import Buffer, Index
from glowtrain.program.analysis.write_coverage import (
    MOST_TRIPS,
    NO_TRIP,
    Trip,
    covered,
    depends_on_data,
    mark,
    overwrites,
)
from glowtrain.program.interpret.vectorize import VectorFacts
from glowtrain.program.program import Instruction, leaves_of
from glowtrain.types import Array


@dataclass
class Exposure:
    """Elements of ``buffer`` that are read before any write (``read``), and such as are written for certain."""

    buffer: Buffer
    read: Array = field(init=False)
    written: Array = field(init=False)

    def __post_init__(self) -> None:
        self.read, self.written = (np.zeros(self.buffer.shape, np.bool_) for _ in range(2))

    @classmethod
    def of(cls, repeat: Instruction, buffer: Buffer) -> Exposure:
        """What all trips of a repeat do to a buffer."""
        found = cls(buffer)
        if buffer not in repeat.writes:
            for leaf in leaves_of([repeat]):
                found.read |= reads(leaf, buffer, NO_TRIP)
        elif buffer in repeat.reads:
            found._follow([repeat], NO_TRIP)
        else:
            found.written |= covered(buffer, repeat.stores())
        return found

    def _follow(self, instructions: Sequence[Instruction], trip: Trip) -> None:
        for instruction in instructions:
            if self.buffer not in instruction.touched or self.written.all():
                continue
            if instruction.is_leaf:
                self._visit(instruction, trip)
            elif instruction.trips > MOST_TRIPS:  # counts as reading first all that it may read
                self.read |= ~self.written
            else:
                for values in itertools.product(*(range(index.extent) for index in instruction.indices)):
                    self._follow(instruction.children, {**trip, **dict(zip(instruction.indices, values, strict=True))})

    def _visit(self, leaf: Instruction, trip: Trip) -> None:
        if self.buffer in leaf.reads and self.buffer not in overwrites(leaf):
            self.read |= reads(leaf, self.buffer, trip) & ~self.written
        self.written |= covered(self.buffer, leaf.stores(), trip=trip)


def reads(leaf: Instruction, buffer: Buffer, trip: Trip) -> Array:
    """The elements of a buffer that an instruction may read, in one trip of the repeats in ``trip`` and any of the
    others."""
    if buffer in leaf.opaque:
        return np.ones(buffer.shape, np.bool_)
    found, facts = np.zeros(buffer.shape, np.bool_), VectorFacts()
    for load in leaf.survey.loads:
        if load.buffer is buffer:
            places = [
                Index(extent, "any") if depends_on_data(place) else place  # all along the axis
                for place, extent in zip(load.index, buffer.shape, strict=True)
            ]
            free = frozenset[Index]().union(*(facts.free(place) for place in places)) - set(trip)
            if all(index.extent for index in free):
                mark(found, places, tuple(free), unknown=True, fixed=trip)
    return found
