"""Find the instructions of a training step's forward part: those that outputs are made of, and what a model's own
variables become. Nothing in a program says what is a gradient; what is left is there for gradients and updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glowtrain.loops import Buffer
from glowtrain.program.program import Instruction, Program, Repeat


def forward_part(program: Program, variables: Iterable[str] = ()) -> frozenset[Instruction]:
    """The instructions, at the top and in bodies of loops over parts of a batch, that lead to outputs or to new values
    of ``variables``. Other repeats are forward as a whole, or not at all."""
    seeds = {*program.outputs.values(), *(program.variables[name] for name in variables if name in program.variables)}
    part = _ForwardPart(seeds)
    part.follow(program.instructions)
    return frozenset(part.found)


class _ForwardPart:
    """The instructions so far, and the buffers that they need."""

    def __init__(self, wanted: set[Buffer]) -> None:
        self.wanted = wanted
        self.found: set[Instruction] = set()

    def follow(self, instructions: Sequence[Instruction]) -> None:
        """Go through instructions from the last to the first."""
        for instruction in reversed(instructions):
            if not self.wanted.isdisjoint(instruction.written):
                self.found.add(instruction)
                if isinstance(instruction, Repeat) and instruction.parts:
                    self._follow_trips(instruction)
                else:
                    self.wanted.update(instruction.reads)

    def _follow_trips(self, loop: Repeat) -> None:
        """Go through a body until nothing is new: what one trip leaves, the next one may read."""
        known = -1
        while known != len(self.wanted):
            known = len(self.wanted)
            self.follow(loop.body)
