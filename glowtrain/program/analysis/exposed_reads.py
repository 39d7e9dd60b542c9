"""What a repeat reads of a buffer before it writes it, and what it writes: exact, by marking elements trip by trip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.loops import Accumulate, Buffer, Index, statements
from glowtrain.program.analysis.write_coverage import (
    MOST_TRIPS,
    NO_TRIP,
    Trip,
    covered,
    depends_on_data,
    mark,
    overwrites,
    program_stores,
    stores_of,
)
from glowtrain.program.interpret.vectorize import Facts
from glowtrain.program.program import Instruction, Kernel, Repeat, kernels_of
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
    def of(cls, repeat: Repeat, buffer: Buffer) -> Exposure:
        """What all trips of a repeat do to a buffer."""
        found = cls(buffer)
        if buffer not in repeat.writes:
            for kernel in kernels_of([repeat]):
                found.read |= reads(kernel, buffer, NO_TRIP)
        elif buffer in repeat.reads:
            found._follow([repeat], NO_TRIP)
        else:
            found.written |= covered(buffer, program_stores([repeat]))
        return found

    def _follow(self, instructions: Sequence[Instruction], trip: Trip) -> None:
        for instruction in instructions:
            if self.buffer not in instruction.touched or self.written.all():
                continue
            if isinstance(instruction, Kernel):
                self._visit(instruction, trip)
            elif instruction.index.extent > MOST_TRIPS:  # counts as reading first all that it may read
                self.read |= ~self.written
            else:
                for step in range(instruction.index.extent):
                    self._follow(instruction.body, {**trip, instruction.index: step})

    def _visit(self, kernel: Kernel, trip: Trip) -> None:
        if self.buffer in kernel.reads and self.buffer not in overwrites(kernel):
            self.read |= reads(kernel, self.buffer, trip) & ~self.written
        self.written |= covered(self.buffer, stores_of(kernel.body), trip=trip)


def reads(kernel: Kernel, buffer: Buffer, trip: Trip) -> Array:
    """The elements of a buffer that a kernel may read, in one trip of the repeats in ``trip`` and any of the others."""
    if any(isinstance(s, Accumulate) and s.buffer is buffer for s in statements(kernel.body)):
        return np.ones(buffer.shape, np.bool_)
    found, facts = np.zeros(buffer.shape, np.bool_), Facts()
    for load in kernel.survey.loads:
        if load.buffer is buffer:
            places = [
                Index(extent, "any") if depends_on_data(place) else place  # all along the axis
                for place, extent in zip(load.index, buffer.shape, strict=True)
            ]
            free = frozenset[Index]().union(*(facts.free(place) for place in places)) - set(trip)
            if all(index.extent for index in free):
                mark(found, places, tuple(free), unknown=True, fixed=trip)
    return found
